"""Every kind of stack against the schemas of the official providers, the oldest and the newest that we claim.

``make schemas`` takes them out of packages. They tell names, types and nesting; a provider with the schema and nothing
behind it serves them to a real Terraform.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from provisioner import assets
from provisioner.errors import TerraformError
from provisioner.model import JobRef, Market
from provisioner.terraform import mirrors
from provisioner.terraform.provider import discover
from provisioner.terraform.quoting import hcl, sh
from provisioner.terraform.render import GcpNodeSpec, GcpStackSpec, NodeSpec, StackSpec, write_stack
from provisioner.terraform.requirement import required

ROOT = Path(__file__).resolve().parents[2]
SCHEMAS = sorted((ROOT / ".schemas").glob("*-*.json"))
JOB = JobRef("digits", "1a2b3c4d")
AWS = StackSpec(JOB, "us-east-1", bucket="checkpoints", prefix="jobs/digits")
GCP = GcpStackSpec(JOB, "my-project", "us-central1", bucket="checkpoints", prefix="jobs/digits")
MACHINE = "projects/my-project/zones/us-central1-a/instances/failover-digits-1a2b3c4d-e1-0f0f0f0f"
NETWORK = {"module.region.google_compute_network.own[0]": "projects/my-project/global/networks/failover-digits"}
ADOPTED = {
    "aws": replace(AWS, autodl_available=False, adopted_instance_id="i-0123456789abcdef0"),
    "google": replace(GCP, autodl_available=False, adopted_instance_id=MACHINE),
}
pytestmark = pytest.mark.timeout(600)


def gcp_machine(machine_type, market=Market.ON_DEMAND, **rest):
    return replace(GCP, autodl_available=False, node=GcpNodeSpec(machine_type, "us-central1-a", market, **rest))


def aws_machine(instance_type, market=Market.ON_DEMAND, price=None):
    return replace(AWS, autodl_available=False, node=NodeSpec(instance_type, "us-east-1a", market, price))


KINDS = {
    "aws": {
        "claimed": AWS,
        "adopted": ADOPTED["aws"],
        "own_network_t4_spot": replace(
            aws_machine("g4dn.xlarge", Market.SPOT, "0.5"), vpc="own", ssh_cidr="203.0.113.7/32", key_name="k"
        ),
        "store_elsewhere_v100": replace(aws_machine("p3.2xlarge"), bucket=None, prefix="", ami_id="ami-1"),
        "a10g_spot": aws_machine("g5.xlarge", Market.SPOT),
    },
    "google": {
        "claimed": GCP,
        "adopted": ADOPTED["google"],
        "own_network_n1_t4_spot": replace(
            gcp_machine("n1-standard-8", Market.SPOT, accelerator="nvidia-tesla-t4"),
            network="own",
            ssh_cidr="203.0.113.7/32",
            zones=("us-central1-a",),
        ),
        "n1_v100": gcp_machine("n1-standard-8", accelerator="nvidia-tesla-v100", accelerators=2),
        "store_elsewhere_g2": replace(
            gcp_machine("g2-standard-4", user_data="#!/bin/bash\necho '${x}'\n"), bucket=None, prefix=""
        ),
        "own_account_a2_spot": replace(
            gcp_machine("a2-highgpu-1g", Market.SPOT), service_account="trainer@my-project.iam.gserviceaccount.com"
        ),
        "a3": gcp_machine("a3-highgpu-8g", labels={"team": "vision"}),
    },
}
MOCKS = {
    "aws": """mock_provider "aws" {
  mock_data "aws_subnets" {
    defaults = { ids = ["subnet-a"] }
  }
  mock_data "aws_subnet" {
    defaults = { id = "subnet-a", availability_zone = "us-east-1a" }
  }
  mock_data "aws_availability_zones" {
    defaults = { names = ["us-east-1a"] }
  }
  mock_data "aws_ssm_parameter" {
    defaults = { value = "ami-0fedcba9876543210" }
  }
  mock_data "aws_instances" {
    defaults = { ids = ["i-0123456789abcdef0"] }
  }
}
""",
    "google": 'mock_provider "google" {}\n',
}


def parted(path):
    return path.stem.split("-", 1)


class Validator:
    """Terraform with nothing but the schema of one provider."""

    def __init__(self, schema, stand_in, directory):
        name, version = parted(schema)
        (host,) = (path.name for path in Path(stand_in.env["TF_CLI_CONFIG_FILE"]).parent.glob("stand-in-*/*.*"))
        folder = directory / "mirror" / host / "hashicorp" / name / version / mirrors.platform()
        folder.mkdir(parents=True)
        (launcher,) = Path(stand_in.env["TF_CLI_CONFIG_FILE"]).parent.glob("stand-in-*/*/hashicorp/*/*/*/*")
        program = folder / f"terraform-provider-{name}_v{version}"
        program.write_text(launcher.read_text().replace(f"stand_in {sh(name)}", f"stand_in {sh(schema)}"))
        program.chmod(0o700)
        configuration = directory / "mirror.tfrc"
        mirror = f'path = "{directory / "mirror"}"\n    include = ["*/*/*"]'
        configuration.write_text(f"provider_installation {{\n  filesystem_mirror {{\n    {mirror}\n  }}\n}}\n")
        self.env = {**os.environ, "TF_CLI_CONFIG_FILE": str(configuration), "CHECKPOINT_DISABLE": "1"}
        self.terraform = stand_in.terraform

    def run(self, *arguments, cwd):
        argv = [*self.terraform, *arguments, "-no-color"]
        return subprocess.run(argv, cwd=cwd, env=self.env, capture_output=True, text=True, check=False)

    def good(self, *arguments, cwd):
        done = self.run(*arguments, cwd=cwd)
        assert done.returncode == 0, f"terraform {arguments[0]}:\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture(scope="session")
def validator(tmp_path_factory):
    made = {}

    def open_(schema):
        if schema is None:
            pytest.skip("no schemas to validate with: run `make schemas`")
        name = parted(schema)[0]
        if schema not in made:
            endpoint = {required(name).endpoint: "http://127.0.0.1:9", "FAILOVER_TF_PROVIDER": "stand-in"}
            directory = tmp_path_factory.mktemp(schema.stem)
            try:
                stand_in = discover(directory, {**os.environ, **endpoint}, name)
            except TerraformError as error:
                pytest.skip(str(error))
            made[schema] = Validator(schema, stand_in, directory)
        return made[schema]

    return open_


def each_schema(provider=""):
    known = [path for path in SCHEMAS if path.name.startswith(provider)]
    return pytest.mark.parametrize("schema", known or [None], ids=[path.stem for path in known] or ["none"])


def test_the_oldest_provider_that_is_claimed_is_the_oldest_that_is_validated():
    if not SCHEMAS:
        pytest.skip("no schemas to validate with: run `make schemas`")
    versions = {}
    for name, version in map(parted, SCHEMAS):
        versions.setdefault(name, []).append(tuple(map(int, version.split("."))))
    for name, known in versions.items():
        oldest = min(known)
        assert len(known) > 1
        assert oldest == required(name).oldest
        claim = re.compile(rf'source  = "hashicorp/{name}"\s+version = ">= (.*)"')
        texts = [path.read_text() for path in assets.path("terraform/modules").glob("*/versions.tf")]
        texts.append(assets.path(f"templates/{'gcp' if name == 'google' else name}_stack.tf.j2").read_text())
        claimed = {found[1] for text in texts if (found := claim.search(text))}
        assert claimed == {".".join(map(str, oldest))}


@pytest.mark.slow
@each_schema()
def test_every_kind_of_stack_is_valid(validator, tmp_path, schema):
    terraform, name = validator(schema), parted(schema)[0] if schema else ""
    stack = tmp_path / "stack"
    write_stack(stack, ADOPTED[name], NETWORK if name == "google" else {})
    terraform.good("init", "-input=false", cwd=stack)
    terraform.good("validate", cwd=stack)

    write_stack(stack, ADOPTED[name])
    (stack / "main.tf").write_text(re.sub(r"(?ms)^import \{.*?^\}\n", "", (stack / "main.tf").read_text()))
    (stack / "terraform.tfvars.json").unlink()
    runs = [MOCKS[name]]
    for kind, spec in KINDS[name].items():
        variables = "\n".join(f"    {key} = {hcl(value)}" for key, value in spec.variables().items())
        runs.append(f'run "{kind}" {{\n  command = plan\n  variables {{\n{variables}\n  }}\n}}\n')
    (stack / "kinds.tftest.hcl").write_text("\n".join(runs))
    told = terraform.good("test", cwd=stack)
    assert f"{len(KINDS[name])} passed, 0 failed" in told


@pytest.mark.slow
@each_schema("aws")
def test_the_bucket_module_is_valid(validator, tmp_path, schema):
    terraform = validator(schema)
    shutil.copytree(assets.path("terraform/modules/checkpoint_bucket"), tmp_path / "bucket")
    terraform.good("init", "-input=false", cwd=tmp_path / "bucket")
    terraform.good("validate", cwd=tmp_path / "bucket")


@pytest.mark.slow
def test_the_example_of_the_docs_is_valid(validator, tmp_path):
    terraform = validator(SCHEMAS[-1] if SCHEMAS else None)
    (example,) = re.findall(r"```hcl\n(.*?)```", (ROOT / "docs" / "terraform.md").read_text(), re.DOTALL)
    (tmp_path / "main.tf").write_text(example)
    (tmp_path / "start.sh").write_text("#!/bin/bash\n")
    (tmp_path / "terraform").mkdir()
    (tmp_path / "terraform" / "modules").symlink_to(assets.path("terraform/modules"))
    terraform.good("init", "-input=false", cwd=tmp_path)
    terraform.good("validate", cwd=tmp_path)
    terraform.good("fmt", "-check", "main.tf", cwd=tmp_path)


def test_a_misspelt_argument_is_caught(validator, tmp_path):
    terraform = validator(SCHEMAS[-1] if SCHEMAS else None)
    write_stack(tmp_path, ADOPTED["google"])
    node = tmp_path / "modules" / "gcp_gpu_node" / "main.tf"
    node.write_text(node.read_text().replace("provisioning_model ", "provisioning_modle "))
    terraform.good("init", "-input=false", cwd=tmp_path)
    checked = terraform.run("validate", cwd=tmp_path)
    assert checked.returncode == 1
    assert 'Did you mean "provisioning_model"?' in " ".join(checked.stderr.split())


@pytest.mark.parametrize("name", ["aws", "google"])
def test_the_stand_ins_schema_is_a_part_of_the_newest_official_one(name):
    known = [path for path in SCHEMAS if parted(path)[0] == name]
    if not known:
        pytest.skip("no schemas to compare with: run `make schemas`")
    schema = max(known, key=lambda path: [int(part) for part in parted(path)[1].split(".")])
    ours = json.loads((ROOT / "provisioner" / "sandbox" / "stand_in" / name / "schema.json").read_text())
    theirs = json.loads(schema.read_text())
    found = [*differences(ours["provider"]["block"], theirs["provider"]["block"], "provider")]
    for kind in ("resource_schemas", "data_source_schemas"):
        for resource, described in ours[kind].items():
            found += differences(described["block"], theirs[kind][resource]["block"], resource)
    assert found == []


def differences(ours, theirs, where):
    """Name what the extracted schema says otherwise. It does not tell what the provider fills in itself."""
    for name, attribute in ours["attributes"].items():
        real = theirs["attributes"].get(name)
        if real is None:
            if name not in theirs["block_types"]:  # what is written as a block and as a list alike is told as a block
                yield f"{where}.{name}: no such attribute"
            continue
        kept = ("type", "required", "optional") if attribute.get("optional") else ("type", "required", "computed")
        for property_ in kept:
            if attribute.get(property_, False) != real.get(property_, False):
                yield f"{where}.{name}: {property_}: {attribute.get(property_)} is {real.get(property_)}"
    for name, nested in ours.get("block_types", {}).items():
        real = theirs["block_types"].get(name)
        if real is None:
            yield f"{where}.{name}: no such block"
            continue
        for property_ in ("nesting_mode", "min_items", "max_items"):
            if nested[property_] != real[property_]:
                yield f"{where}.{name}: {property_}: {nested[property_]} is {real[property_]}"
        yield from differences(nested["block"], real["block"], f"{where}.{name}")
