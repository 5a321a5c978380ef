"""Quoting and stacks: nothing from a configuration breaks out of the language it is put into."""

from __future__ import annotations

import json
import stat
import subprocess
from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import TemplateError, UndefinedError

from provisioner.errors import ConfigError
from provisioner.model import JobRef, Market
from provisioner.terraform.quoting import hcl, sh
from provisioner.terraform.render import GcpNodeSpec, GcpStackSpec, NodeSpec, StackSpec, environment, write_stack

JOB = JobRef("digits", "1a2b3c4d")
HOSTILE = [
    '${file("/etc/passwd")}', "%{ for x in y }", "$${already}", "%%{", "$", "$$", "$${", "$$${", '"', '\\"', "\\",
    "a\nb", "\r\n", "`id`", "$(id)", "'; rm -rf / #", "EOT\n", "<<EOT", "\u2028", "\x01\x1f\x7f", "日本語", "🙂",
    "-var=x=y", "", " ", "\t",
]  # fmt: skip
texts = st.one_of(
    st.sampled_from(HOSTILE),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    st.text(alphabet="$%{}\"'\\`()\n\t ~#ab", max_size=12),
)


def read_hcl_string(text):
    """Read a quoted HCL template that must be a plain string; a second opinion, written from HCL's grammar."""
    assert text[0] == text[-1] == '"'
    body, out, at = text[1:-1], [], 0
    while at < len(body):
        if body[at] == "\\":
            kind = body[at + 1]
            if kind in "uU":
                width = 4 if kind == "u" else 8
                out.append(chr(int(body[at + 2 : at + 2 + width], 16)))
                at += 2 + width
            else:
                out.append({"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\"}[kind])
                at += 2
        elif body[at : at + 3] in {"$${", "%%{"}:
            out.append(body[at + 1 : at + 3])
            at += 3
        else:
            assert body[at] not in '"\n', "the string ended early"
            assert body[at : at + 2] not in {"${", "%{"}, "a template began"
            out.append(body[at])
            at += 1
    return "".join(out)


@given(texts)
def test_text_comes_back_from_hcl_as_it_went_in(text):
    assert read_hcl_string(hcl(text)) == text


@settings(max_examples=25, deadline=None)
@given(st.lists(texts, min_size=1, max_size=40))
def test_a_shell_gives_back_the_same_bytes(words):
    script = "printf '%s\\0' " + " ".join(sh(word) for word in words)
    told = subprocess.run(["bash", "-c", script], capture_output=True, check=True).stdout
    assert told == b"".join(word.encode() + b"\0" for word in words)


@pytest.mark.parametrize("quote", [hcl, sh])
@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
def test_what_a_language_cannot_say_is_refused(quote, text):
    with pytest.raises(ValueError, match=r"must not contain a NUL|not valid Unicode"):
        quote(text)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object()])
def test_values_without_an_hcl_form_are_refused(value):
    with pytest.raises(ValueError, match="no HCL for"):
        hcl(value)


def test_a_template_that_forgets_to_quote_is_refused():
    templates = environment()
    assert templates.from_string("{{ x | sh }} {{ n }}").render(x="$(id)", n=3) == "'$(id)' 3"
    with pytest.raises(TemplateError, match="without a filter that quotes it"):
        templates.from_string("{{ x }}").render(x="$(id)")
    with pytest.raises(UndefinedError):
        templates.from_string("{{ missing | sh }}").render()


FREE_TEXT = ("region", "bucket", "prefix", "ssh_cidr", "key_name", "ami_id", "ami_ssm_parameter", "vpc", "vpc_cidr")


@settings(max_examples=30, deadline=None)
@given(texts, texts)
def test_configured_text_only_ever_stands_in_the_variables_file(tmp_path_factory, text, other):
    plain, hostile = tmp_path_factory.mktemp("plain"), tmp_path_factory.mktemp("hostile")
    node = NodeSpec(text, other, Market.SPOT, text, user_data=other, tags={text: other})
    spec = StackSpec(
        JobRef(text, other), **{"region": "r", **dict.fromkeys(FREE_TEXT, text)}, tags={other: text}, node=node
    )
    write_stack(plain, StackSpec(JOB, "us-east-1"))
    write_stack(hostile, spec)
    assert (hostile / "main.tf").read_text() == (plain / "main.tf").read_text()
    kept = json.loads((hostile / "terraform.tfvars.json").read_text())
    assert kept == spec.variables()
    assert {kept["region"], kept["substrate"]["prefix"], kept["node"]["instance_type"]} == {text}


def test_every_setting_of_a_stack_reaches_terraform():
    changed = {
        "job": JobRef("other", "ffffffff"), "region": "eu-west-1", "bucket": "b-1", "prefix": "p", "vpc": "own",
        "vpc_cidr": "10.0.0.0/16", "zones": ("z",), "ssh_cidr": "10.0.0.0/8", "key_name": "k", "ami_id": "ami-1",
        "ami_ssm_parameter": "/x", "disk_gb": 9, "tags": {"a": "b"}, "autodl_available": False,
        "adopted_instance_id": "i-1", "node": NodeSpec("g4dn.xlarge", "us-east-1a"),
    }  # fmt: skip
    assert set(changed) == {field.name for field in fields(StackSpec)}
    plain = {"job": JOB, "region": "us-east-1"}
    for name, value in changed.items():
        assert StackSpec(**{**plain, name: value}).variables() != StackSpec(**plain).variables(), name


GCP_TEXT = ("region", "bucket", "prefix", "ssh_cidr", "network", "service_account", "image", "project")


@settings(max_examples=20, deadline=None)
@given(texts, texts)
def test_configured_text_of_google_only_ever_stands_in_the_variables_file(tmp_path_factory, text, other):
    plain, hostile = tmp_path_factory.mktemp("plain"), tmp_path_factory.mktemp("hostile")
    node = GcpNodeSpec(text, other, Market.SPOT, text, user_data=other, labels={text: other})
    spec = GcpStackSpec(JobRef(text, other), **dict.fromkeys(GCP_TEXT, text), labels={other: text}, node=node)
    write_stack(plain, GcpStackSpec(JOB, "my-project", "us-central1"))
    write_stack(hostile, spec)
    assert (hostile / "main.tf").read_text() == (plain / "main.tf").read_text()
    kept = json.loads((hostile / "terraform.tfvars.json").read_text())
    assert kept == spec.variables()
    assert {kept["project"], kept["substrate"]["image"], kept["node"]["machine_type"]} == {text}


def test_every_setting_of_a_stack_at_google_reaches_terraform():
    changed = {
        "job": JobRef("other", "ffffffff"), "project": "other-project", "region": "europe-west4", "bucket": "b-1",
        "prefix": "p", "network": "own", "zones": ("z",), "ssh_cidr": "10.0.0.0/8", "service_account": "a@b",
        "image": "i", "disk_gb": 9, "labels": {"a": "b"}, "autodl_available": False, "adopted_instance_id": "i-1",
        "node": GcpNodeSpec("g2-standard-4", "us-central1-a"),
    }  # fmt: skip
    assert set(changed) == {field.name for field in fields(GcpStackSpec)}
    plain = {"job": JOB, "project": "my-project", "region": "us-central1"}
    for name, value in changed.items():
        assert GcpStackSpec(**{**plain, name: value}).variables() != GcpStackSpec(**plain).variables(), name


def test_a_stack_is_for_its_owner_only_and_complete(tmp_path):
    folder = tmp_path / "aws-us-east-1"
    write_stack(folder, StackSpec(JOB, "us-east-1", adopted_instance_id="i-0abc"))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for path in folder.rglob("*"):
        if path.is_file():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert 'id = "i-0abc"' in (folder / "main.tf").read_text()
    assert sorted(path.name for path in (folder / "modules").iterdir()) == ["aws_gpu_node", "aws_region"]


def test_what_exists_already_is_imported_by_its_address(tmp_path):
    address, identity = "module.region.google_compute_network.own[0]", "projects/p/global/networks/n${x}"
    write_stack(tmp_path, GcpStackSpec(JOB, "my-project", "us-central1"), {address: identity})
    text = (tmp_path / "main.tf").read_text()
    assert f'  to = {address}\n  id = "projects/p/global/networks/n$${{x}}"\n' in text
    assert sorted(path.name for path in (tmp_path / "modules").iterdir()) == ["gcp_gpu_node", "gcp_region"]


def test_files_that_did_not_change_are_left_alone(tmp_path):
    spec = StackSpec(JOB, "us-east-1")
    write_stack(tmp_path, spec)
    before = {path: path.stat().st_ino for path in tmp_path.rglob("*.tf*")}
    write_stack(tmp_path, spec)
    assert {path: path.stat().st_ino for path in tmp_path.rglob("*.tf*")} == before
    write_stack(tmp_path, StackSpec(JOB, "us-east-1", adopted_instance_id="i-1"))
    write_stack(tmp_path, spec)
    assert "import" not in (tmp_path / "main.tf").read_text()


def test_text_that_terraform_cannot_hold_is_the_operators_mistake(tmp_path):
    with pytest.raises(ConfigError, match="cannot be written for Terraform"):
        write_stack(tmp_path, StackSpec(JOB, "us-east-1", key_name="\ud800"))
