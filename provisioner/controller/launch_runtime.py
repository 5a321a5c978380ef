"""Whether a job's machines need a Python of their own, and whether one can be had: known before one is rented."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from provisioner.config import Config
from provisioner.config.names import is_loopback
from provisioner.controller.runtime_bundle import Bundle
from provisioner.errors import ConfigError

AUTODL_IMAGES = {
    "base-image-12be412037": "18.04",
    "base-image-u9r24vthlk": "20.04",
    "base-image-l374uiucui": "20.04",
    "base-image-l2t43iu6uk": "20.04",
    "base-image-0gxqmciyth": "18.04",
    "base-image-uxeklgirir": "20.04",
    "base-image-mbr2n4urrc": "20.04",
    "base-image-qkkhitpik5": "18.04",
    "base-image-h041hn36yt": "18.04",
    "base-image-7bn8iqhkb5": "20.04",
    "base-image-k0vep6kyq8": "16.04",
    "base-image-l2843iu23k": "20.04",
}
"""AutoDL's own images, and the Ubuntu in each. All of them have Python 3.8 or older."""


def wants_bundle(config: Config, environ: Mapping[str, str]) -> bool:
    """Say whether some machine may need the bundle. Machines of this computer have this Python."""
    if config.job.runtime != "auto":
        return config.job.runtime == "bundle"
    at_aws = any(block.aws for block in config.fallback)
    return (
        at_autodl(config)
        or (at_aws and not is_loopback(environ.get("AWS_ENDPOINT_URL", "")))
        or (any(block.gcp for block in config.fallback) and not _emulated(environ))
    )


def at_autodl(config: Config) -> bool:
    """Say whether the job may get a machine at the real AutoDL."""
    return config.primary is not None and not is_loopback(config.primary.autodl.base_url)


def check_autodl(config: Config, bundle: Bundle | None, problem: str) -> None:
    """Refuse a job whose node surely does not start on its image at AutoDL. Raises ConfigError.

    ``problem`` says why there is no bundle.
    """
    if config.primary is None or not at_autodl(config) or config.job.runtime == "installed":
        return
    image = config.primary.autodl.image_uuid
    ubuntu = AUTODL_IMAGES.get(image)
    if bundle is None and ubuntu:
        raise ConfigError(
            f"primary.autodl.image_uuid: {image} (Ubuntu {ubuntu}) has no Python 3.11, and a bundle cannot be made "
            f"here: {problem}",
            hint="make one on Linux (failover runtime build --output FILE) and name it in job.runtime_file",
        )


def pull_names(image: str, mirrors: tuple[str, ...]) -> list[str]:
    """Return what an image is called at each mirror, then its own name."""
    first, slash, rest = image.partition("/")
    has_host = bool(slash) and ("." in first or ":" in first or first == "localhost")
    path = rest if has_host else image
    if "/" not in path and (not has_host or first == "docker.io"):
        path = f"library/{path}"
    return [*(f"{mirror}/{path}" for mirror in mirrors), image]


def _emulated(environ: Mapping[str, str]) -> bool:
    endpoint = environ.get("GOOGLE_COMPUTE_CUSTOM_ENDPOINT", "")
    return bool(urlsplit(endpoint).hostname) and is_loopback(endpoint)
