"""For training scripts: torch and nothing else is needed. See docs/torch.md.

The node puts it on the command's PYTHONPATH.

Written for Python 3.9 and torch 2.0, since the training's environment is the user's.
"""

from __future__ import annotations

from provisioner.node.torch.autobatch import AutoBatch
from provisioner.node.torch.foreign import ForeignMemory
from provisioner.node.torch.moments import Stopped
from provisioner.node.torch.resumable import resumable
from provisioner.node.torch.saving import Checkpointing, checkpointing

__all__ = ["AutoBatch", "Checkpointing", "ForeignMemory", "Stopped", "checkpointing", "resumable"]
