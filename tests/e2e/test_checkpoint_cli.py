"""``failover checkpoint``: what people type, what they see, and what comes back."""

from __future__ import annotations

import http.client
import io
import json
import os
import pty
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from provisioner.checkpoint import CheckpointStore
from provisioner.checkpoint.store import Store
from provisioner.cli import main
from provisioner.cli.checkpoint.attended import one_line
from provisioner.cli.checkpoint.moves import _forecast
from provisioner.cli.checkpoint.places import Place
from provisioner.errors import Abandoned, ConfigError, Unreachable
from provisioner.model import JobRef
from tests.servers import Server, started
from tests.trees import disk_blocks, shape

FAILOVER = [sys.executable, "-m", "provisioner.cli"]
MEASURE = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)
"""
"""Runs a command and prints the most memory that it had, in MiB. A child of the tests would count theirs as well."""
_EXEC = "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
HEARS_CTRL_C = [sys.executable, "-c", f"import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); {_EXEC}"]
"""Python, also where whoever runs the tests has turned Ctrl-C off, as a shell does for what is in the background."""
JOB = JobRef("digits", "1a2b3c4d")


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with started("moto", tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a command in this process; return (exit code, stdout, stderr)."""

    monkeypatch.setattr(sys, "stdin", io.StringIO())

    def call(*arguments: object) -> tuple[int, str, str]:
        code = main(["checkpoint", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def write(path: Path, seed: int = 1, size: int = 200_000) -> Path:
    path.mkdir(parents=True)
    (path / "weights.bin").write_bytes(random.Random(seed).randbytes(size))
    (path / "state.json").write_text(json.dumps({"seed": seed}))
    return path


def odd_tree(path: Path) -> Path:
    """Write all that a file system can hold and a checkpoint keeps."""
    path.mkdir()
    for name in ("plain", "with space", "-rf", "new\nline", "模型.bin", "e\u0301", "#1?%2e", "x" * 255, ".hidden"):
        (path / name).write_bytes(name.encode() * 100)
    (path / os.fsdecode(b"not-\xff\xfe-utf8")).write_bytes(b"bytes")
    (path / "empty file").touch()
    (path / "deep" / "er" / "nothing").mkdir(parents=True)
    (path / "closed").mkdir()
    (path / "closed" / "secret").write_text("s")
    (path / "closed" / "secret").chmod(0o400)
    (path / "closed").chmod(0o500)
    (path / "tool.sh").write_text("#!/bin/sh\n")
    (path / "tool.sh").chmod(0o755)
    (path / "to file").symlink_to("plain")
    (path / "to folder").symlink_to("deep", target_is_directory=True)
    (path / "to nowhere").symlink_to("/nowhere/at/all")
    with (path / "sparse").open("wb") as file:
        file.write(b"begin")
        file.seek(64 * 2**20)
        file.write(b"middle")
        file.truncate(100 * 2**20)
    (path / "large").write_bytes(random.Random(7).randbytes(9 * 2**20 + 3))
    return path


def damage(tmp_path: Path, kind: str, which: int = -1) -> None:
    path = sorted((tmp_path / "store" / kind).iterdir(), key=lambda path: path.stat().st_mtime_ns)[which]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def take_up(tmp_path: Path, *, age_s: float) -> None:
    """Let it look as if a machine of a job had given a sign of life ``age_s`` seconds ago."""
    folder = tmp_path / "store" / "epochs" / "1"
    folder.mkdir(parents=True, exist_ok=True)
    (tmp_path / "store" / "spec.json").write_text(json.dumps({"job": {"name": JOB.name, "uid": JOB.uid}}))
    (folder / "owner.json").write_text(json.dumps({"token": "t"}))
    (folder / "heartbeat.json").write_text(json.dumps({"epoch": 1, "seq": 1}))
    for path in folder.iterdir():
        os.utime(path, (time.time() - age_s, time.time() - age_s))


@pytest.mark.parametrize("kind", ["file", "moto"])
def test_push_verify_pull_and_nothing_differs(kind: str, moto: Server, tmp_path: Path) -> None:
    tree = odd_tree(tmp_path / "DIR")
    place = moto.uri("odd") if kind == "moto" else f"file://{tmp_path}/store"
    failover = " ".join(FAILOVER)
    script = (
        f"{failover} checkpoint push DIR {place} && {failover} checkpoint verify {place} "
        f"&& {failover} checkpoint pull {place} DIR2 && diff -r --no-dereference DIR DIR2"
    )
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env={**os.environ, **(moto.environ() if kind == "moto" else {}), "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stdout == "step 1, epoch 0: whole\n"
    pushed, read, pulled = done.stderr.splitlines()
    assert re.fullmatch(r"pushed step 1: 109\.0 MiB, 1[01]\.\d MiB new, [\d.]+ s, [\d.]+ MiB/s", pushed)
    assert re.fullmatch(r"read 1[01]\.\d MiB in [\d.]+ s, [\d.]+ MiB/s", read)
    assert re.fullmatch(r"pulled step 1: 109\.0 MiB, 1[01]\.\d MiB fetched, [\d.]+ s, [\d.]+ MiB/s", pulled)
    assert shape(tmp_path / "DIR2") == shape(tree), "modes and links, too"
    assert disk_blocks(tmp_path / "DIR2") < 20 * 2**20, "a hole stays a hole"
    for folder in ("DIR", "DIR2"):
        (tmp_path / folder / "closed").chmod(0o700)


def test_json_on_stdout_is_all_that_stands_there(run: Any, uri: str, tmp_path: Path) -> None:
    entry = write(tmp_path / "step-40")
    code, out, err = run("push", entry, uri, "--metadata", "val_loss=0.31", "--metadata", "note=a b", "--json")
    pushed = json.loads(out)
    assert (code, len(err.splitlines())) == (0, 1)
    size = pushed["total_bytes"]
    assert set(pushed) == {
        *("uri", "key", "step", "epoch", "entry", "total_bytes", "uploaded_bytes", "seconds", "time"),
    }
    assert (pushed["step"], pushed["uploaded_bytes"]) == (40, size)
    run("push", entry, uri)
    _, out, _ = run("ls", uri, "--json")
    newest, oldest = json.loads(out)
    assert set(newest) == {
        *("step", "epoch", "key", "state", "problem", "time", "entry", "job", "total_bytes", "new_bytes", "files"),
        "metadata",
    }
    assert (newest["step"], newest["new_bytes"], oldest["new_bytes"]) == (41, 0, size)
    assert (oldest["key"], oldest["state"], oldest["files"]) == (pushed["key"], "ok", 2)
    assert oldest["metadata"] == {"val_loss": 0.31, "note": "a b"}
    _, out, _ = run("verify", uri, "--all", "--json")
    assert [(one["step"], one["whole"], one["problems"]) for one in json.loads(out)] == [(41, True, []), (40, True, [])]
    _, out, _ = run("pull", uri, tmp_path / "out", "--step", 40, "--json", "--seed", entry)
    pulled = json.loads(out)
    assert pulled == {
        "uri": uri,
        "key": pushed["key"],
        "step": 40,
        "epoch": 0,
        "target": str(tmp_path / "out"),
        "total_bytes": size,
        "fetched_bytes": 0,
        "seconds": pulled["seconds"],
    }
    _, out, _ = run("copy", uri, f"file://{tmp_path}/other", "--json")
    copied = json.loads(out)
    assert (copied["from"], copied["to"], copied["failed"]) == (uri, f"file://{tmp_path}/other", [])
    assert set(copied["copied"][0]) == {"step", "epoch", "key", "bytes", "packs", "seconds"}
    _, out, _ = run("rm", uri, "--step", 40, "--yes", "--json")
    assert json.loads(out) == {"uri": uri, "key": pushed["key"], "step": 40, "epoch": 0}
    _, out, _ = run("gc", uri, "--grace", "0", "--json")
    swept = json.loads(out)
    assert (swept["uri"], swept["grace_s"], swept["dry_run"], swept["kept"]) == (uri, 0, False, 1)


def test_ls_is_a_table_of_what_is_there(run: Any, uri: str, tmp_path: Path) -> None:
    run("push", write(tmp_path / "step-1", 1), uri, "--metadata", "val_loss=0.5")
    run("push", write(tmp_path / "step-2", 2), uri)
    damage(tmp_path, "checkpoints")
    code, out, err = run("ls", uri)
    head, damaged, whole = out.splitlines()
    assert (code, err) == (0, "")
    assert head.split() == ["step", "epoch", "size", "new", "files", "age", "entry", "metadata", "state"]
    assert "damaged: its manifest" in damaged
    assert whole.split() == [
        "1",
        "0",
        "195.3",
        "KiB",
        "195.3",
        "KiB",
        "2",
        whole.split()[7],
        "step-1",
        "val_loss=0.5",
        "ok",
    ]


@pytest.mark.parametrize("kind", ["checkpoints", "packs"])
def test_pull_takes_an_older_one_and_says_so_but_not_when_asked_for_a_step(
    run: Any, uri: str, tmp_path: Path, kind: str
) -> None:
    run("push", write(tmp_path / "step-1", 1), uri)
    run("push", write(tmp_path / "step-2", 2), uri)
    damage(tmp_path, kind)
    code, _, err = run("pull", uri, tmp_path / "exact", "--step", 2)
    assert code == 5
    assert "checkpoints/000000000002-000000.json" in err
    assert not (tmp_path / "exact").exists()
    code, out, err = run("pull", uri, tmp_path / "out")
    assert (code, out) == (0, "")
    assert "000000000002-000000.json is not usable" in err.splitlines()[0]
    assert shape(tmp_path / "out") == shape(tmp_path / "step-1")
    code, out, err = run("verify", uri)
    assert code == 5
    assert out.splitlines()[0] == "step 2, epoch 0: DAMAGED"
    assert "--resend" in err
    code, out, _ = run("verify", uri, "--all")
    assert code == 5
    assert "step 1, epoch 0: whole" in out
    if kind == "packs":
        run("push", tmp_path / "step-2", uri, "--resend")
        assert run("verify", uri)[0] == 0
    else:
        run("rm", uri, "--step", 2, "--yes")
        assert run("verify", uri, "--all")[0] == 0
        damage(tmp_path, "packs", 0)
        code, _, err = run("pull", uri, tmp_path / "nothing")
        assert code == 5
        assert "no checkpoint that can be restored" in err
        assert not (tmp_path / "nothing").exists()


def test_one_file_goes_and_comes_as_one(run: Any, uri: str, tmp_path: Path) -> None:
    (tmp_path / "model-7.ckpt").write_bytes(b"weights")
    run("push", tmp_path / "model-7.ckpt", uri)
    code, _, err = run("pull", uri, tmp_path / "back.ckpt")
    assert code == 0
    assert "step 7" in err
    assert (tmp_path / "back.ckpt").read_bytes() == b"weights"


def test_names_that_are_not_utf8_are_kept_and_shown(run: Any, uri: str, tmp_path: Path) -> None:
    entry = write(tmp_path / os.fsdecode(b"\xff\x1b[31m\n-9"))
    assert run("push", entry, uri)[0] == 0
    _, out, _ = run("ls", uri)
    assert len(out.splitlines()) == 2
    assert "\x1b" not in out
    done = subprocess.run([*FAILOVER, "checkpoint", "ls", uri, "--json"], capture_output=True, check=False)
    assert os.fsencode(json.loads(done.stdout)[0]["entry"]) == b"\xff\x1b[31m\n-9"
    code, _, err = run("push", os.fsdecode(b"nothing-\xff\n"), uri)
    assert code == 2
    assert len(err.splitlines()) == 1


def test_what_is_removed_goes_with_the_second_sweep(run: Any, uri: str, tmp_path: Path) -> None:
    for number in (1, 2):
        run("push", write(tmp_path / f"step-{number}", number), uri)
    code, _, err = run("rm", uri, "--step", 2, "--yes")
    assert code == 2
    assert "newest" in err
    code, _, err = run("rm", uri, "--step", 1)
    assert code == 2
    assert "--yes" in err
    assert run("rm", uri, "--step", 1, "--yes")[0] == 0
    _, out, err = run("gc", uri)
    assert "removed: 0 packs" in out
    packs = tmp_path / "store" / "packs"
    for path in packs.iterdir():
        os.utime(path, (time.time() - 7200, time.time() - 7200))
    _, out, err = run("gc", uri, "--dry-run")
    assert "would be condemned now: 1 packs" in out
    _, out, err = run("gc", uri)
    assert "condemned now: 1 packs, 195.3 KiB" in out
    assert "the first run 1h after that" in err
    assert len(list(packs.iterdir())) == 2
    for path in (tmp_path / "store" / "sweeps").iterdir():
        os.utime(path, (time.time() - 3601, time.time() - 3601))
    _, out, _ = run("gc", uri)
    assert "removed: 1 packs, 195.3 KiB" in out
    assert len(list(packs.iterdir())) == 1
    assert run("verify", uri)[0] == 0


def test_copies_are_whole_and_a_damaged_one_stops_only_itself(run: Any, uri: str, moto: Server, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        run("push", write(tmp_path / f"step-{number}", number), uri)
    damage(tmp_path, "packs", 1)
    there = moto.uri("copies")
    assert moto.credentials is not None
    environ = moto.environ()
    done = subprocess.run(
        [*FAILOVER, "checkpoint", "copy", uri, there, "--all", "--json"],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 5, done.stderr
    outcome = json.loads(done.stdout)
    assert [one["step"] for one in outcome["copied"]] == [3, 1]
    assert [one["step"] for one in outcome["failed"]] == [2]
    store = CheckpointStore(moto.store("copies"))
    assert [one.step for one in store.list()] == [3, 1]
    store.restore(tmp_path / "out")
    assert shape(tmp_path / "out") == shape(tmp_path / "step-3")


def test_what_a_copy_costs_is_said_where_the_clouds_are_known(uri: str, tmp_path: Path) -> None:
    store = CheckpointStore(uri)
    store.save(write(tmp_path / "step-1"))
    (one,) = store.list()
    aws = Place(CheckpointStore("s3://here/run", region="us-east-1"), None, "us-east-1")
    google = Place(CheckpointStore("gs://there/run", endpoint="http://127.0.0.1:1"), None, "us-central1")
    assert re.fullmatch(
        r"step 1: 10\.0 GiB to send from aws to gcp: about \$0\.97 egress, list prices of \d{4}-\d\d",
        _forecast(aws, google, one, 10 * 2**30),
    )
    assert _forecast(Place(store, None, None), aws, one, 2**20) == "step 1: 1.0 MiB to send"


def test_without_a_uri_it_is_the_job_of_failover_yaml(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = run("ls")
    assert code == 2
    assert "there is no failover.yaml here" in err
    job = {"name": "small", "command": "true", "secrets": ["NOT_SET_API_KEY"]}
    config = {"job": job, "checkpoint": {"store": f"file://{tmp_path}/store"}, "fallback": [{"local": {}}]}
    Path("failover.yaml").write_text(yaml.safe_dump(config))
    code, _, err = run("ls")
    assert (code, "no such directory" in err) == (5, True)
    assert not (tmp_path / "store").exists()
    assert run("push", write(tmp_path / "step-3"))[0] == 0
    assert [path.name for path in (tmp_path / "store" / "small" / "checkpoints").iterdir()]
    _, out, _ = run("ls", "--json")
    assert [one["step"] for one in json.loads(out)] == [3]
    assert run("verify")[0] == 0
    assert run("pull", "out")[0] == 0
    assert shape(tmp_path / "out") == shape(tmp_path / "step-3")
    assert run("copy", f"file://{tmp_path}/other")[0] == 0
    assert run("gc", "--dry-run")[0] == 0


def test_a_job_that_trains_is_not_disturbed(run: Any, uri: str, tmp_path: Path) -> None:
    entry = write(tmp_path / "step-5")
    take_up(tmp_path, age_s=3)
    code, _, err = run("push", entry, uri)
    assert code == 2
    assert "a machine trains here" in err
    take_up(tmp_path, age_s=90)
    assert run("push", entry, uri)[0] == 0
    code, _, err = run("push", entry, uri, "--step", 5)
    assert code == 2
    assert "not newer than step 5" in err
    _, out, _ = run("ls", uri, "--json")
    (one,) = json.loads(out)
    assert (one["epoch"], one["job"]) == (1, {"name": JOB.name, "uid": JOB.uid})


def test_a_step_that_is_there_is_replaced_only_by_force(run: Any, uri: str, tmp_path: Path) -> None:
    run("push", write(tmp_path / "step-5", 1), uri)
    other = write(tmp_path / "other", 2)
    code, _, err = run("push", other, uri, "--step", 5)
    assert code == 2
    assert "step 5 is there already" in err
    assert run("push", other, uri, "--step", 5, "--force")[0] == 0
    run("pull", uri, tmp_path / "out")
    assert shape(tmp_path / "out") == shape(other)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["ls", "file:///nowhere/at/all"], 5, "no such directory"),
        (["pull", "file:///nowhere/at/all", "{new}"], 5, "no such directory"),
        (["verify", "{store}", "--step", "7"], 5, "no checkpoint of step 7"),
        (["rm", "{store}", "--step", "7", "--yes"], 5, "no checkpoint of step 7"),
        (["pull", "{store}", "{full}"], 2, "is there already"),
        (["pull", "{store}"], 2, "TARGET is missing"),
        (["pull", "{store}", "{new}", "{new}"], 2, "write URI and TARGET"),
        (["pull", "{store}", "/proc/nowhere/out"], 2, "No such file"),
        (["pull", "{store}", "{full}/step-1/state.json/out"], 2, "state.json: File exists"),
        (["push", "{new}", "{store}"], 2, "no such file or directory"),
        (["push", "{full}", "{store}/../.."], 2, "lies in it"),
        (["push", "{full}", "{full}"], 2, "not the URI of a store"),
        (["push", "{full}", "ftp://host/x"], 2, "no such store"),
        (["push", "{full}", "s3://"], 2, "no such store"),
        (["push", "{full}", "s3://key:secret@bucket/x"], 2, "holds no key"),
        (["push", "{full}", "file:///dev/null/x"], 5, "Not a directory"),
        (["push", "{full}/step-1", "{store}", "--step", "-1"], 2, "a step is a number"),
        (["push", "{full}", "{store}", "--step", "x"], 2, "not a valid integer"),
        (["push", "{full}", "{store}", "--metadata", "loss"], 2, "KEY=VALUE"),
        (["gc", "{store}", "--grace", "5"], 2, "is not a duration"),
        (["copy", "{store}", "{full}"], 2, "not the URI of a store"),
        (["verify", "{store}", "--all", "--step", "1"], 2, "exclude each other"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_input_is_one_line_and_what_to_do(
    run: Any, tmp_path: Path, arguments: list[str], code: int, words: str
) -> None:
    full = tmp_path / "full"
    write(full / "step-1")
    (full / "sub").mkdir()
    store = f"file://{full}/sub/store"
    CheckpointStore(store).save(full / "step-1")
    before = sorted(tmp_path.rglob("*"))
    places = {"store": store, "full": str(full), "new": str(tmp_path / "new")}
    got, out, err = run(*(argument.format(**places) for argument in arguments))
    assert (got, out) == (code, ""), err
    assert words in err
    assert "secret" not in err
    assert "Traceback" not in err
    assert len(err.splitlines()) <= 2
    assert sorted(tmp_path.rglob("*")) == before


def test_without_a_key_or_a_bucket_the_store_says_so(run: Any, moto: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1")
    begun = time.monotonic()
    code, _, err = run("ls", moto.uri("x"), "--endpoint", moto.endpoint)
    assert code == 5
    assert len(err.splitlines()) <= 2
    assert time.monotonic() - begun < 30
    for name, value in moto.environ().items():
        monkeypatch.setenv(name, value)
    code, _, err = run("ls", "s3://no-such-bucket/x")
    assert code == 5
    assert "no such bucket" in err


def test_a_service_whose_address_is_none_is_refused(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    for address in ("nonsense", "http://", "http://host:port", "http://a b", "http://[::1", "ftp://host"):
        code, _, err = run("ls", "s3://bucket/x", "--endpoint", address)
        assert code == 2
        assert "is no address of a service" in err


def test_a_file_that_cannot_be_read_is_named() -> None:
    @one_line
    def command() -> int:
        raise PermissionError(13, "Permission denied", "some\nwhere")

    with pytest.raises(ConfigError, match=r"some\?where: Permission denied"):
        command()


def test_a_reader_that_goes_away_is_no_error(run: Any, uri: str, tmp_path: Path) -> None:
    run("push", write(tmp_path / "step-1"), uri)
    for command in (["ls", uri], ["ls", uri, "--json"], ["verify", uri]):
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run(
            [*FAILOVER, "checkpoint", *command], stdout=writer, stderr=subprocess.PIPE, text=True, check=False
        )
        os.close(writer)
        assert done.returncode == 0
        assert "roken" not in done.stderr
        assert "Traceback" not in done.stderr


def test_a_terminal_sees_a_bar_with_rate_and_time_left(uri: str, tmp_path: Path) -> None:
    entry = write(tmp_path / "step-1", size=20_000_000)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*FAILOVER, "checkpoint", "push", str(entry), uri], stdout=subprocess.DEVNULL, stderr=theirs, env=os.environ
    )
    os.close(theirs)
    seen = b""
    try:
        while part := os.read(ours, 4096):
            seen += part
    except OSError:
        pass  # a terminal whose other side is closed
    os.close(ours)
    assert process.wait() == 0
    assert "pushing" in seen.decode()
    assert re.search(r"/1[89]\.\d MiB", seen.decode())
    assert "pushed step 1" in seen.decode().splitlines()[-1]


def test_push_and_pull_keep_within_their_memory(uri: str, tmp_path: Path) -> None:
    bulk = random.Random(3).randbytes(2**20)
    with (tmp_path / "big").open("wb") as file:
        for number in range(500):
            file.write(number.to_bytes(8, "big") + bulk[8:])
    for command in (["push", tmp_path / "big", uri], ["pull", uri, tmp_path / "out"]):
        argv = [*FAILOVER, "checkpoint", *map(str, command)]
        done = subprocess.run([sys.executable, "-c", MEASURE, *argv], capture_output=True, text=True, check=True)
        assert int(done.stdout) < 256, command


@contextmanager
def stuck(server: Server) -> Iterator[tuple[str, threading.Event]]:
    """Stand before a server and let nobody have or send a pack; the event says that one was asked for."""
    assert server.endpoint is not None
    host = urlsplit(server.endpoint).netloc
    asked, over = threading.Event(), threading.Event()

    class Proxy(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if "/packs/" in self.path:
                asked.set()
                over.wait()
                return
            line = http.client.HTTPConnection(host)
            line.request(self.command, self.path, body, dict(self.headers))
            reply = line.getresponse()
            data = reply.read()
            self.send_response_only(reply.status)
            for name, value in reply.getheaders():
                if name.lower() not in {"transfer-encoding", "connection", "content-length"}:
                    self.send_header(name, value)
            self.send_header("Content-Length", reply.headers["Content-Length"] or str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            line.close()

        do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = answer

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        proxy.daemon_threads = True
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{proxy.server_port}", asked
        finally:
            over.set()
            proxy.shutdown()


@pytest.mark.parametrize(
    ("command", "sign"),
    [*((command, signal.SIGINT) for command in ("push", "pull", "verify", "copy")), ("pull", signal.SIGTERM)],
)
def test_ctrl_c_ends_it_within_a_second_and_nothing_half_done_is_left(
    command: str, sign: signal.Signals, moto: Server, tmp_path: Path
) -> None:
    place = f"{command}-{sign.name.lower()}-stuck"
    entry = write(tmp_path / "work" / "step-1", size=30_000_000)
    store = CheckpointStore(moto.store(place))
    store.save(entry, 1)
    (entry / "weights.bin").write_bytes(random.Random(2).randbytes(30_000_000))
    with stuck(moto) as (endpoint, asked):
        uri = moto.uri(place)
        arguments = {
            "push": ["push", str(entry), uri],
            "pull": ["pull", uri, str(tmp_path / "work" / "out")],
            "verify": ["verify", uri],
            "copy": ["copy", uri, f"file://{tmp_path}/copy"],
        }[command]
        process = subprocess.Popen(
            [*HEARS_CTRL_C, *FAILOVER[1:], "checkpoint", *arguments],
            env={**os.environ, **moto.environ(endpoint)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert asked.wait(30)
        process.send_signal(sign)
        begun = time.monotonic()
        out, err = process.communicate(timeout=30)
        took = time.monotonic() - begun
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1].startswith("failover: interrupted; ")
    assert "Traceback" not in err
    assert took < 1.5, "a second, and what a loaded machine needs to end a process"
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["step-1"]
    assert [one.step for one in store.list()] == [1]
    assert not list(tmp_path.glob("copy/checkpoints/*"))


@pytest.mark.parametrize("redirection", [">&-", "2>&-", ">&- 2>&-", "2>/dev/full"])
def test_closed_and_full_output_does_not_change_the_exit_code(redirection: str, uri: str, tmp_path: Path) -> None:
    entry = write(tmp_path / "step-1")
    for arguments, code in ((["push", str(entry), uri], 0), (["verify", uri], 0), (["ls", f"{uri}/missing"], 5)):
        command = ["sh", "-c", f'exec "$@" {redirection}', "sh", *FAILOVER, "checkpoint", *arguments]
        assert subprocess.run(command, check=False, capture_output=True).returncode == code


def test_all_mistakes_of_failover_yaml_are_told_a_line_for_each(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("failover.yaml").write_text("job: {name: 3}\nodd: 1\n")
    code, _, err = run("ls")
    assert code == 2
    assert len([line for line in err.splitlines() if "failover.yaml:" in line]) >= 3


def test_slips_are_answered_with_what_to_write(run: Any, uri: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    entry = write(tmp_path / "run")
    assert run("push", entry, uri, "--step", 999_999_999_999)[0] == 0
    for arguments, words in (
        (["push", "", uri], "an empty path"),
        (["pull", uri, ""], "TARGET is empty"),
        (["push", tmp_path / "loop", uri], "loop: "),
        (["ls", "s3://"], "s3://: no such store"),
        (["ls", f"file://{tmp_path}/file"], "is a file"),
        (["rm", uri, "--step", 999_999_999_999, "--yes"], "--force"),
        (["push", entry, uri], "name a smaller step"),
    ):
        code, out, err = run(*arguments)
        assert (code, out) == (2, ""), arguments
        assert words in err


def test_an_address_that_does_not_answer_is_named() -> None:
    @one_line
    def command(*, endpoint: str) -> int:
        raise Unreachable(f"cannot list s3://bucket at {endpoint}: no answer")

    with pytest.raises(Unreachable) as refusal:
        command(endpoint="http://127.0.0.1:9")
    assert refusal.value.hint.startswith("http://127.0.0.1:9 did not answer: check --endpoint")


def test_a_push_that_came_to_its_manifest_is_not_said_to_be_nothing(
    run: Any, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = write(tmp_path / "step-1")
    put = Store.put

    def stops(part: str) -> Any:
        def interrupted(store: Store, key: str, *rest: Any) -> None:
            put(store, key, *rest)
            if key.startswith(part):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.3)
                raise Abandoned("told to stop")

        return interrupted

    for part, words in (("packs/", "nothing was saved"), ("checkpoints/", "it may have been saved: ")):
        monkeypatch.setattr(Store, "put", stops(part))
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs this may have turned it off
        try:
            code, _, err = run("push", entry, uri, "--step", 1, "--force")
        finally:
            signal.signal(signal.SIGINT, before)
        assert (code, words in err) == (130, True), err
