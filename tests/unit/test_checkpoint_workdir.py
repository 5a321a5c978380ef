from __future__ import annotations

import io
import os
import tarfile

import blake3
import pytest
import zstandard

from provisioner.checkpoint import workdir
from provisioner.checkpoint.store import open_store
from provisioner.errors import ConfigError, CorruptCheckpoint


def tree(path):
    (path / "a" / "empty").mkdir(parents=True)
    (path / "a" / "名 file.py").write_text("print(1)\n")
    (path / "run.sh").write_text("#!/bin/sh\n")
    (path / "run.sh").chmod(0o755)
    (path / "link").symlink_to("a/名 file.py")
    (path / ".git").mkdir()
    (path / ".git" / "config").write_text("secret remote")


def test_a_workdir_comes_out_as_it_went_in_without_the_history(tmp_path):
    source = tmp_path / "source"
    tree(source)
    key, data = workdir.pack(source)
    os.utime(source / "run.sh", (1, 1))
    assert workdir.pack(source) == (key, data), "equal contents give equal bytes"
    store = open_store("memory://")
    store.put(key, data)
    workdir.unpack(store, key, tmp_path / "out")
    assert (tmp_path / "out" / "a" / "名 file.py").read_text() == "print(1)\n"
    assert (tmp_path / "out" / "a" / "empty").is_dir()
    assert (tmp_path / "out" / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "out" / "link").read_text() == "print(1)\n"
    assert not (tmp_path / "out" / ".git").exists()


def test_a_damaged_or_missing_workdir_is_refused(tmp_path):
    key, data = workdir.pack(tmp_path)
    store = open_store("memory://")
    with pytest.raises(CorruptCheckpoint):
        workdir.unpack(store, key, tmp_path / "out")
    store.put(key, data[:-1])
    with pytest.raises(CorruptCheckpoint):
        workdir.unpack(store, key, tmp_path / "out")


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x"])
def test_a_path_that_leaves_the_directory_is_refused(name, tmp_path):
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(name))
    data = zstandard.compress(raw.getvalue())
    key = f"workdir/{blake3.blake3(data).hexdigest()}.tar.zst"
    store = open_store("memory://")
    store.put(key, data)
    with pytest.raises(CorruptCheckpoint, match="refused"):
        workdir.unpack(store, key, tmp_path / "out")


def test_data_in_the_workdir_is_refused_with_advice(tmp_path):
    (tmp_path / "data.bin").write_bytes(b"x" * 2000)
    with pytest.raises(ConfigError, match="more than 0 MiB"):
        workdir.pack(tmp_path, max_bytes=1000)
