"""Real node processes with replicas: copies in the background, restores from where the checkpoint is whole."""

from __future__ import annotations

import dataclasses
import http.client
import json
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from moto.server import ThreadedMotoServer

from provisioner.checkpoint import epochs, layout
from provisioner.checkpoint.layout import Position
from provisioner.checkpoint.restore import committed, load, restore
from provisioner.checkpoint.store import Credentials, Store, open_store
from provisioner.node.bootstrap import Access
from provisioner.node.bootstrap import load as load_bootstrap
from provisioner.node.stores import RESTORE_TIMEOUT_S, Stores
from provisioner.telemetry import events

KEY = Credentials("AKIAREPLICA000000001", "canary-replica-secret")


def directory(node_job: Any, name: str = "replica") -> tuple[dict[str, Any], Store]:
    uri = f"file://{node_job.root / name}"
    return {"uri": uri}, open_store(uri).at("digits")


def told(node: Any, kind: str) -> list[dict[str, Any]]:
    return [event for event in events.read(node.directory / "node" / "events.jsonl") if event["kind"] == kind]


def damage_newest(store: Store) -> None:
    """Flip a bit in every pack of the newest checkpoint."""
    manifest = load(store, committed(store)[0], None)
    assert manifest is not None
    for identity in manifest.packs:
        data = bytearray(store.get(layout.pack(identity)) or b"")
        data[len(data) // 2] ^= 1
        store.put(layout.pack(identity), bytes(data))


def test_commits_are_copied_in_the_background_and_the_last_one_is_there_at_the_end(node_job):
    replica, store = directory(node_job)
    node = node_job.start(
        1,
        node_job.trainer(steps=60, every=10, pause=0.05),
        steps=60,
        replicas=[replica],
        retention={"last": 2},
    )
    assert node.wait() == 0, node.text()
    assert committed(store)[0] == committed(node_job.store)[0] == Position(1, 60)
    assert len(committed(store)) <= 2
    found = restore(store, node_job.ref, node_job.root / "inspect")
    assert found is not None
    assert json.loads((found.directory / found.entry / "state.json").read_text())["step"] == 60
    (state,) = node.heartbeat()["replicas"]
    assert (state["uri"], state["step"], state["behind"], state["error"]) == (replica["uri"], 60, 0, None)
    copies = told(node, "copied")
    assert copies[-1]["step"] == 60
    assert state["bytes"] == sum(copy["bytes"] for copy in copies) > 0
    assert f"step 60 is copied to {replica['uri']}" in node_job.store_log(1)


def test_a_checkpoint_that_is_damaged_at_home_is_restored_from_the_replica_and_heals(node_job):
    replica, store = directory(node_job)
    first = node_job.start(1, node_job.trainer(pause=0.03), replicas=[replica])
    first.until_committed(30)
    first.until(lambda: any(copy["step"] >= 30 for copy in told(first, "copied")))
    first.kill_machine()
    newest = committed(store)[0]
    node_job.store.delete([layout.manifest(p) for p in committed(node_job.store) if p > newest])
    damage_newest(node_job.store)
    second = node_job.start(2, node_job.trainer(pause=0.02), replicas=[replica])
    assert second.wait() == 0, second.text()
    beat = second.heartbeat()
    assert beat["restored_step"] == newest.step
    assert beat["restored_from"]["uri"] == replica["uri"]
    assert f"fetched from {replica['uri']}" in second.log()
    assert "is not usable" in second.log()
    assert node_job.restored_state()["step"] == 100
    assert committed(store)[0] == Position(2, 100)


def test_a_job_whose_own_store_has_lost_its_checkpoints_goes_on_from_the_replica(node_job):
    replica, store = directory(node_job)
    first = node_job.start(1, node_job.trainer(pause=0.03), replicas=[replica])
    first.until(lambda: any(copy["step"] >= 20 for copy in told(first, "copied")))
    first.kill_machine()
    newest = committed(store)[0]
    for folder in (layout.CHECKPOINTS, layout.PACKS):
        node_job.store.delete([stored.key for stored in node_job.store.objects(folder)])
    second = node_job.start(2, node_job.trainer(pause=0.02), replicas=[replica])
    assert second.wait() == 0, second.text()
    assert second.heartbeat()["restored_step"] == newest.step
    assert node_job.restored_state()["step"] == 100


def test_the_nearest_store_is_read_first_and_a_replica_that_is_behind_is_passed_over(node_job):
    near, near_store = directory(node_job, "near")
    own = {"uri": node_job.uri}
    first = node_job.start(1, node_job.trainer(steps=30, pause=0.05), steps=90, replicas=[near, own])
    assert first.wait() == 75, first.text()
    assert committed(near_store)[0].step == 30
    second = node_job.start(2, node_job.trainer(steps=60), steps=90, replicas=[near, own])
    assert second.wait() == 75
    assert second.heartbeat()["restored_from"]["uri"] == near["uri"]
    near_store.delete([layout.manifest(position) for position in committed(near_store) if position.step > 40])
    third = node_job.start(3, node_job.trainer(steps=90), steps=90, replicas=[near, own])
    assert third.wait() == 0
    assert third.heartbeat()["restored_step"] == 60
    assert third.heartbeat()["restored_from"]["uri"] == node_job.uri
    assert node_job.restored_state()["step"] == 90


def test_a_replica_that_missed_the_last_commit_gets_it_from_the_next_machine(node_job):
    replica, store = directory(node_job)
    first = node_job.start(1, node_job.trainer(pause=0.03))
    first.until_committed(20)
    first.kill_machine()
    newest = committed(node_job.store)[0]
    second = node_job.start(2, "sleep 60", replicas=[replica])
    second.until(lambda: committed(store) == [newest])
    second.process.send_signal(signal.SIGTERM)
    assert second.wait() == 75


@pytest.fixture
def silent() -> Iterator[int]:
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as server:
        yield server.getsockname()[1]


def silent_replica(port: int) -> dict[str, Any]:
    return {
        "uri": "s3://bucket/silent",
        "endpoint": f"http://127.0.0.1:{port}",
        "region": "us-east-1",
        "credentials": {"access_key_id": KEY.access_key_id, "secret_access_key": KEY.secret_access_key},
    }


def test_broken_and_silent_replicas_delay_neither_training_nor_commits_nor_the_end(node_job, silent):
    (node_job.root / "file").touch()
    node = node_job.start(
        1,
        node_job.trainer(steps=40, pause=0.05),
        steps=40,
        replicas=[{"uri": f"file://{node_job.root}/file/store"}, silent_replica(silent)],
    )
    node.until_step(40)
    ended = time.monotonic()
    assert node.wait() == 0, node.text()
    assert time.monotonic() - ended < 10  # the silent one is given five seconds at the end, the broken one nothing
    assert told(node, "committed")[-1]["step"] == 40
    broken, silent_one = node.heartbeat()["replicas"]
    assert (broken["step"], silent_one["step"]) == (None, None)
    assert str(node_job.root / "file") in broken["error"]
    assert silent_one["behind"] >= 1
    assert node.log().count("is not copied yet") == 1
    assert len(told(node, "uncopied")) == 2


def test_a_silent_replica_holds_a_restore_up_for_a_moment_only(node_job, silent, monkeypatch):
    """The wait is shortened here; a machine waits 20 s."""
    assert RESTORE_TIMEOUT_S <= 20
    monkeypatch.setattr("provisioner.node.stores.RESTORE_TIMEOUT_S", 1.0)
    monkeypatch.setattr("provisioner.node.stores.RETRY_S", 0.5)
    assert node_job.start(1, node_job.trainer(steps=20), steps=20).wait() == 0
    lines: list[str] = []
    access = silent_replica(silent)
    key = Credentials(**access.pop("credentials"))
    boot = load_bootstrap(node_job.root / "machine-1" / "bootstrap.json")
    stores = Stores(dataclasses.replace(boot, stores=(Access(**access, credentials=key),)), {})
    began = time.monotonic()
    own = stores.own(timeout_s=10, retry_s=1)
    found = restore(
        own, boot.job, node_job.root / "r", replicas=stores.nearest_first(own, lines.append), report=lines.append
    )
    assert found is not None
    assert found.position == Position(1, 20)
    assert time.monotonic() - began < 5
    assert any("passed over" in line for line in lines)


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    connection = http.client.HTTPConnection(host, port)
    connection.request("PUT", "/replica-bucket")
    assert connection.getresponse().status == 200
    connection.close()
    yield f"http://{host}:{port}"
    server.stop()


def test_a_replica_at_a_bucket_has_a_key_of_its_own_that_shows_nowhere(node_job, moto):
    replica = {
        "uri": "s3://replica-bucket/copies",
        "endpoint": moto,
        "region": "us-east-1",
        "credentials": {"access_key_id": KEY.access_key_id, "secret_access_key": KEY.secret_access_key},
    }
    node = node_job.start(1, node_job.trainer(steps=40, pause=0.05), steps=40, replicas=[replica])
    assert node.wait() == 0, node.text()
    store = open_store(replica["uri"], endpoint=moto, region="us-east-1", credentials=KEY, environ={}).at("digits")
    assert committed(store)[0] == Position(1, 40)
    assert node.heartbeat()["replicas"][0]["step"] == 40
    written = node.text() + node.log() + (node.directory / "node/events.jsonl").read_text() + node_job.store_log(1)
    assert KEY.secret_access_key not in written


METRICS = """
import json, os, pathlib, time
out = pathlib.Path(os.environ["FAILOVER_CHECKPOINT_DIR"])
for step, loss in ((10, 0.5), (20, 0.1), (30, 0.4), (40, 0.3)):
    draft = out / f".step-{step}"
    draft.mkdir()
    (draft / "metadata.json").write_text(json.dumps({"val_loss": loss, "history": [1]}))
    draft.rename(out / f"step-{step}")
    print("step", step, flush=True)
    while not list(pathlib.Path(os.environ["STORE"]).glob(f"*{step}-000001.json")):
        time.sleep(0.02)
    time.sleep(0.3)
"""


def test_the_best_by_metadata_json_stays_at_home_and_in_the_replica(node_job):
    replica, store = directory(node_job)
    node = node_job.start(
        1,
        node_job.script(METRICS),
        steps=40,
        replicas=[replica],
        retention={"last": 1, "best": {"metric": "val_loss", "mode": "min", "count": 1}},
        environ={"STORE": str(node_job.root / "store" / "digits" / "checkpoints")},
    )
    assert node.wait() == 0, node.text()
    assert [position.step for position in committed(node_job.store)] == [40, 20]
    assert [position.step for position in committed(store)] == [40, 20]
    manifest = load(store, Position(1, 20), node_job.ref)
    assert manifest is not None
    assert manifest.metadata == {"val_loss": 0.1}
    assert node.log().count("'history' left out") == 1


def test_a_stop_with_a_deadline_leaves_time_for_the_copy_of_the_last_commit(node_job):
    replica, store = directory(node_job)
    node = node_job.start(1, node_job.trainer(pause=0.1), replicas=[replica], environ={"FAILOVER_GRACE_S": "20"})
    node.until_committed(10)
    node.process.send_signal(signal.SIGTERM)
    assert node.wait(timeout=20) == 75
    assert committed(store)[0] == committed(node_job.store)[0]


IGNORES = """
import os, pathlib, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
out = pathlib.Path(os.environ["FAILOVER_CHECKPOINT_DIR"])
for step in range(1, 1000):
    draft = out / f".step-{step}"
    draft.write_text(str(step))
    draft.rename(out / f"step-{step}")
    print("step", step, flush=True)
    time.sleep(0.2)
"""


def test_a_node_with_rare_heartbeats_sees_the_fence_at_its_commit_and_is_gone_within_five_seconds(node_job):
    """Its command ignores SIGTERM, and a SIGTERM would give it 25 s: neither may count here."""
    replica, store = directory(node_job)
    node = node_job.start(1, node_job.script(IGNORES), steps=None, heartbeat_s=60, replicas=[replica])
    node.until_committed(5)
    child = node.child_pid()
    epochs.take(node_job.store, 2, "token-of-2", "elsewhere")
    taken = time.monotonic()
    before = set(committed(node_job.store))
    assert node.wait(timeout=8) == 75
    assert time.monotonic() - taken < 1 + 5  # a commit every 0.2 s, and five seconds from then on
    assert not Path(f"/proc/{child}").exists()
    assert len(set(committed(node_job.store)) - before) <= 1  # one may have been past its look at the fence
    there = {stored.key for place in (node_job.store, store) for stored in place.objects("")}
    time.sleep(1)
    assert there == {stored.key for place in (node_job.store, store) for stored in place.objects("")}
    assert node.heartbeat().get("end") is None
    assert "epoch 2 owns the job" in node.log()
