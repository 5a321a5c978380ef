"""A service like Aliyun OSS: it refuses the header for conditional writes, and the bucket in the path (R03)."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from moto.server import ThreadedMotoServer

from provisioner.checkpoint import epochs, layout
from provisioner.checkpoint.probe import probe
from provisioner.checkpoint.restore import committed, restore
from provisioner.checkpoint.store import Credentials, Store, open_store
from provisioner.errors import Fenced, StoreError
from tests.ruled_proxy import RuledProxy, ruled

BUCKET = "training"
KEY = Credentials("LTAICANARY", "canary-secret-key")
VIRTUAL = "http://oss-cn-hangzhou.aliyuncs.com"  # its buckets are always put into the host name
UNKNOWN = "http://objects.example.com"  # nothing says how it wants them


@pytest.fixture(scope="module")
def moto_port() -> Iterator[int]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield server.get_host_and_port()[1]
    server.stop()


@pytest.fixture(params=[(501, "NotImplemented"), (400, "InvalidArgument")], ids=["501", "400"])
def oss(moto_port: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[RuledProxy]:
    """The service, reached as an HTTP proxy so that its host names need no DNS."""
    status, code = request.param
    connection = http.client.HTTPConnection("127.0.0.1", moto_port)
    connection.request("POST", "/moto-api/reset")
    connection.getresponse().read()
    connection.request("PUT", f"/{BUCKET}")
    assert connection.getresponse().status == 200
    connection.close()
    with ruled(f"127.0.0.1:{moto_port}", BUCKET) as server:
        server.refuses_paths = True
        server.code = code
        server.rule = lambda _verb, _path, headers: status if "if-none-match" in headers else None
        for name in ("HTTP_PROXY", "http_proxy"):
            monkeypatch.setenv(name, server.url)
        monkeypatch.setenv("OSS_ID", KEY.access_key_id)
        monkeypatch.setenv("OSS_KEY", KEY.secret_access_key)
        yield server


def store_of(endpoint: str = VIRTUAL) -> Store:
    return open_store(f"s3://{BUCKET}/p", endpoint=endpoint, credentials=KEY, environ={}, retry_s=5).at("digits")


def node_store(endpoint: str = VIRTUAL) -> dict[str, Any]:
    return {"uri": f"s3://{BUCKET}/p", "endpoint": endpoint, "region": None, "credentials": KEY.as_json()}


def doctor(folder: Path, endpoint: str) -> tuple[int, dict[str, dict[str, str]]]:
    path = folder / "failover.yaml"
    checkpoint = {
        "store": f"s3://{BUCKET}/p",
        "endpoint": endpoint,
        "access_key_id_env": "OSS_ID",
        "secret_access_key_env": "OSS_KEY",
    }
    job = {"name": "digits", "command": "true"}
    path.write_text(yaml.safe_dump({"job": job, "checkpoint": checkpoint, "fallback": [{"local": {}}]}))
    done = subprocess.run(
        [sys.executable, "-m", "provisioner.cli", "doctor", str(path), "--json"],
        env={**os.environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "canary" not in done.stdout.lower() + done.stderr.lower()
    return done.returncode, {finding["check"]: finding for finding in json.loads(done.stdout)}


def test_r03_the_doctor_names_the_missing_ability_in_one_line(oss, tmp_path: Path):
    code, findings = doctor(tmp_path, VIRTUAL)
    assert code == 0
    assert findings["store"]["verdict"] == "ok"
    assert "writes, reads, lists, deletes" in findings["store"]["detail"]
    assert findings["store fence"]["verdict"] == "warn"
    detail = findings["store fence"]["detail"]
    assert "refuses conditional writes: only the epoch in every name keeps two nodes apart" in detail
    assert "\n" not in detail
    assert len(oss.conditions) == 1
    assert len(oss.seen) < 12
    assert store_of().objects("") == []


def test_r03_where_paths_are_refused_the_setting_is_named_and_it_helps(oss, tmp_path: Path):
    code, findings = doctor(tmp_path, UNKNOWN)
    assert code == 5
    assert findings["store"]["verdict"] == "fail"
    assert "the store wants the bucket in the host name" in findings["store"]["detail"]
    setting = f"http://{BUCKET}.objects.example.com"
    assert setting in findings["store"]["fix"]
    assert len(oss.seen) <= 2  # the first try, and the removal of what it may have left
    code, findings = doctor(tmp_path, setting)
    assert (code, findings["store"]["verdict"]) == (0, "ok")
    oss.code = "AccessDenied"
    with pytest.raises(StoreError, match="wants the bucket in the host name"):
        probe(store_of(UNKNOWN))


def test_r03_the_first_start_names_it_and_no_later_write_spends_anything_on_it(oss, node_job):
    node = node_job.start(1, node_job.trainer(steps=60, every=5), steps=60, store=node_store())
    assert node.wait() == 0, node.text()
    (line,) = [text for text in node.text().splitlines() if "conditional writes" in text]
    assert "refuses conditional writes" in line
    assert [path.rsplit("/", 1)[-1] for path in oss.conditions] == ["owner.json"]
    assert committed(store_of())[0] == (1, 60)
    assert "canary" not in node.text() + node.log()


RACER = """
import os, pathlib, sys, time
out = pathlib.Path(os.environ["FAILOVER_CHECKPOINT_DIR"])
for step in range(1, 13):
    draft = out / f".step-{step}"
    draft.mkdir()
    (draft / "who").write_text(sys.argv[1])
    draft.rename(out / f"step-{step}")
    time.sleep(0.1)
"""


def test_r03_two_nodes_racing_for_one_epoch_never_mix_data(oss, node_job):
    command = node_job.script(RACER)
    racers = {
        who: node_job.start(1, [*command, who], machine=who, token=f"token-{who}", steps=12, store=node_store())
        for who in ("left", "right")
    }
    codes = {who: node.wait() for who, node in racers.items()}
    assert sorted(codes.values()) == [0, 75], [node.text() for node in racers.values()]
    winner = next(who for who, code in codes.items() if code == 0)
    (loser,) = racers.keys() - {winner}
    store = store_of()
    assert json.loads(store.get(layout.owner(1)) or b"{}")["token"] == f"token-{winner}"
    assert "is committed" not in racers[loser].log()
    assert committed(store)
    for number, position in enumerate(committed(store)):
        found = restore(store, node_job.ref, node_job.root / f"look-{number}", position=position)
        assert found is not None
        assert (found.directory / found.entry / "who").read_text() == winner


@pytest.mark.parametrize("ignores", [False, True], ids=["refuses", "ignores"])
def test_r03_of_many_nodes_at_once_one_owns_where_conditions_are_refused_or_ignored(oss, ignores):
    if ignores:
        oss.rule = lambda *_: None
        oss.ignores_conditions = True
    told = {}

    def attempt(token: str) -> bool:
        try:
            told[token] = epochs.take(store_of(), 1, token, "node")
        except Fenced:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        won = [token for token, is_won in zip("abcdef", pool.map(attempt, "abcdef"), strict=True) if is_won]
    assert len(won) == 1
    epochs.check(store_of(), 1, won[0])
    assert f"{'ignores' if ignores else 'refuses'} conditional writes" in told[won[0]]
    found = probe(store_of())
    assert found.conditional == ("ignored" if ignores else "refused")
    assert found.line == told[won[0]]
