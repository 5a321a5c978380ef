"""Running Terraform: it ends, whatever the program does, and says what went wrong."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import time
import unicodedata
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from provisioner.errors import TerraformError
from provisioner.terraform.plan import Allow, Change, Plan
from provisioner.terraform.provider import Toolchain
from provisioner.terraform.quoting import hcl
from provisioner.terraform.runner import Deadlines, Runner

TERRAFORM = shutil.which("terraform")
needs_terraform = pytest.mark.skipif(TERRAFORM is None, reason="no terraform in PATH")
QUICK = Deadlines(init_s=1.5, plan_s=1.5, apply_s=1.5, show_s=1.5, grace_s=0.5)
SECRET = "canary-71fd0c"


def alive(marker):
    """Return the processes that carry ``marker`` in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and marker.encode() in (entry / "environ").read_bytes():
                found.append((entry.name, (entry / "cmdline").read_bytes()))
        except OSError:
            continue
    return found


def assert_gone(marker, within_s=10.0):
    """A kill is on its way when it is sent; the kernel may need a moment."""
    end = time.monotonic() + within_s
    while left := alive(marker):
        assert time.monotonic() < end, left
        time.sleep(0.02)


@pytest.fixture
def fake(tmp_path):
    """Return a function that makes a Runner of a fake ``terraform``, first in PATH, with a shell script as its body."""

    def make(script, deadlines=QUICK):
        stack = tmp_path / "aws-us-east-1"
        stack.mkdir()
        (stack / "terraform.tfvars.json").write_text(json.dumps({"node": {"user_data": SECRET}}))
        program = tmp_path / "bin" / "terraform"
        program.parent.mkdir()
        program.write_text('#!/bin/bash\necho "$@" >> ../argv\n' + textwrap.dedent(script))
        program.chmod(0o755)
        marker = f"FAKE_RUN={tmp_path}"
        environ = {"PATH": f"{program.parent}:{os.environ['PATH']}", "FAKE_RUN": str(tmp_path)}
        runner = Runner(Toolchain(("terraform",)), stack, deadlines=deadlines, environ=environ)
        # Popen looks the program up in our own PATH, not in the child's.
        runner.toolchain = Toolchain((str(program),))
        return runner, marker

    return make


HANGS = {
    "a_floods_stderr_and_fails": (
        "head -c 5242880 /dev/zero | tr '\\0' 'x' >&2; echo >&2; echo 'Error: flooded' >&2; exit 1",
        "Error: flooded",
    ),
    "b_asks_and_waits": ("echo 'Enter a value: '; read -r answer; while :; do sleep 0.1; done", "stopped after 1.5 s"),
    "c_ignores_sigint": ("trap '' INT TERM; while :; do sleep 0.1; done", "stopped after 1.5 s"),
    "d_grandchild_keeps_stdout": ("sleep 300 & echo 'Error: gone' >&2; exit 1", "Error: gone"),
}


@pytest.mark.parametrize("case", HANGS)
def test_r27_every_run_ends_with_its_failure_and_leaves_no_process(fake, case):
    script, words = HANGS[case]
    runner, marker = fake(script)
    with pytest.raises(TerraformError) as caught:
        runner.plan()
    assert "terraform plan in aws-us-east-1: " in str(caught.value)
    assert words.removeprefix("Error: ") in str(caught.value)
    assert "\n" not in str(caught.value)
    assert_gone(marker)


def test_r27_a_grandchild_does_not_hold_up_a_run_that_succeeds(fake):
    runner, marker = fake('sleep 300 & echo \'{"a": {"value": 1}}\'')
    assert runner.outputs() == {"a": 1}
    assert_gone(marker)


def test_r27_no_value_of_a_variable_is_in_the_process_list_or_the_logs(fake, tmp_path):
    runner, _ = fake("exit 1")
    with pytest.raises(TerraformError):
        runner.plan(targets=["module.node.aws_instance.gpu[0]"], destroy=True)
    argv = (tmp_path / "argv").read_text()
    assert argv.split() == [
        "plan", "-input=false", "-json", "-out=plan.tfplan", "-lock-timeout=120s", "-destroy",
        "-target=module.node.aws_instance.gpu[0]",
    ]  # fmt: skip
    for path in (runner.directory / ".runs").iterdir():
        assert SECRET not in path.read_text()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_the_operator_set_for_terraform_does_not_change_our_command_lines(fake, monkeypatch):
    runner, _ = fake("env | sort > ../env; exit 1")
    runner.environ = {**runner.environ, "TF_CLI_ARGS_plan": "-destroy", "TF_WORKSPACE": "x", "TF_DATA_DIR": "/x"}
    with pytest.raises(TerraformError):
        runner.plan()
    given_env = (runner.directory.parent / "env").read_text()
    assert "TF_CLI_ARGS" not in given_env
    assert "TF_WORKSPACE" not in given_env
    assert "TF_DATA_DIR" not in given_env
    assert "TF_IN_AUTOMATION=1" in given_env


def test_events_come_while_the_run_goes_on(fake):
    event = {"type": "apply_start", "hook": {"resource": {"addr": "a.b"}, "action": "create"}}
    line = json.dumps(event)
    runner, _ = fake(f"echo 'panic: not json'; echo '{line}'; while [ ! -e ../seen ]; do sleep 0.05; done", Deadlines())
    seen = []

    def on_event(told):
        seen.append(told)
        (runner.directory.parent / "seen").touch()

    runner.on_event = on_event
    runner.apply(Plan(runner.directory / "plan.tfplan", (), outputs=True), Allow.PREPARE)
    assert seen == [{"kind": "apply_start", "address": "a.b", "action": "create", "seconds": 0}]


def test_an_error_in_the_listener_ends_the_run(fake):
    runner, marker = fake('echo \'{"type": "apply_start"}\'; sleep 300', Deadlines(grace_s=0.5))

    def on_event(_told):
        raise KeyboardInterrupt

    runner.on_event = on_event
    with pytest.raises(KeyboardInterrupt):
        runner.plan()
    assert_gone(marker)


def test_a_forbidden_plan_is_never_run_and_is_used_up(fake, tmp_path):
    runner, _ = fake("exit 0")
    file = runner.directory / "plan.tfplan"
    file.touch()
    with pytest.raises(TerraformError, match="refused to release"):
        runner.apply(Plan(file, (Change("aws_x.y", "aws_x", frozenset({"create"})),)), Allow.RELEASE)
    assert not (tmp_path / "argv").exists()
    assert not file.exists()


def test_a_run_finishes_its_work_when_its_controller_is_killed(fake, tmp_path):
    runner, _ = fake("touch ../started; while [ ! -e ../go ]; do sleep 0.05; done; echo out; echo out; touch ../done")
    code = (
        "import sys; from pathlib import Path\n"
        "from provisioner.terraform.provider import Toolchain\n"
        "from provisioner.terraform.runner import Runner\n"
        "Runner(Toolchain((sys.argv[1],)), Path(sys.argv[2])).outputs()\n"
    )
    program = runner.toolchain.terraform[0]
    controller = subprocess.Popen([sys.executable, "-c", code, program, str(runner.directory)], cwd=Path.cwd())
    wait_for(tmp_path / "started")
    controller.kill()
    controller.wait()
    (tmp_path / "go").touch()
    wait_for(tmp_path / "done")


def wait_for(path, within_s=60.0):
    end = time.monotonic() + within_s
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.02)


# --- the real program, without a provider -----------------------------------------------------------------------------


@pytest.fixture
def plain(tmp_path):
    """Return a Runner of the real Terraform in a stack that needs no provider."""
    stack = tmp_path / "plain"
    stack.mkdir()
    return Runner(Toolchain((str(TERRAFORM),), {"TF_CLI_CONFIG_FILE": os.devnull}), stack)


@needs_terraform
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.one_of(
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
            st.text(alphabet="$%{}\"'\\`()\n\r\t ~#ab", max_size=12),
            st.sampled_from(["${var.x}", "$${a}", "$$${b}", "%{if true}x%{endif}", "%%{", '"}', "\\u0041", "\x7f\x01"]),
        ),
        min_size=30,
        max_size=60,
    )
)
def test_terraform_itself_reads_hostile_text_back_as_it_was(plain, words):
    for old in ("terraform.tfstate", "terraform.tfstate.backup"):
        (plain.directory / old).unlink(missing_ok=True)
    (plain.directory / "main.tf").write_text(
        f'variable "words" {{\n  type = list(string)\n}}\noutput "literal" {{\n  value = {hcl(words)}\n}}\n'
        f'output "keyed" {{\n  value = {hcl(dict.fromkeys(words, 1))}\n}}\noutput "given" {{\n  value = var.words\n}}\n'
    )
    (plain.directory / "terraform.tfvars.json").write_text(json.dumps({"words": words}, ensure_ascii=False))
    plain.init()
    plain.apply(plain.plan(), Allow.PREPARE)
    outputs = plain.outputs()
    normal = [unicodedata.normalize("NFC", word) for word in words]
    assert outputs["literal"] == normal
    assert outputs["given"] == normal
    assert set(outputs["keyed"]) == set(normal)


SLOW_THING = """
resource "terraform_data" "slow" {
  provisioner "local-exec" {
    command = "touch ../started; while [ ! -e ../go ]; do sleep 0.05; done"
  }
}
resource "terraform_data" "other" {
  input = 1
}
"""


@needs_terraform
def test_a_lock_whose_owner_was_killed_does_not_stop_the_next_run(plain, tmp_path):
    (plain.directory / "main.tf").write_text(SLOW_THING)
    plain.init()
    argv = [*plain.toolchain.terraform, "apply", "-auto-approve", "-input=false"]
    owner = subprocess.Popen(argv, cwd=plain.directory, stdout=subprocess.DEVNULL, start_new_session=True)
    wait_for(tmp_path / "started")
    lock = plain.directory / ".terraform.tfstate.lock.info"
    assert lock.exists()
    plain.deadlines = Deadlines(lock_s=0)
    with pytest.raises(TerraformError, match="Error acquiring the state lock") as caught:
        plain.plan()
    assert "another Terraform run works on this stack" in caught.value.hint
    os.killpg(owner.pid, signal.SIGKILL)
    owner.wait()
    assert lock.exists()
    (tmp_path / "go").touch()
    plain.apply(plain.plan(), Allow.PREPARE)
    assert set(plain.state()) == {"terraform_data.slow", "terraform_data.other"}
    plain.destroy()
    assert plain.state() == {}


@needs_terraform
def test_a_lock_of_a_run_whose_controller_was_killed_is_recovered(plain, tmp_path):
    (plain.directory / "main.tf").write_text(SLOW_THING)
    plain.init()
    code = (
        "import os, sys; from pathlib import Path\n"
        "from provisioner.terraform.plan import Allow\n"
        "from provisioner.terraform.provider import Toolchain\n"
        "from provisioner.terraform.runner import Runner\n"
        "runner = Runner(Toolchain((sys.argv[1],), {'TF_CLI_CONFIG_FILE': os.devnull}), Path(sys.argv[2]))\n"
        "runner.apply(runner.plan(), Allow.PREPARE)\n"
    )
    argv = [sys.executable, "-c", code, *plain.toolchain.terraform, str(plain.directory)]
    controller = subprocess.Popen(argv, cwd=Path.cwd())
    wait_for(tmp_path / "started")
    plain.deadlines = Deadlines(lock_s=0, grace_s=5.0)
    with pytest.raises(TerraformError, match="Error acquiring the state lock"):
        plain.plan()
    controller.kill()
    controller.wait()
    plan = plain.plan()
    assert "terraform_data.other" in plain.state()
    (tmp_path / "go").touch()
    plain.apply(plan, Allow.PREPARE)
    assert set(plain.state()) == {"terraform_data.slow", "terraform_data.other"}
    assert list((plain.directory / ".runs").glob("*.owner")) == []


@needs_terraform
def test_a_deadline_lets_terraform_note_what_it_has_made(plain, tmp_path):
    (plain.directory / "main.tf").write_text(SLOW_THING)
    plain.init()
    plain.deadlines = Deadlines(apply_s=2.0, grace_s=10.0)
    plan = plain.plan()
    with pytest.raises(TerraformError, match="stopped after 2 s"):
        plain.apply(plan, Allow.PREPARE)
    assert "terraform_data.other" in plain.state()
    assert not (plain.directory / ".terraform.tfstate.lock.info").exists()
    for name in ("terraform.tfstate", ".runs/apply.out"):
        assert stat.S_IMODE((plain.directory / name).stat().st_mode) == 0o600


@needs_terraform
def test_a_state_file_that_is_no_state_file_is_named(plain):
    (plain.directory / "terraform.tfstate").write_text("{half")
    with pytest.raises(TerraformError, match="not a state file") as caught:
        plain.state()
    assert "terraform.tfstate.backup" in caught.value.hint
