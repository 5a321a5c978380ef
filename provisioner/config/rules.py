"""Mistakes that no single field can show: values that contradict each other, this machine or the environment."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from provisioner import catalog
from provisioner.config.data import data_findings
from provisioner.config.mistakes import Loc
from provisioner.config.models import Config
from provisioner.config.names import is_loopback
from provisioner.config.places import AutodlConfig, AwsConfig, GcpConfig
from provisioner.config.stores import Finding, Machines, store_findings
from provisioner.config.terraform import terraform_findings
from provisioner.config.values import duration_text, short


def findings(config: Config, environ: Mapping[str, str], directory: Path) -> Iterator[Finding]:
    """Yield what is wrong with a configuration whose fields are right. ``directory`` is the one of the file."""
    yield from _variables(config, environ)
    yield from _workdir(config, directory)
    yield from _image(config, environ)
    yield from _runtime(config, directory)
    yield from store_findings(config.checkpoint, _machines(config, environ), environ)
    yield from terraform_findings(config.terraform, config.checkpoint, config.job.name, environ)
    yield from data_findings(config.data, _machines(config, environ), environ)
    yield from _patience(config)
    if config.primary is not None:
        yield from _autodl(config, config.primary.autodl)
    for number, entry in enumerate(config.fallback):
        yield from _zones(("fallback", number, entry.cloud), entry.aws or entry.gcp)


def _zones(at: Loc, entry: AwsConfig | GcpConfig | None) -> Iterator[Finding]:
    if entry is None:
        return
    for index, zone in enumerate(entry.zones):
        if not any(zone.startswith(region) for region in entry.regions):
            message = f"{short(zone)} is in none of the regions of this entry"
            yield (*at, "zones", index), message, "add its region to regions"


def _variables(config: Config, environ: Mapping[str, str]) -> Iterator[Finding]:
    seen: set[str] = set()
    for index, name in enumerate(config.job.secrets):
        loc: Loc = ("job", "secrets", index)
        if name in config.job.env:
            yield loc, f"{name} stands under job.env too", "keep it here only, so that its value stays out of the file"
        elif name in seen:
            yield loc, f"{name} stands here twice", "keep one"
        elif not environ.get(name):
            yield loc, f"the environment variable {name} is not set", f"export {name} before you start failover"
        seen.add(name)


def _workdir(config: Config, directory: Path) -> Iterator[Finding]:
    if config.job.workdir is None or (directory / config.job.workdir).is_dir():
        return
    yield (
        ("job", "workdir"),
        f"there is no directory {short(config.job.workdir)}",
        "paths begin at the directory of this file",
    )


def _image(config: Config, environ: Mapping[str, str]) -> Iterator[Finding]:
    job = config.job
    login, mirrors = ("job", "image_login"), ("job", "image_mirrors")
    stored = (job.image or "").startswith("store://")
    if job.image is None or stored:
        why = "there is no job.image" if job.image is None else "an image in the store is not pulled"
        yield from (
            (loc, why, "remove it") for loc, value in ((login, job.image_login), (mirrors, job.image_mirrors)) if value
        )
    if stored and not re.fullmatch(r"store://[A-Za-z0-9][A-Za-z0-9._/-]*[A-Za-z0-9]", job.image or ""):
        yield ("job", "image"), f"{short(job.image or '')} names no object", "write store://images/train.tar.gz"
    if job.image_login is None:
        return
    name = job.image_login.secret
    if not environ.get(name):
        at: Loc = ("job", "image_login", "secret")
        yield at, f"the environment variable {name} is not set", f"export {name} before you start failover"
    elif "\n" in environ[name].strip():
        yield ("job", "image_login", "secret"), f"{name} holds several lines", "a password is one line"


def _runtime(config: Config, directory: Path) -> Iterator[Finding]:
    job = config.job
    at: Loc = ("job", "runtime_file")
    if job.runtime_file is None:
        return
    if job.runtime == "installed":
        yield at, "job.runtime: installed takes no bundle", "remove one of them"
    if not (directory / job.runtime_file).is_file():
        yield at, f"there is no file {short(job.runtime_file)}", "paths begin at the directory of this file"


def _machines(config: Config, environ: Mapping[str, str]) -> Machines:
    """Name the clouds whose machines are elsewhere. An emulator's are here."""
    far = []
    if config.primary is not None and not is_loopback(config.primary.autodl.base_url):
        far.append("AutoDL")
    if any(block.aws for block in config.fallback) and not is_loopback(environ.get("AWS_ENDPOINT_URL", "")):
        far.append("AWS")
    if any(block.gcp for block in config.fallback):
        far.append("GCP")
    return Machines(tuple(far))


def _patience(config: Config) -> Iterator[Finding]:
    policy = config.policy
    if policy.lost_after is not None and policy.lost_after < 3 * policy.heartbeat:
        message = f"{duration_text(policy.lost_after)} is less than three heartbeats"
        yield ("policy", "lost_after"), message, f"write at least {duration_text(3 * policy.heartbeat)}, or auto"
    if policy.hung_after is not None and policy.hung_after < 3 * policy.heartbeat:
        message = f"{duration_text(policy.hung_after)} is less than three heartbeats, and most steps take longer"
        yield ("policy", "hung_after"), message, f"write at least {duration_text(3 * policy.heartbeat)}, or auto"
    if policy.ttl <= policy.boot_timeout:
        message = f"a machine would end after {duration_text(policy.ttl)}, before it must have started"
        yield ("policy", "ttl"), message, f"write more than boot_timeout, {duration_text(policy.boot_timeout)}"
    if config.checkpoint.every is not None and config.checkpoint.every >= policy.ttl:
        message = f"no checkpoint would be made within policy.ttl, {duration_text(policy.ttl)}"
        yield ("checkpoint", "every"), message, "write less, or auto"


def _autodl(config: Config, autodl: AutodlConfig) -> Iterator[Finding]:
    at: Loc = ("primary", "autodl")
    names = autodl.gpus or config.resources.gpus
    if not autodl.gpus and names and not any(catalog.autodl_stock_names(name) for name in names):
        message = f"AutoDL has none of the cards of resources.gpus ({', '.join(names)})"
        yield (*at, "gpus"), message, "name cards that it has, e.g. gpus: [RTX 4090D]"
    if autodl.mode != "pro":
        return
    for index, region in enumerate(autodl.regions):
        if region not in catalog.AUTODL_PRO_REGIONS:
            only = " and ".join(catalog.AUTODL_PRO_REGIONS)
            yield (*at, "regions", index), f"Pro accepts only {only}", f"remove {region}, or leave the list empty"
    for index, name in enumerate(autodl.gpus):
        if not catalog.autodl_pro_specs(name):
            has = ", ".join(name for name in catalog.gpu_names() if catalog.autodl_pro_specs(name))
            yield (*at, "gpus", index), f"Pro has no {short(name)}", f"it has {has}"
    if config.resources.count > 4:
        message = f"Pro machines have at most 4 cards, the job asks for {config.resources.count}"
        yield (*at, "mode"), message, "ask for fewer under resources.count, or use elastic"
