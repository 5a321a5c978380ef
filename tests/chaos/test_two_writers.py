"""A node is stopped in the middle of a save and wakes up after its successor has committed: it changes nothing.

Real processes, SIGSTOP and SIGCONT, on stores that honour conditional writes, ignore them and refuse them.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from provisioner.checkpoint import epochs
from provisioner.checkpoint.layout import Position
from provisioner.checkpoint.restore import committed, load, restore
from provisioner.checkpoint.retention import Policy, prune
from provisioner.checkpoint.store import Store, open_store
from provisioner.checkpoint.sweep import sweep
from provisioner.checkpoint.verify import verify
from tests.chaos.users import Users, users
from tests.ruled_proxy import ruled
from tests.servers import NotInstalledError, Server, started
from tests.trees import JOB, pattern, shape, write


class World(NamedTuple):
    """A store, and two who will write to it."""

    store: Store
    old: Users
    new: Users
    entries: list[Path]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Server]]:
    """Start a server of a kind when it is first asked for."""
    running: dict[str, Server] = {}
    with ExitStack() as stack:

        def server(kind: str) -> Server:
            if kind not in running:
                running[kind] = stack.enter_context(started(kind, tmp_path_factory.mktemp(kind)))
            return running[kind]

        yield server


@contextmanager
def world(kind: str, where: Path, servers: Callable[[str], Server]) -> Iterator[World]:
    entries = [
        write(where / f"{number}" / "state", shared=pattern("s", 700_000), own=pattern(f"o{number}", 600_000))
        for number in range(3)
    ]
    common: dict[str, Any] = {"entries": [str(entry) for entry in entries], "directory": str(where / "restored")}
    with ExitStack() as stack:
        if kind == "directory":
            store = open_store(f"file://{where}/store").at("digits")
            makers = [users(where, **common) for _ in range(2)]
        else:
            try:
                server = servers("rclone" if kind == "ignored" else "moto")
            except NotInstalledError as missing:
                pytest.skip(str(missing))
            endpoint = None
            if kind == "refused":
                assert server.endpoint is not None
                proxy = stack.enter_context(ruled(server.endpoint.removeprefix("http://"), server.bucket))
                proxy.rule = lambda _verb, _path, headers: 501 if "if-none-match" in headers else None
                endpoint = proxy.url
            store = server.store(where.name).at("digits")
            makers = [users(where, server, where.name, endpoint=endpoint, **common) for _ in range(2)]
        old, new = (stack.enter_context(maker) for maker in makers)
        yield World(store, old, new, entries)


def until_stopped(pid: int) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
            return
        time.sleep(0.01)
    raise AssertionError("it did not come to a stop")


KINDS = ["directory", "honoured", "ignored", "refused"]
"""A directory, and S3 services by what becomes of a conditional write there."""


@pytest.mark.parametrize("stop", ["packs/", "checkpoints/"], ids=["while it uploads", "right before its manifest"])
@pytest.mark.parametrize(
    ("kind", "swept"), [*((kind, False) for kind in KINDS), ("directory", True), ("honoured", True)]
)
def test_a_writer_that_wakes_up_after_its_successor_committed_is_refused_or_loses(kind, stop, swept, tmp_path, servers):
    with world(kind, tmp_path, servers) as (store, old, new, entries):
        first = old.start("node", epoch=1, stop=[3, stop])
        until_stopped(first.pid)
        assert old.announced() == ["owns 1", "1 1", "1 2"]
        new.run("node", epoch=2, steps=3)
        assert new.announced()[3:] == ["owns 2", "2 3", "2 4", "2 5"], "it went on from what was announced"
        if swept:
            prune(store, JOB, Policy(1), newest=Position(2, 5))
            sweep(store, grace_s=0)
        woken = time.monotonic()
        first.signal(signal.SIGCONT)
        assert first.wait() == 75, "fenced"
        assert time.monotonic() - woken < 5
        late = old.announced()[7:]
        assert late in ([], ["1 3"] if stop == "checkpoints/" and not swept else [])
        for number in range(2):
            found = restore(store, JOB, tmp_path / f"restored-{number}")
            assert found is not None
            assert found.position == Position(2, 5)
            assert shape(found.directory / "state") == shape(entries[5 % 3])
            sweep(store, grace_s=0)
        for line in late:
            manifest = load(store, Position(*map(int, line.split())), JOB)
            assert manifest is not None
            assert verify(store, manifest) == [], "what was announced is whole, though nobody will restore it"
        assert committed(store)[0] == Position(2, 5)
        assert epochs.newest_epoch(store) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_of_two_nodes_that_start_for_one_epoch_at_once_one_trains(kind, tmp_path, servers):
    """They have different tokens: two machines of one placement, one of which was thought to have failed."""
    with world(kind, tmp_path, servers) as (store, old, new, _):
        both = [old.start("node", epoch=1, token="one", steps=2), new.start("node", epoch=1, token="two", steps=2)]
        codes = sorted(user.wait() for user in both)
        assert codes == [0, 75]
        assert old.announced().count("owns 1") == 1
        assert committed(store) == [(1, 2), (1, 1)]
