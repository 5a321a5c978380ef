"""Batches in pieces: whatever the card refuses, the training is the one that the script describes."""

from __future__ import annotations

import re

import pytest

from tests.torch_scripts import FORKS, needs_torch, run

pytestmark = needs_torch

SETUP = """
import torch
from torch import nn
from provisioner.node.torch import AutoBatch
from provisioner.node.torch.surroundings import Surroundings

class Card:
    '''A card on which no more than ``most`` samples fit; ``used`` bytes of 1000 are in use at the peak.'''
    def __init__(self, most=10**9, used=1000):
        self.most, self.used, self.emptied = most, used, 0
    def total(self): return 1000
    def peak(self): return self.used
    def free_unused(self): self.emptied += 1

def train(card=None, steps=6, batch=32, environ=None, away=False, **options):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16, momentum=None), nn.Dropout(0.0), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    auto = AutoBatch(model, card=card or Card(), surroundings=Surroundings(environ or {}), **options)
    data = torch.randn(steps, batch, 4, generator=torch.Generator().manual_seed(5))
    sizes, losses = [], []
    def loss_of(piece):
        x, names = piece
        assert len(names) == len(x)
        out = model[0](x)
        if card and len(x) > card.most:
            model[1](out)  # the statistics have moved, random numbers were drawn
            torch.rand(3)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        sizes.append(len(x))
        return (model[3](out).squeeze(1) - x.sum(1)).pow(2).mean()
    for number in range(steps):
        optimizer.zero_grad()
        losses.append(auto.backward((data[number], ["name"] * batch), loss_of).item())
        optimizer.step()
    return auto, model, sizes, losses, torch.rand(1).item()
"""


def test_what_does_not_fit_is_done_again_in_smaller_pieces_and_comes_out_the_same(tmp_path):
    said = run(
        SETUP
        + """
_, whole, sizes, losses, after = train()
assert sizes == [32] * 6
card = Card(most=9)
auto, model, sizes, smaller, also_after = train(card)
assert sizes == [8, 8, 8, 8] * 6 and auto.size == 8 and card.emptied == 2, (sizes, card.emptied)
assert all(abs(a - b) < 1e-5 for a, b in zip(losses, smaller))
for (name, one), other in zip(whole.state_dict().items(), model.state_dict().values()):
    assert torch.allclose(one, other, atol=1e-5), name
assert after == also_after  # the failed tries drew random numbers
assert int(model[1].num_batches_tracked) == 0  # and moved statistics: both are taken back
print("same")
""",
        tmp_path,
    )
    assert said == "same\n"


def test_without_it_the_batch_is_an_end_and_without_what_it_takes_back_the_numbers_differ(tmp_path):
    run(
        SETUP
        + """
from provisioner.node.torch import autobatch
_, _, _, _, after = train()
autobatch._Before.take_back = lambda before: None
_, model, sizes, _, also_after = train(Card(most=9))
assert sizes == [8] * 24 and after != also_after and int(model[1].num_batches_tracked) == 2
AutoBatch.backward = lambda auto, batch, loss_of: loss_of(batch)
try:
    train(Card(most=9))
except torch.OutOfMemoryError:
    print("no room")
""",
        tmp_path,
    )


def test_after_three_halvings_the_node_is_told_and_begins_the_next_start_with_less(tmp_path):
    run(
        SETUP
        + """
try:
    train(Card(most=3))
except torch.OutOfMemoryError as error:
    assert "CUDA out of memory" in str(error)
else:
    raise AssertionError("32, 16, 8 and 4 do not fit into room for 3")
auto, _, sizes, _, _ = train(Card(most=3), environ={"FAILOVER_BATCH_SCALE": "0.0625"})
assert sizes == [2] * 96 and auto.size == 2

def broken(piece):
    raise RuntimeError("size mismatch")
try:
    auto.backward((torch.randn(8, 4), ["name"] * 8), broken)
except RuntimeError as error:
    assert str(error) == "size mismatch"
else:
    raise AssertionError("an error of the script is no lack of memory")
""",
        tmp_path,
    )


def test_pieces_grow_into_free_memory_but_not_into_what_was_refused_nor_into_the_margin(tmp_path):
    run(
        SETUP
        + """
def size_after(used, most=10**9, **options):
    auto, *_ = train(Card(most, used), steps=12, look_every=2, warmup=4, **options)
    return auto.size

assert size_after(300, max_batch=4) == 4  # the user's bound
small = {"environ": {"FAILOVER_BATCH_SCALE": "0.125"}}
assert size_after(300, **small) == 32
assert size_after(401, **small) == 4  # twice that would leave less than a fifth
assert size_after(401, safety_margin=0.1, **small) > 4
assert size_after(300, most=9, **small) == 8  # 16 was tried and did not fit
""",
        tmp_path,
    )


def test_the_noise_of_the_gradient_is_measured_as_it_is_defined(tmp_path):
    """On data whose noise is known: gradients of mean 1 and variance 16 have a noise scale of 16."""
    run(
        """
        import torch
        from provisioner.node.torch import AutoBatch
        from provisioner.node.torch.surroundings import Surroundings
        torch.manual_seed(0)
        model = torch.nn.Linear(1, 1, bias=False)
        auto = AutoBatch(model, max_batch=8, look_every=1, card=None, surroundings=Surroundings({}))
        for _ in range(1000):
            model.zero_grad()
            auto.backward(1.0 + 4.0 * torch.randn(64, 1), lambda piece: model(piece).mean())
        assert 8 < auto.noise < 32, auto.noise
        """,
        tmp_path,
    )


def test_the_example_ends_with_pieces_as_with_whole_batches_and_without_it_the_card_ends_it(tmp_path):
    said = run(
        """
        import os, sys
        import torch
        import torch_autobatch as example

        def train(name, *arguments):
            os.environ["FAILOVER_CHECKPOINT_DIR"] = name
            sys.argv = ["example", "--epochs", "2", *arguments]
            example.main()

        train("whole")
        train("pieces", "--room", "100")
        example.AutoBatch.backward = lambda auto, batch, loss_of: loss_of(batch).backward()
        try:
            train("away", "--room", "100")
        except torch.OutOfMemoryError as error:
            print(error)
        """,
        tmp_path,
        FORKS,
    )
    (whole, at_once), (parts, in_pieces) = re.findall(r"^done at step 16: loss (\S+), .* in (.*)$", said, re.MULTILINE)
    assert (at_once, in_pieces) == ("pieces of 256", "pieces of 64")
    assert float(parts) == pytest.approx(float(whole), abs=1e-4)
    assert said.endswith("no room for 256 images\n")


def test_a_buffer_that_the_model_replaces_goes_back_and_a_scale_that_is_still_sought_does_not_end_the_noise(tmp_path):
    run(
        SETUP
        + """
class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 1)
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("last", None)
    def forward(self, x):
        self.seen, self.last = self.seen + len(x), x.mean(0)
        return self.linear(x)

card, model = Card(most=8), Counting()
def loss_of(piece):
    out = model(piece)
    if len(piece) > card.most:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    return out.pow(2).mean()
auto = AutoBatch(model, card=card, surroundings=Surroundings({}))
auto.backward(torch.randn(32, 4), loss_of)
assert auto.size == 8 and model.seen.item() == 32, model.seen

scaler = torch.amp.GradScaler("cpu", init_scale=3e38)
auto = AutoBatch(model, max_batch=8, card=card, surroundings=Surroundings({}), scaler=scaler, look_every=1)
found = set()
for number in range(12):
    model.zero_grad()
    auto.backward(1 + torch.randn(32, 4), loss_of)
    scaler._scale.fill_(8.0)
    found.add(auto.noise)
assert found > {None}, found
""",
        tmp_path,
    )
