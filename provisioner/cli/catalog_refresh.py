"""How each cloud is asked for its catalog: with the credentials and addresses of its own tools."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from provisioner.catalog import overlay, tables
from provisioner.catalog.overlay import Table
from provisioner.catalog.refresh import Done, Found, Missed
from provisioner.errors import CloudError, ConfigError, FailoverError
from provisioner.model import Money

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_GOOGLE = {
    "compute": ("GOOGLE_COMPUTE_CUSTOM_ENDPOINT", "https://compute.googleapis.com/compute/v1/", "compute/v1/"),
    "billing": ("GOOGLE_CLOUD_BILLING_CUSTOM_ENDPOINT", "https://cloudbilling.googleapis.com/v1/", "billing/v1/"),
}
"""Service -> variable of its address, as Google's Terraform provider names it; the usual address; our prefix."""
_TIMEOUT_S = 60.0
_TRIES = 4


class NoAccount(Exception):
    """A cloud cannot be asked: there are no credentials for it."""

    def __init__(self, cloud: str, why: str) -> None:
        """Keep what is missed."""
        super().__init__(why)
        self.missed = Missed(cloud, "everything", why)


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked for: with which environment, which AWS regions (none: all), as which project, at what time.

    ``done`` is told of each source as it ends.
    """

    environ: Mapping[str, str]
    regions: Sequence[str]
    project: str | None
    now: float
    done: Done


def ask_aws(question: Question) -> Found:
    """Ask AWS with the credentials of its tools. Raises NoAccount."""
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    from provisioner import catalog
    from provisioner.catalog.refresh import aws

    try:
        session: Any = boto3.Session()
        if session.get_credentials() is None:
            raise NoAccount("aws", "no credentials of the AWS tools (environment, profile or role)")
    except BotoCoreError as error:
        raise NoAccount("aws", f"the credentials cannot be used: {error}") from error
    config = Config(retries={"mode": "standard", "max_attempts": _TRIES}, connect_timeout=5, read_timeout=_TIMEOUT_S)
    regions = question.regions or [name for name in catalog.regions("aws") if not name.startswith(("cn-", "us-gov-"))]
    return aws.refresh(
        lambda service, region: session.client(service, region_name=region, config=config), regions,
        now=question.now, done=question.done,
    )  # fmt: skip


def ask_gcp(question: Question) -> Found:
    """Ask Google Cloud with the application default credentials, or a ready token. Raises NoAccount."""
    import httpx

    from provisioner.catalog.refresh import gcp

    token, project = _google(question)
    with httpx.Client(timeout=_TIMEOUT_S, headers={"Authorization": f"Bearer {token}"}) as http:
        return gcp.refresh(_get(http, question.environ), project, now=question.now, done=question.done)


def ask_autodl(question: Question) -> Found:
    """Ask AutoDL with AUTODL_TOKEN. Raises NoAccount."""
    from provisioner import catalog
    from provisioner.catalog.refresh import autodl
    from provisioner.clouds.autodl.client import AutodlClient
    from provisioner.clouds.autodl.wire import DEFAULT_BASE_URL, token_of

    try:
        token = token_of(question.environ)
    except FailoverError as error:
        raise NoAccount("autodl", str(error)) from error
    address = question.environ.get("AUTODL_BASE_URL") or DEFAULT_BASE_URL
    with closing(AutodlClient(token, address, patience_s=30.0, tries=_TRIES)) as client:

        def prices() -> Iterator[tuple[str, Money]]:
            for one in client.pro.instances():
                names = catalog.autodl_stock_names(one.spec)
                if one.status == "running" and names and one.gpu_count:
                    price = client.pro.snapshot(one.id).price_per_hour
                    if price is not None:
                        yield names[0], Money(price.amount / one.gpu_count, price.currency)

        return autodl.refresh(client.gpu_stock, prices, catalog.AUTODL_REGIONS, now=question.now, done=question.done)


READERS: Mapping[str, Callable[[Question], Found]] = {"autodl": ask_autodl, "aws": ask_aws, "gcp": ask_gcp}


def ask(clouds: Sequence[str], question: Question) -> Found:
    """Ask one cloud after the other; of one without credentials everything is missed."""
    read: dict[str, Table] = {}
    missed: list[Missed] = []
    for cloud in clouds:
        try:
            found = READERS[cloud](question)
        except NoAccount as error:
            missed.append(error.missed)
            continue
        read.update(found.tables)
        missed += found.missed
    return Found(read, tuple(missed))


def keep(read: Mapping[str, Table], environ: Mapping[str, str]) -> None:
    """Lay tables over what earlier refreshes found, in the cache directory. Raises ConfigError."""
    file = overlay.path(environ)
    try:
        overlay.write(file, tables.found().merged(read))
    except OSError as error:
        hint = "set FAILOVER_CACHE_DIR to a folder that can be written"
        raise ConfigError(f"{file}: cannot be written: {error.strerror}", hint=hint) from error
    tables.forget()


def _google(question: Question) -> tuple[str, str]:
    """Return a token and the project that asks."""
    token, project = question.environ.get("GOOGLE_OAUTH_ACCESS_TOKEN"), question.project
    if not token:
        import google.auth
        import google.auth.transport.requests
        from google.auth.exceptions import GoogleAuthError

        try:
            credentials: Any
            credentials, default_project = google.auth.default(scopes=[_SCOPE])
            credentials.refresh(google.auth.transport.requests.Request())
        except GoogleAuthError as error:
            raise NoAccount("gcp", f"no application default credentials: {type(error).__name__}") from error
        token, project = str(credentials.token), project or default_project
    if not project:
        raise NoAccount("gcp", "no project: give --project or GOOGLE_CLOUD_PROJECT")
    return token, project


def _get(http: Any, environ: Mapping[str, str]) -> Callable[[str, Mapping[str, str]], Mapping[str, Any]]:
    """Return what reads a path, again where Google is busy. Its errors name Google's own word and message."""
    import httpx
    from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

    addresses = {prefix: environ.get(variable) or usual for variable, usual, prefix in _GOOGLE.values()}

    def once(path: str, query: Mapping[str, str]) -> Mapping[str, Any]:
        prefix = next(prefix for prefix in addresses if path.startswith(prefix))
        answer = http.get(addresses[prefix].rstrip("/") + "/" + path.removeprefix(prefix), params=dict(query))
        if answer.status_code == 429 or answer.status_code >= 500:
            raise httpx.TransportError(f"HTTP {answer.status_code}")
        document = answer.json()
        if answer.status_code != 200:
            error = document.get("error", {})
            raise CloudError(f"{error.get('status') or answer.status_code}: {error.get('message', '')}")
        return dict(document)

    def get(path: str, query: Mapping[str, str]) -> Mapping[str, Any]:
        tries = Retrying(
            retry=retry_if_exception_type(httpx.TransportError), stop=stop_after_attempt(_TRIES), reraise=True,
            wait=wait_exponential(multiplier=0.2, max=5),
        )  # fmt: skip
        return tries(once, path, query)

    return get
