"""Plays a scenario: sets the scene and lets its events happen, each when the job has come as far as it says."""

from __future__ import annotations

import json
import logging
import threading
import time
from typing import Any, Protocol

from provisioner.sandbox.scenario import NOTICE_S, Do, Scenario, When

_LOG = logging.getLogger(__name__)
_LOOK_S = 0.1
"""Time between two looks at the heartbeats: a quarter of the shortest step that a drill trains."""


class Theatre(Protocol):
    """What a scenario acts on: the sandbox."""

    aws: Any
    gcp: Any

    def take(self, cloud: str, machine_id: str | None = None) -> str:
        """Take a machine away."""
        ...

    def notice(self, seconds: float | None, machine_id: str | None = None, cloud: str = "aws") -> str:
        """Give the spot notice."""
        ...

    def set_stock(self, stock: list[dict[str, Any]]) -> None:
        """Set AutoDL's idle cards."""
        ...

    def kill_controller(self) -> None:
        """Kill the process that was named as the controller. Raises LookupError where there is none."""
        ...


class Stage:
    """Sets the scene and lets the events happen."""

    def __init__(self, theatre: Theatre, scenario: Scenario) -> None:
        """Take a scenario and what it acts on."""
        self._theatre = theatre
        self._scenario = scenario
        self._left = list(scenario.events)
        self._log: list[dict[str, Any]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._play, name="scenario", daemon=True)
        self._started = time.monotonic()

    def start(self) -> None:
        """Set the scene; play the events in the background."""
        self._started = time.monotonic()
        self._theatre.aws.faults.set(self._scenario.aws.faults)
        self._theatre.gcp.faults.set(self._scenario.gcp.faults)
        for quota in self._scenario.gcp.quotas:
            self._theatre.gcp.set_quota(quota.metric, quota.limit, quota.region)
        if self._scenario.autodl.stock is not None:
            self._theatre.set_stock([stock.model_dump() for stock in self._scenario.autodl.stock])
        if self._left:
            self._thread.start()

    def stop(self) -> None:
        """Let no further event happen."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def log(self) -> list[dict[str, Any]]:
        """Return what happened so far, and when (Unix time)."""
        return list(self._log)

    def _play(self) -> None:
        while self._left and not self._stopped.wait(_LOOK_S):
            needed = {event.when.epoch for event in self._left if event.when.epoch is not None}
            beats = self._beats() if needed else {}
            for event in [event for event in self._left if self._due(event.when, beats)]:
                if self._act(event.do):
                    self._left.remove(event)

    def _due(self, when: When, beats: dict[int, tuple[int, int]]) -> bool:
        if when.after is not None and time.monotonic() - self._started < when.after:
            return False
        if when.epoch is None:
            return True
        step, committed = beats.get(when.epoch, (-1, -1))
        return step >= (when.step or 0) and (when.committed is None or committed >= when.committed)

    def _beats(self) -> dict[int, tuple[int, int]]:
        """Return the step and the last committed step that each epoch's node reported last."""
        found = {}
        for _, content in self._theatre.aws.object(r"epochs/\d+/heartbeat\.json"):
            try:
                beat = json.loads(content)
                committed = int((beat.get("last_commit") or {"step": -1})["step"])
                found[int(beat["epoch"])] = (int(beat.get("step") or 0), committed)
            except (ValueError, KeyError, TypeError):
                _LOG.warning("a heartbeat that cannot be read")
        return found

    def _act(self, do: Do) -> bool:
        """Do it; False when there is no machine or controller to do it to yet."""
        machine, begin = None, time.time()
        if do.faults is not None:
            self._theatre.aws.faults.set(do.faults)
        if do.gcp_faults is not None:
            self._theatre.gcp.faults.set(do.gcp_faults)
        try:
            if do.take_machine is not None:
                machine = self._theatre.take(do.take_machine.cloud)
            if do.notice is not None:
                machine = self._theatre.notice(do.notice.seconds, cloud=do.notice.cloud)
            if do.kill_controller is not None:
                self._theatre.kill_controller()
        except LookupError:
            return False
        if do.stock is not None:  # last: a card that was just taken is free for others, or it is not
            self._theatre.set_stock([] if do.stock == "zero" else [stock.model_dump() for stock in do.stock])
        done = do.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
        event: dict[str, Any] = {"time": begin, "do": done, "machine": machine}
        if do.notice is not None:
            event["notice_s"] = NOTICE_S[do.notice.cloud] if do.notice.seconds is None else do.notice.seconds
        self._log.append(event)
        return True
