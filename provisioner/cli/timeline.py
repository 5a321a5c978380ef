"""The controller's events as lines for a person, on stderr."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from provisioner.cli import streams
from provisioner.clock import now as unix_now

LINES: dict[str, str] = {
    "begin": "job {job} ({uid}), epoch {epoch}",
    "stray": "{cloud}: releasing {id}, left by an earlier run",
    "unanswered": "{cloud}: releasing {id}, whose claim was not answered",
    "published": "runtime in the store: {wheels} wheels",
    "course": "{words}",
    "claim": "epoch {epoch}: claiming {offer}: {price} an hour",
    "refused": "epoch {epoch}: {offer}: {failure} ({code}){words}",
    "left_alone": "{what}: left alone for {seconds} s: {failure} ({code}); else: failover status --forget {what}",
    "over_quota": "over quota {quota}: {words}; {advice}",
    "quotas_unknown": "{cloud}: quotas are not known, so nothing is passed over for them: {problem}",
    "claimed": "epoch {epoch}: got {node}",
    "surplus": "epoch {epoch}: {node} is not needed beside a better one: giving it back",
    "adopted": "{node}: adopted by Terraform",
    "adopt_failed": "{node}: not adopted (attempt {attempt}): {problem}",
    "prepared": "{cloud}/{region}: prepared",
    "prepare_failed": "{cloud}/{region}: not prepared: {problem}",
    "state_elsewhere": "{stack}: its state is at {state}, the file says {wanted}; failover state migrate moves it",
    "hint": "epoch {epoch}: the node is told: {hint}{because}",
    "suspected": "epoch {epoch}: {node} is suspected: {reason}",
    "heard_again": "epoch {epoch}: {node} is heard again",
    "clock": "epoch {epoch}: the clock of {node} is {ahead:+.0f} s off; times and deadlines are put right for that",
    "ended": "epoch {epoch}: {ending}{because}",
    "released": "{node}: released",
    "release_failed": "{node}: release not confirmed: {problem}",
    "copy_failed": "epoch {epoch}: no copies at {uri} for now: {problem}",
    "homeward": "epoch {epoch}: time to move: {reason}",
    "at_home": "epoch {epoch}: it trains at home already: failover home changes nothing",
    "home_calls": "home has a card: {words}; failover home {job} moves the job",
    "stays_away": "not going home: {reason}",
    "stood_by": "epoch {epoch}: {node} {readiness}{because}",
    "hand_over": "epoch {epoch}: asking for a last checkpoint; {to} takes over",
    "held_back": "the next machine waits for {seconds} s: {reason}",
    "resting": "{words}: no machine until {at}, or until the limit is raised",
    "warned": "WARNING: {words}",
    "advised": "epoch {epoch}: efficiency: {advice}",
    "waiting": "nothing to be had; trying again in {seconds} s",
    "slow": "waiting for {what}",
    "blind": "{what} gives no usable answer: {problem}",
}


def line(event: Mapping[str, object]) -> str | None:
    """Return the event as one line, or None for what a person need not see."""
    kind = str(event.get("kind"))
    ready = "is ready to take over" if event.get("ready") else "is of no use"
    values = {**event, "readiness": ready, "because": f": {event['reason']}" if event.get("reason") else ""}
    if kind == "asked":
        problems = event.get("problems")
        words = "; ".join(str(problem) for problem in problems) if isinstance(problems, list) else ""
        return f"{event.get('cloud')}: offers: {event.get('offers')}" + (f"; {words}" if words else "")
    if kind == "heartbeat":
        if event.get("first"):
            return f"epoch {event.get('epoch')}: first heartbeat"
        return None
    if kind == "terraform" and event.get("what") == "state_locked":
        return f"{event.get('region')}: waiting for Terraform's state, which is held by {event.get('owner')}"
    if kind == "finished":
        leaked = event.get("leaked")
        return "nothing is left at the clouds" if not leaked else f"LEFT BEHIND: {leaked}"
    template = LINES.get(kind)
    return template.format_map(values) if template else None


def printer(started: float | None = None) -> Callable[[dict[str, object]], None]:
    """Return a listener that prints each event with the seconds since the start. It outlives whoever reads it."""
    zero = unix_now() if started is None else started

    def show(event: dict[str, object]) -> None:
        text = line(event)
        if text:
            streams.tell(f"{unix_now() - zero:7.1f} s  {text}")

    return show
