"""The real Lightning, killed and told to go at random steps: what comes out is what comes out without all that."""

from __future__ import annotations

import os
import re
import signal
import socket

import pytest

from tests.torch_scripts import PYTHON, ROOT, TORCHRUN, differ, interrupted, needs_torch, start

pytestmark = needs_torch
DIGITS = str(ROOT / "examples" / "lightning_digits.py")

# Augmentation, dropout, shuffling, accumulation, validations in mid-epoch that draw random numbers, and an average of
# the weights in the module's own hook, the last that a step runs through.
SCRIPT = """
import importlib, os, random, signal
from pathlib import Path
import torch
pl = importlib.import_module(os.environ.get("PACKAGE", "lightning.pytorch"))
from torch import nn
from torch.utils.data import DataLoader, Dataset
from provisioner.node.torch import resumable
from provisioner.node.torch.lightning import FailoverCallback
from tests import torch_forks

class Noisy(Dataset):
    def __len__(self):
        return 60
    def __getitem__(self, index):
        return torch.randn(8) + index * 0.01 + random.random(), torch.tensor(index % 2)

class Told(pl.loggers.CSVLogger):
    def finalize(self, status):
        print("the logger is told:", status, flush=True)

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 2))
        self.register_buffer("average", torch.zeros(2))
    def training_step(self, batch, batch_idx):
        if batch_idx % 2 == 0 and self.global_step + 1 == int(os.environ.get("DIE", 0)):
            os.kill(os.getpid(), signal.SIGKILL)
        last = self.global_rank == self.trainer.world_size - 1
        if batch_idx % 2 == 0 and self.global_step + 1 == int(os.environ.get("TOLD", 0)) and last:
            torch_forks.notice()
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])
    def validation_step(self, batch, batch_idx):
        self.log("val", nn.functional.cross_entropy(self.net(batch[0]), batch[1]) + random.random(), sync_dist=True)
    def on_train_batch_end(self, *_):
        self.average.lerp_(self.net[3].bias.detach(), 0.1)
    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 5), "interval": "step"}]

def work():
    torch.set_num_threads(1)
    pl.seed_everything(3, verbose=False)
    world, away = int(os.environ.get("WORLD_SIZE", 1)), os.environ.get("AWAY", "")
    failover = FailoverCallback(every_s=0)
    if away == "random":
        failover.load_state_dict = lambda state: None
    trainer = pl.Trainer(
        max_epochs=3, accelerator="cpu", devices=world, strategy="ddp" if world > 1 else "auto",
        logger=Told(os.environ["RESULT"] + ".d"), enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, accumulate_grad_batches=2, callbacks=[failover], val_check_interval=6,
    )
    model = Module()
    loader = DataLoader(Noisy(), batch_size=4 // world, shuffle=True, num_workers=int(os.environ.get("WORKERS", 0)))
    loader = loader if away == "batches" else resumable(loader)
    trainer.fit(model, loader, DataLoader(Noisy(), batch_size=20), ckpt_path=failover.restored)
    if trainer.is_global_zero:
        sums = [value.double().sum().item().hex() for value in model.state_dict().values()]
        Path(os.environ["RESULT"]).write_text(repr((trainer.global_step, trainer.current_epoch, sums, random.random())))
"""


def test_killed_and_told_to_go_at_random_steps_it_ends_bit_for_bit_as_one_run(tmp_path):
    said = interrupted(SCRIPT, tmp_path, 1, processes=1)
    assert "the logger is told: finished" in said
    assert "the logger is told: failed" not in said


@pytest.mark.slow
@pytest.mark.long
def test_without_the_loader_or_the_random_generators_the_pieces_differ(tmp_path):
    differ(SCRIPT, tmp_path, "batches", "random")


@pytest.mark.slow
@pytest.mark.parametrize("package", ["lightning.pytorch", pytest.param("pytorch_lightning", marks=pytest.mark.long)])
def test_two_processes_save_and_leave_at_one_step_and_end_bit_for_bit_as_one_run(tmp_path, package):
    interrupted(SCRIPT, tmp_path, 3, processes=2, PACKAGE=package)


@pytest.mark.thorough
@pytest.mark.parametrize("processes", [1, 2])
def test_twenty_kills_and_twenty_notices(tmp_path, processes):
    interrupted(SCRIPT, tmp_path, 20, processes=processes)


@pytest.mark.slow
@pytest.mark.parametrize("elastic", [False, True])
def test_by_lightnings_launcher_and_by_torchrun_both_ranks_leave_at_one_step(tmp_path, elastic):
    launcher = [str(TORCHRUN), "--standalone", "--nproc-per-node", "2"] if elastic else [str(PYTHON)]
    command = [*launcher, DIGITS, "--devices", "2", "--epochs", "2", "--step-seconds", "0.1"]
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # it keeps each write apart
    with ours:
        with theirs:
            process = start(command, tmp_path / "c", stdout=theirs, PYTHONUNBUFFERED="1")
        writes = []
        ours.settimeout(120)
        while text := ours.recv(65536).decode():
            writes.append(text)
            if text.startswith("step 4 "):
                os.killpg(process.pid, signal.SIGTERM)
    output = "".join(writes)
    assert process.wait(timeout=120) == (1 if elastic else 75), output  # torchrun's own code after a signal is 1
    torn = [text for text in writes if re.match(r"(step|rank|failover:) ", text) and not text.endswith("\n")]
    assert torn == [], "a line is one write, else the processes' lines mix"
    ends = re.findall(r"^rank (\d) leaves at step (\d+)$", output, re.MULTILINE)
    saved = re.search(r"SIGTERM: step (\d+) is saved; leaving", output)
    assert saved
    assert sorted(ends) == [("0", saved[1]), ("1", saved[1])]
    assert [path.name for path in (tmp_path / "c").iterdir()] == [f"step-{saved[1]}.ckpt"]
    assert elastic or "Traceback" not in output
