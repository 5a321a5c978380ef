"""The sections of failover.yaml. Their descriptions are the text of docs/configuration.md and of editors' hints."""

# Annotations are kept as they are, not as text: pydantic would read each text anew at every start.

from decimal import Decimal
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_validator

from provisioner.config.checkpoint import CheckpointConfig
from provisioner.config.data import DataConfig
from provisioner.config.failback import Failback, FailbackConfig
from provisioner.config.names import (
    AutodlGpu,
    AutodlRegion,
    AwsRegion,
    AwsZone,
    Cidr,
    Country,
    GcpMachineType,
    GcpRegion,
    GcpZone,
    GpuModel,
    GpuName,
    ImageUuid,
    InstanceType,
    MachineImage,
    PlainVariable,
    SecretName,
    TokenUrl,
)
from provisioner.config.section import DurationOrAuto, Names, Section, word
from provisioner.config.values import Amount, Cuda, Duration, DurationOrZero, Text, matching, mistake
from provisioner.model import Market

MarketChoice = Literal["spot", "on-demand", "spot-then-on-demand"]

_GCP_IMAGE = r"projects/[a-z0-9.:-]+/global/images/(family/)?[a-z0-9-]{1,63}"
_GCP_IMAGES = "write projects/PROJECT/global/images/NAME, or .../images/family/NAME"
_LIST = {"type": "array", "items": {"type": "string"}, "minItems": 1}


def _in_bash(value: Any) -> Any:
    """A command in one text goes through bash, as it would at a prompt."""
    return ["bash", "-c", value] if isinstance(value, str) else value


def _can_be_caught(value: Any) -> Any:
    if value in ("SIGKILL", "SIGSTOP", "KILL", "STOP", 9, 19):
        raise mistake("no command can catch this signal", "write SIGTERM, SIGINT, SIGHUP, SIGUSR1 or SIGUSR2")
    return value


def _empty_block(value: Any) -> Any:
    """``- local:`` with nothing behind it is a block without settings."""
    if isinstance(value, dict) and list(value.values()) == [None]:
        return {name: {} for name in value}
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
        Literal["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2"], BeforeValidator(_can_be_caught)
    ] = Field(
        default="SIGTERM",
        description="What asks the command for a last checkpoint and its end, when its machine has to go.",
    )
    oom_retries: Annotated[int, Field(ge=0, le=10)] = Field(
        default=3,
        description="A command that ran out of memory is started again on the same machine, so many times at most, "
        "each time with half the `FAILOVER_BATCH_SCALE`.",
    )
    estimate: EstimateConfig = Field(default_factory=EstimateConfig, description="How long it is, for the planner.")


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


class PrepaidConfig(Section):
    """Prices of AutoDL's prepaid plans for your card, as its console shows them: its API tells none and sells none."""

    week: Amount | None = Field(default=None, description="Price of seven days.", examples=["280 CNY"])
    month: Amount | None = Field(default=None, description="Price of 30 days.", examples=["1100 CNY"])


class AutodlConfig(Section):
    """AutoDL, the job's home. Its developer token is read from the environment variable `AUTODL_TOKEN`."""

    mode: Literal["pro", "elastic"] = Field(
        description="`pro`: container instance Pro, for personal accounts too. `elastic`: elastic deployment, which "
        "needs an enterprise account."
    )
    regions: Names[AutodlRegion] = Field(
        default=(),
        description="Region codes; `[]` takes every region. Pro accepts only `westDC3` and `beijingDC2`.",
        examples=[["westDC3", "beijingDC2"]],
    )
    gpus: Names[AutodlGpu] = Field(
        default=(),
        description="Cards at AutoDL, by name or Pro spec id; `[]` takes those of `resources.gpus` that AutoDL has.",
        examples=[["RTX 4090D", "v-48g"]],
    )
    image_uuid: ImageUuid = Field(
        description="AutoDL's image, a base image or one you saved there. Images from elsewhere cannot be used.",
        examples=["base-image-l2t43iu6uk"],
    )
    wait: DurationOrZero = Field(
        default=120.0, description="How long to ask for a card before the fallbacks are tried; `0s` asks once."
    )
    max_price: Amount | None = Field(
        default=None, description="Most that the machine may cost in an hour.", examples=["5 CNY"]
    )
    base_url: TokenUrl = Field(default="https://api.autodl.com", description="Address of the developer API.")
    prepaid: PrepaidConfig = Field(
        default_factory=PrepaidConfig,
        description="Prepaid plans, which `failover plan` compares with pay-as-you-go.",
    )


class PrimaryConfig(Section):
    """Where the job lives when it can. Leave the section out to run on the fallbacks alone."""

    autodl: AutodlConfig = Field(description="AutoDL.")


class AwsConfig(Section):
    """A fallback at AWS. Credentials are those of the AWS tools (environment, profile, role)."""

    regions: Annotated[tuple[AwsRegion, ...], Field(min_length=1, strict=False)] = Field(
        description="Regions to try. Every zone of each is tried.", examples=[["us-east-1"]]
    )
    zones: Names[AwsZone] = Field(
        default=(),
        description="Zones to try, where only some will do; `[]` takes every zone of the regions.",
        examples=[["us-east-1a"]],
    )
    instance_types: Names[InstanceType] = Field(
        default=(),
        description="Machine types; `[]` takes any with the right card and number of cards.",
        examples=[["g4dn.xlarge", "g6.xlarge"]],
    )
    market: MarketChoice = Field(
        default="spot-then-on-demand",
        description="`spot-then-on-demand` tries both, in the order of what the job is expected to cost on them to its "
        "end: as a rule spot machines first.",
    )
    max_price: Amount | None = Field(
        default=None,
        description="Most that a machine may cost in an hour. AWS itself holds spot machines to it; on-demand "
        "machines whose price the catalog does not know are passed over.",
        examples=["1.5 USD"],
    )
    ami: MachineImage | None = Field(
        default=None,
        description="Machine image: id, name or SSM parameter; null takes AWS's Deep Learning Base image. V100 needs "
        "one with the proprietary driver.",
        examples=["ami-0123456789abcdef0"],
    )
    ssh_cidr: Cidr | None = Field(
        default=None,
        description="Network that may reach port 22; null opens no port. Nothing here needs SSH.",
        examples=["203.0.113.7/32"],
    )
    vpc: Literal["default", "own"] = Field(default="default", description="The region's default network, or a new one.")
    disk_gb: Annotated[int, Field(ge=8, le=16384)] = Field(default=100, description="Size of the encrypted disk in GB.")

    @property
    def markets(self) -> tuple[Market, ...]:
        """The markets to try, in this order for one machine type."""
        return _markets(self.market)


class GcpConfig(Section):
    """A fallback at Google Cloud. Credentials are the application default ones, as for Google's own tools."""

    project: Annotated[
        str,
        matching(r"[a-z][a-z0-9-]{4,28}[a-z0-9]", "is not a project id", "write the id, not the name or the number"),
    ] = Field(description="Project id.", examples=["my-project"])
    regions: Annotated[tuple[GcpRegion, ...], Field(min_length=1, strict=False)] = Field(
        description="Regions to try. Every zone of each is tried.", examples=[["us-central1"]]
    )
    zones: Names[GcpZone] = Field(
        default=(),
        description="Zones to try, where only some will do; `[]` takes every zone of the regions.",
        examples=[["us-central1-a"]],
    )
    machine_types: Names[GcpMachineType] = Field(
        default=(),
        description="Machine types; `[]` takes any with the right card and number of cards. An n1 machine names its "
        "cards too: `n1-standard-8+1xT4`; `n1-standard-8` alone takes every card that fits it.",
        examples=[["n1-standard-8+1xT4", "g2-standard-4"]],
    )
    market: MarketChoice = Field(default="spot-then-on-demand", description="As for AWS.")
    max_price: Amount | None = Field(
        default=None,
        description="Most that a machine may cost in an hour. Google Cloud holds no machine to a price: what the "
        "catalog knows no price of is passed over.",
        examples=["1.5 USD"],
    )
    image: (
        Annotated[
            str,
            matching(_GCP_IMAGE, "is not an image", _GCP_IMAGES),
        ]
        | None
    ) = Field(
        default=None,
        description="Machine image, `projects/P/global/images/NAME` or `projects/P/global/images/family/NAME`; null "
        "takes Google's Deep Learning image with CUDA and driver.",
    )
    network: Literal["default", "own"] = Field(
        default="default", description="The project's default network, or a new one for this job."
    )
    ssh_cidr: Cidr | None = Field(
        default=None,
        description="Network that may reach port 22; null opens no port. Nothing here needs SSH.",
        examples=["203.0.113.7/32"],
    )
    service_account: (
        Annotated[str, matching(r"[^@\s]+@[^@\s]+\.gserviceaccount\.com", "is no service account", "write its e-mail")]
        | None
    ) = Field(
        default=None,
        description="Account that machines run as, by its e-mail; null makes one that reaches the job's prefix in the "
        "store and nothing else.",
    )
    disk_gb: Annotated[int, Field(ge=50, le=65536)] = Field(default=100, description="Size of the disk in GB.")

    @property
    def markets(self) -> tuple[Market, ...]:
        """The markets to try, in this order for one machine type."""
        return _markets(self.market)


class LocalConfig(Section):
    """A fallback on this machine: a process, with whatever cards are here. It has no settings."""


class FallbackConfig(Section):
    """One place to go. Each entry of the list names one cloud; the list is tried in its order."""

    aws: AwsConfig | None = Field(default=None, description="AWS.")
    gcp: GcpConfig | None = Field(default=None, description="Google Cloud.")
    local: LocalConfig | None = Field(default=None, description="This machine.")

    @model_validator(mode="after")
    def _one_cloud(self) -> Self:
        named = [name for name in ("aws", "gcp", "local") if getattr(self, name) is not None]
        if len(named) != 1:
            what = f"names {' and '.join(named)}" if named else "names no cloud"
            raise mistake(f"one entry {what}", "write one of aws, gcp and local an entry, each with its own `-`")
        return self

    @property
    def cloud(self) -> str:
        """Name of the one cloud of this entry: ``aws``, ``gcp`` or ``local``."""
        return "aws" if self.aws else "gcp" if self.gcp else "local"


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
    race: Annotated[int, Field(ge=1, le=8)] = Field(
        default=1,
        description="So many regions of AWS and Google Cloud are asked for a machine at the same time, in one market. "
        "The best machine that is given is kept; the others go back at once, which costs a minute each. 1: one after "
        "the other.",
    )
    heartbeat: Duration = Field(default=5.0, description="How often a machine says that it is alive.")
    poll: Duration = Field(default=10.0, description="How often the controller looks.")
    lost_after: Duration = Field(
        default=60.0, description="A machine without a sign of life for this long is taken as lost."
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
    fallback: Annotated[tuple[Annotated[FallbackConfig, BeforeValidator(_empty_block)], ...], Field(min_length=1)] = (
        Field(description="Where it goes otherwise, in this order.")
    )
    policy: PolicyConfig = Field(default_factory=PolicyConfig, description="Limits and patience.")


def _markets(choice: MarketChoice) -> tuple[Market, ...]:
    return (Market.SPOT, Market.ON_DEMAND) if choice == "spot-then-on-demand" else (Market(choice),)
