"""One look at a project, for ``failover doctor`` and ``check``: credentials, the project, the API. Changes nothing."""

from __future__ import annotations

from collections.abc import Mapping

from provisioner.clouds.gcp.api import Account
from provisioner.clouds.gcp.compute import Compute

LOOK_S = 10.0
"""How long a project that does not answer is asked again: somebody waits at the terminal."""


def look(project: str, environ: Mapping[str, str]) -> str:
    """Return a line about a project that answers. Raises CloudError with a hint."""
    quotas = Compute(Account(project, environ), for_s=LOOK_S).project_quotas()
    cards = quotas.get("GPUS_ALL_REGIONS")
    if cards is None:
        return f"project {project} answers"
    free = max(0.0, cards.limit - cards.usage)
    return f"project {project} answers; {free:g} of {cards.limit:g} GPUs are free to ask for"
