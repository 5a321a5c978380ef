"""What is in the image, and what must not be."""

from __future__ import annotations

import gzip
import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

import provisioner
from tests.image.conftest import docker

COMPILERS = ("cc", "gcc", "g++", "c++", "clang", "cpp", "as", "ld", "make", "nvcc")


@pytest.fixture(scope="session")
def image():
    return os.environ["IMAGE_TEST_IMAGE"]


@pytest.fixture(scope="session")
def configuration(image):
    return json.loads(docker("image", "inspect", image))[0]


@pytest.fixture(scope="session", params=["IMAGE_TEST_IMAGE", "IMAGE_TEST_TRAINING"])
def saved(request, tmp_path_factory):
    """The image as the engine gives it away: every layer, what later layers hide too."""
    path = tmp_path_factory.mktemp("saved") / "image.tar"
    docker("save", "--output", str(path), os.environ[request.param], timeout=300)
    yield path
    path.unlink()


def parts(saved: Path) -> Iterator[IO[bytes]]:
    """Give every file of a saved image, unpacked: layers, configuration, history."""
    with tarfile.open(saved) as archive:
        for member in archive:
            if member.isfile():
                file = archive.extractfile(member)
                assert file is not None
                packed = file.read(2) == b"\x1f\x8b"
                file.seek(0)
                yield gzip.GzipFile(fileobj=file) if packed else file  # type: ignore[misc]


def holds(file: IO[bytes], words: list[bytes]) -> set[bytes]:
    found, tail = set(), b""
    while block := file.read(2**22):
        found |= {word for word in words if word in tail + block}
        tail = block[-256:]
    return found


def names(saved: Path) -> set[str]:
    found = set()
    for file in parts(saved):
        try:
            with tarfile.open(fileobj=file) as layer:
                found |= {f"/{member.name.removeprefix('./')}" for member in layer if not member.isdir()}
        except tarfile.ReadError:
            continue
    return found


def test_no_layer_holds_a_secret_of_the_build(saved):
    secret, proof = (
        os.environ["IMAGE_CANARY"].encode(),
        b"def trouble(root: Path",
    )  # stands in provisioner/node/health.py
    found = set().union(*(holds(file, [secret, proof]) for file in parts(saved)))
    assert found == {proof}


def test_no_layer_holds_a_cache_a_package_list_or_a_place_of_packages(saved):
    kept = [
        name
        for name in names(saved)
        if name.startswith(
            ("/var/lib/apt/lists/", "/var/cache/apt/", "/root/.cache/", "/home/trainer/.cache/", "/run/secrets/")
        )
        or name.endswith(("/pip.conf", "/build.sources"))
    ]
    assert [name for name in kept if not name.endswith("/lock") and "/.wh." not in name] == []  # .wh.: taken away here


def test_it_runs_as_a_user_without_rights(run, image):
    asked = "import os, pathlib; print(os.getuid(), os.getgid(), pathlib.Path('/proc/self/status').read_text())"
    container = run(image=image, command=("python", "-c", asked))
    assert container.wait() == 0
    said = container.output()
    assert said.startswith("10001 10001 ")
    assert "CapEff:\t0000000000000000" in said


def test_it_has_no_compiler_and_nothing_of_the_controller(run, image):
    asked = (
        "import importlib.util, shutil\n"
        f"print([name for name in {COMPILERS} if shutil.which(name)])\n"
        "print([name for name in ('controller', 'clouds', 'cli') if importlib.util.find_spec('provisioner.' + name)])\n"
        "print([name for name in ('boto3', 'click', 'pydantic') if importlib.util.find_spec(name)])\n"
    )
    container = run(image=image, command=("python", "-c", asked))
    assert container.wait() == 0
    assert container.output() == "[]\n[]\n[]\n"


def test_its_labels_say_which_release_it_is_and_its_settings_suit_a_node(configuration):
    settings = configuration["Config"]
    labels = {name.removeprefix("org.opencontainers.image."): value for name, value in settings["Labels"].items()}
    assert labels["version"] == provisioner.__version__
    assert len(labels["revision"].removesuffix("-modified")) in {40, len("unknown")}
    assert labels["licenses"] == "Apache-2.0"
    assert settings["User"] == "10001"
    assert settings["StopSignal"] == "SIGTERM"
    assert settings["Entrypoint"][0] == "tini"
    assert settings["Healthcheck"]["Test"][0] == "CMD"


def test_it_knows_its_versions_for_the_build_has_run_its_node(run, image):
    container = run(image=image, command=("cat", "/opt/versions.json"))
    assert container.wait() == 0
    assert json.loads(container.output())["gpu-failover"] == provisioner.__version__


def test_the_bill_of_materials_lists_packages_of_debian_and_of_python():
    path = os.environ.get("IMAGE_TEST_BOM")
    if not path:
        pytest.skip("no bill of materials: make image-sbom needs a package from PyPI")
    bill = json.loads(Path(path).read_text())
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["version"] == provisioner.__version__
    kinds = {part["name"]: part["purl"].split("/")[0] for part in bill["components"] if "purl" in part}
    assert kinds["tini"] == "pkg:deb"
    assert kinds["obstore"] == "pkg:pypi"
