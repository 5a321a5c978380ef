"""What a silence means, by the rhythm before it; and how far a machine's clock is off, by its heartbeats."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.controller.clocks import ENOUGH, NodeClock
from provisioner.controller.patience import MOST_S, SILENT_S, UNASKED_S, UNKNOWN_S, Patience
from provisioner.controller.rhythm import Rhythm
from provisioner.model import NodeState

AUTO = Patience(poll_s=10, lost_after_s=None, boot_timeout_s=900, heartbeat_s=5)
STATES = st.sampled_from([*NodeState, None])
RHYTHMS = st.lists(st.floats(0.1, 900), max_size=80).map(lambda intervals: Rhythm(tuple(intervals)[-60:]))


def steady(interval: float, count: int = 30) -> Rhythm:
    return Rhythm((interval,) * count)


def test_a_steady_beat_is_suspected_sooner_and_a_slow_one_later() -> None:
    assert AUTO.suspicious_s(Rhythm()) == UNKNOWN_S
    assert AUTO.suspicious_s(steady(10)) == pytest.approx(44, abs=1)
    assert Patience(5, None, 900).suspicious_s(steady(5.2)) == pytest.approx(27.5, abs=1)
    slow = Rhythm((20.0, 50.0) * 15)
    assert AUTO.suspicious_s(slow) == pytest.approx(139, abs=1)
    assert AUTO.lost_s(slow, NodeState.RUNNING) == pytest.approx(278, abs=1)
    assert AUTO.lost_s(steady(10), NodeState.RUNNING) == SILENT_S
    assert AUTO.lost_s(steady(10), None) == UNASKED_S


@given(rhythm=RHYTHMS, state=STATES, poll=st.floats(0.1, 120), heartbeat=st.floats(0.5, 300))
def test_every_silence_ends_and_a_node_is_suspected_before_it_is_lost(
    rhythm: Rhythm, state: NodeState | None, poll: float, heartbeat: float
) -> None:
    patience = Patience(poll, None, 900, heartbeat)
    suspected, lost = patience.suspicious_s(rhythm), patience.lost_s(rhythm, state)
    assert min(SILENT_S, 2 * suspected) <= lost <= max(MOST_S, patience.least_s)
    assert suspected <= lost
    assert patience.last_words_s(rhythm) <= lost


@given(base=st.floats(1, 29), jitter=st.lists(st.floats(0, 1), min_size=30, max_size=60))
def test_a_beat_that_stays_within_its_own_range_is_never_suspected(base: float, jitter: list[float]) -> None:
    rhythm = Rhythm()
    for share in jitter:
        interval = base * (1 + share)
        assert interval < AUTO.suspicious_s(rhythm)
        rhythm = rhythm.heard(interval)


@given(rhythm=RHYTHMS, state=STATES, configured=st.floats(3, 3600))
def test_a_number_means_what_it_says_whatever_the_rhythm_and_the_cloud(
    rhythm: Rhythm, state: NodeState | None, configured: float
) -> None:
    patience = Patience(10, configured, 900)
    assert patience.lost_s(rhythm, state) == configured
    assert patience.suspicious_s(rhythm) <= configured


@given(offset=st.floats(-90000, 90000), delays=st.lists(st.floats(0, 60), min_size=ENOUGH, max_size=40))
def test_a_clock_is_known_to_the_shortest_delay_and_never_overrated(offset: float, delays: list[float]) -> None:
    clock = NodeClock()
    for delay in delays:
        clock = clock.heard(delay - offset, fresh=True)
    ahead, shortest = clock.ahead_s(5) or 0.0, min(delays[-12:])
    if ahead == 0:
        assert -7 - shortest - 1e-6 <= offset - shortest <= 1e-6, "it may as well be right"
    else:
        assert offset - shortest == pytest.approx(ahead, abs=1e-6)


def test_a_heartbeat_that_has_lain_there_is_no_proof_of_a_slow_clock_but_one_from_the_future_is() -> None:
    assert NodeClock().heard(86400, fresh=False).ahead_s(5) is None
    assert NodeClock().heard(-3600, fresh=False).ahead_s(5) == 3600
    assert NodeClock().heard(3600, fresh=True).ahead_s(5) is None, "one slow read is no proof either"


def test_a_clock_that_is_put_right_is_believed_again() -> None:
    clock = NodeClock()
    for _ in range(20):
        clock = clock.heard(-3600, fresh=True)
    for _ in range(12):
        clock = clock.heard(0.5, fresh=True)
    assert clock.ahead_s(5) == 0
