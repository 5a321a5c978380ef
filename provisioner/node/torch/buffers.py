"""The buffers of a model as they are at a moment: averages of BatchNorm, counters."""

from __future__ import annotations

import torch


class Buffers:
    """Puts them back, also where the model has put others in their place meanwhile."""

    def __init__(self, model: torch.nn.Module) -> None:
        """Copy them."""
        self._found = [(module, dict(module._buffers)) for module in model.modules() if module._buffers]  # noqa: SLF001
        self._kept = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]

    def put_back(self) -> None:
        """Let the model have the same buffers again, with what was in them."""
        for module, buffers in self._found:
            module._buffers.update(buffers)  # noqa: SLF001 - to set an attribute would not take away None
        with torch.no_grad():
            for buffer, kept in self._kept:
                buffer.copy_(kept)
