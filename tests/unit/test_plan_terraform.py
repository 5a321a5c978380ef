"""``failover plan --terraform`` at Google Cloud: the written stack starts the very machine of the plan."""

from __future__ import annotations

import json
from pathlib import Path

from provisioner import planner
from provisioner.clouds import open_cloud
from provisioner.config import parse
from provisioner.controller.written_stack import spec
from provisioner.model import JobRef, Launch, tags
from provisioner.terraform.render import VARIABLES_FILE, write_stack

TEXT = """\
job: {name: digits, command: 'true'}
resources: {gpus: [T4]}
checkpoint: {store: s3://bucket/prefix}
fallback: [{gcp: {project: my-project, regions: [us-central1], machine_types: [n1-standard-8], disk_gb: 60}}]
"""
JOB = JobRef("digits", "0a1b2c3d")


def test_the_machine_of_the_plan_is_the_machine_of_the_stack(tmp_path):
    config = parse(TEXT.encode(), "failover.yaml", Path(), {})
    best = planner.plan(config, planner.catalog_offers(config)).ranked[0].offer
    launch = Launch(JOB, 3, "ab" * 16, "#!/bin/sh", 3600.0, tags(JOB, 3, "ab" * 16))
    cloud = open_cloud("gcp", job=JOB, config=config, directory=tmp_path, environ={})
    write_stack(tmp_path / "stack", spec(cloud, best, launch))
    values = json.loads((tmp_path / "stack" / VARIABLES_FILE).read_text("utf-8"))
    node = values["node"]
    assert (values["project"], values["create_by_terraform"], values["autodl_available"]) == ("my-project", True, False)
    assert node["zone"] == best.zone
    assert (node["machine_type"], node["accelerator"]) == ("n1-standard-8", {"type": "nvidia-tesla-t4", "count": 1})
    assert (node["spot"], node["max_run_s"], node["disk_gb"]) == (True, 3600, 60)
    assert node["name"] == "failover-digits-0a1b2c3d-e3-abababab"
    assert node["labels"]["failover-epoch"] == "3"
