"""Machines of the sandbox: real process trees that end when they should, whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from provisioner.sandbox.machines import Machines, marked


def eventually(true: Callable[[], bool], for_s: float = 15.0) -> bool:
    until = time.monotonic() + for_s
    while not true():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    made = Machines(tmp_path, grace_s=1.0)
    yield made
    made.stop_all()
    assert not made.live()


def start(machines: Machines, script: str, name: str = "i-1", **options: bool) -> threading.Event:
    off = threading.Event()
    machines.start(name, f"#!/bin/bash\n{script}\n", {"EXTRA": "yes"}, lambda _: off.set(), **options)
    return off


def running(pattern: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if pattern.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def test_user_data_run_in_a_world_of_their_own(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary")
    start(machines, "env; pwd; python -c 'import numpy; print(\"numpy\", numpy.__version__)'; echo ready")
    assert eventually(lambda: "ready" in machines.console("i-1"))
    console = machines.console("i-1")
    assert "canary" not in console
    assert "EXTRA=yes" in console
    assert "numpy " in console
    directory = machines.directory("i-1")
    for name in ("HOME", "TMPDIR", "FAILOVER_HOME"):
        assert f"{name}={directory}/" in console
    assert directory.stat().st_mode & 0o777 == 0o700
    assert machines.alive("i-1")  # a machine idles when its boot script has ended


def test_kill_leaves_nothing_however_it_hides(machines: Machines, tmp_path: Path) -> None:
    """Own sessions, orphans, closed environments, ignored signals."""
    word = f"hidden-{tmp_path.name}"
    script = f"""
trap '' TERM HUP
hide() {{ exec -a {word} sleep 600; }}
(setsid bash -c 'exec -a {word} sleep 600' &)
env -i setsid bash -c 'trap "" TERM; exec -a {word} sleep 600' &
(env -i bash -c '(exec -a {word} sleep 600) & disown; exit' &)
hide
"""
    off = start(machines, script)
    assert eventually(lambda: len(running(word)) == 4)
    machines.kill("i-1")
    assert not running(word)
    assert not marked(machines.directory("i-1"))
    assert not machines.alive("i-1")
    assert not off.is_set()  # the plug was pulled; the guest did not shut down
    machines.kill("i-1")


def test_machines_of_two_sandboxes_may_have_one_name(machines: Machines, tmp_path: Path) -> None:
    """AutoDL's emulator counts its ids from the same seed in every sandbox of a host."""
    other = Machines(tmp_path / "other")
    try:
        for sandbox in (machines, other):
            sandbox.start("pro-1", "#!/bin/bash\nsleep 600\n", {}, lambda _: None)
        machines.kill("pro-1")
        assert not machines.alive("pro-1")
        assert other.alive("pro-1")
        assert marked(other.directory("pro-1"))
    finally:
        other.stop_all()


@pytest.mark.parametrize(
    "command", ["shutdown -h now", "shutdown now", "poweroff", "halt", "shutdown -P +0", "poweroff -f"]
)
def test_a_guest_switches_itself_off(machines: Machines, command: str) -> None:
    off = start(machines, f"setsid sleep 600 & {command}; sleep 600")
    assert off.wait(15)
    assert not machines.alive("i-1")
    assert not marked(machines.directory("i-1"))


def test_a_shutdown_in_time_can_be_called_off(machines: Machines) -> None:
    off = start(machines, "shutdown -h +60; shutdown; shutdown -c; echo done")
    assert eventually(lambda: "done" in machines.console("i-1"))
    assert machines.alive("i-1")
    assert not off.is_set()


def test_processes_get_their_term_before_the_end(machines: Machines, tmp_path: Path) -> None:
    script = (
        f"trap 'echo term > {tmp_path}/last; exit' TERM; (sleep 0.1; shutdown -h now) & while :; do sleep 0.05; done"
    )
    assert start(machines, script).wait(15)
    assert (tmp_path / "last").read_text() == "term\n"


def test_a_reboot_runs_the_boot_scripts_and_not_the_user_data(machines: Machines) -> None:
    start(machines, "echo first; echo 'echo again' > $FAILOVER_SANDBOX_PER_BOOT/10; reboot; sleep 600")
    assert eventually(lambda: "again" in machines.console("i-1"))
    assert machines.console("i-1").count("first") == 1
    assert machines.alive("i-1")


def test_a_reboot_runs_the_user_data_where_asked(machines: Machines) -> None:
    start(machines, "echo boot; [ -e once ] || { touch once; reboot; sleep 600; }", rerun_on_reboot=True)
    assert eventually(lambda: machines.console("i-1").count("boot") == 2)


def test_a_stopped_machine_starts_again_with_its_disk(machines: Machines) -> None:
    assert start(
        machines, "echo first > kept; echo 'cat kept' > $FAILOVER_SANDBOX_PER_BOOT/10; poweroff; sleep 600"
    ).wait(15)
    machines.start("i-1", None, {}, lambda _: None)
    assert eventually(lambda: "first" in machines.console("i-1"))


def test_machines_die_with_the_process_that_started_them(tmp_path: Path) -> None:
    """kill -9 of the sandbox, so nothing of it can tidy up."""
    word = f"orphan-{tmp_path.name}"
    code = (
        "import sys, time; from pathlib import Path; from provisioner.sandbox.machines import Machines\n"
        "Machines(Path(sys.argv[1])).start('i-1', sys.argv[2], {}, print); time.sleep(600)"
    )
    script = f"#!/bin/bash\nenv -i setsid bash -c 'exec -a {word} sleep 600' &\nsleep 600\n"
    owner = subprocess.Popen([sys.executable, "-c", code, str(tmp_path), script])
    try:
        assert eventually(lambda: len(running(f"{word}\0")) == 1)
    finally:
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
    assert eventually(lambda: not running(f"{word}\0"))
