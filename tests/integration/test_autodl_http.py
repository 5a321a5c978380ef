"""AutoDL's client and emulator over real sockets, and real processes as its machines."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from provisioner.clouds import open_cloud
from provisioner.clouds.autodl import AutodlClient, AutodlCloud
from provisioner.clouds.autodl.elastic_api import Template
from provisioner.clouds.base import Request
from provisioner.errors import Unauthorized, Unreachable
from provisioner.model import JobRef, Launch, Money, Node, NodeState
from provisioner.sandbox.autodl import AutodlEmulator, Delays, EmulatorConfig
from provisioner.sandbox.autodl.app import create_wechat_app
from provisioner.sandbox.autodl.box import Box, Server
from provisioner.sandbox.machines import Machines

TOKEN = "canary-developer-token"
JOB = JobRef("digits", "1a2b3c4d")
CREATE = {"pro": "/api/v1/dev/instance/pro/create", "elastic": "/api/v1/dev/deployment"}
QUICK = Delays(0.05, 0.05, 0.05, 0.05, 0, 0.02)
MODES = pytest.mark.parametrize("mode", ["pro", "elastic"])


@dataclass(frozen=True)
class Settings:
    mode: str
    regions: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ("RTX 4090D",)
    image_uuid: str | None = None
    max_price: None = None


@pytest.fixture
def served():
    emulator = AutodlEmulator(EmulatorConfig(token=TOKEN, delays=QUICK))
    server = Server(emulator)
    yield server, emulator
    server.stop()


def nap(seconds):
    """Wait as asked, within reason: the emulator is quick too."""
    time.sleep(min(seconds, 0.05))


def open_client(url, token=TOKEN, **options):
    return AutodlClient(token, url, **{"sleep": nap, "timeout_s": 5.0, **options})


def control(url, what, body=None, method=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{url}/_control/{what}", data=data, method=method)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def launch(script="true"):
    return Launch(JOB, 1, "0123456789abcdef0123456789abcdef", f"#!/bin/bash\n{script}\n", 600.0)


def until(what, seconds=20.0):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.02)


@pytest.mark.parametrize("kind", ["status", "truncated", "not_json", "lost_answer", "dropped", "slow"])
def test_a_read_survives_each_fault_on_a_real_line(served, kind):
    server, _ = served
    with open_client(server.url, timeout_s=0.5 if kind == "slow" else 5.0) as client:
        control(server.url, "faults", {"kind": kind, "count": 2, "seconds": 1.0, "status": 502})
        assert client.gpu_stock("westDC3")["RTX 4090"].idle == 90
    assert control(server.url, "state")["faults"] == []


@MODES
@pytest.mark.parametrize("kind", ["lost_answer", "truncated"])
def test_a_lost_answer_to_a_create_makes_exactly_one_machine(served, mode, kind):
    server, emulator = served
    with open_client(server.url) as client:
        cloud = AutodlCloud(Settings(mode), JOB, client, sleep=nap, poll_s=0.05)
        offer = next(offer for offer in cloud.offers(Request()) if offer.available != 0)
        control(server.url, "faults", {"kind": kind, "path": CREATE[mode]})
        node = cloud.claim(offer, launch())
        assert isinstance(node, Node)
        state = control(server.url, "state")
        assert [item["id"] for item in state["instances"] + state["deployments"]] == [node.id]
        until(lambda: cloud.inspect(node) is NodeState.RUNNING)
        cloud.release(node)
        assert cloud.owned() == []
    assert emulator.state()["instances"] == emulator.state()["deployments"] == []


def test_a_server_that_is_gone_is_unreachable(served):
    server, _ = served
    server.stop()
    with open_client(server.url, tries=2) as client, pytest.raises(Unreachable, match="ConnectError"):
        client.balance()


def test_the_token_is_in_no_log_of_either_side(served, caplog):
    caplog.set_level(logging.DEBUG)
    server, emulator = served
    with open_client(server.url) as client:
        client.balance()
        client.pro.instances()
        with open_client(server.url, "canary-wrong-token") as wrong, pytest.raises(Unauthorized) as told:
            wrong.balance()
    assert "canary" not in caplog.text + str(told.value) + str(emulator.requests()) + str(emulator.state())
    assert "/api/v1/dev/wallet/balance" in caplog.text


def test_every_call_of_the_document_is_answered(served):
    """One call each, through the client: wallet and storage 2, Pro 9, elastic 13."""
    server, emulator = served
    with open_client(server.url) as client:
        assert client.balance().spendable.amount == 1000
        client.mount_nfs("chongqingDC1", dedicated=True)
        cloud = AutodlCloud(Settings("pro"), JOB, client, sleep=nap, poll_s=0.05)
        node = cloud.claim(cloud.offers(Request())[0], launch())
        assert isinstance(node, Node)
        until(lambda: client.pro.status(node.id) == "running")
        snapshot = client.pro.snapshot(node.id)
        assert (str(snapshot.price_per_hour), snapshot.system_disk_bytes) == ("1.88 CNY", 30 * 2**30)
        client.pro.power_off(node.id)
        until(lambda: client.pro.status(node.id) == "shutdown")
        image = client.pro.save_image(node.id, "env")
        until(lambda: [item.status for item in client.pro.images()] == ["finished"])
        assert [(item.id, item.name) for item in client.elastic.images()] == [(image, "env")]
        client.pro.power_on(node.id, start_command="true")
        until(lambda: client.pro.status(node.id) == "running")
        cloud.release(node)
        esd = AutodlCloud(Settings("elastic"), JOB, client, sleep=nap, poll_s=0.05)
        node = esd.claim(esd.offers(Request())[0], launch())
        assert isinstance(node, Node)
        until(lambda: esd.inspect(node) is NodeState.RUNNING)
        (container,) = client.elastic.containers(node.id)
        assert [event.status for event in client.elastic.events(node.id)][-1] == "running"
        client.elastic.block_host(container.id, minutes=5, comment="slow")
        assert [host.machine for host in client.elastic.blocked_hosts()] == [container.machine]
        assert client.elastic.packages(node.id) == []
        client.elastic.stop_container(container.id)
        esd.release(node)
        template = Template(["westDC3"], ["RTX 4090"], 1, image, "sleep 1", max_price=Money(Decimal(3), "CNY"))
        service = client.elastic.create("service", "ReplicaSet", template, replicas=1, reuse_container=True)
        client.elastic.set_replicas(service, 2)
        until(lambda: client.elastic.deployments(name="service")[0].running == 2)
        assert [item.memory_bytes[0] for item in client.elastic.deployments(deployment=service)] == [2**30]
        client.elastic.stop(service)
        client.elastic.delete(service)
    called = {(entry["method"], entry["path"]) for entry in emulator.requests()}
    assert set(emulator.routes) - called == set()


def test_the_room_is_opened_by_the_controllers_door(served, tmp_path):
    server, _ = served
    config = SimpleNamespace(
        primary=SimpleNamespace(autodl=SimpleNamespace(**vars(Settings("pro")), base_url=server.url)),
        resources=SimpleNamespace(gpus=(), count=1, min_vram_gb=0, cuda=(12, 4)),
        policy=SimpleNamespace(poll=1.0),
    )
    cloud = open_cloud("autodl", job=JOB, config=config, directory=tmp_path, environ={"AUTODL_TOKEN": TOKEN})
    assert cloud.owned() == []
    with pytest.raises(Unauthorized, match="AUTODL_TOKEN"):
        open_cloud("autodl", job=JOB, config=config, directory=tmp_path, environ={})


def test_a_path_that_is_not_there_is_http_404(served):
    server, _ = served
    for method, path in (("POST", "/api/v1/dev/nothing"), ("GET", CREATE["pro"])):
        answer = httpx.request(method, server.url + path, headers={"Authorization": TOKEN}, trust_env=False)
        assert answer.status_code == 404


def test_a_get_with_its_parameters_in_the_body_is_refused(served):
    server, _ = served
    path = "/api/v1/dev/instance/pro/status"
    answer = httpx.request(
        "GET", server.url + path, json={"instance_uuid": "x"}, headers={"Authorization": TOKEN}, trust_env=False
    )
    assert (answer.status_code, answer.json()["code"]) == (200, "RequestParameterIsWrong")


def test_the_control_surface_says_what_is_wrong_with_a_request(served):
    server, _ = served
    for what, body in (("faults", {"kind": "odd"}), ("stock", {"planet": "x"}), ("take", {})):
        with pytest.raises(urllib.error.HTTPError) as told:
            control(server.url, what, body)
        assert told.value.code == 400
        told.value.close()
    with pytest.raises(urllib.error.HTTPError) as told:
        control(server.url, "take", {"id": "nobody"})
    assert told.value.code == 404
    told.value.close()
    control(server.url, "stock", {"region": "westDC3", "gpu": "RTX 4090", "idle": 0})
    control(server.url, "account", {"profile": "personal", "assets": 10})
    control(server.url, "faults", {"kind": "slow"})
    control(server.url, "faults", method="DELETE")
    state = control(server.url, "state")
    assert (state["profile"], state["assets"], state["faults"]) == ("personal", 10, [])
    assert control(server.url, "requests?after=0")["requests"] == []


def test_18_wechat_messages_have_an_address_of_their_own_and_limits():
    now = [0.0]
    app = create_wechat_app(TOKEN, lambda: now[0], per_day=7)

    async def send(times):
        body = {"title": "run finished", "content": "x"}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://wechat") as http:
            path, headers = "/api/v1/wechat/message/send", {"Authorization": TOKEN}
            answers = [await http.post(path, json=body, headers=headers) for _ in range(times)]
        return [answer.json()["code"] for answer in answers]

    assert asyncio.run(send(6)) == ["Success"] * 5 + ["BadRequest"]
    now[0] = 61.0
    assert asyncio.run(send(3)) == ["Success"] * 2 + ["BadRequest"]


# -- machines that are processes


@pytest.fixture
def box(tmp_path):
    machines = Machines(tmp_path)
    box = Box(machines, speed=40.0)
    yield box, machines, tmp_path
    box.stop()
    machines.stop_all()


def told(folder: Path) -> dict[str, str]:
    return {path.parent.parent.name: path.read_text() for path in folder.glob("*/root/told")}


@MODES
def test_a_claimed_machine_really_runs_the_script_and_dies_when_it_is_released(box, mode):
    place, machines, folder = box
    with open_client(place.url, place.token) as client:
        cloud = AutodlCloud(Settings(mode), JOB, client, sleep=nap, poll_s=0.05)
        offer = next(offer for offer in cloud.offers(Request()) if offer.available != 0)
        node = cloud.claim(offer, launch('echo "$AutoDLDataCenter $AutoDLContainerUUID" > told; sleep 1000'))
        assert isinstance(node, Node)
        until(lambda: told(folder))
        ((machine, text),) = told(folder).items()
        assert text.split()[1].endswith(machine)
        assert machines.alive(machine)
        assert cloud.inspect(node) is NodeState.RUNNING
        cloud.release(node)
        assert not machines.alive(machine)


@MODES
def test_a_machine_that_shuts_itself_down_is_off_at_autodl_too(box, mode):
    place, machines, folder = box
    with open_client(place.url, place.token) as client:
        cloud = AutodlCloud(Settings(mode), JOB, client, sleep=nap, poll_s=0.05)
        offer = next(offer for offer in cloud.offers(Request()) if offer.available != 0)
        node = cloud.claim(offer, launch("echo x > told; shutdown -h now; sleep 1000"))
        assert isinstance(node, Node)
        until(lambda: told(folder))
        until(lambda: cloud.inspect(node) is NodeState.STOPPED)
        until(lambda: machines.live() == [])


def test_a_container_ends_with_its_command_and_a_pro_machine_does_not(box):
    place, machines, folder = box
    with open_client(place.url, place.token) as client:
        nodes = []
        for mode in ("pro", "elastic"):
            cloud = AutodlCloud(Settings(mode), JOB, client, sleep=nap, poll_s=0.05)
            offer = next(offer for offer in cloud.offers(Request()) if offer.available != 0)
            node = cloud.claim(offer, launch("echo x > told"))
            assert isinstance(node, Node)
            nodes.append(node)
        pro, elastic = nodes
        until(lambda: len(told(folder)) == 2)
        until(lambda: cloud.inspect(elastic) is NodeState.STOPPED)
        assert cloud.inspect(pro) is NodeState.RUNNING
        assert machines.live() == [pro.id]


def test_taking_a_machine_kills_it_and_reset_forgets_all(box):
    place, machines, folder = box
    with open_client(place.url, place.token) as client:
        cloud = AutodlCloud(Settings("pro"), JOB, client, sleep=nap, poll_s=0.05)
        node = cloud.claim(cloud.offers(Request())[0], launch("echo x > told; sleep 1000"))
        assert isinstance(node, Node)
        until(lambda: told(folder))
        place.take(node.id)
        assert (cloud.inspect(node), machines.live()) == (NodeState.UNLISTED, [])
        place.set_stock([{"region": "westDC3", "gpu": "RTX 4090D", "idle": 1}])
        assert place.state()["pro_stock"].count({"region": "westDC3", "gpu": "RTX 4090D", "idle": 1}) == 1
        assert sum(row["idle"] for row in place.state()["pro_stock"]) == 1
        assert client.gpu_stock("neimengDC3")["RTX 4090"].idle == 0
        place.reset()
        assert client.gpu_stock("neimengDC3")["RTX 4090"].idle == 256
