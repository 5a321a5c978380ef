"""PyTorch scripts that are killed, told to stop and moved: what comes out is what comes out without all that."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import textwrap
from pathlib import Path

import pytest

from tests.integration.conftest import NodeJob
from tests.torch_scripts import PYTHON, ROOT, TORCHRUN, needs_torch, run, start

pytestmark = needs_torch
DIGITS = [str(PYTHON), str(ROOT / "examples" / "torch_digits.py"), "--epochs", "2"]
LAST = 58

# Augmentation, dropout, shuffling: whatever draws random numbers while a script trains.
NOISY = """
import os, random, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from provisioner.node.torch import checkpointing

class Noisy(Dataset):
    def __len__(self):
        return 60
    def __getitem__(self, index):
        return torch.randn(8) + index * 0.01 + random.random(), torch.tensor(index % 2)

torch.manual_seed(3)
random.seed(4)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
loader = DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=int(os.environ.get("WORKERS", "0")))
die, away = int(os.environ.get("DIE", "0")), os.environ.get("AWAY", "")
with checkpointing(model, optimizer, scheduler, dataloader=loader, every_s=0, rng=away != "rng") as run:
    for _ in run.epochs(3):
        for inputs, labels in loader if away == "batches" else run.batches:
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            run.step(loss=loss)
            if run.done == die:
                run._writer.finish()
                os.kill(os.getpid(), 9)
print(run.done, [parameter.double().sum().item().hex() for parameter in model.parameters()], random.random())
"""


@pytest.fixture
def noisy(tmp_path: Path):
    script = tmp_path / "noisy.py"
    script.write_text(NOISY)

    def go(name: str, **environ: str) -> str:
        process = start([str(PYTHON), str(script)], tmp_path / name, **environ)
        output = process.communicate(timeout=120)[0]
        assert process.returncode in {0, -9}, output
        return output.splitlines()[-1] if process.returncode == 0 else ""

    return go


def test_the_example_killed_at_random_steps_ends_with_the_same_loss_digit_for_digit(tmp_path):
    whole = subprocess.run(DIGITS, env={**os.environ, "FAILOVER_CHECKPOINT_DIR": str(tmp_path / "a")}, check=True,
                           capture_output=True, text=True, timeout=60).stdout.splitlines()[-1]  # fmt: skip
    seeded = random.Random(17)
    for _ in range(2):
        process = start([*DIGITS, "--every", "0", "--workers", str(seeded.randrange(2))], tmp_path / "b")
        assert process.stdout is not None
        die = seeded.randrange(3, 12)
        for _ in range(die):
            line = process.stdout.readline()
            while line and not line.startswith("step"):
                line = process.stdout.readline()
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    process = start([*DIGITS, "--every", "0"], tmp_path / "b")
    output = process.communicate(timeout=60)[0]
    assert "going on after step" in output
    assert output.splitlines()[-1] == whole
    assert f"done at step {LAST}" in whole


def test_a_run_in_pieces_equals_one_run_bit_by_bit_whatever_the_workers_and_though_one_is_damaged(noisy, tmp_path):
    whole = noisy("whole")
    noisy("pieces", DIE="7", WORKERS="2")
    noisy("pieces", DIE="13", WORKERS="1")
    newest = max((tmp_path / "pieces").glob("step-*"), key=lambda path: int(path.name[5:]))
    weights = newest / "model.safetensors"
    saved = weights.read_bytes()
    weights.write_bytes(saved[:-5])  # the one before it is taken
    noisy("pieces", DIE="13")
    assert weights.read_bytes() == saved, "the damaged one is made anew"
    assert noisy("pieces") == whole


@pytest.mark.parametrize("away", ["rng", "batches"])
def test_without_what_is_kept_the_pieces_differ(noisy, away):
    whole = noisy("whole", AWAY=away)
    noisy("pieces", DIE="7", AWAY=away)
    assert noisy("pieces", AWAY=away) != whole


def test_a_request_to_stop_saves_the_step_though_it_reaches_the_loaders_workers_too(tmp_path):
    process = start([*DIGITS, "--workers", "2", "--step-seconds", "0.05"], tmp_path / "c")
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step 5 "):
            break
    os.killpg(process.pid, signal.SIGTERM)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 75, output
    saved = re.search(r"SIGTERM: step (\d+) is saved; leaving", output)
    assert saved
    assert [path.name for path in (tmp_path / "c").iterdir()] == [f"step-{saved[1]}"]
    assert 5 <= int(saved[1]) < LAST


def test_a_request_to_stop_ends_no_worker_that_is_just_being_started(tmp_path):
    said = run(
        """
        import os, signal
        import torch
        from torch.utils.data import DataLoader, TensorDataset
        from torch.utils.data._utils import signal_handling
        from provisioner.node.torch import checkpointing

        begin = signal_handling._set_worker_signal_handlers

        def struck():
            begin()
            os.kill(os.getpid(), signal.SIGTERM)

        signal_handling._set_worker_signal_handlers = struck
        loader = DataLoader(TensorDataset(torch.arange(6)), batch_size=2, num_workers=2)
        with checkpointing(torch.nn.Linear(1, 1), dataloader=loader) as run:
            print([batch.tolist() for _ in run.epochs(2) for batch, in run.batches])
        """,
        tmp_path,
    )
    assert said == "[[0, 1], [2, 3], [4, 5], [0, 1], [2, 3], [4, 5]]\n"


def test_under_the_node_nothing_is_installed_and_a_notice_costs_no_step(node_job: NodeJob):
    """The node's copy is what the script imports; the next machine goes on in the middle of the epoch."""
    where = f"{PYTHON} -c 'import provisioner; print(provisioner.__file__)'"
    command = ["sh", "-c", f'{where} && exec {" ".join(DIGITS)} "$@"', "digits"]
    first = node_job.start(1, [*command, "--step-seconds", "0.1"], steps=LAST)
    first.until_step(7)
    first.process.send_signal(signal.SIGTERM)
    assert first.wait() == 75
    assert f"{first.directory}/" in first.log().split("provisioner/__init__.py")[0]
    reached = int(re.findall(r"^step (\d+)", first.log(), re.MULTILINE)[-1])
    assert node_job.steps_committed()[-1] == reached
    second = node_job.start(2, command, steps=LAST)
    assert second.wait() == 0
    assert f"going on after step {reached}" in second.log()
    assert re.findall(r"^step (\d+)", second.log(), re.MULTILINE)[0] == str(reached + 1)
    assert node_job.done()["final_step"] == LAST


def test_the_files_are_safetensors_and_a_frozen_base_keeps_its_bytes(tmp_path):
    run(
        """
        import hashlib, pathlib, torch
        from safetensors.torch import load_file
        from torch import nn
        from provisioner.node.torch import checkpointing
        from provisioner.node.torch.surroundings import Surroundings

        here = pathlib.Path("out")
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2).to(torch.bfloat16), nn.Embedding(3, 4))
        model[2].weight.requires_grad_(False)
        model.tied = model[0]
        odd = torch.arange(6.0).reshape(2, 3).T
        model.register_buffer("odd", odd)
        model.register_buffer("none", torch.empty(0))
        optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad])
        around = Surroundings({"FAILOVER_CHECKPOINT_DIR": "out"})
        with checkpointing(model, optimizer, every_s=0, keep=9, surroundings=around) as run:
            for _ in range(2):
                model[0](torch.ones(4)).sum().backward()
                optimizer.step()
                run.step(loss=torch.tensor(0.5), note="text", none=float("nan"), many=torch.zeros(2))
                run._writer.finish()
        found = load_file(here / "step-2" / "model.safetensors")
        state = model.state_dict()
        for name, tensor in found.items():
            assert torch.equal(tensor, state[name]) and tensor.dtype == state[name].dtype, name
        assert set(found) == {"0.weight", "0.bias", "1.weight", "1.bias", "odd", "none"}
        digest = lambda step, name: hashlib.sha256((here / step / name).read_bytes()).hexdigest()
        assert digest("step-1", "model.frozen.safetensors") == digest("step-2", "model.frozen.safetensors")
        assert digest("step-1", "model.safetensors") != digest("step-2", "model.safetensors")
        assert (here / "step-2" / "metadata.json").read_text() == '{"step": 2, "loss": 0.5}'
        before = {name: tensor.clone() for name, tensor in state.items()}
        for tensor in state.values():
            tensor.zero_()
        with checkpointing(model, optimizer, surroundings=around) as run:
            assert run.done == 2 and run.restored
        assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
        """,
        tmp_path,
    )


def test_a_slow_disk_holds_no_step_and_the_newest_state_is_the_one_that_is_written(tmp_path):
    run(
        """
        import threading, torch
        from provisioner.node.torch.writer import Writer

        gate, written, weights = threading.Event(), [], torch.zeros(1000)

        def write(parts):
            gate.wait()
            written.append(parts["model"][1]["w"][0].item())

        writer = Writer()
        for number in range(5):  # none of these calls waits, or the gate would never open
            weights.fill_(number)
            writer.save({"model": {"w": weights}}, write)
        weights.fill_(99)
        gate.set()
        writer.finish()
        assert written[-1] == 4 and len(written) <= 2, written
        assert len(writer._free) == 2

        def fails(parts):
            raise OSError(28, "No space left on device")

        writer.save({"model": {"w": weights}}, fails)
        try:
            writer.finish()
        except OSError as error:
            assert error.errno == 28
        else:
            raise AssertionError("a failed save must be told")
        """,
        tmp_path,
    )


def test_a_disk_that_is_full_for_one_save_costs_that_save_and_for_two_ends_the_training(tmp_path):
    said = run(
        """
        import resource, sys, time
        from pathlib import Path
        import torch
        from provisioner.node.torch import checkpointing
        from provisioner.node.torch.surroundings import Surroundings

        sys.stderr = sys.stdout
        none = resource.getrlimit(resource.RLIMIT_FSIZE)
        def full(is_full):
            resource.setrlimit(resource.RLIMIT_FSIZE, (5000 if is_full else none[0], none[1]))

        def train(folder, *fulls):
            around = Surroundings({"FAILOVER_CHECKPOINT_DIR": folder})
            with checkpointing(torch.nn.Linear(100, 100), every_s=0, surroundings=around) as run:
                for is_full in fulls:
                    full(is_full)
                    run.step()
                    with run._writer._changed:
                        run._writer._changed.wait_for(lambda: not run._writer._waiting and not run._writer._busy)
            return [path.name for path in Path(folder).iterdir()]

        assert sorted(train("once", False, True, False, True, False)) == ["step-3", "step-5"]
        try:
            train("twice", False, True, True, False)
        except OSError as error:
            full(False)
            assert [path.name for path in Path("twice").iterdir()] == ["step-1"]
        else:
            raise AssertionError("twice in a row is told")
        """,
        tmp_path,
    )
    assert said.count("failover: a checkpoint was not written (OSError: [Errno 27] File too large") == 4


PROCESSES = """
import os, random, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from provisioner.node.torch import checkpointing

dist.init_process_group("gloo")
torch.manual_seed(3)
inputs = torch.randn(120, 8)
data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = DataLoader(data, batch_size=12 // dist.get_world_size(), sampler=DistributedSampler(data, seed=1))
die, pause = int(os.environ.get("DIE", "0")), float(os.environ.get("PAUSE", "0"))
with checkpointing(model, optimizer, dataloader=loader, every_s=float(os.environ.get("EVERY", "0"))) as run:
    if os.environ.get("SLOW_SAVE"):
        from provisioner.node.torch import folder
        quick = folder.write
        def slow(*args, **kwargs):
            time.sleep(float(os.environ["SLOW_SAVE"]))
            return quick(*args, **kwargs)
        folder.write = slow
    for _ in run.epochs(3):
        for x, y in run.batches:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(pause)
            print(f"rank {dist.get_rank()} step {run.done + 1}", flush=True)
            run.step(loss=loss)
            if run.done == die:
                run._writer.finish()
                os.kill(os.getpid(), 9)
if dist.get_rank() == 0:
    print("sum", run.done, sum(parameter.detach().double().sum().item() for parameter in model.parameters()))
dist.destroy_process_group()
"""


def _torchrun(script: Path, processes: int) -> list[str]:
    return [str(TORCHRUN), "--standalone", "--nproc-per-node", str(processes), str(script)]


@pytest.mark.slow
def test_two_processes_one_and_three_go_on_from_each_other_with_the_same_global_batches(tmp_path):
    script = tmp_path / "processes.py"
    script.write_text(PROCESSES)

    def go(name: str, processes: int, **environ: str) -> tuple[int, float] | None:
        output = start(_torchrun(script, processes), tmp_path / name, **environ).communicate(timeout=120)[0]
        found = re.search(r"^sum (\d+) (\S+)$", output, re.MULTILINE)
        return (int(found[1]), float(found[2])) if found else None

    whole = go("whole", 2)
    assert go("pieces", 2, DIE="9") is None
    assert go("pieces", 1, DIE="17") is None
    moved = go("pieces", 3)
    assert whole is not None
    assert moved is not None
    assert moved[0] == whole[0] == 30
    assert moved[1] == pytest.approx(whole[1], abs=1e-5)  # sums over another number of processes differ in last bits


@pytest.mark.slow
def test_r29_a_save_that_takes_longer_than_the_launcher_waits_is_committed(node_job: NodeJob, tmp_path):
    """torchrun kills its workers 30 s after SIGTERM; this save takes 35, and the notice leaves 120."""
    script = tmp_path / "processes.py"
    script.write_text(PROCESSES)
    command = ["env", "EVERY=9999", "PAUSE=0.2", "SLOW_SAVE=35", *_torchrun(script, 2)]
    node = node_job.start(1, command, steps=30, environ={"FAILOVER_GRACE_S": "120"})
    node.until_line("rank 1 step 4")
    node.process.send_signal(signal.SIGTERM)
    assert node.wait(timeout=110) == 75
    steps = {rank: int(re.findall(rf"^rank {rank} step (\d+)", node.log(), re.MULTILINE)[-1]) for rank in (0, 1)}
    assert steps[0] == steps[1]  # both ranks stopped at one step
    assert node_job.steps_committed() == [steps[0]]


def test_started_again_on_its_machine_it_goes_on_from_what_it_saved_there_not_from_what_was_restored(tmp_path):
    script = """
        import torch
        from provisioner.node.torch import checkpointing
        with checkpointing(torch.nn.Linear(2, 2), every_s=9999) as run:
            run.step()
        print("done", run.done)
    """
    environ = {"PYTHONPATH": str(ROOT), "FAILOVER_CHECKPOINT_DIR": str(tmp_path / "first")}
    assert "done 1" in run(script, tmp_path, environ)
    environ.update(FAILOVER_RESTORE_PATH=str(tmp_path / "first"), FAILOVER_CHECKPOINT_DIR=str(tmp_path / "second"))
    assert "done 2" in run(script, tmp_path, environ)
    assert "done 3" in run(script, tmp_path, environ)


def test_under_torchrun_a_reason_to_go_that_has_passed_meanwhile_is_no_failure(tmp_path):
    script = """
        from provisioner.node.torch.moments import Moments
        from provisioner.node.torch.surroundings import Surroundings
        assert Moments(surroundings=Surroundings({"TORCHELASTIC_RUN_ID": "digits"})).stop(3).code == 0
    """
    run(script, tmp_path, {"PYTHONPATH": str(ROOT)})


def test_a_job_that_wants_no_signal_is_told_by_the_advice_alone(node_job: NodeJob, tmp_path):
    script = tmp_path / "told.py"
    script.write_text(
        textwrap.dedent(
            """
            import signal, time, torch
            from provisioner.node.torch import checkpointing
            weights = torch.nn.Linear(2, 2)
            signal.signal(signal.SIGTERM, lambda *_: print("a signal came", flush=True))
            with checkpointing(weights, every_s=9999) as run:
                signal.signal(signal.SIGTERM, lambda *_: print("a signal came", flush=True))
                while run.done < 1000:
                    time.sleep(0.05)
                    print(f"step {run.done + 1}", flush=True)
                    run.step()
            """
        )
    )
    node = node_job.start(1, [str(PYTHON), str(script)], steps=1000, stop_signal="none")
    node.until_step(5)
    node.process.send_signal(signal.SIGTERM)
    assert node.wait() == 75
    assert "a signal came" not in node.log()
    assert node_job.steps_committed()
