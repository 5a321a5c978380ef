"""The transfer benchmark runs: small trees, one server, a far line. Its figures mean nothing here."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests import servers


@pytest.mark.slow
@pytest.mark.long
def test_the_transfer_benchmark_brings_every_tree_back_and_prints_its_table(tmp_path):
    try:
        servers.program("rclone")
    except servers.NotInstalledError as missing:
        pytest.skip(str(missing))
    argv = [
        sys.executable,
        "benchmarks/transfer.py",
        "--quick",
        "--shapes",
        "many",
        "--servers",
        "rclone",
        "--lines",
        "far",
    ]
    argv += ["--scratch", str(tmp_path), "--json", str(tmp_path / "rows"), "--markdown", str(tmp_path / "table.md")]
    done = subprocess.run(argv, cwd=servers.ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = json.loads((tmp_path / "rows").read_text())
    assert [(row["server"], row["shape"]) for row in rows] == [("rclone", "many")]
    for row in rows:
        assert not row["failures"], done.stderr[-3000:]
        assert {name for name, costs in row["costs"].items() if costs["put"] and costs["get"]} == set(row["costs"])
        assert len(row["costs"]) == 5
        again = {how: costs[0]["uploaded"] for how, costs in row["again"].items()}
        assert again["unchanged"] == 0
        assert 0 < again["contiguous"] <= 0.12 * row["bytes"]
        assert 0 < again["scattered"] <= 0.12 * row["bytes"]
    table = (tmp_path / "table.md").read_text()
    assert table in done.stdout
    assert str(tmp_path) not in table
    assert table.count("| put |") >= 1
    assert not any(tmp_path.glob("failover-bench-*"))
