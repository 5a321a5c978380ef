"""A save, a removal and sweeps that wait for nothing, in every order of their requests: what was announced stays.

Each of them may also stop for ever at any request. ``interleavings.py`` says how the orders are explored. The grace is
0 throughout: what holds here does not rest on clocks.
"""

from __future__ import annotations

import copy as copies
import json
import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from provisioner.checkpoint import commit as committing
from provisioner.checkpoint import copying, layout, packs
from provisioner.checkpoint import save as saving
from provisioner.checkpoint import sweep as sweeping
from provisioner.checkpoint.layout import Position
from provisioner.checkpoint.manifest import Manifest, decode, encode
from provisioner.checkpoint.restore import load, pull
from provisioner.checkpoint.retention import Policy, prune
from provisioner.checkpoint.save import Saver
from provisioner.checkpoint.store import Store, open_store
from provisioner.checkpoint.sweep import sweep
from provisioner.checkpoint.verify import verify
from tests.interleavings import ONE_PAGE, TWO_PAGES, AtOnce, Content, Explorer, Plain, Program, State, Tokens
from tests.trees import JOB, SMALL, new_store, pattern, saver, shape, write

OLD, NEW = Position(1, 10), Position(1, 20)
WALKS = 10_000 if os.environ.get("HYPOTHESIS_PROFILE") == "thorough" else 1500


class Scene:
    """A store with checkpoint 10, and the programs that meet there. Saving 20 needs a file of 10 and a new one."""

    def __init__(self, where: Path, tokens: Tokens) -> None:
        self.tokens = tokens
        tokens.start("before")
        self.old = write(where / "step-10", shared=pattern("shared", 300), old=pattern("old", 200))
        self.new = write(where / "step-20", shared=pattern("shared", 300), new=pattern("new", 150))
        self.store: Any = Plain({})
        self.keeper = self.saver(self.store)
        self.first = self.keeper.save(self.old, 10)

    def saver(self, store: Any) -> Saver:
        return Saver(store, JOB, 1, fence=lambda: None, threads=1, clock=lambda: 1.0, sizes=SMALL)

    def save(self, knows: str, entry: Path | None = None, position: Position = NEW) -> Program:
        """Save 20: by a process that has saved 10 itself, or by one that looks around first."""

        def run(store: Any) -> Manifest:
            saver = self.saver(store)
            if knows == "10":
                saver = copies.copy(self.keeper)
                saver.store, saver._there = store, {}
            return saver.save(entry or self.new, position.step).manifest

        return Program(f"save {position.step}", run, ("packs/", layout.manifest(position)))

    def remove(self, position: Position = OLD) -> Program:
        key = layout.manifest(position)
        return Program("remove", lambda store: store.delete([key]), (key,))

    def sweep(self, name: str = "sweep") -> Program:
        def run(store: Any) -> None:
            sweep(store, grace_s=0)

        return Program(name, run, ("packs/", "sweeps/"))

    def explorer(self, *programs: Program, pages: tuple[str, ...] = ONE_PAGE) -> Explorer:
        return Explorer(programs, self.tokens, pages)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    tokens = Tokens()
    for module in (packs, sweeping, copying):
        monkeypatch.setattr(module, "secrets", tokens)
    for module in (packs, saving, committing, copying):
        monkeypatch.setattr(module, "ThreadPoolExecutor", AtOnce)
    return Scene(tmp_path, tokens)


def hold_to_what_was_announced(state: State) -> None:
    """A save that has returned is whole, whatever the others do afterwards. Nobody fails."""
    for result in state.results:
        if result is None:
            continue
        assert result.error is None, repr(result.error)
        if isinstance(result.value, Manifest):
            assert state.content[layout.manifest(result.value.position)] == encode(result.value)
            whole(state.content, result.value)


def whole(content: Content, manifest: Manifest) -> None:
    for identity, size in manifest.packs.items():
        assert len(content.get(layout.pack(identity), b"")) == size, f"{identity} is lost"


def leaves_what_is_needed(explorer: Explorer) -> None:
    """Had everybody stopped for ever here, the next sweep would leave what the manifests name, and nothing else."""
    for content in explorer.contents:
        store: Any = Plain(content)
        explorer._tokens.start("last")
        sweep(store, grace_s=0)
        left = {key for key in store.content if key.startswith("packs/")}
        named = set()
        for key, data in content.items():
            if key.startswith("checkpoints/"):
                named |= set(map(layout.pack, decode(data).packs))
        assert left == named & content.keys()
        for key in store.content:
            if key.startswith("sweeps/"):
                condemned = set(map(layout.pack, json.loads(store.content[key])["packs"]))
                assert condemned & left, "a list stays as long as something on it is needed"


@pytest.mark.parametrize("pages", [ONE_PAGE, TWO_PAGES], ids=["a listing at one moment", "a listing in pages"])
@pytest.mark.parametrize("knows", ["10", "nothing"])
def test_in_every_order_with_a_sweep_a_save_that_was_announced_is_whole(knows, pages, scene):
    explorer = scene.explorer(scene.save(knows), scene.remove(), scene.sweep(), pages=pages)
    ends = 0
    for state in explorer.visit(scene.store.content):
        hold_to_what_was_announced(state)
        ends += None not in state.results
    assert explorer.states > 1000
    assert ends > 5
    leaves_what_is_needed(explorer)


@pytest.mark.parametrize("knows", ["10", "nothing"])
def test_in_every_order_after_a_sweep_that_died_a_save_that_was_announced_is_whole(knows, scene):
    """Its list stays, with what it condemned: the pack that the save needs, and which may be named or gone by now."""
    dead = scene.explorer(scene.remove(), scene.sweep("dead"))
    assert list(dead.visit(scene.store.content))
    before = [content for content in dead.contents if any(key.startswith("sweeps/") for key in content)]
    assert len(before) > 1
    for content in before:
        explorer = scene.explorer(scene.save(knows), scene.remove(), scene.sweep())
        for state in explorer.visit(content):
            hold_to_what_was_announced(state)
        leaves_what_is_needed(explorer)


@pytest.mark.parametrize("knows", ["10", "nothing"])
def test_in_thousands_of_orders_with_three_sweeps_a_save_that_was_announced_is_whole(knows, scene):
    explorer = scene.explorer(
        scene.save(knows), scene.remove(), *(scene.sweep(f"sweep {number}") for number in range(3)), pages=TWO_PAGES
    )
    luck = random.Random(5)
    for _ in range(WALKS):
        for state in explorer.walk(scene.store.content, luck):
            hold_to_what_was_announced(state)
    leaves_what_is_needed(explorer)


@pytest.mark.thorough
@pytest.mark.timeout(7200)
def test_in_every_order_with_two_sweeps_a_save_that_was_announced_is_whole(scene):
    explorer = scene.explorer(scene.save("10"), scene.remove(), scene.sweep("sweep 1"), scene.sweep("sweep 2"))
    for state in explorer.visit(scene.store.content):
        hold_to_what_was_announced(state)
    print(f"{explorer.states:,} states")
    assert explorer.states > 10**6
    leaves_what_is_needed(explorer)


def test_in_every_order_a_copy_that_was_announced_is_whole(scene):
    """Into a store that is swept, and that has lost the checkpoint whose pack the copy counts on."""
    source: Any = Plain(scene.store.content)
    scene.tokens.start("source")
    scene.saver(source).save(scene.new, 20)
    target = Plain({})
    scene.tokens.start("target")
    copying.copy(source, target, OLD, threads=1)

    def run(store: Any) -> Manifest:
        copying.copy(source, store, NEW, threads=1)
        return decode(target_of(store))

    def target_of(store: Any) -> bytes:
        return store.get(layout.manifest(NEW))

    copy = Program("copy", run, ("packs/", layout.manifest(NEW)))
    explorer = scene.explorer(copy, scene.remove(), scene.sweep())
    for state in explorer.visit(target.content):
        hold_to_what_was_announced(state)
    leaves_what_is_needed(explorer)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("knows", "files"),
    [
        ("10", ("shared", "other")),
        pytest.param("nothing", ("shared", "new"), marks=pytest.mark.thorough),
    ],
)
def test_in_every_order_two_saves_and_a_sweep_leave_both_whole(knows, files, scene, tmp_path):
    """The second one may look around while the first has sent a pack that it needs, too, and nobody names that yet."""
    lengths = {"shared": 300, "other": 150, "new": 150}
    other = write(tmp_path / "step-30", **{name: pattern(name, lengths[name]) for name in files})
    explorer = scene.explorer(
        scene.save("10"), scene.save(knows, other, Position(1, 30)), scene.remove(), scene.sweep()
    )
    for state in explorer.visit(scene.store.content):
        hold_to_what_was_announced(state)
    leaves_what_is_needed(explorer)


def test_killed_at_any_request_a_save_that_replaces_a_checkpoint_leaves_one_of_them_whole(scene, tmp_path):
    """Step 20 is there already. The pack that its new form counts on was condemned, or is gone, with checkpoint 10."""
    before = write(tmp_path / "before" / "step-20", early=pattern("early", 400))
    scene.saver(scene.store).save(before, 20)
    doomed = scene.explorer(scene.remove(), scene.sweep("sweep"))
    assert list(doomed.visit(scene.store.content))
    for content in list(doomed.contents):
        alone = scene.explorer(scene.save("10"))
        for state in alone.visit(content):
            hold_to_what_was_announced(state)
            whole(state.content, decode(state.content[layout.manifest(NEW)]))
        leaves_what_is_needed(alone)


@pytest.mark.parametrize("who", ["the controller", "a node of the next epoch"])
def test_r04_a_save_whose_manifest_is_on_its_way_for_long_is_whole_or_was_never_announced(who, tmp_path):
    root = open_store("memory://")
    store, slow = root.at("digits"), root.at("digits")
    shared = pattern("shared", 30 << 20)
    keeper = Saver(slow, JOB, 1, fence=lambda: None)
    keeper.save(write(tmp_path / "step-10", shared=shared, a=b"10"), 10)
    arrived, released = threading.Event(), threading.Event()
    real_put = slow.put

    def put(key: str, data: Any) -> None:
        if key.startswith(layout.CHECKPOINTS):
            arrived.set()
            assert released.wait(60)
        real_put(key, data)

    slow.put = put  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as pool:
        saving = pool.submit(keeper.save, write(tmp_path / "step-20", shared=shared, a=b"20"), 20)
        assert arrived.wait(60)
        epoch = 1 if who == "the controller" else 2
        other = saver(store, epoch).save(write(tmp_path / "step-15", b=b"15"), 15)
        assert prune(store, JOB, Policy(1), newest=other.position) == [layout.manifest(OLD)]
        for _ in range(2):
            sweep(store, grace_s=0)
        released.set()
        commit = saving.result()
    manifest = load(store, NEW, JOB)
    assert manifest == commit.manifest
    assert verify(store, manifest) == []
    pull(store, manifest, tmp_path / "pulled")
    assert shape(tmp_path / "pulled") == shape(tmp_path / "step-20")
    sweep(store, grace_s=0)
    assert verify(store, manifest) == []
    assert commit.uploaded_bytes > len(shared), "the pack was gone: it was sent again before the commit was announced"


def test_whatever_the_order_verify_calls_whole_what_was_announced(scene):
    explorer = scene.explorer(scene.save("10"), scene.remove(), scene.sweep())
    seen = set()
    for state in explorer.visit(scene.store.content):
        saved = state.results[0]
        mark = frozenset(state.content.items())
        if saved is not None and mark not in seen:
            seen.add(mark)
            for quick in (True, False):
                assert verify(stored(state.content), saved.value, quick=quick, threads=1) == []


def stored(content: Content) -> Store:
    store = new_store()
    for key, data in content.items():
        store.put(key, data)
    return store
