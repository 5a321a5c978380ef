"""What `scale.py` measures against, in a process of its own: an S3 server and AutoDL on loopback, and machines.

`python benchmarks/scale_world.py TOKEN` prints the two ports as a line of JSON and serves until it is killed. The store
is in memory and speaks as much S3 as a controller asks for. AutoDL is the sandbox's emulator. A machine is an entry in
a table: one thread writes the heartbeats of all of them into the store, without a request, so that what is counted is
the controller's own. Below ``/_world`` the benchmark reads the counts and takes machines away.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import socket
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from hashlib import md5
from typing import Any
from urllib.parse import parse_qs, unquote
from xml.sax.saxutils import escape

import uvicorn

from provisioner.sandbox.autodl import AutodlEmulator, EmulatorConfig

BEAT_S = 5.0
LONG = 10_000
Headers = list[tuple[bytes, bytes]]
_HEARTBEAT = re.compile(r"jobs/([^/]+)/epochs/\d+/heartbeat\.json")
JSON = (b"content-type", b"application/json")
_START = re.compile(r"jobs/([^/]+)/epochs/(\d+)/bootstrap-")
Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass
class Objects:
    """The store's objects, and what was asked of it."""

    held: dict[str, tuple[bytes, float]] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    _equal: dict[bytes, bytes] = field(default_factory=dict)
    """Long bodies by their hash: each job brings the same runtime."""
    looks: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """When each job's heartbeat was read."""

    def answer(
        self, method: str, key: str, query: Mapping[str, str], headers: Mapping[bytes, bytes], body: bytes
    ) -> Any:
        """Return (status, headers, body)."""
        if method == "GET" and not key:
            self.requests["LIST"] += 1
            return 200, [(b"content-type", b"application/xml")], self._list(query)
        self.requests[method] += 1
        if method == "GET" and (beat := _HEARTBEAT.fullmatch(key)):
            self.looks[beat[1]].append(time.monotonic())
        if method == "PUT":
            if headers.get(b"if-none-match") == b"*" and key in self.held:
                return 412, [], b""
            etag = _etag(body)
            self.held[key] = self._equal.setdefault(etag, body) if len(body) > LONG else body, time.time()
            return 200, [(b"etag", etag)], b""
        if method == "DELETE":
            self.held.pop(key, None)
            return 204, [], b""
        if key not in self.held:
            return 404, [(b"content-type", b"application/xml")], b"<Error><Code>NoSuchKey</Code></Error>"
        data, at = self.held[key]
        told = [(b"etag", _etag(data)), (b"last-modified", formatdate(at, usegmt=True).encode())]
        return 200, [*told, (b"content-length", str(len(data)).encode())], b"" if method == "HEAD" else data

    def _list(self, query: Mapping[str, str]) -> bytes:
        prefix, mark = query.get("prefix", ""), query.get("delimiter", "")
        rows, folders = [], dict[str, None]()
        for key in sorted(key for key in [*self.held] if key.startswith(prefix)):
            rest, slash, _ = key.removeprefix(prefix).partition(mark) if mark else (key, "", "")
            if slash:
                folders[prefix + rest + mark] = None
                continue
            data, at = self.held[key]
            when = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(at))
            rows.append(
                f"<Contents><Key>{escape(key)}</Key><Size>{len(data)}</Size><LastModified>{when}</LastModified>"
                f"<ETag>{_etag(data).decode()}</ETag></Contents>"
            )
        found = "".join(rows) + "".join(
            f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in folders
        )
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{found}</ListBucketResult>".encode()


def _etag(data: bytes) -> bytes:
    return f'"{md5(data, usedforsecurity=False).hexdigest()}"'.encode()


@dataclass
class Machine:
    """One machine that trains. ``beats``: it is heard."""

    job: str
    epoch: int
    id: str
    begun: float
    due: float
    seq: int = 0
    beats: bool = True


class Machines:
    """The emulator's hooks: machines that are nothing but their heartbeats."""

    def __init__(self, objects: Objects) -> None:
        self.objects = objects
        self.of: dict[str, Machine] = {}
        self.started: list[tuple[float, str]] = []
        threading.Thread(target=self._pulse, daemon=True).start()

    def on_start(self, instance_id: str, command: str, env: Mapping[str, str]) -> None:
        """Read from the start script whose machine it is."""
        del env
        script = base64.b64decode(command.split("echo ")[1].split(maxsplit=1)[0]).decode()
        start = _START.search(script)
        assert start is not None, script
        now = time.time()
        self.of[instance_id] = Machine(start[1], int(start[2]), instance_id, now, now + BEAT_S * len(self.of) % BEAT_S)
        self.started.append((now, start[1]))

    def on_stop(self, instance_id: str) -> None:
        """It is heard no more."""
        self.of.pop(instance_id, None)

    def _pulse(self) -> None:
        while True:
            now = time.time()
            for machine in [*self.of.values()]:
                if machine.beats and machine.due <= now:
                    machine.seq, machine.due = machine.seq + 1, machine.due + BEAT_S
                    self._beat(machine, now)
            time.sleep(0.05)

    def _beat(self, machine: Machine, now: float) -> None:
        told = {
            "epoch": machine.epoch,
            "seq": machine.seq,
            "time": round(now, 3),
            "phase": "training",
            "step": machine.seq * 10,
            "first_step_at": machine.begun,
            "restored_step": None,
            "gpus": [{"index": 0, "name": "RTX 4090D", "utilization": 97, "memory_used_mb": 20111}],
            "disk_free_gb": 31.4,
            "last_commit": {"step": machine.seq * 10 // 100 * 100, "time": round(now, 3)},
            "end": None,
        }
        self.objects.held[f"jobs/{machine.job}/epochs/{machine.epoch}/heartbeat.json"] = (
            json.dumps(told).encode(),
            now,
        )


class World:
    """What the benchmark asks below ``/_world``."""

    def __init__(self, objects: Objects, machines: Machines, emulator: AutodlEmulator) -> None:
        self.objects, self.machines, self.emulator = objects, machines, emulator
        self.calls: Counter[str] = Counter()

    def asked(self, what: str, query: Mapping[str, str]) -> object:
        """``reset`` the counts, read them (``counts``), ``take`` or ``silence`` machines of jobs."""
        jobs = set(query.get("jobs", "").split(","))
        hit = [machine for machine in [*self.machines.of.values()] if machine.job in jobs]
        if what == "reset":
            self.objects.requests.clear()
            self.objects.looks.clear()
            self.calls.clear()
        elif what == "take":
            for machine in hit:
                self.emulator.take_away(machine.id)
        elif what == "silence":
            for machine in hit:
                machine.beats = False
        elif what == "counts":
            return {
                "store": dict(self.objects.requests),
                "autodl": dict(self.calls),
                "looks": {job: [*times] for job, times in [*self.objects.looks.items()]},
                "started": self.machines.started,
                "machines": len(self.machines.of),
            }
        return {"jobs": sorted(machine.job for machine in hit), "time": time.time()}


async def _body(receive: Receive) -> bytes:
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


async def _answer(send: Send, status: int, headers: Headers, content: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


def _query(scope: Scope) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(scope["query_string"].decode()).items()}


def store_app(objects: Objects, world: World) -> App:
    """Return the S3 server, with ``/_world`` beside the one bucket."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body, query = await _body(receive), _query(scope)
        _, bucket, key = [*unquote(scope["raw_path"].decode()).split("?")[0].split("/", 2), "", ""][:3]
        if bucket == "_world":
            await _answer(send, 200, [JSON], json.dumps(world.asked(key, query)).encode())
            return
        await _answer(send, *objects.answer(scope["method"], key, query, dict(scope["headers"]), body))

    return app


def autodl_app(world: World) -> App:
    """Return AutoDL's API without the faults that the sandbox can make: the threads for them cost more than a call."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        method, path, body = scope["method"], scope["path"], await _body(receive)
        token = dict(scope["headers"]).get(b"authorization", b"").decode()
        world.calls[f"{method} {path.rsplit('/', 1)[-1]}"] += 1
        told = world.emulator.call(method, path, token, _query(scope), json.loads(body or b"{}"))
        await _answer(send, 200, [JSON], json.dumps(told).encode())

    return app


async def serve(token: str) -> None:
    """Serve both until killed."""
    objects = Objects()
    machines = Machines(objects)
    emulator = AutodlEmulator(EmulatorConfig(token=token, speed=20.0, assets=10**9), hooks=machines)
    emulator.set_stock(idle=10_000)
    emulator.open()
    sockets = [socket.create_server(("127.0.0.1", 0), backlog=4096) for _ in range(2)]
    print(json.dumps({"store": sockets[0].getsockname()[1], "autodl": sockets[1].getsockname()[1]}), flush=True)
    world = World(objects, machines, emulator)
    servers = [
        uvicorn.Server(uvicorn.Config(app, log_level="critical", access_log=False, ws="none", lifespan="off"))
        for app in (store_app(objects, world), autodl_app(world))
    ]
    await asyncio.gather(*(server.serve(sockets=[one]) for server, one in zip(servers, sockets, strict=True)))


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
