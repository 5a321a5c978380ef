"""What comes while an image is pulled: real processes, and the node that starts after them on the same machine."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from typing import Any

import pytest

from provisioner.checkpoint import layout
from provisioner.checkpoint.save import Saver
from provisioner.checkpoint.store import Store
from tests import servers

MIB = 2**20
LOOK = ["bash", "-c", 'cat "$FAILOVER_RESTORE_PATH"/*/step; echo step 100']


def committed(job: Any, store: Store, mib: int = 8) -> None:
    """Commit a checkpoint of step 7 that does not shrink."""
    entry = job.root / "saved"
    entry.mkdir()
    (entry / "step").write_text("step 7\n")
    (entry / "weights.bin").write_bytes(random.Random(1).randbytes(mib * MIB))
    Saver(store, job.ref, 1, fence=lambda: None).save(entry, 7)


def prefetching(job: Any, machine: str, **boot: Any) -> subprocess.Popen[str]:
    directory = job.root / machine
    directory.mkdir(exist_ok=True)
    content = {
        "version": 1,
        "job": {"name": job.ref.name, "uid": job.ref.uid},
        "epoch": 2,
        "token": "canary-token",
        "store": {"uri": job.uri},
        "command": "true",
        **boot,
    }
    (directory / "bootstrap.json").write_text(json.dumps(content))
    words = [sys.executable, "-m", "provisioner.node", "--prefetch", "--bootstrap", str(directory / "bootstrap.json")]
    return subprocess.Popen(words, stderr=subprocess.PIPE, text=True, cwd=job.root)


def objects(store: Store) -> dict[str, int]:
    return {stored.key: stored.size for stored in store.objects("")}


def fetched_mib(node: Any) -> float:
    (line,) = [line for line in node.log().splitlines() if "restored step 7" in line]
    return float(line.split(" MiB of it fetched")[0].rsplit(" ", 1)[1])


def test_the_node_fetches_nothing_that_came_before_it_and_keeps_no_second_copy(node_job):
    committed(node_job, node_job.store)
    before = objects(node_job.store)
    first = prefetching(node_job, "machine-2")
    told = first.communicate(timeout=60)[1]
    assert first.returncode == 0
    assert "failover: step 7 is here before the node runs (8.0 MiB in" in told
    assert objects(node_job.store) == before, "it takes no epoch and writes nothing"
    node = node_job.start(2, LOOK)
    assert node.wait() == 0, node.text()
    assert "step 7\n" in node.log()
    assert fetched_mib(node) == 0.0
    runs = [path.name for path in (node.directory / "node" / "runs").iterdir()]
    assert [name[:3] for name in runs] == ["e2-"]


def test_bytes_that_were_damaged_since_are_fetched_again(node_job):
    committed(node_job, node_job.store)
    prefetching(node_job, "machine-2").communicate(timeout=60)
    (weights,) = (node_job.root / "machine-2/node/runs").rglob("weights.bin")
    with weights.open("r+b") as file:
        file.seek(3 * MIB)
        file.write(b"damage")
    node = node_job.start(2, LOOK)
    assert node.wait() == 0, node.text()
    assert 0.9 < fetched_mib(node) < 4.1, "the damaged blob and no more than it"


@pytest.fixture
def slow_line(tmp_path):
    """Give an S3 store, and the same behind a line that moves 2 MB a second on each connection."""
    with servers.started("moto", tmp_path / "s3") as server:
        assert server.endpoint is not None
        words = [sys.executable, str(servers.ROOT / "tests/far_region.py"), server.endpoint.removeprefix("http://")]
        with subprocess.Popen([*words, "--rate", "2e6"], stdout=subprocess.PIPE, text=True) as proxy:
            assert proxy.stdout is not None
            port = int(proxy.stdout.readline())
            yield server, f"http://127.0.0.1:{port}"
            proxy.terminate()


def test_what_a_killed_one_has_brought_is_not_fetched_twice(node_job, slow_line):
    server, endpoint = slow_line
    committed(node_job, server.store("jobs").at(node_job.ref.name), mib=48)
    store = {"uri": server.uri("jobs"), "region": servers.REGION, "credentials": server.credentials.as_json()}
    first = prefetching(node_job, "machine-2", store={**store, "endpoint": endpoint})
    runs = node_job.root / "machine-2/node/runs"

    def here() -> int:
        return sum(path.stat().st_blocks * 512 for path in runs.rglob("weights.bin"))

    end = time.monotonic() + 60
    while not runs.exists() or here() < 16 * MIB:
        assert time.monotonic() < end
        assert first.poll() is None, first.communicate()[1]
        time.sleep(0.02)
    first.terminate()
    first.communicate(timeout=5)
    had = here() / MIB
    node = node_job.start(2, LOOK, store={**store, "endpoint": server.endpoint})
    assert node.wait() == 0, node.text()
    on_its_way = 8  # a blob of a MiB on each connection: what is not whole when it is killed comes again
    assert 0 < fetched_mib(node) <= 48 - had + on_its_way, f"{had:.0f} MiB were here"
    assert not (runs / "prefetched").exists()


@pytest.mark.parametrize(
    ("boot", "line"),
    [
        ({"store": {"uri": "s3://b/p", "endpoint": "http://127.0.0.1:9", "region": "r"}}, None),
        ({"data": {"key": "data/2.json.zst"}}, "the list of data, data/2.json.zst, cannot be read"),
    ],
)
def test_what_goes_wrong_is_one_line_and_no_failure(node_job, boot, line):
    committed(node_job, node_job.store)
    process = prefetching(node_job, "machine-2", **boot)
    if line is None:  # a store that is away is asked until the image is here
        time.sleep(2)
        assert process.poll() is None
        process.terminate()
        assert process.communicate(timeout=5)[1] == ""
        return
    assert process.communicate(timeout=60)[1] == f"failover: nothing more is fetched before the image is here: {line}\n"
    assert process.returncode == 0


def test_the_heartbeat_tells_how_far_the_restore_is(node_job, slow_line):
    server, endpoint = slow_line
    committed(node_job, server.store("jobs").at(node_job.ref.name), mib=48)
    store = {"uri": server.uri("jobs"), "region": servers.REGION, "credentials": server.credentials.as_json()}
    node = node_job.start(2, LOOK, store={**store, "endpoint": endpoint})
    jobs = server.store("jobs").at(node_job.ref.name)

    def on_the_way():
        restore = json.loads(jobs.get(layout.heartbeat(2)) or b"{}").get("restore")
        return restore and 0 < restore["bytes"] < restore["of"] and restore["of"] >= 48 * MIB

    node.until(on_the_way, 60)
    assert node.wait() == 0, node.text()
