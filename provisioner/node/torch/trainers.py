"""What the callbacks of all trainers are told, and what they hold while a training runs."""

from __future__ import annotations

from typing import Any

from provisioner.node.torch import files
from provisioner.node.torch.efficiency import Advising
from provisioner.node.torch.foreign import ForeignMemory
from provisioner.node.torch.moments import Moments
from provisioner.node.torch.ranks import NOTHING
from provisioner.node.torch.surroundings import Surroundings


class Told:
    """Comes before the trainer's own class among the bases. Nothing is read before ``restored`` is asked for."""

    def __init__(
        self,
        *,
        every_s: float | None = None,
        keep: int = 2,
        surroundings: Surroundings | None = None,
        watch: ForeignMemory | None = None,
        advise: bool = True,
    ) -> None:
        """Take what :func:`provisioner.node.torch.checkpointing` takes under these names."""
        super().__init__()
        self._every_s = every_s
        self._keep = keep
        self._around = surroundings or Surroundings()
        self._watch = watch
        self._advise = advise
        self._advising: Advising[Any] | None = None
        self._moments: Moments | None = None
        self._wanted = NOTHING

    def _begin(self) -> Moments:
        """Begin to listen; the process group is there."""
        moments = self._moments = Moments(self._every_s, self._around, watch=self._watch)
        if moments.ranks.rank == 0:
            files.sweep(self._around.checkpoints)
        moments.listen()
        return moments

    def _begin_advising(self, loader: Any) -> None:
        if self._advise:
            self._advising = Advising(loader, surroundings=self._around)
            self._advising.start()

    def _close_advising(self) -> None:
        if self._advising is not None:
            self._advising.close()
            self._advising = None
