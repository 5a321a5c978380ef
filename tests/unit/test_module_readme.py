"""The README of each Terraform module tells of every variable, output and resource, as they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "module_readme.py"


def test_the_tables_of_every_module_are_current():
    checked = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, f"{checked.stderr}run: python scripts/module_readme.py"
    for module in (SCRIPT.parents[1] / "terraform" / "modules").iterdir():
        text = (module / "README.md").read_text()
        for file, word in (("variables.tf", "variable"), ("outputs.tf", "output")):
            for line in (module / file).read_text().splitlines():
                if line.startswith(f"{word} "):
                    name = line.split('"')[1]
                    assert f"| {name} | " in text
