"""The list ``data``: what a machine brings to its disk before the command starts."""

# Annotations are kept as they are, not as text: pydantic would read each text anew at every start.

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from provisioner.config.checkpoint import StoreConfig
from provisioner.config.mistakes import Loc
from provisioner.config.names import HttpUrl, SecretName, is_loopback
from provisioner.config.section import Section
from provisioner.config.stores import Finding, Machines
from provisioner.config.values import Text, matching, mistake, short

ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst", ".zip")
_SIGNED = re.compile(r"(^|&)(x-amz-signature|x-goog-signature|signature|sig|token|access_token)=", re.IGNORECASE)
_BUCKET = r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]"
_KEY_FIELDS = ("access_key_id_env", "secret_access_key_env", "session_token_env")


def _source(text: str) -> str:
    parts = urlsplit(text)
    if parts.username or parts.password:
        hint = "remove them: the controller makes links to s3:// and gs:// with its own account; https:// has no login"
        raise mistake("the address holds credentials", hint)
    if parts.scheme not in {"s3", "gs", "file", "https", "http"}:
        what = f"no data comes from {short(parts.scheme + '://')}" if "://" in text else f"{short(text)} is no address"
        raise mistake(what, "write s3://bucket/folder/, gs://bucket/folder/, https://host/file or file:///folder")
    if parts.scheme in {"https", "http"}:
        return _web(text)
    if parts.query or parts.fragment:
        raise mistake(f"{short(text)} has a query or fragment", "write only bucket and key")
    if parts.scheme == "file" and (parts.netloc or not parts.path.startswith("/")):
        raise mistake(f"{short(text)} is not an absolute path", "write three slashes: file:///folder")
    if parts.scheme != "file" and re.fullmatch(_BUCKET, parts.netloc) is None:
        raise mistake(f"{short(parts.netloc)} is not a bucket name", "use 3 to 63 lower-case letters, digits, - and .")
    if parts.scheme != "file" and not parts.path:
        raise mistake(f"{short(text)} names no folder and no file", f"write {text}/ for the whole bucket")
    return text


def _web(text: str) -> str:
    parts = urlsplit(text)
    if not parts.hostname:
        raise mistake("this is not a URL", "write it as https://host/file.tar")
    if _SIGNED.search(parts.query):
        what = "the URL carries a signature or a token (not shown here), which must not stand in a file"
        raise mistake(what, "name the object as s3:// or gs://: links to it are made for each machine")
    if parts.path.endswith("/") or not parts.path:
        raise mistake("a web server gives no list of its files", "name one file, e.g. an archive with unpack: true")
    return text


class DataConfig(Section):
    """Data for the command: a folder of a bucket, one file, or an archive. It lies in `FAILOVER_DATA_DIR/<to>`."""

    source: Annotated[str, AfterValidator(_source)] = Field(
        alias="from",
        description="`s3://bucket/folder/` or `gs://bucket/folder/` (all below it), the same without the last slash "
        "(one object), `https://host/file`, or `file:///folder` when all machines are this one.",
        examples=["s3://my-bucket/digits/"],
    )
    to: Annotated[
        str,
        matching(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}", "is not a folder's name", "use letters, digits, ., _ and -"),
    ] = Field(description="Folder below `FAILOVER_DATA_DIR`.", examples=["digits"])
    sha256: (
        Annotated[str, matching(r"[0-9a-f]{64}", "is not a SHA-256", "write 64 lower-case hex digits: sha256sum FILE")]
        | None
    ) = Field(default=None, description="SHA-256 of the one file. Left out, its size and its ETag must do.")
    unpack: bool = Field(
        default=False,
        description="The one file is an archive (tar, also with gzip, bzip2, xz or zstd; zip): unpack it.",
    )
    endpoint: HttpUrl | None = Field(
        default=None,
        description="URL of an S3-compatible service; null for the cloud's own. Machines must reach it too.",
        examples=["https://oss-cn-hangzhou.aliyuncs.com"],
    )
    region: Text | None = Field(default=None, description="Region of the bucket.", examples=["us-east-1"])
    access_key_id_env: SecretName = Field(
        default="AWS_ACCESS_KEY_ID", description="Environment variable of the controller with the key id."
    )
    secret_access_key_env: SecretName = Field(
        default="AWS_SECRET_ACCESS_KEY", description="Environment variable of the controller with the secret key."
    )
    session_token_env: SecretName = Field(
        default="AWS_SESSION_TOKEN",
        description="Environment variable of the controller with the session token, if it needs one. Links end with "
        "the session.",
    )

    @property
    def scheme(self) -> str:
        """``s3``, ``gs``, ``file``, ``https`` or ``http``."""
        return urlsplit(self.source).scheme

    @property
    def is_folder(self) -> bool:
        """Whether it names all below a prefix of a bucket."""
        return self.scheme in {"s3", "gs"} and self.source.endswith("/")

    @property
    def shown(self) -> str:
        """The address without its query: fit for every log."""
        return urlsplit(self.source)._replace(query="", fragment="").geturl()

    @property
    def store(self) -> StoreConfig:
        """The bucket's folder that holds it, and how the controller opens it."""
        return StoreConfig(
            uri=self.source.rstrip("/") if self.is_folder else self.source.rpartition("/")[0],
            endpoint=self.endpoint,
            region=self.region,
            access_key_id_env=self.access_key_id_env,
            secret_access_key_env=self.secret_access_key_env,
            session_token_env=self.session_token_env,
        )

    @model_validator(mode="after")
    def _one_file(self) -> Self:
        if self.is_folder and (self.sha256 or self.unpack):
            what = "sha256" if self.sha256 else "unpack"
            raise mistake(f"{what} goes with one file, and {short(self.source)} is a folder", "name a file without /")
        if self.scheme == "http" and not self.sha256 and not is_loopback(self.source):
            raise mistake("plain http proves nothing about what comes", "write https://, or add its sha256")
        return self


def data_findings(data: tuple[DataConfig, ...], machines: Machines, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield what is wrong between entries, or between an entry and this machine."""
    folders: dict[str, int] = {}
    sources: dict[tuple[str, str | None], int] = {}
    for number, entry in enumerate(data):
        at: Loc = ("data", number)
        if (first := folders.setdefault(entry.to, number)) != number:
            yield (*at, "to"), f"data[{first}] goes to {short(entry.to)} too", "give each its own folder"
        if (first := sources.setdefault((entry.source, entry.endpoint), number)) != number:
            yield (*at, "from"), f"this is data[{first}] once more", "keep one"
        if entry.scheme == "file" and machines.names:
            message = f"machines at {machines} cannot reach a folder of this machine"
            yield (*at, "from"), message, "copy it into a bucket, and write s3://bucket/folder/"
        if entry.unpack and not urlsplit(entry.source).path.lower().endswith(ARCHIVES):
            yield (
                (*at, "unpack"),
                f"{short(entry.shown)} is no archive by its name",
                f"it ends in {', '.join(ARCHIVES)}",
            )
        for field in _KEY_FIELDS:
            name = getattr(entry, field)
            if field in entry.model_fields_set and not environ.get(name):
                advice = f"export {name} before you start failover, or leave the key out"
                yield (*at, field), f"the environment variable {name} is not set", advice
