"""failover.yaml: read, checked and turned into frozen values.

``load`` gives a ``Config`` or raises ``ConfigMistakes`` (a ``ConfigError``) with one line for each mistake.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from provisioner.config.checkpoint import CheckpointConfig, KeepBestConfig, StoreConfig
from provisioner.config.document import MAX_BYTES, Unreadable, dotted, read
from provisioner.config.explain import explain
from provisioner.config.failback import FailbackConfig
from provisioner.config.fit import FitConfig
from provisioner.config.mistakes import ConfigMistakes, Mistake
from provisioner.config.models import Config, EstimateConfig, JobConfig, PolicyConfig, ResourcesConfig
from provisioner.config.places import (
    AutodlConfig,
    AwsConfig,
    FallbackConfig,
    GcpConfig,
    LocalConfig,
    PrepaidConfig,
    PrimaryConfig,
)
from provisioner.config.rules import findings
from provisioner.config.terraform import TerraformConfig, state_place, state_store

__all__ = [
    "MAX_BYTES",
    "AutodlConfig",
    "AwsConfig",
    "CheckpointConfig",
    "Config",
    "ConfigMistakes",
    "EstimateConfig",
    "FailbackConfig",
    "FallbackConfig",
    "FitConfig",
    "GcpConfig",
    "JobConfig",
    "KeepBestConfig",
    "LocalConfig",
    "Mistake",
    "PolicyConfig",
    "PrepaidConfig",
    "PrimaryConfig",
    "ResourcesConfig",
    "StoreConfig",
    "TerraformConfig",
    "content_of",
    "load",
    "parse",
    "runtime_file",
    "state_place",
    "state_store",
    "workdir",
]


def load(path: Path, environ: Mapping[str, str] | None = None) -> Config:
    """Read and check a file. ``environ`` stands for the environment. Raises ConfigMistakes."""
    return parse(content_of(path), str(path), path.parent, os.environ if environ is None else environ)


def content_of(path: Path) -> bytes:
    """Read a file once, to keep what was checked, whoever saves it meanwhile. Raises ConfigMistakes."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        hint = "`failover init` writes one to begin with"
        raise ConfigMistakes([Mistake(str(path), None, "", "there is no such file", hint)]) from None
    except OSError as error:
        raise ConfigMistakes([Mistake(str(path), None, "", f"cannot be read: {error.strerror}")]) from None


def parse(content: bytes, file: str, directory: Path, environ: Mapping[str, str], *, for_start: bool = True) -> Config:
    """Check the content of a file. ``file`` is its name in errors, ``directory`` where its paths begin.

    ``for_start`` False is for looking after a job that was started before: what only a start needs is not asked for.
    """
    try:
        document = read(content, file)
    except Unreadable as error:
        raise ConfigMistakes(error.mistakes) from None
    try:
        config = Config.model_validate_json(json.dumps(document.data))
    except ValidationError as error:
        raise ConfigMistakes(explain(error.errors(include_url=False), document, file, Config)) from None
    if not for_start:
        return config
    found = [
        Mistake(file, document.line(loc), dotted(loc), message, hint)
        for loc, message, hint in findings(config, environ, directory)
    ]
    if found:
        raise ConfigMistakes(found)
    return config


def workdir(config: Config, path: Path) -> Path | None:
    """Return the directory that the job takes along; ``path`` is the file's."""
    return None if config.job.workdir is None else (path.parent / config.job.workdir).resolve()


def runtime_file(config: Config, path: Path) -> Path | None:
    """Return the bundle that the job brings; ``path`` is the file's."""
    return None if config.job.runtime_file is None else (path.parent / config.job.runtime_file).resolve()
