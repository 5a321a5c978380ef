"""AutoDL has no tags, so a machine's name carries them: ``failover-<job>-<uid>-e<epoch>-<token's first 8 digits>``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from provisioner.model import JobRef, Launch

PREFIX = "failover-"
TOKEN_DIGITS = 8
"""``Owned.token`` of AutoDL holds so many digits of the claim's token: compare with ``startswith``."""

_NAME = re.compile(
    r"failover-(?P<job>[a-z][a-z0-9-]*)-(?P<uid>[0-9a-f]{8})-e(?P<epoch>[0-9]{1,9})-(?P<token>[0-9a-f]{8})"
)


@dataclass(frozen=True, slots=True)
class Tags:
    """What a name says. ``token`` is the first 8 digits of the claim's token."""

    job: JobRef
    epoch: int
    token: str


def machine_name(launch: Launch) -> str:
    """Return the name of the machine that this claim makes: one name per token."""
    return f"{launch.node_name}-{launch.token[:TOKEN_DIGITS]}"


def read_name(name: str) -> Tags | None:
    """Read a machine's name; None for a machine that is not ours."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    return Tags(JobRef(match["job"], match["uid"]), int(match["epoch"]), match["token"])
