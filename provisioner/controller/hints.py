"""What the controller tells a running node of its end, as ``epochs/<n>/hint.json``: what the machine cannot see itself.

A limit of the policy that is near, a wallet that runs out, a machine that its cloud shuts down, an operator who wants a
last checkpoint. The format is that of :mod:`provisioner.node.notices.hints`.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from decimal import Decimal

from provisioner.checkpoint import epochs, layout
from provisioner.checkpoint.store import Store
from provisioner.clock import now as unix_now
from provisioner.clouds.base import Outlook
from provisioner.controller.beside import both, told_if_slow
from provisioner.controller.clocks import ahead_of_store
from provisioner.controller.daily import DAY, DAY_OF_ALL
from provisioner.controller.flow import TAKEN_DOWN
from provisioner.controller.limits import BUDGET, DEADLINE, Limit
from provisioner.errors import CloudError
from provisioner.model import Money, NodeState

LEAD_S = 120.0
"""How long before a limit the node is told, in seconds: what EC2 gives. Where a save takes longer, twice its time."""
LEAD_SHARE = 0.1
"""Of the time that a machine has, no more than this share is given up for that."""
ASK_S = 60.0
"""Between two questions to the cloud, in seconds, or six looks where those come faster."""
EARLY_S = 3600.0
"""A balance that lasts no longer is told as advice, in seconds. A new machine is not begun for less, either."""
FINAL_S = 300.0
"""A balance that lasts no longer ends the placement, in seconds."""
LEAST_S = 60.0
"""What is left for a last checkpoint at an empty wallet: what AutoDL does then, and when, is not known."""
WATCHED_S, FALL_S = 1800.0, 600.0
"""How long the wallet is looked back on, and how long at least before its fall counts as a rate, in seconds."""
CALM_S = 1800.0
"""How long an empty stock holds after it was last seen, in seconds: it comes and goes by the minute."""

OPERATOR = "taken down by the operator"
BALANCE, STOCK, SHUT_DOWN = "the balance runs out", "no card of this kind is free", "the cloud shuts the machine down"
_OURS = {DEADLINE, BUDGET, DAY, DAY_OF_ALL, BALANCE, STOCK, SHUT_DOWN}


@dataclass(frozen=True, slots=True)
class Hint:
    """One hint. ``deadline`` is Unix time; None: not known. A ``final`` one ends the placement, any other is advice.

    In the store the deadline is by the clock of the node that reads it: only the controller knows both clocks. ``told``
    there, Unix time by ours, makes one that comes again another one: the node may not have looked in between.
    """

    kind: str
    detail: str = ""
    deadline: float | None = None
    final: bool = False

    def stored(self, ahead_s: float, told: float) -> bytes:
        """Return the object for a node whose clock is so far ahead of ours. ``told`` is now."""
        by = None if self.deadline is None else self.deadline + ahead_s
        return json.dumps({**asdict(replace(self, deadline=by)), "told": told}).encode()


class Wallet:
    """How long a balance lasts: by the machine's price, or by how fast it falls where other machines share it."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._seen: deque[tuple[float, Decimal]] = deque()

    def hint(self, balance: Money, price: Money | None, now: float) -> Hint | None:
        """Take a look at the wallet and return what follows from it. ``price`` is for an hour."""
        if self._seen and balance.amount > self._seen[-1][1]:  # somebody has paid in
            self._seen.clear()
        self._seen.append((now, balance.amount))
        while now - self._seen[0][0] > WATCHED_S:
            self._seen.popleft()
        rate = max(price.amount if price is not None else Decimal(0), self._fall(now))
        if rate <= 0:
            return None
        left = max(0.0, float(balance.amount / rate) * 3600)
        if left > EARLY_S:
            return None
        has, costs = (Money(round(amount, 2), balance.currency) for amount in (balance.amount, rate))
        detail = f"{has} left, for {left / 60:.0f} min at {costs} an hour"
        return Hint(BALANCE, detail, now + max(LEAST_S, left), final=left <= FINAL_S)

    def _fall(self, now: float) -> Decimal:
        begun, first = self._seen[0]
        if now - begun < FALL_S:
            return Decimal(0)
        return (first - self._seen[-1][1]) * 3600 / Decimal(str(now - begun))


class Hints:
    """Tells the node of one placement. ``look`` is called at every look at it."""

    def __init__(
        self,
        store: Store,
        epoch: int,
        *,
        claimed_at: float,
        limit: Callable[[], Limit | None],
        outlook: Callable[[], Outlook | None],
        emit: Callable[..., object],
        poll_s: float,
        heartbeat_s: float,
        ahead: Callable[[], float | None] = lambda: None,
        now: Callable[[], float] = unix_now,
    ) -> None:
        """Ask nothing yet.

        ``ahead`` tells by how many seconds the node's clock is ahead of ours (None: not known yet), ``limit`` which
        limit ends the job first, ``outlook`` asks the cloud (None: it has nothing to say). ``poll_s`` is the time
        between two looks, ``heartbeat_s`` that between two heartbeats, at which the node reads.
        """
        self._store = store
        self._key = layout.hint(epoch)
        self._epoch = epoch
        self._claimed_at = claimed_at
        self._limit = limit
        self._outlook = outlook
        self._emit = emit
        self._lag_s = poll_s + heartbeat_s
        self._ask_s = min(ASK_S, 6 * poll_s)
        self._ahead = ahead
        self._now = now
        self._wallet = Wallet()
        self._asked_at = float("-inf")
        self._of_cloud: Hint | None = None
        self._no_stock_at = float("-inf")
        self._stock_words = ""
        self._written: Hint | None = None
        self._known = False

    def look(self, state: NodeState | None, heartbeat: Mapping[str, object] | None) -> str:
        """Tell the node what it should know now. Return why the job ends, where the node has ended for that."""
        if not heartbeat:
            return ""
        limit = self._limit()
        if isinstance(end := heartbeat.get("end"), dict):
            return _ended_for(str(end.get("reason") or ""), limit)
        try:
            self._tell(self._due(state, limit, heartbeat))
        except CloudError as error:
            self._emit("blind", what="store", problem=str(error))
        return ""

    def _due(self, state: NodeState | None, limit: Limit | None, heartbeat: Mapping[str, object]) -> Hint | None:
        """Return the strongest hint that holds."""
        now = self._now()
        if state is not None:  # a cloud that has just not answered is not asked more
            self._ask(now)
        found = [self._of_cloud] if self._of_cloud else []
        if state is NodeState.STOPPING:
            found.append(Hint(SHUT_DOWN, final=True))
        if limit is not None and now >= limit.at - self._lead(limit, heartbeat):
            found.append(Hint(limit.kind, limit.line.replace(" reached", ""), limit.at, final=True))
        if now - self._no_stock_at < CALM_S:
            found.append(Hint(STOCK, self._stock_words))
        finals = [hint for hint in found if hint.final]
        if finals:
            return min(finals, key=lambda hint: hint.deadline if hint.deadline is not None else now)
        return found[0] if found else None

    def _lead(self, limit: Limit, heartbeat: Mapping[str, object]) -> float:
        commit = heartbeat.get("last_commit")
        seconds = commit.get("seconds") if isinstance(commit, dict) else None
        save_s = float(seconds) if isinstance(seconds, int | float) else 0.0
        most = max(0.0, limit.at - self._claimed_at) * LEAD_SHARE
        return min(max(LEAD_S, 2 * save_s) + self._lag_s, most)

    def _ask(self, now: float) -> None:
        if now < self._asked_at + self._ask_s:
            return
        self._asked_at = now
        outlook = self._outlook()
        if outlook is None:
            return
        self._of_cloud = (
            self._wallet.hint(outlook.balance, outlook.price_per_hour, now) if outlook.balance is not None else None
        )
        if outlook.idle == 0:
            self._no_stock_at, self._stock_words = now, outlook.kind

    def _tell(self, hint: Hint | None) -> None:
        """Write, change or remove it. What another one wrote stays. Raises CloudError."""
        if not self._known:  # an earlier controller may have left one
            self._written, self._known = self._stored(), True
        before = self._written
        if (hint is None) == (before is None) and (hint is None or (hint.kind, hint.final) == _name(before)):
            return
        stored = self._stored(foreign=True)
        if stored is not None and stored.kind not in _OURS:
            return
        if hint is None:
            self._store.delete([self._key])
        else:
            ahead = self._ahead()  # the node hears a hint once: its deadline must be right at once
            ahead = ahead_of_store(self._store, self._epoch) if ahead is None else ahead
            self._store.put(self._key, hint.stored(ahead, self._now()))
            self._emit("hint", epoch=self._epoch, hint=hint.kind, final=hint.final, reason=hint.detail)
        self._written = hint

    def _stored(self, *, foreign: bool = False) -> Hint | None:
        hint = _read(self._store.get(self._key))
        return hint if hint is not None and (foreign or hint.kind in _OURS) else None


def ask_to_save(
    store: Store,
    within_s: float,
    *,
    say: Callable[[str], object],
    now: Callable[[], float] = unix_now,
    wait: Callable[[float], object] = time.sleep,
) -> None:
    """Let the newest node write a last checkpoint and end, and wait for it, at most ``within_s`` seconds.

    Raises CloudError for a store that cannot be written.
    """
    epoch = epochs.newest_epoch(store)
    with told_if_slow(lambda: say("waiting for the store")):
        ended, ahead = (
            both(lambda: _has_ended(store, epoch), lambda: ahead_of_store(store, epoch)) if epoch else (True, 0)
        )
        if ended:
            return
        until = now() + within_s
        hint = Hint(OPERATOR, deadline=until, final=True)
        store.put(layout.hint(epoch), hint.stored(ahead, now()))
    say(f"asking the machine for a last checkpoint, for {within_s:.0f} s at most")
    while now() < until:
        if _has_ended(store, epoch):
            return
        wait(1.0)
    say("it has not ended in time: its last commit counts")


def _has_ended(store: Store, epoch: int) -> bool:
    """Say whether the node has said its last word; a store that is away for a moment does not say so."""
    try:
        beat = json.loads(store.get(layout.heartbeat(epoch)) or b"{}")
    except (CloudError, ValueError):
        return False
    return isinstance(beat, dict) and (not beat or beat.get("end") is not None)


def _ended_for(reason: str, limit: Limit | None) -> str:
    """Return why the job has to end when its node has ended for a hint; nothing where it goes on elsewhere."""
    kind = reason.removeprefix("notice: ")
    if kind == reason:
        return ""
    if kind == OPERATOR:
        return TAKEN_DOWN
    if kind in {DAY, DAY_OF_ALL}:  # it goes on when the day is over
        return ""
    if limit is not None and kind == limit.kind:
        return limit.line.replace("reached", "is near: the job has saved and ended")
    return kind if kind in {DEADLINE, BUDGET} else ""


def _name(hint: Hint | None) -> tuple[str, bool] | None:
    return None if hint is None else (hint.kind, hint.final)


def _read(data: bytes | None) -> Hint | None:
    """Read what is stored. What is not ours to understand is somebody else's."""
    if data is None:
        return None
    try:
        raw = json.loads(data)
        return Hint(str(raw["kind"]), str(raw.get("detail") or ""), None, final=bool(raw.get("final")))
    except (ValueError, KeyError, TypeError, AttributeError):
        return Hint("")
