"""Scenario files of a drill (``examples/drills/*.yaml``): what the clouds hold at first, and what happens when."""

from __future__ import annotations

import json
import logging
import threading
import time
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from provisioner.errors import ConfigError
from provisioner.sandbox.faults import Fault
from provisioner.sandbox.gce.faults import GceFault

_LOG = logging.getLogger(__name__)
_LOOK_S = 0.1
"""Time between two looks at the heartbeats: a quarter of the shortest step that a drill trains."""
NOTICE_S = {"aws": 120.0, "gcp": 30.0}
"""What a cloud gives between the notice and the end of a spot machine, in seconds."""
_WORDS = {
    "missing": "this is missing; examples/drills has scenarios to begin with",
    "extra_forbidden": "unknown key of a scenario; docs/sandbox.md names them",
}
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0}


def _seconds(value: Any) -> Any:
    """Read ``10s``, ``500ms``, ``2m`` or a number of seconds."""
    if isinstance(value, str):
        for unit, factor in _UNITS.items():
            number = value.removesuffix(unit)
            if number != value and number.replace(".", "", 1).isdigit():
                return float(number) * factor
    return value


Seconds = Annotated[float, BeforeValidator(_seconds), Field(ge=0)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Stock(_Part):
    """Idle cards of one kind in one AutoDL region."""

    region: str
    gpu: str
    idle: int = Field(ge=0)


class AutodlScene(_Part):
    """AutoDL at the beginning. Without ``stock`` it has plenty."""

    stock: tuple[Stock, ...] | None = None


class AwsScene(_Part):
    """AWS at the beginning. ``boot`` and ``end`` are how long a machine takes to come up and to go."""

    faults: tuple[Fault, ...] = ()
    boot: Seconds = 1.0
    end: Seconds = 0.3


class Quota(_Part):
    """A quota of Google Cloud. Without a region it is the project's, e.g. ``GPUS_ALL_REGIONS``."""

    metric: str
    limit: float = Field(ge=0)
    region: str = ""


class GcpScene(_Part):
    """Google Cloud at the beginning; times as for AWS. Quotas that are not named are plenty."""

    faults: tuple[GceFault, ...] = ()
    quotas: tuple[Quota, ...] = ()
    boot: Seconds = 1.0
    end: Seconds = 0.3


class When(_Part):
    """When something happens: ``after`` the start, or when the node of an epoch reports a step. Both: the later one."""

    after: Seconds | None = None
    epoch: int | None = Field(default=None, ge=1)
    step: int | None = Field(default=None, ge=0)
    committed: int | None = Field(default=None, ge=0)
    """Last step whose checkpoint is in the store; without it a loss may come before or after a commit."""

    @model_validator(mode="after")
    def _something(self) -> When:
        if self.after is None and self.epoch is None:
            message = "say `after` or `epoch`"
            raise ValueError(message)
        return self


class TakeMachine(_Part):
    """Whose newest machine goes."""

    cloud: Literal["autodl", "aws", "gcp"]


class Notice(_Part):
    """Spot notice for a cloud's newest machine, which goes ``seconds`` later: by default what the cloud gives."""

    cloud: Literal["aws", "gcp"] = "aws"
    seconds: Seconds | None = None


class Do(_Part):
    """What happens. Several things happen in the order of the fields."""

    faults: tuple[Fault, ...] | None = None
    gcp_faults: tuple[GceFault, ...] | None = None
    take_machine: TakeMachine | None = None
    notice: Notice | None = None
    stock: Literal["zero"] | tuple[Stock, ...] | None = None


class Event(_Part):
    """One thing that happens, once."""

    when: When
    do: Do


class Expect(_Part):
    """What the drill should come to; a drill that ends otherwise says so."""

    exit_code: int = 0


class Scenario(_Part):
    """One scenario file. ``config`` is laid over the drill's failover.yaml.

    ``step_seconds`` is how long a step of the training takes: long enough for events to hit the step that they name.
    """

    name: str
    description: str = ""
    autodl: AutodlScene = AutodlScene()
    aws: AwsScene = AwsScene()
    gcp: GcpScene = GcpScene()
    events: tuple[Event, ...] = ()
    expect: Expect = Expect()
    step_seconds: Seconds | None = None
    config: dict[str, Any] = Field(default_factory=dict)


def load(path: Path) -> Scenario:
    """Read a scenario file. Raises ConfigError with file, line and field."""
    try:
        text = path.read_text(encoding="utf-8")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        value = yaml.safe_load(text)
    except OSError as error:
        message = f"{path}: {error.strerror}"
        raise ConfigError(message) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        message = f"{path}:{mark.line + 1 if mark else 1}: not YAML: {getattr(error, 'problem', None) or error}"
        raise ConfigError(message) from error
    if not isinstance(value, dict):
        message = f"{path}:1: a scenario is a mapping with a name"
        raise ConfigError(message)
    try:
        return Scenario.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        words = _WORDS.get(first["type"], first["msg"])
        message = f"{path}:{_line(node, first['loc'])}: {where}: {words}"
        raise ConfigError(message) from error


def _line(node: Any, location: tuple[int | str, ...]) -> int:
    """Return the line of a field, or of the nearest thing around it that stands in the file."""
    line = 1
    for part in location:
        if isinstance(node, yaml.MappingNode):
            pair = next((pair for pair in node.value if pair[0].value == part), None)
            if pair is None:
                break
            line, node = pair[0].start_mark.line + 1, pair[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
        else:
            break
    return line


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
        """Do it; False when there is no machine to do it to yet."""
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
