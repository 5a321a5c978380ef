"""The places of failover.yaml: the primary and the fallbacks. See ``models``."""

# Annotations are kept as they are, not as text: pydantic would read each text anew at every start.

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from provisioner.config.names import (
    AutodlGpu,
    AutodlRegion,
    AwsRegion,
    AwsZone,
    Cidr,
    GcpMachineType,
    GcpRegion,
    GcpZone,
    ImageUuid,
    InstanceType,
    MachineImage,
    TokenUrl,
)
from provisioner.config.section import Names, Section
from provisioner.config.values import Amount, DurationOrZero, matching, mistake
from provisioner.model import Market

MarketChoice = Literal["spot", "on-demand", "spot-then-on-demand"]

_GCP_IMAGE = r"projects/[a-z0-9.:-]+/global/images/(family/)?[a-z0-9-]{1,63}"
_GCP_IMAGES = "write projects/PROJECT/global/images/NAME, or .../images/family/NAME"


def _empty_block(value: Any) -> Any:
    """``- local:`` with nothing behind it is a block without settings."""
    if isinstance(value, dict) and list(value.values()) == [None]:
        return {name: {} for name in value}
    return value


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
    preemption_notice: bool = Field(
        default=False,
        description="Ask that spot machines are told two minutes before they are taken, not as they are switched off "
        "(`preemptionNoticeDuration`, at Google a preview).",
    )

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


Fallback = Annotated[FallbackConfig, BeforeValidator(_empty_block)]
"""One entry of ``fallback``."""


def _markets(choice: MarketChoice) -> tuple[Market, ...]:
    return (Market.SPOT, Market.ON_DEMAND) if choice == "spot-then-on-demand" else (Market(choice),)
