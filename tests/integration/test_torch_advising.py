"""What a training is advised: by loaders that are really slow, and by cards and hosts as a test plays them."""

from __future__ import annotations

import json
import re

import pytest

from tests.integration.test_torch_huggingface import SCRIPT as HUGGINGFACE
from tests.integration.test_torch_lightning import SCRIPT as LIGHTNING
from tests.torch_scripts import PYTHON, ROOT, needs_torch, run, start

pytestmark = needs_torch
ENVIRON = {"PYTHONPATH": str(ROOT), "TRANSFORMERS_VERBOSITY": "error"}

# A batch takes 40 ms to load where the set is slow, and is trained for 50 ms.
REAL = """
import time
import torch
from torch.utils.data import DataLoader, Dataset
from provisioner.node.torch import advising
from provisioner.node.torch.host import Host
from provisioner.node.torch.meter import Meter

class Samples(Dataset):
    def __init__(self, seconds):
        self.seconds = seconds
    def __len__(self):
        return 120
    def __getitem__(self, index):
        if self.seconds:
            time.sleep(self.seconds)
        return torch.zeros(8)

def train(seconds, **ways):
    lines = []
    loader = DataLoader(Samples(seconds), batch_size=2, **{"num_workers": 0, **ways})
    watched = advising(loader, every_s=0.5, say=lines.append, meter=Meter(host=Host(affinity=8)))
    with watched as same:
        assert same is loader and isinstance(loader, DataLoader)
        for _ in loader:
            time.sleep(0.05)
    assert type(loader) is DataLoader
    return watched, lines

slow, lines = train(0.02)
print(lines)
assert slow.last.rule == "workers", lines
assert lines[0].startswith("efficiency after ") and lines[-1].startswith("efficiency at the end: "), lines
assert len(lines) == 2, lines                    # nothing has changed in between
assert 0.35 < slow.seen.wait < 0.75, slow.seen
unheeded, _ = train(0.02)
assert unheeded.seen.wait > 0.35, unheeded.seen
heeded, _ = train(0.02, **slow.last.change)
print(slow.last.change, slow.seen.wait, heeded.seen.wait)
assert heeded.seen.wait < slow.seen.wait / 2, heeded.seen
fast, lines = train(0)
assert fast.last.rule == "none", lines
assert fast.last.text.startswith("nothing to change: the training waits "), lines
"""


@pytest.mark.slow
def test_a_slow_loader_is_told_its_workers_and_waits_less_with_them_and_a_fast_one_nothing(tmp_path):
    said = run(REAL, tmp_path, ENVIRON)
    assert "num_workers 0 -> " in said


CARD = """
import time
from provisioner.node.torch.counsel import Gpu
from provisioner.node.torch.meter import Meter
from tests.played_nvml import PlayedNvml

nvml = PlayedNvml()
meter = Meter(nvml=lambda: nvml, every_s=0.01)
meter.start()
for nvml.utilization, size in ((20, 3), (60, 5), (40, 4)):
    nvml.memory = {11: size * 2**30}
    time.sleep(0.2)
seen = meter.gpu()
assert 0.3 < seen.busy < 0.5 and (seen.used, seen.total) == (5 * 2**30, 24 * 2**30), seen
nvml.broken = 999                                # it fails for good: nothing more is seen, and nothing ends
time.sleep(0.1)
meter.gpu()
time.sleep(0.1)
assert meter.gpu() is None
"""


def test_a_card_is_looked_at_beside_the_training_and_one_that_fails_ends_nothing(tmp_path):
    run(CARD, tmp_path, ENVIRON)


ODD = """
from provisioner.node.torch import advising

class Own:  # its own iterator, as NVIDIA DALI's are
    def __init__(self):
        self.left = 40
    def __iter__(self):
        return self
    def __next__(self):
        self.left -= 1
        if self.left < 0:
            raise StopIteration
        return self.left

class Slotted:
    __slots__ = ("items",)
    def __init__(self):
        self.items = list(range(40))
    def __iter__(self):
        return iter(self.items)

class Numbered:
    def __len__(self):
        return 40
    def __getitem__(self, index):
        return list(range(40))[index]

for make in (Own, Slotted, Numbered):
    loader = make()
    with advising(loader, every_s=0, warm_up=1, say=lambda line: None) as watched:
        found = iter(watched)
        assert sorted([next(found) for _ in range(30)] + list(found)) == list(range(40)), make
    assert type(loader) is make

with advising(Own(), every_s=0, warm_up=1, say=lambda line: None) as watched:
    found = iter(watched)
    assert [next(found) for _ in range(15)]
assert len(list(found)) == 25  # somebody goes on with it
"""


def test_loaders_of_other_makes_are_gone_through_as_they_were(tmp_path):
    run(ODD, tmp_path, ENVIRON)


def test_a_loop_tells_the_node(tmp_path):
    numbers = tmp_path / "efficiency.json"
    process = start(
        [str(PYTHON), str(ROOT / "examples" / "torch_digits.py"), "--epochs", "2"],
        tmp_path / "c",
        FAILOVER_EFFICIENCY_FILE=str(numbers),
    )
    output = process.communicate(timeout=60)[0]
    told = json.loads(numbers.read_text())
    assert f"failover: efficiency after 58 batches: {told['advice']}\n" in output
    assert 0 <= told["loader_wait"] <= 1
    assert told["cores"] > 0
    assert told["memory_limit_bytes"] > told["memory_used_bytes"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "name"),
    [(LIGHTNING, "FailoverCallback"), pytest.param(HUGGINGFACE, "FailoverCallback", marks=pytest.mark.long)],
)
def test_so_do_the_trainers(tmp_path, script, name):
    text = """
import warnings
warnings.simplefilter("ignore")
for name, more in (("on", {}), ("off", {"OFF": "1"})):
    assert torch_forks.train(work, name, RESULT=name + ".txt", FAILOVER_EFFICIENCY_FILE=name + ".json", **more) == [0]
assert not Path("off.json").exists()
assert Path("on.txt").read_text() == Path("off.txt").read_text()
"""
    script = script.replace(f"{name}(every_s=0)", f'{name}(every_s=999, advise="OFF" not in os.environ)')
    run(script + text, tmp_path, ENVIRON)
    assert 0 <= json.loads((tmp_path / "on.json").read_text())["loader_wait"] <= 1


@pytest.mark.slow
def test_the_example_waits_less_once_it_has_followed_the_advice(tmp_path):
    command = [str(PYTHON), str(ROOT / "examples" / "torch_advice.py"), "--samples", "120"]
    output = start(command, tmp_path / "c").communicate(timeout=60)[0]
    before, after = (int(share) for share in re.findall(r"^waited (\d+)%", output, re.MULTILINE))
    assert "{'num_workers': " in output, output
    assert after < 0.7 * before, output
