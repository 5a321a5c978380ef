"""Google Cloud: plain HTTP at the custom endpoints of the environment, with the token that it names."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from provisioner.sandbox.stand_in import Cloud, Provider, State

ENDPOINTS: Final = {
    "compute": "GOOGLE_COMPUTE_CUSTOM_ENDPOINT",
    "iam": "GOOGLE_IAM_CUSTOM_ENDPOINT",
    "storage": "GOOGLE_STORAGE_CUSTOM_ENDPOINT",
}


def _open(config: State) -> Cloud:
    from provisioner.sandbox.stand_in.google.cloud import Cloud as GoogleCloud

    return GoogleCloud(config)


PROVIDER: Final = Provider(
    schema=Path(__file__).with_name("schema.json"),
    open=_open,
    endpoints=tuple(ENDPOINTS.values()),
    in_place={
        "google_compute_firewall": frozenset(
            {"allow", "deny", "description", "disabled", "priority", "source_ranges", "target_tags"}
        ),
        "google_compute_subnetwork": frozenset({"private_ip_google_access"}),
        "google_service_account": frozenset({"create_ignore_already_exists", "description", "display_name"}),
    },
    free=frozenset({"labels"}),
)
