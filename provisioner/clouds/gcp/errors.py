"""The errors that carry a failure of Google's, and what a claim reads from one."""

from __future__ import annotations

from provisioner.clouds.gcp.failures import NO_ACCOUNT
from provisioner.clouds.meaning import SPENT, passing
from provisioner.errors import CloudError, Unauthorized, Unreachable
from provisioner.model import Failure, FailureKind, Scope


class Refused(CloudError):
    """Google refused a call. ``failure`` says why."""

    def __init__(self, failure: Failure, status: int = 0) -> None:
        """Make one line of it. ``status`` is HTTP's; 0: there was no answer."""
        super().__init__(f"Google Cloud: {failure.code}: {failure.message}", hint=failure.advice)
        self.failure = failure
        self.status = status


class RefusedAccess(Refused, Unauthorized):
    """Credentials are missing or wrong, or a permission is missing."""


class NoAnswer(Refused, Unreachable):
    """Google gave no usable answer, or asked us to wait, until we gave up."""


class NotThere(Refused, LookupError):
    """Google does not have what was asked for. Whoever does not expect it has a CloudError like any other."""


def error_of(failure: Failure, status: int = 0) -> Refused:
    """Return the error for a failure that stops a call which has no failure in its answer."""
    if failure.kind is FailureKind.UNAUTHORIZED:
        return RefusedAccess(failure, status)
    return NoAnswer(failure, status) if passing(failure) else Refused(failure, status)


def stale(failure: Failure) -> bool:
    """Say whether a failure means that the region's substrate is not what was noted."""
    return (failure.kind, failure.scope) == (FailureKind.INVALID, Scope.REGION)


def spent(failure: Failure) -> bool:
    """Say whether a failure is about the claim's own name or request id: somebody has used it before."""
    return failure.advice == SPENT.advice


def machine_gone(text: str) -> Failure:
    """Return the failure of a claim whose machine was made and is there no more, or stands still."""
    return SPENT.failure("MACHINE_GONE", text)


def account_not_yet_known(failure: Failure) -> bool:
    """Say whether Compute Engine has not heard yet of a service account that was made a moment ago."""
    return failure.advice == NO_ACCOUNT.advice
