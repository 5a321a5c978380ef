"""``failover run`` with ``data:`` on this machine alone: no cloud, folders as store and source, real processes."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import yaml

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
