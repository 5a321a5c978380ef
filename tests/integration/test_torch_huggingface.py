"""The real Trainer of transformers, killed and told to go at random steps."""

from __future__ import annotations

import pytest

from tests.torch_scripts import FORKS, differ, interrupted, needs_torch, run

pytestmark = needs_torch

# Dropout, shuffling, accumulation, evaluations by steps and by epochs.
SCRIPT = """
import logging, os, random, signal
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, set_seed
from transformers.trainer_callback import TrainerCallback
from provisioner.node.torch.huggingface import FailoverCallback
from tests import torch_forks

class Data(Dataset):
    def __len__(self):
        return 60
    def __getitem__(self, index):
        noise = torch.randn(8) if os.environ.get("AWAY") == "drawn" else torch.zeros(8)
        return {"x": torch.sin(torch.arange(8.0) * index) + noise, "labels": torch.tensor(index % 2)}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 2))
    def forward(self, x, labels=None):
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

class Fate(TrainerCallback):
    def on_step_begin(self, args, state, control, **_):
        if state.global_step + 1 == int(os.environ.get("DIE", 0)):
            os.kill(os.getpid(), signal.SIGKILL)
        if state.global_step + 1 == int(os.environ.get("TOLD", 0)) and args.process_index == args.world_size - 1:
            torch_forks.notice()

logging.disable(logging.WARNING)

def work():
    torch.set_num_threads(1)
    set_seed(3)
    world, away = int(os.environ.get("WORLD_SIZE", 1)), os.environ.get("AWAY")
    result = Path(os.environ["RESULT"])
    args = TrainingArguments(
        output_dir=str(result) + ".d", num_train_epochs=3, per_device_train_batch_size=4 // world, seed=3,
        gradient_accumulation_steps=2, dataloader_num_workers=int(os.environ.get("WORKERS", 0)), use_cpu=True,
        save_strategy="no", eval_strategy="epoch", logging_steps=3, report_to=[], disable_tqdm=True, learning_rate=0.01,
        ddp_backend="gloo" if world > 1 else None, dataloader_pin_memory=False,
    )
    failover = FailoverCallback(every_s=0)
    model = Net()
    trainer = Trainer(model, args, train_dataset=Data(), eval_dataset=Data(), callbacks=[failover, Fate()])
    if away == "random":
        trainer._load_rng_state = lambda checkpoint: None
    trainer.train(resume_from_checkpoint=failover.restored)
    if args.process_index == 0:
        sums = [value.double().sum().item().hex() for value in model.state_dict().values()]
        result.write_text(repr((trainer.state.global_step, sums, trainer.state.epoch, random.random())))
        assert result.name != "whole.txt" or not list(Path(args.output_dir).glob("checkpoint-*"))
"""


@pytest.mark.slow
def test_killed_and_told_to_go_at_random_steps_it_ends_bit_for_bit_as_one_run(tmp_path):
    interrupted(SCRIPT, tmp_path, 2, processes=1)
    assert sorted(path.name for path in (tmp_path / "run-0").iterdir()) == ["checkpoint-23", "checkpoint-24"]


@pytest.mark.slow
@pytest.mark.long
def test_two_processes_save_and_leave_at_one_step_and_end_bit_for_bit_as_one_run(tmp_path):
    interrupted(SCRIPT, tmp_path, 2, processes=2)


@pytest.mark.slow
@pytest.mark.long
def test_what_trainer_does_not_keep_without_and_with_the_callback(tmp_path):
    """Without the random generators the pieces differ; what a dataset draws is not kept even with them."""
    differ(SCRIPT, tmp_path, "random", "drawn")


BROKEN = """
from torch.utils.data import DataLoader
loader = DataLoader(Data(), 4)

class Broken(Trainer):
    def get_train_dataloader(self):
        return loader
    def training_step(self, *args):
        if self.state.global_step == 3:
            assert type(loader) is not DataLoader and signal.getsignal(signal.SIGTERM) is not before
            raise ValueError("broken")
        return super().training_step(*args)

before = signal.getsignal(signal.SIGTERM)
args = TrainingArguments(
    output_dir="out", use_cpu=True, per_device_train_batch_size=4, save_strategy="no", report_to=[], disable_tqdm=True
)
trainer = Broken(Net(), args, train_dataset=Data(), callbacks=[FailoverCallback()])
for _ in range(2):
    try:
        trainer.train()
    except ValueError as error:
        print(error)
    assert type(loader) is DataLoader
    assert signal.getsignal(signal.SIGTERM) is before
"""


@pytest.mark.slow
def test_a_training_that_ends_by_an_exception_gives_the_loader_and_the_signals_back(tmp_path):
    assert run(SCRIPT + BROKEN, tmp_path, FORKS).count("broken") == 2


@pytest.mark.thorough
@pytest.mark.parametrize("processes", [1, 2])
def test_twenty_kills_and_twenty_notices(tmp_path, processes):
    interrupted(SCRIPT, tmp_path, 20, processes=processes)
