"""Reading a job's log: over placements, from the end, and while it grows."""

from __future__ import annotations

from collections import Counter

import pytest
import zstandard

from provisioner.checkpoint import layout
from provisioner.checkpoint.store import open_store
from provisioner.controller.training_log import AT_ONCE, TrainingLog
from provisioner.errors import Unreachable


class Store:
    """A store in memory that counts what it is asked, and is away when told."""

    def __init__(self) -> None:
        self.real = open_store("memory://").at("digits")
        self.asked: Counter[str] = Counter()
        self.away = 0

    def __getattr__(self, name):
        def call(*args):
            self.asked[name] += 1
            if self.away:
                self.away -= 1
                raise Unreachable("no answer")
            return getattr(self.real, name)(*args)

        return call

    def part(self, epoch: int, number: int, *lines: str) -> None:
        text = "".join(f"{line}\n" for line in lines).encode()
        self.real.put(layout.log_part(epoch, number), zstandard.compress(text))


class Scenes:
    """Each wait lets the next thing happen; after the last the job has ended."""

    def __init__(self, *scenes) -> None:
        self.left = list(scenes)
        self.now = 0.0
        self.said: list[str] = []

    def wait(self, seconds: float) -> None:
        self.now += seconds
        if self.left:
            self.left.pop(0)()

    def ended(self) -> bool:
        return not self.left

    def log(self, store: Store) -> TrainingLog:
        return TrainingLog(
            store,  # type: ignore[arg-type]
            say=self.said.append,
            wait=self.wait,
            monotonic=lambda: self.now,
            patient=True,
        )


def nothing() -> None:
    """Let time pass."""


def words(pieces) -> list[tuple[int, str]]:
    return [(piece.epoch, line.decode()) for piece in pieces if piece is not None for line in piece.lines]


@pytest.fixture
def store() -> Store:
    return Store()


def test_it_follows_from_one_placement_to_the_next_and_misses_no_last_word(store):
    store.part(1, 0, "a")
    late = [lambda: store.part(1, 1, "b"), lambda: (store.part(2, 0, "d"), store.part(1, 2, "c"))]
    scenes = Scenes(*late, *[nothing] * 10, lambda: store.part(2, 1, "e"), nothing)
    log = scenes.log(store)
    there = log.epochs()
    seen = words(log.so_far(there)) + words(log.follow(there, scenes.ended))
    assert seen == [(1, "a"), (1, "b"), (1, "c"), (2, "d"), (2, "e")]


def test_a_store_that_is_away_is_told_of_once_and_costs_no_line(store):
    store.part(1, 0, "a")

    def away() -> None:
        store.away = 6
        store.part(1, 1, "b")

    scenes = Scenes(away, *[nothing] * 12, lambda: store.part(1, 2, "c"))
    log = scenes.log(store)
    assert words(log.follow([1], scenes.ended)) == [(1, "a"), (1, "b"), (1, "c")]
    assert [said.split(" (")[0] for said in scenes.said] == ["the store does not answer", "the store answers again"]


def test_waiting_costs_few_lists_a_minute(store):
    store.part(1, 0, "a")
    scenes = Scenes(*[nothing] * 300)
    words(scenes.log(store).follow([1], scenes.ended))
    minutes = scenes.now / 60
    assert minutes > 9
    assert (store.asked["folders"] + store.asked["objects"]) / minutes < 5


def test_one_placement_alone_ends_with_it(store):
    store.part(1, 0, "a")
    scenes = Scenes(nothing, lambda: store.real.put(layout.owner(2), b"{}"), *[nothing] * 1000)
    assert words(scenes.log(store).follow([1], scenes.ended, only=1)) == [(1, "a")]
    assert len(scenes.left) > 900


def test_the_last_lines_are_found_without_reading_what_is_before(store):
    for epoch in (1, 2):
        for number in range(100):
            store.part(epoch, number, f"{epoch}/{number}/x", f"{epoch}/{number}/y")
    log = TrainingLog(store, say=print)  # type: ignore[arg-type]
    assert words(log.so_far([1, 2], tail=3)) == [(2, "2/98/y"), (2, "2/99/x"), (2, "2/99/y")]
    assert store.asked["get"] <= 2 * AT_ONCE
    assert words(TrainingLog(store, say=print).so_far([1, 2], tail=201))[0] == (1, "1/99/y")  # type: ignore[arg-type]
    scenes = Scenes(nothing)
    log = scenes.log(store)
    assert words(log.so_far([1, 2], tail=0)) == []
    assert words(log.follow([1, 2], scenes.ended)) == [], "what was passed over does not come later"


def test_parts_stay_in_order_beyond_a_million_and_a_damaged_one_is_told(store):
    for number in (999_999, 1_000_000, 1_000_001):
        store.part(1, number, str(number))
    store.real.put(layout.log_part(1, 1_000_000), b"no zstd")
    scenes = Scenes()
    assert words(scenes.log(store).so_far([1])) == [(1, "999999"), (1, "1000001")]
    assert "1000000.txt.zst is damaged" in scenes.said[0]
