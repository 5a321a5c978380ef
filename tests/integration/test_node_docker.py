"""The start script with a real engine: an image without Python out of the store, in the container it is for."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioner.checkpoint import layout
from provisioner.checkpoint.save import Saver
from provisioner.controller.runtime_bundle import Bundle
from provisioner.model import JobRef
from tests import servers
from tests.image_trees import TRAINER, bare_tree, packed_bundle
from tests.integration.conftest import NodeJob
from tests.ruled_proxy import ruled
from tests.start_machines import Machine

pytestmark = pytest.mark.slow

CLIENTS = ("/usr/bin/docker", shutil.which("docker") or "")
LOOK = """
echo "files $(ulimit -n)"; echo "nccl $NCCL_SOCKET_IFNAME"; echo "home $HOME"
echo "shm" $(df -k --output=size /dev/shm | tail -n 1)
if (echo x >/etc/x) 2>/dev/null; then echo "root can be written"; else echo "root cannot be written"; fi
echo x >"$HOME/x" && echo x >/tmp/x && echo "home and tmp can be written"
"""


class Engine:
    """A Docker engine of the test's own."""

    def __init__(self, client: str, socket: Path) -> None:
        self.words = [client, "--host", f"unix://{socket}"]

    def __call__(self, *words: str, **options) -> str:
        return subprocess.run([*self.words, *words], check=True, capture_output=True, text=True, **options).stdout


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    daemon, client = (
        shutil.which("dockerd", path=f"{os.environ['PATH']}:/usr/sbin"),
        next(filter(os.path.exists, CLIENTS), ""),
    )
    if os.geteuid() != 0 or not daemon or not client:
        pytest.skip("a Docker engine of the test's own needs root, dockerd and docker")
    root = tmp_path_factory.mktemp("engine")
    made = Engine(client, root / "docker.sock")
    options = ["--data-root", root / "data", "--exec-root", root / "exec", "--pidfile", root / "pid"]
    options += ["--host", f"unix://{root}/docker.sock", "--bridge=none", "--iptables=false", "--ip6tables=false"]
    with (root / "log").open("wb") as log:
        process = subprocess.Popen([daemon, *options], stdout=log, stderr=log, start_new_session=True)
    try:
        for _ in range(150):
            if subprocess.run([*made.words, "info"], capture_output=True, check=False).returncode == 0:
                break
            if process.poll() is not None:
                pytest.skip("dockerd does not start here")
            time.sleep(0.1)
        yield made
    finally:
        process.terminate()
        process.wait(30)
        for mount in (root / "exec" / "netns").glob("*"):
            subprocess.run(["umount", mount], check=False, capture_output=True)
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(scope="session")
def saved_image(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """An image without Python, curl and wget, as `docker save` writes it."""
    tree = bare_tree(tmp_path_factory.mktemp("image") / "tree")
    tar = subprocess.run(["tar", "-c", "-C", tree, "."], check=True, capture_output=True).stdout
    subprocess.run([*engine.words, "import", "-", "bare:1"], input=tar, check=True, capture_output=True)
    saved = subprocess.run([*engine.words, "save", "bare:1"], check=True, capture_output=True).stdout
    engine("rmi", "bare:1")
    return saved


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return packed_bundle(tmp_path_factory.mktemp("bundle"))


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    with servers.started("moto", tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def machine(tmp_path, s3, engine, saved_image, bundle, request) -> Iterator[Machine]:
    job = NodeJob(tmp_path / "job")
    job.ref = JobRef("digits-" + tmp_path.name[-20:].replace("_", "-"), "1a2b3c4d")
    job.store = s3.store("jobs").at(job.ref.name)
    made = Machine(tmp_path / "machine", job, [])
    made.shim("docker", f'exec {" ".join(engine.words)} "$@"')
    made.site.files["/image.tar"] = saved_image
    yield made
    subprocess.run(
        [*engine.words, "rm", "--force", f"failover-{made.directory.name}"], check=False, capture_output=True
    )
    made.close()


def say(machine, s3, bundle, command, **orders):
    assert s3.credentials is not None
    keys = s3.credentials.as_json()
    where = {"uri": s3.uri("jobs"), "endpoint": s3.endpoint, "region": servers.REGION, "credentials": keys}
    orders = {**machine.bring(bundle), "archive": f"{machine.site.url}/image.tar", **orders}
    machine.say(["bash", "-c", command], steps=20, image="store://image.tar", orders=orders, store=where)


def test_an_image_without_python_trains_in_a_real_container(machine, s3, bundle, engine):
    say(machine, s3, bundle, LOOK + TRAINER, **{"read-only": "yes"})
    assert machine.boot().wait(90) == 0, machine.console()
    done = machine.job.done()
    assert (done["result"], done["final_step"]) == ("completed", 20), machine.log()
    log = machine.log()
    assert "root cannot be written" in log
    assert "home and tmp can be written" in log
    hard = subprocess.run(["bash", "-c", "ulimit -Hn"], capture_output=True, text=True, check=True).stdout.strip()
    assert f"files {min(int(hard), 1048576) if hard.isdigit() else 1048576}" in log
    kb = int(re.findall(r"MemTotal: +(\d+) kB", Path("/proc/meminfo").read_text())[0])
    shm = int(re.findall(r"^shm (\d+)$", log, re.MULTILINE)[0])
    assert 0 <= shm - kb // 2 < 4  # whole pages
    assert machine.shutdowns() == ["-h now"]
    assert engine("ps", "--all", "--quiet") == "", "the container is gone"


def test_a_stop_reaches_the_training_in_its_container(machine, s3, bundle):
    say(machine, s3, bundle, TRAINER.replace("-lt 20", "-lt 2000"))
    process = machine.boot()
    machine.until(lambda: bool(re.search(r"step \d+ is committed", machine.log())), 90)
    process.terminate()
    assert process.wait(90) == 75, machine.console()
    assert machine.job.done() is None
    assert machine.job.store.get(layout.heartbeat(1)) is not None


def committed(machine, mib: int = 8) -> None:
    """Commit a checkpoint of step 7 that does not shrink."""
    entry = machine.root / "saved"
    entry.mkdir()
    (entry / "step").write_text("7")
    (entry / "weights.bin").write_bytes(random.Random(1).randbytes(mib * 2**20))
    Saver(machine.job.store, machine.job.ref, 1, fence=lambda: None).save(entry, 7)


def slow_to_load(machine, engine, until: str) -> None:
    """Let the image be there no sooner than ``until`` holds, in bash."""
    wait = f"for _ in $(seq 600); do if {until}; then break; fi; sleep 0.1; done"
    machine.shim("docker", f'if [ "$1" = load ]; then {wait}; fi\nexec {" ".join(engine.words)} "$@"')


def prefetching(machine) -> list[int]:
    """Return the processes that fetch before the image is here."""
    found = []
    for pid in machine.mine():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"--prefetch" in words and b"provisioner.node" in words:
            found.append(pid)
    return found


def test_the_checkpoint_comes_while_the_image_does(machine, s3, bundle, engine):
    committed(machine)
    slow_to_load(machine, engine, 'compgen -G "$FAILOVER_RUN/node/runs/prefetched/restored/step-*" >/dev/null')
    say(machine, s3, bundle, TRAINER)
    assert machine.boot().wait(120) == 0, machine.console()
    console, log = machine.console(), machine.log()
    assert "failover: step 7 is here before the node runs (8.0 MiB in" in console
    assert re.search(r"failover: the image is here after \d+ s", console)
    assert re.search(r"restored step 7 of epoch 1 \(8\.0 MiB in [\d.]+ s, 0\.0 MiB of it fetched", log), log
    assert "\nstep 8\n" in log
    assert (machine.job.done() or {})["final_step"] == 20
    assert list((machine.directory / "node" / "runs").glob("prefetched")) == [], "no second copy stays"


def test_a_start_goes_on_where_what_comes_beside_the_image_hangs(machine, s3, bundle, engine):
    """The store says nothing until the container runs, and the process takes no SIGTERM."""
    committed(machine)
    slow_to_load(machine, engine, '[ -e "$HOME/go-on" ]')
    with ruled(s3.endpoint.removeprefix("http://"), s3.bucket) as line:

        def hang(*_: object) -> None:
            while not (machine.directory / "image").exists():
                time.sleep(0.05)

        line.rule = hang
        assert s3.credentials is not None
        keys = s3.credentials.as_json()
        where = {"uri": s3.uri("jobs"), "endpoint": line.url, "region": servers.REGION, "credentials": keys}
        orders = {**machine.bring(bundle), "archive": f"{machine.site.url}/image.tar"}
        machine.say(["bash", "-c", TRAINER], steps=20, image="store://image.tar", orders=orders, store=where)
        process = machine.boot()
        machine.until(lambda: line.seen, 90)
        (fetcher,) = prefetching(machine)
        for secret in keys.values():
            for place in ("cmdline", "environ"):
                assert str(secret).encode() not in Path(f"/proc/{fetcher}/{place}").read_bytes()
        os.kill(fetcher, signal.SIGSTOP)
        (machine.root / "go-on").touch()
        assert process.wait(120) == 0, machine.console()
    assert prefetching(machine) == []
    assert "orders.sh: line" not in machine.console(), "the shell has nothing to add"
    assert re.search(r"restored step 7 of epoch 1 \(8\.0 MiB in [\d.]+ s, 8\.0 MiB of it fetched", machine.log())
    assert (machine.job.done() or {})["final_step"] == 20
