"""``failover serve --once`` with jobs whose world is a file: ``python scripted_controller.py WITNESS WATCH_S``.

Each effect is a line of the witness, ``job pid effect token``, written in one piece to the end of one file: the kernel
puts the lines of all controllers in order. No lock of ours has a part in it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from provisioner.controller.records import (
    Asked,
    Begun,
    Choice,
    Claimed,
    Finished,
    Placement,
    Published,
    Released,
    Watched,
)
from provisioner.controller.run import Controller
from provisioner.controller.serving.jobs import State
from provisioner.controller.serving.server import ServeOptions, Server
from provisioner.model import Ending, Gpu, JobRef, Market, Node, Offer, claim_token

NONE = "-"
SLICE_S = 0.25
OFFER = Offer("aws", "us-east-1", "us-east-1a", "g4dn.xlarge", Gpu("T4", 1, 16), Market.SPOT, None)


class ScriptedWorld:
    """One job: an offer, a machine, a training that takes its time."""

    abreast = 1

    def __init__(self, job: JobRef, witness: Path, watch_s: float, check: Callable[[], None]) -> None:
        self.job = job
        self._witness, self._watch_s, self._check = witness, watch_s, check

    def _note(self, effect: str, token: str = NONE) -> None:
        self._check()
        line = f"{self.job.name} {os.getpid()} {effect} {token}\n".encode()
        descriptor = os.open(self._witness, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)

    def begin(self) -> Begun:
        self._note("begin")
        return Begun(time.time(), 1)

    def publish(self) -> Published:
        self._note("publish")
        return Published((), None)

    def ask_primary(self, begun: Begun, past: tuple[Placement, ...], since: float | None) -> Asked:
        return Asked((), time.time())

    def ask_fallback(self, begun: Begun, past: tuple[Placement, ...]) -> Asked:
        self._note("ask")
        return Asked((OFFER,), time.time())

    def rank(self, asked: Asked, claims: tuple[Claimed, ...], lost: Offer | None) -> list[Choice]:
        return [Choice(offer) for offer in asked.offers]

    def claim(self, choice: Choice, epoch: int, attempt: int, published: Published) -> Claimed:
        token = claim_token(self.job, epoch, choice.offer, attempt)
        self._note("claim", token)
        now = time.time()
        return Claimed(choice.offer, now, Node(f"i-{token}", choice.offer, self.job, epoch, token, now), None)

    def watch(self, claimed: Claimed, node: Node, begun: Begun, past: tuple[Placement, ...]) -> Watched:
        until = node.claimed_at + self._watch_s
        while time.time() < until:
            self._note("look", node.token)
            time.sleep(SLICE_S)
        now = time.time()
        return Watched(Ending.COMPLETED, "", now, now, now, None, 10)

    def release(self, node: Node) -> Released:
        self._note("release", node.token)
        return Released(time.time())

    def pause(self, since: float, round_number: int) -> bool:
        return False

    def finish(self, claimed: frozenset[str]) -> Finished:
        self._note("finish")
        return Finished(time.time(), ())

    race = ask_home = claim_home = stand_by = hand_over = None


def main(witness: Path, watch_s: float) -> int:
    """Serve until the queue is empty."""

    def effects(controller: Controller, check: Callable[[], None]) -> Any:
        return ScriptedWorld(controller.record.ref, witness, watch_s, check)

    def show(job: str, event: Mapping[str, object]) -> None:
        print(job, dict(event), file=sys.stderr, flush=True)

    def stop(why: str) -> None:
        print("lost:", why, file=sys.stderr, flush=True)
        os._exit(75)

    server = Server(ServeOptions(once=True), os.environ, show=show, stop=stop, effects=effects)
    server.serve(threading.Event())
    memory = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print("memory", memory.split()[1], "kB", file=sys.stderr, flush=True)
    server.close()
    return 1 if State.FAILED in server.ended.values() else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), float(sys.argv[2])))
