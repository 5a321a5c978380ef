"""A run's report for people: a timeline and the figures."""

from __future__ import annotations

import shutil
import textwrap
import time
from collections.abc import Mapping, Sequence
from typing import Any

import click

from provisioner.cli.output import print_table
from provisioner.cli.traffic import copy_lines, egress_words, size_words

WIDTH = 100
"""Of a report where no terminal tells one."""
_LABEL = 14
CLOCK_TOLD_S = 5.0


def print_report(report: Mapping[str, Any]) -> None:
    """Print the report on stdout."""
    rows: list[Sequence[object]] = []
    for placement in report["placements"]:
        timed = [(attempt["at"], _attempt_row(placement["epoch"], attempt)) for attempt in placement["attempts"]]
        timed.append((placement["claimed_at"], _placement_row(placement)))
        rows += [row for _, row in sorted(timed, key=lambda one: one[0])]  # home may be tried while a machine trains
    rows += [_attempt_row("", attempt) for attempt in report["refused"]]
    print_table(
        ["epoch", "from", "where", "market", "price/h", "machine for", "steps", "outcome"], rows, width=_width()
    )
    click.echo("")
    for label, value in _figures(report):
        _print_figure(label, value)


def print_drill(report: Mapping[str, Any]) -> None:
    """Print a drill's report: the run, what played the cloud, and what a drill cannot prove."""
    print_report(report)
    terraform = report["drill"]["terraform"]
    _print_figure("terraform", terraform.get("note") or "-")
    _print_figure("machines", report["drill"].get("machines", "processes"))
    _print_figure("not proved", "; ".join(report["drill"]["cannot_prove"]))


def _width() -> int:
    return shutil.get_terminal_size((WIDTH, 0)).columns


def _print_figure(label: str, value: str) -> None:
    indent = " " * _LABEL
    lines = textwrap.wrap(
        value, max(WIDTH // 2, _width()), initial_indent=f"{label:<{_LABEL}}", subsequent_indent=indent,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    click.echo("\n".join(lines))


def _figures(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    cost = ", ".join(f"{amount:.4f} {name}" for name, amount in report["cost_estimate"]["by_currency"].items())
    unpriced = report["cost_estimate"]["unpriced"]
    figures = [
        ("result", f"{report['result']}" + (f": {report['reason']}" if report["reason"] else "")),
        ("final step", _or_dash(report["final_step"])),
        ("restored step", _or_dash(report["restored_step"])),
        ("steps lost", str(report["steps_lost"])),
        ("recovery", "-" if report["recovery_seconds"] is None else f"{report['recovery_seconds']:.1f} s"),
        (
            "cost",
            ("at most " if report["cost_estimate"]["upper_bound"] else "")
            + (cost or "-")
            + (f" + unknown: {', '.join(unpriced)}" if unpriced else ""),
        ),
        *(("moved", _move_words(move)) for move in report.get("moves", [])),
        *_clocks(report),
        *_traffic(report),
        *_refusals(report),
        ("left behind", "nothing" if not report["leaked"] else "; ".join(report["leaked"])),
    ]
    if "model_identical" in report:
        figures.append(
            ("model", "equals the uninterrupted run, bit for bit" if report["model_identical"] else "DIFFERS")
        )
    return figures


def _move_words(move: Mapping[str, Any]) -> str:
    cost = move["overlap_cost"]
    words = "" if cost is None else f", which cost {cost['amount']:.4f} {cost['currency']}"
    way = f"{move['from']} -> {move['to']}"
    return f"{way}: {move['steps_lost']} steps lost, {move['overlap_seconds']:.0f} s of both{words}"


def _clocks(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the machines whose clocks were wrong by more than an event tells of. Reports of old do not say."""
    wrong = [(row["node"], row.get("clock_ahead", 0.0)) for row in report["placements"]]
    return [
        ("clock", f"{node}: {abs(ahead):.0f} s {'ahead' if ahead > 0 else 'behind'}, which is taken out of all times")
        for node, ahead in wrong
        if abs(ahead) > CLOCK_TOLD_S
    ]


def _traffic(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return where copies are and where checkpoints came from, with what that costs. Reports of old have neither."""
    prices_of = report.get("egress_prices_of", "")
    lines = [("copies", line) for line in copy_lines(report.get("replicas", []), prices_of)]
    for placement in report["placements"]:
        source = placement.get("restored_from")
        if source and source["bytes"]:
            cost = egress_words(source["egress"], prices_of)
            lines.append(("restored from", f"{source['uri']}: {size_words(source['bytes'])} fetched, {cost}"))
    return lines


def _refusals(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what an operator can do about refusals. Reports of old have less."""
    rows = [("over quota", f"{row['message']}; {row['advice']}") for row in report.get("over_quota", [])]
    rows += [
        ("unknown code", f"{row['cloud']} {row['code']}, {row['count']} x; please report it: {row['message']}")
        for row in report.get("unknown_codes", [])
    ]
    rows += [
        ("surplus", f"{_where(row)}: given back after {row['seconds']:.0f} s") for row in report.get("surplus", [])
    ]
    rows += [
        ("unanswered", f"{row['cloud']} {row['region']} {row['node'] or '?'}: its claim had no answer, {_for(row)}")
        for row in report.get("unanswered", [])
    ]
    rows += [("what to do", words) for words in dict.fromkeys(row["advice"] for row in report["refused"]) if words]
    return rows


def _for(row: Mapping[str, Any]) -> str:
    """Say how long a machine was there, and what that has cost."""
    cost = row["cost"]
    words = "of unknown cost" if cost is None else f"at most {cost['amount']:.4f} {cost['currency']}"
    if row["node"]:
        return f"given back after {row['seconds']:.0f} s, {words}"
    return f"it may be there, since {row['seconds']:.0f} s, {words}"


def _placement_row(placement: Mapping[str, Any]) -> Sequence[object]:
    first, last = placement["restored_step"], placement["last_step"]
    outcome = placement["ended"] + (f": {placement['reason']}" if placement["reason"] else "")
    return [
        placement["epoch"],
        time.strftime("%H:%M:%S", time.localtime(placement["claimed_at"])),
        _where(placement),
        placement["market"],
        _price(placement),
        f"{placement['seconds']:.0f} s",
        f"{first or 0} to {_or_dash(last)}",
        outcome,
    ]


def _attempt_row(epoch: object, attempt: Mapping[str, Any]) -> Sequence[object]:
    outcome = f"{attempt['failure']} ({attempt['code']})" if attempt["failure"] else attempt["message"]
    outcome += f": {attempt['advice']}" if attempt["failure"] == "no_capacity" and attempt["advice"] else ""
    at = time.strftime("%H:%M:%S", time.localtime(attempt["at"]))
    return [epoch, at, _where(attempt), attempt["market"], _price(attempt), "", "", outcome]


def _where(row: Mapping[str, Any]) -> str:
    return " ".join(str(part) for part in (row["cloud"], row["zone"] or row["region"], row["instance_type"]) if part)


def _price(row: Mapping[str, Any]) -> str:
    known, bound = row["price_per_hour"], row["price_at_most"]
    if known is None and bound is None:
        return "unknown"
    price = known or bound
    return ("" if known else "at most ") + f"{price['amount']:g} {price['currency']}"


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)
