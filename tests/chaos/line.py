"""A line between the job and its store that can be cut for one side alone, as a network is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal, Self

Side = Literal["controller", "node"]
Cut = Literal["black", "deaf"]
"""``black``: nothing gets through. ``deaf``: the store hears and does it, and no answer comes back."""


class Line:
    """Relays TCP from a free port of 127.0.0.1 to ``backend`` (host:port), from ``with`` on."""

    def __init__(self, backend: str, controller_pid: Callable[[], int | None]) -> None:
        self._backend = backend.rpartition(":")
        self._controller_pid = controller_pid
        self._cuts: dict[str, Cut] = {}
        self._pairs: dict[str, set[asyncio.StreamWriter]] = {"controller": set(), "node": set()}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="line", daemon=True)
        self.url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        server = self._server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._accept, "127.0.0.1", 0), self._loop
        ).result(10)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        async def end() -> None:
            self._server.close()
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def cut(self, sides: tuple[Side, ...], how: Cut) -> None:
        """Cut the line for these sides."""
        self._cuts |= dict.fromkeys(sides, how)

    def heal(self) -> None:
        """Let everything through. What was on its way when the line was cut is lost with its connection."""
        hurt, self._cuts = list(self._cuts), {}

        def reset() -> None:
            for writer in [one for side in hurt for one in self._pairs[side]]:
                writer.transport.abort()

        self._loop.call_soon_threadsafe(reset)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        side = "controller" if _has_socket(self._controller_pid(), writer.get_extra_info("peername")[1]) else "node"
        writers = {writer}
        try:
            store_reader, store_writer = await asyncio.open_connection(self._backend[0], int(self._backend[2]))
            writers.add(store_writer)
            self._pairs[side] |= writers
            await asyncio.gather(
                self._pump(reader, store_writer, side, ("black",)),
                self._pump(store_reader, writer, side, ("black", "deaf")),
            )
        except OSError:
            pass
        finally:
            self._pairs[side] -= writers
            for one in writers:
                one.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, side: Side, stopped_by: tuple[Cut, ...]
    ) -> None:
        while data := await reader.read(65536):
            if self._cuts.get(side) in stopped_by:
                continue  # silence: whoever waits for it has to notice by itself
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError


def _has_socket(pid: int | None, port: int) -> bool:
    """Say whether a process has the local port of a connection."""
    if pid is None:
        return False
    try:
        rows = Path("/proc/net/tcp").read_text("ascii").splitlines()[1:]
        inodes = {row.split()[9] for row in rows if row.split()[1].endswith(f":{port:04X}")}
        links = {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:
        return False
    return bool({f"socket:[{inode}]" for inode in inodes} & links)
