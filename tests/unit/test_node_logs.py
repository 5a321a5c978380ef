"""What the node keeps of the command's output, whatever the command prints, and how fast."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path

import pytest
import zstandard

from provisioner.checkpoint import layout
from provisioner.checkpoint.store import open_store
from provisioner.errors import Unreachable
from provisioner.node import logs
from provisioner.node.logs import Log, Quota, split


def lines_of(script: str, **quota) -> list[bytes]:
    """Run a command through the splitter, as the node does."""
    taken: list[bytes] = []
    with subprocess.Popen([sys.executable, "-S", "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        split(process.stdout.fileno(), taken.append, **quota)
    return taken


def test_a_command_that_prints_too_much_is_not_held_up_and_every_line_is_kept_or_counted():
    script = """
import sys, time
for number in range(20):
    sys.stdout.write("noise\\n" * 25_000 + f"step {number}\\n")
    sys.stdout.flush()
    time.sleep(0.1)
"""
    begin = time.monotonic()
    taken = lines_of(script)
    assert time.monotonic() - begin < 10
    left_out = [int(found[1]) for line in taken if (found := re.match(rb"\[failover\] (\d+) lines", line))]
    kept = [line for line in taken if not line.startswith(b"[failover]")]
    assert len(kept) < logs.MOST_LINES + 15 * logs.LINES_A_SECOND
    assert b"step 19" in kept, "the newest step is never left out"
    steps = sum(line.startswith(b"step") for line in kept)
    assert 20 * 25_001 <= sum(left_out) + len(kept) <= 20 * 25_001 + steps  # a step may be counted, and shown


def test_a_line_of_100_mb_is_one_line_that_says_what_is_missing():
    tracemalloc.start()
    taken = lines_of("import sys\nfor _ in range(100):\n    sys.stdout.write('x' * 1_000_000)\nprint('\\nnext')")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    long, after = taken
    found = re.fullmatch(rb"(x+) \[failover: (\d+) more bytes are left out\]", long)
    assert found
    assert len(found[1]) <= logs.LONGEST_LINE
    assert len(found[1]) + int(found[2]) == 100_000_000
    assert after == b"next"
    assert peak < 4 * 2**20


def test_a_secret_at_the_cut_of_a_long_line_does_not_show_its_first_half():
    line = "x" * (logs.LONGEST_LINE - 5) + "top-secret-value and more"
    assert b"top-s" not in b"".join(lines_of(f"print({line!r})"))
    blank = "x " * (logs.LONGEST_LINE // 2 - 3) + "top-secret-value and more"
    (kept,) = lines_of(f"print({blank!r})")
    assert b"top-s" not in kept
    assert len(kept) > logs.LONGEST_LINE - 100


def test_what_is_left_out_is_told_when_the_command_goes_quiet():
    read, write = os.pipe()
    taken: list[bytes] = []
    reader = threading.Thread(target=split, args=(read, taken.append))
    reader.start()
    os.write(write, b"first\n")
    for _ in range(10):
        os.write(write, b"n\n" * 30_000)
    end = time.monotonic() + 10
    while not any(line.startswith(b"[failover]") for line in taken):
        assert time.monotonic() < end
        time.sleep(0.05)
    os.write(write, b"last\n")
    os.close(write)
    reader.join()
    os.close(read)
    assert (taken[0], taken[-1]) == (b"first", b"last")


def test_binary_output_arrives_as_it_is():
    quota = Quota()
    data = bytes(range(14, 256)) * 20
    assert lines_of(f"import sys; sys.stdout.buffer.write({data!r} + b'\\n')", quota=quota) == [data]


class Store:
    """A store that stores a part and loses the answer, as often as ``lost`` says."""

    def __init__(self, lost: int) -> None:
        self.real = open_store("memory://").at("digits")
        self.lost = lost
        self.versions: dict[str, set[bytes]] = {}

    def objects(self, folder):
        return self.real.objects(folder)

    def put(self, key, data):
        self.real.put(key, data)
        self.versions.setdefault(key, set()).add(bytes(data))
        if self.lost:
            self.lost -= 1
            raise Unreachable("the answer was lost")


def test_a_part_of_the_log_never_changes_so_that_who_follows_misses_nothing(tmp_path: Path):
    store = Store(lost=3)
    log = Log(tmp_path / "log.txt", store, 1, every_s=0.02)  # type: ignore[arg-type]
    log.start()
    for number in range(40):
        log.line(b"line %d" % number)
        time.sleep(0.005)
    log.finish(5)
    assert {len(versions) for versions in store.versions.values()} == {1}
    text = b"".join(zstandard.decompress(*versions) for _, versions in sorted(store.versions.items()))
    assert text.splitlines() == [b"line %d" % number for number in range(40)]


def test_a_restarted_node_goes_on_after_the_highest_number(tmp_path: Path):
    store = open_store("memory://").at("digits")
    store.put(layout.log_part(1, 7), b"")
    log = Log(tmp_path / "log.txt", store, 1)
    log.start()
    log.line(b"more")
    log.finish(5)
    assert log.last_key == layout.log_part(1, 8)


@pytest.mark.parametrize("line", [b"", b"x" * 1000])
def test_memory_is_bounded_while_the_store_is_away_however_short_the_lines(tmp_path: Path, line: bytes):
    log = Log(tmp_path / "log.txt", Store(lost=10**9), 1, every_s=0.1)  # type: ignore[arg-type]
    log.start()
    tracemalloc.start()
    for _ in range(400_000 if not line else 40_000):
        log.line(line)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    log.stop()
    log.finish(5)
    assert held < 1.5 * logs.BUFFER_BYTES


def test_a_line_that_comes_after_the_end_hurts_nobody(tmp_path: Path):
    """A hint read by the last heartbeat is told when the log has ended: that heartbeat must still be written."""
    log = Log(tmp_path / "log.txt", open_store("memory://"), 1)
    log.start()
    log.say("completed")
    log.finish(5)
    log.say("the controller gives notice: going home")
    assert (tmp_path / "log.txt").read_text().splitlines() == [
        "[failover] completed", "[failover] the controller gives notice: going home",
    ]  # fmt: skip
