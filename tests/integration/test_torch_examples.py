"""The PyTorch scripts of ``examples``: killed and told to go at random steps, and without what keeps them whole."""

from __future__ import annotations

import pytest

from provisioner.checkpoint import CheckpointStore
from tests.torch_scripts import FORKS, interrupted, needs_torch, run

pytestmark = [*needs_torch, pytest.mark.slow]

SCRIPT = """
import contextlib, functools, io, os, sys
from pathlib import Path
import {example} as example
from tests import torch_forks

def fate(step, finish=lambda: None):
    if step == int(os.environ.get("DIE", 0)):
        if os.environ.get("AWAY"):
            finish()
        os.kill(os.getpid(), 9)
    if step == int(os.environ.get("TOLD", 0)):
        torch_forks.notice()

def fated(kind, finish):
    step = kind.step
    def then(run, **metrics):
        fate(run.done + 1, functools.partial(finish, run))
        step(run, **metrics)
    kind.step = then

{hooks}

def work():
    if away := os.environ.get("AWAY"):
        AWAY[away]()
    sys.argv = ["example", "--every", "0", *{arguments!r}]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        example.main()
    Path(os.environ["RESULT"]).write_text(said.getvalue().splitlines()[-1])
"""
LOOP = """
from provisioner.node.torch.saving import Checkpointing, checkpointing
fated(Checkpointing, lambda run: run._writer.finish())

def without_optimizer(model, optimizer, scheduler=None, **more):
    return checkpointing(model, scheduler=scheduler, **more)

put = functools.partial(setattr, example, "checkpointing")
AWAY = {
    "rng": lambda: put(functools.partial(checkpointing, rng=False)), "optimizer": lambda: put(without_optimizer),
}
"""
ACCELERATE = """
import torch
from provisioner.node.torch.accelerate import Accelerated
fated(Accelerated, lambda run: None)
load = example.Accelerator.load_state

def forgetful(accelerator, path):
    load(accelerator, path)
    torch.manual_seed(9)

AWAY = {"random": lambda: setattr(example.Accelerator, "load_state", forgetful)}
"""
HUGGINGFACE = """
class Fated(example.FailoverCallback):
    def on_step_begin(self, args, state, control, **more):
        fate(state.global_step + 1)

example.FailoverCallback = Fated
AWAY = {"random": lambda: setattr(example.Trainer, "_load_rng_state", lambda trainer, path: None)}
"""


@pytest.mark.parametrize(
    ("example", "hooks", "arguments", "last", "aways"),
    [
        ("torch_digits", LOOP, ["--epochs", "1"], 29, []),  # what is taken away from it: test_torch_saving.py
        ("torch_sums", LOOP, ["--epochs", "2", "--sums", "640"], 20, ["rng"]),
        ("torch_adapter", LOOP, ["--epochs", "2", "--sums", "640", "--width", "32"], 20, ["optimizer"]),
        # what is taken away from it: test_torch_autobatch.py
        ("torch_autobatch", LOOP, ["--epochs", "4", "--room", "100"], 32, []),
        ("accelerate_digits", ACCELERATE, ["--epochs", "1"], 29, ["random"]),
        ("huggingface_digits", HUGGINGFACE, ["--epochs", "1"], 29, ["random"]),
    ],
)
def test_an_example_ends_as_one_run_does_digit_for_digit_and_not_without_what_is_kept(
    tmp_path, example, hooks, arguments, last, aways
):
    text = SCRIPT.format(example=example, hooks=hooks, arguments=arguments)
    said = interrupted(text, tmp_path, 1, processes=1, last=last, aways=aways)
    assert f"done at step {last}: " in said


UPLOADS = """
import os, sys
import torch_adapter
from provisioner.node.torch import saving

for where in ("ours", "away"):
    os.environ["FAILOVER_CHECKPOINT_DIR"] = where
    for epochs in ("1", "2"):
        sys.argv[1:] = ["--sums", "128", "--width", "256", "--rank", "4", "--epochs", epochs]
        torch_adapter.main()
    saving._frozen = lambda part: frozenset()
"""


def test_the_second_checkpoint_of_an_adapter_uploads_the_adapter_and_its_optimizer_not_the_base(tmp_path):
    run(UPLOADS, tmp_path, FORKS)

    def uploaded(where: str) -> list[int]:
        (tmp_path / f"store-{where}").mkdir()
        with CheckpointStore(f"file://{tmp_path}/store-{where}") as store:
            return [store.save(tmp_path / where / f"step-{step}").uploaded_bytes for step in (2, 4)]

    here = tmp_path / "ours" / "step-4"
    adapter, base = ((here / f"model{kind}.safetensors").stat().st_size for kind in ("", ".frozen"))
    assert base > 40 * adapter
    first, second = uploaded("ours")
    assert first > base
    assert second < 3.1 * adapter + 32 * 1024  # Adam keeps two numbers of each that is trained
    first, second = uploaded("away")  # in one file
    assert second > 0.9 * first
