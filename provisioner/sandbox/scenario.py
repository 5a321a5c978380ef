"""Scenario files of a drill (``examples/drills/*.yaml``): what the clouds hold at first, and what happens when."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from provisioner.errors import ConfigError
from provisioner.sandbox.faults import Fault
from provisioner.sandbox.gce.faults import GceFault

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


class KillController(_Part):
    """The controller is killed with -9 and started again ``seconds`` later; without them when no machine is left."""

    seconds: Seconds | None = None


class Do(_Part):
    """What happens. Several things happen in the order of the fields."""

    faults: tuple[Fault, ...] | None = None
    gcp_faults: tuple[GceFault, ...] | None = None
    take_machine: TakeMachine | None = None
    notice: Notice | None = None
    stock: Literal["zero"] | tuple[Stock, ...] | None = None
    kill_controller: KillController | None = None

    @model_validator(mode="after")
    def _alone(self) -> Do:
        if self.kill_controller is not None and self.model_fields_set != {"kill_controller"}:
            message = "`kill_controller` is an event of its own"
            raise ValueError(message)
        return self


class Event(_Part):
    """One thing that happens, once."""

    when: When
    do: Do


class Expect(_Part):
    """What the drill should come to; a drill that ends otherwise says so."""

    exit_code: int = 0


class TorchTraining(_Part):
    """A script of ``examples`` that wants PyTorch, what it is started with, and the step that it ends at."""

    script: str = Field(pattern=r"^[\w-]+\.py$")
    arguments: tuple[str, ...] = ()
    steps: int = Field(ge=1)


class Scenario(_Part):
    """One scenario file. ``config`` is laid over the drill's failover.yaml; without ``training`` it is in numpy.

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
    training: TorchTraining | None = None
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
    except (yaml.YAMLError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
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
