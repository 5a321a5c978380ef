"""States that move from one place to another: nothing is lost, whenever it breaks off."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from provisioner.controller.directory import Held
from provisioner.errors import StateLocked, TerraformError
from provisioner.terraform.locks import StateLock
from tests import servers
from tests.integration.states import FAST, STACK, TERRAFORM, Bench, make

pytestmark = [pytest.mark.skipif(not TERRAFORM, reason="no terraform in PATH"), pytest.mark.timeout(300)]
_NUMBERS = count()
MANY = {"terraform_data.one", "terraform_data.many[0]", "terraform_data.many[1]"}
DYING = """
import os, signal, sys
from tests.integration.states import Bench
bench = Bench.again(sys.argv[1], "20s")
def die(step):
    if step == sys.argv[3]:
        os.kill(os.getpid(), signal.SIGKILL)
list(bench.moves(terraform=sys.argv[4], after_step=die).migrate(sys.argv[2]))
"""
WRAPPER = """#!/bin/sh
case "$*" in *-migrate-state*) kill -9 $PPID; sleep 0.3;; esac
exec {terraform} "$@"
"""


@pytest.fixture(scope="module", params=["moto", "fake-gcs"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    try:
        with servers.started(request.param, tmp_path_factory.mktemp(request.param)) as found:
            yield found
    except servers.NotInstalledError as error:
        pytest.skip(str(error))


@pytest.fixture
def bench(server: servers.Server, tmp_path: Path) -> Bench:
    """A job whose state is on this machine."""
    made = Bench.on(server, tmp_path, f"jobs-{next(_NUMBERS)}")
    made.state = "local"
    make(made.runner("a", FAST))
    assert made.resources() == MANY
    return made


def own(bench: Bench) -> str:
    return bench.uri.replace("/jobs", "/own")


def kept(bench: Bench, *states: str) -> dict[str, int]:
    """Return how many resources there are in each place that has a state."""
    found = {}
    for state in states:
        remote = bench.states().at(STACK, state)
        content = (
            remote.objects.get(remote.state_key)
            if remote is not None
            else (path.read_bytes() if (path := bench.stack() / "terraform.tfstate").exists() else None)
        )
        if content:
            found[state] = len(json.loads(content)["resources"])
    return found


def test_states_go_to_the_store_to_another_bucket_and_home_again(bench):
    places = ("local", "store", own(bench))
    lineage = bench.runner("a").whole_state().lineage
    for to in ("store", own(bench), "local", own(bench), "store", "local"):
        told = list(bench.moves().migrate(to))
        assert [(one.stack, one.outcome, one.resources) for one in told] == [(STACK, "moved", 3)]
        assert kept(bench, *places) == {to: 2}
        assert bench.resources() == MANY
        assert [(one.stack, len(one.resources), one.lock) for one in bench.moves().ls()] == [(STACK, 3, "")]
        assert [one.outcome for one in bench.moves().migrate(to)] == ["there"]
        backup = Path(told[0].backup)
        assert json.loads(backup.read_text())["lineage"] == lineage
        assert stat.S_IMODE(backup.stat().st_mode) == 0o600
        assert stat.S_IMODE(backup.parent.stat().st_mode) == 0o700
    runner = bench.runner("a")
    assert runner.whole_state().lineage == lineage
    runner.init()
    assert runner.plan().empty


@pytest.mark.slow
@pytest.mark.parametrize("to", ["store", "local"])
@pytest.mark.parametrize("step", ["backed up", "copied", "noted", "removed", "in the middle of terraform"])
def test_a_move_that_is_killed_loses_nothing_and_the_same_command_finishes_it(bench, tmp_path, step, to):
    here = "local"
    if to == "local":
        list(bench.moves().migrate("store"))
        here = "store"
    terraform = TERRAFORM
    if step == "in the middle of terraform":
        wrapper = tmp_path / "terraform"
        wrapper.write_text(WRAPPER.format(terraform=TERRAFORM))
        wrapper.chmod(0o755)
        terraform = str(wrapper)
    argv = [sys.executable, "-c", DYING, str(tmp_path), to, step, terraform]
    died = subprocess.run(argv, cwd=Path.cwd(), capture_output=True, text=True, check=False)
    assert died.returncode == -9, died.stderr
    assert bench.resources() == MANY, "a controller that starts now finds everything"
    assert 2 in kept(bench, here, to).values()
    bench.lock_timeout = "20s"
    assert [one.outcome for one in bench.moves().migrate(to)] in (["moved"], ["there"])
    assert kept(bench, here, to) == {to: 2}
    assert bench.resources() == MANY
    assert [name for name in bench.objects() if name.endswith("lock")] == []


def test_no_state_moves_while_a_controller_runs_the_job(bench):
    moves = bench.moves()
    with bench.job().lock(), pytest.raises(Held, match="already run by process"):
        list(moves.migrate("store"))
    assert kept(bench, "local", "store") == {"local": 2}


def test_no_state_moves_while_somebody_else_works_on_it(bench, tmp_path):
    list(bench.moves().migrate("store"))
    remote = bench.states().at(STACK, "store")
    with StateLock.of(remote, tmp_path / "elsewhere").held("apply"), pytest.raises(StateLocked, match=r"\(apply\)"):
        list(bench.moves().migrate("local"))
    assert kept(bench, "local", "store") == {"store": 2}


def test_another_state_in_the_new_place_is_left_as_it_is(bench):
    bench.state = "store"
    make(bench.runner("other", FAST.replace("count = 2", "count = 3")))
    bench.state = "local"
    with pytest.raises(TerraformError, match="another state is there, with 4 resources"):
        list(bench.moves().migrate("store"))
    assert kept(bench, "local") == {"local": 2}
    assert bench.resources() == MANY


def test_other_machines_find_a_state_that_was_moved_and_never_begin_another(bench):
    list(bench.moves().migrate("store"))
    bench.state = "store"  # as the file has it on every machine
    running = bench.runner("b", FAST)
    assert set(running.state()) == MANY
    list(bench.moves().migrate(own(bench)))

    with pytest.raises(TerraformError, match="was moved to another place") as caught:
        make(running)
    assert "start this controller again" in caught.value.hint
    assert bench.resources("c") == MANY, "one that starts now finds it"
    list(bench.moves().migrate("local"))
    with pytest.raises(TerraformError, match="where no other machine sees it"):
        bench.runner("d", FAST)
    assert bench.resources("a") == MANY


def test_when_everything_is_gone_nothing_is_left_where_a_state_ever_was(bench):
    bench.state = "store"
    list(bench.moves().migrate("store"))
    list(bench.moves().migrate(own(bench)))
    runner = bench.runner("a")
    with runner.hold("destroy"):
        runner.init()
        runner.destroy()
    runner.discard()
    bench.states().forget(STACK)
    assert bench.objects() == []
    assert Bench.objects(replace(bench, state=own(bench))) == []


def test_a_lock_is_listed_and_broken_by_its_id(bench, tmp_path):
    list(bench.moves().migrate("store"))
    remote = bench.states().at(STACK, "store")
    with StateLock.of(remote, tmp_path / "elsewhere").held("adopt") as lock_id:
        (found,) = bench.moves().ls()
        assert (found.lock_id, "(adopt)" in found.lock) == (lock_id, True)
        config = tmp_path / "failover.yaml"
        config.write_text(json.dumps(bench.config().model_dump(mode="json", exclude_unset=True)))
        environ = {**os.environ, **bench.environ, "FAILOVER_STATE_DIR": str(tmp_path / "a")}

        def cli(*arguments: str) -> subprocess.CompletedProcess[str]:
            argv = [sys.executable, "-m", "provisioner.cli", "state", *arguments]
            return subprocess.run(
                argv, env=environ, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
            )

        listed = cli("ls", str(config), "--json")
        assert json.loads(listed.stdout)[0]["lock_id"] == lock_id, listed.stderr
        wrong = cli("unlock", str(config), "00000000", "--yes")
        assert (wrong.returncode, "has a lock '00000000'" in wrong.stderr) == (2, True)
        assert cli("unlock", str(config), lock_id).returncode == 130, "nobody answered"
        broken = cli("unlock", str(config), lock_id, "--yes")
        assert (broken.returncode, broken.stdout.strip()) == (0, f"unlocked {remote.uri}"), broken.stderr
    assert bench.moves().ls()[0].lock == ""
    for place, words in (("nowhere", "`nowhere` is no place"), (f"{bench.uri}/digits", "the job's machines may write")):
        told = cli("migrate", str(config), "--to", place)
        assert (told.returncode, words in told.stderr) == (2, True), told.stderr


def test_what_an_open_run_has_not_prepared_yet_begins_where_its_states_were_moved_to(bench):
    job = bench.job()
    moves = bench.moves()
    config = job.path / "failover.1.yaml"
    config.write_text(json.dumps(bench.config().model_dump(mode="json", exclude_unset=True)))
    record = job.record()
    assert record is not None
    job.remember(replace(record, open=True))
    moves = bench.moves()
    list(moves.migrate("store"))
    assert bench.states().place("aws-eu-west-1").state == "store"
    job.remember(replace(record, run=2, open=True))
    assert bench.states().place("aws-eu-west-1").state == "local", "the next run goes by its file"
    assert bench.states().place(STACK).state == "store"
