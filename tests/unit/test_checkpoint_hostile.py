"""Manifests that somebody has made up, with the right hash of themselves: refused, and nothing escapes."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import blake3
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from provisioner.checkpoint import layout
from provisioner.checkpoint.layout import Position
from provisioner.checkpoint.manifest import decode, encode
from provisioner.checkpoint.restore import load, pull, restore
from provisioner.checkpoint.store import Store
from provisioner.checkpoint.verify import verify
from provisioner.errors import CorruptCheckpoint, FailoverError
from tests import trees
from tests.trees import JOB, new_store, pattern, saver, shape, write

PLACE = Position(1, 1)


def signed(body: Any) -> bytes:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return f'{{"blake3":"{blake3.blake3(text.encode()).hexdigest()}","body":{text}}}'.encode()


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Return what a good store holds, and the body of its one manifest: step-1/{a,b,d/c,l}."""
    entry = write(tmp_path_factory.mktemp("good") / "step-1", a=pattern("a", 900), b=pattern("b", 100))
    write(entry / "d", c=pattern("c", 60))
    (entry / "l").symlink_to("a")
    store = new_store()
    saver(store).save(entry, 1)
    content = {stored.key: store.get(stored.key) or b"" for stored in store.objects("")}
    return content, json.loads(content[layout.manifest(PLACE)])["body"]


def put(content: dict[str, bytes], body: Any) -> Store:
    store = new_store()
    for key, data in content.items():
        store.put(key, data)
    store.put(layout.manifest(PLACE), signed(body))
    return store


def at(body: Any, *path: Any) -> Any:
    for part in path:
        body = body[part]
    return body


def becomes(*path: Any, to: Any) -> Callable[[Any], None]:
    def change(body: Any) -> None:
        at(body, *path[:-1])[path[-1]] = to

    return change


def gains(*path: Any, item: Any) -> Callable[[Any], None]:
    return lambda body: at(body, *path).append(item)


A = ("files", 0)
EXTENT = ("files", 0, 3, 0)
WRONG_NUMBERS = [-1, True, 1.0, 1.5, float("nan"), float("inf"), 2**63, 10**30, "1", None, [], {}]
REFUSED = {
    **{f"a path {path!r}": becomes(*A, 0, to=path) for path in (
        "../x", "/etc/passwd", "step-1/../../x", "step-1//x", "step-1/./x", "step-1/x/", "step-1/\0", "other/x", "",
        ".", "step-1/..", "step-1/\ud800", "step-1/\udcc3\udca9", "step-1" + "/x" * 99999, 5, None, ["step-1"],
    )},
    **{f"an entry {name!r}": becomes("entry", to=name) for name in ("..", ".", "", "a/b", "/", "other", 7)},
    **{f"a file's size {value!r}": becomes(*A, 1, to=value) for value in [*WRONG_NUMBERS, 0, 899, 901, 10**18]},
    **{f"permission bits {value!r}": becomes(*A, 2, to=value) for value in [*WRONG_NUMBERS, 0o1000, 0o4755]},
    **{f"a pack's number {value!r}": becomes(*EXTENT, 0, to=value) for value in [*WRONG_NUMBERS, 99]},
    **{f"an offset {value!r}": becomes(*EXTENT, 1, to=value) for value in [*WRONG_NUMBERS, 10**6, 2**63 - 1]},
    **{f"a length {value!r}": becomes(*EXTENT, 2, to=value) for value in [*WRONG_NUMBERS, 0, 1, 10**18]},
    **{f"a hash {value!r}": becomes(*EXTENT, 3, to=value) for value in ("", "ab", "A" * 64, " " * 64, "g" * 64, 1)},
    **{f"a hole of {value!r}": becomes(*EXTENT, to=[value]) for value in [*WRONG_NUMBERS, 0]},
    **{f"a pack's size {value!r}": becomes("packs", 0, 1, to=value) for value in [*WRONG_NUMBERS, 0]},
    **{f"a pack's id {value!r}": becomes("packs", 0, 0, to=value) for value in ("", "../owner", "x" * 41, 5, None)},
    **{f"a time {value!r}": becomes("time", to=value) for value in ("1", None, True, float("nan"), float("inf"), [])},
    **{f"a link to {value!r}": becomes("links", 0, 1, to=value) for value in ("", "\0", "\ud800", 5, None, ["a"])},
    **{f"a version {value!r}": becomes("version", to=value) for value in (1, 3, "2", 2.0, None)},
    **{f"a job {value!r}": becomes("job", to=value) for value in ({}, [], 5, "x", {"name": 5, "uid": "x"})},
    **{f"metadata {value!r}": becomes("metadata", to=value) for value in ([], None, 5, [["a", 1]])},
    **{f"{key} {value!r}": becomes(key, to=value)
        for key in ("files", "folders", "links", "packs") for value in (None, 5, [[]], [5], {"a": 1}, "abcd")},
    **{f"epoch {value!r}": becomes("epoch", to=value) for value in [*WRONG_NUMBERS, 2]},
    **{f"step {value!r}": becomes("step", to=value) for value in [*WRONG_NUMBERS, 2]},
    "a pack twice": lambda body: body["packs"].append(list(body["packs"][0])),
    "a file twice": lambda body: body["files"].append(body["files"][0]),
    "a file that is a folder, too": gains("folders", item=["step-1/a", 0o755]),
    "a file that is a link, too": gains("links", item=["step-1/a", "/etc"]),
    "a file below a file": gains("files", item=["step-1/a/x", 0, 0o600, []]),
    "a folder below a file": gains("folders", item=["step-1/a/x", 0o755]),
    "a file below a link": gains("files", item=["step-1/l/x", 0, 0o600, []]),
    "a file far below a link": gains("files", item=["step-1/l/x/y/z", 0, 0o600, []]),
    "a link below a link": gains("links", item=["step-1/l/x", "/etc"]),
    "the entry as a link": lambda body: (body["folders"].clear(), body["links"].append(["step-1", "/tmp"])),
    "too few parts": lambda body: body["files"][0].pop(),
    "nothing": lambda body: body.clear(),
}  # fmt: skip


@pytest.mark.parametrize(
    "change", REFUSED.values(), ids=[name[:60].encode("unicode_escape").decode() for name in REFUSED]
)
def test_a_made_up_manifest_is_refused_when_it_is_read(change, good, tmp_path):
    content, body = good
    body = copy.deepcopy(body)
    change(body)
    store = put(content, body)
    before = time.monotonic()
    with pytest.raises(CorruptCheckpoint):
        load(store, PLACE, JOB)
    lines: list[str] = []
    assert restore(store, JOB, tmp_path / "r", report=lines.append) is None
    assert len(lines) == 1
    assert list(tmp_path.rglob("*")) == [tmp_path / "r"]
    assert time.monotonic() - before < 5


HUGE = {
    "a hole of an exabyte": lambda body: body["files"].append(["step-1/huge", 10**18, 0o600, [[10**18]]]),
    "a pack of an exabyte": lambda body: (
        body["packs"].append(["0" * 32 + "-" + "0" * 8, 10**18]),
        body["files"].append(["step-1/huge", 10**18, 0o600, [[len(body["packs"]) - 1, 0, 10**18, "0" * 64]]]),
    ),
    "a name that no disk takes": lambda body: body["files"].append(["step-1/" + "x" * 256, 0, 0o600, []]),
    "a folder that no disk takes": lambda body: body["folders"].append(["step-1/" + "x" * 256, 0o700]),
    "a path that no disk takes": lambda body: body["files"].append(["step-1" + ("/" + "x" * 200) * 20, 0, 0o600, []]),
    "a link that no disk takes": lambda body: body["links"].append(["step-1/x", "x" * 9999]),
}


@pytest.mark.parametrize("change", HUGE.values(), ids=HUGE.keys())
def test_what_no_disk_can_hold_is_refused_at_once(change, good, tmp_path):
    content, body = good
    body = copy.deepcopy(body)
    change(body)
    store = put(content, body)
    manifest = load(store, PLACE, JOB)
    assert manifest is not None
    before = time.monotonic()
    for bring in (
        lambda: restore(store, JOB, tmp_path / "r"),
        lambda: pull(store, manifest, tmp_path / "p"),
    ):
        with suppress(FailoverError):
            found = bring()  # on a file system that holds files of any size
            assert found is None or (found.directory / found.entry / "huge").stat().st_size == 10**18
    assert time.monotonic() - before < 5
    assert sum(path.lstat().st_blocks for path in tmp_path.rglob("*")) * 512 < 2**20
    assert not list(tmp_path.rglob(".*"))


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_stands_in_a_manifest_it_is_read_or_refused(data, good, tmp_path):
    """Any part of it becomes any JSON, or goes; some parts are repeated."""
    content, body = good
    body = copy.deepcopy(body)
    for _ in range(data.draw(st.integers(1, 3))):
        place = body
        while isinstance(place, dict | list) and place:
            key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
            if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.booleans()):
                if data.draw(st.integers(0, 3)) == 0:
                    del place[key]
                elif isinstance(place, list) and data.draw(st.integers(0, 3)) == 0:
                    place.append(copy.deepcopy(place[key]))
                else:
                    place[key] = data.draw(_json)
                break
            place = place[key]
    store = put(content, body)
    lines: list[str] = []
    try:
        manifest = load(store, PLACE, JOB)
    except CorruptCheckpoint:
        assert restore(store, JOB, tmp_path / "r", report=lines.append, threads=1) is None
        assert len(lines) == 1
        return
    if manifest is None:
        return
    assert decode(encode(manifest)) == manifest
    found = restore(store, JOB, tmp_path / "r", report=lines.append, threads=1)
    assert (found is not None) == (verify(store, manifest, threads=1) == [])


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"3", b'"x"', b"null", b"[" * 10**6, b'{"a":' * 10**6, b"\xff", b'{"blake3": 1}']
)
def test_what_is_no_manifest_at_all_is_refused(data):
    with pytest.raises(CorruptCheckpoint):
        decode(data)


@settings(max_examples=100)
@given(tree=trees.entries, name=trees.names, metadata=st.dictionaries(st.text(), _json, max_size=3))
def test_what_a_save_writes_is_always_read(tree, name, metadata, tmp_path_factory):
    where = tmp_path_factory.mktemp("any")
    entry = trees.build(where / name, tree)
    store = new_store()
    commit = saver(store).save(entry, 1, metadata)
    assert encode(decode(encode(commit.manifest))) == encode(commit.manifest)
    assert load(store, PLACE, JOB) is not None


def test_links_are_kept_as_they_are_and_nothing_is_written_through_one(good, tmp_path: Path):
    content, body = good
    body = copy.deepcopy(body)
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o755)
    before = shape(outside)
    body["links"] += [["step-1/up", "../../.."], ["step-1/far", str(outside)]]
    found = restore(put(content, body), JOB, tmp_path / "r")
    assert found is not None
    assert (found.directory / "step-1" / "far").readlink() == outside
    assert shape(outside) == before
