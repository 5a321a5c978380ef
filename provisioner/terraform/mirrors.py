"""Find folders on this machine that hold a provider of Terraform in the layout of a mirror."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

from provisioner.terraform.requirement import AWS, Requirement

_VERSION: Final = re.compile(r"(?:^|_)(\d+)\.(\d+)\.(\d+)(?:$|_)")
# System places whose direct children may be mirrors that an administrator or an image maker has laid down.
_PLACES: Final = ("/opt", "/usr/local/share", "/usr/local/lib", "/usr/share", "/srv", "/var/lib")
_MOST_CHILDREN: Final = 500


def platform() -> str:
    """Return this machine as Terraform names it, e.g. ``linux_amd64``."""
    uname = os.uname()
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(uname.machine, uname.machine)
    return f"{uname.sysname.lower()}_{machine}"


def implied(environ: Mapping[str, str]) -> Iterator[Path]:
    """Name the folders that Terraform itself looks into when nothing is configured."""
    home = environ.get("HOME")
    if home:
        yield Path(home, ".terraform.d", "plugins")
    data_home = environ.get("XDG_DATA_HOME") or (f"{home}/.local/share" if home else "")
    data_dirs = environ.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share"
    for root in [data_home, *data_dirs.split(":")]:
        if root:
            yield Path(root, "terraform", "plugins")


def in_system_places(places: Iterable[str] = _PLACES) -> Iterator[Path]:
    """Name the direct children of the usual system places, a bounded number of each."""
    for place in places:
        with suppress(OSError):
            yield from sorted(islice((child for child in Path(place).iterdir() if child.is_dir()), _MOST_CHILDREN))


def holds_provider(root: Path, machine: str, wanted: Requirement = AWS) -> bool:
    """Say whether ``root`` is a mirror with a provider that is new enough, for ``machine`` (``linux_amd64``)."""
    with suppress(OSError):
        return any(_usable(entry, machine, wanted) for entry in root.glob(f"*/hashicorp/{wanted.name}/*"))
    return False


def _usable(entry: Path, machine: str, wanted: Requirement) -> bool:
    found = _VERSION.search(entry.name)
    if found is None or tuple(map(int, found.groups())) < wanted.oldest:
        return False
    if entry.suffix == ".zip":
        return entry.stem.endswith(f"_{machine}")
    folder = entry / machine
    return folder.is_dir() and any(folder.glob(f"terraform-provider-{wanted.name}*"))
