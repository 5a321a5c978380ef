"""``failover plan --terraform DIR``: Terraform alone starts the machine, and the machine runs the job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from provisioner.checkpoint.store import Credentials, open_store
from provisioner.sandbox.client import BUCKET, open_box
from provisioner.sandbox.drill import JOB, Drill
from provisioner.terraform.provider import discover

SCENE = "name: terraform-only\nautodl: {stock: []}\nconfig: {fallback: [{aws: {regions: [us-east-1], market: spot}}]}\n"


def call(argv: list[str], environ: dict[str, str]) -> str:
    done = subprocess.run(
        argv, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{argv}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.slow
def test_apply_starts_the_machine_which_trains_to_the_end_and_ends_itself(tmp_path: Path) -> None:
    scene = tmp_path / "scene.yaml"
    scene.write_text(SCENE)
    with open_box(tmp_path / "cloud", scene) as box:
        environ = box.environ(os.environ, state=tmp_path / "state", provider="stand-in")
        config = Drill(scene, step_seconds=0.05).write_config(tmp_path, box)
        target = tmp_path / "stack"
        failover = [sys.executable, "-m", "provisioner.cli"]
        written = json.loads(call([*failover, "plan", str(config), "--terraform", str(target), "--json"], environ))
        assert written["offer"].startswith("aws/us-east-1/us-east-1a/g4dn.xlarge/spot")
        assert box.state()["launches"] == [], "a plan starts nothing"

        toolchain = discover(tmp_path / "toolchain", environ)
        terraform = [*toolchain.terraform, f"-chdir={target}"]
        env = {**environ, **toolchain.env}
        call([*terraform, "init", "-input=false"], env)
        call([*terraform, "apply", "-input=false", "-auto-approve"], env)
        (machine,) = box.state()["aws"]["instances"]
        assert (machine["type"], machine["market"]) == ("g4dn.xlarge", "spot")

        credentials = Credentials(box.access_key_id, box.secret_access_key)
        store = open_store(f"s3://{BUCKET}/jobs", endpoint=box.aws, region="us-east-1", credentials=credentials)
        until = time.monotonic() + 60
        while not (done := store.at(JOB).get("done.json")) and time.monotonic() < until:
            time.sleep(0.3)
        assert done is not None, box.state()
        assert json.loads(done)["final_step"] == 100
        while box.state()["machines"] and time.monotonic() < until:
            time.sleep(0.3)
        assert box.state()["machines"] == [], "the machine outlived its job"

        call([*terraform, "destroy", "-input=false", "-auto-approve"], env)
        assert box.state()["left"] == []
