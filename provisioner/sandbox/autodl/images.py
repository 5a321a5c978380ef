"""Private images: one store, shown by two lists with different field names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from provisioner.sandbox.autodl import seed
from provisioner.sandbox.autodl.replies import Fields, page, time_text
from provisioner.sandbox.autodl.world import World


@dataclass(slots=True)
class SavedImage:
    """An image that was saved from an instance."""

    number: int
    id: str
    name: str
    status: str
    created_at: float


class Images:
    """The account's images, and AutoDL's base images."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.saved: dict[str, SavedImage] = {}

    def is_known(self, image: str) -> bool:
        """Tell whether a machine can be made from it."""
        saved = self.saved.get(image)
        return image in seed.BASE_IMAGES or (saved is not None and saved.status == "finished")

    def is_private(self, image: str) -> bool:
        """Tell whether it was saved by the account."""
        return image in self.saved

    def save(self, name: str) -> str:
        """Begin to save an image; it is there after a while."""
        image = SavedImage(len(self.saved) + 1, f"image-{self._world.hex(10)}", name, "saving", self._world.clock())
        self.saved[image.id] = image

        def finish() -> None:
            image.status = "finished"

        self._world.after(self._world.config.delays.image_save, finish)
        return image.id

    def pro_list(self, fields: Fields, _fault: str) -> dict[str, Any]:
        """Show them as Pro's list does [doc]: with status, size, and ``create_at``."""
        return page(fields, list(self.saved.values()), self._pro_row, pro=True)

    def elastic_list(self, fields: Fields, _fault: str) -> dict[str, Any]:
        """Show them as the elastic list does [live]: three fields."""
        return page(fields, list(self.saved.values()), self._elastic_row, pro=False)

    @staticmethod
    def _pro_row(image: SavedImage) -> dict[str, Any]:
        return {
            "image_uuid": image.id,
            "name": image.name,
            "status": image.status,
            "image_size": 734003200,
            "create_at": time_text(image.created_at),
        }

    @staticmethod
    def _elastic_row(image: SavedImage) -> dict[str, Any]:
        return {"id": image.number, "image_name": image.name, "image_uuid": image.id}
