"""The job that a storm strikes: its scenario, and the way to its clouds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.chaos.schedules import Schedule

STEP_SECONDS = 0.1
_MARKET: dict[str, dict[str, Any]] = {
    "aws": {"aws": {"regions": ["us-east-1"], "market": "spot-then-on-demand", "max_price": "5 USD"}},
    "gcp": {
        "gcp": {
            "project": "sandbox-project",
            "regions": ["us-central1"],
            "machine_types": ["n1-standard-4+1xT4"],
            "market": "spot",
        }
    },
}


def scenario(schedule: Schedule, path: Path) -> Path:
    """Write the drill's scenario: who has machines, and how patient the job is."""
    policy: dict[str, Any] = {"poll": "1s", "lost_after": "8s", "boot_timeout": "60s", "retry_for": "0s"}
    if schedule.failback:
        policy["failback"] = {"after": "2s", "every": "1s", "again": "5s"}
    home: dict[str, Any] = {} if schedule.home == "none" else {"autodl": {"mode": schedule.home}}
    if schedule.home == "elastic":
        home["autodl"]["regions"] = ["westDC3"]
    config: dict[str, Any] = {"policy": policy, "fallback": [_MARKET[schedule.fallback]]}
    if schedule.fallback == "gcp":
        config["resources"] = {"gpus": ["T4", "RTX 4090"]}
    if home:
        config["primary"] = home
    stock = [] if schedule.home == "none" else [{"region": "westDC3", "gpu": "RTX 4090D", "idle": 2}]
    value = {"name": f"storm-{schedule.seed}", "step_seconds": STEP_SECONDS, "config": config}
    path.write_text(yaml.safe_dump({**value, "autodl": {"stock": stock}}), "utf-8")
    return path


def through(urls: Mapping[str, str], box: Mapping[str, str], value: str) -> str:
    """Return the value of a variable with the doors of the clouds in place of the clouds."""
    for cloud, url in urls.items():
        value = value.replace(box[cloud], url)
    return value


def point_at(config: Path, *, store: str, autodl: str) -> None:
    value = yaml.safe_load(config.read_text("utf-8"))
    value["checkpoint"]["endpoint"] = store
    if "autodl" in value.get("primary", {}):
        value["primary"]["autodl"]["base_url"] = autodl
    config.write_text(yaml.safe_dump(value, sort_keys=False, allow_unicode=True), "utf-8")
