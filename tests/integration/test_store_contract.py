"""One contract, five stores: what the product relies on, and where a server is not what S3 is.

`FACTS` holds what each server was seen to do, beside what S3 documents. A change of one of them fails here: then
docs/checkpoints.md is to be changed too.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random

import pytest

from provisioner.checkpoint import epochs, layout
from provisioner.checkpoint.copying import copy
from provisioner.checkpoint.layout import Position
from provisioner.checkpoint.probe import probe
from provisioner.checkpoint.restore import committed, load, restore
from provisioner.checkpoint.save import Saver
from provisioner.checkpoint.store import Credentials, Store, open_store
from provisioner.checkpoint.sweep import sweep
from provisioner.checkpoint.verify import verify
from provisioner.controller.shared_runtime import SharedRuntime
from provisioner.controller.sweep_litter import RuntimeRoom
from provisioner.errors import Fenced, StoreError, Unauthorized
from provisioner.model import JobRef
from tests import servers
from tests.trees import pattern, shape

JOB = JobRef("digits", "1a2b3c4d")
MIB = 2**20
_NUMBERS = count()


@dataclass(frozen=True, slots=True)
class Facts:
    """What a server does where stores differ. S3 and GCS: all three hold."""

    honours_create: bool = True
    """A put with `If-None-Match: *` (GCS: generation 0) is refused where there is an object."""
    answers_206: bool = True
    """A ranged read is answered with 206. obstore refuses 200, even with the right bytes."""
    one_winner: bool = True
    """Of creates at the same moment exactly one succeeds."""
    refuses: str = ""
    """Signs that cannot stand in a key: SeaweedFS makes a slash of a backslash, obstore's directories take no `#`."""


FACTS = {
    "moto": Facts(),
    "rclone": Facts(honours_create=False, answers_206=False, one_winner=False),
    "seaweedfs": Facts(refuses="\\"),
    "fake-gcs": Facts(),
    "file": Facts(refuses="#"),
}


@pytest.fixture(scope="module", params=servers.KINDS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    try:
        with servers.started(request.param, tmp_path_factory.mktemp(request.param)) as running:
            yield running
    except servers.NotInstalledError as missing:
        pytest.skip(str(missing))


@pytest.fixture
def facts(server) -> Facts:
    return FACTS[server.kind]


@pytest.fixture
def store(server) -> Store:
    """A folder of its own for each test."""
    return server.store(f"runs/{next(_NUMBERS)}", retry_s=10).at("digits")


def filled(store: Store, keys: list[str], data: bytes = b"x") -> None:
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda key: store.put(key, data), keys))


@pytest.mark.parametrize("size", [0, 1, 20_000, 16 * MIB])
def test_what_was_put_comes_back(store, size):
    data = os.urandom(size)
    store.put("packs/a", data)
    assert store.get("packs/a") == data
    assert [(stored.key, stored.size) for stored in store.objects("packs")] == [("packs/a", size)]


def test_several_buffers_become_one_object(store):
    data = os.urandom(3 * MIB)
    view = memoryview(data)
    store.put("packs/a", [view[:1], view[1:1], bytearray(view[1 : 2 * MIB]), bytes(view[2 * MIB :])])
    assert store.get("packs/a") == data
    store.put("packs/b", view[7:1000])
    assert store.get("packs/b") == data[7:1000]


def test_the_last_put_is_what_is_read_and_listed_at_once(store):
    for size in (100, 3, 2000):
        store.put("checkpoints/x", b"a" * size)
        assert store.get("checkpoints/x") == b"a" * size
        assert [stored.size for stored in store.objects("checkpoints")] == [size]


def test_what_is_not_there_is_none_and_not_an_error(store):
    assert store.get("nothing/here") is None
    assert store.get_range("nothing/here", 0, 5) is None
    assert not store.exists("nothing/here")
    assert store.objects("nothing") == []
    assert store.folders("nothing") == []
    store.delete(["nothing/here"])
    store.put("a", b"")
    assert store.exists("a")
    store.delete(["a"])
    assert not store.exists("a")
    assert store.get("a") is None


def test_ranges_are_exact_and_one_beyond_the_end_is_an_error(store):
    data = os.urandom(5 * MIB)
    store.put("packs/a", data)
    for start, length in ((0, 1), (0, 5 * MIB), (1, 4 * MIB), (5 * MIB - 1, 1), (MIB, MIB), (77, 0)):
        found = store.get_range("packs/a", start, length)
        assert found is not None
        assert bytes(found) == data[start : start + length]
    for start, length in ((5 * MIB - 1, 2), (5 * MIB, 1), (9 * MIB, 1)):
        with pytest.raises(StoreError, match="packs/a"):
            store.get_range("packs/a", start, length)


def test_a_range_is_answered_with_the_status_that_was_recorded(server, store, facts):
    """rclone sends the right bytes and Content-Range with status 200. S3 sends 206."""
    if server.kind == "file":
        pytest.skip("no status there")
    store.put("packs/a", b"0123456789")
    request = urllib.request.Request(store.sign("packs/a", 60), headers={"Range": "bytes=2-4"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.read() == b"234"
        assert answer.status == (206 if facts.answers_206 else 200)


def test_create_writes_once_where_the_store_honours_it(store, facts):
    assert store.create("epochs/1/owner.json", b"first")
    assert store.create("epochs/1/owner.json", b"second") is not facts.honours_create
    assert store.get("epochs/1/owner.json") == (b"first" if facts.honours_create else b"second")
    store.delete(["epochs/1/owner.json"])
    assert store.create("epochs/1/owner.json", b"third")
    assert store.get("epochs/1/owner.json") == b"third"


def test_the_probe_finds_out_what_the_store_does_and_leaves_nothing(store, facts):
    found = probe(store)
    assert found.conditional == ("honoured" if facts.honours_create else "ignored")
    assert bool(found.line) is not facts.honours_create
    assert abs(found.clock_skew_s) < 5
    assert store.objects("") == []


def test_of_racing_creates_one_wins_and_is_what_is_read(store, facts):
    for attempt in range(5):
        key, start = f"epochs/{attempt}/owner.json", threading.Barrier(2)

        def create(word: bytes, key: str = key, start: threading.Barrier = start) -> bool:
            start.wait()
            return store.create(key, word * 1000)

        words = [b"left", b"right"]
        with ThreadPoolExecutor(2) as pool:
            won = list(pool.map(create, words))
        assert won.count(True) == (1 if facts.one_winner else 2)
        assert store.get(key) in [word * 1000 for word, mine in zip(words, won, strict=True) if mine]


def test_of_racing_nodes_at_most_one_keeps_the_epoch(server, store):
    """Where creates are ignored too: each reads back whose word stands there, now and before each manifest."""
    start = threading.Barrier(4)

    def node(token: str) -> str:
        mine = server.store(store.uri.partition(f"{server.bucket}/")[2], retry_s=10)
        start.wait()
        try:
            epochs.take(mine, 1, token, "node")
            time.sleep(0.5)
            epochs.check(mine, 1, token)
        except Fenced:
            return ""
        return token

    with ThreadPoolExecutor(4) as pool:
        kept = [token for token in pool.map(node, [f"token-{number}" for number in range(4)]) if token]
    assert len(kept) == 1
    epochs.check(store, 1, kept[0])


def test_more_objects_than_a_page_holds_are_all_listed_in_order(store):
    """Moto, rclone and SeaweedFS answer in pages of 1,000 as S3 does; fake-gcs-server puts all into one answer."""
    keys = [f"packs/{number:032x}-{number:08x}" for number in range(1005)]
    filled(store, keys)
    filled(store, ["packs-not/x", "pack", "other/x"], b"yy")
    listed = store.objects("packs")
    assert [stored.key for stored in listed] == keys
    assert {stored.size for stored in listed} == {1}
    store.delete([*keys[7:50], "packs/gone"])
    assert [stored.key for stored in store.objects("packs")] == keys[:7] + keys[50:]


def test_folders_are_the_names_directly_below(store):
    filled(store, [f"epochs/{number}/owner.json" for number in (1, 2, 10)] + ["epochs/stray.json", "epochs2/7/x"])
    filled(store, [f"epochs/{number}/log/0001" for number in range(3, 7)])
    assert store.folders("epochs") == sorted(str(number) for number in (1, 2, 3, 4, 5, 6, 10))
    assert len(store.objects("epochs")) == 8


def test_names_in_any_script_and_with_signs_of_all_kinds(store, facts):
    """The product's own keys are plain; a bucket's prefix is the user's. No store of obstore's takes control signs."""
    names = ["a b", "模型/权重", "ünïcödé", "100%", "%41", "x+y=z", "#1", "what?", "(1)*'!", "~x", "a&b;c", "a.b/..c"]
    names += ['"q"', "b\\s", "{x}", "[y]", "^", "`", "|", "<>", ":", "@", "$", ","]
    names = [name for name in names if not set(name) & set(facts.refuses)]
    for name in names:
        store.put(f"odd/{name}", name.encode())
    for name in names:
        assert store.get(f"odd/{name}") == name.encode()
    assert sorted(stored.key for stored in store.objects("odd")) == sorted(f"odd/{name}" for name in names)
    store.delete(f"odd/{name}" for name in names)
    assert store.objects("odd") == []
    with pytest.raises(StoreError):
        store.put("odd/tab\t", b"")


def test_the_times_in_a_listing_are_of_the_stores_clock_and_near_ours(store):
    before = time.time()
    store.put("a/b", b"")
    (stored,) = store.objects("a")
    assert before - 2 <= stored.modified <= time.time() + 2


def test_a_link_reads_one_object_without_a_key(server, store):
    store.put("epochs/1/bootstrap.json", b"{}")
    link = store.sign("epochs/1/bootstrap.json", 60)
    if server.credentials is not None:
        assert server.credentials.secret_access_key not in link
    with urllib.request.urlopen(link, timeout=10) as answer:
        assert answer.read() == b"{}"


def test_a_link_writes_one_object_without_a_key(server, store):
    if server.kind in {"file", "fake-gcs"}:
        pytest.skip("has no links that write")
    link = store.sign("epochs/1/heartbeat.json", 60, "PUT")
    headers = {"If-None-Match": "*", "Content-Type": "application/json"}
    ask = urllib.request.Request(link, b"{}", headers, method="PUT")
    with urllib.request.urlopen(ask, timeout=10) as answer:
        assert answer.status == 200
    assert store.get("epochs/1/heartbeat.json") == b"{}"


def test_without_the_right_key_nothing_is_read_or_written(server, store):
    if server.kind in {"moto", "fake-gcs", "file"}:
        pytest.skip("asks for no key")
    store.put("a", b"secret")
    wrong = open_store(
        store.uri,
        endpoint=server.endpoint,
        credentials=Credentials("AKIAWRONG", "wrong"),
        environ={},
        retry_s=0,
    )
    for ask in (lambda: wrong.get("a"), lambda: wrong.put("a", b"x"), lambda: wrong.objects("")):
        with pytest.raises(Unauthorized):
            ask()
    assert store.get("a") == b"secret"


# What is built on it: whole checkpoints.


def tree(path: Path, seed: int = 0, mib: int = 12) -> Path:
    """A checkpoint: a large file, a sparse one, many small ones (0.7 MB), odd names, a link, an empty folder."""
    random = Random(seed)
    path.mkdir(parents=True)
    (path / "model.bin").write_bytes(random.randbytes(mib * MIB))
    with (path / "sparse").open("wb") as file:
        file.write(b"head")
        file.seek(8 * MIB)
        file.write(b"tail")
    (path / "parts").mkdir()
    for number in range(120):
        (path / "parts" / f"{number}.json").write_bytes(random.randbytes(number * 97))
    (path / "优化器 state").write_bytes(b"o" * 100_000)
    (path / "empty").mkdir(mode=0o700)
    (path / "latest").symlink_to("parts/1.json")
    (path / "run.sh").write_bytes(b"#!/bin/sh\n")
    (path / "run.sh").chmod(0o755)
    return path


def saver(store: Store, epoch: int = 1) -> Saver:
    return Saver(store, JOB, epoch, fence=lambda: epochs.check_newer(store, epoch), threads=8)


def test_a_checkpoint_is_saved_saved_again_verified_restored_and_swept(store, tmp_path):
    entry = tree(tmp_path / "step-10")
    first = saver(store).save(entry, 10)
    assert first.uploaded_bytes < 14 * MIB

    packs = store.objects(layout.PACKS)
    same = saver(store).save(entry, 11)
    assert same.uploaded_bytes == 0
    assert store.objects(layout.PACKS) == packs

    after = tmp_path / "step-20"
    shutil.copytree(entry, after, symlinks=True)
    with (after / "model.bin").open("r+b") as file:
        file.seek(5 * MIB)
        file.write(os.urandom(MIB))
    (after / "parts" / "7.json").write_bytes(b"new")
    part = saver(store).save(after, 20)
    assert MIB <= part.uploaded_bytes <= 1.1 * MIB

    manifest = load(store, Position(1, 20), JOB)
    assert manifest is not None
    assert verify(store, manifest) == []
    back = restore(store, JOB, tmp_path / "back")
    assert back is not None
    assert shape(back.directory / back.entry) == shape(after)

    saver(store).save(tree(tmp_path / "step-30", 1, mib=1), 30)
    store.delete(layout.manifest(Position(1, step)) for step in (10, 11, 20))
    swept = sweep(store, grace_s=0)
    assert swept.deleted == swept.condemned > 0
    manifest = load(store, Position(1, 30), JOB)
    assert manifest is not None
    assert {layout.pack_of(stored.key) for stored in store.objects(layout.PACKS)} == set(manifest.packs)
    assert store.objects(layout.SWEEPS) == []
    assert verify(store, manifest) == []


def test_a_node_of_an_older_epoch_is_refused_and_what_it_wrote_late_loses(store, tmp_path):
    old = saver(store, 1)
    epochs.take(store, 1, "old", "node")
    old.save(tree(tmp_path / "a" / "step-10", 1, mib=1), 10)
    epochs.take(store, 2, "new", "node")
    saver(store, 2).save(tree(tmp_path / "b" / "step-10", 2, mib=1), 10)
    with pytest.raises(Fenced):
        old.save(tree(tmp_path / "a" / "step-90", 3, mib=1), 90)
    late = Saver(store, JOB, 1, fence=lambda: None)  # its check came before the new epoch, its manifest after
    late.save(tree(tmp_path / "c" / "step-95", 4, mib=1), 95)
    assert committed(store)[0] == (2, 10)
    back = restore(store, JOB, tmp_path / "back")
    assert back is not None
    assert shape(back.directory / back.entry) == shape(tmp_path / "b" / "step-10")


def test_a_checkpoint_goes_to_another_store_and_comes_back_from_it(store, tmp_path):
    entry = tree(tmp_path / "step-10")
    commit = saver(store).save(entry, 10)
    replica = open_store(f"file://{tmp_path}/replica").at("digits")
    there = copy(store, replica, commit.position, job=JOB)
    assert there.bytes >= 12 * MIB
    assert copy(store, replica, commit.position, job=JOB).packs == 0

    store.delete(stored.key for stored in store.objects(""))
    assert restore(store, JOB, tmp_path / "nothing") is None
    copy(replica, store, commit.position, job=JOB)
    back = restore(store, JOB, tmp_path / "back")
    assert back is not None
    assert shape(back.directory / back.entry) == shape(entry)


@pytest.mark.parametrize("left", [None, 0, 1, 700])
def test_a_pack_that_is_gone_or_cut_short_is_named_and_an_older_checkpoint_comes_back(store, tmp_path, left):
    """Each server refuses a range behind the end in its own way; none of them may pass for a store that is away."""
    kept = []
    keeper = saver(store)
    for step, names in ((1, "a"), (2, "bc"), (3, "cd")):  # the third needs the second half of the second's pack
        entry = tmp_path / f"{step}" / "state"
        entry.mkdir(parents=True)
        for name in names:
            (entry / name).write_bytes(pattern(name, 500))
        kept.append((keeper.save(entry, step).manifest, shape(entry)))
    (shared,) = kept[1][0].packs.keys() & kept[2][0].packs.keys()
    key = layout.pack(shared)
    if left is None:
        store.delete([key])
    else:
        store.put(key, (store.get(key) or b"")[:left])
    lines: list[str] = []
    found = restore(store, JOB, tmp_path / "restored", report=lines.append)
    assert found is not None
    assert found.position == Position(1, 1)
    assert shape(found.directory / "state") == kept[0][1]
    assert [key in line for line in lines] == [True, True]
    for manifest, _ in kept[1:]:
        assert [line.split()[0] for line in verify(store, manifest)] == [key]


def test_a_sweep_takes_the_runtime_that_no_job_uses_and_leaves_what_one_does(store):
    """A week later, by the store's own times."""
    shared, now = store.above(), [time.time()]
    used, unused = (f".runtime/{letter * 64}.tar.gz" for letter in "ab")
    SharedRuntime(shared, "digits").note([used])
    SharedRuntime(shared, "gone").note([unused])
    filled(shared, [used, unused])
    room = RuntimeRoom(shared, {"digits"}, now=lambda: now[0])
    assert room.listed().found == ()
    now[0] += 8 * 86400.0
    found = room.listed()
    assert (found.silent, {one.thing.id for one in found.found}) == ({}, {unused, ".runtime/used/gone.json"})
    for one in found.found:
        room.remove(one)
    assert [one.key for one in shared.objects(".runtime")] == [used, ".runtime/used/digits.json"]
    assert room.listed().found == ()
