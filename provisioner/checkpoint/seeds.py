"""Blobs that lie on the local disk already. They are believed only when their hash matches, at the time of use."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import blake3

from provisioner.checkpoint.fetch import Sink
from provisioner.checkpoint.manifest import Manifest
from provisioner.checkpoint.tree import Source, Tree, blob_bytes, open_file, scan, slices
from provisioner.errors import Unstable


class Seeds:
    """An index of local files by the hashes of their blobs."""

    def __init__(self, roots: Iterable[Path], manifest: Manifest) -> None:
        """Read every file below ``roots`` that is as long as one of the manifest. What cannot be read is left out."""
        wanted = {blob.digest for _, _, blob in manifest.stored()}
        sizes = {file.size for file in manifest.files}
        self._places: dict[str, tuple[Source, int, int]] = {}
        for root in roots:
            try:
                found = scan(root)
            except (OSError, Unstable):
                continue
            for source in found.files:
                if source.info.st_size in sizes:
                    self._index(source, wanted)

    def take(self, manifest: Manifest, sink: Sink) -> set[str]:
        """Give the sink what is here, checked again; return the hashes of these blobs. Raises what the sink raises."""
        taken: set[str] = set()
        failed: set[str] = set()
        for file, offset, blob in manifest.stored():
            if blob.digest not in self._places or blob.digest in failed:
                continue
            data = self._read(blob.digest)
            if data is None:
                failed.add(blob.digest)
                continue
            sink(file, offset, data)
            taken.add(blob.digest)
        return taken - failed

    def _index(self, source: Source, wanted: set[str]) -> None:
        length = blob_bytes(source.info.st_size)
        try:
            with open_file(source) as file:
                for span in (span for group in slices(Tree([source])) for span in group if not span.hole):
                    for offset in range(span.offset, span.offset + span.length, length):
                        data = memoryview(bytearray(min(length, span.offset + span.length - offset)))
                        file.read_into(data, offset)
                        digest = blake3.blake3(data).hexdigest()
                        if digest in wanted:
                            self._places.setdefault(digest, (source, offset, len(data)))
        except (OSError, Unstable):
            return

    def _read(self, digest: str) -> memoryview | None:
        source, offset, length = self._places[digest]
        data = memoryview(bytearray(length))
        try:
            with open_file(source) as file:
                file.read_into(data, offset)
        except (OSError, Unstable):
            return None
        return data if blake3.blake3(data).hexdigest() == digest else None
