"""What a type checker says of a user's script: with the real libraries, on the copy that the node hands out."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest

import provisioner.node.torch as toolkit
from provisioner.node.toolkit import lay_out
from tests.torch_scripts import PYTHON, ROOT, needs_torch

pytestmark = [*needs_torch, pytest.mark.slow]

# Accelerate ships no types, PyTorch none for Tensor.backward. Most of the libraries' insides say nothing about those
# of a script, and would take time.
CONFIG = """
[mypy]
strict = true
untyped_calls_exclude = torch
explicit_package_bases = true

[mypy-accelerate.*]
ignore_missing_imports = true

[mypy-{insides}]
follow_imports = skip
ignore_missing_imports = true
"""
INSIDES = """
    torch._dynamo torch._inductor torch._functorch torch._subclasses torch._decomp torch._prims torch._refs
    torch._export torch.export torch._higher_order_ops torch.fx torch.ao torch.onnx torch.testing
    torch.distributed.fsdp torch.distributed.tensor sympy numpy torchmetrics lightning_fabric lightning.fabric
    transformers.models transformers.quantizers transformers.integrations transformers.generation huggingface_hub
    tokenizers pydantic aiohttp fsspec safetensors networkx
"""
SCRIPT = """
import lightning.pytorch
import pytorch_lightning
import torch
import transformers
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from provisioner.node.torch import {names}
from provisioner.node.torch import accelerate, huggingface
from provisioner.node.torch.lightning import FailoverCallback

model = nn.Linear(2, 2)
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
loader = DataLoader(TensorDataset(torch.zeros(3, 2)), batch_size=2)
average = torch.optim.swa_utils.AveragedModel(model)
auto = AutoBatch(model, scaler=torch.amp.GradScaler())
reveal_type(Stopped("reason", 75).code)
reveal_type(ForeignMemory().reason())
reveal_type(resumable([1, 2]))
reveal_type(fit(model, torch.zeros(3, 2), loss=lambda piece: model(piece).sum()))
with advising(loader) as advised:
    reveal_type(advised.batch_size)
    for batch in advised:
        model(batch)
with checkpointing(model, optimizer, scheduler, dataloader=loader, also={{"average": average}}, every_s=60.0) as run:
    reveal_type(run)
    for epoch in run.epochs(3):
        reveal_type(epoch)
        for batch in run.batches:
            loss = auto.backward(("a", batch), lambda piece: model(piece[1]).sum() + len(piece[0]))
            reveal_type(loss)
            run.step(loss=loss)
with accelerate.checkpointing(Accelerator(), [1, 2]) as accelerated:
    reveal_type(accelerated)
    for number in accelerated.batches:
        reveal_type(number)
callback = FailoverCallback(every_s=60.0, watch=ForeignMemory())
reveal_type(callback.restored)
lightning.pytorch.Trainer(callbacks=[callback])
pytorch_lightning.Trainer(callbacks=[callback])
another = huggingface.FailoverCallback()
trainer = transformers.Trainer(model, transformers.TrainingArguments(output_dir="out"), callbacks=[another])
trainer.train(resume_from_checkpoint=another.restored)
reveal_type(another.restored)
"""
# What the pages of docs/torch take for granted.
GIVEN = """
import torch
import transformers
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

criterion = nn.CrossEntropyLoss()
net = nn.Linear(2, 2)
optimizer = torch.optim.AdamW(net.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
data = TensorDataset(torch.zeros(3, 2), torch.zeros(3))
loader = DataLoader(data, batch_size=2)
"""
PAGES = {
    "plain": "model = net",
    "lightning": "from lightning.pytorch import LightningModule, Trainer\nmodel = LightningModule()",
    "huggingface": "from transformers import Trainer\nmodel, args = net, transformers.TrainingArguments('out')",
    "accelerate": "model, accelerator = net, Accelerator()",
    "autobatch": "import provisioner.node.torch as ours\nmodel, run = net, ours.checkpointing(net, dataloader=loader)",
    "shared-card": "model = net",
    "efficiency": "",
    "processes": """
from typing import Any
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from provisioner.node.torch import checkpointing
model: Any = net""",
    "fit": "model = net",
}
REVEALED = """
str | int | None, str, Batches[int], Plan, int | None, Checkpointing, int, Tensor, Accelerated[int], int,
str | None, str | None
"""
MISTAKES = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from provisioner.node.torch import AutoBatch, checkpointing
from provisioner.node.torch import chekpointing  # a name that is not there
from provisioner.node.torch.lightning import FailoverCallback

model = nn.Linear(2, 2)
checkpointing(model, DataLoader(TensorDataset(torch.zeros(3, 2))))  # a loader for an optimizer
checkpointing(model, evry_s=60.0)  # an argument that is not there
FailoverCallback().restord  # an attribute that is not there
AutoBatch(model).backward((1, 2), lambda piece: model(piece[2]))  # a part that the batch has not
"""


def test_scripts_with_every_name_and_the_docs_are_clean_and_typed_and_mistakes_are_told(tmp_path):
    lay_out(tmp_path / "copy")
    insides = ",".join(f"{name}.*" for name in INSIDES.split())
    (tmp_path / "mypy.ini").write_text(CONFIG.format(insides=insides))
    (tmp_path / "script.py").write_text(SCRIPT.format(names=", ".join(toolkit.__all__)))
    (tmp_path / "mistakes.py").write_text(MISTAKES)
    for example in (ROOT / "examples").glob("*_*.py"):
        shutil.copy(example, tmp_path)
    for page, given in PAGES.items():
        code = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "torch" / f"{page}.md").read_text(), re.DOTALL)
        (tmp_path / f"page_{page.replace('-', '_')}.py").write_text("\n".join([GIVEN, given, *code]))
    command = [
        sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", "cache", "--no-error-summary",
        "--python-executable", str(PYTHON), *(path.name for path in tmp_path.glob("*.py")),
    ]  # fmt: skip
    environ = {"MYPYPATH": str(tmp_path / "copy"), "PATH": "/usr/bin:/bin"}
    said = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False, timeout=600)
    revealed = re.findall(r'^script\.py:\d+: note: Revealed type is "(.*)"$', said.stdout, re.MULTILINE)
    plain = ", ".join(re.sub(r"\b(?:\w+\.)+(?=\w)", "", one) for one in revealed)
    assert plain == " ".join(REVEALED.split()), said.stdout + said.stderr
    wrong = {line.split(" ", 1)[0] for line in said.stdout.splitlines() if ": error:" in line}
    lines = [number for number, line in enumerate(MISTAKES.splitlines(), 1) if "  # a" in line]
    assert wrong == {f"mistakes.py:{number}:" for number in lines}, said.stdout
