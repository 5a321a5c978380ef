"""The emulator against what is recorded of AutoDL. The numbers are those of docs/autodl.md, "Conformance"."""

from __future__ import annotations

import re
import threading

import pytest

from provisioner.sandbox.autodl import AutodlEmulator, Delays, EmulatorConfig, Fault

TOKEN = "the-token"
PRO = "/api/v1/dev/instance/pro"
ESD = "/api/v1/dev/deployment"
STOCK = "/api/v1/dev/machine/region/gpu_stock"
IMAGE = "base-image-l2t43iu6uk"
ORDER = {
    "gpu_spec_uuid": "4090D",
    "req_gpu_amount": 1,
    "image_uuid": IMAGE,
    "cuda_v_from": 118,
    "expand_system_disk_by_gb": 0,
    "instance_name": "box",
    "start_command": "train",
}
TEMPLATE = {
    "dc_list": ["westDC3"],
    "gpu_name_set": ["RTX 4090"],
    "gpu_num": 1,
    "cuda_v_from": 118,
    "cuda_v_to": 128,
    "cpu_num_from": 1,
    "cpu_num_to": 128,
    "memory_size_from": 8,
    "memory_size_to": 2048,
    "price_from": 100,
    "price_to": 9000,
    "image_uuid": IMAGE,
    "cmd": "train",
}


class Account:
    """An emulator with a clock of its own, and a note of what its machines were told."""

    def __init__(self, **config):
        self.now = 1_790_000_000.0
        self.told = []
        self.emulator = AutodlEmulator(EmulatorConfig(token=TOKEN, **config), hooks=self, clock=lambda: self.now)

    def on_start(self, instance_id, command, env):
        self.told.append(("start", instance_id, command, dict(env)))

    def on_stop(self, instance_id):
        self.told.append(("stop", instance_id))

    def wait(self, seconds):
        self.now += seconds
        self.emulator.tick()

    def raw(self, method, path, body=None, query=None, token=TOKEN, fault=""):
        return self.emulator.call(method, path, token, query or {}, {} if body is None else body, fault=fault)

    def ok(self, method, path, body=None, query=None):
        answer = self.raw(method, path, body, query)
        assert answer["code"] == "Success", answer
        return answer["data"]

    def error(self, method, path, body=None, query=None, fault=""):
        answer = self.raw(method, path, body, query, fault=fault)
        assert answer["code"] != "Success"
        assert answer["data"] is None
        return answer["code"], answer["msg"]

    def create(self, **changes):
        return self.ok("POST", f"{PRO}/create", {**ORDER, **changes})

    def status(self, machine):
        return self.ok("GET", f"{PRO}/status", query={"instance_uuid": machine})

    def deploy(self, kind="Container", template=None, **changes):
        body = {
            "name": "dep",
            "deployment_type": kind,
            "container_template": {**TEMPLATE, **(template or {})},
            **changes,
        }
        return self.ok("POST", ESD, body)["deployment_uuid"]

    def containers(self, deployment, **filters):
        body = {"deployment_uuid": deployment, "page_index": 1, "page_size": 100, **filters}
        return self.ok("POST", f"{ESD}/container/list", body)["list"]

    def deployment(self, deployment):
        body = {"page_index": 1, "page_size": 10, "deployment_uuid": deployment}
        (row,) = self.ok("POST", f"{ESD}/list", body)["list"]
        return row

    def stock(self, region="westDC3", **filters):
        rows = self.ok("POST", STOCK, {"region_sign": region, **filters})
        return {name: row["idle_gpu_num"] for item in rows for name, row in item.items()}


WRONG = ("RequestParameterIsWrong", "请求参数错误")
MISSING = ("RecordNotFoundError", "未查询到相关实例")


def test_01_errors_have_no_data_and_each_answer_a_request_id_of_32_hex_digits():
    account = Account()
    for answer in (account.raw("POST", f"{PRO}/create"), account.raw("POST", "/api/v1/dev/wallet/balance")):
        assert re.fullmatch("[0-9a-f]{32}", answer["request_id"])
    assert account.raw("POST", f"{PRO}/create")["data"] is None


@pytest.mark.parametrize("token", ["", "wrong", f"Bearer {TOKEN}"])
def test_02_a_missing_wrong_or_bearer_token_is_refused(token):
    answer = Account().raw("POST", "/api/v1/dev/wallet/balance", token=token)
    assert answer["code"] == "AuthorizeFailed"
    assert "登录超时" in answer["msg"]


def test_03_the_profile_decides_before_parameters_and_resources():
    everybody = [("POST", "/api/v1/dev/wallet/balance", {}), ("POST", STOCK, {"region_sign": "x"})]
    paged = {"page_index": 1, "page_size": 10}
    everybody += [("POST", f"{PRO}/list", paged), ("POST", f"{PRO}/image/private/list", paged)]
    for profile in ("unverified", "personal", "enterprise"):
        account = Account(profile=profile)
        for call in everybody:
            account.ok(*call)
        pro = account.error("POST", f"{PRO}/create", {"nonsense": 1})
        assert pro == (("TORealName", "未完成实名认证,认证后才可使用") if profile == "unverified" else WRONG)
        elastic = account.error("PUT", f"{ESD}/operate", {"deployment_uuid": "none", "operate": "stop"})
        assert elastic == (MISSING if profile == "enterprise" else ("BadRequest", "无当前资源访问权限"))


def test_04_a_get_with_a_body_only_is_refused():
    account = Account()
    machine = account.create()
    assert account.error("GET", f"{PRO}/status", {"instance_uuid": machine}) == WRONG
    lenient = Account(lenient_get_body=True)
    machine = lenient.create()
    assert lenient.ok("GET", f"{PRO}/status", {"instance_uuid": machine}) == "creating"


@pytest.mark.parametrize(
    "change",
    [
        {"gpu_spec_uuid": "RTX 4090"},
        {"gpu_spec_uuid": None},
        {"req_gpu_amount": 0},
        {"req_gpu_amount": 5},
        {"req_gpu_amount": "1"},
        {"req_gpu_amount": True},
        {"expand_system_disk_by_gb": 501},
        {"expand_system_disk_by_gb": None},
        {"cuda_v_from": None},
        {"image_uuid": "pytorch:latest"},
        {"data_center_list": ["westDC2"]},
        {"data_center_list": "westDC3"},
        {"start_command": 1},
    ],
)
def test_05_pro_create_checks_its_fields(change):
    account = Account()
    assert account.error("POST", f"{PRO}/create", {**ORDER, **change}) == WRONG
    assert account.emulator.state()["instances"] == []


def test_05_pro_create_then_looks_at_stock_then_at_money():
    account = Account(assets=0)
    assert account.error("POST", f"{PRO}/create", ORDER)[1] == "账户余额不足"
    account.emulator.set_stock("*", "4090D", 0)
    code, message = account.error("POST", f"{PRO}/create", ORDER)
    assert (code, message) == ("InternalError", "当前算力规格暂无库存, 请修改配置或稍等再试")


def test_05_and_06_create_starts_the_machine_by_itself_in_configured_time():
    account = Account(delays=Delays(creating=2, starting=6), speed=2.0)
    machine = account.create()
    assert re.fullmatch("pro-[0-9a-f]{12}", machine)
    seen = [account.status(machine)]
    for _ in range(4):
        account.wait(1)
        seen.append(account.status(machine))
    assert seen == ["creating", "starting", "starting", "starting", "running"]
    assert account.told == [
        ("start", machine, "train", {"AutoDLContainerUUID": f"autodl-{machine}", "AutoDLDataCenter": "westDC3"})
    ]


def test_07_power_off_while_starting_is_accepted_and_lost():
    account = Account()
    machine = account.create()
    account.ok("POST", f"{PRO}/power_off", {"instance_uuid": machine})
    account.wait(60)
    assert account.status(machine) == "running"
    account.ok("POST", f"{PRO}/power_off", {"instance_uuid": machine})
    assert account.status(machine) == "shutting_down"
    assert account.error("POST", f"{PRO}/power_off", {"instance_uuid": machine})
    obedient = Account(lose_power_off_while_starting=False)
    machine = obedient.create()
    obedient.ok("POST", f"{PRO}/power_off", {"instance_uuid": machine})
    obedient.wait(60)
    assert obedient.status(machine) == "shutdown"


def test_08_release_and_image_save_want_an_instance_that_is_off():
    account = Account()
    machine = account.create()
    body = {"instance_uuid": machine}
    for _ in range(3):
        assert account.error("POST", f"{PRO}/release", body) == ("BadRequest", "请在实例关机状态下执行释放操作")
        refused = account.error("POST", f"{PRO}/image/save", {**body, "image_name": "env"})
        assert refused == ("InternalError", "保存实例镜像前，请确保实例是关机状态")
        account.wait(1.5)
    account.wait(10)
    account.ok("POST", f"{PRO}/power_off", body)
    account.wait(10)
    image = account.ok("POST", f"{PRO}/image/save", {**body, "image_name": "env"})["image_uuid"]
    listed = account.ok("POST", f"{PRO}/image/private/list", {"page_index": 1, "page_size": 5})
    assert [(row["image_uuid"], row["status"]) for row in listed["list"]] == [(image, "saving")]
    account.wait(10)
    elastic = account.ok("POST", "/api/v1/dev/image/private/list", {"page_index": 1, "page_size": 5})["list"]
    assert [set(row) for row in elastic] == [{"id", "image_name", "image_uuid"}]
    assert account.create(image_uuid=image)


def test_09_ssh_data_change_on_some_power_cycles_only():
    account = Account()
    machine = account.create()
    seen = []
    for _ in range(12):
        account.wait(30)
        snapshot = account.ok("GET", f"{PRO}/snapshot", query={"instance_uuid": machine})
        seen.append((snapshot["ssh_port"], snapshot["root_password"]))
        account.ok("POST", f"{PRO}/power_off", {"instance_uuid": machine})
        account.wait(30)
        account.ok("POST", f"{PRO}/power_on", {"instance_uuid": machine, "payload": "gpu"})
    assert 1 < len(set(seen)) < len(seen)


def test_10_released_instances_vanish_and_their_card_is_free_again():
    account = Account()
    account.emulator.set_stock("*", "4090D", 1, pool="pro")
    machines = [account.create(), account.create()]
    assert account.error("POST", f"{PRO}/create", ORDER)[0] == "InternalError"
    account.wait(60)
    for machine in machines:
        body = {"instance_uuid": machine}
        account.ok("POST", f"{PRO}/power_off", body)
        account.wait(10)
        account.ok("POST", f"{PRO}/release", body)
        assert account.error("GET", f"{PRO}/status", query=body) == MISSING
        assert account.error("POST", f"{PRO}/release", body) == MISSING
    assert account.ok("POST", f"{PRO}/list", {"page_index": 1, "page_size": 5})["list"] == []
    assert account.create()


def test_10_an_instance_that_is_off_for_15_days_is_released():
    account = Account()
    machine = account.create()
    account.wait(60)
    account.emulator.guest_shutdown(machine)
    account.wait(14 * 86400)
    assert account.status(machine) == "shutdown"
    account.wait(86400 + 10)
    assert account.error("GET", f"{PRO}/status", query={"instance_uuid": machine}) == MISSING


def test_11_the_wallet_has_14_fields_and_pays_by_the_second_while_a_machine_runs():
    account = Account(assets=100_000, delays=Delays(creating=0, starting=0, shutting_down=0))
    account.emulator.set_account(blocked=1500)
    before = account.ok("POST", "/api/v1/dev/wallet/balance")
    assert len(before) == 14
    assert (before["assets"], before["blocked_asset"]) == (100_000, 1500)
    machine = account.create()
    account.wait(0)
    account.wait(1800)
    account.ok("POST", f"{PRO}/power_off", {"instance_uuid": machine})
    account.wait(86400)
    after = account.ok("POST", "/api/v1/dev/wallet/balance")
    assert after["assets"] == 100_000 - 1880 // 2
    assert after["accumulate"] == 940


def test_12_stock_is_an_array_of_single_key_objects_and_an_unknown_region_is_empty():
    account = Account()
    rows = account.ok("POST", STOCK, {"region_sign": "westDC3"})
    assert all(len(row) == 1 for row in rows)
    counts = {name: row for item in rows for name, row in item.items()}
    assert counts["RTX 4090"] == {"total_gpu_num": 1775, "idle_gpu_num": 90, "chip_corp": "nvidia", "cpu_arch": "x86"}
    assert account.stock("westDC99") == {}
    assert account.stock("westDC3", gpu_name_set=["RTX 4090", "H800"]) == {"RTX 4090": 90}
    assert account.stock("westDC3", price_from=0, price_to=2500) == {"RTX 4090": 90, "vGPU-32GB": 21}
    assert account.stock("westDC3", cuda_v_from=999) == {}
    assert account.error("POST", STOCK, {}) == WRONG


def test_12_two_idle_cards_on_two_hosts_are_no_room_for_two():
    account = Account()
    account.emulator.set_stock("westDC3", "RTX 4090", 2, spread=True)
    deployment = account.deploy(template={"gpu_num": 2})
    account.wait(60)
    assert account.stock()["RTX 4090"] == 2
    assert account.containers(deployment) == []
    account.emulator.set_stock("westDC3", "RTX 4090", 2)
    account.wait(60)
    assert [row["status"] for row in account.containers(deployment)] == ["running"]
    assert account.stock()["RTX 4090"] == 0


@pytest.mark.parametrize(
    ("template", "fits"),
    [
        ({}, True),
        ({"gpu_num": 2, "cpu_num_from": 20, "cpu_num_to": 40, "memory_size_from": 100, "memory_size_to": 200}, True),
        ({"gpu_num": 2, "cpu_num_from": 8, "cpu_num_to": 20}, False),
        ({"memory_size_from": 61}, False),
        ({"price_to": 1979}, False),
        ({"cuda_v_from": 129, "cuda_v_to": 140}, False),
        ({"dc_list": ["foshanDC1"]}, False),
        ({"dc_list": ["foshanDC1", "westDC3"]}, True),
        ({"gpu_name_set": ["RTX 4090D"]}, False),
        ({"gpu_num": 9}, False),
    ],
)
def test_13_a_container_gets_whole_units_of_one_matching_host(template, fits):
    account = Account()
    deployment = account.deploy(template=template)
    account.wait(60)
    assert bool(account.containers(deployment)) is fits


def test_13_a_blocked_host_is_avoided_until_the_block_expires():
    account = Account()
    account.emulator.set_stock("*", "*", 0)
    account.emulator.set_stock("westDC3", "RTX 4090", 8)
    first = account.deploy()
    account.wait(60)
    (container,) = account.containers(first)
    assert account.ok("GET", f"{ESD}/blacklist") is None
    body = {"deployment_container_uuid": container["uuid"], "expire_in_minutes": 10, "comment": "slow"}
    account.ok("POST", f"{ESD}/blacklist", body)
    (row,) = account.ok("GET", f"{ESD}/blacklist")
    assert (row["machine_id"], row["msg"]) == (container["machine_id"], "slow")
    second = account.deploy()
    account.wait(60)
    assert account.containers(second) == []
    account.wait(600)
    account.wait(60)
    assert [row["machine_id"] for row in account.containers(second)] == [container["machine_id"]]


def test_14_a_replica_set_replaces_what_ends_unless_it_is_told_to_shrink():
    account = Account()
    deployment = account.deploy("ReplicaSet", replica_num=2)
    account.wait(60)
    first, second = account.containers(deployment)
    assert account.emulator.guest_exit(first["uuid"])
    account.wait(60)
    row = account.deployment(deployment)
    assert (row["running_num"], row["starting_num"], row["finished_num"], row["replica_num"]) == (2, 0, 0, 2)
    body = {"deployment_container_uuid": second["uuid"], "decrease_one_replica_num": True}
    account.ok("PUT", f"{ESD}/container/stop", body)
    account.wait(60)
    assert account.deployment(deployment)["running_num"] == 1
    account.ok("PUT", f"{ESD}/replica_num", {"deployment_uuid": deployment, "replica_num": 3})
    account.wait(60)
    assert account.deployment(deployment)["running_num"] == 3


def test_14_a_job_runs_so_many_at_once_until_all_have_finished():
    account = Account()
    deployment = account.deploy("Job", replica_num=3, parallelism_num=2)
    finished = 0
    while finished < 3:
        account.wait(60)
        row = account.deployment(deployment)
        assert (row["running_num"], row["finished_num"]) == (min(2, 3 - finished), finished)
        assert row["status"] == "running"
        running = [item for item in account.containers(deployment) if item["status"] == "running"]
        account.emulator.guest_exit(running[0]["uuid"])
        finished += 1
    account.wait(60)
    row = account.deployment(deployment)
    assert (row["status"], row["finished_num"], row["running_num"]) == ("stopped", 3, 0)


def test_14_a_container_is_one_run_with_memory_in_bytes_and_its_place_in_its_environment():
    account = Account()
    deployment = account.deploy()
    account.wait(60)
    row = account.deployment(deployment)
    assert row["template"]["memory_size_from"] == 8 * 2**30
    (container,) = account.containers(deployment)
    assert container["memory_size"] == 60 * 2**30
    assert container["uuid"].startswith(f"{deployment}-{container['machine_id']}-")
    env = account.told[-1][3]
    assert env == {
        "AutoDLContainerUUID": container["uuid"],
        "AutoDLDeploymentUUID": deployment,
        "AutoDLDataCenter": "westDC3",
    }
    account.emulator.guest_exit(container["uuid"])
    account.wait(60)
    assert account.containers(deployment) == []
    assert [item["status"] for item in account.containers(deployment, released=True)] == ["shutdown"]
    assert account.deployment(deployment)["status"] == "stopped"


def test_14_stop_and_delete_are_final():
    account = Account()
    deployment = account.deploy("ReplicaSet", replica_num=1)
    account.wait(60)
    assert account.error("PUT", f"{ESD}/operate", {"deployment_uuid": deployment, "operate": "delete"}) == WRONG
    account.ok("PUT", f"{ESD}/operate", {"deployment_uuid": deployment, "operate": "stop"})
    account.wait(60)
    assert account.deployment(deployment)["status"] == "stopped"
    account.ok("DELETE", ESD, {"deployment_uuid": deployment})
    assert account.error("DELETE", ESD, {"deployment_uuid": deployment}) == MISSING
    assert [word for word, *_ in account.told] == ["start", "stop"]


@pytest.mark.parametrize(("scope", "reused"), [("all", True), ("deployment", False)])
def test_15_a_stopped_container_is_kept_for_7_days_and_reused_under_a_longer_name(scope, reused):
    account = Account()
    first = account.deploy("ReplicaSet", replica_num=1, reuse_container=True)
    account.wait(60)
    (old,) = account.containers(first)
    account.ok("PUT", f"{ESD}/operate", {"deployment_uuid": first, "operate": "stop"})
    account.wait(60)
    assert [(row["uuid"], row["status"]) for row in account.containers(first)] == [(old["uuid"], "shutdown")]
    second = account.deploy(reuse_container=True, reuse_container_scope=scope)
    account.wait(60)
    (new,) = account.containers(second)
    assert new["uuid"].startswith(f"{old['uuid']}-") is reused
    third = account.deploy(reuse_container=True, reuse_container_scope="deployment")
    account.wait(60)
    (own,) = account.containers(third)
    account.emulator.guest_exit(own["uuid"])
    account.wait(7 * 86400)
    assert account.containers(third) == []


def test_15_without_reuse_or_with_no_cache_nothing_is_kept():
    account = Account()
    plain = account.deploy("ReplicaSet", replica_num=1)
    cached = account.deploy("ReplicaSet", replica_num=1, reuse_container=True)
    account.wait(60)
    for deployment in (plain, cached):
        (row,) = account.containers(deployment)
        account.ok("PUT", f"{ESD}/container/stop", {"deployment_container_uuid": row["uuid"], "no_cache": True})
        account.wait(60)
        (fresh,) = account.containers(deployment)
        assert not fresh["uuid"].startswith(row["uuid"])


def test_16_every_step_is_an_event_and_offset_pages_through_them():
    account = Account()
    deployment = account.deploy()
    account.wait(60)
    body = {"deployment_uuid": deployment, "page_index": 1, "page_size": 2}
    events = account.ok("POST", f"{ESD}/container/event/list", {**body, "page_size": 50})["list"]
    assert [row["status"] for row in reversed(events)] == ["creating", "created", "starting", "running"]
    page = account.ok("POST", f"{ESD}/container/event/list", {**body, "offset": 3})
    assert [row["status"] for row in page["list"]] == ["creating"]
    assert page["max_page"] == 2


def test_17_signs_in_instance_data_are_no_region_codes():
    account = Account()
    account.create()
    (row,) = account.ok("POST", f"{PRO}/list", {"page_index": 1, "page_size": 5})["list"]
    assert row["region_sign"] == "west-B"
    assert account.stock(row["region_sign"]) == {}
    assert row["stopped_at"] == {"Time": "0001-01-01T00:00:00Z", "Valid": False}


def test_19_faults_meet_the_calls_they_are_for():
    account = Account()
    account.emulator.add_fault(Fault("status", path=f"{PRO}/*", skip=1, count=2))
    met = [account.emulator.take_fault("GET", f"{PRO}/status") for _ in range(4)]
    assert [fault is not None for fault in met] == [False, True, True, False]
    assert account.error("POST", f"{PRO}/create", ORDER, fault="no_stock")[0] == "InternalError"
    machine = account.create()
    account.wait(60)
    account.raw("POST", f"{PRO}/power_off", {"instance_uuid": machine}, fault="power_off_lost")
    assert account.status(machine) == "running"
    answer = account.raw("GET", f"{PRO}/snapshot", query={"instance_uuid": machine}, fault="snapshot_invalid")
    assert (answer["data"]["usage_info"]["valid"], answer["data"]["ssh_port"]) == (False, 0)


@pytest.mark.parametrize("values", [{}, {"kind": "odd"}, {"kind": "slow", "count": "1"}, {"kind": "slow", "path": 1}])
def test_19_a_fault_that_cannot_be_is_refused(values):
    with pytest.raises(ValueError, match="fault"):
        Fault.read(values)


def test_20_answers_hold_fields_that_nobody_documented():
    assert set(Account().raw("POST", STOCK, {"region_sign": "x"})) > {"code", "data", "msg", "request_id"}


def test_power_on_boots_with_a_gpu_only_and_schedules_anew():
    account = Account()
    machine = account.create()
    body = {"instance_uuid": machine}
    account.wait(60)
    account.emulator.guest_shutdown(machine)
    account.wait(60)
    for payload in ("cpu", "no_gpu", "non_gpu", "none"):
        refused = account.error("POST", f"{PRO}/power_on", {**body, "payload": payload})
        assert refused == ("ServerError", "不支持的启动模式")
    assert account.error("POST", f"{PRO}/power_on", body) == WRONG
    account.emulator.set_stock("*", "*", 0)
    assert "库存" in account.error("POST", f"{PRO}/power_on", {**body, "payload": "gpu"})[1]
    account.emulator.set_stock("beijingDC2", "4090D", 1)
    assert account.ok("POST", f"{PRO}/power_on", {**body, "payload": "", "start_command": "again"})["description"]
    account.wait(60)
    assert account.told[-1][2:] == (
        "again",
        {"AutoDLContainerUUID": f"autodl-{machine}", "AutoDLDataCenter": "beijingDC2"},
    )


@pytest.mark.parametrize("how", ["vanish", "shutdown"])
def test_a_machine_can_be_taken_away(how):
    account = Account()
    machine = account.create()
    deployment = account.deploy()
    account.wait(60)
    (container,) = account.containers(deployment)
    assert account.emulator.take_away(machine, how)
    assert account.emulator.take_away(container["uuid"], how)
    assert not account.emulator.take_away("nobody", how)
    assert {id_ for word, id_ in (entry[:2] for entry in account.told) if word == "stop"} == {
        machine,
        container["uuid"],
    }
    if how == "vanish":
        assert account.emulator.state()["instances"] == account.emulator.state()["deployments"] == []
    else:
        assert account.status(machine) == "shutdown"
        assert account.deployment(deployment)["status"] == "stopped"


def test_reset_ends_all_machines_and_fills_the_shelves():
    account = Account(assets=5000)
    fresh = account.emulator.state()
    machine = account.create()
    account.deploy()
    account.wait(3600)
    account.emulator.set_stock("*", "*", 0)
    account.emulator.add_fault(Fault("slow"))
    account.emulator.reset()
    assert account.emulator.state() == fresh
    assert ("stop", machine) in account.told
    account.wait(3600)
    assert account.emulator.state() == fresh


def test_the_request_log_holds_no_command():
    account = Account()
    account.emulator.record({"path": "x"}, {"name": "n", "container_template": {"cmd": "secret link", "gpu_num": 1}})
    (entry,) = account.emulator.requests()
    assert entry["body"] == {"name": "n", "container_template": {"cmd": "<11 characters>", "gpu_num": 1}}
    assert account.emulator.requests(after=entry["number"]) == []


def test_a_machine_may_speak_while_it_is_told_something():
    """A hook that comes back into the emulator, from another thread and waited for, must not lock it up."""
    account = Account()

    class Eager:
        def on_start(self, instance_id, command, env):
            helper = threading.Thread(target=account.emulator.guest_exit, args=(instance_id,))
            helper.start()
            helper.join(timeout=10)
            assert not helper.is_alive()

        def on_stop(self, instance_id):
            account.emulator.guest_shutdown(instance_id)

    account.emulator._world._hooks = Eager()
    deployment = account.deploy()
    account.wait(60)
    account.wait(60)
    assert account.deployment(deployment)["finished_num"] == 1


def test_many_callers_at_once_never_get_more_cards_than_there_are():
    account = Account()
    account.emulator.set_stock("*", "4090D", 3, pool="pro")
    got = []

    def grab():
        got.extend(account.raw("POST", f"{PRO}/create", ORDER)["code"] for _ in range(5))

    threads = [threading.Thread(target=grab) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got.count("Success") == 6
    assert len(account.emulator.state()["instances"]) == 6
