"""What a drill trains: the digits in plain numpy, or a script of ``examples`` that wants PyTorch."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provisioner import assets
from provisioner.errors import ConfigError
from provisioner.sandbox.scenario import Scenario

STEPS = 100
EVERY = 10

_WEIGHTS = """
import hashlib, sys, torch
state = torch.load(sys.argv[1], map_location="cpu", weights_only=True)["state_dict"]
for name, tensor in sorted(state.items()):
    print(name, hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest())
"""


@dataclass(frozen=True)
class Training:
    """A command without its pause between steps, and how its last checkpoint is compared."""

    script: str
    """In ``examples``, as is its working directory on the machine."""
    arguments: tuple[str, ...]
    steps: int
    torch: Path | None = None
    """The Python of the environment with PyTorch, where the script wants one."""

    def command(self, pause: float) -> list[str]:
        """Return the job's command: on a machine ``python`` is what its PATH has."""
        python = "python" if self.torch is None else str(self.torch)
        return [python, self.script, *self.arguments, "--step-seconds", str(pause)]

    def here(self) -> list[str]:
        """Return the same, to be run beside the drill and without a pause."""
        python = sys.executable if self.torch is None else str(self.torch)
        return [python, str(assets.path("examples") / self.script), *self.arguments]

    @property
    def last(self) -> str:
        """Return the name of its last checkpoint."""
        return f"step-{self.steps}" if self.torch is None else f"step-{self.steps}.ckpt"

    def digest(self, checkpoint: Path) -> dict[str, str] | None:
        """Return the hashes of a checkpoint's files, of its weights where it is a file of torch; None: unreadable."""
        if self.torch is None:
            return digests(checkpoint)
        command = [str(self.torch), "-c", _WEIGHTS, str(checkpoint)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        return None if done.returncode else dict(line.split() for line in done.stdout.splitlines())


def of(scenario: Scenario, *, python: Path | None = None) -> Training:
    """Return what a scenario trains. Raises ConfigError where ``python``, by default ``.venv-torch``, is away."""
    asked = scenario.training
    if asked is None:
        return Training("train_digits.py", ("--steps", str(STEPS), "--every", str(EVERY)), STEPS)
    python = python or assets.path("examples").parent / ".venv-torch" / "bin" / "python"
    if not python.exists():
        raise ConfigError(f"the scenario {scenario.name} trains with PyTorch, which is not here: make torch")
    return Training(asked.script, asked.arguments, asked.steps, python)


def digests(folder: Path) -> dict[str, str]:
    """Return the BLAKE3 hash of every file below a folder, by relative path."""
    import blake3

    return {
        str(path.relative_to(folder)): blake3.blake3(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def settings(training: Training, pause: float) -> dict[str, Any]:
    """Return the part of failover.yaml that says what is trained."""
    return {"command": training.command(pause), "workdir": str(assets.path("examples")), "steps": training.steps}
