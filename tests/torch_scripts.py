"""Runs training scripts with the Python of ``.venv-torch``, as a user's environment has it."""

from __future__ import annotations

import os
import socket
import subprocess
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PYTHON = ROOT / ".venv-torch" / "bin" / "python"
FORKS = {"PYTHONPATH": f"{ROOT}:{ROOT / 'examples'}", "TRANSFORMERS_VERBOSITY": "error"}
TORCHRUN = PYTHON.with_name("torchrun")

needs_torch = [
    pytest.mark.torch,
    pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-torch: make torch"),
]


def environment(checkpoints: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "FAILOVER_CHECKPOINT_DIR": str(checkpoints), "OMP_NUM_THREADS": "1", **more}


def start(
    command: list[str], checkpoints: Path, *, stdout: int | socket.socket = subprocess.PIPE, **more: str
) -> subprocess.Popen[str]:
    """Start a script as the leader of its own process group. ``stdout`` gets its stderr, too."""
    return subprocess.Popen(
        command,
        env=environment(checkpoints, **more),
        stdout=stdout,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
    )


def run(text: str, cwd: Path, environ: Mapping[str, str] | None = None, *, timeout: float = 120) -> str:
    """Run a text to its end and return what it said; it has to end well."""
    path = cwd / "script.py"
    path.write_text(textwrap.dedent(text))
    done = subprocess.run(
        [str(PYTHON), "-W", "error::UserWarning", str(path)],
        cwd=cwd,
        env={**os.environ, **(environ or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


_QUIET = "\nimport warnings\nwarnings.simplefilter('ignore')\n"


def interrupted(
    script: str, folder: Path, count: int, *, processes: int, last: int = 24, aways: Sequence[str] = (), **environ: str
) -> str:
    """Kill the script's ``work``, and give it notice, ``count`` times each; see torch_forks. Return what it said.

    ``aways`` are what :func:`differ` takes away from it afterwards.
    """
    drive = f"torch_forks.interrupted(work, Path('.'), {count}, last={last}, processes={processes})\n"
    drive += f"torch_forks.differ(work, *{aways!r})\n"
    said = run(script + _QUIET + drive, folder, {**FORKS, **environ}, timeout=120.0 + 60 * count)
    assert "all equal" in said
    return said


def differ(script: str, folder: Path, *aways: str) -> None:
    """Take away from the script's ``work`` one thing after the other: each has to make a difference."""
    run(script + _QUIET + f"torch_forks.differ(work, *{aways!r})\n", folder, FORKS)
