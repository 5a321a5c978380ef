"""The doors of the clouds: a process that holds their ports, and can be killed with -9 and started again on the same.

What a client sees is what it sees of clouds whose servers are killed: connections break in the middle of a request,
which was done or was not; new ones are refused until the servers are back; and what was done is kept.

``python doors.py PORT:BACKEND_PORT...`` relays from 127.0.0.1, 0 being any free port, and prints the ports as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.parse
from collections.abc import Sequence


class Doors:
    """The process. ``backends`` are base URLs on 127.0.0.1; ``urls`` are theirs as a client should know them."""

    def __init__(self, backends: Sequence[str]) -> None:
        """Open them."""
        self._backends = [urllib.parse.urlsplit(url).port or 0 for url in backends]
        self._ports = [0] * len(backends)
        self._process: subprocess.Popen[str] | None = None
        self.open()
        self.urls = [f"http://127.0.0.1:{port}" for port in self._ports]

    def open(self) -> None:
        """Start the process, again on the ports that it had; when it lives, do nothing."""
        if self._process is not None and self._process.poll() is None:
            return
        pairs = [f"{port}:{backend}" for port, backend in zip(self._ports, self._backends, strict=True)]
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(os.getpid()), *pairs], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self._ports = json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """Kill it with -9; when it is dead already, do nothing."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


async def _relay(backend: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writers = [writer]
    try:
        back_reader, back_writer = await asyncio.open_connection("127.0.0.1", backend)
        writers.append(back_writer)
        await asyncio.wait(
            [asyncio.create_task(_pump(reader, back_writer)), asyncio.create_task(_pump(back_reader, writer))],
            return_when=asyncio.FIRST_COMPLETED,
        )
    except OSError:
        pass
    finally:
        for one in writers:
            one.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


async def _serve(parent: int, pairs: Sequence[tuple[int, int]]) -> None:
    servers = [
        await asyncio.start_server(lambda *two, backend=backend: _relay(backend, *two), "127.0.0.1", port)
        for port, backend in pairs
    ]
    print(json.dumps([server.sockets[0].getsockname()[1] for server in servers]), flush=True)
    while os.getppid() == parent:  # noqa: ASYNC110 - nobody tells of a parent's end
        await asyncio.sleep(1)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    words = [word.split(":") for word in sys.argv[2:]]
    asyncio.run(_serve(int(sys.argv[1]), [(int(port), int(backend)) for port, backend in words]))
