"""Scripts that are not like the examples: states, loaders and models of other makes come back as they were."""

from __future__ import annotations

from tests.torch_scripts import FORKS, needs_torch, run

pytestmark = needs_torch

SETUP = """
import contextlib, io, os, sys
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from provisioner.node.torch import checkpointing
from provisioner.node.torch.surroundings import Surroundings

def save(folder, *parts, steps=1, **more):
    around = Surroundings({"FAILOVER_CHECKPOINT_DIR": folder})
    with checkpointing(*parts, surroundings=around, every_s=9999, **more) as run:
        while run.done < steps:
            run.step()
    return run

def load(folder, *parts, **more):
    around = Surroundings({"FAILOVER_CHECKPOINT_DIR": folder})
    with checkpointing(*parts, surroundings=around, **more) as run:
        return run

class Kept:
    def __init__(self, **state):
        self.state = state
    def state_dict(self):
        return self.state
    def load_state_dict(self, state):
        self.state = state

def names(folder):
    return sorted(path.name for path in Path(folder).iterdir())
"""


def test_a_state_with_numpys_numbers_comes_back_and_what_cannot_is_named_before_the_first_step(tmp_path):
    """A checkpoint that was written and cannot be read would let the run begin anew on each machine."""
    run(
        SETUP
        + """
import numpy, fractions
model = nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: numpy.cos(step / 10))
optimizer.step()
scheduler.step()
kept = Kept(array=numpy.arange(6, dtype="int16").reshape(2, 3), one=numpy.float32(0.1), flag=numpy.bool_(True))
save("numpy", model, optimizer, scheduler, also={"kept": kept})
lr, kept.state = scheduler.get_last_lr(), {}
scheduler.last_epoch, optimizer.param_groups[0]["lr"] = 0, 5.0
run = load("numpy", model, optimizer, scheduler, also={"kept": kept})
assert run.restored and scheduler.last_epoch == 1
assert optimizer.param_groups[0]["lr"] == lr[0] and type(optimizer.param_groups[0]["lr"]) is type(lr[0]), lr
assert kept.state["array"].tolist() == [[0, 1, 2], [3, 4, 5]] and kept.state["array"].dtype == "int16"
assert kept.state["one"] == numpy.float32(0.1) and kept.state["one"].dtype == "float32" and kept.state["flag"]

for value in (fractions.Fraction(1, 3), Path("x"), numpy.array(["text"]), lambda: 0):
    try:
        save("strange", model, also={"kept": Kept(deep=[{"odd": value}])})
    except TypeError as error:
        assert str(error).startswith("kept: deep.0.odd is a "), error
        assert type(value).__name__ in str(error), error
    else:
        raise AssertionError(value)
assert not Path("strange").exists()
""",
        tmp_path,
    )


def test_schedules_with_milestones_and_scalers_that_begin_to_scale_go_on(tmp_path):
    run(
        SETUP
        + """
import warnings
warnings.simplefilter("ignore")
def make():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    first = torch.optim.lr_scheduler.ConstantLR(optimizer, 0.5, 3)
    second = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4])
    return optimizer, torch.optim.lr_scheduler.SequentialLR(optimizer, [first, second], [3])

def train(folder, pieces):
    lrs = []
    for last in pieces:
        optimizer, scheduler = make()
        around = Surroundings({"FAILOVER_CHECKPOINT_DIR": folder})
        with checkpointing(nn.Linear(1, 1), optimizer, scheduler, surroundings=around) as run:
            while run.done < last:
                optimizer.step()
                scheduler.step()
                lrs.append(optimizer.param_groups[0]["lr"])
                run.step()
    return lrs

assert train("pieces", [1, 5, 9]) == train("whole", [9])

model = nn.Linear(1, 1)
save("scaler", model, scaler=torch.amp.GradScaler("cpu", enabled=False))  # bfloat16 there,
scaler = torch.amp.GradScaler("cpu", init_scale=4.0)                       # float16 here
assert load("scaler", model, scaler=scaler).restored and scaler.get_scale() == 4.0
""",
        tmp_path,
    )


def test_a_compiled_model_that_calls_a_part_of_itself_module_is_saved_whole(tmp_path):
    run(
        SETUP
        + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.module, self.head = nn.Linear(2, 2), nn.Linear(2, 1)

compiled = torch.compile(Net())
save("out", compiled)
before = compiled._orig_mod.head.weight.detach().clone()
other = Net()
load("out", other)  # compiled there, and not here
assert torch.equal(other.head.weight, before)
""",
        tmp_path,
    )


def test_states_of_another_memory_layout_keep_it(tmp_path):
    """A fused optimizer walks through weights and their state side by side."""
    run(
        SETUP
        + """
def train(folder, pieces):
    for last in pieces:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2)).to(memory_format=torch.channels_last)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
        data = torch.randn(6, 5, 3, 4, 4).to(memory_format=torch.contiguous_format)
        around = Surroundings({"FAILOVER_CHECKPOINT_DIR": folder})
        with checkpointing(model, optimizer, surroundings=around) as run:
            while run.done < last:
                model(data[run.done].to(memory_format=torch.channels_last)).pow(2).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                run.step()
    state = optimizer.state[model[0].weight]["exp_avg"]
    assert state.stride() == model[0].weight.stride(), state.stride()
    return [one.detach() for one in model.parameters()]

assert all(torch.equal(a, b) for a, b in zip(train("whole", [6]), train("pieces", [3, 6])))
""",
        tmp_path,
    )


def test_names_that_run_together_stay_apart(tmp_path):
    run(
        SETUP
        + """
two, three = torch.full((1,), 2.0), torch.full((1,), 3.0)
kept = Kept(**{"a.b": torch.zeros(2), "a": {"b": torch.ones(2)}, "c": {1: two, "1": three}})
save("out", nn.Linear(1, 1), also={"kept": kept})
kept.state = {}
load("out", nn.Linear(1, 1), also={"kept": kept})
assert kept.state["a.b"].tolist() == [0, 0] and kept.state["a"]["b"].tolist() == [1, 1], kept.state
assert kept.state["c"][1].item() == 2 and kept.state["c"]["1"].item() == 3, kept.state
""",
        tmp_path,
    )


def test_a_run_that_could_read_nothing_keeps_what_it_saves_itself_and_drafts_of_the_dead_go(tmp_path):
    """Two damaged checkpoints of higher steps must not push out each new one."""
    run(
        SETUP
        + """
model = nn.Linear(2, 2)
save("out", model, steps=50)
save("out", model, steps=60)
damages = {
    "step-60": b'{"weight":{"dtype":"F32","shape":[200000000000000000,2],"data_offsets":[0,16]}}',
    "step-50": b'["no", "header"]     ',
}
for name, header in damages.items():
    Path("out", name, "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
Path("out/.step-55.tmp").mkdir()
Path("out/.step-55.tmp/model.safetensors").write_bytes(bytes(1000))
run = save("out", model, steps=3)
assert not run.restored and names("out") == ["step-3", "step-50", "step-60"], names("out")
run = save("out", model, steps=4)
assert run.restored and names("out") == ["step-3", "step-4", "step-50", "step-60"], names("out")
run = save("out", model, steps=5)
assert names("out") == ["step-4", "step-5", "step-50", "step-60"], names("out")
run = save("out", model, steps=60)
assert names("out") == ["step-5", "step-60"] or names("out") == ["step-50", "step-60"], names("out")
assert load("out", model).done == 60
""",
        tmp_path,
    )


def test_a_part_must_not_take_the_name_or_the_file_of_another(tmp_path):
    run(
        SETUP
        + """
for name in ("model", "model.frozen", "a/b", ""):
    try:
        checkpointing(nn.Linear(1, 1), also={name: nn.Linear(1, 1)})
    except ValueError as error:
        assert repr(name) in str(error), error
    else:
        raise AssertionError(name)
""",
        tmp_path,
    )


def test_two_trainings_at_once_in_one_directory_are_refused(tmp_path):
    run(
        SETUP
        + """
one, other = nn.Linear(2, 2), nn.Linear(2, 2)
around = Surroundings({"FAILOVER_CHECKPOINT_DIR": "out"})
with checkpointing(one, surroundings=around) as run:
    run.step()
    try:
        with checkpointing(other, surroundings=around):
            raise AssertionError("not refused")
    except RuntimeError as error:
        assert "also=" in str(error), error
assert load("out", one).done == 1  # one after the other is as ever
""",
        tmp_path,
    )


LOADERS = """
class Numbers(Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, index):
        return torch.tensor(index)

def through(loader, folder="out", pieces=(99,)):
    found = []
    for last in pieces:
        around = Surroundings({"FAILOVER_CHECKPOINT_DIR": folder})
        with checkpointing(nn.Linear(1, 1), dataloader=loader, surroundings=around) as run:
            for _ in run.epochs(2):
                for batch in run.batches:
                    found.append(batch.tolist())
                    run.step()
                    if run.done == last:
                        break
                if run.done == last:
                    break
    return found
"""


def test_loaders_and_samplers_with_a_way_of_their_own_keep_it(tmp_path):
    run(
        SETUP
        + LOADERS
        + """
from torch.utils.data import DistributedSampler

class Backwards(DistributedSampler):
    def __iter__(self):
        return iter(range(len(self.dataset) - 1, -1, -1))

class Doubled(DataLoader):
    def __iter__(self):
        return (2 * batch for batch in super().__iter__())

sampler = Backwards(Numbers(), num_replicas=1, rank=0)
expected = [[11, 10, 9, 8], [7, 6, 5, 4], [3, 2, 1, 0]] * 2
assert through(DataLoader(Numbers(), batch_size=4, sampler=sampler), "a") == expected
assert through(DataLoader(Numbers(), batch_size=4, sampler=sampler), "b", (2, 4, 6)) == expected
expected = [[0, 2, 4, 6], [8, 10, 12, 14], [16, 18, 20, 22]] * 2
assert through(Doubled(Numbers(), batch_size=4), "c") == expected
assert through(Doubled(Numbers(), batch_size=4), "d", (2, 4, 6)) == expected
""",
        tmp_path,
    )


def test_a_generator_with_a_seed_out_of_nowhere_gives_the_same_order_after_a_restart(tmp_path):
    run(
        SETUP
        + LOADERS
        + """
for folder, pieces in (("whole", (99,)), ("pieces", (1, 2, 4, 5, 6))):
    found = []
    for last in pieces:
        generator = torch.Generator()
        generator.seed()
        loader = DataLoader(Numbers(), batch_size=4, shuffle=True, generator=generator)
        found += through(loader, folder, (last,))
    assert len(found) == 6
    for epoch in (found[:3], found[3:]):
        assert sorted(sum(epoch, [])) == list(range(12)), found
""",
        tmp_path,
    )


def test_workers_that_stay_keep_the_order_of_each_epoch_after_a_restart(tmp_path):
    """A new loader draws a seed before its sampler does, one whose workers stayed does not."""
    run(
        SETUP
        + LOADERS
        + """
def make(**ways):
    torch.manual_seed(5)
    return DataLoader(Numbers(), batch_size=4, shuffle=True, **ways)

stay = {"num_workers": 1, "persistent_workers": True}
whole = through(make(**stay), "whole")
pieces = sum((through(make(**stay), "pieces", (last,)) for last in (4, 5, 6)), [])
assert whole == pieces == through(make(), "alone"), (whole, pieces)

class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(torch.randperm(12))

def make(**ways):
    torch.manual_seed(5)
    return DataLoader(Stream(), batch_size=4, **ways)

whole = through(make(**stay), "whole-stream")
assert whole == sum((through(make(**stay), "pieces-stream", (last,)) for last in (4, 5, 6)), []), whole
""",
        tmp_path,
    )


def test_a_worker_sees_the_scripts_own_dataset(tmp_path):
    run(
        SETUP
        + LOADERS
        + """
from torch.utils.data import get_worker_info

class Opened(Numbers):
    file = None
    def __getitem__(self, index):
        assert get_worker_info().dataset is self
        return torch.tensor(index + self.file)

def opened(worker):
    get_worker_info().dataset.file = 100

for persistent in (False, True):
    loader = DataLoader(Opened(), batch_size=6, num_workers=2, worker_init_fn=opened, persistent_workers=persistent)
    assert through(loader, f"out-{persistent}") == [[100, 101, 102, 103, 104, 105], [106, 107, 108, 109, 110, 111]] * 2
""",
        tmp_path,
    )


def test_what_cannot_be_shared_out_among_processes_is_refused(tmp_path):
    """``resumable`` would train with another distribution, or on single samples."""
    run(
        SETUP
        + LOADERS
        + """
import torch.distributed as dist
from torch.utils.data import BatchSampler, SequentialSampler, WeightedRandomSampler
from provisioner.node.torch import resumable

class Doubled(DataLoader):
    def __iter__(self):
        return (2 * batch for batch in super().__iter__())

dist.get_world_size, dist.get_rank, dist.is_initialized = lambda *_: 2, lambda *_: 1, lambda: True
for make in (
    lambda: DataLoader(Numbers(), batch_size=4, sampler=WeightedRandomSampler([1.0] * 12, 12)),
    lambda: DataLoader(Numbers(), batch_sampler=BatchSampler(SequentialSampler(Numbers()), 4, True)),
    lambda: Doubled(Numbers(), batch_size=4),
):
    try:
        list(resumable(make()))
    except ValueError as error:
        assert "share=False" in str(error), error
    else:
        raise AssertionError("not refused")
    assert len(list(resumable(make(), share=False))) == 3
assert [batch.tolist() for batch in resumable(DataLoader(Numbers(), batch_size=4))] == [[1, 3, 5, 7], [9, 11]]
""",
        tmp_path,
    )


def test_processes_that_do_not_see_the_same_directory_do_not_train_apart(tmp_path):
    said = run(
        """
import os, sys
import torch
import torch.distributed as dist
from provisioner.node.torch import checkpointing, folder
from tests import torch_forks

def gone(path):
    raise ValueError(f"{path} is on another machine")

def work():
    sys.stderr = sys.stdout
    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        folder.read = gone
    with checkpointing(torch.nn.Linear(2, 2), every_s=9999) as run:
        for _ in range(2):
            run.step()
    dist.barrier()
    dist.destroy_process_group()

assert torch_forks.train(work, "out", processes=2) == [0, 0]
codes = torch_forks.train(work, "out", processes=2)
assert 1 in codes and torch_forks.steps("out") == [2], codes
""",
        tmp_path,
        FORKS,
    )
    assert (
        "process 1 is at step 0, the first one at 2: all processes have to see the same FAILOVER_CHECKPOINT_DIR" in said
    )
