"""Is the node alive? As a container's HEALTHCHECK asks it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from provisioner.errors import Unreachable
from provisioner.node import health
from provisioner.node.heartbeat import Heartbeat


def asked(directory: Path, **environ: str) -> tuple[int, str]:
    argv = [sys.executable, "-m", "provisioner.node.health", *(() if environ else ("--directory", str(directory)))]
    ended = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, **environ}, check=False)
    return ended.returncode, ended.stderr


def test_a_node_that_kept_its_word_is_healthy_and_one_that_is_late_is_not(tmp_path):
    node = tmp_path / "node"
    assert asked(node) == (1, f"no sign of life of a node at {node / 'alive'}: No such file or directory\n")
    node.mkdir()
    health.sign(node, 60)
    assert asked(node) == (0, "")
    assert asked(node, FAILOVER_RUN=str(tmp_path)) == (0, "")
    health.sign(node, -90)
    code, line = asked(node)
    assert code == 1
    assert line.startswith("the node's sign of life is 9")
    assert "s overdue" in line
    assert line.count("\n") == 1


def test_a_disk_that_takes_nothing_stops_no_node(tmp_path):
    health.sign(tmp_path / "not there", 60)  # as on a disk that has gone
    assert health.trouble(tmp_path / "not there")


@pytest.mark.parametrize("away", [False, True], ids=["store there", "store away"])
def test_the_heartbeat_promises_its_next_sign_also_while_the_store_is_away(away):
    now, promises, ended = [0.0], [(0.0, 60.0)], threading.Event()

    class Store:
        def get(self, _key):
            return None

        def put(self, _key, _data):
            now[0] += 8.0  # as long as one try may take
            if away:
                raise Unreachable("away")

    def alive(within_s):
        at, promised = promises[-1]
        assert now[0] <= at + promised
        promises.append((now[0], within_s))
        if len(promises) > 40:
            beat.stop()
            ended.set()

    def sleep(seconds):
        now[0] += seconds

    class Passing(threading.Event):  # pauses pass at once, on the clock of this test
        def wait(self, timeout=None):
            sleep(timeout)
            return self.is_set()

    beat = Heartbeat(
        Store(),
        1,
        every_s=5.0,
        sample=dict,
        fence=lambda: sleep(8.0),
        on_fenced=lambda _: None,
        monotonic=lambda: now[0],
        sleep=sleep,
    )
    beat.alive = alive
    beat._closing, beat._hurry = Passing(), Passing()
    beat.start()
    assert ended.wait(20)
    assert len({promise for _, promise in promises}) > 1
