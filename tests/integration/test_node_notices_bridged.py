"""EC2's metadata service behind a real bridge: network namespaces, and an answer whose hop limit is 1."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SERVICE = """
import http.server, json, pathlib, socket, sys
root = pathlib.Path(sys.argv[1])
class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, status, text=""):
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())
    def do_PUT(self):
        if not (root / "raised").exists():
            self.connection.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 1)
        self.answer(200, "token")
    def do_GET(self):
        if self.headers.get("X-aws-ec2-metadata-token") != "token":
            self.answer(401)
        elif self.path.endswith("/spot/instance-action") and (root / "notice").exists():
            self.answer(200, (root / "notice").read_text())
        else:
            self.answer(404)
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("10.73.2.2", 8254), Handler)
(root / "serving").touch()
server.serve_forever()
"""
"""The hop limit is that of the answer to the PUT alone, as EC2 has it."""
NETWORK = """
set -e
machine=$1 container=$2 service=$3
on() { local pid=$1; shift; nsenter -t "$pid" -n "$@"; }
on "$machine" ip link add name veth-c type veth peer name eth0 netns "$container"
on "$machine" ip link add name veth-s type veth peer name eth0 netns "$service"
on "$machine" ip addr add 10.73.1.1/24 dev veth-c
on "$machine" ip addr add 10.73.2.1/24 dev veth-s
on "$machine" ip link set veth-c up
on "$machine" ip link set veth-s up
on "$machine" bash -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'
for side in "$container 1" "$service 2"; do
  set -- $side
  on "$1" ip addr add "10.73.$2.2/24" dev eth0
  on "$1" ip link set lo up
  on "$1" ip link set eth0 up
  on "$1" ip route add default via "10.73.$2.1"
done
"""


@dataclass
class Bridged:
    """A machine, a container behind it and the metadata service before it, each in a network of its own."""

    root: Path
    machine: list[str]
    container: list[str]
    endpoint: str = "http://10.73.2.2:8254"


@pytest.fixture
def bridged(tmp_path: Path) -> Iterator[Bridged]:
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    held = [subprocess.Popen(["unshare", "--net", "sleep", "600"]) for _ in range(3)]
    root = tmp_path / "metadata"
    root.mkdir()
    try:
        own = Path("/proc/self/ns/net").readlink()
        end = time.monotonic() + 10
        while any(Path(f"/proc/{one.pid}/ns/net").readlink() == own for one in held):
            if any(one.poll() is not None for one in held) or time.monotonic() > end:
                pytest.skip("no network namespace can be made here")
            time.sleep(0.01)
        pids = [str(one.pid) for one in held]
        made = subprocess.run(["bash", "-c", NETWORK, "-", *pids], capture_output=True, text=True, check=False)
        if made.returncode:
            pytest.skip(f"no bridge can be made here: {made.stderr.strip()}")
        machine, container, beyond = (["nsenter", "-t", pid, "-n"] for pid in pids)
        held.append(subprocess.Popen([*beyond, sys.executable, "-c", SERVICE, str(root)]))
        while not (root / "serving").exists():
            assert held[-1].poll() is None
            time.sleep(0.01)
        yield Bridged(root, machine, container)
    finally:
        for one in held:
            one.kill()
            one.wait()


ASK = "import sys; from provisioner.node.notices.ec2 import Ec2; print(Ec2(sys.argv[1]).watch(0))"


def test_r30_a_hop_limit_of_1_is_named_delays_nothing_and_notices_come_once_it_is_raised(bridged, node_job):
    ask = [*bridged.machine, sys.executable, "-c", ASK, bridged.endpoint]
    asked = subprocess.run(ask, check=True, capture_output=True, text=True)
    assert asked.stdout == "None\n", "the machine itself gets its token"
    begin = time.monotonic()
    plain = node_job.start(1, node_job.trainer(steps=10), steps=10)
    plain.until_step(1)
    without = time.monotonic() - begin
    assert plain.wait() == 0
    begin = time.monotonic()
    environ = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": bridged.endpoint}
    command = node_job.trainer(steps=5000)
    node = node_job.start(2, command, steps=5000, cloud="aws", environ=environ, inside=bridged.container)
    node.until_step(11)
    assert time.monotonic() - begin < without + 2
    node.until(lambda: "hop limit is 1 and this container is on a bridge network" in node.log())
    (bridged.root / "notice").write_text('{"action": "terminate", "time": "2099-01-01T00:00:00Z"}')
    (bridged.root / "raised").touch()
    end = time.monotonic() + 5
    node.until(lambda: "gives notice: spot terminate" in node.log())
    assert time.monotonic() < end
    assert node.wait() == 75
    assert node.log().count("asking on") == node.log().count("answers again") == 1


def test_r30_the_doctor_tells_the_hop_limit(bridged, tmp_path):
    environ = {**os.environ, "AWS_EC2_METADATA_SERVICE_ENDPOINT": bridged.endpoint, "HOME": str(tmp_path)}
    environ.pop("AWS_EC2_METADATA_DISABLED", None)
    command = [*bridged.container, sys.executable, "-m", "provisioner.cli", "doctor", "--json"]

    def metadata() -> dict[str, str]:
        answer = subprocess.run(command, cwd=tmp_path, env=environ, check=True, capture_output=True, text=True)
        return next(one for one in json.loads(answer.stdout) if one["check"] == "ec2 metadata")

    found = metadata()
    assert found["verdict"] == "warn"
    assert "hop limit is 1" in found["detail"]
    assert found["fix"].startswith("aws ec2 modify-instance-metadata-options --http-put-response-hop-limit 2")
    (bridged.root / "raised").touch()
    assert metadata()["verdict"] == "ok"
    environ["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = "http://10.73.2.2:1"
    assert metadata()["verdict"] == "skip"
