"""The cloud in a box as a process: where it is, what it lets others do, how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
import httpx
import obstore
import pytest
from botocore.exceptions import ClientError

from provisioner.errors import ConfigError
from provisioner.sandbox.metadata import Facts, Metadata
from provisioner.sandbox.scenario import load

DRILLS = Path(__file__).parents[2] / "examples" / "drills"


def eventually(true: Callable[[], bool], for_s: float = 30.0) -> bool:
    until = time.monotonic() + for_s
    while not true():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


@dataclass
class Served:
    process: subprocess.Popen[str]
    ready: dict[str, Any]
    directory: Path

    def client(self, service: str, key: str | None = None) -> Any:
        make: Any = boto3.client
        env = self.ready["env"]
        return make(
            service,
            "us-east-1",
            endpoint_url=self.ready["aws"],
            aws_access_key_id=key or env["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=env["AWS_SECRET_ACCESS_KEY"],
        )

    def state(self) -> dict[str, Any]:
        answer = httpx.get(f"{self.ready['control']}/state", timeout=30)
        return dict(answer.raise_for_status().json())

    def post(self, path: str, body: Any) -> httpx.Response:
        return httpx.post(f"{self.ready['control']}/{path}", json=body, timeout=30)

    def run(self, user_data: str = "#!/bin/bash\nsleep 600\n") -> str:
        made = self.client("ec2").run_instances(ImageId="ami-12c6146b", MinCount=1, MaxCount=1, UserData=user_data)
        return str(made["Instances"][0]["InstanceId"])


def serve(directory: Path, *options: str) -> Served:
    command = [sys.executable, "-m", "provisioner.sandbox", "--directory", str(directory), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return Served(process, json.loads(process.stdout.readline()), directory)


def end(served: Served) -> int:
    served.process.terminate()
    code = served.process.wait(20)
    assert served.process.stdout is not None
    assert served.process.stdout.read() == ""  # one line, and nothing else
    served.process.stdout.close()
    return code


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = serve(tmp_path / "box")
    yield made
    if made.process.poll() is None:
        end(made)


def test_it_says_where_it_is_and_ends_with_nothing_left(served: Served) -> None:
    file = served.directory / "sandbox.json"
    assert json.loads(file.read_text()) == served.ready
    assert file.stat().st_mode & 0o777 == 0o600
    instance = served.run()
    assert eventually(lambda: served.state()["machines"] == [{"id": instance, "cloud": "aws"}])
    pids = [int(p.parent.name) for p in Path("/proc").glob("[0-9]*/environ") if _has(p, instance)]
    assert pids
    assert httpx.get(served.ready["autodl"], timeout=10).status_code < 500
    assert end(served) == 0
    assert not [pid for pid in pids if _runs(pid)]
    assert not file.exists()


def _runs(pid: int) -> bool:
    """Say whether a process runs; one that has ended and waits for init to collect it does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _has(environ: Path, instance: str) -> bool:
    try:
        return f"FAILOVER_SANDBOX_MACHINE={instance}".encode() in environ.read_bytes()
    except OSError:
        return False


def test_only_its_own_key_may_launch_and_only_its_own_path_may_steer(served: Served) -> None:
    """A launch runs user data as this user, so an open port on a shared host must not be enough."""
    with pytest.raises(ClientError, match="AuthFailure"):
        served.client("ec2", key="AKIASOMEBODYELSE").run_instances(ImageId="ami-12c6146b", MinCount=1, MaxCount=1)
    base = served.ready["control"].rsplit("/", 1)[0]
    assert httpx.get(f"{base}/state", timeout=10).status_code == 404
    assert not served.state()["machines"]


def test_it_can_be_steered(served: Served) -> None:
    rule = {"action": "RunInstances", "code": "VcpuLimitExceeded"}
    assert httpx.put(f"{served.ready['control']}/faults", json=[rule], timeout=10).json() == [rule]
    with pytest.raises(ClientError, match="VcpuLimitExceeded"):
        served.run()
    httpx.delete(f"{served.ready['control']}/faults", timeout=10)
    assert served.post("faults", [{"colour": "red"}]).status_code == 422
    assert served.post("take", {"cloud": "aws"}).status_code == 404
    first, second = served.run(), served.run()
    assert eventually(lambda: len(served.state()["machines"]) == 2)
    assert served.post("take", {"cloud": "aws", "id": first}).json() == {"id": first}
    assert served.post("notice", {"seconds": 0.3}).json() == {"id": second}
    assert eventually(lambda: not served.state()["machines"])
    outcomes = [launch["outcome"] for launch in served.state()["launches"]]
    assert outcomes == ["VcpuLimitExceeded", first, second]
    assert eventually(lambda: served.state()["left"] == [])
    assert served.post("reset", {}).status_code == 200
    assert served.state()["aws"]["instances"] == []


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys; p = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE)\n"
        "p.stdout.readline(); print(p.pid, flush=True); sys.stdin.read()"
    )
    sandbox = ["-m", "provisioner.sandbox", "--exit-with-parent", "--directory", str(tmp_path)]
    command = [sys.executable, "-c", code, sys.executable, *sandbox]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        os.kill(parent.pid, signal.SIGKILL)
    assert eventually(lambda: not _lives(pid))
    assert not (tmp_path / "sandbox.json").exists()


def _lives(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


SCENE = """
name: test
aws:
  boot: 100ms
events:
  - when: {epoch: 1, step: 40}
    do: {take_machine: {cloud: aws}, stock: zero}
  - when: {after: 0s, epoch: 2, step: 1}
    do: {faults: [{action: RunInstances, code: InsufficientInstanceCapacity}]}
"""


def test_events_follow_the_heartbeats(tmp_path: Path) -> None:
    (tmp_path / "scene.yaml").write_text(SCENE)
    served = serve(tmp_path / "box", "--scenario", str(tmp_path / "scene.yaml"))
    try:
        instance, s3 = served.run(), served.client("s3")
        s3.create_bucket(Bucket="bucket")

        def beat(epoch: int, step: int) -> None:
            body = json.dumps({"epoch": epoch, "step": step}).encode()
            s3.put_object(Bucket="bucket", Key=f"jobs/digits/epochs/{epoch}/heartbeat.json", Body=body)

        assert eventually(lambda: len(served.state()["machines"]) == 1)
        beat(1, 39)
        assert not eventually(lambda: bool(served.state()["events"]), for_s=0.7)
        beat(1, 41)
        assert eventually(lambda: not served.state()["machines"])
        beat(2, 3)
        assert eventually(lambda: len(served.state()["events"]) == 2)
        state = served.state()
        assert state["events"][0]["machine"] == instance
        assert state["faults"][0]["code"] == "InsufficientInstanceCapacity"
        assert {row["idle"] for row in state["autodl"]["pro_stock"]} == {0}
    finally:
        end(served)


GCP_SCENE = """
name: test
gcp:
  boot: 100ms
  end: 50ms
  quotas: [{metric: GPUS_ALL_REGIONS, limit: 2}]
  faults: [{method: instances.insert, zone: us-central1-a, code: ZONE_RESOURCE_POOL_EXHAUSTED, delay: 0}]
events:
  - when: {after: 200ms}
    do:
      take_machine: {cloud: gcp}
      gcp_faults: [{zone: us-central1-a, code: ZONE_RESOURCE_POOL_EXHAUSTED, delay: 0.1}]
"""


def test_google_cloud_is_part_of_the_box(tmp_path: Path) -> None:
    (tmp_path / "scene.yaml").write_text(GCP_SCENE)
    served = serve(tmp_path / "box", "--scenario", str(tmp_path / "scene.yaml"))
    try:
        env = served.ready["env"]
        root = f"{env['GOOGLE_COMPUTE_CUSTOM_ENDPOINT']}projects/sandbox-project/zones"
        mine = {"Authorization": f"Bearer {env['GOOGLE_OAUTH_ACCESS_TOKEN']}"}

        def insert(name: str, zone: str) -> dict[str, Any]:
            card = {"acceleratorType": f"zones/{zone}/acceleratorTypes/nvidia-tesla-t4", "acceleratorCount": 1}
            body = {
                "name": name,
                "machineType": f"zones/{zone}/machineTypes/n1-standard-4",
                "guestAccelerators": [card],
                "scheduling": {"onHostMaintenance": "TERMINATE", "provisioningModel": "STANDARD"},
                "disks": [{"boot": True, "autoDelete": True}],
                "networkInterfaces": [{}],
                "metadata": {"items": [{"key": "startup-script", "value": "#!/bin/bash\nsleep 600\n"}]},
            }
            asked = httpx.post(f"{root}/{zone}/instances", json=body, headers=mine, timeout=10).raise_for_status()
            waited = httpx.post(f"{root}/{zone}/operations/{asked.json()['name']}/wait", headers=mine, timeout=10)
            return dict(waited.json())

        assert httpx.get(f"{root}/us-central1-a", timeout=10).status_code == 401
        assert insert("one", "us-central1-a")["error"]["errors"][0]["code"] == "ZONE_RESOURCE_POOL_EXHAUSTED"
        assert "error" not in insert("one", "us-central1-b")  # and is taken by the scenario
        assert eventually(lambda: bool(served.state()["events"]))
        assert eventually(lambda: not served.state()["machines"])
        assert served.state()["gcp_faults"][0]["delay"] == 0.1
        assert served.state()["left"] == ["gcp/instance/us-central1-b/one", "gcp/disk/us-central1-b/one"]
        httpx.delete(f"{root}/us-central1-b/instances/one", headers=mine, timeout=10)
        assert eventually(lambda: served.state()["left"] == [])

        assert "error" not in insert("two", "us-central1-f")
        served.post("quotas", [{"metric": "GPUS_ALL_REGIONS", "limit": 1}])
        assert insert("three", "us-central1-b")["error"]["errors"][0]["code"] == "QUOTA_EXCEEDED"
        rule = {"method": "instances.insert", "code": "backendError"}
        assert httpx.put(f"{served.ready['control']}/faults/gcp", json=[rule], timeout=10).json() == [rule]
        assert served.post("faults/azure", []).status_code == 404
        assert served.post("notice", {"cloud": "gcp", "seconds": 0.2}).json()["id"].startswith("gce-")
        assert eventually(lambda: not served.state()["machines"])
        outcomes = [launch["outcome"] for launch in served.state()["launches"] if launch["cloud"] == "gcp"]
        assert [word for word in outcomes if word.isupper()] == ["ZONE_RESOURCE_POOL_EXHAUSTED", "QUOTA_EXCEEDED"]
        assert served.post("reset", {}).status_code == 200
        assert served.state()["gcp"]["instances"] == []
    finally:
        end(served)


@pytest.mark.parametrize("path", sorted(DRILLS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_drill_can_be_read(path: Path) -> None:
    scenario = load(path)
    assert scenario.description
    assert scenario.expect.exit_code in {0, 3}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "name: x\nevents:\n  - when: {step: 3}\n    do: {}\n",
            ":3: events.0.when: Value error, say `after` or `epoch`",
        ),
        ("name: x\naws:\n  faults:\n    - {acton: RunInstances}\n", ":4: aws.faults.0.acton: unknown key"),
        ("name: x\nautodl: {stock: [{region: a, gpu: b, idle: many}]}\n", ":2: autodl.stock.0.idle: Input should be"),
        ("description: none\n", ":1: name: this is missing"),
        ("name: [\n", ":2: not YAML"),
        ("- a\n", ":1: a scenario is a mapping"),
    ],
)
def test_a_wrong_scenario_is_one_line_with_file_and_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "scene.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        load(path)
    assert str(error.value).startswith(f"{path}{said}")
    assert "\n" not in str(error.value)


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    facts = Facts("i-1", "us-east-1", "us-east-1b", "g4dn.xlarge", "ami-1", "10.0.0.1", "spot", "", lambda: "role")
    made = Metadata(facts)
    yield made
    made.stop()


def ask(metadata: Metadata, path: str, token: str | None = None) -> httpx.Response:
    headers = {} if token is None else {"X-aws-ec2-metadata-token": token}
    return httpx.get(f"{metadata.url}/latest/meta-data/{path}", headers=headers, timeout=10)


def grant(metadata: Metadata, seconds: str = "60") -> httpx.Response:
    headers = {"X-aws-ec2-metadata-token-ttl-seconds": seconds}
    return httpx.put(f"{metadata.url}/latest/api/token", headers=headers, timeout=10)


def test_metadata_need_a_token_and_announce_the_end(metadata: Metadata) -> None:
    assert ask(metadata, "instance-id").status_code == 401
    assert [grant(metadata, s).status_code for s in ("0", "21601", "x", "21600")] == [400, 400, 400, 200]
    token = grant(metadata).text
    assert ask(metadata, "placement/availability-zone", token).text == "us-east-1b"
    assert ask(metadata, "spot/instance-action", token).status_code == 404
    metadata.interrupt(120)
    notice = ask(metadata, "spot/instance-action", token).json()
    left = datetime.fromisoformat(notice["time"]) - datetime.now(UTC)
    assert (notice["action"], 100 < left.total_seconds() <= 121) == ("terminate", True)
    metadata.rebalance()
    assert "noticeTime" in ask(metadata, "events/recommendations/rebalance", token).json()
    metadata.break_down(503, 60)
    assert (grant(metadata).status_code, ask(metadata, "instance-id", token).status_code) == (503, 503)


def test_the_store_gets_its_key_from_the_metadata(served: Served, metadata: Metadata) -> None:
    served.client("s3").create_bucket(Bucket="bucket")
    store = obstore.store.S3Store(
        "bucket",
        endpoint=served.ready["aws"],
        region="us-east-1",
        metadata_endpoint=metadata.url,
        client_options={"allow_http": True},
    )
    obstore.put(store, "epochs/1/owner.json", b"mine", mode="create")
    assert bytes(obstore.get(store, "epochs/1/owner.json").bytes()) == b"mine"
