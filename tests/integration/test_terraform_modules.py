"""Modules and rendered stacks through Terraform itself: format, validity, and the modules' own tests."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from provisioner import assets
from provisioner.errors import TerraformError
from provisioner.model import JobRef, Market
from provisioner.terraform import render
from provisioner.terraform.provider import discover
from provisioner.terraform.render import GcpStackSpec, NodeSpec, StackSpec, write_stack

MODULES = assets.path("terraform/modules")
STAND_IN = Path(__file__).resolve().parents[2] / "provisioner" / "sandbox" / "stand_in"
SPEC = StackSpec(JobRef("digits", "1a2b3c4d"), "us-east-1", bucket="checkpoints", prefix="jobs/digits")
GCP_SPEC = GcpStackSpec(JobRef("digits", "1a2b3c4d"), "my-project", "us-central1", bucket="checkpoints", prefix="p")
MACHINE = "projects/my-project/zones/us-central1-a/instances/failover-digits-1a2b3c4d-e1-0f0f0f0f"
SPECS = {
    "claimed": SPEC,
    "adopted": replace(SPEC, autodl_available=False, adopted_instance_id="i-0123456789abcdef0"),
    "terraform_only": replace(SPEC, node=NodeSpec("g4dn.xlarge", "us-east-1a", Market.SPOT, "0.5"), vpc="own"),
    "adopted_at_google": replace(GCP_SPEC, autodl_available=False, adopted_instance_id=MACHINE),
}
pytestmark = pytest.mark.timeout(900)


class Program:
    """Terraform with one provider."""

    def __init__(self, toolchain):
        self.toolchain = toolchain

    def run(self, *arguments, cwd):
        env = {**os.environ, **self.toolchain.env}
        argv = [*self.toolchain.terraform, *arguments, "-no-color"]
        done = subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"terraform {arguments[0]} in {cwd.name}:\n{done.stdout}\n{done.stderr}"
        return done.stdout


def program(choice, directory, provider="aws"):
    nowhere = dict.fromkeys(("AWS_ENDPOINT_URL", "GOOGLE_COMPUTE_CUSTOM_ENDPOINT"), "http://127.0.0.1:9")
    try:
        return Program(discover(directory, {**os.environ, **nowhere, "FAILOVER_TF_PROVIDER": choice}, provider))
    except TerraformError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory):
    return program("stand-in", tmp_path_factory.mktemp("stand-in"))


@pytest.fixture(scope="session")
def stand_in_google(tmp_path_factory):
    return program("stand-in", tmp_path_factory.mktemp("stand-in-google"), "google")


@pytest.fixture(scope="session")
def official(tmp_path_factory):
    return program("official", tmp_path_factory.mktemp("official"))


@pytest.mark.parametrize("case", SPECS)
def test_a_rendered_stack_is_formatted_and_valid(stand_in, stand_in_google, tmp_path, case):
    terraform = stand_in_google if isinstance(SPECS[case], GcpStackSpec) else stand_in
    write_stack(tmp_path, SPECS[case])
    terraform.run("fmt", "-check", "-recursive", cwd=tmp_path)
    terraform.run("init", "-input=false", cwd=tmp_path)
    terraform.run("validate", cwd=tmp_path)


def test_the_modules_are_formatted(stand_in):
    stand_in.run("fmt", "-check", "-recursive", "-diff", cwd=MODULES)


def own_tests(program, module, directory):
    shutil.copytree(MODULES / module, directory / module)
    program.run("init", "-input=false", cwd=directory / module)
    return program.run("test", cwd=directory / module)


@pytest.mark.parametrize("module", [pytest.param("aws_region", marks=pytest.mark.slow), "aws_gpu_node"])
def test_the_modules_own_tests(stand_in, tmp_path, module):
    assert ", 0 failed" in own_tests(stand_in, module, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("module", ["gcp_region", "gcp_gpu_node"])
def test_the_own_tests_of_the_modules_of_google(stand_in_google, tmp_path, module):
    assert ", 0 failed" in own_tests(stand_in_google, module, tmp_path)


@pytest.mark.slow
def test_the_bucket_modules_own_tests_with_the_official_schema(official, tmp_path):
    """The stand-in has no buckets; the other two modules' tests need no more than it has."""
    assert ", 0 failed" in own_tests(official, "checkpoint_bucket", tmp_path)


@pytest.mark.slow
def test_a_rendered_stack_is_valid_for_the_official_provider(official, tmp_path):
    write_stack(tmp_path, SPECS["adopted"])
    official.run("init", "-input=false", cwd=tmp_path)
    official.run("validate", cwd=tmp_path)


@pytest.mark.slow
def test_the_stand_ins_schema_is_a_part_of_the_official_one(official, tmp_path):
    (tmp_path / "main.tf").write_text((MODULES / "aws_region" / "versions.tf").read_text())
    official.run("init", "-input=false", cwd=tmp_path)
    env = {**os.environ, **official.toolchain.env}
    argv = [*official.toolchain.terraform, "providers", "schema", "-json"]
    told = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, check=True).stdout
    (theirs,) = json.loads(told)["provider_schemas"].values()
    ours = json.loads((STAND_IN / "aws" / "schema.json").read_text())
    for kind in ("resource_schemas", "data_source_schemas"):
        for name, described in ours[kind].items():
            assert list(differences(described["block"], theirs[kind][name]["block"], name)) == []
            assert described["version"] == theirs[kind][name]["version"], name
    assert list(differences(ours["provider"]["block"], theirs["provider"]["block"], "provider")) == []


def differences(ours, theirs, where):
    for name, attribute in ours["attributes"].items():
        real = theirs["attributes"].get(name, {})
        for property_ in ("type", "required", "optional", "computed", "sensitive"):
            if attribute.get(property_, False) != real.get(property_, False):
                yield f"{where}.{name}: {property_}"
    for name, nested in ours.get("block_types", {}).items():
        real = theirs["block_types"].get(name)
        if real is None:
            yield f"{where}.{name}: no block"
            continue
        for property_, default in (("nesting_mode", None), ("min_items", 0), ("max_items", 0)):
            if nested.get(property_, default) != real.get(property_, default):
                yield f"{where}.{name}: {property_}"
        yield from differences(nested["block"], real["block"], f"{where}.{name}")


def test_the_bootstrap_passes_shellcheck(tmp_path):
    try:
        assets.path("templates/bootstrap.sh.j2")
    except FileNotFoundError:
        pytest.skip("no bootstrap template yet")
    script = tmp_path / "bootstrap.sh"
    script.write_text(render.bootstrap(url="https://b.example/k?X-Amz-Signature=ab12&x=1", ttl_s=43200))
    program = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert program is not None
    checked = subprocess.run([program, "--severity=style", script], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
