# ruff: noqa: INP001 - a script of the build
"""Does the image's node work? Run while the image is built; prints the versions it has as one JSON object.

The node runs one placement of a small job for real, on a store in a directory: it takes the epoch, starts a command,
commits its checkpoint and ends with 0. With ``TORCH`` in the environment, that version of PyTorch must be there.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import provisioner

COMMAND = """
cd "$FAILOVER_CHECKPOINT_DIR" && mkdir tmp-1 && echo weights >tmp-1/weights && mv tmp-1 step-1 && echo step 1
"""


def run_node(directory: Path) -> None:
    """Run one placement. Raises SystemExit with the node's own words when it does not end as it should."""
    boot = {
        "version": 1,
        "job": {"name": "check", "uid": "0"},
        "epoch": 1,
        "token": "no-secret",
        "store": {"uri": f"file://{directory / 'store'}"},
        "command": COMMAND,
        "steps": 1,
    }
    path = directory / "bootstrap.json"
    path.write_text(json.dumps(boot))
    argv = [sys.executable, "-I", "-m", "provisioner.node", "--bootstrap", str(path)]
    ended = subprocess.run(argv, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    if ended.returncode != 0 or "step 1 is committed" not in ended.stderr:
        sys.exit(f"the node ended with code {ended.returncode}:\n{ended.stderr}")


def main() -> int:
    """Run the node, import what is optional, print the versions."""
    with tempfile.TemporaryDirectory() as directory:
        run_node(Path(directory))
    importlib.import_module("pynvml")
    versions = {found.name: found.version for found in importlib.metadata.distributions() if found.name != "pip"}
    versions |= {"python": platform.python_version(), "gpu-failover": provisioner.__version__}
    if wanted := os.environ.get("TORCH"):
        torch = importlib.import_module("torch")
        if torch.__version__.partition("+")[0] != wanted.partition("+")[0]:
            sys.exit(f"PyTorch {wanted} was asked for, {torch.__version__} is there")
        versions["torch-cuda"] = str(torch.version.cuda)
    sys.stdout.write(json.dumps(dict(sorted(versions.items()))) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
