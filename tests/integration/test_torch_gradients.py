"""Gradients in half the bytes: only where the link is what a step waits for."""

from __future__ import annotations

import re

import pytest

from tests.torch_scripts import FORKS, ROOT, needs_torch, run

pytestmark = needs_torch

MODEL = """
from provisioner.node.torch.gradients import Link, link_of, saved
link = link_of([(1 << 18, 0.012), (1 << 21, 0.026), (1 << 24, 0.138)])
assert abs(link.seconds(1 << 24) - 0.138) < 1e-9 and abs(link.latency_s - 0.01) < 1e-3, link
assert link_of([(1 << 18, 5.0)]).bandwidth == (1 << 18) / 5.0       # so slow that nothing larger was tried
assert link_of([(1 << 18, 0.02), (1 << 24, 0.01)]).bandwidth > 0    # noise must not turn the line round
slow, fast = Link(0.0, 1e8), Link(0.0, 1e11)
assert saved(slow, 10**9, cast_s=0.1, backward_s=0.0) == (10 - 5.1) / 10
assert saved(slow, 10**9, cast_s=0.1, backward_s=20.0) < 0  # sent beside the backward pass
assert saved(slow, 10**9, cast_s=0.1, backward_s=8.0) == (10 - 8.1) / 10
assert saved(fast, 10**9, cast_s=0.1, backward_s=0.0) < 0
assert saved(Link(9.0, 1e9), 10**9, cast_s=0.0, backward_s=0.0) == 0.05  # latency stays what it is
"""


def test_what_half_the_bytes_save_is_what_a_step_waits_for_less_the_cast(tmp_path):
    run(MODEL, tmp_path, {"PYTHONPATH": str(ROOT)})


@pytest.mark.slow
def test_two_processes_halve_the_bytes_over_a_slow_link_and_leave_them_over_a_fast_one(tmp_path):
    said = run(
        """
        import sys, torch
        import torch.distributed as dist
        from torch import nn
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
        from provisioner.node.torch.gradients import compress_gradients
        from tests import torch_forks

        def work():
            dist.init_process_group("gloo")
            reduce, sent = dist.all_reduce, []
            def trained(bandwidth):
                torch.manual_seed(3)
                net = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 2))
                model = nn.parallel.DistributedDataParallel(net)
                kind = compress_gradients(model, bandwidth=bandwidth) if bandwidth != "all" else ""
                if not kind:
                    model.register_comm_hook(None, default_hooks.allreduce_hook)  # refused where there is one already
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                sent.clear()
                for step in range(30):
                    torch.manual_seed(100 * step + dist.get_rank())
                    x = torch.randn(16, 64)
                    loss = nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long())
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                return kind, sum(sent), loss.item()
            def counted(tensor, *args, **kwargs):
                sent.append(tensor.numel() * tensor.element_size())
                return reduce(tensor, *args, **kwargs)
            dist.all_reduce = counted
            whole, slow, fast = trained("all"), trained(1e5), trained(1e15)
            assert slow[0] == "fp16" and fast[0] is None, (slow, fast)
            assert fast[1:] == whole[1:] and 2 * slow[1] == whole[1], (whole, slow, fast)
            assert slow[2] != whole[2] and abs(slow[2] - whole[2]) < 0.01, (whole, slow)
            assert compress_gradients(nn.parallel.DistributedDataParallel(nn.Linear(512, 512))) in {None, "fp16"}
            if dist.get_rank() == 0:
                sys.stdout.write(f"losses {whole[2]} {slow[2]}\\n")
            dist.barrier()
            dist.destroy_process_group()

        assert torch_forks.train(work, "none", processes=2) == [0, 0]
        """,
        tmp_path,
        {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    assert "losses" in said


@pytest.mark.slow
def test_the_example_trains_on_rounded_gradients_over_a_slow_link_and_on_whole_ones_else(tmp_path):
    said = run(
        """
        import functools, os, sys
        import torch_torchrun as example
        from tests import torch_forks

        compress = example.compress_gradients

        def work():
            example.compress_gradients = functools.partial(compress, bandwidth=float(os.environ["BANDWIDTH"]))
            sys.argv = ["example", "--epochs", "1", "--compress"]
            example.main()

        for bandwidth in ("1e5", "1e15"):
            assert torch_forks.train(work, bandwidth, processes=2, BANDWIDTH=bandwidth) == [0, 0]
        """,
        tmp_path,
        {**FORKS, "OMP_NUM_THREADS": "1"},
    )
    slow, fast = re.findall(r"^step 29 loss (\S+)$", said, re.MULTILINE)
    assert slow != fast
    assert float(slow) == pytest.approx(float(fast), abs=0.01)
