"""The lock of a state in a bucket, where answers get lost and writes come late."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from provisioner.errors import StateLocked, Unreachable
from provisioner.terraform.backend import Remote
from provisioner.terraform.locks import NOTE, Host, Owner, StateLock
from provisioner.terraform.waits import Waits

KEY = "digits/aws.tflock"
HERE = Host("desk", "machine-1", "boot-1")


class Bucket:
    """A bucket in memory. ``answers`` are used up by creates: lost, refused or fine."""

    def __init__(self, *answers: str) -> None:
        self.kept: dict[str, bytes] = {}
        self.answers = list(answers)
        self.deaf = False

    def get(self, key: str) -> bytes | None:
        return self.kept.get(key)

    def create(self, key: str, data: bytes) -> bool:
        answer = self.answers.pop(0) if self.answers else "fine"
        if answer == "conflict":  # a 409 that stored nothing
            return False
        if key in self.kept:
            return False
        self.kept[key] = data
        if answer == "lost":
            message = "no answer"
            raise Unreachable(message)
        return answer != "repeated"  # the library tried again by itself, and met its own write

    def put(self, key: str, data: bytes) -> None:
        self.kept[key] = data

    def delete(self, keys: list[str]) -> None:
        if self.deaf:
            message = "no answer"
            raise Unreachable(message)
        for key in keys:
            self.kept.pop(key, None)


def lock(bucket: Bucket, folder: Path, host: Host = HERE, timeout_s: float = 0.0) -> StateLock:
    return StateLock(bucket, KEY, folder, "s3://b/x", timeout_s, host=host, sleep=lambda _: None)


@pytest.mark.parametrize("answer", ["repeated", "conflict"])
def test_r01_a_refusal_by_our_own_write_is_no_refusal(tmp_path, answer):
    bucket = Bucket(answer)
    with lock(bucket, tmp_path).held("apply") as held:
        assert Owner.of(bucket.kept[KEY]).id == held
    assert bucket.kept == {}


def test_r01_a_lock_whose_answer_was_lost_is_ours_the_next_time_and_nobody_elses(tmp_path):
    bucket = Bucket("lost")
    with pytest.raises(Unreachable):
        lock(bucket, tmp_path / "a").held("apply").__enter__()
    left = Owner.of(bucket.kept[KEY]).id
    with pytest.raises(StateLocked, match=left):
        lock(bucket, tmp_path / "b").held("apply").__enter__()
    with lock(bucket, tmp_path / "a").held("apply") as held:
        assert held == left
    assert bucket.kept == {}


def test_a_write_that_comes_late_is_still_known_as_ours(tmp_path):
    bucket = Bucket("lost")
    with pytest.raises(Unreachable):
        lock(bucket, tmp_path).held("apply").__enter__()
    late = bucket.kept.pop(KEY)
    with lock(bucket, tmp_path).held("apply"):
        pass
    bucket.kept[KEY] = late
    with lock(bucket, tmp_path).held("apply") as held:
        assert held == Owner.of(late).id


def test_a_lock_that_was_broken_by_hand_and_taken_by_another_stays_the_others(tmp_path):
    bucket = Bucket()
    with lock(bucket, tmp_path).held("apply"):
        bucket.kept[KEY] = json.dumps({"ID": "of another"}).encode()
    assert Owner.of(bucket.kept[KEY]).id == "of another"


def test_a_store_that_is_gone_at_the_end_leaves_a_lock_that_the_next_run_takes_over(tmp_path):
    bucket = Bucket()
    with lock(bucket, tmp_path).held("apply"):
        bucket.deaf = True
    assert KEY in bucket.kept
    bucket.deaf = False
    with lock(bucket, tmp_path).held("apply"):
        pass
    assert bucket.kept == {}
    assert json.loads((tmp_path / NOTE).read_text()) == []


@pytest.mark.parametrize("content", [b"", b"{half", b"[]", b'"text"', b'{"Who": "x@y"}', b'{"ID": null}'])
def test_a_lock_that_cannot_be_read_is_somebodys(tmp_path, content):
    bucket = Bucket()
    bucket.kept[KEY] = content
    with pytest.raises(StateLocked, match="s3://b/x is locked by"):
        lock(bucket, tmp_path).held("apply").__enter__()
    assert bucket.kept[KEY] == content


def test_two_of_one_state_directory_take_turns(tmp_path):
    bucket = Bucket()
    with lock(bucket, tmp_path).held("apply"), pytest.raises(StateLocked, match="another process of this machine"):
        lock(bucket, tmp_path).held("apply").__enter__()
    with lock(bucket, tmp_path).held("apply"):
        pass


class Clock:
    """Seconds that only sleep moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def foreign(bucket: Bucket, key: str, clock: Clock, waits: Waits, folder: Path) -> StateLock:
    """Return our lock of a state that somebody else has locked."""
    said = {"ID": f"id-of-{key}", "Who": "root@desk", "Operation": "OperationTypeApply", "Created": "2026-11-30"}
    bucket.kept[key] = json.dumps(said).encode()
    remote = Remote("s3", {}, bucket, key.replace("lock", "state"), key, f"s3://b/{key}", waits, file="jobs/a.yaml")
    return StateLock.of(remote, folder / key, host=HERE, clock=clock, sleep=clock.sleep)


def test_a_foreign_lock_is_named_with_its_owner_the_wait_and_the_command_that_breaks_it(tmp_path):
    clock = Clock()
    with pytest.raises(StateLocked) as caught:
        foreign(Bucket(), "a.tflock", clock, Waits(120.0, clock), tmp_path).held("destroy").__enter__()
    assert "s3://b/a.tflock is locked by root@desk since 2026-11-30 (OperationTypeApply)" in str(caught.value)
    assert "lock id-of-a.tflock; it was waited for for 120 s" in str(caught.value)
    assert caught.value.hint.endswith("failover state unlock jobs/a.yaml id-of-a.tflock")


def test_a_foreign_lock_is_waited_for_once_whatever_meets_it(tmp_path):
    clock, bucket = Clock(), Bucket()
    waits = Waits(120.0, clock)
    for operation in ("adopt", "adopt", "destroy", "discard"):
        with pytest.raises(StateLocked):
            foreign(bucket, "a.tflock", clock, waits, tmp_path).held(operation).__enter__()
    assert clock.now == pytest.approx(1120.0, abs=1)


def test_the_locks_of_several_regions_are_waited_for_together_no_longer_than_one(tmp_path):
    clock, bucket = Clock(), Bucket()
    waits = Waits(120.0, clock)
    with waits.together():
        for key in ("a.tflock", "b.tflock", "c.tflock"):
            with pytest.raises(StateLocked):
                foreign(bucket, key, clock, waits, tmp_path).held("destroy").__enter__()
    assert clock.now == pytest.approx(1120.0, abs=1)
    assert waits.left_s() == 120.0
