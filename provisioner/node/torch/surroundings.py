"""What the node tells a training script, and what the script tells the node: environment variables and small files.

Without a node everything has a default, so a script runs the same way on a desk. See docs/node.md.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

EVERY_S = 600.0
"""Between two saves where nobody advises, in seconds."""


class Surroundings:
    """Read once at the start; the advice file is looked at whenever it has changed."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        """Take the environment."""
        self._environ = os.environ if environ is None else environ
        self._stamp: tuple[int, int] | None = None
        self._advice: Mapping[str, Any] = {}

    @property
    def checkpoints(self) -> Path:
        """Return where finished checkpoints go: ``FAILOVER_CHECKPOINT_DIR``, else ``checkpoints``."""
        return Path(self._environ.get("FAILOVER_CHECKPOINT_DIR") or "checkpoints")

    @property
    def restore_from(self) -> list[Path]:
        """Return where the last checkpoint may lie: where this script saves, and what the node restored before.

        A launcher may have started the script again since then.
        """
        given = self._environ.get("FAILOVER_RESTORE_PATH")
        return [self.checkpoints, *([Path(given)] if given else [])]

    @property
    def batch_scale(self) -> float:
        """Return by what to multiply the batch: less than 1 after the command ran out of memory on this machine."""
        return self._number("FAILOVER_BATCH_SCALE") or 1.0

    @property
    def fit_file(self) -> Path | None:
        """Return where ``failover fit`` wants what was measured; None in a training."""
        given = self._environ.get("FAILOVER_FIT_FILE")
        return Path(given) if given else None

    @property
    def is_elastic(self) -> bool:
        """Say whether torchrun started this process."""
        return "TORCHELASTIC_RUN_ID" in self._environ

    @property
    def launcher(self) -> str:
        """Return which of several torchruns started this process."""
        return self._environ.get("GROUP_RANK", "0")

    def every_s(self) -> float:
        """Return the seconds between two saves, as they are advised just now."""
        advised = self._read().get("save_every_s")
        if isinstance(advised, (int, float)) and advised > 0:
            return float(advised)
        return self._number("FAILOVER_CHECKPOINT_EVERY_S") or EVERY_S

    def stop(self) -> str:
        """Say why this machine has to go, or nothing."""
        stop = self._read().get("stop")
        return str(stop.get("reason") or "the machine has to go") if isinstance(stop, dict) else ""

    def report(self, step: int, save_s: float | None) -> None:
        """Tell the node the step, and what the last save cost the training in seconds."""
        status: dict[str, object] = {"step": step}
        if save_s is not None:
            status["save_s"] = round(save_s, 4)
        self._write("FAILOVER_STATUS_FILE", status)

    def report_efficiency(self, numbers: Mapping[str, object]) -> None:
        """Tell the node how well the machine is used, and what to change: docs/node.md."""
        self._write("FAILOVER_EFFICIENCY_FILE", numbers)

    def _write(self, name: str, status: Mapping[str, object]) -> None:
        target = self._environ.get(name)
        if not target:
            return
        try:
            handle, draft = tempfile.mkstemp(dir=Path(target).parent, prefix=".status-")
            with os.fdopen(handle, "w", encoding="ascii") as file:
                json.dump(status, file)
            Path(draft).replace(target)
        except OSError:  # a full disk must not end the training for the sake of a number
            return

    def _number(self, name: str) -> float | None:
        try:
            return float(self._environ.get(name) or "")
        except ValueError:
            return None

    def _read(self) -> Mapping[str, Any]:
        path = self._environ.get("FAILOVER_ADVICE_FILE")
        if not path:
            return {}
        try:
            seen = Path(path).stat()
            stamp = (seen.st_mtime_ns, seen.st_ino)
            if stamp != self._stamp:
                found = json.loads(Path(path).read_text("utf-8"))
                self._stamp, self._advice = stamp, found if isinstance(found, dict) else {}
        except (OSError, ValueError):
            return self._advice
        return self._advice


def say(line: str) -> None:
    """Say a line on stderr, in one write: the other processes write to the same pipe."""
    sys.stderr.write(f"failover: {line}\n")
    sys.stderr.flush()
