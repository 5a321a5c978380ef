"""A node, a machine or a disk dies at the worst moment, and the next start goes on from a whole checkpoint."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from provisioner.checkpoint import layout
from provisioner.checkpoint.save import Saver


def runs(pid: int) -> bool:
    """Say whether a process runs; one that has ended and waits for init to collect it does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("seed", range(3))
def test_after_kill_9_at_any_moment_a_whole_checkpoint_is_restored(node_job, seed):
    """Machines die while they start, train, save or commit, with or without the child, until the job is done."""
    chance = random.Random(seed)
    seen = 0
    for epoch in range(1, 7):
        node = node_job.start(epoch, node_job.trainer(steps=40, every=3, pause=0.02), steps=40)
        if epoch < 6:
            if chance.random() < 0.3:
                time.sleep(chance.uniform(0.0, 0.8))
            else:
                node.until_step(min(39, seen + chance.randint(1, 9)))
                time.sleep(chance.uniform(0.0, 0.03))
            if chance.random() < 0.7:
                node.kill_machine()
            else:
                node.process.kill()
        node.process.wait()
        saved = node_job.restored_state()
        now = saved["step"] if saved else 0
        assert now >= seen, "a committed checkpoint was lost"
        seen = now
        if node_job.done():
            break
    assert node_job.done()["result"] == "completed"
    assert seen == 40
    assert epoch > 1


def test_r16_a_node_that_was_killed_starts_again_in_the_same_epoch_and_its_orphan_is_gone(node_job):
    first = node_job.start(1, node_job.trainer(pause=0.03))
    first.until_committed(20)
    orphan = first.child_pid()
    first.process.kill()
    first.process.wait()
    assert Path(f"/proc/{orphan}").exists(), "the child outlives its node: nobody else is left to end it"
    again = node_job.start(1, node_job.trainer(pause=0.0))
    assert again.wait() == 0
    assert "killed the command that an earlier node process left running" in again.log()
    assert again.heartbeat()["restored_step"] >= 20
    assert node_job.restored_state()["step"] == 100
    assert not runs(orphan)
    parts = [stored.key for stored in node_job.store.objects(layout.logs(1))]
    assert parts == [layout.log_part(1, number) for number in range(len(parts))]


def leftovers(case: str, machine: Path) -> None:
    """Prepare a machine with another run's files."""
    runs = machine / "node" / "runs"
    state = {"step": 90, "state": 666}
    if case == "half":  # newer-looking, of the same job, but not whole
        for place in (runs / "e2-zzzz" / "checkpoints" / "step-90", runs / "e1-old" / "restored" / "step-90-x"):
            place.mkdir(parents=True)
            (place / "state.json").write_text(json.dumps(state)[:9])
    elif case == "complete":
        place = runs / "e1-old" / "checkpoints" / "step-90"
        place.mkdir(parents=True)
        (place / "state.json").write_text(json.dumps(state))
        (place / "bulk.bin").write_bytes(b"x")
    elif case == "foreign":
        place = runs / "e2-same" / "checkpoints" / "step-95"
        place.mkdir(parents=True)
        (place / "state.json").write_text(json.dumps(state))
        (machine / "node" / "log.txt").write_text("step 99\n")
        (machine / "node" / "child.json").write_text(json.dumps({"pid": os.getpid(), "started": 1}))
    else:
        (machine / "node").mkdir(parents=True)
        for name in ("lock", "child.json"):
            (machine / "node" / name).write_text("999999")
            (machine / "node" / name).chmod(0o400)


@pytest.mark.parametrize("case", ["half", "complete", "foreign", "read-only lock"])
def test_r40_leftovers_never_win_and_are_never_uploaded(node_job, case):
    first = node_job.start(1, node_job.trainer(pause=0.02))
    first.until_committed(30)
    first.kill_machine()
    committed = node_job.restored_state()["step"]
    leftovers(case, node_job.root / "reused")
    before = {stored.key for stored in node_job.store.objects("")}
    second = node_job.start(2, node_job.trainer(pause=0.05), machine="reused")
    second.until(lambda: second.heartbeat().get("first_step_at"))
    assert second.heartbeat()["restored_step"] == committed
    second.until_committed(committed + 10)
    second.process.send_signal(signal.SIGTERM)
    assert second.wait() == 75
    new = {key for key in {stored.key for stored in node_job.store.objects("")} - before if "checkpoints/" in key}
    assert all(int(key[12:24]) < 90 for key in new), new
    node_job.restored_state()


def test_two_trainings_one_interrupted_end_with_the_same_bits(node_job, tmp_path):
    """The packaged example, as a user would run it."""
    script = Path(__file__).parents[2] / "examples" / "train_digits.py"
    plain = tmp_path / "plain.npy"
    subprocess.run(
        [sys.executable, script, "--steps", "40", "--model-out", plain], check=True, cwd=tmp_path, capture_output=True
    )
    command = (
        f"exec {sys.executable} {script} --steps 40 --every 7 --step-seconds 0.12 --model-out {tmp_path}/moved.npy"
    )
    first = node_job.start(1, command, steps=40)
    first.until_committed(14)
    first.kill_machine()
    second = node_job.start(2, command, steps=40)
    second.until_step(20)
    second.process.send_signal(signal.SIGTERM)
    assert second.wait() == 75
    assert node_job.start(3, command, steps=40).wait() == 0
    assert (tmp_path / "moved.npy").read_bytes() == plain.read_bytes()


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100m", "tmpfs", disk], capture_output=True, check=False)
    if made.returncode != 0:
        pytest.skip("no right to mount a small disk here")
    yield disk
    for _ in range(50):
        if subprocess.run(["umount", disk], capture_output=True, check=False).returncode == 0:
            return
        time.sleep(0.1)


SAVER = """
import os, pathlib, sys, time
out = pathlib.Path(os.environ["FAILOVER_CHECKPOINT_DIR"])
for step in range(1, 7):
    print("step", step, flush=True)
    draft = out / f".step-{step}"
    draft.mkdir()
    try:
        (draft / "big").write_bytes(bytes([step]) * 30_000_000)
        draft.rename(out / f"step-{step}")
    except OSError as error:
        print("save failed:", error, flush=True)
    time.sleep(0.3)
"""


def test_r17_a_full_disk_keeps_the_last_good_commit_and_is_named(node_job, small_disk):
    (node_job.root / "machine-1").symlink_to(small_disk)
    node = node_job.start(1, node_job.script(SAVER), steps=100)
    assert node.wait() in {1, 75}
    assert "save failed" in node_job.store_log(1)
    assert f"the disk {small_disk}" in node_job.store_log(1)
    assert node_job.steps_committed()[0] == 3


def test_r17_a_disk_that_is_full_before_the_restore_ends_the_node_with_its_name(node_job, small_disk):
    entry = node_job.root / "step-5"
    entry.mkdir()
    (entry / "state.json").write_bytes(b"x" * 1000)
    Saver(node_job.store, node_job.ref, 1, fence=lambda: None).save(entry, 5)
    (small_disk / "others").write_bytes(b"x" * 60_000_000)
    (node_job.root / "machine-2").symlink_to(small_disk)
    node = node_job.start(2, node_job.trainer())
    assert node.wait() == 75
    end = node.heartbeat()["end"]
    assert end["reason"].startswith("disk full")
    assert str(small_disk) in end["reason"]
    shutil.rmtree(small_disk / "node")


def test_give_up_tells_the_controller_why(node_job):
    node_job.start(1, node_job.trainer(steps=1), steps=1).wait()
    node_job.store.delete([layout.DONE, layout.owner(1), layout.heartbeat(1)])
    done = subprocess.run(
        [sys.executable, "-m", "provisioner.node", "--bootstrap", node_job.root / "machine-1" / "bootstrap.json",
         "--give-up", "the image x/y:z cannot be pulled", "--cause", "no_image"],
        check=False, capture_output=True, cwd=node_job.root,
    )  # fmt: skip
    assert done.returncode == 75
    heartbeat = json.loads(node_job.store.get(layout.heartbeat(1)))
    assert heartbeat["end"] == {"reason": "the image x/y:z cannot be pulled", "exit_code": 75, "cause": "no_image"}
