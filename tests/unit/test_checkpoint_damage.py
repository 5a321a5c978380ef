"""Damage of every kind to a store: a restore gives right bytes, or says what is damaged; never a wrong byte.

What is whole is worked out here once more, from the bytes and BLAKE3 alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import blake3
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from provisioner.checkpoint import copying, layout
from provisioner.checkpoint.layout import Position
from provisioner.checkpoint.manifest import Manifest, decode
from provisioner.checkpoint.restore import committed, load, restore
from provisioner.checkpoint.store import Store, open_store
from provisioner.checkpoint.sweep import sweep
from provisioner.checkpoint.verify import verify
from provisioner.errors import CorruptCheckpoint, FailoverError
from provisioner.model import JobRef
from tests.trees import JOB, new_store, pattern, saver, shape, write

DAMAGES = 10_000 if os.environ.get("HYPOTHESIS_PROFILE") == "thorough" else 1000
FOREIGN = JobRef("digits", "ffffffff")


class Base(NamedTuple):
    """A store in good order: two epochs with a step in common, shared packs, another job, a list of a sweep."""

    content: dict[str, bytes]
    manifests: dict[Position, Manifest]
    shapes: dict[Position, Any]


@cache
def base() -> Base:
    import tempfile

    store = new_store()
    manifests, shapes = {}, {}
    with tempfile.TemporaryDirectory() as where:
        for number, (epoch, step) in enumerate([(1, 10), (1, 20), (1, 30), (2, 20), (2, 40)]):
            entry = write(
                Path(where) / f"{number}" / f"step-{step}",
                shared=pattern("shared", 900),
                own=pattern(f"own {number}", 300),
                both=pattern(f"both {step}", 200),
                hole=bytes(500),
                tiny=b"%d" % number,
            )
            (entry / "link").symlink_to("own")
            commit = saver(store, epoch).save(entry, step)
            manifests[commit.position], shapes[commit.position] = commit.manifest, shape(entry)
        foreign = write(Path(where) / "x" / "step-35", theirs=pattern("theirs", 700))
        saver(store, 1, FOREIGN).save(foreign, 35)
    store.put(f"{layout.SWEEPS}/{'0' * 16}.json", json.dumps({"packs": [f"{'0' * 32}-{'0' * 8}"]}).encode())
    content = {stored.key: store.get(stored.key) or b"" for stored in store.objects("")}
    return Base(content, manifests, shapes)


def stored(content: dict[str, bytes]) -> Store:
    store = new_store()
    for key, data in content.items():
        store.put(key, data)
    return store


def is_whole(content: dict[str, bytes], position: Position) -> bool:
    """Say whether a checkpoint of ours stands at this place with all its bytes."""
    try:
        manifest = decode(content[layout.manifest(position)])
    except (KeyError, CorruptCheckpoint):
        return False
    if manifest != base().manifests.get(position):
        return False
    for _, _, blob in manifest.stored():
        data = content.get(layout.pack(blob.pack), b"")[blob.offset : blob.offset + blob.length]
        if len(data) != blob.length or blake3.blake3(data).hexdigest() != blob.digest:
            return False
    return True


KEYS = sorted(base().content)
PACKS = [key for key in KEYS if key.startswith("packs/")]
MANIFESTS = [key for key in KEYS if key.startswith("checkpoints/")]
NEWER = ["checkpoints/000000000040-000003.json", "checkpoints/000000000099-000001.json"]
ODD = [
    *("checkpoints/readme.txt", "checkpoints/000000000099-000009.json", "checkpoints/000000000050-000002.json/x"),
    *("packs/x", "sweeps/x"),
]

_objects = st.sampled_from(PACKS + MANIFESTS)
_garbage = st.sampled_from(
    [b"", b"{}", b"[]", b"null", b"\xff\xfe", b'{"packs": 3}', b'{"blake3": "", "body": []}', b"[" * 9999]
)
BYTES: dict[str, Callable[[bytes, int, int], bytes]] = {
    "flip": lambda data, at, number: data[:at] + bytes([data[at] ^ 1 << number % 8]) + data[at + 1 :],
    "cut": lambda data, at, _: data[:at],
    "tail": lambda data, at, _: data[at + 1 :],
    "grow": lambda data, at, _: data + data[: at + 1],
    "shift": lambda data, at, _: data[:at] + b"\0" + data[at:],
    "zero": lambda data, *_: bytes(len(data)),
}
damages = st.one_of(
    st.tuples(st.sampled_from(sorted(BYTES)), _objects, st.integers(0, 10**5)),
    st.tuples(st.just("remove"), _objects),
    st.tuples(st.just("swap"), st.sampled_from(PACKS), st.sampled_from(PACKS)),
    st.tuples(st.just("replay"), st.sampled_from(MANIFESTS), st.sampled_from(MANIFESTS + NEWER)),
    st.tuples(st.just("put"), st.sampled_from(ODD + NEWER + [f"sweeps/{'b' * 16}.json"]), _garbage),
    st.tuples(st.just("condemn"), st.sets(st.sampled_from(PACKS), min_size=1)),
)


def harm(content: dict[str, bytes], kind: str, key: Any, other: Any = None) -> None:
    """Do one thing that a disk, a network, a person or a bug may do."""
    if kind in BYTES:
        if data := content.get(key):
            content[key] = BYTES[kind](data, other % len(data), other)
    elif kind == "remove":
        content.pop(key, None)
    elif kind == "swap":
        content[key], content[other] = content.get(other, b""), content.get(key, b"")
    elif kind == "replay":
        content[other] = content.get(key, b"")
    elif kind == "put":
        content[key] = other
    else:
        ids = sorted(name.removeprefix("packs/") for name in key)
        content[f"sweeps/{'a' * 16}.json"] = json.dumps({"packs": ids}).encode()


@settings(max_examples=DAMAGES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(harms=st.lists(damages, min_size=1, max_size=3))
def test_after_any_damage_the_newest_whole_checkpoint_comes_back_and_the_rest_is_named(harms, tmp_path):
    content = dict(base().content)
    for damage in harms:
        harm(content, *damage)
    places = sorted(filter(None, map(layout.position, content)), reverse=True)
    whole = [position for position in places if is_whole(content, position)]
    store = stored(content)
    lines: list[str] = []
    distrust: set[str] = set()
    found = restore(store, JOB, tmp_path / "r", report=lines.append, distrust=distrust, threads=1)
    passed_over = places[: places.index(whole[0])] if whole else places
    assert [line.split()[0] for line in lines] == [layout.manifest(position) for position in passed_over]
    if not whole:
        assert found is None
    else:
        assert found is not None
        assert found.position == whole[0]
        assert shape(found.directory / found.entry) == base().shapes[whole[0]]
    for position in places:
        assert says_whole(store, position) == (position in whole)
    assert [path.name for path in (tmp_path / "r").iterdir() if path.name.startswith(".")] == []


def says_whole(store: Store, position: Position) -> bool:
    try:
        manifest = load(store, position, JOB)
    except CorruptCheckpoint:
        return False
    return manifest is not None and verify(store, manifest, threads=1) == []


@settings(max_examples=DAMAGES // 5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(harms=st.lists(damages, min_size=1, max_size=3))
def test_after_any_damage_a_restore_and_the_next_save_make_a_whole_checkpoint(harms, tmp_path):
    content = dict(base().content)
    for damage in harms:
        harm(content, *damage)
    store = stored(content)
    distrust: set[str] = set()
    found = restore(store, JOB, tmp_path / "r", distrust=distrust, threads=1)
    if found is None:
        entry = tmp_path / "fresh"
        if not entry.exists():
            write(entry, a=pattern("shared", 900), b=pattern("own 1", 300))
    else:
        entry = found.directory / found.entry
    keeper = saver(store, 9)
    keeper.distrust = frozenset(distrust)
    keeper.save(entry, 50)
    back = restore(store, JOB, tmp_path / "again", threads=1)
    assert back is not None
    assert back.position == Position(9, 50)
    assert shape(back.directory / back.entry) == shape(entry)


@settings(max_examples=DAMAGES // 5)
@given(harms=st.lists(damages, min_size=1, max_size=3))
def test_after_any_damage_a_sweep_removes_nothing_that_a_readable_manifest_names(harms):
    content = dict(base().content)
    for damage in harms:
        harm(content, *damage)
    store = stored(content)
    named, readable = set(), True
    for key in [key for key in content if key.startswith("checkpoints/")]:
        try:
            named |= set(map(layout.pack, decode(content[key]).packs))
        except CorruptCheckpoint:
            readable = False
    packs = {key for key in content if key.startswith("packs/")}
    if not readable:
        with pytest.raises(FailoverError, match="checkpoints/"):
            sweep(store, grace_s=0)
        assert {item.key for item in store.objects("packs")} == packs
        return
    sweep(store, grace_s=0)
    left = {item.key for item in store.objects("packs")}
    assert named & packs <= left
    assert all(layout.pack_of(key) is None for key in left - named)


@pytest.mark.parametrize("left", [0, 1, 500])
def test_a_pack_of_a_directory_that_was_cut_is_named_and_the_older_checkpoint_comes_back(left, tmp_path):
    store = open_store(f"file://{tmp_path}/store")
    older = saver(store).save(write(tmp_path / "a" / "step-1", a=pattern("a", 900)), 1)
    newer = saver(store).save(write(tmp_path / "b" / "step-2", b=pattern("b", 512)), 2)
    (cut,) = newer.manifest.packs.keys() - older.manifest.packs.keys()
    os.truncate(tmp_path / "store" / layout.pack(cut), left)
    lines: list[str] = []
    found = restore(store, JOB, tmp_path / "r", report=lines.append)
    assert found is not None
    assert found.position == (1, 1)
    assert "is cut short" in lines[0]
    assert verify(store, newer.manifest) == [f"{layout.pack(cut)} is cut short"]


@settings(max_examples=DAMAGES // 5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(here=st.lists(damages, max_size=3), there=st.lists(damages, max_size=3))
def test_what_is_whole_in_the_store_or_in_a_replica_comes_back(here, there, tmp_path):
    contents = [dict(base().content), dict(base().content)]
    for content, harms in zip(contents, (here, there), strict=True):
        for damage in harms:
            harm(content, *damage)
    stores = [stored(content) for content in contents]
    whole = [position for position in base().manifests if any(is_whole(content, position) for content in contents)]
    found = restore(stores[0], JOB, tmp_path / "r", replicas=stores[1:], threads=1)
    assert (found.position if found else None) == max(whole, default=None)
    if found is not None:
        assert shape(found.directory / found.entry) == base().shapes[found.position]


@settings(max_examples=DAMAGES // 5)
@given(harms=st.lists(damages, min_size=1, max_size=3), place=st.sampled_from(sorted(base().manifests)))
def test_a_damaged_checkpoint_is_not_copied_and_a_whole_one_is(harms, place):
    content = dict(base().content)
    for damage in harms:
        harm(content, *damage)
    target = new_store()
    if not is_whole(content, place):
        with pytest.raises(FailoverError):
            copying.copy(stored(content), target, place, job=JOB, threads=1)
        assert committed(target) == []
        return
    try:
        copying.copy(stored(content), target, place, job=JOB, threads=1)
    except CorruptCheckpoint:  # bytes of a pack that this checkpoint does not need: packs are copied whole
        assert committed(target) == []
        return
    manifest = load(target, place, JOB)
    assert manifest is not None
    assert verify(target, manifest, threads=1) == []


def test_bytes_that_the_line_has_changed_are_fetched_once_more(tmp_path):
    store = stored(base().content)
    real = store.stream
    changed: list[str] = []

    def stream(key: str, start: int, length: int, take: Callable[[int, memoryview], None], *, whole: bool) -> bool:
        def wrong(place: int, data: memoryview) -> None:
            if key not in changed:
                changed.append(key)
                data = memoryview(bytes([data[0] ^ 1]) + bytes(data[1:]))
            take(place, data)

        return real(key, start, length, wrong, whole=whole)

    store.stream = stream  # type: ignore[method-assign, assignment]
    found = restore(store, JOB, tmp_path / "r")
    assert found is not None
    assert len(changed) > 1
    assert found.position == max(base().manifests)
    assert shape(found.directory / found.entry) == base().shapes[found.position]
