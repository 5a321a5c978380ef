"""How fast a notice becomes a signal and a commit: `python benchmarks/notice.py [runs]` prints one JSON object.

Each run starts a real node with a small trainer on a directory store, changes the cloud's metadata at a random moment
(the sandbox's metadata servers, over real HTTP) and takes three times on this machine's clock: the change, SIGTERM in
the trainer, the manifest of its last checkpoint. Times are seconds from the change, the median and the slowest of
`runs` (10).

Beside ours stands a poll as aws-node-termination-handler does it: its monitors ask on a ticker of 2 s, and a second
ticker of 1 s looks whether they have found something (cmd/node-termination-handler.go). It is that loop alone, written
here, not the program: the program drains a Kubernetes node then, and its pods get SIGTERM from the kubelet later. Here
it signals our node, so that everything after the signal is the same. It knows no Google Cloud; there
the same loop asks.
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from provisioner.checkpoint.store import Store, open_store
from provisioner.sandbox.gce.metadata import GceFacts, GceMetadata
from provisioner.sandbox.metadata import Facts, Metadata

POLL_S, WORK_S = 2.0, 1.0
"""The two tickers of aws-node-termination-handler."""
DEADLINE_S = 60.0
TRAINER = """
import os, pathlib, signal, sys, time
out, step = pathlib.Path(os.environ["FAILOVER_CHECKPOINT_DIR"]), 0

def term(*_):
    pathlib.Path(sys.argv[1]).write_text(repr(time.time()))
    (out / "tmp-last").write_bytes(os.urandom(65536))
    (out / "tmp-last").rename(out / f"step-{step}")
    raise SystemExit(0)

signal.signal(signal.SIGTERM, term)
while True:
    step += 1
    print("step", step, flush=True)
    time.sleep(0.1)
"""


class Ec2:
    """A machine at EC2."""

    def __init__(self) -> None:
        """Serve its metadata."""
        self.server = Metadata(Facts("i-1", "r", "z", "t", "a", "10.0.0.1", "spot", "", role=lambda: None))
        self.environ = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": self.server.url}

    def change(self) -> None:
        """Announce the end."""
        self.server.interrupt(120)

    def poll(self) -> bool:
        """Ask once, as anybody would."""
        token = _http(
            urllib.request.Request(  # noqa: S310 - the server above
                f"{self.server.url}/latest/api/token",
                method="PUT",
                headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"},
            )
        )
        headers = {"X-aws-ec2-metadata-token": token}
        url = f"{self.server.url}/latest/meta-data/spot/instance-action"
        return _http(urllib.request.Request(url, headers=headers)) != ""  # noqa: S310


class Gce:
    """A machine at Google Cloud."""

    def __init__(self) -> None:
        """Serve its metadata."""
        facts = GceFacts("1", "n", "p", "1", "z", "t", "i", "10.0.0.1", "", "default", "", scopes=(), scheduling={})
        self.server = GceMetadata(facts, token=lambda: "")
        self.environ = {"GCE_METADATA_HOST": self.server.host}

    def change(self) -> None:
        """Announce the end."""
        self.server.preempt()

    def poll(self) -> bool:
        """Ask once."""
        url = f"{self.server.url}/computeMetadata/v1/instance/preempted"
        return _http(urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})) == "TRUE"  # noqa: S310


def main() -> int:
    """Measure every row and print."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    rows = {}
    for cloud, kind in (("aws", Ec2), ("gcp", Gce)):
        for who in ("ours", "2 s poll"):
            taken = [_run(cloud, kind(), ours=who == "ours") for _ in range(runs)]
            rows[f"{cloud}, {who}"] = {
                name: {"median_s": round(statistics.median(times), 3), "slowest_s": round(max(times), 3)}
                for name, times in zip(("signal", "commit"), zip(*taken, strict=True), strict=True)
            }
            print(f"{cloud}, {who}: {rows[f'{cloud}, {who}']}", file=sys.stderr)
    print(json.dumps({"runs": runs, **rows}, indent=2))
    return 0


def _run(cloud: str, machine: Ec2 | Gce, *, ours: bool) -> tuple[float, float]:
    """Return the seconds to the signal and to the commit."""
    with tempfile.TemporaryDirectory(prefix="failover-bench-") as scratch:
        root = Path(scratch)
        node = _node(root, cloud if ours else "local", machine.environ if ours else {})
        store = open_store(f"file://{root}/store").at("notice")
        try:
            _until(lambda: _step(store) > 0, "the training runs")
            poll = None if ours else _peer(machine, node)
            time.sleep(2.5 + random.uniform(0, POLL_S))
            changed = time.time()
            machine.change()
            _until(lambda: node.poll() is not None, "the node ends")
            if poll is not None:
                poll.join()
            signalled = float((root / "signalled").read_text())
            (manifest,) = (root / "store/notice/checkpoints").glob("*.json")
            return signalled - changed, manifest.stat().st_mtime - changed
        finally:
            machine.server.stop()
            node.kill()
            node.wait()


def _node(root: Path, cloud: str, environ: dict[str, str]) -> subprocess.Popen[bytes]:
    (root / "train.py").write_text(TRAINER)
    boot: dict[str, Any] = {
        "version": 1,
        "job": {"name": "notice", "uid": "00000000"},
        "epoch": 1,
        "token": "t",
        "store": {"uri": f"file://{root}/store"},
        "command": [sys.executable, "-S", str(root / "train.py"), str(root / "signalled")],
        "heartbeat_s": 1,
        "cloud": cloud,
    }
    (root / "bootstrap.json").write_text(json.dumps(boot))
    with (root / "output").open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "provisioner.node", "--bootstrap", str(root / "bootstrap.json")],
            stdout=output,
            stderr=output,
            env={**os.environ, **environ},
        )


def _peer(machine: Ec2 | Gce, node: subprocess.Popen[bytes]) -> threading.Thread:
    """Poll beside the node and signal it, in the rhythm of aws-node-termination-handler."""
    found = threading.Event()

    def monitor() -> None:
        for _ in _ticks(POLL_S):
            if machine.poll():
                found.set()
                return

    def work() -> None:
        threading.Thread(target=monitor, daemon=True).start()
        for _ in _ticks(WORK_S):
            if found.is_set():
                node.send_signal(signal.SIGTERM)
                return

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def _ticks(every_s: float) -> Any:
    """Tick as Go's ticker does: the first time after one interval, then without drift."""
    due = time.monotonic()
    while True:
        due += every_s
        time.sleep(max(0.0, due - time.monotonic()))
        yield due


def _step(store: Store) -> int:
    beat = json.loads(store.get("epochs/1/heartbeat.json") or b"{}")
    return int(beat.get("step") or 0)


def _until(ready: Callable[[], object], what: str) -> None:
    end = time.monotonic() + DEADLINE_S
    while not ready():
        if time.monotonic() > end:
            raise SystemExit(f"it did not come to that: {what}")
        time.sleep(0.02)


def _http(request: urllib.request.Request) -> str:
    try:
        with urllib.request.urlopen(request, timeout=2) as answer:  # noqa: S310
            return str(answer.read().decode())
    except urllib.error.HTTPError:
        return ""


if __name__ == "__main__":
    sys.exit(main())
