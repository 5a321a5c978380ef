from __future__ import annotations

import signal

import pytest

from provisioner.node.verdict import Ended, Result, judge


@pytest.mark.parametrize(
    ("ended", "result", "word"),
    [
        (Ended(0, step=100, steps=100), Result.DONE, ""),
        (Ended(0, step=101, steps=100, stop_reason="notice"), Result.DONE, ""),
        (Ended(0), Result.DONE, ""),
        (Ended(0, stop_reason="signal SIGTERM"), Result.STOPPED, "signal SIGTERM"),
        (Ended(0, stop_reason="notice", done_file=True), Result.DONE, ""),
        (Ended(0, step=40, steps=100, moved_on=True), Result.STOPPED, "step 40 of 100"),
        (Ended(0, step=40, steps=100), Result.FAILED, "without a new checkpoint"),
        (Ended(0, step=None, steps=100), Result.FAILED, "no step of 100"),
        (Ended(0, step=40, steps=100, done_file=True), Result.DONE, ""),
        (Ended(1, step=100, steps=100), Result.FAILED, "code 1"),
        (Ended(1, done_file=True), Result.FAILED, "code 1"),
        (Ended(1, stop_reason="notice"), Result.STOPPED, "notice"),
        (Ended(-signal.SIGKILL, stop_reason="notice"), Result.STOPPED, "notice"),
        (Ended(-signal.SIGTERM), Result.STOPPED, "SIGTERM"),
        (Ended(128 + signal.SIGTERM), Result.STOPPED, "SIGTERM"),
        (Ended(-signal.SIGKILL), Result.FAILED, "usual cause"),
        (Ended(137, out_of_memory=True), Result.FAILED, "out of memory"),
        (Ended(-signal.SIGSEGV), Result.FAILED, "SIGSEGV"),
        (Ended(1, disk_full="the disk / has 0 MiB free"), Result.FAILED, "the disk /"),
        (Ended(75, moved_on=True), Result.STOPPED, "left with code 75"),
        (Ended(75), Result.FAILED, "code 75"),  # else it would go round for ever
        (Ended(255), Result.FAILED, "code 255"),
    ],
)
def test_the_end_of_a_command_means_what_it_means(ended, result, word):
    verdict = judge(ended)
    assert verdict.result is result
    assert word in verdict.reason
    assert verdict.exit_code == {Result.DONE: 0, Result.FAILED: 1, Result.STOPPED: 75}[result]
