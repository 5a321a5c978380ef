"""``failover doctor``: what is missing here, and the command that brings it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from provisioner.cli.output import print_json, print_table
from provisioner.errors import ExitCode, FailoverError

if TYPE_CHECKING:
    from provisioner.config import Config

Verdict = Literal["ok", "warn", "fail", "skip"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check; ``fix`` says what to do, where there is something to do."""

    check: str
    verdict: Verdict
    detail: str
    fix: str = ""


@click.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def doctor(file: Path | None, *, as_json: bool) -> int:
    """Check this machine and, with FILE (default failover.yaml where there is one), the accounts and the store.

    It writes one small object to the store and removes it again. Nothing that costs is started. Exit code 5 when
    something that the job needs does not work.
    """
    from provisioner.config import load

    path = file or Path("failover.yaml")
    config = load(path) if file is not None or path.exists() else None
    findings = list(examine(config, os.environ))
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        rows = [(f.check, f.verdict, f.detail, f.fix) for f in findings]
        print_table(["check", "verdict", "found", "what to do"], rows)
    failed = any(finding.verdict == "fail" for finding in findings)
    return int(ExitCode.CLOUD_REFUSED if failed else ExitCode.DONE)


def examine(config: Config | None, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield one finding after the other. Without a configuration only this machine is looked at."""
    version = ".".join(str(part) for part in sys.version_info[:3])
    yield Finding("python", "ok", version)
    uses_aws = config is None or any(block.aws for block in config.fallback)
    yield _run("terraform", lambda: _terraform(environ)) if uses_aws else Finding("terraform", "skip", "not needed")
    docker = shutil.which("docker")
    yield Finding("docker", "ok" if docker else "skip", docker or "not here; only `make image` wants it")
    if config is None:
        yield Finding("failover.yaml", "skip", "none here", "failover init")
        return
    if config.primary is not None:
        yield _run("autodl", lambda: _autodl(config, environ))
    if any(block.aws for block in config.fallback):
        yield _run("aws", lambda: _aws(environ))
    for index, block in enumerate(config.fallback):
        if block.aws and not block.aws.ami and not config.job.image:
            yield Finding(
                f"fallback[{index}].aws",
                "warn",
                "the job runs on AWS's Base image, which has drivers and no Python packages",
                "set job.image to your training image, or ami to one that holds what the command needs",
            )
    for index, block in enumerate(config.fallback):
        if block.gcp:
            yield Finding(f"fallback[{index}].gcp", "warn", "Google Cloud is not in this version; passed over")
    yield _run("store", lambda: _store(config, environ))


def _run(check: str, look: Callable[[], Finding]) -> Finding:
    try:
        return look()
    except FailoverError as error:
        return Finding(check, "fail", str(error), error.hint)


def _terraform(environ: Mapping[str, str]) -> Finding:
    from provisioner.controller.directory import state_root
    from provisioner.terraform.provider import discover

    found = discover(state_root(environ) / "doctor", environ)
    return Finding("terraform", "ok", f"{found.version} ({found.terraform[0]}); {found.note}")


def _autodl(config: Config, environ: Mapping[str, str]) -> Finding:
    from provisioner.clouds.autodl.client import AutodlClient
    from provisioner.errors import Unauthorized

    assert config.primary is not None  # noqa: S101 - the caller has looked
    token = environ.get("AUTODL_TOKEN", "")
    if not token:
        raise Unauthorized("AUTODL_TOKEN is not set", hint="AutoDL: console > account > settings > developer token")
    with AutodlClient(token, config.primary.autodl.base_url, patience_s=20) as client:
        spendable = client.balance().spendable
    if spendable.amount <= 0:
        return Finding("autodl", "fail", f"{spendable} to spend", "recharge the AutoDL account")
    return Finding("autodl", "ok", f"{spendable} to spend")


def _aws(environ: Mapping[str, str]) -> Finding:
    import boto3
    from botocore.config import Config as BotoConfig
    from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

    settings = BotoConfig(connect_timeout=5, read_timeout=15, retries={"total_max_attempts": 2})
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    try:
        found = boto3.client("sts", region_name=region, config=settings).get_caller_identity()
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "refused")
        return Finding("aws", "fail", f"AWS refuses these credentials: {code}", "aws sts get-caller-identity")
    except HTTPClientError as error:
        return Finding("aws", "fail", f"AWS does not answer: {type(error).__name__}", "check the network and proxies")
    except BotoCoreError as error:
        return Finding(
            "aws", "fail", f"no AWS credentials: {type(error).__name__}", "aws configure, or AWS_PROFILE=..."
        )
    return Finding("aws", "ok", f"account {found['Account']}")


def _store(config: Config, environ: Mapping[str, str]) -> Finding:
    """Write, read, list and delete; find out whether the store honours create-if-absent."""
    import secrets

    from provisioner.controller.launch import open_job_store

    store = open_job_store(config, environ)
    key = f"doctor/{secrets.token_hex(8)}"
    store.put(key, b"1")
    try:
        if store.get(key) != b"1" or key not in [found.key for found in store.objects("doctor")]:
            return Finding("store", "fail", f"{store.uri}: what was written is not read back", "use another store")
        conditional = _honours_create(store, key)
    finally:
        store.delete([key])
    detail = f"{store.uri}: writes, reads, lists, deletes"
    if conditional:
        return Finding("store", "ok", f"{detail}, creates only if absent")
    return Finding(
        "store", "warn", f"{detail}; ignores create-if-absent, so only the epoch in each path keeps nodes apart"
    )


def _honours_create(store: object, key: str) -> bool:
    from provisioner.checkpoint.store import Store
    from provisioner.errors import StoreError

    assert isinstance(store, Store)  # noqa: S101 - imported here to keep --help quick
    try:
        return not store.create(key, b"2")
    except StoreError:
        return False  # refused outright, as Aliyun OSS does
