"""The local cloud with real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from provisioner.clouds import open_cloud
from provisioner.clouds.base import Cloud, Request
from provisioner.clouds.local.cloud import LocalCloud
from provisioner.clouds.local.gpus import gpu_here
from provisioner.clouds.local.process import NodeProcess
from provisioner.model import Gpu, JobRef, Launch, Node, NodeState

JOB = JobRef("digits", "1a2b3c4d")


def eventually(true: Callable[[], bool], for_s: float = 10.0) -> bool:
    until = time.monotonic() + for_s
    while not true():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[LocalCloud]:
    made = LocalCloud(JOB, tmp_path, {"PATH": os.environ["PATH"], "AWS_SECRET_ACCESS_KEY": "canary"}, look=lambda: "")
    yield made
    for thing in made.owned():
        NodeProcess(tmp_path / "local" / thing.id).end(grace_s=0.1)


def launch(script: str, token: str = "t" * 32) -> Launch:
    return Launch(JOB, 1, token, f"#!/bin/bash\n{script}\n", 60.0)


def start(cloud: LocalCloud, script: str, token: str = "t" * 32) -> Node:
    node = cloud.claim(cloud.offers(Request())[0], launch(script, token))
    assert isinstance(node, Node)
    return node


def test_the_room_fulfils_the_contract_and_is_found_by_its_name(tmp_path: Path) -> None:
    cloud = open_cloud("local", job=JOB, config=None, directory=tmp_path, environ={})
    assert isinstance(cloud, Cloud)
    assert cloud.offers(Request())[0].price_per_hour is None


def test_one_token_starts_one_process_also_after_it_has_ended(cloud: LocalCloud, tmp_path: Path) -> None:
    script = f"echo start >> {tmp_path}/starts; sleep 600"
    first = start(cloud, script)
    assert replace(start(cloud, script), claimed_at=first.claimed_at) == first
    assert cloud.inspect(first) is NodeState.RUNNING
    assert eventually((tmp_path / "starts").exists)
    cloud.release(first)
    assert cloud.inspect(first) is NodeState.GONE
    start(cloud, script)
    assert cloud.inspect(first) is NodeState.GONE
    assert (tmp_path / "starts").read_text() == "start\n"


def test_a_claim_killed_between_start_and_record_is_found_again(cloud: LocalCloud, tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from provisioner.clouds.local.process import NodeProcess\n"
        "NodeProcess(Path(sys.argv[1])).start('echo start >> ../../starts; sleep 600', dict(os.environ))\n"
        "os.kill(os.getpid(), 9)"
    )
    directory = tmp_path / "local" / ("t" * 32)
    assert subprocess.run([sys.executable, "-c", code, str(directory)], check=False, timeout=30).returncode == -9
    node = start(cloud, "echo start >> ../../starts; sleep 600")
    assert cloud.inspect(node) is NodeState.RUNNING
    assert eventually((tmp_path / "starts").exists)
    assert (tmp_path / "starts").read_text() == "start\n"


def test_release_ends_what_fled_into_sessions_of_its_own(cloud: LocalCloud) -> None:
    node = start(cloud, "trap '' TERM; setsid sleep 600 & (setsid bash -c 'trap \"\" TERM; sleep 600' &) ; sleep 600")
    process = NodeProcess(Path(cloud._root) / node.id)
    process.end(grace_s=0.2)
    assert not process.alive()
    assert not cloud.owned()


def test_a_helper_left_behind_is_no_running_node_but_is_owned(cloud: LocalCloud) -> None:
    node = start(cloud, "sleep 600 & exit 0")
    assert eventually(lambda: cloud.inspect(node) is NodeState.GONE)
    assert [thing.id for thing in cloud.owned()] == [node.id]
    cloud.release(node)
    assert not cloud.owned()
    cloud.dismantle()
    assert not list(Path(cloud._root).iterdir())


def test_a_node_gets_no_credentials_and_cannot_switch_the_machine_off(cloud: LocalCloud, tmp_path: Path) -> None:
    node = start(cloud, f"env > {tmp_path}/env; shutdown -h now; poweroff; echo $? >> {tmp_path}/env")
    assert eventually(lambda: cloud.inspect(node) is NodeState.GONE)
    text = (tmp_path / "env").read_text()
    assert "canary" not in text
    assert "FAILOVER_NO_SHUTDOWN=1" in text
    assert text.endswith("\n0\n")


@pytest.mark.parametrize(
    ("lines", "gpu"),
    [
        ("NVIDIA GeForce RTX 4090, 24564\nNVIDIA GeForce RTX 4090, 24564\n", Gpu("GeForce RTX 4090", 2, 24.0)),
        ("Tesla T4, 15360\n", Gpu("Tesla T4", 1, 15.0)),
        ("Failed to initialize NVML: Driver/library version mismatch\n", Gpu("none", 0, 0.0)),
        ("NVIDIA A100, [N/A]\n", Gpu("A100", 1, 0.0)),
    ],
)
def test_cards_are_read_from_the_driver(lines: str, gpu: Gpu) -> None:
    assert gpu_here({}, lambda: lines) == gpu


EXECS = """#!/bin/bash
export COUNT=$(( ${COUNT:-0} + 1 ))
if [ "$COUNT" -lt 1500 ]; then exec /bin/bash user-data; fi
exec sleep 30
"""


def test_a_node_that_execs_is_there_all_the_while(cloud: LocalCloud) -> None:
    """In the middle of an exec a process shows no environment; a start script that execs is not a dead node."""
    offer = cloud.offers(Request())[0]
    token = "e" * 32
    node = cloud.claim(offer, Launch(JOB, 1, token, EXECS, 3600.0, {}))
    assert isinstance(node, Node)
    states = {cloud.inspect(node) for _ in range(2000)}
    assert states == {NodeState.RUNNING}
    cloud.release(node)
