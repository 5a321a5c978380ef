"""Whoever reads the output of a command may go away: what it does, and its exit code, do not depend on that."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from provisioner.cli import main, streams
from provisioner.cli.timeline import printer


class Gone:
    def write(self, _text):
        raise BrokenPipeError(32, "Broken pipe")

    flush = close = lambda self: None


def test_events_are_told_to_nobody_as_well(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Gone())
    printer()({"kind": "begin", "job": "digits", "uid": "1", "epoch": 1})


@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), SystemExit(1)])
def test_a_report_that_nobody_reads_leaves_the_exit_code_alone(error):
    with streams.unread():
        raise error


@pytest.mark.parametrize(
    "arguments", [["catalog", "ls"], ["catalog", "ls", "--json"], ["config", "schema"], ["status"]]
)
def test_a_reader_that_went_away_is_no_failed_job(arguments):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "provisioner.cli", *arguments]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert done.returncode == 0
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("option", ["--min-vram", "--usd-cny"])
@pytest.mark.parametrize("number", ["nan", "inf", "1e400"])
def test_a_number_that_is_none_is_refused(option, number, capsys):
    assert main(["catalog", "ls", option, number, "--max-price", "1"]) == 2
    assert "is not a finite number" in capsys.readouterr().err
