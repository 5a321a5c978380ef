"""New links for those that have ended: the controller puts a new list beside a node whose data still come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace

from provisioner.errors import CloudError
from provisioner.node.data_links import Link
from provisioner.node.data_list import Entry


class Renewal:
    """Threads ask it for another link in the place of one that is dead. What the link must give stays as it was."""

    def __init__(self, read: Callable[[], Iterable[Entry] | None]) -> None:
        """Read nothing yet. ``read`` gives the entries of a list that the store has now; None: it has none."""
        self._read = read
        self._lock = threading.Lock()
        self._urls: dict[str, str] = {}

    def __call__(self, dead: Link) -> Link | None:
        """Return the link to ask by from now on; None where there is no other. Raises OSError."""
        with self._lock:  # all threads meet dead links at once, and the list is read once
            if self._urls.get(dead.name) in {None, dead.url}:
                self._look()
            url = self._urls.get(dead.name, dead.url)
        return None if url == dead.url else replace(dead, url=url)

    def _look(self) -> None:
        try:
            entries = self._read()
        except CloudError:
            return
        for entry in entries or ():
            self._urls |= {entry.called(file): file.url for file in entry.files}
