"""What the tables of error codes have in common: what a code means, and for how long what it names is left alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from provisioner.errors import CloudError
from provisioner.model import Failure, FailureKind, Scope

CAPACITY_TTL_S: Final = 180.0
"""Karpenter's value: capacity comes and goes within minutes, and asking more often is answered with throttling."""
QUOTA_TTL_S: Final = 1800.0
"""A raised quota takes effect within minutes; used quota is free again when a machine ends."""
NOT_OFFERED_TTL_S: Final = 24 * 3600.0
"""What a zone offers changes by the month."""
ACCOUNT_TTL_S: Final = 600.0
"""Somebody has to change a policy, a key or a setting; look again soon after."""
BRIEF_TTL_S: Final = 60.0
_UNKNOWN_TTL_S: Final = 180.0
_LONGEST: Final = 300


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a code means."""

    kind: FailureKind
    scope: Scope
    ttl_s: float
    advice: str = ""

    def failure(self, code: str, text: str, *, advice: str | None = None, elsewhere: tuple[str, ...] = ()) -> Failure:
        """Return the failure of an answer with this meaning. ``advice`` replaces the table's."""
        told = self.advice if advice is None else advice
        return Failure(self.kind, self.scope, code, text, told, self.ttl_s, elsewhere)


UNKNOWN: Final = Meaning(FailureKind.UNKNOWN, Scope.OFFER, _UNKNOWN_TTL_S, "not a code that we know; please report it")
CAPACITY: Final = Meaning(FailureKind.NO_CAPACITY, Scope.OFFER, CAPACITY_TTL_S)
THROTTLED: Final = Meaning(FailureKind.THROTTLED, Scope.REGION, BRIEF_TTL_S)
REQUEST: Final = Meaning(FailureKind.INVALID, Scope.OFFER, ACCOUNT_TTL_S)
SPENT: Final = Meaning(
    FailureKind.NO_CAPACITY,
    Scope.OFFER,
    BRIEF_TTL_S,
    "an earlier try with this token left no machine; the next has another",
)
STALE: Final = Meaning(
    FailureKind.INVALID, Scope.REGION, BRIEF_TTL_S, "the region's substrate has changed; it is made anew"
)
RESERVED: Final = Meaning(FailureKind.NO_CAPACITY, Scope.OFFER, CAPACITY_TTL_S, "the reservation has no free machine")


def passing(failure: Failure) -> bool:
    """Say whether a failure passes by itself within seconds: throttled, a fault of the cloud's, no answer."""
    return failure.kind in {FailureKind.THROTTLED, FailureKind.NETWORK}


_NEVER_SENT: Final = frozenset(
    {
        "ConnectError",
        "ConnectTimeout",
        "ConnectTimeoutError",
        "EndpointConnectionError",
        "GoogleAuthError",
        "NameResolutionError",
        "NewConnectionError",
        "ProxyConnectionError",
        "ProxyError",
        "RefreshError",
        "SSLCertVerificationError",
    }
)
"""Errors of the clouds' libraries that mean: there was no connection, or no key, so nothing was asked for."""


def never_sent(error: BaseException) -> bool:
    """Say whether a call that broke off cannot have reached its cloud, by the classes of the errors behind it."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        if any(kind.__name__ in _NEVER_SENT for kind in type(one).__mro__):
            return True
        left += [one.__cause__, one.__context__, *(each for each in one.args if isinstance(each, BaseException))]
        reason = getattr(one, "reason", None)
        left += [reason] if isinstance(reason, BaseException) else []
    return False


def with_failure(error: CloudError, failure: Failure) -> CloudError:
    """Let an error carry its failure, as ``controller.refusals.as_failure`` reads it."""
    carrier: Any = error
    carrier.failure = failure
    return error


def one_line(text: str) -> str:
    """Return a text on one line, of 300 letters at most."""
    flat = " ".join(text.split())
    return flat if len(flat) <= _LONGEST else flat[: _LONGEST - 3] + "..."
