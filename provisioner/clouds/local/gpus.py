"""Which cards this machine has."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping

from provisioner.model import Gpu

Look = Callable[[], str]
NONE = Gpu("none", 0, 0.0)
_QUERY = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
_TIMEOUT_S = 20.0


def gpu_here(environ: Mapping[str, str], look: Look | None = None) -> Gpu:
    """Return the cards here, those of the first kind; ``NONE`` without any. ``look`` gives nvidia-smi's lines."""
    lines = [line for line in (look or (lambda: _nvidia_smi(environ)))().splitlines() if line.count(",") == 1]
    if not lines:
        return NONE
    cards = [
        (name.strip().removeprefix("NVIDIA "), memory.strip()) for name, memory in (line.split(",") for line in lines)
    ]
    name, memory = cards[0]
    count = sum(other == name for other, _ in cards)
    return Gpu(name, count, round(int(memory) / 1024, 1) if memory.isdigit() else 0.0)


def _nvidia_smi(environ: Mapping[str, str]) -> str:
    if shutil.which(_QUERY[0], path=environ.get("PATH")) is None:
        return ""
    try:
        done = subprocess.run(
            _QUERY, env=dict(environ), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
