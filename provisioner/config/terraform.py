"""The section ``terraform``: where its states are."""

# Annotations are kept as they are, not as text: pydantic would read each text anew at every start.

from collections.abc import Iterator, Mapping
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from provisioner.config.checkpoint import CheckpointConfig, StoreConfig
from provisioner.config.mistakes import Loc
from provisioner.config.names import HttpUrl, SecretName, store_uri
from provisioner.config.section import Section
from provisioner.config.stores import Finding, inside, key_findings
from provisioner.config.values import DurationOrZero, Text, mistake, short

BESIDE: Final = "_terraform"
"""Folder of the states in the checkpoint store, beside the jobs: no job's name begins with ``_``."""
_OWN_BUCKET: Final = ("endpoint", "region", "access_key_id_env", "secret_access_key_env", "session_token_env")
_ADVICE: Final = "write local, store, s3://bucket/prefix or gs://bucket/prefix"


def state_place(text: str) -> str:
    """Check a place for states: ``local``, ``store`` or the URI of a bucket. Raises pydantic's error."""
    if text in {"local", "store"}:
        return text
    if urlsplit(text).scheme not in {"s3", "gs"}:
        raise mistake(f"{short(text)} is no place for Terraform's states", _ADVICE)
    return store_uri(text)


class TerraformConfig(Section):
    """What Terraform knows of a job's networks and machines: its state, one for each region."""

    state: Annotated[str, AfterValidator(state_place)] = Field(
        default="local",
        description="Where states are. `local`: in the job's directory on this machine. `store`: in the checkpoint "
        "store, beside the jobs; for jobs that several machines may run. Or `s3://bucket/prefix`, "
        "`gs://bucket/prefix`.",
        examples=["store"],
    )
    endpoint: HttpUrl | None = Field(
        default=None,
        description="URL of an S3-compatible service for `state`. This key and those below are for a bucket that is "
        "none of `checkpoint`: those keep their own.",
        examples=["https://s3.example.com"],
    )
    region: Text | None = Field(default=None, description="Region of that bucket.", examples=["us-east-1"])
    access_key_id_env: SecretName = Field(
        default="AWS_ACCESS_KEY_ID", description="Environment variable with the key id for that bucket."
    )
    secret_access_key_env: SecretName = Field(
        default="AWS_SECRET_ACCESS_KEY", description="Environment variable with its secret key."
    )
    session_token_env: SecretName = Field(
        default="AWS_SESSION_TOKEN", description="Environment variable with its session token, if it needs one."
    )
    lock_timeout: DurationOrZero = Field(
        default=120.0, description="How long a run waits for another one that works on the same state."
    )


def state_store(
    terraform: TerraformConfig, checkpoint: CheckpointConfig, state: str | None = None
) -> StoreConfig | None:
    """Return the bucket of the states and how it is opened; None: they are on this machine.

    ``state`` stands for ``terraform.state``. A bucket of ``checkpoint`` keeps the settings that it has there.
    """
    place = terraform.state if state is None else state
    if place == "local":
        return None
    main = checkpoint.main
    if place == "store":
        return main.model_copy(update={"uri": f"{main.uri.rstrip('/')}/{BESIDE}"})
    known = next((one for one in (main, *checkpoint.replicas) if _bucket(one.uri) == _bucket(place)), None)
    if known is not None and not terraform.model_fields_set & set(_OWN_BUCKET):
        return known.model_copy(update={"uri": place})
    return StoreConfig(uri=place, **{name: getattr(terraform, name) for name in _OWN_BUCKET})


def terraform_findings(
    terraform: TerraformConfig, checkpoint: CheckpointConfig, job: str, environ: Mapping[str, str]
) -> Iterator[Finding]:
    """Yield what is wrong with the section, whose fields are right."""
    at: Loc = ("terraform", "state")
    if terraform.state == "store" and urlsplit(checkpoint.store).scheme == "file":
        message = "the checkpoint store is a directory, where Terraform has no lock that other machines see"
        yield at, message, "write local, s3://bucket/prefix or gs://bucket/prefix"
        return
    place = state_store(terraform, checkpoint)
    if place is None:
        return
    if inside(place, checkpoint.main.model_copy(update={"uri": f"{checkpoint.main.uri.rstrip('/')}/{job}"})):
        yield at, "the job's machines may write there", "write store, which is beside the jobs"
    yield from key_findings(("terraform",), terraform, environ)


def _bucket(uri: str) -> tuple[str, str]:
    parts = urlsplit(uri)
    return parts.scheme, parts.netloc
