"""Long random histories of saves, removals, sweeps and copies: every checkpoint stays what it was."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from provisioner.checkpoint import copying, layout
from provisioner.checkpoint.layout import Position
from provisioner.checkpoint.manifest import decode
from provisioner.checkpoint.restore import committed, load, restore
from provisioner.checkpoint.retention import Policy, prune
from provisioner.checkpoint.save import Saver
from provisioner.checkpoint.store import Store
from provisioner.checkpoint.sweep import sweep
from provisioner.checkpoint.verify import verify
from tests.trees import JOB, new_store, pattern, saver, shape, write

parts = st.dictionaries(st.sampled_from("abcde"), st.integers(0, 6), min_size=1)


class Histories(RuleBasedStateMachine):
    """Two stores, savers that live on or begin anew, and what each store should hold."""

    savers = Bundle("savers")

    @initialize()
    def begin(self) -> None:
        self.where = Path(tempfile.mkdtemp(prefix="history-"))
        self.stores = [new_store("one"), new_store("two")]
        self.held: list[dict[Position, Any]] = [{}, {}]
        self.steps = itertools.count(1)
        self.count = itertools.count(1)

    def teardown(self) -> None:
        if hasattr(self, "where"):
            shutil.rmtree(self.where, ignore_errors=True)

    @rule(target=savers, number=st.integers(0, 1), epoch=st.integers(1, 3))
    def somebody_comes(self, number: int, epoch: int) -> tuple[int, Saver]:
        return number, saver(self.stores[number], epoch)

    @rule(who=savers, parts=parts, again=st.booleans())
    def save(self, who: tuple[int, Saver], parts: dict[str, int], again: bool) -> None:
        number, keeper = who
        files = {name: pattern(str(what), 150 * (what + 1)) for name, what in parts.items()}
        entry = write(self.where / f"{next(self.count)}" / "state", **files)
        step = next(self.steps)
        mine = [position.step for position in self.held[number] if position.epoch == keeper.epoch]
        if again and mine:
            step = max(mine)  # over one that is there
        commit = keeper.save(entry, step)
        self.held[number][commit.position] = shape(entry)

    @rule(number=st.integers(0, 1), last=st.integers(1, 3))
    def keep_the_last(self, number: int, last: int) -> None:
        if self.held[number]:
            newest = max(self.held[number])
            for key in prune(self.stores[number], JOB, Policy(last), newest=newest):
                position = layout.position(key)
                assert position is not None
                del self.held[number][position]
            assert len(self.held[number]) <= last

    @rule(number=st.integers(0, 1))
    def remove_the_newest(self, number: int) -> None:
        if self.held[number]:
            newest = max(self.held[number])
            self.stores[number].delete([layout.manifest(newest)])
            del self.held[number][newest]

    @rule(number=st.integers(0, 1), grace_s=st.sampled_from([0, 0, 3600]), dry_run=st.booleans())
    def clean(self, number: int, grace_s: float, dry_run: bool) -> None:
        store = self.stores[number]
        before = objects(store)
        swept = sweep(store, grace_s=grace_s, dry_run=dry_run)
        gone = before - objects(store)
        assert {key for key in gone if key.startswith("checkpoints/")} == set()
        if dry_run or grace_s:
            assert gone <= {key for key in before if key.startswith("sweeps/")}
        else:
            assert len([key for key in gone if key.startswith("packs/")]) == swept.deleted
            assert {key for key in objects(store) if key.startswith("packs/")} == needed(store)

    @rule(number=st.integers(0, 1))
    def copy_the_newest(self, number: int) -> None:
        if not self.held[number]:
            return
        newest = max(self.held[number])
        copying.copy(self.stores[number], self.stores[1 - number], newest, job=JOB, threads=1)
        self.held[1 - number][newest] = self.held[number][newest]

    @invariant()
    def all_is_there(self) -> None:
        for store, held in zip(self.stores, self.held, strict=True):
            assert committed(store) == sorted(held, reverse=True)
            for position in held:
                manifest = load(store, position, JOB)
                assert manifest is not None
                assert verify(store, manifest, quick=True) == []
        for number, held in enumerate(self.held):
            found = restore(self.stores[number], JOB, self.where / "restored", threads=1)
            assert (found.position if found else None) == max(held, default=None)
            if found is not None:
                assert shape(found.directory / "state") == held[found.position]
                shutil.rmtree(found.directory)


def objects(store: Store) -> set[str]:
    return {stored.key for stored in store.objects("")}


def needed(store: Store) -> set[str]:
    return {
        layout.pack(identity)
        for position in committed(store)
        for identity in decode(store.get(layout.manifest(position)) or b"").packs
    }


Histories.TestCase.settings = settings(max_examples=40, stateful_step_count=30)
TestEveryCheckpointStaysWhatItWas = Histories.TestCase
