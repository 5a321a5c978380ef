"""obstore's configuration for each kind of store. No request is made here.

obstore reads variables of the process's environment by itself and lets some of them win (``AWS_SESSION_TOKEN`` beside
a key that is no session, ``AWS_ENDPOINT_URL_S3`` over the endpoint that it was given). What is decided here is
therefore always said in full.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import SplitResult, quote, urlsplit

from obstore import exceptions as refused
from obstore.store import GCSStore, LocalStore, MemoryStore, S3Store

from provisioner.checkpoint.credentials import Credentials, NoKeyError, google_kind
from provisioner.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Credential

    from provisioner.checkpoint.credentials import Renewed

Raw: TypeAlias = S3Store | GCSStore | LocalStore | MemoryStore

CONNECT_S = 5.0
QUIET_S = 30.0
"""A request to which nothing comes for so long is given up, in seconds. Long writes are exempt: nothing is heard
while they are sent."""
SLOW_READ = 5
"""How many times longer than a write a read may take while bytes come."""

_VIRTUAL_HOST_ONLY = (".aliyuncs.com", ".myqcloud.com", ".amazonaws.com", ".amazonaws.com.cn")
_ROLES = {
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "container_credentials_relative_uri",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI": "container_credentials_full_uri",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "container_authorization_token_file",
    "AWS_WEB_IDENTITY_TOKEN_FILE": "web_identity_token_file",
    "AWS_ROLE_ARN": "role_arn",
    "AWS_ROLE_SESSION_NAME": "role_session_name",
    "AWS_ENDPOINT_URL_STS": "aws_endpoint_url_sts",
}
"""Where containers and service accounts (ECS, EKS) get a role: the variables of AWS's tools, and obstore's names."""
_ANONYMOUS = '{"disable_oauth": true, "client_email": "", "private_key": "", "private_key_id": ""}'
_GOOGLE = "https://storage.googleapis.com"


@dataclass(frozen=True, slots=True)
class Opened:
    """A store as obstore has it. ``patient`` is for long writes; ``prefix`` ends in ``/`` or is empty.

    ``plain_links``: where objects are read without a key, for an emulator that knows none. ``bucket_in_host``: the
    endpoint to try where the service turns out to refuse the bucket in the path.
    """

    quick: Raw
    patient: Raw
    prefix: str = ""
    plain_links: str = ""
    bucket_in_host: str = ""


def refuse_cut(uri: str) -> None:
    """Raise ConfigError for a URI of which only a part would be taken for the place."""
    if "?" in uri or "#" in uri:
        raise ConfigError(f"{uri}: ? and # cannot be part of a store's address", hint="choose another prefix")


def opened(
    uri: str,
    *,
    endpoint: str | None,
    region: str | None,
    credentials: Credentials | Renewed | None,
    timeout_s: float,
    environ: Mapping[str, str],
) -> Opened:
    """Configure obstore for a URI. Raises ConfigError, and StoreError for a directory that cannot be made."""
    refuse_cut(uri)
    parts = urlsplit(uri)
    prefix = f"{parts.path.strip('/')}/" if parts.path.strip("/") else ""
    if parts.scheme == "s3" and parts.netloc:
        return _s3(parts.netloc, prefix, endpoint, region, credentials, timeout_s, environ)
    if parts.scheme == "gs" and parts.netloc:
        return _gs(parts.netloc, prefix, endpoint, credentials, timeout_s, environ)
    if parts.scheme == "file" and parts.path.startswith("/") and not parts.netloc:
        raw = _directory(parts.path, uri)
        return Opened(raw, raw)
    if parts.scheme == "memory":
        memory = MemoryStore()
        return Opened(memory, memory, prefix)
    raise ConfigError(f"{uri}: no such store", hint="write s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or file:///DIRECTORY")


def _s3(
    bucket: str,
    prefix: str,
    endpoint: str | None,
    region: str | None,
    credentials: Credentials | Renewed | None,
    timeout_s: float,
    environ: Mapping[str, str],
) -> Opened:
    region = region or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    endpoint = endpoint or environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL") or aws_endpoint(region)
    address, in_host = bucket_address(bucket, _checked(f"s3://{bucket}", endpoint.rstrip("/")))
    config: dict[str, Any] = {
        "region": region,
        "endpoint": address,
        "aws_endpoint_url_s3": address,
        "virtual_hosted_style_request": in_host,
        "disable_bulk_delete": True,  # not known to every service that speaks S3
        "unsigned_payload": _private(urlsplit(address)),
    }
    credentials = credentials or _key_in(environ) or _none_at_all(environ)
    provider: Renewed | None = None
    if isinstance(credentials, Credentials):
        if credentials.service_account is not None:
            raise ConfigError(f"s3://{bucket}: this is a key for Google Cloud", hint="give an S3 key")
        provider = _fixed(credentials)
    else:
        provider = credentials
    if provider is not None:
        config["skip_signature"] = False
    else:
        config |= {setting: environ[name] for name, setting in _ROLES.items() if environ.get(name)}
        if metadata := environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT"):
            config["metadata_endpoint"] = metadata.rstrip("/")

    def store(client: ClientConfig) -> Raw:
        return S3Store(
            bucket,
            config=config,  # type: ignore[arg-type]
            client_options=client,
            retry_config=_retry(),
            credential_provider=provider,  # type: ignore[arg-type]
        )

    return _both(store, f"s3://{bucket}", prefix, timeout_s, address, bucket_in_host="" if in_host else bucket)


def _gs(
    bucket: str,
    prefix: str,
    endpoint: str | None,
    credentials: Credentials | Renewed | None,
    timeout_s: float,
    environ: Mapping[str, str],
) -> Opened:
    emulator = environ.get("STORAGE_EMULATOR_HOST") or ""
    if emulator and "://" not in emulator:
        emulator = f"http://{emulator}"
    address = (endpoint or emulator or _GOOGLE).rstrip("/")
    config: dict[str, Any] = {"base_url": address}
    provider: Renewed | None = None
    plain = ""
    if isinstance(credentials, Credentials):
        if credentials.service_account is None:
            raise ConfigError(f"gs://{bucket}: this is a key for S3", hint="give the JSON of a service account")
        config["service_account_key"] = credentials.service_account
    elif credentials is not None:
        provider = credentials
    elif emulator or urlsplit(address).scheme == "http":
        config["service_account_key"] = _ANONYMOUS
        plain = f"{address}/{quote(bucket)}"
    else:
        config |= _google_account(environ)

    def store(client: ClientConfig) -> Raw:
        return GCSStore(
            bucket,
            config=config,  # type: ignore[arg-type]
            client_options=client,
            retry_config=_retry(),
            credential_provider=provider,  # type: ignore[arg-type]
        )

    return _both(store, f"gs://{bucket}", prefix, timeout_s, address, plain_links=plain)


def _both(
    store: Callable[[ClientConfig], Raw],
    uri: str,
    prefix: str,
    timeout_s: float,
    address: str,
    *,
    plain_links: str = "",
    bucket_in_host: str = "",
) -> Opened:
    """Open a store twice: reqwest counts the time in which a body is sent as silence of the other side."""
    parts = urlsplit(_checked(uri, address))
    patient: ClientConfig = {
        "timeout": timedelta(seconds=timeout_s),
        "connect_timeout": timedelta(seconds=min(CONNECT_S, timeout_s)),
        "allow_http": parts.scheme == "http",
    }
    quick: ClientConfig = {**patient, "read_timeout": timedelta(seconds=min(QUIET_S, timeout_s))}
    if timeout_s > QUIET_S:  # silence is noticed, so a slow line may take its time
        quick["timeout"] = timedelta(seconds=SLOW_READ * timeout_s)
    hint = parts._replace(netloc=f"{bucket_in_host}.{parts.netloc}").geturl() if bucket_in_host else ""
    try:
        return Opened(store(quick), store(patient), prefix, plain_links, hint)
    except (refused.BaseError, ValueError) as error:
        kind = type(error).__name__  # its text may quote the key
    raise ConfigError(f"{uri}: the key or the address cannot be read ({kind})", hint="see the store's settings")


def _checked(uri: str, address: str) -> str:
    """Return the address of a service. The library below breaks off the process over a wrong one."""
    try:
        parts = urlsplit(address)
        plain = address.isascii() and address.isprintable() and " " not in address
        if parts.scheme in {"http", "https"} and parts.hostname and plain and (parts.port is None or parts.port > 0):
            return address
    except ValueError:  # a port that is no number, half an IPv6 address
        pass
    raise ConfigError(f"{uri}: {address!r} is no address of a service", hint="write https://HOST or http://HOST:PORT")


def _retry() -> RetryConfig:
    return {"max_retries": 0, "retry_timeout": timedelta(seconds=0)}  # ours are counted and classified: retries.py


def _directory(path: str, uri: str) -> LocalStore:
    """Open a directory, which is made. Raises StoreError."""
    try:
        Path(path).mkdir(mode=0o700, parents=True, exist_ok=True)
        return LocalStore(path)
    except (OSError, ValueError, refused.BaseError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
    raise StoreError(f"{uri}: {reason}", hint="name a directory that can be written")


def aws_endpoint(region: str) -> str:
    """Return the address of S3 at AWS in a region; China has its own."""
    return f"https://s3.{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}"


def bucket_address(bucket: str, endpoint: str) -> tuple[str, bool]:
    """Return the endpoint to use and whether the bucket stands in the host name. Some services refuse paths.

    An endpoint that begins with the bucket's name says so itself. A bucket with dots has no certificate of its own
    below such a host.
    """
    parts = urlsplit(endpoint)
    host = parts.hostname or ""
    if host.startswith(f"{bucket}."):
        return endpoint, True
    if host.endswith(_VIRTUAL_HOST_ONLY) and "." not in bucket:
        return parts._replace(netloc=f"{bucket}.{parts.netloc}").geturl(), True
    return endpoint, False


def _private(address: SplitResult) -> bool:
    """Say whether bytes need no signature of their own on the way: TLS guards them, or they stay on this machine.

    It saves 0.8 s of CPU a GiB. What is read is checked against our own hashes in any case.
    """
    if address.scheme == "https" or address.hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.hostname or "").is_loopback
    except ValueError:
        return False


def _key_in(environ: Mapping[str, str]) -> Credentials | None:
    key, secret = environ.get("AWS_ACCESS_KEY_ID"), environ.get("AWS_SECRET_ACCESS_KEY")
    return Credentials(key, secret, environ.get("AWS_SESSION_TOKEN") or None) if key and secret else None


def _none_at_all(environ: Mapping[str, str]) -> Renewed | None:
    """Ask no machine for its role where the variable of AWS's tools says that there is none."""
    if environ.get("AWS_EC2_METADATA_DISABLED", "").lower() != "true" or any(map(environ.get, _ROLES)):
        return None

    def refuse() -> S3Credential:
        raise NoKeyError

    return refuse


def _fixed(key: Credentials) -> Renewed:
    """Give obstore a key so that it looks for no part of it elsewhere."""

    def give() -> S3Credential:
        return {
            "access_key_id": key.access_key_id,
            "secret_access_key": key.secret_access_key,
            "token": key.session_token,
            "expires_at": None,
        }

    return give


def _google_account(environ: Mapping[str, str]) -> dict[str, str]:
    """Return where the account is, by the variables that Google's tools know; else obstore asks the machine's own."""
    if text := environ.get("GOOGLE_SERVICE_ACCOUNT_KEY"):
        return {"service_account_key": text}
    if path := environ.get("GOOGLE_SERVICE_ACCOUNT") or environ.get("GOOGLE_SERVICE_ACCOUNT_PATH"):
        return {"service_account": path}
    name = "GOOGLE_APPLICATION_CREDENTIALS"
    if not (path := environ.get(name)):
        return {}
    try:
        kind = google_kind(Path(path).read_text("utf-8"), name)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise ConfigError(f"{name}: {path}: {reason}", hint="name the JSON file of an account") from None
    if kind not in {"service_account", "authorized_user"}:
        raise ConfigError(
            f"{name}: credentials of the kind {kind} cannot be used here",
            hint="on a machine of Google Cloud unset it; elsewhere name the JSON file of a service account",
        )
    return {"application_credentials": path}
