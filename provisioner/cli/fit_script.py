"""Runs a training script up to its call of ``fit()`` and reads what that measured."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from provisioner.errors import ConfigError

if TYPE_CHECKING:
    from provisioner.fitting import Measured

_STDERR = 2
ADD = "before it trains, add: plan = fit(model, batch, loss=loss_of, optimizer=optimizer)  (docs/torch.md)"


def measure(script: Path, arguments: Sequence[str], python: str, timeout_s: float) -> Measured:
    """Run the script. What it prints goes to stderr. Raises ConfigError, also if it ends without ``fit()``."""
    try:
        text = script.read_text("utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"{script}: {error.strerror}") from None
    if not re.search(r"\bfit\b", text) and not _imports_neighbours(text, script.parent):
        raise ConfigError(f"{script} does not call fit()", hint=ADD)
    with tempfile.TemporaryDirectory(prefix="failover-fit-") as folder:
        target = Path(folder, "fit.json")
        code = _run([python, str(script), *arguments], _environment(Path(folder), target), timeout_s, script)
        if not target.exists():
            if code == 0:
                raise ConfigError(f"{script} ended without a call of fit()", hint=ADD)
            hint = "its last lines are above; --python names the interpreter that has PyTorch"
            raise ConfigError(f"{script} ended with {code} before it called fit()", hint=hint)
        return _read(target, script)


def _imports_neighbours(text: str, folder: Path) -> bool:
    """Say whether a script imports modules that lie beside it: one of them may call ``fit``."""
    names = re.findall(r"^\s*(?:from|import)\s+([A-Za-z_]\w*)", text, re.MULTILINE)
    return any((folder / f"{name}.py").is_file() or (folder / name).is_dir() for name in names)


def _environment(folder: Path, target: Path) -> dict[str, str]:
    from provisioner.node import toolkit

    checkpoints = {"FAILOVER_CHECKPOINT_DIR": str(folder / "checkpoints"), "FAILOVER_FIT_FILE": str(target)}
    laid = toolkit.lay_out(folder / "python")
    if laid is None:
        raise ConfigError(f"{folder}: no room for the PyTorch package")
    return {**os.environ, **checkpoints, **toolkit.on_path(laid, os.environ)}


def _run(command: list[str], environ: dict[str, str], timeout_s: float, script: Path) -> int:
    try:
        child = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=_STDERR, process_group=0)
    except OSError as error:
        raise ConfigError(f"{command[0]}: {error.strerror}", hint="--python names an interpreter") from None
    try:
        return child.wait(timeout_s)
    except subprocess.TimeoutExpired:
        message = f"{script} did not come to fit() within {timeout_s:g} s"
        raise ConfigError(message, hint=f"{ADD}; or give it more --timeout") from None
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _read(target: Path, script: Path) -> Measured:
    from pydantic import ValidationError

    from provisioner.config import FitConfig

    try:
        return FitConfig.model_validate_json(target.read_bytes()).measured()
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{script} measured what makes no sense: {where}: {first['msg']}") from None
