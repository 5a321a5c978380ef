"""Which checkpoints stay. The choice is pure; the removal is done beside damage, other jobs and protected ones."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.checkpoint import layout
from provisioner.checkpoint.layout import Position
from provisioner.checkpoint.manifest import Manifest, encode
from provisioner.checkpoint.restore import committed
from provisioner.checkpoint.retention import Best, Policy, choose, prune
from provisioner.checkpoint.store import Store, open_store
from provisioner.model import JobRef

JOB = JobRef("digits", "1a2b3c4d")


def at(*steps: int, epoch: int = 1) -> list[tuple[Position, dict[str, object]]]:
    return [(Position(epoch, step), {}) for step in steps]


def steps(kept: set[Position]) -> list[int]:
    return sorted(position.step for position in kept)


def test_the_last_ones_stay_and_a_higher_epoch_is_newer_than_a_higher_step():
    found = [*at(10, 20, 30), *at(12, epoch=2)]
    assert choose(found, Policy(2)) == {Position(2, 12), Position(1, 30)}


def test_of_each_stretch_of_steps_the_first_stays():
    assert steps(choose(at(50, 90, 100, 150, 210, 290, 310), Policy(1, every=100))) == [50, 100, 210, 310]


def test_of_two_firsts_the_newer_stays():
    kept = choose([*at(100, 150), *at(100, 160, epoch=2)], Policy(1, every=100))
    assert kept == {Position(2, 100), Position(2, 160)}


def test_the_best_stay_and_of_equal_ones_the_newer():
    values = {10: 0.5, 20: 0.1, 30: 0.3, 40: 0.1, 50: 0.9}
    found = [(Position(1, step), {"loss": value}) for step, value in values.items()]
    assert steps(choose(found, Policy(1, best=Best("loss", "min")))) == [40, 50]
    assert steps(choose(found, Policy(1, best=Best("loss", "min", 3)))) == [20, 30, 40, 50]
    assert steps(choose(found, Policy(1, best=Best("loss", "max", 2)))) == [10, 50]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None, "0", True, [0], {}])
def test_what_is_no_number_is_never_the_best(value):
    found = [(Position(1, 1), {"loss": value}), (Position(1, 2), {"loss": 10**400}), (Position(1, 3), {})]
    for mode in ("min", "max"):
        assert steps(choose(found, Policy(1, best=Best("loss", mode, 5)))) == [2, 3]


@pytest.mark.parametrize("wrong", [{"last": 0}, {"last": 1, "every": 0}, {"last": 1, "best": Best("m", "min", 0)}])
def test_a_policy_that_keeps_nothing_is_refused(wrong):
    with pytest.raises(ValueError, match="Policy"):
        Policy(**wrong)


POSITIONS = st.builds(Position, st.integers(1, 4), st.integers(0, 60))
METADATA = st.one_of(
    st.just({}), st.fixed_dictionaries({"loss": st.one_of(st.integers(-3, 3), st.floats(width=16), st.none())})
)
CHECKPOINTS = st.dictionaries(POSITIONS, METADATA, max_size=40)
POLICIES = st.builds(
    Policy,
    st.integers(1, 5),
    st.none() | st.integers(1, 30),
    st.none() | st.builds(Best, st.just("loss"), st.sampled_from(["min", "max"]), st.integers(1, 4)),
)


@given(CHECKPOINTS, POLICIES)
def test_every_rule_keeps_its_own_and_nothing_else_stays(found, policy):
    kept = choose(found.items(), policy)
    newest = sorted(found)[-policy.last :]
    stretches = {position.step // policy.every for position in found} if policy.every else set()
    firsts = {
        max(p for p in found if p.step == min(q.step for q in found if q.step // (policy.every or 1) == stretch))
        for stretch in stretches
    }
    best: set[Position] = set()
    if policy.best:
        sign = 1 if policy.best.mode == "max" else -1
        numbers = {
            p: sign * m["loss"] for p, m in found.items() if m.get("loss") is not None and math.isfinite(m["loss"])
        }
        best = {p for p in numbers if sum((numbers[q], q) > (numbers[p], p) for q in numbers) < policy.best.count}
    assert kept == {*newest, *firsts, *best}


@given(CHECKPOINTS, CHECKPOINTS, POLICIES)
def test_what_was_removed_before_is_never_missed_later(earlier, later, policy):
    """To prune after each commit gives what one look at everything at the end would."""
    earlier = {position: metadata for position, metadata in earlier.items() if position not in later}
    left = choose(earlier.items(), policy)
    together = {p: m for p, m in earlier.items() if p in left} | later
    assert choose(together.items(), policy) == choose((earlier | later).items(), policy)


def put(store: Store, position: Position, job: JobRef | None = JOB, **metadata: object) -> str:
    manifest = Manifest(job, position.epoch, position.step, "step", 0.0, {}, (), metadata=metadata)
    key = layout.manifest(position)
    store.put(key, encode(manifest))
    return key


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(f"file://{tmp_path}").at("digits")


def test_the_rest_is_removed_and_named(store):
    for step in range(10, 70, 10):
        put(store, Position(1, step), loss=1 / step if step != 20 else 0.0)
    policy = Policy(1, every=40, best=Best("loss", "min"))
    known: dict = {}
    removed = prune(store, JOB, policy, newest=Position(1, 60), protect=[Position(1, 30)], known=known)
    assert removed == [layout.manifest(Position(1, 50))]
    assert [position.step for position in committed(store)] == [60, 40, 30, 20, 10]
    assert known == {Position(1, step): {"loss": 1 / step if step != 20 else 0.0} for step in (60, 40, 30, 20, 10)}


def test_damage_never_pushes_the_last_good_one_out(store):
    put(store, Position(1, 10))
    for step in (20, 30):
        store.put(layout.manifest(Position(1, step)), b"{}")
    put(store, Position(1, 40))
    assert prune(store, JOB, Policy(2), newest=Position(1, 40)) == []
    assert len(committed(store)) == 4


def test_another_jobs_and_what_came_after_the_callers_newest_is_left_alone(store):
    other = put(store, Position(1, 10), JobRef("digits", "99999999"))
    pushed = put(store, Position(1, 15), None)
    put(store, Position(1, 20))
    put(store, Position(1, 30))
    newer = put(store, Position(2, 5))
    assert prune(store, JOB, Policy(1), newest=Position(1, 30)) == [layout.manifest(Position(1, 20))]
    assert {other, pushed, newer} <= {stored.key for stored in store.objects(layout.CHECKPOINTS)}
    assert prune(store, None, Policy(1), newest=Position(9, 9)) == []


def test_what_is_known_is_not_read_again(store, monkeypatch):
    reads: list[str] = []
    get = store.get

    def counted(key):
        reads.append(key)
        return get(key)

    monkeypatch.setattr(store, "get", counted)
    known: dict = {}
    for step in range(1, 6):
        put(store, Position(1, step))
        prune(store, JOB, Policy(2), newest=Position(1, step), known=known)
    assert sorted(reads) == [layout.manifest(Position(1, step)) for step in range(1, 6)]
    assert sorted(known) == [Position(1, 4), Position(1, 5)]
