"""The controller of a drill: a process of its own, started again where the scenario has killed it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from provisioner.errors import FailoverError
from provisioner.sandbox.client import Box

DEADLINE_S = 900.0
"""How long a controller may run, or a machine without one, in seconds."""
_LOOK_S = 0.3
_STATUS_S = 60.0


class Killed(FailoverError):
    """The controller was killed with -9."""


def run_controller(
    config: Path,
    environ: Mapping[str, str],
    say: Callable[[str], None],
    began: Callable[[int], None] = lambda _: None,
) -> dict[str, Any]:
    """Run ``failover run`` as a process; its words go to ``say``, its report is returned. Raises FailoverError.

    ``began`` gets its process id.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "provisioner.cli", "run", str(config), "--json"],
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C reaches the drill, which ends the controller in order
    )
    assert process.stdout is not None  # noqa: S101 - asked for above
    assert process.stderr is not None  # noqa: S101
    left = threading.Event()
    words = threading.Thread(target=_relay, args=(process.stderr, say, left), daemon=True)
    words.start()
    alarm = threading.Timer(DEADLINE_S, process.kill)
    alarm.start()
    try:
        began(process.pid)
        output = process.stdout.read()
        process.wait()
    finally:
        alarm.cancel()
        if process.poll() is None:
            left.set()  # it would say that the job goes on, but its cloud ends with the drill
            process.send_signal(signal.SIGTERM)
            process.wait(10)
    words.join(5)
    process.stdout.close()
    process.stderr.close()
    return _report(output, process.returncode)


def _report(output: str, returncode: int) -> dict[str, Any]:
    try:
        report = json.loads(output)
    except ValueError as error:
        kind = Killed if returncode == -signal.SIGKILL else FailoverError
        message = f"the controller ended with {returncode} and no report"
        raise kind(message) from error
    if not isinstance(report, dict):
        message = f"the controller's report is a {type(report).__name__}"
        raise FailoverError(message)
    return report


def _relay(stream: Any, say: Callable[[str], None], left: threading.Event) -> None:
    """Hand on what the controller says until ``left`` is set."""
    for line in stream:
        if not left.is_set():
            say(line.rstrip("\n"))


def play_controller(
    box: Box, job: str, config: Path, environ: Mapping[str, str], say: Callable[[str], None]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run the controller, and again each time that the scenario has killed it.

    Returns the report, and of each absence: when it began and ended (Unix time), what ``failover status`` told at its
    end and which things were ``left`` at the clouds then. Raises FailoverError.
    """
    absences: list[dict[str, Any]] = []
    while True:
        try:
            return run_controller(config, environ, say, box.name_controller), absences
        except Killed:
            kills = [event for event in box.state()["events"] if "kill_controller" in event["do"]]
            if len(kills) <= len(absences):
                raise
            absences.append(_absence(box, job, kills[len(absences)], environ, say))


def _absence(
    box: Box, job: str, kill: Mapping[str, Any], environ: Mapping[str, str], say: Callable[[str], None]
) -> dict[str, Any]:
    seconds = kill["do"]["kill_controller"].get("seconds")
    say(f"the controller is killed; it stays dead {'until no machine is left' if seconds is None else f'{seconds} s'}")
    until = time.time() + (DEADLINE_S if seconds is None else seconds)
    while time.time() < until and (seconds is not None or box.state()["machines"]):
        time.sleep(_LOOK_S)
    left, at = box.state()["left"], time.time()
    status = _status(job, environ)
    say("the controller is started again")
    return {"killed_at": kill["time"], "back_at": at, "left": left, "status": status}


def _status(job: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return what ``failover status JOB --json`` tells, without the events."""
    done = subprocess.run(
        [sys.executable, "-m", "provisioner.cli", "status", job, "--json"],
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_STATUS_S,
        check=False,
    )
    try:
        told: dict[str, Any] = json.loads(done.stdout)
    except ValueError as error:
        message = f"failover status: {done.stderr.strip() or f'exit code {done.returncode}'}"
        raise FailoverError(message) from error
    told.pop("events", None)
    return told
