"""What all processes of a training agree on, without an extra barrier at each step."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

NOTHING, SAVE, STOP = 0, 1, 2


class Ranks:
    """The processes of the default group; one where there is none.

    At each step every process puts its own wish into a reduction that runs beside the next step; its answer is read a
    step later. So all of them save and stop at the same step, and none waits.
    """

    def __init__(self) -> None:
        """Look whether there is a group."""
        self.together = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        self.rank = dist.get_rank() if self.together else 0
        self.count = dist.get_world_size() if self.together else 1
        self._group: Any = None
        self._wish = torch.zeros(1, dtype=torch.int32)
        self._asked: Any = None
        if self.together and "gloo" not in str(dist.get_backend()):
            self._group = dist.new_group(backend="gloo")  # wishes and random states lie in host memory

    def agreed(self, wish: int) -> int:
        """Take this process's wish at a step; return what all agreed on at the step before (alone: at once)."""
        if not self.together:
            return wish
        answer = NOTHING
        if self._asked is not None:
            self._asked.wait()
            answer = int(self._wish.item())
        self._wish.fill_(wish)
        self._asked = dist.all_reduce(self._wish, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
        return answer

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes, at the first of them; elsewhere nothing."""
        if not self.together:
            return [value]
        found: list[Any] | None = [None] * self.count if self.rank == 0 else None
        dist.gather_object(value, found, dst=0, group=self._group)
        return found or []

    def all(self, value: Any) -> list[Any]:
        """Return the values of all processes, at each of them."""
        if not self.together:
            return [value]
        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, value, group=self._group)
        return found

    def same(self, value: Any) -> Any:
        """Return the first process's value at all of them."""
        if not self.together:
            return value
        found = [value]
        dist.broadcast_object_list(found, src=0, group=self._group)
        return found[0]

    def wait(self) -> None:
        """Wait until all are here."""
        if self.together:
            dist.barrier(group=self._group)

    def close(self) -> None:
        """Wait for all: nobody leaves, and takes the others down, while the first still writes."""
        if not self.together:
            return
        if self._asked is not None:
            self._asked.wait()
            self._asked = None
        self.wait()
