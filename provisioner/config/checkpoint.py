"""The section ``checkpoint``: the stores, and which checkpoints stay in them."""

# Annotations are kept as they are, not as text: pydantic would read each text anew at every start.

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from provisioner.config.names import HttpUrl, SecretName, StoreUri
from provisioner.config.section import DurationOrAuto, Names, Section
from provisioner.config.values import Duration, Text, mistake


class _OrUri:
    """Editors are told that the URI alone will do."""

    @staticmethod
    def __get_pydantic_json_schema__(core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"type": "string", "minLength": 1}, handler(core)]}


def _uri_alone(value: Any) -> Any:
    if isinstance(value, str):
        return {"uri": value}
    if isinstance(value, dict | StoreConfig):
        return value
    raise mistake("this is neither a URI nor a section", "write gs://bucket/prefix, or uri: and more keys below it")


class StoreConfig(Section):
    """One object store. Each entry is a URI alone, or a section with these keys."""

    uri: StoreUri = Field(
        description="`s3://bucket/prefix`, `gs://bucket/prefix` or `file:///directory`.",
        examples=["gs://my-other-bucket/failover"],
    )
    endpoint: HttpUrl | None = Field(
        default=None,
        description="URL of an S3-compatible service; null for the cloud's own.",
        examples=["https://oss-cn-hangzhou.aliyuncs.com"],
    )
    region: Text | None = Field(
        default=None,
        description="Region of the bucket. A machine reads from the store that is nearest to it, so tell it.",
        examples=["us-central1"],
    )
    access_key_id_env: SecretName = Field(
        default="AWS_ACCESS_KEY_ID", description="Environment variable with the store's key id."
    )
    secret_access_key_env: SecretName = Field(
        default="AWS_SECRET_ACCESS_KEY", description="Environment variable with the store's secret key."
    )
    session_token_env: SecretName = Field(
        default="AWS_SESSION_TOKEN", description="Environment variable with the store's session token, if it needs one."
    )


class KeepBestConfig(Section):
    """Checkpoints that stay because a figure of theirs is the best so far."""

    metric: Text = Field(
        description="Name of a number in `metadata.json` at the top of the checkpoint directory. A checkpoint without "
        "it is never the best.",
        examples=["val_loss"],
    )
    mode: Literal["min", "max"] = Field(
        description="`min`: the lowest is the best. `max`: the highest.", examples=["min"]
    )
    count: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=1, description="How many of the best stay. Of equal ones the newer does."
    )


class CheckpointConfig(Section):
    """Where checkpoints, logs and heartbeats go: the one place that every cloud must reach."""

    store: StoreUri = Field(
        description="`s3://bucket/prefix` (also for every S3-compatible service), `gs://bucket/prefix`, or "
        "`file:///directory` when all machines are this one.",
        examples=["s3://my-bucket/failover"],
    )
    endpoint: HttpUrl | None = Field(
        default=None,
        description="URL of an S3-compatible service; null for the cloud's own.",
        examples=["https://s3.example.com"],
    )
    region: Text | None = Field(default=None, description="Region of the bucket.", examples=["us-east-1"])
    every: DurationOrAuto = Field(
        default=None,
        description="How often a checkpoint is wanted: the command finds it in `FAILOVER_CHECKPOINT_EVERY_S`, in "
        "seconds. `auto` reckons it from the cost of a save and the risk of the machine, and writes it into "
        "`FAILOVER_ADVICE_FILE`.",
        examples=["10m"],
    )
    keep: Annotated[int, Field(ge=1, le=1000)] = Field(default=3, description="Newest checkpoints that are kept.")
    keep_every: Annotated[int, Field(ge=1)] | None = Field(
        default=None,
        description="Of each stretch of this many steps, counted from 0, the first checkpoint is kept too. null keeps "
        "none.",
        examples=[10000],
    )
    keep_best: KeepBestConfig | None = Field(
        default=None, description="The best by a figure of theirs are kept too. null keeps none."
    )
    sweep_after: Duration = Field(
        default=3600.0,
        description="Data that no checkpoint names any more is condemned when it is older than this, and removed when "
        "that was longer ago than this.",
    )
    replicas: Names[Annotated[StoreConfig, BeforeValidator(_uri_alone), _OrUri]] = Field(
        default=(),
        description="Stores that get a copy of the newest checkpoint, in the background. A machine restores from the "
        "nearest store that has it.",
        examples=[["gs://my-other-bucket/failover"]],
    )
    access_key_id_env: SecretName = Field(
        default="AWS_ACCESS_KEY_ID", description="Environment variable with the store's key id."
    )
    secret_access_key_env: SecretName = Field(
        default="AWS_SECRET_ACCESS_KEY", description="Environment variable with the store's secret key."
    )
    session_token_env: SecretName = Field(
        default="AWS_SESSION_TOKEN", description="Environment variable with the store's session token, if it needs one."
    )

    @property
    def main(self) -> StoreConfig:
        """The job's own store: the channel between controller and node, and the first place of every checkpoint."""
        return StoreConfig(
            uri=self.store,
            endpoint=self.endpoint,
            region=self.region,
            access_key_id_env=self.access_key_id_env,
            secret_access_key_env=self.secret_access_key_env,
            session_token_env=self.session_token_env,
        )
