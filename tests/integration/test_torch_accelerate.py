"""The real Accelerate, killed and told to go at random steps: what comes out is what comes out without all that."""

from __future__ import annotations

import pytest

from tests.torch_scripts import differ, interrupted, needs_torch

pytestmark = needs_torch

# Augmentation, dropout, shuffling; 15 batches an epoch, two to a step: the last step of an epoch has one.
SCRIPT = """
import os, random, signal
from pathlib import Path
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset
from provisioner.node.torch.accelerate import checkpointing
from tests import torch_forks

class Noisy(Dataset):
    def __len__(self):
        return 60
    def __getitem__(self, index):
        return torch.randn(8) + index * 0.01 + random.random(), torch.tensor(index % 2)

def work():
    torch.set_num_threads(1)
    torch.manual_seed(3)
    random.seed(4)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    loader = DataLoader(
        Noisy(), batch_size=4 // accelerator.num_processes, shuffle=True, num_workers=int(os.environ.get("WORKERS", 0))
    )
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    away, last = os.environ.get("AWAY"), accelerator.process_index == accelerator.num_processes - 1
    if away == "random":
        kept = accelerator.load_state
        accelerator.load_state = lambda path: (kept(path), torch.manual_seed(9))
    with checkpointing(accelerator, loader, every_s=0) as run:
        for _ in run.epochs(3):
            for inputs, labels in loader if away == "batches" else run.batches:
                if run.done + 1 == int(os.environ.get("DIE", 0)):
                    os.kill(os.getpid(), signal.SIGKILL)
                if run.done + 1 == int(os.environ.get("TOLD", 0)) and last and "told" not in locals():
                    told = torch_forks.notice()
                with accelerator.accumulate(model):
                    loss = nn.functional.cross_entropy(model(inputs), labels)
                    accelerator.backward(loss)
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                run.step(loss=loss)
    if accelerator.is_main_process:
        sums = [value.double().sum().item().hex() for value in accelerator.unwrap_model(model).state_dict().values()]
        Path(os.environ["RESULT"]).write_text(repr((run.done, sums, random.random())))
"""


def test_killed_and_told_to_go_at_random_steps_it_ends_bit_for_bit_as_one_run(tmp_path):
    assert "(24, " in interrupted(SCRIPT, tmp_path, 1, processes=1)


@pytest.mark.slow
@pytest.mark.long
def test_two_processes_save_and_leave_at_one_step_and_end_bit_for_bit_as_one_run(tmp_path):
    interrupted(SCRIPT, tmp_path, 3, processes=2)


@pytest.mark.slow
@pytest.mark.long
def test_without_the_batches_or_the_random_generators_the_pieces_differ(tmp_path):
    differ(SCRIPT, tmp_path, "batches", "random")


@pytest.mark.thorough
@pytest.mark.parametrize("processes", [1, 2])
def test_twenty_kills_and_twenty_notices(tmp_path, processes):
    interrupted(SCRIPT, tmp_path, 20, processes=processes)
