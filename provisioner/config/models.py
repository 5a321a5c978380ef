"""The sections of failover.yaml. Their descriptions are the text of docs/configuration.md and of editors' hints."""

# Annotations are kept as they are, not as text: pydantic would read each text anew at every start.

from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

from provisioner.config.checkpoint import CheckpointConfig
from provisioner.config.data import DataConfig
from provisioner.config.failback import Failback, FailbackConfig
from provisioner.config.fit import FitConfig
from provisioner.config.names import (
    Country,
    GpuModel,
    GpuName,
    PlainVariable,
    SecretName,
)
from provisioner.config.places import Fallback, PrimaryConfig
from provisioner.config.section import DurationOrAuto, Names, Section, word
from provisioner.config.terraform import TerraformConfig
from provisioner.config.values import Amount, Cuda, Duration, DurationOrZero, Text, matching, mistake
from provisioner.fitting import Measured

_LIST = {"type": "array", "items": {"type": "string"}, "minItems": 1}


def _in_bash(value: Any) -> Any:
    """A command in one text goes through bash, as it would at a prompt."""
    return ["bash", "-c", value] if isinstance(value, str) else value


def _can_be_caught(value: Any) -> Any:
    if value in ("SIGKILL", "SIGSTOP", "KILL", "STOP", 9, 19):
        raise mistake("no command can catch this signal", "write SIGTERM, SIGINT, SIGHUP, SIGUSR1 or SIGUSR2")
    return value


class EstimateConfig(Section):
    """How long the job is, as far as it is known. The planner reckons with it what an offer costs to the end."""

    time: Duration | None = Field(
        default=None,
        description="Training from beginning to end on machines with the card `on`, without any stop. Left out, 10 h "
        "are taken to compare offers, and no offer is passed over for its cost or its time.",
        examples=["36h"],
    )
    on: GpuModel = Field(default="T4", description="The card that `time` was measured or guessed for.")
    speeds: dict[GpuName, Annotated[float, Field(gt=0, le=1000)]] = Field(
        default_factory=dict,
        description="Measured speeds: how many times as fast as `on` the job trains on other cards. What is not "
        "listed is reckoned from the cards' FP16 TFLOPS and memory bandwidth.",
        examples=[{"L4": 1.6}],
    )
    compute_share: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.5,
        description="Share of the time on the card `on` that waits for arithmetic; the rest waits for memory.",
    )
    checkpoint_gb: Annotated[float, Field(ge=0, le=100000)] | None = Field(
        default=None,
        description="Size of a checkpoint in GB, for what leaves a cloud. Left out, no such cost is counted.",
        examples=[2.5],
    )


class ImageLoginConfig(Section):
    """An account at a registry that shows `job.image` to its own people only."""

    registry: Annotated[
        str,
        matching(r"[A-Za-z0-9.-]+(:[0-9]+)?", "is not a registry", "write its host as in the image's name: ghcr.io"),
    ] = Field(description="Host of the registry, as in the image's name.", examples=["ghcr.io"])
    user: Annotated[str, matching(r"[!-~]{1,255}", "is not a user name", "write it without spaces")] = Field(
        description="User name there."
    )
    secret: SecretName = Field(
        description="Name of the controller's environment variable with the password or token. Its value stands in no "
        "file here, log, Terraform state or command line.",
        examples=["GHCR_TOKEN"],
    )


class JobConfig(Section):
    """What is trained, and how it is started."""

    name: Annotated[
        str,
        matching(
            r"[a-z]([a-z0-9-]{0,30}[a-z0-9])?",
            "is not a job name",
            "use lower-case letters, digits and -, at most 32, beginning with a letter",
        ),
    ] = Field(description="Names the job everywhere: in the store, in machine names and tags.", examples=["digits"])
    image: (
        Annotated[
            str,
            matching(r"[a-z0-9][A-Za-z0-9._/:@-]{0,254}", "is not an image name", "write it as repository/name:tag"),
        ]
        | None
    ) = Field(
        default=None,
        description="Container image to train in, on machines with a container engine. An AutoDL machine is a "
        "container itself and ignores it: see `primary.autodl.image_uuid`. `store://KEY` is an image in the store, as "
        "`docker save` writes it; KEY begins below `checkpoint.store`.",
        examples=["pytorch/pytorch:2.4.0-cuda12.4-cudnn9-runtime", "store://images/train.tar.gz"],
    )
    image_mirrors: Names[
        Annotated[
            str,
            matching(
                r"[a-z0-9][a-z0-9.-]*(:[0-9]+)?(/[a-z0-9._-]+)*", "is not a registry", "write it as host or host/path"
            ),
        ]
    ] = Field(
        default=(),
        description="Registries that hold the same image, tried in this order before its own: for regions where that "
        "is slow. The name below the host stays; `library/` is put before a name of one word.",
        examples=[["mirror.example.com"]],
    )
    image_login: ImageLoginConfig | None = Field(
        default=None, description="Account at the registry. Left out, the image is pulled without one."
    )
    image_read_only: bool = Field(
        default=False,
        description="Run the container with a read-only root. `/tmp`, `HOME` and the command's own directories can be "
        "written; `/tmp` takes memory.",
    )
    runtime: Literal["auto", "bundle", "installed"] = Field(
        default="auto",
        description="Python of the node, which watches the command and is never the command's own. `auto`: 3.11 or "
        "newer where the image has it, else a bundle out of the store. `bundle`: always that. `installed`: never.",
    )
    runtime_file: Text | None = Field(
        default=None,
        description="A bundle that `failover runtime build --output FILE` wrote, relative to this file. Left out, one "
        "is made here when it is needed.",
        examples=["failover-runtime.tar.gz"],
    )
    command: Annotated[
        tuple[Text, ...],
        Field(min_length=1, strict=False),
        BeforeValidator(_in_bash),
        WithJsonSchema({"anyOf": [{"type": "string", "minLength": 1}, _LIST]}),
    ] = Field(
        description="The training command: one text, which bash reads, or a list of words, which nothing reads. It is "
        "started again on every machine; `FAILOVER_RESTORED` tells it whether there is a checkpoint to go on from.",
        examples=["python train.py"],
    )
    env: dict[PlainVariable, str] = Field(
        default_factory=dict,
        description="Variables for the command. Never secrets: these values stand in the store.",
        examples=[{"OMP_NUM_THREADS": "4"}],
    )
    secrets: Names[SecretName] = Field(
        default=(),
        description="Names of environment variables of the controller that the command gets too. Their values stand "
        "in no file, log, Terraform state or command line.",
        examples=[["WANDB_API_KEY"]],
    )
    workdir: Text | None = Field(
        default=None,
        description="Directory to take along, relative to this file. It is packed into the store, and the command "
        "runs in it.",
        examples=["."],
    )
    steps: Annotated[int, Field(ge=1)] | None = Field(
        default=None,
        description="The last step. A command that exits with 0 before it was told to stop, and is run again.",
        examples=[100],
    )
    stop_signal: Annotated[
        Literal["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "none"], BeforeValidator(_can_be_caught)
    ] = Field(
        default="SIGTERM",
        description="What asks the command for a last checkpoint and its end, when its machine has to go. `none`: only "
        "`FAILOVER_ADVICE_FILE` does, for launchers that kill their workers soon after a signal.",
    )
    oom_retries: Annotated[int, Field(ge=0, le=10)] = Field(
        default=3,
        description="A command that ran out of memory is started again on the same machine, so many times at most, "
        "each time with half the `FAILOVER_BATCH_SCALE`.",
    )
    estimate: EstimateConfig = Field(default_factory=EstimateConfig, description="How long it is, for the planner.")
    fit: FitConfig | None = Field(
        default=None,
        description="What it needs of a card, as `failover fit SCRIPT --yaml` writes it. Left out, only "
        "`resources.min_vram_gb` asks for memory.",
    )

    @property
    def measured(self) -> Measured | None:
        """What ``failover fit`` measured, to reckon with."""
        return None if self.fit is None else self.fit.measured()


class ResourcesConfig(Section):
    """What the job needs of a machine, at every cloud."""

    gpus: Annotated[
        tuple[GpuName, ...],
        Field(min_length=1, strict=False),
        word("any", ()),
        PlainSerializer(lambda names: list(names) or "any", when_used="json"),
        WithJsonSchema({"anyOf": [{"const": "any"}, _LIST]}),
    ] = Field(
        default=(),
        description="Cards that will do, in no order: price decides. `A100` and `V100` take either memory size; "
        "`any` takes every card.",
        examples=[["T4", "L4"]],
    )
    count: Annotated[int, Field(ge=1, le=16)] = Field(default=1, description="Cards in the one machine.")
    min_vram_gb: Annotated[float, Field(ge=0, le=1024)] = Field(
        default=0.0, description="Least memory of one card in GB, as the card is sold: 24 for an L4."
    )
    cuda: Cuda | None = Field(
        default=None,
        description='CUDA version that the job is built with, in quotes: `"12.4"`. Cards that it cannot serve are '
        "passed over.",
    )
    driver: Annotated[int, Field(ge=300, le=999)] | None = Field(
        default=None,
        description="Branch of NVIDIA's driver in the machine image, as 580. Cards that it does not serve are passed "
        "over.",
        examples=[580],
    )
    countries: Names[Country] = Field(
        default=(),
        description="Countries that the job may run in, by their ISO codes of two letters; `[]` takes every one. "
        "AutoDL is in China (`CN`).",
        examples=[["US", "DE"]],
    )


class PolicyConfig(Section):
    """Limits, and how patient the controller is."""

    order: Literal["listed", "cost"] = Field(
        default="listed",
        description="`listed`: the entries of `fallback` are tried one after the other, each by expected cost. `cost`: "
        "the offers of all of them together by expected cost. The primary comes first either way.",
    )

    budget: Amount | None = Field(
        default=None,
        description="Most that the job may cost over all clouds; it is stopped there. null is no limit.",
        examples=["20 USD"],
    )
    budget_per_day: Amount | None = Field(
        default=None,
        description="Most that the job may cost in one local day. There it saves, gives its machine back, and goes on "
        "the next day. null is no limit. One for all jobs together: `limits.yaml` (docs/operations.md).",
        examples=["5 USD"],
    )
    usd_cny: Annotated[Decimal, Field(gt=0, le=1000), PlainSerializer(float, when_used="json")] = Field(
        default=Decimal("7.1"), description="Yuan for one dollar, to compare prices and to add costs up."
    )
    deadline: Duration | None = Field(
        default=None, description="The job is stopped this long after its start. null is no limit.", examples=["24h"]
    )
    ttl: Duration = Field(
        default=43200.0, description="Every machine turns itself off this long after its start, whatever happens here."
    )
    failback: Failback = Field(
        default_factory=FailbackConfig,
        description="When the job goes home to the primary. `true`, `false`, or one word for `mode` will do, too. A "
        "job whose fallback machine is lost asks the primary first in any case.",
    )
    retry_for: DurationOrZero = Field(
        default=86400.0,
        description="How long to go on looking while no machine is to be had; `0s` gives up after one round.",
    )
    recoveries_per_hour: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=12,
        description="Most new machines within an hour for machines that came to their end. The next one waits then, "
        "and the job does not fail. A move home does not count.",
    )
    race: Annotated[int, Field(ge=1, le=8)] = Field(
        default=1,
        description="So many regions of AWS and Google Cloud are asked for a machine at the same time, in one market. "
        "The best machine that is given is kept; the others go back at once, which costs a minute each. 1: one after "
        "the other.",
    )
    heartbeat: Duration = Field(default=5.0, description="How often a machine says that it is alive.")
    poll: Duration = Field(default=10.0, description="How often the controller looks.")
    lost_after: DurationOrAuto = Field(
        default=None,
        description="A machine without a sign of life for this long is taken as lost, whatever its cloud says. `auto` "
        "learns its rhythm: 3 minutes or more while its cloud says that it runs, at once when that says that it is "
        "gone (docs/operations.md).",
        examples=["1m"],
    )
    hung_after: DurationOrAuto = Field(
        default=None,
        description="A command that makes no step for this long, after its first one, hangs and is replaced. `auto` "
        "learns it from the steps: 10 minutes or more, an hour or more while something works (docs/node.md).",
        examples=["30m"],
    )
    boot_timeout: Duration = Field(
        default=900.0, description="A machine must give its first sign of life within this time."
    )
    data_cache_gb: Annotated[float, Field(gt=0, le=1000000)] | None = Field(
        default=None,
        description="Most that `data` may take on a machine's disk in GB, with what earlier jobs left there: that goes "
        "first, the least recently used before the rest. null takes what the disk has, less a tenth for checkpoints.",
        examples=[200],
    )


class Config(Section):
    """A whole failover.yaml."""

    job: JobConfig = Field(description="What is trained.")
    resources: ResourcesConfig = Field(default_factory=ResourcesConfig, description="What it needs of a machine.")
    checkpoint: CheckpointConfig = Field(description="Where its checkpoints go.")
    data: Names[DataConfig] = Field(default=(), description="What lies on the disk before the command starts.")
    primary: PrimaryConfig | None = Field(default=None, description="Where it lives when it can.")
    fallback: Annotated[tuple[Fallback, ...], Field(min_length=1)] = Field(
        description="Where it goes otherwise, in this order."
    )
    terraform: TerraformConfig = Field(default_factory=TerraformConfig, description="Where Terraform's states are.")
    policy: PolicyConfig = Field(default_factory=PolicyConfig, description="Limits and patience.")
