"""Root trees of small images, made of this machine's own programs, and a bundle of the node's runtime for them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from provisioner.controller import runtime, runtime_bundle
from provisioner.controller.runtime_bundle import Bundle
from tests.start_machines import DEPENDENCIES, installed_wheel

TOOLS = (
    *(
        "bash",
        "sh",
        "awk",
        "basename",
        "cat",
        "chmod",
        "cp",
        "cut",
        "date",
        "df",
        "dirname",
        "env",
        "grep",
        "gzip",
    ),
    *("head", "id", "ls", "mkdir", "mktemp", "mv", "printf", "rm", "sed", "sha256sum", "sleep", "sort", "tail", "tar"),
    *("tr", "uname"),
)
TRAINER = """
step=0; [ "$FAILOVER_RESTORED" = 0 ] || step=$(cat "$FAILOVER_RESTORE_PATH"/*/step)
while [ $step -lt 20 ]; do
  step=$((step + 1)); mkdir "$FAILOVER_CHECKPOINT_DIR/.s"; echo $step >"$FAILOVER_CHECKPOINT_DIR/.s/step"
  mv "$FAILOVER_CHECKPOINT_DIR/.s" "$FAILOVER_CHECKPOINT_DIR/step-$step"; echo "step $step"; sleep 0.05
done
echo "libraries: ${LD_LIBRARY_PATH-none}"
"""


"""Trains 20 steps in bash, each with a checkpoint."""


def put(tree: Path, path: Path, name: str = "") -> None:
    """Copy a program of this machine into a tree, with the libraries that it needs."""
    said = subprocess.run(["ldd", path], capture_output=True, text=True, check=False).stdout
    libraries = re.findall(r"(?:=> |^\s+)(/\S+) \(0x", said, re.MULTILINE)
    for source, target in [(str(path), name or f"/usr/bin/{path.name}"), *((one, one) for one in libraries)]:
        place = tree / target.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists():
            shutil.copy(source, place)


def bare_tree(tree: Path) -> Path:
    """Make a tree with a shell and the common tools of this machine: no Python, nothing that fetches."""
    for folder in ("usr/bin", "usr/lib", "usr/lib64", "usr/sbin", "dev", "proc", "tmp", "etc"):
        (tree / folder).mkdir(parents=True)
    for link in ("bin", "lib", "lib64", "sbin"):
        (tree / link).symlink_to(f"usr/{link}")
    for tool in TOOLS:
        if found := shutil.which(tool, path="/usr/bin:/bin"):
            put(tree, Path(found), f"/usr/bin/{tool}")
    for name in (
        "libgcc_s",
        "libpthread",
        "libdl",
        "librt",
        "libm",
        "libutil",
        "libresolv",
    ):  # glibc's packages bring them
        for library in Path("/usr/lib").glob(f"*-linux-gnu/{name}.so.[0-9]"):
            put(tree, library, str(library))
    power = tree / "usr/sbin/shutdown"
    power.write_text('#!/bin/bash\necho "$@" >>"$HOME/shutdowns"\n')
    power.chmod(0o755)
    return tree


def wheels_of_here(directory: Path) -> list[Path]:
    """Pack our code, pip and what the node needs, as installed here."""
    made = [installed_wheel(name, directory) for name in DEPENDENCIES]
    return [*made, runtime._pip(directory), runtime.build_wheel(directory)]


def packed_bundle(directory: Path) -> Bundle:
    """Make the node's runtime of this interpreter and of what is installed here."""
    here = runtime_bundle._described(Path(sys.executable), "this installation", subprocess.run)
    return runtime_bundle.assemble(directory, here, runtime_bundle.fitting(wheels_of_here(directory), here.minor))
