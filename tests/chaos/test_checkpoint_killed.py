"""Saves, sweeps and restores are killed with -9 at random moments: nothing that was announced is lost or wrong."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from provisioner.checkpoint import layout
from provisioner.checkpoint.layout import Position
from provisioner.checkpoint.manifest import decode
from provisioner.checkpoint.restore import committed, load, restore
from provisioner.checkpoint.scratch import remove
from provisioner.checkpoint.store import Store, open_store
from provisioner.checkpoint.sweep import sweep
from provisioner.checkpoint.verify import verify
from tests.chaos.users import Users, users
from tests.servers import started
from tests.trees import JOB, pattern, shape, write

VARIANTS = 6


def entries(where: Path) -> list[Path]:
    """Write checkpoints that share half of their bytes with each other."""
    made = []
    for number in range(VARIANTS):
        entry = write(
            where / f"variant-{number}" / "state",
            **{f"shared-{part}": pattern(f"shared {part}", 500_000) for part in range(3)},
            **{f"own-{part}": pattern(f"own {number} {part}", 400_000) for part in range(3)},
            turn=pattern(f"turn {number % 2}", 700_000),
        )
        (entry / "deep").mkdir(mode=0o500)
        made.append(entry)
    return made


class Story:
    """What was done to a store, and what has to be true of it."""

    def __init__(self, where: Path, everybody: Users, store: Store, seed: int) -> None:
        self.where = where
        self.users = everybody
        self.store = store
        self.luck = random.Random(seed)
        self.entries = entries(where)
        self.shapes = [shape(entry) for entry in self.entries]
        self.restored = where / "restored"
        self.step = 0
        self.took: dict[str, float] = {}

    def begin(self) -> None:
        """Learn how long everything takes."""
        for verb in ("save", "save", "save", "clean", "bring"):
            self.took[verb] = self.users.run(verb, **self.order(verb))
        self.hold()

    def order(self, verb: str) -> dict[str, Any]:
        if verb == "save":
            self.step += 1
            return {"step": self.step, "entry": str(self.entries[self.step % VARIANTS])}
        return {"directory": str(self.restored)} if verb == "bring" else {}

    def kill(self, verb: str) -> None:
        """Start something and kill it at a random moment; once more if it was done by then."""
        while True:
            user = self.users.start(verb, **self.order(verb))
            time.sleep(self.luck.random() * self.took[verb])
            user.signal(signal.SIGKILL)
            code = user.wait()
            assert code in {0, -signal.SIGKILL}
            if code != 0:
                return
            self.hold()
            if verb == "clean":
                self.users.run("save", **self.order("save"))  # something to sweep next time

    def hold(self) -> None:
        """Check that the newest that was announced, or a newer one, comes back, and that all that is left is whole."""
        announced = [int(step) for step in self.users.announced()]
        found = restore(self.store, JOB, self.restored)
        assert found is not None
        assert found.position.step >= announced[-1]
        for path in self.restored.iterdir():  # also those that were restored by somebody who was killed
            step = int(path.name.split("-")[1])
            assert not path.name.startswith("."), "the next restore removes what a killed one left"
            assert shape(path / "state") == self.shapes[step % VARIANTS]
            remove(path)
        there = [position.step for position in committed(self.store)]
        assert announced[-1] in there
        for step in set(announced) & set(there):
            manifest = load(self.store, Position(1, step), JOB)
            assert manifest is not None
            assert verify(self.store, manifest) == []

    def end(self) -> None:
        """Sweep, and find what is needed and nothing else."""
        sweep(self.store, grace_s=0)
        needed = set()
        for position in committed(self.store):
            key = layout.manifest(position)
            needed.add(key)
            needed |= set(map(layout.pack, decode(self.store.get(key) or b"").packs))
        there = {stored.key for stored in self.store.objects("")}
        assert there <= needed
        assert {key for key in needed if key.startswith("checkpoints/")} <= there
        self.hold()

    def run(self, times: int) -> None:
        """Kill half of them in saves, the others in sweeps and restores."""
        self.begin()
        verbs = ["save", "save", "clean", "bring"] * (times // 4)
        self.luck.shuffle(verbs)
        for verb in verbs:
            self.kill(verb)
            self.hold()
        self.end()


def test_killed_at_200_random_moments_a_directory_still_restores_and_a_sweep_leaves_what_is_needed(tmp_path):
    store = open_store(f"file://{tmp_path}/store").at("digits")
    with users(tmp_path) as everybody:
        Story(tmp_path, everybody, store, seed=200).run(200)
    on_disk = {
        str(path.relative_to(tmp_path / "store/digits")) for path in (tmp_path / "store").rglob("*") if path.is_file()
    }
    assert on_disk == {stored.key for stored in store.objects("")}, "unfinished files of killed writers are gone, too"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_at_100_random_moments_an_s3_store_still_restores_and_a_sweep_leaves_what_is_needed(tmp_path):
    with started("moto", tmp_path / "moto") as server, users(tmp_path, server) as everybody:
        Story(tmp_path, everybody, server.store("root").at("digits"), seed=3).run(100)
