"""A file that comes in parts: what a killed process left counts as far as it was written down, and no further."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from provisioner.node.data_parts import NOTE_BYTES, Part

SIZE = 5 * NOTE_BYTES + 17


def covered(part):
    """Return the bytes that are missing."""
    return sum(end - start for start, end in part.segments(1000))


def written(part, start, end, content):
    writer = part.writer(start)
    for at in range(start, end, 100_000):
        writer.take(at, memoryview(content[at : min(at + 100_000, end)]))
    writer.note()


@given(
    spans=st.lists(st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)).map(sorted), max_size=6),
    cut=st.integers(0, 40),
)
def test_whatever_was_written_and_wherever_the_map_was_cut_no_byte_is_taken_for_there_that_is_not(
    spans, cut, tmp_path_factory
):
    content = bytes(range(251)) * (SIZE // 251 + 1)
    path = tmp_path_factory.mktemp("parts") / "file"
    part = Part(path, SIZE, "etag", "boot")
    for start, end in spans:
        written(part, start, end, content)
    part.close()
    notes = path.with_name("file.map")
    if notes.exists():
        text = notes.read_bytes()
        notes.write_bytes(text[: len(text) - cut])
    again = Part(path, SIZE, "etag", "boot")
    have = path.read_bytes()
    missing = again.segments()
    at = 0
    for start, end in [*missing, (SIZE, SIZE)]:
        assert have[at:start] == content[at:start]
        at = end
    for start, end in missing:
        written(again, start, end, content)
    assert again.is_whole()
    assert path.read_bytes() == content[:SIZE]
    again.close(discard=True)
    assert list(path.parent.iterdir()) == []


def test_bytes_of_another_object_or_from_before_a_power_cut_count_for_nothing(tmp_path):
    content = bytes(SIZE)
    for state, boot, size in (("other", "boot", SIZE), ("etag", "next boot", SIZE), ("etag", "boot", SIZE + 1)):
        part = Part(tmp_path / "file", SIZE, "etag", "boot")
        written(part, 0, NOTE_BYTES, content)
        assert covered(part) == SIZE - NOTE_BYTES
        part.close()
        other = Part(tmp_path / "file", size, state, boot)
        assert covered(other) == size
        other.close(discard=True)
