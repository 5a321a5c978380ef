"""For training scripts: torch and nothing else is needed. See docs/torch.md.

The node puts it on the command's PYTHONPATH. What is named here is imported when it is asked for: so a module of this
package that needs no torch is imported without it. No module may be called as a name is: it would take its place.

Written for Python 3.9 and torch 2.0, since the training's environment is the user's.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from provisioner.node.torch.autobatch import AutoBatch
    from provisioner.node.torch.efficiency import advising
    from provisioner.node.torch.fitted import Plan, fit
    from provisioner.node.torch.foreign import ForeignMemory
    from provisioner.node.torch.loaders import resumable
    from provisioner.node.torch.moments import Stopped
    from provisioner.node.torch.saving import Checkpointing, checkpointing
else:  # for type checkers a name that is not above is a mistake
    _HOMES = {
        "AutoBatch": "autobatch",
        "Checkpointing": "saving",
        "ForeignMemory": "foreign",
        "Plan": "fitted",
        "Stopped": "moments",
        "advising": "efficiency",
        "checkpointing": "saving",
        "fit": "fitted",
        "resumable": "loaders",
    }

    def __getattr__(name: str) -> object:
        """Import what a script asks for. Raises AttributeError."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        """List the names."""
        return __all__


__all__ = [
    "AutoBatch",
    "Checkpointing",
    "ForeignMemory",
    "Plan",
    "Stopped",
    "advising",
    "checkpointing",
    "fit",
    "resumable",
]
