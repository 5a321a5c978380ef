"""Copy a state from one place to another, by Terraform itself, in a folder of its own."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from python_terraform import IsFlagged, Terraform

from provisioner.errors import TerraformError
from provisioner.terraform import backend, events, process
from provisioner.terraform.backend import Remote
from provisioner.terraform.locks import TOKEN
from provisioner.terraform.provider import Toolchain
from provisioner.terraform.runner import FOREIGN

_DEADLINE_S: Final = 600.0
_FILE: Final = "backend.tf.json"


def copy(
    toolchain: Toolchain,
    folder: Path,
    source: Remote | Path,
    target: Remote | Path,
    environ: Mapping[str, str],
    lock_id: str = "",
) -> None:
    """Let Terraform copy a state; what is at ``target`` is replaced. A path is a state file.

    The caller holds both locks; ``lock_id`` is the target's, or the source's. ``folder`` is made, and removed at the
    end. Raises TerraformError, Unauthorized, Unreachable.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)
    places = [place for place in (source, target) if isinstance(place, Remote)]
    env = {name: value for name, value in environ.items() if not name.startswith(FOREIGN)}
    env |= {**toolchain.env, "CHECKPOINT_DISABLE": "1", "TF_IN_AUTOMATION": "1"}
    env |= {TOKEN: lock_id} if lock_id else {}
    for place in places:
        env |= place.env
    try:
        _init(toolchain, folder, _block(folder / "source", source), env, reconfigure=IsFlagged)
        _init(toolchain, folder, _block(folder / "target", target), env, migrate_state=IsFlagged, force_copy=IsFlagged)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _block(folder: Path, place: Remote | Path) -> dict[str, Any]:
    if isinstance(place, Path):
        return {"terraform": {"backend": {"local": {"path": str(place)}}}}
    folder.mkdir(mode=0o700)
    backend.write_profile(folder, place)
    return place.block(folder)


def _init(toolchain: Toolchain, folder: Path, block: dict[str, Any], env: Mapping[str, str], **options: object) -> None:
    backend.replace(folder / _FILE, json.dumps(block))
    builder = Terraform(working_dir=os.devnull)
    built: list[str] = builder.generate_cmd_string("init", input=False, no_color=IsFlagged, lock=False, **options)
    argv = [*toolchain.terraform, *built[1:]]
    finished = process.run(argv, cwd=folder, env=env, log=folder / "init", deadline_s=_DEADLINE_S)
    what = f"moving a state: terraform init in {folder}"
    if finished.timed_out:
        message = f"{what}: stopped after {_DEADLINE_S:g} s without an end"
        raise TerraformError(message, hint="run the command again: it goes on where it was")
    if finished.returncode:
        hint = "nothing was removed; run the command again: it goes on where it was"
        raise events.failure(what, [], finished.stderr_tail(), finished.returncode, hint)
