"""What is shipped and what is installed: a wheel that stands alone, and locks that fit any index."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def pins(lock: Path) -> dict[str, str]:
    """Return distribution name -> the whole logical line of its pin."""
    text = lock.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
    return {re.split(r"[=\[; ]", line, maxsplit=1)[0]: line for line in lines}


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[><=\[; ]", text, maxsplit=1)[0].lower().replace("_", "-") for text in requirements}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_pins_every_version_by_hash_and_names_no_index(lock: Path) -> None:
    for name, line in pins(lock).items():
        assert "==" in line, name
        assert "--hash=sha256:" in line, name
    assert not re.search(r"://|--(extra-)?index-url|--find-links| @ ", lock.read_text(encoding="utf-8"))


def test_the_locks_hold_what_the_project_asks_for() -> None:
    extras = PROJECT["optional-dependencies"]
    installed = set(pins(ROOT / "requirements/runtime.txt"))
    wanted = names(PROJECT["dependencies"] + extras["node"] + extras["sandbox"] + extras["postgres"] + extras["dev"])

    assert wanted <= installed
    assert names(extras["node"]) <= set(pins(ROOT / "requirements/node.txt"))


def test_the_node_has_the_same_versions_as_the_controller_and_none_of_its_cloud_libraries() -> None:
    node, runtime = pins(ROOT / "requirements/node.txt"), pins(ROOT / "requirements/runtime.txt")

    assert {name: line.split()[0] for name, line in node.items()}.items() <= {
        name: line.split()[0] for name, line in runtime.items()
    }.items()
    assert not {"boto3", "dbos", "python-terraform", "pydantic", "jinja2"} & set(node)
    assert len(node) <= 12, "a bare machine loads all of this before the job starts"


def test_the_wheel_stands_alone(tmp_path: Path) -> None:
    # A module that Terraform was run in holds plug-ins and state beside its files; they must stay at home.
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=120, stdout=subprocess.DEVNULL)
    (wheel,) = tmp_path.glob("gpu_failover-*-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        files = set(archive.namelist())
        size = sum(info.file_size for info in archive.infolist())

    assert "provisioner/py.typed" in files
    assert {f"provisioner/_assets/{name}" for name in assets()} <= files
    assert not [name for name in files if re.search(r"\.terraform/|\.tfstate|__pycache__|/tests/unit/", name)]
    assert size < 20_000_000


def assets() -> set[str]:
    """Return what a checkout keeps beside the package and an installation needs, by what git tracks."""
    command = ["git", "ls-files", "terraform", "templates", "examples", "requirements/node.txt"]
    done = subprocess.run(command, cwd=ROOT, check=False, timeout=60, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip("not a git checkout")
    return set(done.stdout.split())


def test_make_lists_every_target_that_a_person_types() -> None:
    done = subprocess.run(["make", "--no-print-directory"], cwd=ROOT, check=True, timeout=60, capture_output=True)
    listed = set(re.findall(r"^\W*\[?1?m?([a-z-]+)", done.stdout.decode(), flags=re.MULTILINE))
    wanted = "setup failover drill test test-all lint fmt bench image clean lock"

    assert set(wanted.split()) <= listed
