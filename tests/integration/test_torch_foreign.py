"""Trainings on a card that is shared: NVML is played, the trainings and what they save are real."""

from __future__ import annotations

import pytest

from tests.integration.test_torch_huggingface import SCRIPT as HUGGINGFACE
from tests.integration.test_torch_lightning import SCRIPT as LIGHTNING
from tests.torch_scripts import FORKS, needs_torch, run

pytestmark = needs_torch

LOOP = """
import contextlib, io, os, sys, time
from pathlib import Path
import torch_digits as example
from provisioner.node.torch.saving import Checkpointing
from tests import torch_forks

step = Checkpointing.step

def then(run, **metrics):
    others(run.done + 1)
    step(run, **metrics)

def work():
    Checkpointing.step, example.ForeignMemory = then, lambda: WATCH
    sys.argv = ["example", "--epochs", "1", "--every", "999", "--shared"]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        example.main()
    Path(os.environ["RESULT"]).write_text(said.getvalue().splitlines()[-1])
"""
# Another process comes at a step; the driver is looked at every 10 ms. What comes after that step waits until it was.
OTHERS = """
from provisioner.node.torch import ForeignMemory
from tests.played_nvml import PlayedNvml

NVML = PlayedNvml()
WATCH = ForeignMemory(nvml=lambda: NVML, own=lambda: {11}, window_s=0.05, every_s=0.01)

def others(step):
    looks = iter(range(9999))
    come, NVML.broken = int(os.environ.get("COME", 0)), 999 if step == 3 else 0
    NVML.memory = {11: 2**30 * step, 99: 9 * 2**30 * (0 < come <= step)}
    if step == come:
        end = time.monotonic() + 10
        while "IGNORED" not in os.environ and not WATCH.reason() and time.monotonic() < end:
            time.sleep(0.01)
    else:
        time.sleep(0.03)
"""
DRIVE = """
import warnings
warnings.simplefilter("ignore")
def go(name, **more):
    return torch_forks.train(work, name, RESULT=name + ".txt", **more)[0]

assert go("whole") == 0                          # its own memory grew from 1 GiB on, and NVML failed once
assert go("shared", COME="5") == 75
assert torch_forks.steps("shared") == [5], torch_forks.steps("shared")
assert go("shared") == 0
assert Path("shared.txt").read_text() == Path("whole.txt").read_text()
WATCH.reason = lambda: ""                        # taken away
assert go("unwatched", COME="5", IGNORED="1") == 0
print("all as it should be")
"""


def test_the_example_saves_at_the_step_leaves_with_75_and_goes_on_bit_for_bit(tmp_path):
    assert "all as it should be" in run(LOOP + OTHERS + DRIVE, tmp_path, FORKS)


@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["lightning", pytest.param("huggingface", marks=pytest.mark.long)])
def test_so_do_the_trainers(tmp_path, trainer):
    script = {"lightning": LIGHTNING, "huggingface": HUGGINGFACE}[trainer]
    hook = """
import time
class Others({base}):
    {header}
"""
    if trainer == "lightning":
        hook = hook.format(
            base="pl.Callback",
            header="def on_train_batch_end(self, trainer, *_):\n        others(trainer.global_step)",
        )
    else:
        hook = hook.format(
            base="TrainerCallback",
            header="def on_step_end(self, args, state, control, **_):\n        others(state.global_step)",
        )
    script = script.replace("FailoverCallback(every_s=0)", "FailoverCallback(every_s=999, watch=WATCH)")
    script = script.replace("callbacks=[failover", "callbacks=[Others(), failover")
    said = run(script + OTHERS + hook + DRIVE, tmp_path, FORKS)
    assert "all as it should be" in said


def test_a_function_is_called_once_each_time_that_others_come_and_a_driver_that_fails_is_told_once(tmp_path):
    text = """
from provisioner.node.torch import ForeignMemory
from tests.played_nvml import PlayedNvml

nvml, called = PlayedNvml(), []
watch = ForeignMemory(called.append, nvml=lambda: nvml, own=lambda: {11}, window_s=0)
for foreign in (0, 9, 9, 0, 9):
    nvml.memory = {11: 2**30, 99: foreign * 2**30}
    for nvml.broken in (999, 999, 0):
        watch.look()
    assert watch.reason() == ""
assert called == ["foreign GPU memory (GPU 0: other processes hold 9.0 GiB, the job 1.0 GiB)"] * 2, called

def missing():
    raise ImportError("no pynvml")

watch = ForeignMemory(nvml=missing)
watch.look()
assert watch.reason() == ""
"""
    run(text, tmp_path, FORKS)
