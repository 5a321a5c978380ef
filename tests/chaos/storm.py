"""Plays a schedule against real processes: a drill whose controller is started again until the job has ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from provisioner.errors import ConfigError
from provisioner.sandbox.drill import JOB, Drill
from provisioner.sandbox.hardware import CLOCKS
from provisioner.sandbox.machines import marked
from tests.chaos import rig
from tests.chaos.doors import Doors
from tests.chaos.job import point_at, scenario, through
from tests.chaos.line import Line
from tests.chaos.schedules import Blow, Schedule, Stroke

STRUCK = Path(__file__).with_name("struck_controller.py")
STORM_S = 45.0
"""When the weather clears after the first commit, whatever has happened by then, in seconds."""
DROUGHT_S = 100.0
"""When it clears without one: on a busy machine a job needs long to come so far, and is to be struck there too."""
CALM_S = 240.0
"""How long the job may take to end after that."""
MOST_RUNS = 40
CLOUDS = ("autodl", "aws", "gcp")
NOT_YET = ("this run did not start", "make room")
"""What a controller says that is told to be wrong where it is not: its machine trains for another, its disk is full."""
DARK_S = 2.0
"""For how long the clouds are away that were killed after a recorded step."""
_LOOK_S = 0.7
_LIFE_S = 240.0


Healing = tuple[float, Callable[[], None]]
"""When, on the monotonic clock, and what ends a blow."""


class BrokenError(AssertionError):
    """Something that must hold does not."""


@dataclass
class Life:
    """One start of the controller, Unix times, and how it ended."""

    began: float
    ended: float
    code: int
    words: str


@dataclass
class Weather:
    """What happened, as seen from outside."""

    sightings: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Every machine that the emulators had, by id: cloud, text, first and last time it was seen powered."""
    blows: list[tuple[float, Blow, str]] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)
    writes: list[dict[str, Any]] = field(default_factory=list)
    assets: list[int] = field(default_factory=list)
    """AutoDL's wallet, in 1/1000 yuan, look after look."""
    reports: list[dict[str, Any]] = field(default_factory=list)
    folder: Path = Path()


class Storm:
    """One schedule at work. ``controller`` is what a drill calls in place of its own controller."""

    def __init__(self, schedule: Schedule, say: Callable[[str], None]) -> None:
        self.schedule = schedule
        self.weather = Weather()
        self.say = say
        self._process: subprocess.Popen[str] | None = None
        self._stroke: Stroke | None = None
        self._http = httpx.Client(timeout=20, trust_env=False, verify=False)  # noqa: S501 - no TLS: loopback
        self._over = threading.Event()
        self._calm = threading.Event()
        self._committed = threading.Event()
        self._cleared = threading.Event()

    def controller(self, config: Path, environ: Mapping[str, str], say: Callable[[str], None]) -> dict[str, Any]:
        """Let the storm loose; start the controller again and again until the job has ended."""
        del say
        self.weather.folder = config.parent
        box = json.loads((config.parent / "cloud" / "sandbox.json").read_text("utf-8"))
        self._box = box
        self._doors = Doors([box[cloud] for cloud in CLOUDS])
        urls = dict(zip(CLOUDS, self._doors.urls, strict=True))
        environ = {name: through(urls, box, value) for name, value in environ.items()}
        (config.parent / "state").mkdir(exist_ok=True)
        with (
            contextlib.closing(self._doors),
            rig.small_disk(config.parent / "state"),
            Line(urls["aws"].removeprefix("http://"), self._pid) as line,
        ):
            self._line = line
            point_at(config, store=line.url, autodl=urls["autodl"])
            threads = [threading.Thread(target=one, daemon=True) for one in (self._look_on, self._blow)]
            for thread in threads:
                thread.start()
            try:
                return self._until_done(config, environ)
            finally:
                self._calm.set()
                self._over.set()
                for thread in threads:
                    thread.join(60)
                self._heal()
                self._http.close()

    # --- the controller -----------------------------------------------------------------------------------------------

    def _pid(self) -> int | None:
        process = self._process
        return None if process is None else process.pid

    def _until_done(self, config: Path, environ: Mapping[str, str]) -> dict[str, Any]:
        strokes = list(self.schedule.strokes)
        ends_by = time.monotonic() + DROUGHT_S + CALM_S
        while len(self.weather.lives) < MOST_RUNS:
            if time.monotonic() > ends_by:
                break
            stroke = strokes.pop(0) if strokes and not self._cleared.is_set() else None
            life, output = self._live(config, environ, stroke)
            self.weather.lives.append(life)
            self.say(f"-- controller ended with {life.code}\n{life.words}")
            if "Traceback" in life.words:
                raise BrokenError("the controller ended with a traceback")
            if life.code == -signal.SIGKILL:
                continue
            if life.code == int(ConfigError.exit_code) and not any(word in life.words for word in NOT_YET):
                raise BrokenError("the controller did not like its own configuration any more")
            with contextlib.suppress(ValueError):
                report = json.loads(output)
                self.weather.reports.append(report)
                if report["result"] == "completed":
                    return dict(report)
            time.sleep(1)
        raise BrokenError(f"the job did not end within {DROUGHT_S + CALM_S:.0f} s and {MOST_RUNS} starts")

    def _live(self, config: Path, environ: Mapping[str, str], stroke: Stroke | None) -> tuple[Life, str]:
        began = time.time()
        argv = [sys.executable, "-m", "provisioner.cli", "run", str(config), "--json"]
        for name in ("struck", "go_on"):
            (config.parent / name).unlink(missing_ok=True)
        self._stroke = stroke
        if stroke is not None:
            argv = [sys.executable, str(STRUCK), str(config), str(stroke.step), str(config.parent)]
        self._clock = config.parent / f"clock-{len(self.weather.lives)}"
        self._process = subprocess.Popen(
            argv,
            env={**environ, **rig.clock(self._clock)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            output, words = self._process.communicate(timeout=_LIFE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            output, words = self._process.communicate()
            raise BrokenError(f"the controller hung for {_LIFE_S:.0f} s\n{words}") from None
        finally:
            process, self._process = self._process, None
        return Life(began, time.time(), process.returncode, words), output

    # --- the storm ----------------------------------------------------------------------------------------------------

    def _blow(self) -> None:
        started = time.monotonic()
        committed: float | None = None
        waiting = list(self.schedule.blows)
        healings: list[Healing] = []
        until = started + DROUGHT_S
        while not self._calm.wait(0.05) and time.monotonic() < until:
            healings += self._stroke_due()
            now = time.monotonic()
            if committed is None and self._committed.is_set():
                committed, until = now, now + STORM_S
            bases = {"start": started, "commit": committed}
            for blow in list(waiting):
                base = bases[blow.base]
                if base is not None and now >= base + blow.at and self._can(blow):
                    waiting.remove(blow)
                    with contextlib.suppress(OSError, httpx.HTTPError, LookupError):
                        healings += self._strike(blow)
            for healing in [one for one in healings if one[0] <= now]:
                healings.remove(healing)
                healing[1]()
        self._cleared.set()
        self._heal()

    def _can(self, blow: Blow) -> bool:
        """Say whether it is time: a controller's clock is right when it starts, and is set when its run has begun."""
        if blow.kind != "clock" or blow.what["whose"] != "controller":
            return True
        with contextlib.suppress(OSError):
            links = [str(link.readlink()) for link in Path(f"/proc/{self._pid()}/fd").iterdir()]
            return any(link.endswith(".sqlite") for link in links)
        return False

    def _stroke_due(self) -> list[Healing]:
        """Strike where the controller waits for it after a recorded step."""
        room, stroke = self.weather.folder, self._stroke
        if stroke is None or not (room / "struck").exists():
            return []
        self._stroke = None
        what = {"victim": stroke.victim, "seconds": DARK_S, "step": stroke.step}
        later: list[Healing] = []
        with contextlib.suppress(OSError, httpx.HTTPError, LookupError):
            later = self._strike(Blow("step", 0.0, "kill", what))
        (room / "go_on").touch()
        return later

    def _strike(self, blow: Blow) -> list[Healing]:
        what, hit = blow.what, ""
        later: list[Healing] = []
        until = time.monotonic() + what.get("seconds", 0.0)
        if blow.kind == "kill":
            hit = self._kill(what["victim"])
            later = [(until, self._doors.open)] if what["victim"] == "clouds" else []
        elif blow.kind == "full":
            folder = self._disk(what["whose"])
            later, hit = [(until, lambda: rig.empty(folder))], rig.fill(folder)
        elif blow.kind == "clock":
            hit = rig.set_clock(self._clock_of(what["whose"]), what["by"])
        elif blow.kind == "stop":
            pids = self._pids(what["victim"])
            _signal(pids, signal.SIGSTOP)
            later, hit = [(until, lambda: _signal(pids, signal.SIGCONT))], f"{len(pids)} processes"
        elif blow.kind == "cut":
            self._line.cut(tuple(what["sides"]), what["how"])
            later = [(until, self._line.heal)]
        elif blow.kind == "api":
            self._rule(what)
        self.weather.blows.append((time.time(), blow, hit))
        return later

    def _disk(self, whose: str) -> Path:
        folder = self.weather.folder
        return folder / "state" if whose == "controller" else folder / "cloud" / "machines" / self._newest()[1]

    def _clock_of(self, whose: str) -> Path:
        return self._clock if whose == "controller" else self.weather.folder / "cloud" / CLOCKS / self._newest()[1]

    def _kill(self, victim: str) -> str:
        if victim == "clouds":
            self._doors.close()
            return "their doors"
        if victim == "machine":  # the cloud takes it
            cloud, machine = self._newest()
            self._post("take", {"cloud": cloud, "id": machine})
            return machine
        if victim == "plug":  # it is dead, and its cloud does not know
            _, machine = self._newest()
            self._post(f"machines/{machine}/kill", {})
            return machine
        pids = self._pids(victim)
        _signal(pids, signal.SIGKILL)
        return f"{len(pids)} processes"

    def _pids(self, victim: str) -> set[int]:
        cloud = self.weather.folder / "cloud"
        if victim == "controller":
            pid = self._pid()
            return set() if pid is None else {pid}
        if victim == "clouds":
            return {int(self._box["pid"])}
        if victim == "terraform":
            return {pid for pid in marked(cloud) if _name(pid) == "terraform"}
        _, machine = self._newest()
        pids = {pid for pid in marked(cloud / "machines" / machine) if "guest.py" not in _command(pid)}  # the hardware
        return pids if victim == "machine" else {pid for pid in pids if "provisioner.node" in _command(pid)}

    def _newest(self) -> tuple[str, str]:
        machines = self._state()["machines"]
        if not machines:
            raise LookupError("no machine")
        return machines[-1]["cloud"], machines[-1]["id"]

    def _rule(self, what: Mapping[str, Any]) -> None:
        if what["cloud"] == "autodl":
            self._http.post(f"{self._box['autodl']}/_control/faults", json=what["rule"]).raise_for_status()
        else:
            self._post("faults/gcp" if what["cloud"] == "gcp" else "faults", [what["rule"]])

    def _heal(self) -> None:
        for pid in {int(self._box["pid"])} | marked(self.weather.folder / "cloud"):
            _signal({pid}, signal.SIGCONT)
        for machine in (self.weather.folder / "cloud" / "machines").glob("*"):
            _signal(marked(machine), signal.SIGCONT)
            rig.empty(machine)
        (self.weather.folder / "go_on").touch()
        self._line.heal()
        self._doors.open()
        rig.empty(self.weather.folder / "state")
        with contextlib.suppress(httpx.HTTPError):
            for path in ("faults", "faults/gcp"):
                self._http.delete(f"{self._box['control']}/{path}")
            self._http.delete(f"{self._box['autodl']}/_control/faults")

    # --- the witness --------------------------------------------------------------------------------------------------

    def _look_on(self) -> None:
        while not self._over.wait(_LOOK_S):
            with contextlib.suppress(httpx.HTTPError, OSError):
                self.look()
                if any("/checkpoints/" in write["path"] for write in self.weather.writes):
                    self._committed.set()

    def look(self) -> None:
        """Take note of every machine and every write, as the emulators tell them."""
        asked = time.time()  # what is told was so then, and need not be so any more when the answer comes
        state, now = self._state(), time.time()
        live = {machine["id"]: machine["cloud"] for machine in state["machines"]}
        texts = {one["id"]: json.dumps(one) for cloud in ("aws", "gcp") for one in state[cloud]["instances"]}
        texts |= {one["id"]: json.dumps(one) for one in state["autodl"]["instances"]}
        for deployment in state["autodl"]["deployments"]:
            texts |= {one["id"]: json.dumps(deployment["name"]) for one in deployment["containers"]}
        for machine, cloud in live.items():
            fresh = {"cloud": cloud, "text": "", "first": now, "last": asked}
            seen = self.weather.sightings.setdefault(machine, fresh)
            seen["last"], seen["text"] = max(seen["first"], asked), texts.get(machine) or seen["text"]
        self.weather.assets.append(state["autodl"]["assets"])
        self.weather.writes = self._http.get(f"{self._box['control']}/writes").json()

    def _state(self) -> dict[str, Any]:
        return dict(self._http.get(f"{self._box['control']}/state").json())

    def _post(self, path: str, body: Any) -> None:
        self._http.post(f"{self._box['control']}/{path}", json=body).raise_for_status()


def _signal(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _name(pid: int) -> str:
    return _read(pid, "comm").strip()


def _command(pid: int) -> str:
    return _read(pid, "cmdline").replace("\0", " ")


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text("utf-8", "replace")
    except OSError:
        return ""


def play(schedule: Schedule, folder: Path) -> tuple[dict[str, Any], Weather, str]:
    """Play a schedule to the end of its job. Returns report, what was seen, and the story. Raises BrokenError."""
    words: list[str] = [str(schedule)]
    folder.mkdir(parents=True, exist_ok=True)
    storm = Storm(schedule, words.append)
    drill = Drill(
        scenario(schedule, folder / "scenario.yaml"),
        directory=folder / "d",
        provider=schedule.provider,
        say=words.append,
        controller=storm.controller,
    )
    try:
        with rig.rigged():
            report = drill.run()
    except Exception as error:
        raise BrokenError(f"{type(error).__name__}: {error}\n{_story(words, storm)}") from error
    finally:
        rig.leave(storm.weather.folder / "cloud" / "machines")
    return report, storm.weather, _story(words, storm)


def _story(words: list[str], storm: Storm) -> str:
    blows = [f"{at:.2f} {blow.kind} {json.dumps(blow.what)}: {hit}" for at, blow, hit in storm.weather.blows]
    events = storm.weather.folder / "state" / "jobs" / JOB / "events.jsonl"
    lines = events.read_text("utf-8").splitlines() if events.exists() else []
    return "\n".join([*words, "-- blows", *blows, "-- events", *lines])
