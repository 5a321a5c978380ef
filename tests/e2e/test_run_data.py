"""``failover run`` with ``data:`` on this machine alone: no cloud, folders as store and source, real processes."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
import zipfile
from pathlib import Path

import yaml

from tests import servers
from tests.e2e.test_run_local import Place

READ = """
import os, pathlib
data = pathlib.Path(os.environ["FAILOVER_DATA_DIR"])
print("sum", sum(int(path.read_text()) for path in (data / "numbers").iterdir()), flush=True)
print("label", (data / "labels/deep/label").read_text(), flush=True)
print("step 1", flush=True)
"""


def test_data_is_on_the_disk_before_the_command_starts(tmp_path: Path) -> None:
    place = Place(tmp_path)
    (place.folder / "numbers").mkdir()
    for number in range(20):
        (place.folder / "numbers" / str(number)).write_text(str(number))
    (place.folder / "packed/deep").mkdir(parents=True)
    (place.folder / "packed/deep/label").write_text("cat")
    shutil.make_archive(str(place.folder / "labels"), "gztar", place.folder / "packed")
    (place.folder / "code/read.py").write_text(READ)
    config = place.config(job={"command": [sys.executable, "read.py"], "steps": 1})
    data = [
        {"from": f"file://{place.folder}/numbers", "to": "numbers"},
        {"from": f"file://{place.folder}/labels.tar.gz", "to": "labels", "unpack": True},
    ]
    config.write_text(config.read_text() + yaml.safe_dump({"data": data}))
    code, out, err = place.call("run", str(config), "--json")
    assert code == 0, err
    assert json.loads(out)["result"] == "completed"
    _, log, _ = place.call("logs", "small")
    assert "sum 190" in log
    assert "label cat" in log
    assert "data: 21 files" in log
    shutil.rmtree(place.folder / "numbers")
    code, out, err = place.call("run", str(config), "--fresh")
    assert (code, out) == (2, "")
    assert f"data[0]: file://{place.folder}/numbers: there is no such folder or file" in err


def test_data_of_a_bucket_comes_by_links_that_show_nowhere(tmp_path: Path) -> None:
    with servers.started("moto", tmp_path / "moto", "datasets") as server:
        bucket = server.store("set")
        for number in range(20):
            bucket.put(f"numbers/{number}", str(number).encode())
        bucket.put("labels.zip", zipped("deep/label", "dog"))
        place = Place(tmp_path)
        place.environ |= server.environ()
        (place.folder / "code/read.py").write_text(READ)
        config = place.config(
            job={"command": [sys.executable, "read.py"], "steps": 1}, checkpoint={"store": "s3://datasets/jobs"}
        )
        data = [
            {"from": "s3://datasets/set/numbers/", "to": "numbers"},
            {"from": "s3://datasets/set/labels.zip", "to": "labels", "unpack": True},
        ]
        config.write_text(config.read_text() + yaml.safe_dump({"data": data}))
        code, out, err = place.call("run", str(config), "--json")
        assert code == 0, err
        _, log, _ = place.call("logs", "small")
        assert "sum 190" in log
        assert "label dog" in log
        link = re.compile(rb"datasets/set/[^ ]*X-Amz-Signature")
        assert not link.search((out + err + log).encode())
        stored = server.store("jobs").objects("")
        assert not [one.key for one in stored if link.search(read(server, one.key)) or "data.json" in one.key]
        here = [path for path in place.folder.rglob("*") if path.is_file() and tmp_path / "moto" not in path.parents]
        assert not [path for path in here if link.search(path.read_bytes())]
        assert {path.stat().st_mode & 0o77 for path in here if path.name.startswith("list-epochs")} <= {0}


def read(server: servers.Server, key: str) -> bytes:
    return server.store("jobs").get(key) or b""


def zipped(name: str, text: str) -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        archive.writestr(name, text)
    return raw.getvalue()
