"""Puts ``provisioner.node.torch`` where the training command finds it, whatever its Python has installed.

Only that package is copied, and what it shares with the node and the planner: the node's own libraries fit the node's
Python, not the training's.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

_SHARED = ("card_memory.py",)
_MORE = "__path__ = __import__('pkgutil').extend_path(__path__, __name__)\n"
"""A whole gpu-failover that the training has installed stays within its reach."""


def lay_out(target: Path) -> Path | None:
    """Write the toolkit below ``target``; return what belongs on the command's PYTHONPATH, None on a full disk."""
    here = Path(__file__).parent
    package = target / "provisioner"
    try:
        shutil.copytree(
            here / "torch", package / "node" / "torch", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
        )
        for name in _SHARED:
            shutil.copy(here / name, package / "node" / name)
        for name in ("py.typed", "fitting.py"):
            shutil.copy(here.parent / name, package / name)
        for folder, source in ((package, here.parent), (package / "node", here)):
            (folder / "__init__.py").write_text((source / "__init__.py").read_text("utf-8") + _MORE, "utf-8")
    except OSError:
        return None
    return target


def on_path(folder: Path | None, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables by which the command finds the toolkit."""
    if folder is None:
        return {}
    given = environ.get("PYTHONPATH")
    return {"PYTHONPATH": f"{folder}:{given}" if given else str(folder)}
