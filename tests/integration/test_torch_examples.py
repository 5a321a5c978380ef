"""The PyTorch scripts of ``examples``: killed and told to go at random steps, and without what keeps them whole."""

from __future__ import annotations

import pytest

from provisioner.checkpoint import CheckpointStore
from tests.torch_scripts import FORKS, differ, interrupted, needs_torch, run

pytestmark = [*needs_torch, pytest.mark.slow]

SCRIPT = """
import contextlib, functools, io, os, sys
from pathlib import Path
import {example} as example
from provisioner.node.torch.saving import Checkpointing, checkpointing
from tests import torch_forks

step = Checkpointing.step

def fated(run, **metrics):
    if run.done + 1 == int(os.environ.get("DIE", 0)):
        if os.environ.get("AWAY"):
            run._writer.finish()
        os.kill(os.getpid(), 9)
    if run.done + 1 == int(os.environ.get("TOLD", 0)):
        torch_forks.notice()
    step(run, **metrics)

def without_optimizer(model, optimizer, scheduler=None, **more):
    return checkpointing(model, scheduler=scheduler, **more)

AWAY = {{"rng": functools.partial(checkpointing, rng=False), "optimizer": without_optimizer}}

def work():
    Checkpointing.step = fated
    example.checkpointing = AWAY.get(os.environ.get("AWAY"), checkpointing)
    sys.argv = ["example", "--every", "0", *{arguments!r}]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        example.main()
    Path(os.environ["RESULT"]).write_text(said.getvalue().splitlines()[-1])
"""


@pytest.mark.parametrize(
    ("example", "arguments", "last", "aways"),
    [
        ("torch_digits", ["--epochs", "1"], 29, []),  # what is taken away from it: test_torch_saving.py
        ("torch_sums", ["--epochs", "2", "--sums", "640"], 20, ["rng"]),
        ("torch_adapter", ["--epochs", "2", "--sums", "640", "--width", "32"], 20, ["optimizer"]),
    ],
)
def test_an_example_ends_as_one_run_does_digit_for_digit_and_not_without_what_is_kept(
    tmp_path, example, arguments, last, aways
):
    text = SCRIPT.format(example=example, arguments=arguments)
    assert f"done at step {last}: " in interrupted(text, tmp_path, 1, processes=1, last=last)
    if aways:
        (tmp_path / "away").mkdir()
        differ(text, tmp_path / "away", *aways)


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
