"""The nine calls of "container instance Pro": machines that are paid by the second, one spec and image each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from provisioner.clouds.autodl.models import Image, ProInstance, ProSnapshot
from provisioner.clouds.autodl.paging import pages
from provisioner.clouds.autodl.units import cuda_code, text
from provisioner.clouds.autodl.wire import UnusableError, Wire

_PREFIX = "/api/v1/dev/instance/pro"


@dataclass(frozen=True, slots=True)
class ProOrder:
    """A Pro instance to make. Empty ``regions``: the platform chooses, which is likeliest to succeed.

    ``gpu_count`` is 1 to 4, ``extra_disk_gb`` 0 to 500 GB on top of the 30 GB system disk. ``start_command`` runs
    after the boot; its end ends nothing.
    """

    name: str
    spec: str
    gpu_count: int
    image: str
    cuda_from: tuple[int, int]
    regions: Sequence[str] = ()
    extra_disk_gb: int = 0
    start_command: str = ""

    def body(self) -> dict[str, Any]:
        """Return the JSON of the request."""
        body: dict[str, Any] = {
            "gpu_spec_uuid": self.spec,
            "req_gpu_amount": self.gpu_count,
            "image_uuid": self.image,
            "cuda_v_from": cuda_code(self.cuda_from),
            "expand_system_disk_by_gb": self.extra_disk_gb,
            "instance_name": self.name,
        }
        if self.regions:
            body["data_center_list"] = list(self.regions)
        if self.start_command:
            body["start_command"] = self.start_command
        return body


class ProApi:
    """Calls of ``/api/v1/dev/instance/pro``."""

    def __init__(self, wire: Wire) -> None:
        """Talk over ``wire``."""
        self._wire = wire

    def create(self, order: ProOrder) -> str:
        """Make and start an instance; return its id. Not idempotent: after Doubtful, look for the name first."""
        return self._wire.write("POST", f"{_PREFIX}/create", order.body(), parse=_created)

    def snapshot(self, instance: str) -> ProSnapshot:
        """Read price, disks and access data. Raises NotFound for a released instance."""
        query = {"instance_uuid": instance}
        return self._wire.read("GET", f"{_PREFIX}/snapshot", query=query, parse=_snapshot)

    def status(self, instance: str) -> str:
        """Read the status word: creating, starting, running, shutting_down, shutdown, or one we do not know yet.

        Raises NotFound for a released instance.
        """
        return self._wire.read("GET", f"{_PREFIX}/status", query={"instance_uuid": instance}, parse=_status)

    def instances(self) -> list[ProInstance]:
        """List all instances of the account, each once."""
        found = pages(self._wire, f"{_PREFIX}/list", ProInstance.read)
        return list({instance.id: instance for instance in found if instance.id}.values())

    def power_on(self, instance: str, *, start_command: str = "") -> None:
        """Start an instance that is shut down, with a GPU. Create has done it already for a new one."""
        body = {"instance_uuid": instance, "payload": "gpu"}
        if start_command:
            body["start_command"] = start_command
        self._wire.do("POST", f"{_PREFIX}/power_on", body)

    def power_off(self, instance: str) -> None:
        """Ask for the end. It may be lost while the instance starts: read the status again."""
        self._wire.do("POST", f"{_PREFIX}/power_off", {"instance_uuid": instance})

    def release(self, instance: str) -> None:
        """Delete an instance and its disk. Refused unless its status is ``shutdown``."""
        self._wire.do("POST", f"{_PREFIX}/release", {"instance_uuid": instance})

    def save_image(self, instance: str, name: str) -> str:
        """Begin to save the system disk of an instance that is shut down; return the image's id."""
        body = {"instance_uuid": instance, "image_name": name}
        return self._wire.write("POST", f"{_PREFIX}/image/save", body, parse=_image)

    def images(self) -> list[Image]:
        """List private images, those being saved included (status ``finished`` when done)."""
        return list(pages(self._wire, f"{_PREFIX}/image/private/list", Image.read))


def _created(data: Any) -> str:
    name = data if isinstance(data, str) else text(data, "instance_uuid", "uuid") if isinstance(data, dict) else ""
    if not name:
        raise UnusableError("the answer names no instance")
    return name


def _status(data: Any) -> str:
    if not isinstance(data, str) or not data:
        raise UnusableError("the answer holds no status")
    return data


def _snapshot(data: Any) -> ProSnapshot:
    if not isinstance(data, dict):
        raise UnusableError("the answer holds no snapshot")
    return ProSnapshot.read(data)


def _image(data: Any) -> str:
    if not isinstance(data, dict) or not text(data, "image_uuid"):
        raise UnusableError("the answer names no image")
    return text(data, "image_uuid")
