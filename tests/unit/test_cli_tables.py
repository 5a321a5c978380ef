"""Tables for people: what they hold is never cut, and a report fits a page where no terminal tells a width."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest

from provisioner.cli.output import print_table
from provisioner.cli.report import print_drill
from provisioner.controller.records import Begun, Claimed, Finished, Placement, Released, Watched
from provisioner.controller.report import build_report
from provisioner.model import Ending, Failure, FailureKind, Gpu, JobRef, Market, Money, Node, Offer, Scope

JOB = JobRef("digits", "00000001")


def report():
    """Build a drill's report: a refusal with a long code, then a machine."""
    where = Offer("aws", "us-east-1", "us-east-1b", "g4dn.xlarge", Gpu("T4", 1, 16), Market.SPOT, None)
    at_most = Money(Decimal("0.526"), "USD")
    sold_out = Failure(
        FailureKind.NO_CAPACITY, Scope.OFFER, "InsufficientInstanceCapacity", "none", "try another zone or type"
    )
    refused = Claimed(where, 0.0, None, sold_out, at_most)
    node = Node("i-1", where, JOB, 1, "token", claimed_at=0.0)
    watched = Watched(Ending.LOST, "the cloud says that the machine is gone", 45.0, 45.0, 9.0, 40, 100)
    one = Placement(1, (refused,), Claimed(where, 0.0, node, None, at_most), node, watched, Released(45.0))
    made = build_report(JOB, Begun(0, 1), [one], [], Ending.COMPLETED, "", Finished(100, ()))
    note = "the sandbox's stand-in for hashicorp/aws: real Terraform and modules, but not the official provider"
    proof = ["real capacity, prices and quotas", "how long a real machine takes to boot", "a real GPU and its driver"]
    return {**json.loads(json.dumps(made)), "drill": {"terraform": {"note": note}, "cannot_prove": proof}}


@pytest.mark.parametrize(("columns", "widest"), [(None, 100), ("130", 130)])
def test_a_report_on_a_pipe_fits_a_page_and_no_word_of_it_is_cut(capsys, monkeypatch, columns, widest):
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    print_drill(report())
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= widest
    words = set(text.split())
    assert {"(InsufficientInstanceCapacity):", "us-east-1b", "g4dn.xlarge", "driver"} <= words
    assert {"boot;", "gone", "0.526"} <= words


def test_other_tables_on_a_pipe_keep_a_line_for_each_row(capsys):
    print_table(["what", "words"], [["a", "word " * 30], ["b", "x" * 250]])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert "x" * 250 in lines[2]


def test_home_tried_while_a_machine_trains_stands_below_that_machine(capsys):
    made = report()
    attempts = made["placements"][0]["attempts"]
    attempts.append({**attempts[0], "at": 60.0, "cloud": "autodl", "zone": "", "region": "westDC3"})
    print_drill(made)
    text = capsys.readouterr().out
    assert text.index("(InsufficientInstanceCapacity)") < text.index("lost") < text.index("autodl")
