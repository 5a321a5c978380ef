"""What the flow does to the world: clouds, the store, the state directory. Every method can be repeated."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from provisioner import planner
from provisioner.clock import now as unix_now
from provisioner.clouds.base import Cloud, Explains, Request
from provisioner.config import Config, StoreConfig
from provisioner.controller import recovery, survey, traffic
from provisioner.controller.asking import Asking
from provisioner.controller.background import Background
from provisioner.controller.beside import both, each, told_if_slow
from provisioner.controller.costs import of_run
from provisioner.controller.course import WorldCourse
from provisioner.controller.daily import Daily, is_daily, read_limit
from provisioner.controller.directory import JobDirectory
from provisioner.controller.failures import KnownFailures
from provisioner.controller.flow import TAKEN_DOWN
from provisioner.controller.launch import Launcher
from provisioner.controller.ledger import Ledger, Terms, bill_of, bills
from provisioner.controller.limits import Limits
from provisioner.controller.patience import Patience
from provisioner.controller.race import race
from provisioner.controller.records import (
    Asked,
    Begun,
    Choice,
    Claimed,
    Finished,
    Placement,
    Published,
    Recovered,
    Released,
    Watched,
)
from provisioner.controller.refusals import Refusals, as_failure, words
from provisioner.controller.standing import standing
from provisioner.controller.start_failures import driver_failure
from provisioner.controller.stores import place, stores
from provisioner.controller.strays import billed_since, release_strays, tidied
from provisioner.controller.unanswered import Unanswered
from provisioner.controller.view import PlacementView
from provisioner.controller.warnings import Warnings
from provisioner.controller.watch import Watch
from provisioner.controller.wayhome import WayHome
from provisioner.errors import CloudError, Unauthorized, advised
from provisioner.model import Ending, Failure, JobRef, Launch, Node, Offer, claim_token
from provisioner.planner import Place
from provisioner.telemetry.events import EventLog

PAUSE_FIRST_S = 30.0
PAUSE_MOST_S = 300.0


class World:
    """The real effects of one job."""

    def __init__(
        self,
        job: JobRef,
        config: Config,
        directory: JobDirectory,
        open_cloud: Callable[[str], Cloud],
        launcher: Launcher,
        events: EventLog,
        *,
        failures: KnownFailures | None = None,
        now: Callable[[], float] = unix_now,
        take_down: threading.Event | None = None,
        take_over: bool = False,
    ) -> None:
        """Take the parts. ``take_down`` ends the job when it is set; it also cuts every wait short.

        ``take_over`` releases a machine that trains for another controller. ``failures`` is what all jobs know of
        refusals; without it a run knows its own only.
        """
        self.take_over = take_over
        self.job = job
        self.config = config
        self.directory = directory
        self.events = events
        self.launcher = launcher
        self.now = now
        self.take_down = take_down or threading.Event()
        policy, root = config.policy, directory.path.parent.parent
        self.daily = Daily(root, job.name, policy.budget_per_day, policy.usd_cny, now=now, tell=self._blind_of_limits)
        self.ledger = Ledger(directory.path)
        self.limits = Limits(policy, self.daily, now, self.ledger.of_run)
        self.warnings = Warnings(events)
        self.abreast = config.policy.race
        self._open_cloud = open_cloud
        self._clouds: dict[str, Cloud] = {}
        self._holds = False
        self.refusals = Refusals(failures, job.name, self.cloud, events, now)
        self.way_home = WayHome(self)
        self.heard: set[str] = set()
        """The machines that have sent a heartbeat."""
        self._background = Background(self)
        self._asking = Asking(self)
        self.unanswered = Unanswered(self)

    # -- the steps, in the order of a job's life ------------------------------------------------------------------

    def begin(self) -> Begun:
        """Find the first free epoch; release what an earlier run of this job left behind.

        Raises ConfigError where that still trains: another controller may be watching it; and for a file of limits that
        cannot be understood.
        """
        at = self.now()
        read_limit(self.directory.path.parent.parent)
        for name in self.cloud_names():
            try:
                release_strays(self, name)
            except CloudError as error:  # it may be asked again later, and another cloud may have a machine
                self.events.emit("blind", what=name, problem=str(error))
        self.launcher.write_spec()
        epoch = self.launcher.newest_epoch() + 1
        self.events.emit("begin", job=self.job.name, uid=self.job.uid, epoch=epoch)
        record, policy = self.directory.record(), self.config.policy
        self.ledger.begin(record.run if record else 0, at, Terms(policy.budget, policy.budget_per_day, policy.usd_cny))
        return Begun(at, epoch, int(at))

    def _blind_of_limits(self, problem: str) -> None:
        self.events.emit("blind", what="limits.yaml", problem=problem)

    def publish(self) -> Published:
        """Put the runtime and the packed workdir into the store."""
        published = self.launcher.publish()
        self.events.emit("published", wheels=len(published.wheels), workdir=published.workdir_key)
        return published

    def ask_primary(self, begun: Begun, past: tuple[Placement, ...], since: float | None) -> Asked:
        """Ask AutoDL until it has a card or ``wait`` is over."""
        return self._asking.primary(begun, past, since)

    def ask_fallback(self, begun: Begun, past: tuple[Placement, ...]) -> Asked:
        """List the offers of every fallback, without those that a quota has no room for."""
        return self._asking.fallback(begun, past)

    def rest(self, begun: Begun, past: tuple[Placement, ...], until: float) -> float:
        """Wait without a machine until a day's budget is there again."""
        return self._asking.rest(begun, past, until)

    def rank(self, asked: Asked, claims: tuple[Claimed, ...], lost: Sequence[Offer]) -> list[Choice]:
        """Order the offers with the planner. Claims from before the question are in its memory, if they still count."""
        self.launcher.pools = asked.standing.seen if asked.standing else {}
        memory = asked.memory or planner.FailureMemory()
        for claimed in claims:
            if claimed.failure is not None and (asked.memory is None or claimed.at >= asked.at):
                memory = memory.remember(claimed.failure, claimed.offer, now=claimed.at)
        plan = self.plan(asked.offers, memory=memory, now=asked.at, lost=lost, standing=asked.standing)
        self._holds = plan.holds
        return [_choice(ranked) for ranked in plan.ranked]

    def claim(self, choice: Choice, epoch: int, attempt: int, published: Published, *, held: bool = False) -> Claimed:
        """Prepare the region, write the bootstrap object, get the machine. ``held``: write it later."""
        offer = choice.offer
        if self.take_down.is_set():
            return Claimed(offer, self.now(), None, None, choice.at_most, TAKEN_DOWN)
        cloud, asked, token = self.cloud(offer.cloud), self.now(), claim_token(self.job, epoch, offer, attempt)
        self.events.emit("claim", epoch=epoch, offer=offer.key, price=price_words(choice), token=token)
        launch: Launch | None = None
        try:
            cloud.prepare(offer.region)
            launch = self.launcher.launch(offer, epoch, attempt, published, held=held)
            answer = cloud.claim(offer, launch)
        except CloudError as error:
            answer = as_failure(error)
        if isinstance(answer, Failure):
            if launch is not None:  # there may be a machine after all: it must not train beside the next
                self.forget_start(epoch, launch.token)
            if answer.doubtful:
                self.unanswered.note(choice, epoch, token)
            self.refusals.remember(answer, offer)
            said = f": {text}" if (text := words(answer)) else ""
            self.events.emit("refused", epoch=epoch, offer=offer.key, failure=answer.kind, code=answer.code, words=said)
            return Claimed(offer, self.now(), None, answer, choice.at_most)
        answer = billed_since(self, answer, asked)
        self.events.emit("claimed", epoch=epoch, offer=offer.key, node=answer.id)
        self.ledger.machine(bill_of(answer, choice, self.config.policy.ttl))
        return Claimed(offer, self.now(), answer, None, choice.at_most)

    def race(self, choices: tuple[Choice, ...], epoch: int, attempt: int, published: Published) -> tuple[Claimed, ...]:
        """Claim all of them at once and keep the best machine: its answer is the last. The others are released."""
        return race(WorldCourse(self, epoch, attempt, published), choices)

    def watch(self, claimed: Claimed, node: Node, begun: Begun, past: tuple[Placement, ...]) -> Watched:
        """Follow the node; meanwhile let Terraform adopt it and prepare the fallbacks."""
        if self._background.adopt(node):
            self.ledger.watched(bill_of(node, Choice(claimed.offer, claimed.at_most), self.config.policy.ttl))
        if node.offer.cloud == "autodl":
            self._background.prepare()
        view = PlacementView(self, claimed, begun, past)
        watched = Watch(view, self.patience(), self.now, self.take_down.wait).until_end(node)
        if watched.ending is Ending.HOMEWARD:
            self.events.emit("homeward", epoch=node.epoch, reason=watched.reason)
            return watched
        return self.concluded(node, watched, view)

    def patience(self) -> Patience:
        """Return how long a node is waited for."""
        policy = self.config.policy
        return Patience(policy.poll, policy.lost_after, policy.boot_timeout, policy.heartbeat)

    def concluded(self, node: Node, watched: Watched, view: PlacementView) -> Watched:
        """Add what the cloud and the stores know of a placement that has ended."""
        if watched.ending is Ending.LIMIT and is_daily(watched.reason):  # the job goes on when the day is over
            watched = replace(watched, ending=Ending.STOPPED)
        watched = replace(
            watched,
            reason=self._explained(node, watched),
            copies=traffic.copies(self.stores(), node.offer, view.heartbeat),
            restored_from=traffic.restored(self.stores(), node.offer, view.heartbeat),
        )
        moved = [*watched.copies, *([watched.restored_from] if watched.restored_from else [])]
        self.ledger.moved(node.offer.cloud, node.id, node.epoch, [traffic.as_json(one) for one in moved])
        if (refused := driver_failure(watched.cause, watched.reason)) is not None:
            self.refusals.remember(refused, node.offer)
        self.events.emit("ended", epoch=node.epoch, node=node.id, ending=watched.ending, reason=watched.reason)
        with suppress(CloudError):  # its links end by themselves
            self.launcher.forget_data(node.epoch)
        return watched

    def release(self, node: Node) -> Released:
        """Make the machine go away; what cannot be confirmed is reported, and found again by ``finish``."""
        problem = ""
        try:
            with told_if_slow(lambda: self.events.emit("slow", what=f"{node.offer.cloud} to release {node.id}")):
                self.cloud(node.offer.cloud).release(node)
            self.events.emit("released", epoch=node.epoch, node=node.id)
        except CloudError as error:
            problem = str(error)
            self.events.emit("release_failed", node=node.id, problem=problem)
        gone_at = self.now()
        self.ledger.gone(node.offer.cloud, node.id, gone_at, problem)
        with told_if_slow(lambda: self.events.emit("slow", what="the store")):
            done, _ = both(lambda: self._last_word(node), lambda: self.forget_start(node.epoch, node.token))
        return Released(gone_at, problem, done)

    def _last_word(self, node: Node) -> dict[str, object] | None:
        """Return what a node said that has ended for good; None also where the store does not answer."""
        with suppress(CloudError):
            return self.launcher.read_signs(node.epoch)[0]
        return None

    def recover(self, begun: Begun, past: tuple[Placement, ...]) -> Recovered:
        """Wait where machines come to their end too fast; a limit of the job, or the operator, ends that."""
        hold, begin, stop = recovery.hold(past, self.config.policy.recoveries_per_hour), self.now(), ""
        if hold is not None and hold.until > begin:
            self.events.emit("held_back", seconds=round(hold.until - begin), reason=hold.why)
            while (left := hold.until - self.now()) > 0 and not (stop := self.why_stop(begun, past)):
                self.take_down.wait(min(self.config.policy.poll, left))
        return Recovered(self.now(), self.now() - begin, stop)

    def pause(self, since: float, round_number: int) -> bool:
        """Wait 30 s to 5 min before the next round, while ``policy.retry_for`` lasts."""
        left = since + self.config.policy.retry_for - self.now()
        if self._holds:  # there is a machine to be had, and the deadline leaves time to wait for a cheaper one
            left = max(left, PAUSE_MOST_S)
        if left <= 0 or self.take_down.is_set():
            return False
        self.events.emit("waiting", seconds=round(left))
        self.take_down.wait(min(PAUSE_FIRST_S * 1.6 ** min(round_number - 1, 10), PAUSE_MOST_S, left))
        return True

    def finish(self, claimed: frozenset[str] | None = None) -> Finished:
        """Remove what was prepared; list what is still there under our tags.

        ``claimed`` names the clouds that a claim was made at, None when that is not known. A cloud that refuses us may
        hold something of ours only if it once did not.
        """
        self.unanswered.close()
        self._background.close()

        def left_at(name: str) -> list[str]:
            try:
                with told_if_slow(lambda: self.events.emit("slow", what=f"{name} to remove what is left of the job")):
                    return tidied(self, name)
            except CloudError as error:
                untouched = claimed is not None and name not in claimed and name not in self._background.prepared
                if untouched and isinstance(error, Unauthorized):
                    return []
                return [f"{name}: cannot tell: {advised(error)}"]

        leaked = [line for lines in each(left_at, self.cloud_names()) for line in lines]
        self.events.emit("finished", leaked=leaked)
        record, now = self.directory.record(), self.now()
        money = of_run(bills(self.directory.path), record.run if record else 0, now)
        return Finished(now, tuple(leaked), money)

    # -- what they share ------------------------------------------------------------------------------------------

    def plan(
        self,
        offers: tuple[Offer, ...],
        *,
        memory: planner.FailureMemory,
        now: float,
        lost: Sequence[Offer] = (),
        standing: planner.Standing | None = None,
    ) -> planner.Plan:
        """Rank offers by the configuration. No outside effect."""
        at = self.places()
        return planner.plan(self.config, offers, memory=memory, now=now, lost=lost, standing=standing, stores=at)

    def places(self) -> list[Place]:
        """Return where the job's checkpoints are, its own store first."""
        return [place(store) for store in self.stores()]

    def request(self) -> Request:
        """Return what the job asks of a machine."""
        return survey.request(self.config)

    def stores(self) -> list[StoreConfig]:
        """Return the job's own store and its replicas."""
        return stores(self.config.checkpoint, self.launcher.environ)

    def cloud_names(self) -> list[str]:
        """Name the clouds that the job may go to."""
        return [*(["autodl"] if self.config.primary else []), *self.fallback_names()]

    def fallback_names(self) -> list[str]:
        """Name the clouds of the fallbacks."""
        return survey.fallback_names(self.config)

    def cloud(self, name: str) -> Cloud:
        """Return a cloud, opened when it is first asked for. Raises CloudError."""
        if name not in self._clouds:
            self._clouds[name] = self._open_cloud(name)
        return self._clouds[name]

    def offers(self, clouds: list[str]) -> tuple[list[Offer], list[Failure]]:
        """List what these clouds offer, and why one could not answer."""
        offers: list[Offer] = []
        problems: list[Failure] = []
        for name in clouds:
            try:
                offers += self.cloud(name).offers(self.request())
            except CloudError as error:
                problems.append(as_failure(error))
        return offers, problems

    def standing(self, begun: Begun, past: Sequence[Placement]) -> planner.Standing:
        """Return where the run stands now, for the planner."""
        return standing(self.config, begun, past, self.now(), self.limits.elsewhere(past))

    def why_stop(self, begun: Begun, past: tuple[Placement, ...], current: Claimed | None = None) -> str:
        """Say why the job must end now, or nothing."""
        if self.take_down.is_set() or (self.directory.path / "takedown").exists():
            self.take_down.set()
            return TAKEN_DOWN
        self.unanswered.look()
        self.warnings.look(self.limits.shares(begun, past, current))
        return self.limits.reached(begun, past, current, self.now())

    def forget_start(self, epoch: int, token: str) -> None:
        """Remove the start object; a store that does not answer now must not cost a machine its keeper."""
        try:
            self.launcher.remove_bootstrap(epoch, token)
        except CloudError as error:
            self.events.emit("blind", what="store", problem=str(error))

    def _explained(self, node: Node, watched: Watched) -> str:
        """Return how a placement ended; of a machine that was lost also the cloud's own words, where it has some."""
        cloud = self.cloud(node.offer.cloud)
        if watched.ending not in {Ending.LOST, Ending.NEVER_STARTED} or not isinstance(cloud, Explains):
            return watched.reason
        try:
            why = cloud.why_gone(node)
        except CloudError as error:
            self.events.emit("blind", what=node.offer.cloud, problem=str(error))
            return watched.reason
        return f"{watched.reason}: {why}" if why else watched.reason


def _choice(ranked: planner.Ranked) -> Choice:
    found = ranked.expected
    if found is None or ranked.basis == "cap":
        return Choice(ranked.offer, ranked.at_most, ranked.reason)
    hours = found.way.hours if found.cost is not None else None
    return Choice(ranked.offer, ranked.at_most, ranked.reason, found.price, ranked.cost, hours)


def price_words(choice: Choice) -> str:
    """Return an hour's price as a person reads it."""
    if choice.offer.price_per_hour is not None:
        return str(choice.offer.price_per_hour)
    return "an unknown price" if choice.at_most is None else f"at most {choice.at_most}"
