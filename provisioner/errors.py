"""Every error that crosses a module border, and the exit code it leads to.

FailoverError                      70  our own fault unless a subclass says otherwise
├── ConfigError                     2  failover.yaml, an option or an environment variable is wrong
├── JobFailed                       1  the training command itself failed
├── NoOffer                         3  no machine could be had anywhere within the limits
├── LimitReached                    4  budget or deadline stopped the job
├── CloudError                      5  a cloud, an account or the store refused
│   ├── Unauthorized                5  credentials missing, wrong, or without a permission
│   ├── Unreachable                 5  no answer within the deadline, after retries
│   ├── StoreError                  5  the object store refused or broke a promise
│   │   ├── Fenced                 75  a newer epoch owns the job: this node stops
│   │   └── CorruptCheckpoint       5  a manifest or chunk does not match its hash
│   └── TerraformError              5  a Terraform run failed, timed out or was refused by the plan check
│       └── StateLocked             5  another run holds a stack's state, or died without letting go of it
├── Unstable                       70  a checkpoint changed while it was read: this save is given up
├── Abandoned                      70  a save or restore was told to stop
├── DiskFull                       70  the disk has no room for the checkpoint
└── Interrupted                   130  the operator pressed Ctrl-C
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """Exit codes of the ``failover`` command and of the node. Stable: scripts rely on them."""

    DONE = 0
    JOB_FAILED = 1
    BAD_INPUT = 2
    NO_OFFER = 3
    LIMIT_REACHED = 4
    CLOUD_REFUSED = 5
    OUR_FAULT = 70
    COME_AGAIN = 75
    INTERRUPTED = 130


class FailoverError(Exception):
    """Root of the tree. ``str(error)`` is one line for the operator, free of secrets.

    ``hint`` says what to do about it, in one line.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.OUR_FAULT

    def __init__(self, message: str, *, hint: str = "") -> None:
        """Keep the one-line message and the advice."""
        super().__init__(message)
        self.hint = hint


def advised(error: FailoverError) -> str:
    """Return an error with what to do about it, in one line."""
    return f"{error}; {error.hint}" if error.hint else str(error)


class ConfigError(FailoverError):
    """The operator's input is wrong. The message starts with ``file:line:`` where there is a file."""

    exit_code = ExitCode.BAD_INPUT


class JobFailed(FailoverError):
    """The training command ended by itself with an error; it is not retried."""

    exit_code = ExitCode.JOB_FAILED


class NoOffer(FailoverError):
    """No machine could be had; the attempts are in the report."""

    exit_code = ExitCode.NO_OFFER


class LimitReached(FailoverError):
    """A budget or deadline of the policy stopped the job; its machines are released."""

    exit_code = ExitCode.LIMIT_REACHED


class CloudError(FailoverError):
    """A cloud, an account or the store refused."""

    exit_code = ExitCode.CLOUD_REFUSED


class Unauthorized(CloudError):
    """Credentials are missing or wrong, or a permission is missing (named in the message)."""


class Unreachable(CloudError):
    """The other side gave no usable answer within the deadline, after retries."""


class StoreError(CloudError):
    """The object store refused, or did not do what it promised."""


class Fenced(StoreError):
    """A newer epoch owns the job. The node that meets this stops and writes nothing more."""

    exit_code = ExitCode.COME_AGAIN


class CorruptCheckpoint(StoreError):
    """A manifest or a chunk does not match its hash."""


class TerraformError(CloudError):
    """A Terraform run failed, ran into its deadline, or planned what it must not do."""


class StateLocked(TerraformError):
    """Another run holds the state and has not let go of it in time. The message names it and since when."""


class Unstable(FailoverError):
    """The checkpoint changed or vanished while it was read: this save is given up, another may follow."""


class Abandoned(FailoverError):
    """The save or restore was told to stop."""


class DiskFull(FailoverError):
    """The disk has no room for the checkpoint. The message names the disk."""


class Interrupted(FailoverError):
    """The operator pressed Ctrl-C."""

    exit_code = ExitCode.INTERRUPTED
