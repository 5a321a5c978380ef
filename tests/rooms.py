"""What the rooms of AWS and Google Cloud are tested with: a clock that skips, a stack without Terraform, a job."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provisioner.clouds.clock import Clock
from provisioner.model import JobRef, Launch, Offer, claim_token, tags

JOB = JobRef("digits", "1a2b3c4d")
IDLE = "#!/bin/bash\nsleep 600\n"


def eventually(true: Callable[[], Any], for_s: float = 15.0) -> bool:
    """Wait for something that other processes do."""
    until = time.monotonic() + for_s
    while not true():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def quick_clock(share: float = 1.0) -> Clock:
    """Return a clock on which a sleep takes 20 ms at most. ``share`` of what is skipped counts as time that passed."""
    skipped, lock = [0.0], threading.Lock()

    def sleep(seconds: float) -> None:
        time.sleep(min(seconds, 0.02))
        with lock:
            skipped[0] += max(0.0, seconds - 0.02) * share

    return Clock(tick=lambda: time.monotonic() + skipped[0], sleep=sleep)


def no_terraform() -> Any:
    """Stand where a room would look for Terraform."""
    raise AssertionError


def launch(offer: Offer, epoch: int = 1, attempt: int = 0, user_data: str = IDLE) -> Launch:
    """Return what a claim of the job's asks for."""
    token = claim_token(JOB, epoch, offer, attempt)
    return Launch(JOB, epoch, token, user_data, 3600.0, tags(JOB, epoch, token))


@dataclass
class Events:
    """What a room told."""

    told: list[dict[str, Any]] = field(default_factory=list)

    def emit(self, kind: str, /, **fields: Any) -> None:
        self.told.append({"kind": kind, **fields})


class KeptStack:
    """What a stack without Terraform keeps in a file, and what was asked of it. ``fail`` is raised by what destroys."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.runs: list[str] = []
        self.fail: Exception | None = None

    def state(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self.directory / "state.json").read_text()))
        except FileNotFoundError:
            return {}

    def keep(self, state: dict[str, Any]) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "state.json").write_text(json.dumps(state))

    def adopt(self, import_id: str) -> None:
        self.runs.append(f"adopt {import_id}")
        self.keep({**self.state(), "node": import_id})

    def release(self) -> None:
        self.runs.append("release")
        if self.fail is not None:
            raise self.fail
        self.keep({**self.state(), "node": ""})

    def destroy(self) -> None:
        self.runs.append("destroy")
        if self.fail is not None:
            raise self.fail
        self._destroy(self.state())
        self.keep({})

    def discard(self) -> None:
        self.runs.append("discard")

    def node_id(self) -> str:
        return str(self.state().get("node", ""))

    def _destroy(self, state: dict[str, Any]) -> None:
        """Delete what was made."""
        raise NotImplementedError
