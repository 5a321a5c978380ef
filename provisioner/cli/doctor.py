"""``failover doctor``: what is missing here, and the command that brings it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from provisioner.cli.output import print_json, print_table
from provisioner.errors import ExitCode, FailoverError

if TYPE_CHECKING:
    from provisioner.checkpoint.store import Store
    from provisioner.config import Config, StoreConfig

Verdict = Literal["ok", "warn", "fail", "skip"]

RETRY_S = 10.0
"""How long a store that does not answer is asked again: somebody waits at the terminal."""
ENGINE_S = 10.0
"""How long a container engine may take to say its version."""
CLOCK_S = 60.0
"""Requests are signed with the time: stores refuse them when two clocks differ by some minutes."""


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

    It writes one small object to each store and removes it again. Nothing that costs is started. Exit code 5 when
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
    yield from _of_machine(config, environ)
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
    for project in dict.fromkeys(block.gcp.project for block in config.fallback if block.gcp):
        yield _run("gcp", partial(_gcp, project, environ))
    for index, block in enumerate(config.fallback):
        if block.gcp and not block.gcp.image and not config.job.image:
            yield Finding(
                f"fallback[{index}].gcp",
                "warn",
                "the job runs on Google's Deep Learning image, which has drivers and CUDA and no framework",
                "set job.image to your training image, or image to one that holds what the command needs",
            )
    yield from _stores(config, environ)
    yield from _run_all("terraform state", lambda: _states(config, environ))


def _of_machine(config: Config | None, environ: Mapping[str, str]) -> Iterator[Finding]:
    version = ".".join(str(part) for part in sys.version_info[:3])
    yield Finding("python", "ok", version)
    uses_aws = config is None or any(block.aws for block in config.fallback)
    yield _run("terraform", lambda: _terraform(environ)) if uses_aws else Finding("terraform", "skip", "not needed")
    if config is not None and any(block.gcp for block in config.fallback):
        yield _run("terraform google", lambda: _terraform(environ, "google"))
    yield _run("docker", _docker)
    if uses_aws:
        yield _metadata(environ)


def _run(check: str, look: Callable[[], Finding]) -> Finding:
    return _run_all(check, lambda: [look()])[0]


def _run_all(check: str, look: Callable[[], list[Finding]]) -> list[Finding]:
    try:
        return look()
    except FailoverError as error:
        return [Finding(check, "fail", str(error), error.hint)]


def _docker() -> Finding:
    client = shutil.which(os.environ.get("DOCKER") or "docker")
    if client is None:
        return Finding("docker", "skip", "not here; only `make image` and drills in containers want it")
    try:
        asked = subprocess.run(
            [client, "info", "--format", "{{.ServerVersion}}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ENGINE_S,
            check=False,
        )
        version = asked.stdout.strip() if asked.returncode == 0 else ""
    except (OSError, subprocess.TimeoutExpired):
        version = ""
    if not version:
        found = f"no engine answers {client}; only `make image` and drills in containers want one"
        return Finding("docker", "skip", found, "start it, or give yourself the right to use it")
    return Finding("docker", "ok", f"{version} ({client})")


def _metadata(environ: Mapping[str, str]) -> Finding:
    """Where this is an EC2 machine, credentials and notices come from its metadata service."""
    from provisioner.node.notices.ec2 import DEFAULT_ENDPOINT, HOP_LIMIT, Ec2
    from provisioner.node.notices.source import SourceAway

    if environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return Finding("ec2 metadata", "skip", "AWS_EC2_METADATA_DISABLED is set")
    try:
        Ec2(environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or DEFAULT_ENDPOINT).watch(0)
    except SourceAway as away:
        if str(away) != HOP_LIMIT:
            return Finding("ec2 metadata", "skip", f"not an EC2 machine ({away})")
        found, _, fix = HOP_LIMIT.partition("; ")
        return Finding("ec2 metadata", "warn", found, f"{fix}, or run the container with --network host")
    return Finding("ec2 metadata", "ok", "answers with a token")


def _terraform(environ: Mapping[str, str], provider: str = "aws") -> Finding:
    from provisioner.controller.directory import state_root
    from provisioner.terraform.provider import discover

    found = discover(state_root(environ) / "doctor", environ, provider)
    return Finding(
        "terraform" if provider == "aws" else f"terraform {provider}",
        "ok",
        f"{found.version} ({found.terraform[0]}); {found.note}",
    )


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


def _gcp(project: str, environ: Mapping[str, str]) -> Finding:
    from provisioner.clouds.gcp.probe import look

    return Finding("gcp", "ok", look(project, environ))


def _stores(config: Config, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Try each store with one small object, and look for the keys of machines that have no role for it."""
    from provisioner.clouds.aws.cloud import job_prefix
    from provisioner.controller.access import node_credentials, open_as_controller

    settings = config.checkpoint
    clouds = [cloud for block in config.fallback for cloud in ("aws", "gcp") if getattr(block, cloud)]
    clouds = sorted({*clouds, *(["autodl"] if config.primary else [])})
    has_role = job_prefix(config, environ)[0] is not None
    for number, store in enumerate([settings.main, *settings.replicas]):
        check = f"replicas[{number - 1}]" if number else "store"

        def look(check: str = check, store: StoreConfig = store) -> list[Finding]:
            return _probed(check, open_as_controller(store, environ, retry_s=RETRY_S).at(config.job.name))

        yield from _run_all(check, look)
        if not number:
            yield from _run_all("store links", partial(_linked, store, environ))
        for cloud in clouds:
            role = cloud == "aws" and not number and has_role
            try:
                node_credentials(store, cloud, environ, role=role)
            except FailoverError as error:
                yield Finding(f"{check} key", "fail", str(error), error.hint)


def _states(config: Config, environ: Mapping[str, str]) -> list[Finding]:
    """Try the bucket of Terraform's states: its lock is a write that succeeds only where there is no object."""
    from provisioner.checkpoint.probe import probe
    from provisioner.clouds.states import lock_problem
    from provisioner.config import state_store
    from provisioner.controller.access import open_as_controller

    place = state_store(config.terraform, config.checkpoint)
    if place is None:
        return [Finding("terraform state", "ok", "on this machine, for one controller")]
    store = open_as_controller(place, environ, retry_s=RETRY_S)
    problem = lock_problem(probe(store).conditional, store.uri)
    if problem:
        fix = "set terraform.state to local, or to a bucket that honours them"
        return [Finding("terraform state", "fail", problem, fix)]
    return [Finding("terraform state", "ok", f"{store.uri}: read, written and locked")]


def _linked(store: StoreConfig, environ: Mapping[str, str]) -> list[Finding]:
    """Find nothing where a link can be made, as every machine needs one to start. Raises FailoverError."""
    from provisioner.controller.access import open_as_controller

    open_as_controller(store, environ, retry_s=RETRY_S).sign("spec.json", 60.0)
    return []


def _probed(check: str, store: Store) -> list[Finding]:
    from provisioner.checkpoint.probe import probe

    found = probe(store)
    detail = f"{store.uri}: writes, reads, lists, deletes"
    findings = [Finding(check, "ok", detail if found.line else f"{detail}, creates only if absent")]
    if found.line:
        fix = "start one controller a job; a store that honours them keeps a second node out from the first moment"
        findings.append(Finding(f"{check} fence", "warn", found.line, fix))
    if abs(skew := round(found.clock_skew_s)) > CLOCK_S:
        ahead = "ahead of" if skew > 0 else "behind"
        told = f"the store's clock is {abs(skew)} s {ahead} this machine's"
        findings.append(Finding(f"{check} clock", "warn", told, "set this machine's clock, e.g. with chrony or ntpd"))
    return findings
