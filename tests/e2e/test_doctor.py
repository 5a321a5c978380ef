"""``failover doctor`` names what is missing, and what works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests import servers


def doctor(*arguments: str, **environ: str) -> tuple[int, dict[str, dict[str, str]], str]:
    done = subprocess.run(
        [sys.executable, "-m", "provisioner.cli", "doctor", *arguments, "--json"],
        env={**os.environ, **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    findings = json.loads(done.stdout) if done.stdout else []
    return done.returncode, {finding["check"]: finding for finding in findings}, done.stderr


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "failover.yaml"
    job = {"name": "small", "command": "true"}
    store = {"store": f"file://{tmp_path}/store"}
    path.write_text(yaml.safe_dump({"job": job, "checkpoint": store, "fallback": [{"local": {}}]}))
    return path


def test_a_store_that_works_is_ok_and_nothing_is_left_in_it(config: Path, tmp_path: Path) -> None:
    code, findings, err = doctor(str(config))
    assert code == 0, err
    assert findings["store"]["verdict"] == "ok"
    assert "creates only if absent" in findings["store"]["detail"]
    assert findings["terraform"]["verdict"] == "skip"
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == []


def test_a_store_that_cannot_be_written_is_exit_code_5_with_its_name(config: Path, tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file where the directory should be")
    code, findings, _ = doctor(str(config))
    assert code == 5
    assert findings["store"]["verdict"] == "fail"
    assert "store" in findings["store"]["detail"]


def test_a_wrong_file_is_exit_code_2_and_one_line(config: Path) -> None:
    config.write_text(config.read_text().replace("command", "comand"))
    code, findings, err = doctor(str(config))
    assert (code, findings) == (2, {})
    assert "failover.yaml" in err
    assert "Traceback" not in err


def test_a_bucket_that_cannot_lock_terraforms_states_fails_and_says_why(tmp_path: Path) -> None:
    for kind, verdict in (("rclone", "fail"), ("moto", "ok")):
        try:
            with servers.started(kind, tmp_path / kind) as server:
                path = tmp_path / "failover.yaml"
                job = {"name": "small", "command": "true"}
                data = {"job": job, "checkpoint": {"store": server.uri("jobs")}, "fallback": [{"local": {}}]}
                path.write_text(yaml.safe_dump({**data, "terraform": {"state": "store"}}))
                code, findings, err = doctor(str(path), **server.environ())
                assert findings["terraform state"]["verdict"] == verdict, (findings, err)
                assert code == (5 if verdict == "fail" else 0)
        except servers.NotInstalledError as error:
            pytest.skip(str(error))
        if verdict == "fail":
            assert "conditional writes are ignored" in findings["terraform state"]["detail"]
