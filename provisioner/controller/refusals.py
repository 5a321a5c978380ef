"""What a run does with refusals: it lets all jobs know, leaves alone what they know of, and asks for quotas first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from provisioner.clock import now as unix_now
from provisioner.clouds.aws.account import account_name
from provisioner.clouds.base import Accounted, Cloud, Quotas
from provisioner.controller.directory import state_root
from provisioner.controller.failures import PROBLEMS, KnownFailures
from provisioner.errors import CloudError, FailoverError, Unauthorized, Unreachable
from provisioner.model import Failure, FailureKind, Offer, Scope
from provisioner.planner import FailureMemory
from provisioner.telemetry.events import EventLog

LEFT_ALONE_S = 300.0
"""More than a zone that is left alone for longer than this is told, in seconds: it would look like doing nothing."""


class Refusals:
    """The refusals that one run meets, and the memory of all jobs."""

    def __init__(
        self,
        known: KnownFailures | None,
        job: str,
        cloud: Callable[[str], Cloud],
        events: EventLog,
        now: Callable[[], float] = unix_now,
    ) -> None:
        """Take the memory of all jobs (None: this run knows its own refusals only) and how a cloud is opened."""
        self._known = known
        self._job = job
        self._cloud = cloud
        self._events = events
        self._now = now
        self._unsaved = False
        self._told: set[str] = set()

    def remember(self, failure: Failure, offer: Offer) -> None:
        """Let all jobs know of a refusal that has just come."""
        if self._known is None:
            return
        try:
            self._known.remember(failure, offer, account=self._account(offer.cloud), job=self._job)
        except PROBLEMS as error:
            self._unsaved = True
            self._blind(error)

    def memory(self, clouds: Iterable[str], since: float) -> FailureMemory | None:
        """Return what all jobs know about these clouds; None where that cannot be relied upon.

        ``since``: when this run began, in Unix seconds.
        """
        if self._known is None or self._unsaved:
            return None
        try:
            memory = self._known.memory({name: self._account(name) for name in clouds}, self._job, since=since)
        except PROBLEMS as error:
            self._blind(error)
            return None
        now = self._now()
        for entry in memory.entries:
            left, failure = entry.until - now, entry.failure
            wide = failure.scope not in {Scope.OFFER, Scope.TYPE, Scope.ZONE}
            if wide and left > LEFT_ALONE_S and self._first_time(f"{entry.name} {entry.until}"):
                told = {"failure": failure.kind, "code": failure.code, "seconds": round(left)}
                self._events.emit("left_alone", what=entry.name, **told)
        return memory

    def over_quota(self, offers: Sequence[Offer]) -> dict[str, Failure]:
        """Ask each cloud that knows its quotas which of these offers it would refuse; tell of each quota once."""
        over = over_quota([self._cloud(name) for name in dict.fromkeys(offer.cloud for offer in offers)], offers)
        for failure in over.values():
            if self._first_time(failure.message):
                self._events.emit("over_quota", quota=failure.code, words=failure.message, advice=failure.advice)
        return over

    def _account(self, name: str) -> str:
        try:
            cloud = self._cloud(name)
        except CloudError:
            return ""
        return cloud.account if isinstance(cloud, Accounted) else ""

    def _first_time(self, what: str) -> bool:
        new = what not in self._told
        self._told.add(what)
        return new

    def _blind(self, error: Exception) -> None:
        self._events.emit("blind", what="the memory of refusals", problem=str(error))


def known_to(job: str, clouds: Iterable[str], environ: Mapping[str, str]) -> FailureMemory:
    """Return what a run of this job would leave alone if it began now: for ``failover plan``. Never raises.

    No cloud is opened for it, so of clouds other than AWS the account is not compared.
    """
    accounts = {name: account_name(environ) if name == "aws" else None for name in clouds}
    try:
        return KnownFailures(state_root(environ)).memory(accounts, job, since=unix_now())
    except PROBLEMS:
        return FailureMemory()


def over_quota(clouds: Iterable[Cloud], offers: Sequence[Offer]) -> dict[str, Failure]:
    """Return, by key, the offers that a cloud's quotas have no room for. What is not told is free."""
    over: dict[str, Failure] = {}
    for cloud in clouds:
        if isinstance(cloud, Quotas):
            over.update(cloud.over_quota([offer for offer in offers if offer.cloud == cloud.name]))
    return over


def as_failure(error: FailoverError) -> Failure:
    """Turn an error that stopped a claim into a failure: the cloud's own where it carries one, else the nearest fit."""
    own = getattr(error, "failure", None)
    if isinstance(own, Failure):
        return own
    if isinstance(error, Unauthorized):
        return Failure(FailureKind.UNAUTHORIZED, Scope.ACCOUNT, "Unauthorized", str(error), error.hint, ttl_s=600)
    kind = FailureKind.NETWORK if isinstance(error, Unreachable) else FailureKind.INVALID
    return Failure(kind, Scope.REGION, type(error).__name__, str(error), error.hint)


def words(failure: Failure) -> str:
    """Return what an operator should read beside kind and code: the cloud's words, and what to do.

    A cloud's code may speak for itself (``InsufficientInstanceCapacity``); then there is nothing to add.
    """
    evident = failure.kind in {FailureKind.NO_CAPACITY, FailureKind.NOT_OFFERED, FailureKind.THROTTLED}
    said = [failure.advice] if evident else [failure.message, failure.advice]
    return "; ".join(part for part in said if part)
