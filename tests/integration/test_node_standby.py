"""A machine that stands by beside one that trains: real node processes on one store."""

from __future__ import annotations

import json
from typing import Any

from provisioner.checkpoint import epochs, layout

STANDBY = {"before": 1, "patience_s": 60, "trial_s": 20}


def hint(node_job: Any, epoch: int, **fields: Any) -> None:
    node_job.store.put(layout.hint(epoch), json.dumps({"final": True, **fields}).encode())


def until_ready(node: Any) -> None:
    node.until(lambda: node.heartbeat().get("phase") == "standby", 40)


def test_the_one_that_stands_by_takes_over_at_the_last_word_of_the_other_and_no_step_is_lost(node_job: Any) -> None:
    away = node_job.start(1, node_job.trainer(steps=400, pause=0.05), steps=400)
    away.until_committed(10)
    home = node_job.start(2, node_job.trainer(steps=400, pause=0.005), steps=400, standby=STANDBY)
    until_ready(home)
    assert "restored step" in home.log()
    assert epochs.newest_epoch(node_job.store) == 1, "the machine that trains is not disturbed"
    before = away.heartbeat()["step"]
    away.until(lambda: away.heartbeat()["step"] > before + 5)
    assert {position.epoch for position in committed(node_job)} == {1}, "nothing of the trial is kept"
    hint(node_job, 1, kind="going home", cause="home")
    assert away.wait() == 75
    end = away.heartbeat()["end"]
    assert (end["reason"], end["cause"]) == ("notice: going home", "home")
    last = away.heartbeat()["last_commit"]["step"]
    assert home.wait() == 0, home.text()
    assert home.heartbeat()["restored_step"] == last == away.heartbeat()["step"]
    assert node_job.restored_state()["step"] == 400
    assert node_job.done()["epoch"] == 2


def committed(node_job: Any) -> list[Any]:
    from provisioner.checkpoint.restore import committed as positions

    return positions(node_job.store)


def test_a_command_that_does_not_run_here_is_found_out_before_the_other_stops(node_job: Any) -> None:
    away = node_job.start(1, node_job.trainer(steps=2000, pause=0.05), steps=2000)
    away.until_committed(10)
    home = node_job.start(2, node_job.script("raise SystemExit('no driver here')"), standby=STANDBY)
    assert home.wait() == 75
    end = home.heartbeat()["end"]
    assert end == {
        "reason": "the trial failed: the command ended with code 1 before its first step", "exit_code": 75,
        "cause": "machine",
    }  # fmt: skip
    assert "no driver here" in node_job.store_log(2)
    before = away.heartbeat()["step"]
    away.until(lambda: away.heartbeat()["step"] > before + 5)


def test_one_that_is_not_called_ends_itself_and_the_controller_may_call_too(node_job: Any) -> None:
    node_job.start(1, node_job.trainer(steps=20), steps=20).wait()
    node_job.store.delete([layout.DONE])
    idle = node_job.start(2, node_job.trainer(steps=40), steps=40, standby={**STANDBY, "patience_s": 2})
    assert idle.wait() == 75
    assert idle.heartbeat()["end"]["reason"] == "not called within 2 s"
    called = node_job.start(3, node_job.trainer(steps=40), steps=40, standby={**STANDBY, "before": 2})
    until_ready(called)
    node_job.store.put(layout.call(3), b"{}")
    assert called.wait() == 0
    assert called.heartbeat()["restored_step"] == 20
    assert node_job.done()["final_step"] == 40


def test_a_node_that_is_killed_after_its_call_goes_on_without_a_second_trial(node_job: Any) -> None:
    away = node_job.start(1, node_job.trainer(steps=400, pause=0.02), steps=400)
    away.until_committed(10)
    home = node_job.start(2, node_job.trainer(steps=400, pause=0.02), steps=400, standby=STANDBY)
    until_ready(home)
    hint(node_job, 1, kind="going home", cause="home")
    assert away.wait() == 75
    last = away.heartbeat()["last_commit"]["step"]
    home.until(lambda: home.heartbeat().get("first_step_at"))
    began = home.heartbeat()["first_step_at"]
    home.kill_machine()
    again = node_job.start(2, node_job.trainer(steps=400, pause=0.005), steps=400, standby=STANDBY)
    assert again.wait() == 0, again.text()
    assert again.log().count("trying the command out") == 1, "it does not stand by while nobody trains"
    assert again.heartbeat()["first_step_at"] == began, "the placement has begun once"
    assert again.heartbeat()["restored_step"] >= last
    assert node_job.restored_state()["step"] == 400


def test_one_that_stands_by_goes_when_the_job_completes_where_it_trained(node_job: Any) -> None:
    """Also where no controller is left that would release it."""
    away = node_job.start(1, node_job.trainer(steps=400, pause=0.03), steps=400)
    away.until_committed(10)
    home = node_job.start(2, node_job.trainer(steps=400), steps=400, standby=STANDBY)
    until_ready(home)
    assert away.wait() == 0
    assert home.wait(15) == 75
    assert home.heartbeat()["end"]["reason"] == "the job has ended meanwhile"
    assert node_job.done()["epoch"] == 1
    assert epochs.newest_epoch(node_job.store) == 1


SMALL_CARD = """
import os, pathlib, signal, sys, time
scale = float(os.environ["FAILOVER_BATCH_SCALE"])
if scale > 0.5:
    sys.exit("torch.OutOfMemoryError: CUDA out of memory.")
print("step 1 of a trial" if os.environ["FAILOVER_TRIAL"] == "1" else "step 1", scale, flush=True)
time.sleep(0.5)
"""


def test_a_trial_that_runs_out_of_the_cards_memory_is_tried_with_half_the_batch_and_so_is_the_job(
    node_job: Any,
) -> None:
    node = node_job.start(2, node_job.script(SMALL_CARD), steps=1, standby=STANDBY)
    until_ready(node)
    node_job.store.put(layout.call(2), b"{}")
    assert node.wait(40) == 0, node.text()
    log = node_job.store_log(2)
    assert "step 1 of a trial 0.5" in log
    assert "step 1 0.5" in log
