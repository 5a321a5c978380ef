"""Pro instances of the emulator: their capacity, life cycle and nine calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from provisioner.sandbox.autodl import seed
from provisioner.sandbox.autodl.images import Images
from provisioner.sandbox.autodl.replies import (
    ApiError,
    Fields,
    no_money,
    no_stock,
    not_found,
    nullable_time,
    page,
    time_text,
    wrong_parameter,
)
from provisioner.sandbox.autodl.world import World

_GIB = seed.GIB
_KEPT_WHEN_OFF_S = 15 * 86400


@dataclass(slots=True)
class Instance:
    """One instance. ``turn`` counts its changes of direction: what was planned before the last one is void."""

    id: str
    name: str
    spec: str
    cards: int
    image: str
    command: str
    region: str
    extra_disk_gb: int
    cuda_from: int
    regions: list[str]
    created_at: float
    status: str = "creating"
    status_at: float = 0.0
    started_at: float | None = None
    stopped_at: float | None = None
    machine_id: str = ""
    ssh_port: int = 0
    password: str = field(default="", repr=False)
    holds_cards: bool = False
    turn: int = 0

    @property
    def card(self) -> str:
        """The card's name in the stock."""
        return seed.SPECS[self.spec]


class ProRoom:
    """All Pro instances of the account."""

    def __init__(self, world: World, images: Images) -> None:
        self._world = world
        self._images = images
        self.instances: dict[str, Instance] = {}
        self.idle = {(region, card): seed.PRO_IDLE for region in seed.PRO_REGIONS for card in seed.SPECS.values()}

    # -- calls

    def create(self, fields: Fields, fault: str) -> str:
        """Make and start an instance [live: bare string]."""
        spec = fields.choice("gpu_spec_uuid", tuple(seed.SPECS))
        cards = fields.number("req_gpu_amount", 1, 4)
        image = fields.text("image_uuid")
        cuda_from = fields.number("cuda_v_from", 0, 999)
        extra_disk_gb = fields.number("expand_system_disk_by_gb", 0, 500)
        regions = fields.texts("data_center_list", required=False)
        name = fields.text("instance_name", required=False)
        command = fields.text("start_command", required=False)
        if not self._images.is_known(image) or any(region not in seed.PRO_REGIONS for region in regions):
            raise wrong_parameter()
        region = self._room_for(seed.SPECS[spec], cards, regions, cuda_from)
        if region is None or fault == "no_stock":
            raise no_stock()
        if self._world.wallet.is_empty:
            raise no_money()
        now = self._world.clock()
        instance = Instance(
            id=f"pro-{self._world.hex(12)}",
            name=name,
            spec=spec,
            cards=cards,
            image=image,
            command=command,
            region=region,
            extra_disk_gb=extra_disk_gb,
            cuda_from=cuda_from,
            regions=regions,
            created_at=now,
            status_at=now,
        )
        self.instances[instance.id] = instance
        self._board(instance, region)
        delays = self._world.config.delays
        self._plan(instance, delays.creating + delays.image_pull, self._begin_start)
        return instance.id

    def snapshot(self, fields: Fields, fault: str) -> dict[str, Any]:
        """Show an instance. Price and access data hold only while it runs."""
        instance = self._instance(fields)
        running = instance.status == "running"
        age = self._world.clock() - instance.status_at
        valid = running and fault != "snapshot_invalid" and age >= self._world.config.delays.snapshot_valid
        rate = seed.PRICES[instance.card] * instance.cards
        host = f"connect.{instance.region.lower()}.emu.example"
        tag = instance.id.removeprefix("pro-")
        return {
            "region_sign": seed.REGION_SIGNS[instance.region][0],
            "payg_price": rate if running else 0,
            "origin_pay_price": rate * 4 // 3 if running else 0,
            "snapshot_gpu_alias_name": instance.card,
            "chip_corp": "nvidia",
            "cpu_arch": "x86",
            "usage_info": self._usage(instance, valid=valid),
            "expand_system_disk_size": instance.extra_disk_gb * _GIB,
            "system_init_disk_size": 30 * _GIB,
            "ssh_command": f"ssh -p {instance.ssh_port} root@{host}" if valid else "",
            "proxy_host": host if valid else "",
            "root_password": instance.password if valid else "",
            "ssh_port": instance.ssh_port if valid else 0,
            "jupyter_token": f"jupyter-{tag}",
            "jupyter_domain": f"a-{tag}.emu.example:8443",
            "jupyter_port": 8443,
            "service_6006_domain": f"u-{tag}.emu.example:8443",
            "service_6006_port": 0,
            "service_6006_port_protocol": "http",
            "service_6008_domain": f"uu-{tag}.emu.example:8443",
            "service_6008_port": 0,
            "service_6008_port_protocol": "http",
            "cg_application_info": {},
        }

    def _usage(self, instance: Instance, *, valid: bool) -> dict[str, Any]:
        return {
            "container_id": f"autodl-{instance.id}",
            "valid_at": time_text(self._world.clock()),
            "cpu_usage_percent": 1.2,
            "mem_usage_percent": 0.8,
            "mem_usage": 805306368,
            "mem_limit": seed.MEMORY_PER_CARD * instance.cards,
            "root_fs_used_size": 91226112,
            "root_fs_total_size": (30 + instance.extra_disk_gb) * _GIB,
            "data_disk_total_size": 0,
            "data_disk_used_size": 0,
            "storage_fs_usage": "",
            "pull_image_progress": 0 if instance.status == "creating" else 1,
            "download_image_progress": 0 if instance.status == "creating" else 1,
            "download_oss_file_progress": 0,
            "sys_fs_last_block_size": 0,
            "is_new": False,
            "valid": valid,
        }

    def status(self, fields: Fields, _fault: str) -> str:
        """Return the bare status word."""
        return self._instance(fields).status

    def listing(self, fields: Fields, _fault: str) -> dict[str, Any]:
        """List what is not released, newest first."""
        newest = sorted(self.instances.values(), key=lambda item: item.created_at, reverse=True)
        return page(fields, newest, self._row, pro=True)

    @staticmethod
    def _row(instance: Instance) -> dict[str, Any]:
        sign, name = seed.REGION_SIGNS[instance.region]
        return {
            "created_at": time_text(instance.created_at),
            "uuid": instance.id,
            "machine_id": instance.machine_id,
            "machine_alias": "",
            "region_sign": sign,
            "region_name": name,
            "status": instance.status,
            "sub_status": "",
            "status_at": time_text(instance.status_at),
            "start_mode": "gpu",
            "charge_type": "payg",
            "req_gpu_amount": instance.cards,
            "expired_at": nullable_time(None),
            "started_at": nullable_time(instance.started_at),
            "stopped_at": nullable_time(instance.stopped_at),
            "name": instance.name,
            "timed_shutdown_at": nullable_time(None),
            "gpu_spec_uuid": instance.spec,
        }

    def power_on(self, fields: Fields, fault: str) -> dict[str, str]:
        """Start an instance that is off; it is scheduled anew [live: an object, and only ``gpu`` or nothing]."""
        uuid = fields.text("instance_uuid")
        if not fields.has("payload"):
            raise wrong_parameter()
        payload = fields.text("payload", required=False)
        command = fields.text("start_command", required=False)
        instance = self._known(uuid)
        if payload not in ("gpu", ""):
            raise ApiError("ServerError", "不支持的启动模式")
        if instance.status != "shutdown":
            raise ApiError("BadRequest", "实例未关机")
        region = self._room_for(instance.card, instance.cards, instance.regions, instance.cuda_from)
        if region is None or fault == "no_stock":
            raise no_stock()
        if self._world.wallet.is_empty:
            raise no_money()
        instance.command = command or instance.command
        self._board(instance, region)
        self._begin_start(instance)
        return {"description": "开机指令已下发，请稍后关注实例最新状态"}

    def power_off(self, fields: Fields, fault: str) -> None:
        """Ask for the end. While the instance starts it is accepted and lost [live]."""
        instance = self._instance(fields)
        if instance.status in ("shutting_down", "shutdown"):
            raise ApiError("BadRequest", "实例已关机或正在关机")
        starting = instance.status in ("creating", "starting")
        if fault == "power_off_lost" or (starting and self._world.config.lose_power_off_while_starting):
            return
        self.begin_shutdown(instance)

    def release(self, fields: Fields, _fault: str) -> None:
        """Delete an instance that is off [live]."""
        instance = self._instance(fields)
        if instance.status != "shutdown":
            raise ApiError("BadRequest", "请在实例关机状态下执行释放操作")
        self.vanish(instance)

    def save_image(self, fields: Fields, _fault: str) -> dict[str, str]:
        """Begin to save the system disk of an instance that is off [live]."""
        uuid = fields.text("instance_uuid")
        name = fields.text("image_name")
        if self._known(uuid).status != "shutdown":
            raise ApiError("InternalError", "保存实例镜像前，请确保实例是关机状态")
        return {"image_uuid": self._images.save(name)}

    # -- life

    def _instance(self, fields: Fields) -> Instance:
        return self._known(fields.text("instance_uuid"))

    def _known(self, uuid: str) -> Instance:
        if uuid not in self.instances:
            raise not_found()
        return self.instances[uuid]

    def _room_for(self, card: str, cards: int, regions: list[str], cuda_from: int) -> str | None:
        if cuda_from > seed.PRO_CUDA:
            return None
        for region in regions or seed.PRO_REGIONS:
            if self.idle.get((region, card), 0) >= cards:
                return region
        return None

    def _board(self, instance: Instance, region: str) -> None:
        """Take cards of a region. SSH port and password change on some power cycles only."""
        self.idle[region, instance.card] -= instance.cards
        instance.region = region
        instance.holds_cards = True
        instance.machine_id = self._world.hex(10)
        if not instance.password or self._world.random.random() < 0.5:
            instance.ssh_port = self._world.random.randrange(30000, 60000)
            instance.password = f"Emu-{self._world.hex(12)}"

    def _plan(self, instance: Instance, delay_s: float, step: Any) -> None:
        instance.turn += 1
        turn = instance.turn

        def go() -> None:
            if instance.turn == turn and instance.id in self.instances:
                step(instance)

        self._world.after(delay_s, go)

    def _become(self, instance: Instance, status: str) -> None:
        instance.status = status
        instance.status_at = self._world.clock()

    def _begin_start(self, instance: Instance) -> None:
        self._become(instance, "starting")
        self._plan(instance, self._world.config.delays.starting, self._run)

    def _run(self, instance: Instance) -> None:
        self._become(instance, "running")
        instance.started_at = instance.status_at
        instance.stopped_at = None
        self._world.wallet.start(instance.id, seed.PRICES[instance.card] * instance.cards)
        env = {"AutoDLContainerUUID": f"autodl-{instance.id}", "AutoDLDataCenter": instance.region}
        self._world.start_machine(instance.id, instance.command, env)

    def begin_shutdown(self, instance: Instance) -> None:
        """Go down: the processes end at once, the status a little later."""
        if instance.status in ("shutting_down", "shutdown"):
            return
        self._become(instance, "shutting_down")
        self._world.stop_machine(instance.id)
        self._plan(instance, self._world.config.delays.shutting_down, self.finish_shutdown)

    def finish_shutdown(self, instance: Instance) -> None:
        """Be off: no charge, no card, the disk is kept for 15 days."""
        self._leave(instance)
        self._become(instance, "shutdown")
        instance.stopped_at = instance.status_at
        self._plan(instance, _KEPT_WHEN_OFF_S * self._world.config.speed, self.vanish)

    def _leave(self, instance: Instance) -> None:
        self._world.wallet.stop(instance.id)
        if instance.holds_cards:
            self.idle[instance.region, instance.card] += instance.cards
            instance.holds_cards = False

    def vanish(self, instance: Instance) -> None:
        """Be gone: unknown by id, and not in the list."""
        self._leave(instance)
        self._world.stop_machine(instance.id)
        self.instances.pop(instance.id, None)
