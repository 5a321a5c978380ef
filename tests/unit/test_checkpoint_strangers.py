"""What a store must not do to others: files of strangers stay, a taken step stays, damage is not copied on."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from provisioner.checkpoint import copying, layout
from provisioner.checkpoint.commit import StepTakenError
from provisioner.checkpoint.layout import Position
from provisioner.checkpoint.restore import load
from provisioner.checkpoint.save import Saver
from provisioner.checkpoint.store import open_store
from provisioner.checkpoint.sweep import sweep
from provisioner.checkpoint.verify import verify
from provisioner.errors import ConfigError, CorruptCheckpoint


def tree(directory: Path, **files: bytes) -> Path:
    directory.mkdir()
    for name, data in files.items():
        (directory / name).write_bytes(data)
    return directory


def test_a_sweep_of_a_directory_removes_no_file_that_is_not_a_stores(tmp_path):
    root = tmp_path / "home"
    strangers = [root / "issue#42", root / "project/notes#1", root / "packs/notes#1", root / "checkpoints/report#3"]
    for path in strangers:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
        os.utime(path, (1, 1))
    ours = root / "packs" / f"{'0' * 32}-{'1' * 8}#1"
    ours.write_text("half a pack")
    os.utime(ours, (1, 1))
    sweep(open_store(f"file://{root}"))
    sweep(open_store(f"file://{root}"), grace_s=0)
    assert [path for path in strangers if not path.exists()] == []
    assert not ours.exists()


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_of_two_savers_of_one_step_who_replace_nothing_one_is_told_so(kind, tmp_path):
    store = open_store("memory://" if kind == "memory" else f"file://{tmp_path}/store")
    for round_ in range(20):
        entries = [tree(tmp_path / f"{round_}-{who}", data=os.urandom(1000)) for who in range(2)]
        outcomes: list[object] = [None, None]
        begin = threading.Barrier(2)

        def save(who: int, step: int = round_, begin: threading.Barrier = begin, told=outcomes, entries=entries):
            try:
                begin.wait()
                told[who] = Saver(store, None, 0, fence=lambda: None, only_new=True).save(entries[who], step)
            except StepTakenError as taken:
                told[who] = taken

        threads = [threading.Thread(target=save, args=(who,)) for who in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        winners = [who for who in range(2) if not isinstance(outcomes[who], StepTakenError)]
        assert len(winners) == 1
        manifest = load(store, Position(0, round_), None)
        assert manifest is not None
        assert manifest.entry == f"{round_}-{winners[0]}", "what was announced is what stands there"


@pytest.mark.parametrize("uri", ["file:///tmp/a#b", "s3://bucket/a#b/c", "s3://bucket/a?b", "gs://bucket/a#"])
def test_an_address_that_would_be_cut_is_refused(uri):
    with pytest.raises(ConfigError, match=r"\? and #"):
        open_store(uri)


@pytest.mark.parametrize("step", [True, 1.5, 9.0, "4", None])
def test_a_step_that_is_no_whole_number_is_refused(step, tmp_path):
    with pytest.raises(ConfigError, match="whole number"):
        Saver(open_store("memory://"), None, 0, fence=lambda: None).save(tree(tmp_path / "x", a=b"1"), step)


def test_a_copy_never_carries_bytes_that_nobody_has_checked(tmp_path):
    source, target = open_store(f"file://{tmp_path}/source"), open_store(f"file://{tmp_path}/target")
    saver = Saver(source, None, 0, fence=lambda: None)
    a, b = os.urandom(3 << 20), os.urandom(1 << 20)
    saver.save(tree(tmp_path / "c-1", a=a, b=b), 1)
    saver.save(tree(tmp_path / "c-2", a=a), 2)
    (pack,) = (tmp_path / "source/packs").iterdir()
    data = bytearray(pack.read_bytes())
    data[-1] ^= 1  # in b
    pack.write_bytes(data)
    copying.copy(source, target, Position(0, 2))
    with pytest.raises(CorruptCheckpoint):
        copying.copy(source, target, Position(0, 1))
    assert [stored.key for stored in target.objects(layout.CHECKPOINTS)] == [layout.manifest(Position(0, 2))]
    manifest = load(target, Position(0, 2), None)
    assert manifest is not None
    assert verify(target, manifest) == []
    assert copying.copy(source, target, Position(0, 2)).bytes == 0, "nothing is sent twice"
    saver.save(tree(tmp_path / "c-3", a=a, c=b"new"), 3)
    assert copying.copy(source, target, Position(0, 3)).bytes == 3, "what the copy of another step has is used"
