"""Ctrl-C ends a command with exit code 130 and one word, also where it falls between its lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from provisioner import assets

CHILD = """
import atexit, signal, sys, weakref

how, place = sys.argv[1:3]
del sys.argv[1:3]


def press(*_):
    signal.raise_signal(signal.SIGINT)


class Part:
    __set_name__ = press


class Place:
    def find_spec(self, name, path=None, target=None):
        if name != place:
            return
        sys.meta_path.remove(self)
        if how == "at once":
            press()
        elif how == "in a callback":
            part = Part()
            self.seen = weakref.ref(part, press)
            del part
        elif how == "in a class":
            type("Whole", (), {"part": Part()})


sys.meta_path.insert(0, Place())
if how == "at the end":
    atexit.register(press)
from provisioner.cli import main

sys.exit(main())
"""


@pytest.mark.parametrize(
    ("how", "place"),
    [
        ("at once", "click"),
        ("at once", "provisioner.cli.command"),
        ("at once", "provisioner.cli.plan"),
        ("at once", "pydantic"),
        ("at once", "provisioner.controller.survey"),
        ("in a callback", "click"),
        ("in a callback", "pydantic"),
        ("in a class", "pydantic"),
        ("at the end", ""),
    ],
)
def test_ctrl_c_is_exit_code_130_wherever_it_falls(tmp_path, how, place):
    file = str(assets.path("examples/t4-or-v100.yaml"))
    environ = {**os.environ, "FAILOVER_STATE_DIR": str(tmp_path), "FAILOVER_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", CHILD, how, place, "plan", file, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    assert done.returncode == 130, done.stderr
    if how == "at the end":
        assert json.loads(done.stdout)["offers"]
        assert done.stderr == ""
    else:
        assert done.stderr.strip() == "interrupted"
        assert done.stdout == ""
