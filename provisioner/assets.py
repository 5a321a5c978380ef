"""Where the files that are not Python live: Terraform modules, templates, examples.

In a wheel they are inside the package (``provisioner/_assets``); in a checkout they stand at the top level.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def path(name: str) -> Path:
    """Return the path of an asset, e.g. ``path("terraform/modules/aws_region")``. Raises FileNotFoundError."""
    for root in (_PACKAGE / "_assets", _PACKAGE.parent):
        candidate = root / name
        if candidate.exists():
            return candidate
    message = f"{name} is missing from this installation of gpu-failover"
    raise FileNotFoundError(message)
