"""States in a bucket, by a real Terraform: where they are, who holds them, and what becomes of a lock of the dead."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from provisioner.errors import StateLocked, StoreError, TerraformError
from provisioner.terraform import locks
from tests import servers
from tests.integration.states import FAST, SLOW, TERRAFORM, Bench, make, wait_for
from tests.ruled_proxy import ruled

pytestmark = [pytest.mark.skipif(not TERRAFORM, reason="no terraform in PATH"), pytest.mark.timeout(300)]
_NUMBERS = count()
MANY = {"terraform_data.one", "terraform_data.many[0]", "terraform_data.many[1]"}


@pytest.fixture(scope="module", params=["moto", "fake-gcs"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    try:
        with servers.started(request.param, tmp_path_factory.mktemp(request.param)) as found:
            yield found
    except servers.NotInstalledError as error:
        pytest.skip(str(error))


@pytest.fixture
def bench(server: servers.Server, tmp_path: Path) -> Bench:
    return Bench.on(server, tmp_path, f"jobs-{next(_NUMBERS)}")


def kill(lock_id: str) -> None:
    """Kill all that works under a lock, also what one of them has just started."""
    while found := locks.workers(lock_id):
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def test_a_state_in_the_store_is_made_read_by_another_machine_and_gone_at_the_end(bench):
    runner = bench.runner("a", FAST)
    make(runner)
    assert set(runner.state()) == MANY
    assert runner.outputs() == {"one": 1}
    assert not (runner.directory / "terraform.tfstate").exists()
    assert [name for name in bench.objects() if "lock" in name] == []
    assert [name.split("/")[0] for name in bench.objects()] == ["digits-1a2b3c4d"]

    other = bench.runner("b", FAST)
    assert set(other.state()) == MANY
    with other.hold("check"):
        other.init()
        assert other.plan().empty
        other.destroy()
    assert runner.state() == {}
    other.discard()
    runner.discard()
    assert bench.objects() == []


def test_two_controllers_at_one_state_one_waits_for_the_other(bench):
    bench.runner("a", FAST + SLOW)
    bench.runner("b", FAST + SLOW)
    (bench.stack("b") / "go").touch()
    first = bench.controller("a", "60s")
    wait_for(bench.stack("a") / "started")
    second = bench.controller("b", "60s")
    told = bench.runner("c", FAST + SLOW)
    with pytest.raises(StateLocked, match=r"is locked by \S+@\S+ since 20\S+ \(apply\)"):
        make(told)
    assert second.poll() is None
    assert not (bench.stack("b") / "started").exists()
    (bench.stack("a") / "go").touch()
    assert first.communicate(timeout=120)[1] == ""
    assert second.communicate(timeout=120)[1] == ""
    assert (first.returncode, second.returncode) == (0, 0)
    assert not (bench.stack("b") / "started").exists(), "the second found everything made"


def test_the_lock_of_a_terraform_that_was_killed_is_let_go_by_its_controller(bench):
    runner = bench.runner("a", FAST + SLOW)
    controller = bench.controller("a", "60s")
    wait_for(bench.stack("a") / "started")
    (lock,) = [name for name in bench.objects() if "lock" in name]
    content = json.loads(runner.remote.objects.get(lock))
    kill(content["ID"])
    assert "ended with status" in controller.communicate(timeout=60)[1]
    (bench.stack("a") / "go").touch()
    make(runner)
    assert set(runner.state()) == {*MANY, "terraform_data.slow"}


@pytest.mark.parametrize("terraform_too", [True, False])
def test_the_lock_of_a_controller_that_was_killed_is_taken_over_once_its_terraform_is_gone(bench, terraform_too):
    runner = bench.runner("a", FAST + SLOW)
    controller = bench.controller("a", "60s")
    wait_for(bench.stack("a") / "started")
    (lock,) = [name for name in bench.objects() if "lock" in name]
    lock_id = json.loads(runner.remote.objects.get(lock))["ID"]
    controller.kill()
    controller.communicate()
    if terraform_too:
        kill(lock_id)
    stranger = bench.runner("b", FAST + SLOW)
    with pytest.raises(StateLocked) as caught:
        make(stranger)
    assert lock_id in str(caught.value)
    assert f"failover state unlock FILE {lock_id}" in caught.value.hint
    assert bool(locks.workers(lock_id)) is not terraform_too, "a stranger ends nothing"
    wait_for_end = bench.stack("a") / "done"
    with runner.hold("look"):
        assert locks.workers(lock_id) == [], "nobody works under a lock that was taken over"
        assert not wait_for_end.exists()
    assert [name for name in bench.objects() if "lock" in name] == []
    (bench.stack("a") / "go").touch()
    make(runner)
    assert set(runner.state()) == {*MANY, "terraform_data.slow"}


def test_a_lock_of_terraform_by_hand_is_respected_and_named_alive_or_dead(bench):
    runner = bench.runner("a", FAST + SLOW)
    with runner.hold("init"):
        runner.init()
    environ = {**bench.environ, **runner.remote.env, "TF_CLI_CONFIG_FILE": os.devnull}
    by_hand = subprocess.Popen(
        [TERRAFORM, "apply", "-auto-approve", "-input=false"],
        cwd=runner.directory,
        env=environ,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    wait_for(runner.directory / "started")
    for dead in (False, True):
        if dead:
            os.killpg(by_hand.pid, signal.SIGKILL)
            by_hand.wait()
        with pytest.raises(StateLocked, match=r"is locked by \S+@\S+ since 20\S+ \(OperationTypeApply\)"):
            runner.plan()
    (lock,) = [name for name in bench.objects() if "lock" in name]
    runner.remote.objects.delete([lock])
    (bench.stack("a") / "go").touch()
    make(runner)


def test_terraform_by_hand_meets_our_lock_as_its_own(bench):
    runner = bench.runner("a", FAST)
    make(runner)
    environ = {**bench.environ, **runner.remote.env, "TF_CLI_CONFIG_FILE": os.devnull}
    with runner.hold("adopt"):
        asked = subprocess.run(
            [TERRAFORM, "plan", "-no-color", "-input=false"],
            cwd=runner.directory,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert asked.returncode == 1
        assert "Error acquiring the state lock" in asked.stderr
        assert "Operation: adopt" in asked.stderr
        assert f"gpu-failover, process {os.getpid()}" in asked.stderr


def test_after_a_reboot_the_lock_is_ours_and_on_another_machine_it_is_not(bench):
    runner = bench.runner("a", FAST)
    make(runner)
    remote = runner.remote

    def lock(root: str, host: locks.Host) -> locks.StateLock:
        folder = bench.directory / root
        return locks.StateLock(remote.objects, remote.lock_key, folder, remote.uri, 0.0, host=host)

    before = locks.Host("desk", "machine-1", "boot-1")
    with lock("x", before).held("apply") as held:
        kept = (bench.directory / "x" / locks.NOTE).read_bytes()
        content = remote.objects.get(remote.lock_key)
    for host, ours in (
        (locks.Host("desk", "machine-2", "boot-2"), False),
        (locks.Host("desk", "", "boot-2"), False),
        (locks.Host("desk", "machine-1", ""), False),
        (locks.Host("other", "machine-1", "boot-2"), False),
        (locks.Host("desk", "machine-1", "boot-1", "pid:[7]"), False),
        (locks.Host("desk", "machine-1", "boot-2", "pid:[7]"), False),
        (locks.Host("desk", "machine-1", "boot-2"), True),
    ):
        (bench.directory / "x" / locks.NOTE).write_bytes(kept)
        remote.objects.put(remote.lock_key, content)
        if ours:
            with lock("x", host).held("apply") as again:
                assert again == held
        else:
            with pytest.raises(StateLocked):
                lock("x", host).held("apply").__enter__()
            assert remote.objects.get(remote.lock_key) == content


def test_no_key_is_in_a_file_or_a_command_line(server, tmp_path, monkeypatch):
    if server.scheme != "s3":
        pytest.skip("GCS takes no key by name")
    bench = Bench.on(server, tmp_path, f"jobs-{next(_NUMBERS)}")
    canaries = {"OSS_KEY": "AKCANARY71FD0C", "OSS_SECRET": "canary/secret+71fd0c=", "OSS_TOKEN": "canary-token-71fd0c"}
    bench.environ |= canaries
    bench.environ["AWS_ACCESS_KEY_ID"] = "AKOTHER"
    names = {"access_key_id_env": "OSS_KEY", "secret_access_key_env": "OSS_SECRET", "session_token_env": "OSS_TOKEN"}
    endpoint = bench.environ.pop("AWS_ENDPOINT_URL")
    states = bench.states(state=f"s3://{server.bucket}/own", endpoint=endpoint, **names)
    seen = []
    run = subprocess.Popen

    def popen(argv, *args, **kwargs):
        seen.append(" ".join(map(str, argv)))
        return run(argv, *args, **kwargs)

    monkeypatch.setattr("provisioner.terraform.process.subprocess.Popen", popen)
    runner = bench.runner("a", FAST, states=states)
    make(runner)
    assert set(runner.state()) == MANY
    written = [path for path in runner.directory.rglob("*") if path.is_file()]
    assert runner.directory / ".terraform" / "terraform.tfstate" in written
    content = {str(path): path.read_bytes() for path in written}
    content["argv"] = "\n".join(seen).encode()
    assert runner.remote is not None
    content["state"] = runner.remote.objects.get(runner.remote.state_key) or b""
    assert b"terraform_data" in content["state"]
    assert len(seen) >= 4
    for secret in (*canaries.values(), bench.environ["AWS_SECRET_ACCESS_KEY"]):
        assert [name for name, data in content.items() if secret.encode() in data] == []


def test_the_key_that_the_store_names_is_the_one_that_terraform_uses(tmp_path):
    try:
        with servers.started("seaweedfs", tmp_path / "server") as server:
            bench = Bench.on(server, tmp_path, "jobs")
            right = {
                "OSS_KEY": bench.environ["AWS_ACCESS_KEY_ID"],
                "OSS_SECRET": bench.environ["AWS_SECRET_ACCESS_KEY"],
            }
            bench.environ |= {**right, "AWS_ACCESS_KEY_ID": "of-the-cloud", "AWS_SECRET_ACCESS_KEY": "which-is-another"}
            names = {"access_key_id_env": "OSS_KEY", "secret_access_key_env": "OSS_SECRET"}
            endpoint = bench.environ["AWS_ENDPOINT_URL"]
            states = bench.states(state=f"s3://{server.bucket}/own", endpoint=endpoint, **names)
            runner = bench.runner("a", FAST, states=states)
            make(runner)
            assert set(runner.state()) == MANY
    except servers.NotInstalledError as error:
        pytest.skip(str(error))


def test_a_state_that_terraform_could_not_write_to_the_bucket_gets_there_with_the_next_run(bench):
    runner = bench.runner("a", FAST)
    make(runner)
    remote = runner.remote
    older = remote.objects.get(remote.state_key)
    (runner.directory / "main.tf").write_text(FAST.replace("count = 2", "count = 3"))
    make(runner)
    newer = remote.objects.get(remote.state_key)
    remote.objects.put(remote.state_key, older)
    (runner.directory / "errored.tfstate").write_bytes(newer)
    with runner.hold("look"):
        assert remote.objects.get(remote.state_key) == newer
    assert not (runner.directory / "errored.tfstate").exists()

    (runner.directory / "errored.tfstate").write_bytes(older)
    with runner.hold("look"):
        assert remote.objects.get(remote.state_key) == newer
    assert (runner.directory / "errored.tfstate").read_bytes() == older, "what is older is kept, not written"

    (runner.directory / "errored.tfstate").write_bytes(newer)
    remote.objects.delete([remote.state_key])
    if remote.kind == "s3":  # its first run could write none; at Google a state is there from the first moment
        with runner.hold("look"):
            assert remote.objects.get(remote.state_key) == newer


def test_a_store_where_a_lock_keeps_nobody_out_is_refused(tmp_path):
    try:
        with servers.started("rclone", tmp_path / "server") as server:
            bench = Bench.on(server, tmp_path, "jobs")
            runner = bench.runner("a", FAST)
            with pytest.raises(StoreError, match="conditional writes are ignored") as caught:
                make(runner)
            assert "terraform.state" in caught.value.hint
    except servers.NotInstalledError as error:
        pytest.skip(str(error))


def test_an_older_terraform_is_told_apart_before_it_says_so_itself(bench):
    runner = bench.runner("a", FAST)
    if runner.remote.kind != "s3":
        pytest.skip("GCS was always locked")
    runner.toolchain = type(runner.toolchain)(runner.toolchain.terraform, runner.toolchain.env, version="1.9.8")
    with pytest.raises(TerraformError, match=r"1\.9\.8 cannot lock a state in S3"):
        runner.init()


def test_files_of_a_local_state_are_for_their_owner_only_also_after_a_crash(tmp_path):
    bench = Bench(tmp_path, f"file://{tmp_path}/store", {"PATH": os.environ["PATH"]}, state="local")
    (tmp_path / "bench.json").write_text(json.dumps([bench.uri, bench.environ]))
    runner = bench.runner("a", FAST)
    previous = os.umask(0o022)  # the most open one that people have
    try:
        make(runner)
        (runner.directory / "main.tf").write_text(FAST.replace("count = 2", "count = 3") + SLOW)
        plan = runner.plan()
        code = (
            "import sys; from pathlib import Path; from tests.integration.states import Bench\n"
            "from provisioner.terraform.plan import Allow, Plan\n"
            "bench = Bench.again(sys.argv[1], '1s'); bench.state = 'local'\n"
            "runner = bench.runner('a')\n"
            "runner.apply(Plan(runner.directory / 'plan.tfplan', (), outputs=True), Allow.PREPARE)\n"
        )
        crashed = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=Path.cwd(), start_new_session=True)
        wait_for(runner.directory / "started")
        crashed.kill()
        crashed.wait()
        (owner,) = (runner.directory / ".runs").glob("apply.*.owner")
        os.killpg(json.loads(owner.read_text())[0][0], signal.SIGKILL)
        names = {path.name for path in runner.directory.rglob("*")}
        assert {"terraform.tfstate", "terraform.tfstate.backup", "plan.tfplan"} <= names, names
        assert stat.S_IMODE(runner.directory.stat().st_mode) == 0o700
        for path in [*runner.directory.glob("*tfstate*"), plan.file, *(runner.directory / ".runs").iterdir()]:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    finally:
        os.umask(previous)


@pytest.mark.parametrize("answer", [0, -500])
def test_r01_a_lock_whose_answer_is_lost_on_the_line_is_ours_and_goes(tmp_path, answer):
    with (
        servers.started("moto", tmp_path / "server") as server,
        ruled(str(server.endpoint).removeprefix("http://"), server.bucket) as line,
    ):
        lost = []

        def rule(method: str, path: str, _: dict[str, str]) -> int | None:
            if method == "PUT" and path.endswith(".tflock") and not lost:
                lost.append(path)
                return answer
            return None

        line.rule = rule
        bench = Bench.on(server, tmp_path, "jobs")
        bench.environ |= server.environ(line.url)
        runner = bench.runner("a", FAST)
        make(runner)
        assert lost
        assert set(runner.state()) == MANY
        assert [name for name in bench.objects() if "lock" in name] == []


def test_a_state_that_an_earlier_version_made_here_stays_here_until_it_is_moved(bench):
    bench.state = "local"
    make(bench.runner("a", FAST))
    (bench.stack("a") / "state-place.json").unlink()
    bench.state = "store"
    told = []
    states = bench.states("a")
    states.emit = lambda kind, **fields: told.append((kind, fields["state"], fields["wanted"]))
    runner = bench.runner("a", states=states)
    assert (runner.remote, set(runner.state())) == (None, MANY)
    assert told == [("state_elsewhere", "local", "store")]
    assert bench.objects() == []
