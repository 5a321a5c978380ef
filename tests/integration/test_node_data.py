"""Data on a machine's disk before the command starts: real nodes, real servers on loopback, real disks."""

from __future__ import annotations

import http.server
import io
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import zstandard

from provisioner.checkpoint import layout
from provisioner.node.data_links import PIECE_BYTES
from provisioner.node.data_parts import NOTE_BYTES

SHOW = """
import os, pathlib
root = pathlib.Path(os.environ["FAILOVER_DATA_DIR"])
for path in sorted(root.rglob("*")):
    if path.is_file():
        print("has", path.relative_to(root), path.stat().st_size, flush=True)
"""


class Web(http.server.ThreadingHTTPServer):
    """A web server that gives parts, as S3 does, and does what the test asks it to."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.files: dict[str, bytes] = {}
        self.sent = 0
        self.asked: Counter[str] = Counter()
        self.status: dict[str, int] = {}
        self.ranges = True
        self.breaks_after = 0
        """A connection is broken after so many bytes of one answer."""
        self.pause_s = 0.0
        """Between two pieces of 64 KiB."""
        self.lock = threading.Lock()

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}?X-Amz-Signature=canary-{name}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is no news."""


class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Web

    def log_message(self, *_: object) -> None:
        return

    def do_GET(self) -> None:
        web, name = self.server, self.path.partition("?")[0].lstrip("/")
        with web.lock:
            web.asked[name] += 1
        status, data = web.status.get(name, 200), web.files.get(name)
        if data is None or status != 200:
            self.send_response(status if data is not None else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        start, end, asked = 0, len(data), self.headers.get("Range")
        if asked and web.ranges:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start, end = int(first), min(len(data), int(last or len(data)) + 1)
        self.send_response(206 if asked and web.ranges else 200)
        if asked and web.ranges:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
        self.send_header("Content-Length", str(end - start))
        self.send_header("ETag", etag_of(data))
        self.end_headers()
        gone = 0
        for at in range(start, end, 65536):
            piece = data[at : min(at + 65536, end)]
            self.wfile.write(piece)
            gone += len(piece)
            with web.lock:
                web.sent += len(piece)
            if web.pause_s:
                time.sleep(web.pause_s)
            if web.breaks_after and gone >= web.breaks_after:
                self.close_connection = True
                return


def etag_of(data: bytes) -> str:
    return f'"{sha256(data).hexdigest()[:32]}"'


@pytest.fixture
def web():
    server = Web()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def entry(web: Web, names: list[str], to: str = "set", **more: Any) -> dict[str, Any]:
    single = {"source": f"https://example.com/{names[0]}"} if more.get("unpack") or more.get("sha256") else {}
    return {
        "source": "s3://bucket/set/",
        "place": ["s3://bucket/set/", ""],
        "to": to,
        "sha256": None,
        "unpack": False,
        "ranges": True,
        "etags": True,
        "files": [[name, len(web.files[name]), etag_of(web.files[name]), web.url(name)] for name in names],
        **single,
        **more,
    }


class Machine:
    """A machine with a cache, and the list that the controller would write for each of its epochs."""

    def __init__(self, node_job: Any) -> None:
        self.job = node_job
        self.home = node_job.root / "home"

    def start(self, epoch: int, entries: list[dict[str, Any]], command: Any = None, **more: Any) -> Any:
        text = json.dumps({"version": 1, "entries": entries}).encode()
        self.job.store.put(layout.data(epoch), zstandard.compress(text))
        return self.again(epoch, command, **more)

    def again(self, epoch: int, command: Any = None, *, home: Path | None = None, **more: Any) -> Any:
        order = {"key": layout.data(epoch), "cache_bytes": more.pop("cache_bytes", None)}
        return self.job.start(
            epoch,
            command or self.job.script(SHOW),
            steps=None,
            data=order,
            environ={"FAILOVER_HOME": str(home or self.home)},
            **more,
        )

    def cached(self) -> list[Path]:
        return sorted(path for path in (self.home / "data/entries").glob("*/files/*/*") if path.is_file())


@pytest.fixture
def machine(node_job):
    return Machine(node_job)


def noise(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def fetched_by(node: Any) -> list[int]:
    """Return the bytes that each start of the node on this machine has fetched."""
    return [event["fetched_bytes"] for event in events(node)]


def events(node: Any) -> list[dict[str, Any]]:
    lines = (node.directory / "node/events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["kind"] == "data" and "fetched_bytes" in event]


def end_of(node: Any) -> str:
    return node.heartbeat()["end"]["reason"]


def test_the_command_finds_its_data_and_the_next_start_fetches_nothing(machine, web):
    web.files = {"a/one.bin": noise(40_000_000), "a/two.bin": b"", "b.txt": b"small"}
    first = machine.start(1, [entry(web, list(web.files))])
    assert first.wait() == 0, first.text()
    for line in ("has set/a/one.bin 40000000", "has set/a/two.bin 0", "has set/b.txt 5"):
        assert line in first.log()
    assert first.heartbeat()["data"] == {"bytes": 40_000_005, "of": 40_000_005}
    assert machine.job.store.get(layout.data(1)) is None, "the links must not stay in the store"
    sent = web.sent
    second = machine.start(2, [entry(web, list(web.files))])
    assert second.wait() == 0
    assert "has set/a/one.bin 40000000" in second.log()
    assert web.sent == sent
    assert "canary" not in first.log() + first.text() + machine.job.store_log(1) + second.log()


def test_a_node_killed_while_it_fetches_goes_on_where_it_was(machine, web):
    web.files = {"big.bin": noise(120_000_000), **{f"small-{n}": noise(1000, n) for n in range(50)}}
    web.pause_s = 0.03
    first = machine.start(1, [entry(web, list(web.files))])
    here = first.until(lambda: (bytes_here := first.heartbeat().get("data", {}).get("bytes", 0)) > 4e7 and bytes_here)
    first.process.kill()
    first.process.wait()
    web.pause_s = 0.0
    again = machine.again(1)
    assert again.wait() == 0, again.text()
    assert "has set/big.bin 120000000" in again.log()
    total = sum(map(len, web.files.values()))
    assert fetched_by(again)[-1] <= total - here + 16 * (NOTE_BYTES + PIECE_BYTES), "only the last MiB of each request"
    (kept,) = [path for path in machine.cached() if path.stat().st_size == 120_000_000]
    assert kept.read_bytes() == web.files["big.bin"]


def test_connections_that_break_and_servers_that_give_no_parts_do_no_harm(machine, web):
    web.files = {"big.bin": noise(20_000_000)}
    web.breaks_after = 3_000_000
    first = machine.start(1, [entry(web, ["big.bin"], sha256=sha256(web.files["big.bin"]).hexdigest())])
    assert first.wait() == 0, first.text()
    web.breaks_after, web.ranges = 0, False
    second = machine.start(2, [entry(web, ["big.bin"])], home=machine.job.root / "other")
    assert second.wait() == 0, second.text()
    assert "has set/big.bin 20000000" in second.log()


def test_a_server_without_parts_whose_connections_break_is_named(machine, web):
    web.files = {"a": noise(5_000_000), "b": noise(500_000)}
    web.breaks_after, web.ranges = 200_000, False
    node = machine.start(1, [entry(web, ["a", "b"], ranges=False)])
    assert node.wait() == 75
    assert "the connection broke 6 times, and it cannot be taken up in its middle" in end_of(node)


def test_a_changed_object_is_fetched_anew_and_the_others_are_not(machine, web):
    web.files = {"a": noise(1000), "b": noise(1000, 2), "c": noise(5, 3)}
    assert machine.start(1, [entry(web, ["a", "b", "c"])]).wait() == 0
    web.files |= {"b": noise(1000, 9)}
    web.asked.clear()
    second = machine.start(
        2, [entry(web, ["a", "b"])], "cat $FAILOVER_DATA_DIR/set/b | sha256sum; ls $FAILOVER_DATA_DIR/set"
    )
    assert second.wait() == 0
    assert dict(web.asked) == {"b": 1}
    assert sha256(web.files["b"]).hexdigest() in second.log()
    assert len(machine.cached()) == 2, "what the list does not name any more goes"


def test_an_object_that_changes_after_it_was_listed_ends_the_placement_by_name(machine, web):
    web.files = {"a": noise(1000)}
    listed = entry(web, ["a"])
    web.files["a"] = noise(1000, 2)
    node = machine.start(1, [listed])
    assert node.wait() == 75
    assert end_of(node) == "s3://bucket/set/a: it has changed since it was listed"


def test_links_that_end_while_the_data_come_are_replaced_by_those_of_a_newer_list(machine, web):
    """The connection breaks again and again, so that links are asked by anew."""
    data = noise(30_000_000)
    web.files = {"a": data, "again/a": data, "b": b"small"}
    web.breaks_after, web.pause_s = 2_000_000, 0.01
    old = [entry(web, ["a", "b"])]
    new = json.loads(json.dumps(old))
    new[0]["files"][0][3] = web.url("again/a")
    node = machine.start(1, old)
    node.until(lambda: web.sent > 5_000_000)
    machine.job.store.put(layout.data(1), zstandard.compress(json.dumps({"version": 1, "entries": new}).encode()))
    web.status["a"] = 403
    assert node.wait() == 0, node.text()
    assert "has set/a 30000000" in node.log()
    assert node.log().count("links have ended; going on with new ones") == 1
    assert web.asked["again/a"] > 0
    assert fetched_by(node) == [30_000_005]
    assert machine.job.store.get(layout.data(1)) is None, "the links must not stay in the store"
    assert "canary" not in node.log() + node.text()


def test_a_newer_list_that_was_not_needed_does_not_stay_in_the_store(machine, web):
    web.files = {"a": noise(4_000_000)}
    web.pause_s = 0.05
    node = machine.start(1, [entry(web, ["a"])])
    node.until(lambda: web.sent > 500_000)
    machine.job.store.put(layout.data(1), b"not even read")
    assert node.wait() == 0
    assert machine.job.store.get(layout.data(1)) is None


@pytest.mark.parametrize("status", [400, 403])
def test_a_dead_link_is_a_clear_end_without_the_link(machine, web, status):
    web.files = {"a": noise(1000), "b": noise(10)}
    web.status["a"] = status
    node = machine.start(1, [entry(web, ["a", "b"])])
    assert node.wait() == 75
    assert end_of(node) == (
        f"s3://bucket/set/a: the link to it is dead or refused ({status}); the next machine gets a new one"
    )
    assert "canary" not in node.log() + node.text() + (node.directory / "node/events.jsonl").read_text()


def test_a_wrong_sum_fails_the_job_and_leaves_nothing(machine, web):
    web.files = {"a": noise(1000)}
    node = machine.start(1, [entry(web, ["a"], sha256="0" * 64)])
    assert node.wait() == 1
    assert "its SHA-256 is" in end_of(node)
    assert machine.cached() == []


def test_what_the_command_does_to_its_data_harms_no_later_start(machine, web):
    web.files = {"a": noise(1000), "b": noise(1000, 2), "c": noise(1000, 3)}
    harm = "cd $FAILOVER_DATA_DIR/set; printf x | dd of=a conv=notrunc; rm b; echo new > labels.cache; mv c d"
    assert machine.start(1, [entry(web, ["a", "b", "c"])], harm).wait() == 0
    web.asked.clear()
    second = machine.start(2, [entry(web, ["a", "b", "c"])], "cd $FAILOVER_DATA_DIR/set; sha256sum a; ls | xargs echo")
    assert second.wait() == 0
    assert dict(web.asked) == {"a": 1}, "only what was written in place comes again"
    assert sha256(web.files["a"]).hexdigest() in second.log()
    assert "a b c\n" in second.log()
    assert "changed or damaged in the cache: 1" in second.log()


def test_a_damaged_cache_is_noticed_after_a_reboot_whatever_its_times_say(machine, web):
    web.files = {"a": noise(1000), "b": noise(1000, 2)}
    assert machine.start(1, [entry(web, ["a", "b"])]).wait() == 0
    (index,) = (machine.home / "data/entries").glob("*/index.jsonl")
    lines = [json.loads(line) | {"boot": "another"} for line in index.read_text().splitlines()]
    index.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"name": "cut o')
    (damaged,) = [path for path in machine.cached() if path.read_bytes() == web.files["a"]]
    now = damaged.stat()
    damaged.chmod(0o600)
    damaged.write_bytes(b"\0" * 1000)
    os.utime(damaged, ns=(now.st_atime_ns, now.st_mtime_ns))
    web.asked.clear()
    second = machine.start(2, [entry(web, ["a", "b"])])
    assert second.wait() == 0
    assert dict(web.asked) == {"a": 1}


def test_a_command_that_is_started_again_with_half_the_batch_finds_its_data_again(machine, web):
    web.files = {"a": noise(1000)}
    command = (
        "cat $FAILOVER_DATA_DIR/set/a | wc -c; [ $FAILOVER_BATCH_SCALE = 0.5 ] || { echo CUDA out of memory; exit 1; }"
    )
    node = machine.start(1, [entry(web, ["a"])], command)
    assert node.wait() == 0, node.text()
    assert node.log().count("1000\n") == 2
    assert dict(web.asked) == {"a": 1}
    assert fetched_by(node) == [1000, 0]


def test_a_machine_that_stands_by_has_its_data_when_it_is_called(machine, web):
    web.files = {"a": noise(1000)}
    read = [
        sys.executable,
        "-S",
        "-c",
        "import os; print('data', os.listdir(os.environ['FAILOVER_DATA_DIR'] + '/set'))",
    ]
    away = machine.job.start(1, machine.job.trainer(steps=2000, pause=0.05), steps=2000)
    away.until_committed(10)
    home = machine.start(2, [entry(web, ["a"])], read, standby={"before": 1, "patience_s": 60, "trial_s": 20})
    home.until(lambda: home.heartbeat().get("phase") == "standby", 40)
    hint = {"final": True, "kind": "going home", "cause": "home"}
    machine.job.store.put(layout.hint(1), json.dumps(hint).encode())
    assert away.wait() == 75
    assert home.wait() == 0, home.text()
    assert home.log().count("data ['a']") == 2
    assert dict(web.asked) == {"a": 1}


def test_a_request_to_stop_cuts_it_short(machine, web):
    web.files = {"a": noise(50_000_000)}
    web.pause_s = 0.1
    node = machine.start(1, [entry(web, ["a"])])
    node.until(lambda: web.sent > 1_000_000)
    began = time.monotonic()
    node.process.send_signal(signal.SIGTERM)
    assert node.wait() == 75
    assert time.monotonic() - began < 5
    assert end_of(node) == "signal SIGTERM"


def packed(kind: str, members: dict[str, bytes]) -> bytes:
    raw = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in members.items():
                archive.writestr(name, data)
        return raw.getvalue()
    modes: dict[str, Any] = {"tar.gz": "w:gz", "tar.xz": "w:xz"}
    with tarfile.open(fileobj=raw, mode=modes.get(kind, "w")) as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        for name, to in (("linked/by-name", "../one/a"), ("folder", "one")):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, to
            tar.addfile(info)
    return zstandard.compress(raw.getvalue()) if kind == "tar.zst" else raw.getvalue()


@pytest.mark.parametrize("kind", ["tar", "tar.gz", "tar.xz", "tar.zst", "zip"])
def test_an_archive_is_unpacked_once_and_its_own_bytes_do_not_stay(machine, web, kind):
    web.files = {f"x.{kind}": packed(kind, {"one/a": noise(3000), "./two": b"2", "one/b": b""})}
    for epoch in (1, 2):
        node = machine.start(epoch, [entry(web, [f"x.{kind}"], unpack=True)])
        assert node.wait() == 0, node.text()
        for line in ("has set/one/a 3000", "has set/two 1", "has set/one/b 0"):
            assert line in node.log()
        if kind != "zip":
            assert "has set/linked/by-name 3000" in node.log()
            assert "has set/folder/a 3000" in node.log()
    assert web.asked[f"x.{kind}"] == 1
    assert machine.cached() == []
    (tree,) = (machine.home / "data/entries").glob("*/tree")
    harmed = next(path for path in tree.glob("*/*") if path.stat().st_size == 3000)
    harmed.chmod(0o600)
    harmed.write_bytes(b"harm")
    third = machine.start(3, [entry(web, [f"x.{kind}"], unpack=True)])
    assert third.wait() == 0
    assert "has set/one/a 3000" in third.log()
    assert web.asked[f"x.{kind}"] == 2


def test_two_nodes_of_one_machine_fetch_the_same_data_once(machine, web):
    web.files = {"a": noise(30_000_000)}
    web.pause_s = 0.002
    nodes = [machine.start(1, [entry(web, ["a"])])]
    nodes[0].until(lambda: web.sent > 1_000_000)
    machine.job.store.delete([layout.owner(1)])
    nodes.append(machine.start(2, [entry(web, ["a"])]))
    assert nodes[1].wait() == 0, nodes[1].text()
    assert "has set/a 30000000" in nodes[1].log()
    nodes[0].wait()
    assert web.sent <= 60_000_000


def test_the_least_recently_used_goes_first_and_what_is_in_use_stays(machine, web):
    web.files = {name: noise(2_000_000, n) for n, name in enumerate("abcd")}
    one = {name: entry(web, [name], place=[name, ""]) for name in "abcd"}
    for epoch, name in ((1, "a"), (2, "b"), (3, "a")):
        assert machine.start(epoch, [one[name]]).wait() == 0
        time.sleep(0.05)
    user = machine.start(4, [one["a"]], "echo ready; exec sleep 60")
    user.until(lambda: "ready" in user.log())
    machine.job.store.delete([layout.owner(4)])
    limited = machine.start(5, [one["c"]], cache_bytes=5_000_000, machine="machine-5")
    assert limited.wait() == 0, limited.text()
    assert "that other jobs left in the cache are removed" in limited.log()
    assert {path.read_bytes() for path in machine.cached()} == {web.files["a"], web.files["c"]}
    full = machine.start(6, [one["b"], one["d"]], cache_bytes=3_000_000)
    assert full.wait() == 75
    assert "policy.data_cache_gb leaves 2.9 MiB" in end_of(full)
    user.kill_machine()


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100m", "tmpfs", disk], capture_output=True, check=False)
    if made.returncode != 0:
        pytest.skip("no right to mount a small disk here")
    yield disk
    for _ in range(50):
        if subprocess.run(["umount", disk], capture_output=True, check=False).returncode == 0:
            return
        time.sleep(0.1)


def test_a_disk_without_room_is_named_with_its_sizes_before_anything_is_fetched(machine, web, small_disk):
    web.files = {"a": noise(95_000_000)}
    node = machine.start(1, [entry(web, ["a"])], home=small_disk)
    assert node.wait() == 75
    reason = end_of(node)
    assert reason.startswith("disk full: data: 90.6 MiB are to come")
    assert f"the disk {small_disk} has 100.0 MiB free" in reason
    assert "10.0 MiB are for checkpoints" in reason
    assert node.heartbeat()["end"]["cause"] == "disk_full"
    assert web.sent == 0


def test_what_is_replaced_makes_room_for_what_comes(machine, web, small_disk):
    web.files = {"a.tar": packed("tar", {"one/a": noise(35_000_000)})}
    assert machine.start(1, [entry(web, ["a.tar"], unpack=True)], home=small_disk).wait() == 0
    web.files["a.tar"] = packed("tar", {"one/a": noise(36_000_000, 2)})
    second = machine.start(2, [entry(web, ["a.tar"], unpack=True)], home=small_disk)
    assert second.wait() == 0, second.text()
    assert "has set/one/a 36000000" in second.log()


def test_a_disk_that_fills_up_meanwhile_is_named(machine, web, small_disk):
    web.files = {"x.zip": packed("zip", {"zeros": bytes(400_000_000)})}
    node = machine.start(1, [entry(web, ["x.zip"], unpack=True)], home=small_disk)
    assert node.wait() == 75
    assert "disk full" in end_of(node)
    assert str(small_disk) in end_of(node)


@pytest.mark.slow
@pytest.mark.long
def test_ten_thousand_small_files(machine, web, record_property):
    web.files = {f"{n % 100:02}/{n}": b"%d" % n for n in range(10_000)}
    took = []
    for epoch in (1, 2):
        node = machine.start(epoch, [entry(web, list(web.files))], "find $FAILOVER_DATA_DIR -type f | wc -l")
        assert node.wait(120) == 0, node.text()
        assert "10000\n" in node.log()
        took.append(events(node)[-1]["seconds"])
    record_property("seconds", took)
    print("10,000 files, seconds first and again:", took)
    assert took[1] < took[0]
