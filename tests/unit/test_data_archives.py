"""Archives that somebody hostile or careless has made: nothing outside is touched, and one line says why."""

from __future__ import annotations

import io
import stat
import tarfile
import zipfile

import pytest
import zstandard

from provisioner.errors import JobFailed
from provisioner.node.data_cache import Cache
from provisioner.node.data_unpack import unpack


def tar(*members, mode="w"):
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode=mode) as archive:
        for name, kind, value in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            if kind == tarfile.REGTYPE:
                info.size = len(value)
                archive.addfile(info, io.BytesIO(value))
            else:
                info.linkname = value or ""
                archive.addfile(info)
    return raw.getvalue()


def zipped(*members):
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        for name, kind, value in members:
            info = zipfile.ZipInfo(name)
            info.external_attr = (kind | 0o644) << 16
            archive.writestr(info, value)
    return raw.getvalue()


FILE, LINK, HARD, FOLDER = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE
GOOD = ("good", FILE, b"g")


def unpacked(tmp_path, data, on_bytes=lambda _count: None):
    """Unpack, and return what the command would see."""
    path = tmp_path / "archive"
    path.write_bytes(data)
    folder = Cache(tmp_path / "cache").open("key")
    try:
        unpack(path, folder, "data: x.tar", on_bytes, "state")
        return {name: folder.place_in_tree(name).read_bytes() for name in folder.tree}
    finally:
        folder.close()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (tar(GOOD, ("../out", FILE, b"x")), "'../out' leads out of its folder"),
        (tar(GOOD, ("a/../../out", FILE, b"x")), "'a/../../out' leads out of its folder"),
        (tar(("/etc/passwd", FILE, b"x")), "'/etc/passwd' leads out of its folder"),
        (tar(GOOD, ("l", LINK, "/etc/passwd")), "'l' is a link that leads out of its folder"),
        (tar(GOOD, ("d/l", LINK, "../../out")), "'d/l' is a link that leads out of its folder"),
        (tar(GOOD, ("l", LINK, "nowhere")), "'l' is a link to what is not in the archive"),
        (tar(GOOD, ("l", LINK, "m"), ("m", LINK, "l")), "'l' is a link that leads round in a circle"),
        (tar(GOOD, ("l", LINK, ".")), "'l' is a link to what is not in the archive"),
        (tar(GOOD, ("d/a", FILE, b"x"), ("d/l", LINK, "../d")), "'d/l' is a link to what is not in the archive"),
        (tar(GOOD, ("h", HARD, "/etc/shadow")), "'/etc/shadow' leads out of its folder"),
        (tar(GOOD, ("h", HARD, "later")), "'h' is a link to what is not in the archive before it"),
        (tar(GOOD, ("pipe", tarfile.FIFOTYPE, None)), "'pipe' is a device or a pipe"),
        (tar(GOOD, ("sda", tarfile.BLKTYPE, None)), "'sda' is a device or a pipe"),
        (tar(("a", FILE, b"x"), ("a/b", FILE, b"x")), "'a' is a file and a folder"),
        (tar(("a/b", FILE, b"x"), ("a", FILE, b"x")), "'a' is a file and a folder"),
        (tar(("a/b", FILE, b"x"), ("a", LINK, "a/b")), "'a' is a file and a folder"),
        (tar(("n" * 300, FILE, b"x")), "has too long a name"),
        (tar(("bad\nname/../..", FILE, b"x")), "'bad?name/../..' leads out of its folder"),
        (tar(("only", FOLDER, None)), "the archive holds no file"),
        (tar(("a", FILE, b"x" * 5000))[:2000], "the archive cannot be unpacked (unexpected end of data)"),
        (zstandard.compress(tar(("a", FILE, bytes(range(256)) * 99)))[:90], "the archive cannot be unpacked"),
        (tar(("a", FILE, bytes(range(256)) * 99), mode="w:gz")[:90], "the archive cannot be unpacked"),
        (b"<html>not found</html>", "the archive cannot be unpacked"),
        (zipped(("../out", stat.S_IFREG, b"x")), "'../out' leads out of its folder"),
        (zipped(("l", stat.S_IFLNK, b"/etc/passwd")), "'l' is a link that leads out of its folder"),
        (zipped(("sda", stat.S_IFBLK, b"")), "'sda' is a device or a pipe"),
        (zipped(("a", stat.S_IFREG, b"x" * 99))[:80], "the archive cannot be unpacked (File is not a zip file)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_hostile_archive_is_refused_in_one_line_and_leaves_nothing(data, says, tmp_path):
    before = sorted(path.name for path in tmp_path.parent.iterdir())
    with pytest.raises(JobFailed) as caught:
        unpacked(tmp_path, data)
    assert str(caught.value).startswith("data: x.tar: ")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.parent.iterdir()) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["archive", "cache"]
    assert not list((tmp_path / "cache").glob("entries/*/tree.jsonl")), "half an archive must not count"


def test_an_encrypted_zip_is_named(tmp_path):
    data = bytearray(zipped(("a", stat.S_IFREG, b"x" * 99)))
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(signature) + flags] |= 1
    with pytest.raises(JobFailed, match="the archive is encrypted; unpack it first"):
        unpacked(tmp_path, bytes(data))


def test_damage_in_a_zip_of_any_method_is_named(tmp_path):
    for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        raw = io.BytesIO()
        with zipfile.ZipFile(raw, "w", method) as archive:
            archive.writestr("a", bytes(range(256)) * 500)
        data = bytearray(raw.getvalue())
        data[60:90] = b"\xff" * 30
        with pytest.raises(JobFailed, match="the archive cannot be unpacked"):
            unpacked(tmp_path, bytes(data))


def test_links_inside_become_files_and_what_stands_twice_counts_as_it_stands_last(tmp_path):
    found = unpacked(
        tmp_path,
        tar(
            ("a", FILE, b"old"), ("d/x", FILE, b"x"), ("d/e/y", FILE, b"y"), ("a", FILE, b"new"),
            ("h", HARD, "d/x"), ("l", LINK, "d/../a"), ("far/m", LINK, "../l"), ("dir", LINK, "d"),
            ("self", HARD, "a"),
        ),
    )  # fmt: skip
    assert found == {
        "a": b"new", "d/x": b"x", "d/e/y": b"y", "h": b"x", "l": b"new", "far/m": b"new", "dir/x": b"x",
        "dir/e/y": b"y", "self": b"new",
    }  # fmt: skip


def test_an_archive_that_unpacks_to_far_more_is_stopped_while_it_does(tmp_path):
    class Full(Exception):
        pass

    told = 0

    def on_bytes(count):
        nonlocal told
        told += count
        if told > 10_000_000:
            raise Full

    bomb = zstandard.compress(tar(("zeros", FILE, bytes(100_000_000))))
    assert len(bomb) < 100_000
    with pytest.raises(Full):
        unpacked(tmp_path, bomb, on_bytes)
