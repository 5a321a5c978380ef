"""Google Cloud in a box, as Google's own client sees it."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
from google.api_core import exceptions
from google.api_core.client_options import ClientOptions
from google.auth.exceptions import RefreshError
from google.cloud import compute_v1
from google.oauth2.credentials import Credentials

from provisioner.sandbox.gce.emulator import GceEmulator
from provisioner.sandbox.gce.metadata import GceFacts, GceMetadata
from provisioner.sandbox.machines import Machines
from tests.rooms import eventually

PROJECT, ZONE = "sandbox-project", "us-central1-a"
SLEEPS = "#!/bin/bash\necho up\nsleep 600\n"


class Cloud:
    """The emulator and Google's client for it."""

    def __init__(self, directory: Path) -> None:
        self.machines = Machines(directory, grace_s=1.0)
        self.emulator = GceEmulator(self.machines, boot_s=0.1, end_s=0.05, refuse_s=0.1, held_s=0.4)
        self.url = self.emulator.start()
        self.instances = self.client(compute_v1.InstancesClient)
        self.operations = self.client(compute_v1.ZoneOperationsClient)

    def client(self, kind: Any, token: str | None = None) -> Any:
        """Make a client of Google's."""
        credentials = Credentials(token=token or self.emulator.token)
        return kind(credentials=credentials, client_options=ClientOptions(api_endpoint=self.url), transport="rest")

    def insert(self, name: str, *, zone: str = ZONE, request_id: str | None = None, **changes: Any) -> Any:
        """Ask for a machine with a T4."""
        prefix = f"projects/{PROJECT}/zones/{zone}"
        scheduling: dict[str, Any] = {"provisioning_model": "SPOT", "instance_termination_action": "DELETE"}
        scheduling |= {"on_host_maintenance": "TERMINATE", "automatic_restart": False}
        image = "projects/deeplearning-platform-release/global/images/family/common-cu128-ubuntu-2204-nvidia-570"
        params = {"source_image": image, "disk_size_gb": 100, "labels": {"failover-job": "digits"}}
        body = {
            "name": name,
            "machine_type": f"{prefix}/machineTypes/n1-standard-8",
            "guest_accelerators": [
                {"accelerator_type": f"{prefix}/acceleratorTypes/nvidia-tesla-t4", "accelerator_count": 1}
            ],
            "scheduling": scheduling | changes.pop("scheduling", {}),
            "disks": [{"boot": True, "auto_delete": True, "initialize_params": params}],
            "network_interfaces": [{"network": "global/networks/default", "access_configs": [{}]}],
            "labels": {"failover-job": "digits"},
            "metadata": {"items": [{"key": "startup-script", "value": changes.pop("script", SLEEPS)}]},
        }
        request = {"project": PROJECT, "zone": zone, "instance_resource": body | changes}
        if request_id is not None:
            request["request_id"] = request_id
        return self.instances.insert_unary(request)

    def run(self, name: str, **how: Any) -> None:
        """Ask for a machine, and wait until it runs."""
        operation = self.end(self.insert(name, **how))
        assert not operation.error.errors, operation.error

    def end(self, operation: Any) -> Any:
        """Wait for the end of an operation."""
        zone = operation.zone.rpartition("/")[2]
        return self.operations.wait(project=PROJECT, zone=zone, operation=operation.name)

    def get(self, name: str, zone: str = ZONE) -> Any:
        """Return a machine as Google describes it."""
        return self.instances.get(project=PROJECT, zone=zone, instance=name)

    def ids(self) -> list[str]:
        """List the ids of machines in the sandbox."""
        return [one["id"] for one in self.emulator.state()["instances"]]


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    made = Cloud(tmp_path)
    yield made
    made.emulator.stop()
    made.machines.stop_all()


def test_a_machine_is_asked_for_runs_is_found_by_its_label_and_goes_whole(cloud: Cloud) -> None:
    script = (
        "#!/bin/bash\ncurl -sH 'Metadata-Flavor: Google' http://$GCE_METADATA_HOST/computeMetadata/v1/instance/name\n"
    )
    operation = cloud.insert("trainer", script=f"{script}echo; echo ready; sleep 600\n")
    assert operation.status != compute_v1.Operation.Status.DONE
    assert cloud.get("trainer").status == "PROVISIONING"
    assert cloud.end(operation).status == compute_v1.Operation.Status.DONE
    found = cloud.get("trainer")
    assert (found.status, found.scheduling.provisioning_model) == ("RUNNING", "SPOT")
    assert str(found.id).isdecimal()
    assert found.zone.endswith(f"/zones/{ZONE}")
    assert eventually(lambda: "trainer\nready\n" in cloud.machines.console(f"gce-{found.id}"))

    label = "labels.failover-job=digits"
    assert [i.name for i in cloud.instances.list({"project": PROJECT, "zone": ZONE, "filter": label})] == ["trainer"]
    assert not list(cloud.instances.list({"project": PROJECT, "zone": ZONE, "filter": "labels.failover-job=other"}))
    scopes = dict(cloud.instances.aggregated_list({"project": PROJECT, "filter": label, "max_results": 1}))
    assert [i.name for i in scopes[f"zones/{ZONE}"].instances] == ["trainer"]
    disks = list(cloud.client(compute_v1.DisksClient).list(project=PROJECT, zone=ZONE))
    assert [(disk.name, dict(disk.labels)) for disk in disks] == [("trainer", {"failover-job": "digits"})]

    cloud.end(cloud.instances.delete_unary(project=PROJECT, zone=ZONE, instance="trainer"))
    with pytest.raises(exceptions.NotFound):
        cloud.get("trainer")
    assert (cloud.machines.live(), cloud.emulator.state()["disks"]) == ([], [])


def test_r22_yes_then_no_the_reason_is_in_the_operation_and_the_name_stays_taken(cloud: Cloud) -> None:
    sold_out = {"method": "instances.insert", "zone": ZONE, "zones_available": ["us-central1-b", "us-central1-f"]}
    cloud.emulator.faults.set([sold_out | {"code": "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"}])
    operation = cloud.insert("trainer")
    with pytest.raises(exceptions.NotFound):  # nothing to look at meanwhile
        cloud.get("trainer")
    operation = cloud.end(operation)
    (error,) = operation.error.errors
    assert (error.code, operation.http_error_status_code) == ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", 503)
    (info,) = (detail.error_info for detail in error.error_details if detail.error_info.reason)
    assert info.metadatas["zonesAvailable"] == "us-central1-b,us-central1-f"
    assert info.metadatas["attachment"] == "nvidia-tesla-t4:1"

    cloud.emulator.faults.set([])
    with pytest.raises(exceptions.Conflict, match="already exists"):
        cloud.insert("trainer")
    cloud.run("trainer", zone="us-central1-b")
    outcomes = [launch["outcome"] for launch in cloud.emulator.faults.log()]
    assert outcomes[:2] == ["ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "alreadyExists"]

    cloud.emulator.take(cloud.ids()[0])
    assert eventually(lambda: cloud.emulator.state()["instances"] == [])


def test_r22_a_twin_that_is_off_keeps_its_name_and_its_disk(cloud: Cloud) -> None:
    script = "#!/bin/bash\nshutdown -h now\n"
    standard = {"provisioning_model": "STANDARD", "instance_termination_action": ""}
    cloud.run("trainer", script=script, scheduling=standard)
    assert eventually(lambda: cloud.get("trainer").status == "TERMINATED")
    with pytest.raises(exceptions.Conflict):
        cloud.insert("trainer")
    assert cloud.emulator.state()["disks"] == [f"{ZONE}/trainer"]
    kinds = [operation.operation_type for operation in cloud.operations.list(project=PROJECT, zone=ZONE)]
    assert "compute.instances.guestTerminate" in kinds


def test_a_stopped_machine_starts_again_and_runs_its_script_again(cloud: Cloud) -> None:
    cloud.run("trainer", script="#!/bin/bash\necho booted\nsleep 600\n")
    (machine,) = cloud.ids()
    where = {"project": PROJECT, "zone": ZONE, "instance": "trainer"}
    assert eventually(lambda: "booted" in cloud.machines.console(machine))
    cloud.end(cloud.instances.stop_unary(where))
    assert (cloud.get("trainer").status, cloud.machines.live()) == ("TERMINATED", [])
    cloud.end(cloud.instances.start_unary(where))
    assert cloud.get("trainer").status == "RUNNING"
    assert eventually(lambda: cloud.machines.console(machine).count("booted") == 2)
    assert "booted" in cloud.instances.get_serial_port_output(where).contents


def test_one_request_id_is_one_machine_even_when_the_answer_is_lost(cloud: Cloud) -> None:
    request_id = str(uuid.uuid4())
    cloud.emulator.faults.set([{"method": "instances.insert", "lost": True, "times": 1}])
    with pytest.raises(requests.ConnectionError):
        cloud.insert("trainer", request_id=request_id)
    again = cloud.insert("trainer", request_id=request_id)
    cloud.end(again)
    assert cloud.insert("trainer", request_id=request_id).name == again.name
    assert len(cloud.ids()) == 1
    for other in (request_id, "not-a-uuid", str(uuid.UUID(int=0))):
        with pytest.raises(exceptions.BadRequest, match="requestId"):
            cloud.insert("another", request_id=other)


def test_quotas_are_told_by_region_and_kept(cloud: Cloud) -> None:
    cloud.emulator.set_quota("PREEMPTIBLE_NVIDIA_T4_GPUS", 1, "us-central1")
    cloud.run("first")
    quotas = cloud.client(compute_v1.RegionsClient).get(project=PROJECT, region="us-central1").quotas
    (quota,) = (one for one in quotas if one.metric == "PREEMPTIBLE_NVIDIA_T4_GPUS")
    assert (quota.limit, quota.usage) == (1.0, 1.0)
    (error,) = cloud.end(cloud.insert("second", zone="us-central1-b")).error.errors
    assert error.code == "QUOTA_EXCEEDED"
    assert error.message == "Quota 'PREEMPTIBLE_NVIDIA_T4_GPUS' exceeded.  Limit: 1.0 in region us-central1."
    assert error.error_details[0].quota_info.dimensions == {"region": "us-central1"}

    cloud.emulator.set_quota("GPUS_ALL_REGIONS", 1)
    (error,) = cloud.end(cloud.insert("third", zone="europe-west4-b")).error.errors
    assert error.message == "Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 1.0 globally."
    project = cloud.client(compute_v1.ProjectsClient).get(project=PROJECT)
    assert {q.metric: q.usage for q in project.quotas}["GPUS_ALL_REGIONS"] == 1.0


@pytest.mark.parametrize(
    ("rule", "raised", "reason"),
    [
        ({"code": "quotaExceeded"}, exceptions.Forbidden, "quotaExceeded"),
        ({"code": "rateLimitExceeded"}, exceptions.Forbidden, "rateLimitExceeded"),
        ({"code": "forbidden"}, exceptions.Forbidden, "forbidden"),
        ({"code": "backendError"}, exceptions.ServiceUnavailable, "backendError"),
    ],
)
def test_a_call_may_be_refused_at_once(
    cloud: Cloud, rule: dict[str, Any], raised: type[exceptions.GoogleAPICallError], reason: str
) -> None:
    cloud.emulator.faults.set([{"method": "instances.insert", "times": 1, **rule}])
    with pytest.raises(raised) as refused:
        cloud.insert("trainer")
    assert dict(refused.value.errors[0])["reason"] == reason
    assert cloud.ids() == []


def test_several_reasons_may_come_in_one_answer_and_what_cannot_be_is_refused(cloud: Cloud) -> None:
    cloud.emulator.faults.set([{"code": "VM_MIN_COUNT_NOT_REACHED", "also": ["QUOTA_EXCEEDED"], "times": 1}])
    operation = cloud.end(cloud.insert("trainer"))
    assert [error.code for error in operation.error.errors] == ["VM_MIN_COUNT_NOT_REACHED", "QUOTA_EXCEEDED"]
    with pytest.raises(exceptions.BadRequest, match="does not exist in zone"):
        cloud.insert("big", machine_type=f"zones/{ZONE}/machineTypes/p9-huge")
    with pytest.raises(exceptions.BadRequest, match="live migration"):
        cloud.insert("moves", scheduling={"on_host_maintenance": "MIGRATE"})
    with pytest.raises(exceptions.BadRequest, match="Label value"):
        cloud.insert("shouts", labels={"job": "DIGITS"})
    with pytest.raises(exceptions.NotFound, match="serviceAccount"):
        cloud.insert("who", service_accounts=[{"email": f"nobody@{PROJECT}.iam.gserviceaccount.com"}])
    with pytest.raises(RefreshError):  # Google's library meets 401 by asking for another token
        cloud.client(compute_v1.ZonesClient, token="somebody's").get(project=PROJECT, zone=ZONE)
    assert cloud.ids() == []


def test_a_preempted_machine_is_told_asked_to_stop_and_deleted(cloud: Cloud) -> None:
    script = "#!/bin/bash\ntrap 'sleep 2; echo saved; exit' TERM\necho up\nwhile :; do sleep 0.05; done\n"
    cloud.run("trainer", script=script)
    (machine,) = cloud.ids()
    metadata = cloud.emulator.metadata(machine)
    assert metadata is not None
    ask = f"{metadata.url}/computeMetadata/v1/instance/preempted?wait_for_change=true"
    heard: list[str] = []
    waiting = threading.Thread(
        target=lambda: heard.append(httpx.get(ask, headers={"Metadata-Flavor": "Google"}, timeout=20).text)
    )
    waiting.start()
    assert eventually(lambda: "up" in cloud.machines.console(machine))
    cloud.emulator.interrupt(machine, 10.0)
    assert cloud.get("trainer").status == "STOPPING"
    waiting.join(5)
    assert heard == ["TRUE"]
    assert eventually(lambda: cloud.emulator.state()["instances"] == [])
    assert "saved" in cloud.machines.console(machine)
    assert cloud.emulator.state()["disks"] == []


def test_a_machine_ends_at_the_end_of_its_longest_run(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    brief = {"max_run_duration": {"seconds": 1}}
    with pytest.raises(exceptions.BadRequest, match="maxRunDuration"):
        cloud.insert("trainer", scheduling=brief)
    monkeypatch.setattr("provisioner.sandbox.gce.requests._RUN_S", (1, 60))
    cloud.run("trainer", scheduling=brief)
    assert cloud.get("trainer").scheduling.max_run_duration.seconds == 1
    assert eventually(lambda: cloud.emulator.state()["instances"] == [])
    assert cloud.machines.live() == []


def test_substrate_is_made_labelled_guarded_and_removed(cloud: Cloud) -> None:
    ask = httpx.Client(base_url=cloud.url, headers={"Authorization": f"Bearer {cloud.emulator.token}"}, timeout=10)
    networks, root = cloud.client(compute_v1.NetworksClient), f"/compute/v1/projects/{PROJECT}"
    networks.insert_unary(project=PROJECT, network_resource={"name": "own", "auto_create_subnetworks": False})
    subnet = {"name": "own", "network": "global/networks/own", "ipCidrRange": "10.1.0.0/24"}
    made = ask.post(f"{root}/regions/us-central1/subnetworks", json=subnet).json()
    assert ask.post(f"{root}/regions/us-central1/operations/{made['name']}/wait").json()["status"] == "DONE"
    with pytest.raises(exceptions.BadRequest, match="already being used by"):
        networks.delete_unary(project=PROJECT, network="own")
    accounts = f"/v1/projects/{PROJECT}/serviceAccounts"
    email = ask.post(accounts, json={"accountId": "fo-digits"}).json()["email"]
    assert ask.post(accounts, json={"accountId": "fo-digits"}).json()["error"]["status"] == "ALREADY_EXISTS"
    cloud.emulator.add_bucket("checkpoints")
    policy = ask.get("/storage/v1/b/checkpoints/iam").json()
    binding = {"role": "roles/storage.objectUser", "members": [f"serviceAccount:{email}"]}
    fresh = ask.put("/storage/v1/b/checkpoints/iam", json={**policy, "bindings": [binding]})
    assert fresh.json()["bindings"] == [binding]
    assert ask.put("/storage/v1/b/checkpoints/iam", json={**policy, "bindings": []}).status_code == 412
    assert ask.get("/storage/v1/b/another/iam").json()["error"]["errors"][0]["reason"] == "notFound"
    ask.delete(f"{root}/regions/us-central1/subnetworks/own")
    networks.delete_unary(project=PROJECT, network="own")
    ask.put("/storage/v1/b/checkpoints/iam", json={"bindings": []})
    ask.delete(f"{accounts}/{email}")
    state = cloud.emulator.state()
    assert not any(state[kind] for kind in ("networks", "subnetworks", "service_accounts", "bindings"))


@pytest.fixture
def metadata() -> Iterator[GceMetadata]:
    facts = GceFacts(
        instance_id="1",
        name="trainer",
        project=PROJECT,
        project_number="123456789012",
        zone=ZONE,
        machine_type="n1-standard-8",
        image="",
        private_ip="10.128.0.2",
        public_ip="",
        network="default",
        email="fo@sandbox-project.iam.gserviceaccount.com",
        scopes=("https://www.googleapis.com/auth/cloud-platform",),
        scheduling={"preemptible": "TRUE"},
        attributes={"startup-script": "#!/bin/bash"},
    )
    made = GceMetadata(facts, token=lambda: "ya29.machine")
    yield made
    made.stop()


def test_metadata_want_their_header_and_can_be_waited_for(metadata: GceMetadata) -> None:
    root, mine = f"{metadata.url}/computeMetadata/v1", {"Metadata-Flavor": "Google"}
    assert httpx.get(f"{root}/instance/zone").status_code == 403
    assert httpx.get(f"{root}/instance/zone", headers=mine).text == f"projects/123456789012/zones/{ZONE}"
    assert httpx.get(f"{root}/instance/attributes/startup-script", headers=mine).text == "#!/bin/bash"
    token = httpx.get(f"{root}/instance/service-accounts/default/token", headers=mine).json()
    assert token["access_token"] == "ya29.machine"
    seen = httpx.get(f"{root}/instance/maintenance-event", headers=mine)
    assert (seen.text, seen.headers["Metadata-Flavor"]) == ("NONE", "Google")
    wait = {"wait_for_change": "true", "timeout_sec": "1", "last_etag": seen.headers["ETag"]}
    began = time.monotonic()
    assert httpx.get(f"{root}/instance/maintenance-event", headers=mine, params=wait, timeout=10).text == "NONE"
    assert time.monotonic() - began >= 0.9
    metadata.maintain()
    told = httpx.get(f"{root}/instance/maintenance-event", headers=mine, params=wait, timeout=10)
    assert told.text == "TERMINATE_ON_HOST_MAINTENANCE"
    metadata.break_down(503, 60)
    assert httpx.get(f"{root}/instance/zone", headers=mine).status_code == 503
