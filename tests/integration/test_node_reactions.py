"""What the node does about a command that hangs, runs out of memory, or asks how often to save: real processes."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from provisioner.checkpoint import layout

HANGS = """
import json, os, pathlib, threading, time
status = pathlib.Path(os.environ["FAILOVER_STATUS_FILE"])

def touch():
    while True:
        status.with_suffix(".new").write_text(json.dumps({"step": step, "alive": time.time()}))
        status.with_suffix(".new").replace(status)
        time.sleep(0.1)

step = 0
threading.Thread(target=touch, daemon=True).start()
for step in range(1, 51):
    time.sleep(0.02)
    print(f"step {step}", flush=True)
read_end, _ = os.pipe()
os.read(read_end, 1)
"""

MEMORY = """
import json, os, pathlib, sys
out, where = pathlib.Path(os.environ["FAILOVER_CHECKPOINT_DIR"]), os.environ["FAILOVER_RESTORE_PATH"]
scale = float(os.environ["FAILOVER_BATCH_SCALE"])
step = 0
if where:
    (found,) = pathlib.Path(where).iterdir()
    step = int(found.read_text())
while step < 30:
    step += 1
    if step > 12 and scale > float(sys.argv[1]):
        sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    print(f"step {step} at {scale}", flush=True)
    if step % 10 == 0:
        (out / ".draft").write_text(str(step))
        (out / ".draft").rename(out / f"step-{step}")
"""

ASKED = """
import json, os, pathlib, signal, sys, time
advice = pathlib.Path(os.environ["FAILOVER_ADVICE_FILE"])
print("first", advice.read_text(), flush=True)
signal.signal(signal.SIGTERM, signal.SIG_IGN)

def asked(*_):
    print("asked", advice.read_text(), flush=True)
    (pathlib.Path(os.environ["FAILOVER_CHECKPOINT_DIR"]) / "step-7").write_text("7")
    sys.exit(0)

signal.signal(signal.SIGUSR2, asked)
print("step 7", flush=True)
time.sleep(60)
"""


def test_r14_a_command_that_makes_no_step_is_named_shown_and_replaced(node_job: Any) -> None:
    node = node_job.start(1, node_job.script(HANGS), hung_after_s=2, environ={"FAILOVER_GRACE_S": "6"})
    assert node.wait(40) == 75
    end = node.heartbeat()["end"]
    assert end["cause"] == "hung"
    assert re.fullmatch(r"hung: no step after 50 for [2-9] s, and .*", end["reason"])
    log = node_job.store_log(1)
    assert re.search(r"process \d+ \(python.*\) is in state S", log)
    assert b"step 50" in node_job.store.get(layout.last_lines(1))
    assert node_job.done() is None, "another machine may do better"


def test_a_command_that_runs_out_of_gpu_memory_goes_on_here_with_half_the_batch(node_job: Any) -> None:
    node = node_job.start(1, [*node_job.script(MEMORY), "0.25"], steps=30)
    assert node.wait(40) == 0, node.text()
    assert node_job.done()["result"] == "completed"
    log = node_job.store_log(1)
    assert re.findall(r"with FAILOVER_BATCH_SCALE=(\S+)", log) == ["0.5", "0.25"]
    assert log.count("restored step 10 of epoch 1") == 2, "what was committed is not trained again"
    assert "step 30 at 0.25" in log
    assert node.heartbeat()["batch_scale"] == 0.25


STOPPED_IN_THE_LAST_COMMIT = """
import os, pathlib, signal, subprocess, sys, time
out = pathlib.Path(os.environ["FAILOVER_CHECKPOINT_DIR"])
code = "import os, sys, time; time.sleep(0.4); os.kill(int(sys.argv[1]), 15)"
quiet = subprocess.DEVNULL
print("step 10", flush=True)
draft = out / ".step-10"
draft.mkdir()
(draft / "bulk.bin").write_bytes(os.urandom(400 << 20))
subprocess.Popen([sys.executable, "-c", code, str(os.getppid())], stdout=quiet, stderr=quiet, start_new_session=True)
draft.rename(out / "step-10")
print("torch.OutOfMemoryError: CUDA out of memory.", flush=True)
raise SystemExit(1)
"""


def test_a_request_to_stop_in_the_last_commit_ends_a_command_that_ran_out_of_memory(node_job: Any) -> None:
    node = node_job.start(1, node_job.script(STOPPED_IN_THE_LAST_COMMIT), steps=30)
    assert node.wait(60) == 75, node.text()
    end = node.heartbeat()["end"]
    assert (end["reason"], end["cause"]) == ("signal SIGTERM", "stopped")
    assert "FAILOVER_BATCH_SCALE=" not in node.log(), "nothing is started again"
    assert node_job.steps_committed() == [10]


def test_a_command_that_never_fits_fails_by_that_name(node_job: Any) -> None:
    node = node_job.start(1, [*node_job.script(MEMORY), "0"], steps=30, oom_retries=1)
    assert node.wait(40) == 1
    done = node_job.done()
    assert (done["result"], done["cause"]) == ("failed", "gpu_out_of_memory")
    assert done["reason"] == "the command ended with code 1: the GPU is out of memory"
    assert node_job.store_log(1).count("FAILOVER_BATCH_SCALE=") == 1


@pytest.mark.parametrize("every_s", [None, 45.0])
def test_the_command_reads_how_often_to_save_and_is_asked_by_the_signal_of_its_choice(
    node_job: Any, every_s: float | None
) -> None:
    pool = {"hours": 0.6, "losses": 3, "weight": 0.9}
    checkpoint = {"every_s": every_s}
    node = node_job.start(1, node_job.script(ASKED), stop_signal="SIGUSR2", pool=pool, checkpoint=checkpoint)
    node.until_step(7)
    node.process.terminate()
    assert node.wait(30) == 75
    first, asked = (
        json.loads(re.search(rf"^{word} (.*)$", node.log(), re.MULTILINE)[1]) for word in ("first", "asked")
    )
    assert first["stop"] is None
    if every_s is None:
        assert 60 < first["save_every_s"] < 300, "young machines of a pool that loses them save often"
    else:
        assert first["save_every_s"] == every_s
    assert asked["stop"]["reason"] == "signal SIGTERM"
    assert node_job.steps_committed() == [7]


TOLD = """
import json, os, pathlib, time
told = pathlib.Path(os.environ["FAILOVER_EFFICIENCY_FILE"])
told.with_suffix(".new").write_text(json.dumps({"rule": "none", "advice": "nothing to change", "loader_wait": 0.01}))
told.with_suffix(".new").replace(told)
print("step 3", flush=True)
"""


def test_what_the_command_says_of_its_efficiency_is_in_the_heartbeat(node_job: Any) -> None:
    node = node_job.start(1, node_job.script(TOLD), steps=3)
    assert node.wait(40) == 0
    assert node.heartbeat()["efficiency"] == {"rule": "none", "advice": "nothing to change", "loader_wait": 0.01}
