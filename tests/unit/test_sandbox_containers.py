"""Which way the drill's machines go, and the ``docker`` that a machine has. No engine is needed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from provisioner.cli.command import run
from provisioner.errors import ConfigError
from provisioner.sandbox.containers import Containers, choose


def client(folder: Path, script: str) -> str:
    path = folder / "docker"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_without_an_engine_machines_are_processes_and_a_named_image_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER", client(tmp_path, "exit 1"))
    assert choose(None, tmp_path) == (None, "machines are processes: no container engine answers")
    with pytest.raises(ConfigError, match="no container engine answers"):
        choose("mine:1", tmp_path)
    monkeypatch.setenv("DOCKER", str(tmp_path / "nothing"))
    assert choose(None, tmp_path) == (None, "machines are processes: there is no docker here")


def test_an_engine_of_another_machine_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = '{"folder": false, "loopback": true, "numpy": true}'
    monkeypatch.setenv("DOCKER", client(tmp_path, f"case $1 in run) echo '{facts}' ;; esac"))
    containers, why = choose(None, tmp_path)
    assert containers is None
    assert why == "machines are processes: the engine's containers do not see this machine's files"


def test_an_image_as_make_image_leaves_it_makes_no_drill_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = '{"folder": true, "loopback": true, "numpy": false}'
    monkeypatch.setenv("DOCKER", client(tmp_path, f"case $1 in run) echo '{facts}' ;; esac"))
    containers, why = choose(None, tmp_path)
    assert containers is None
    assert why.startswith("machines are processes: the image gpu-failover:latest has no numpy")
    assert "\n" not in why
    with pytest.raises(ConfigError, match="mine:1 has no numpy"):
        choose("mine:1", tmp_path)


def test_image_and_no_docker_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["drill", "--image", "mine:1", "--no-docker"]) == 2
    assert capsys.readouterr().err.startswith("failover: --image and --no-docker exclude each other")


def test_a_machines_docker_marks_what_it_runs_and_asks_no_registry(tmp_path: Path) -> None:
    engine = Containers(client(tmp_path, 'printf "%s|" "$DOCKER_HOST" "$@"'), "mine:1", {"DOCKER_HOST": "unix:///a b"})
    shim = tmp_path / "shim"

    def asked(user: str, *words: str) -> list[str]:
        made = Containers(engine.client, engine.image, engine.environ, user)
        shim.write_text(made.shim(Path("/m/i 1"), Path("/m"), ["GCE_METADATA_HOST"]))
        ended = subprocess.run(["/bin/bash", str(shim), *words], capture_output=True, text=True, check=True)
        return ended.stdout.split("|")[:-1]

    marks = ["--label", "gpu-failover-machine=/m/i 1", "--label", "gpu-failover-sandbox=/m"]
    given = ["--user", "0:0", "--name", "a b", "mine:1", "", "start.sh"]
    run_as = ["unix:///a b", "run", *marks, "--env", "GCE_METADATA_HOST"]
    assert asked("0:0", "run", *given) == [*run_as, *given]
    assert asked("0:0", "create", "mine:1") == [run_as[0], "create", *run_as[2:], "mine:1"]
    assert asked("7:8", "run", *given) == [*run_as, "--user", "7:8", *given[2:]]
    assert asked("0:0", "pull", "-q", "mine:1") == ["unix:///a b", "image", "inspect", "mine:1"]
    assert asked("0:0", "rm", "-f", "x") == ["unix:///a b", "rm", "-f", "x"]
