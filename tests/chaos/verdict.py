"""What must hold after a storm. The witnesses are the emulators: what they ran, what they charged, what they stored."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from provisioner.controller import ledger
from provisioner.sandbox.drill import JOB
from provisioner.telemetry import events
from tests.chaos.storm import Weather

UNRECORDED_S = 60.0
"""A machine whose claim is under way is in no record yet; a controller that lives notes or ends it within this time."""
_MANIFEST = re.compile(r"/checkpoints/(\d{12})-(\d{6})\.json$")
_CONTAINER = re.compile(r"^([0-9a-f]{10})-[0-9a-f]{10}-[0-9a-f]{8}$")
"""A machine of an elastic deployment: records and bills have the deployment, whose id it begins with."""
_EPOCH = re.compile(r"-e(\d+)\b")
_UNSURE = {"network", "unknown", "throttled"}
"""Refusals after which there may be a machine all the same (docs/guarantees.md: the very first seconds of a claim)."""


def broken(report: Mapping[str, Any], weather: Weather) -> list[str]:
    """Return one line for each promise that was not kept."""
    return [
        *_the_end(report),
        *_commits(weather),
        *_machines_of_an_epoch(weather),
        *_unrecorded(weather),
        *_money(weather),
        *_times(weather),
    ]


def _the_end(report: Mapping[str, Any]) -> Iterator[str]:
    if report["result"] != "completed" or report["exit_code"] != 0:
        yield f"the job ended {report['result']} with exit code {report['exit_code']}"
    if report["leaked"]:
        yield f"left behind: {report['leaked']}"
    if not report.get("model_identical"):
        yield "the final weights are not those of the uninterrupted run"


def _commits(weather: Weather) -> Iterator[str]:
    """After a newer epoch's first commit an older one may end the one write that was under way, and no more."""
    newest, late = 0, defaultdict[int, int](int)
    for write in weather.writes:
        found = _MANIFEST.search(write["path"])
        if found is None or write["method"] != "PUT":
            continue
        epoch = int(found[2])
        newest = max(newest, epoch)
        if epoch < newest:
            late[epoch] += 1
    held = any(blow.kind in {"stop", "cut"} for _, blow, _ in weather.blows)
    for epoch, count in late.items():
        if count > (1 if held else 0):
            yield f"epoch {epoch} committed {count} checkpoints after a newer epoch had committed"


def _machines_of_an_epoch(weather: Weather) -> Iterator[str]:
    told = list(events.read(weather.folder / "state" / "jobs" / JOB / "events.jsonl"))
    unsure = {event.get("epoch") for event in told if event["kind"] == "refused" and event.get("failure") in _UNSURE}
    by_epoch: dict[int, list[tuple[str, Mapping[str, Any]]]] = defaultdict(list)
    for machine, seen in weather.sightings.items():
        found = _EPOCH.search(seen["text"])
        if found is None:
            yield f"machine {machine} carries no epoch: {seen}"
        else:
            by_epoch[int(found[1])].append((machine, seen))
    for epoch, machines in by_epoch.items():
        machines.sort(key=lambda one: one[1]["first"])
        for (one, before), (other, after) in pairwise(machines):
            if after["first"] < before["last"] and epoch not in unsure:
                yield f"epoch {epoch} had two machines at a time: {one} and {other}"


def _unrecorded(weather: Weather) -> Iterator[str]:
    """A machine that no event names lives no longer than a controller lives on."""
    told = "\n".join(str(event) for event in events.read(weather.folder / "state" / "jobs" / JOB / "events.jsonl"))
    for machine, seen in weather.sightings.items():
        if _recorded(machine) in told:
            continue
        for life in weather.lives:
            alone = min(seen["last"], life.ended) - max(seen["first"], life.began)
            if alone > UNRECORDED_S:
                yield f"machine {machine} was without a record for {alone:.0f} s of a living controller"


def _times(weather: Weather) -> Iterator[str]:
    """What is told happened while a controller ran, whatever its clock was set to; each starts with a right one."""
    first, last = weather.lives[0].began - 1, weather.lives[-1].ended + 1
    for event in events.read(weather.folder / "state" / "jobs" / JOB / "events.jsonl"):
        if not first <= event["time"] <= last:
            yield f"told for {event['time']:.0f}, while controllers ran from {first:.0f} to {last:.0f}: {event}"
    for bill in ledger.bills(weather.folder / "state" / "jobs" / JOB):
        if bill.begun < first or (bill.ended or last) > last:
            yield f"the bill of {bill.node} is from {bill.begun:.0f} to {bill.ended}, beyond {first:.0f} to {last:.0f}"


def _recorded(machine: str) -> str:
    """Return the id that a controller knows a machine by."""
    found = _CONTAINER.match(machine)
    return machine if found is None else found[1]


def _money(weather: Weather) -> Iterator[str]:
    bills = ledger.bills(weather.folder / "state" / "jobs" / JOB)
    known = {bill.node: bill for bill in bills}
    for machine, seen in weather.sightings.items():
        bill = known.get(_recorded(machine))
        if bill is None:
            if seen["last"] - seen["first"] > UNRECORDED_S:
                yield f"machine {machine} ran for {seen['last'] - seen['first']:.0f} s and is in no bill"
            continue
        if bill.ended is None:
            yield f"the bill of {machine} was never closed"
        elif bill.begun > seen["first"] + 1 or bill.ended < seen["last"] - 1:
            yield f"the bill of {machine} is from {bill.begun:.1f} to {bill.ended:.1f}; it ran {seen}"
    charged = (weather.assets[0] - weather.assets[-1]) / 1000 if weather.assets else 0.0
    noted = sum(float(bill.cost(bill.ended or bill.begun) or 0) for bill in bills if bill.cloud == "autodl")
    if charged > noted + 0.002:
        yield f"AutoDL charged {charged:.4f} CNY; the ledger has {noted:.4f}"
