"""Trainings as forks of one process that has imported the libraries already: many kills cost one slow start.

Run by the Python of ``.venv-torch``, from the scripts of the tests. Only a process that has not trained may fork.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import torch._dynamo  # noqa: F401 - every optimizer imports it: here once, not in each training


def train(work: Callable[[], object], checkpoints: str, *, processes: int = 1, **environ: str) -> list[int]:
    """Run ``work`` in so many processes, one process group of their own; return their exit codes (-9: killed)."""
    port = _free_port()
    children: list[int] = []
    for rank in range(processes):
        more = {**environ, "FAILOVER_CHECKPOINT_DIR": checkpoints}
        if processes > 1:
            more.update(RANK=str(rank), LOCAL_RANK=str(rank), NODE_RANK="0", WORLD_SIZE=str(processes))
            more.update(LOCAL_WORLD_SIZE=str(processes), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        child = os.fork()
        if child == 0:
            os.setpgid(0, children[0] if children else 0)
            os.environ.update(more)
            os._exit(_run(work))
        children.append(child)
        os.setpgid(child, children[0])
    codes: list[int] = []
    for _ in children:
        child, status = os.waitpid(-children[0], 0)
        codes.append(os.waitstatus_to_exitcode(status))
        if codes[-1] in {-9, 1}:  # the machine is gone, with all that is on it; or one would wait for another for ever
            with contextlib.suppress(ProcessLookupError):
                os.killpg(children[0], 9)
    return codes


def _free_port() -> int:
    """Return a port below those that the system hands out: nobody gets it between this and its use."""
    while True:
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", random.SystemRandom().randrange(15000, 32000)))
            return int(one.getsockname()[1])


def _run(work: Callable[[], object]) -> int:
    code = 0
    try:
        work()
    except SystemExit as error:
        code = int(error.code or 0)
    except BaseException:  # noqa: BLE001 - it has to be seen, and must not go on in the parent's code
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def steps(checkpoints: str) -> list[int]:
    """List the steps of what lies there under a final name."""
    names = [path.name.removesuffix(".ckpt") for path in Path(checkpoints).glob("*") if path.name[0] != "."]
    return sorted(int(name.rpartition("-")[2]) for name in names)


def notice() -> None:
    """Ask the whole process group to stop, as the node does: by the hand of somebody who is no loader's parent."""
    sender = os.fork()
    if sender == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)
        os._exit(0)
    os.waitpid(sender, 0)


def interrupted(work: Callable[[], object], folder: Path, count: int, *, last: int, processes: int) -> None:
    """Kill ``work`` and give it notice ``count`` times each, six in a run at most: each ends as a whole run does.

    ``work`` saves at each step, dies at step ``DIE``, gets its notice in step ``TOLD``, and writes what it came to into
    ``RESULT``.
    """
    whole = folder / "whole.txt"
    assert set(train(work, str(folder / "whole"), processes=processes, RESULT=str(whole))) == {0}
    happened = 0
    for seed in itertools.count():
        if happened == 2 * count:
            break
        seeded = random.Random(seed)
        here, result = str(folder / f"run-{seed}"), folder / f"run-{seed}.txt"
        what = f"seed {seed}:"
        for step in sorted(seeded.sample(range(2, last), min(6, 2 * count - happened))):
            if result.exists() or step <= max(steps(here), default=0):
                continue  # it came so far before the notice was agreed on
            kind = ("DIE", "TOLD")[happened % 2]
            what += f" {kind} at step {step}"
            more = {"WORKERS": str(happened // 2 % 2), kind: str(step)}
            codes = train(work, here, processes=processes, RESULT=str(result), **more)
            happened += 1
            if kind == "DIE":
                assert -9 in codes, (what, codes)
            elif not result.exists():
                assert 75 in codes, (what, codes)
                assert set(codes) <= {0, 75}, (what, codes)  # 0: where a launcher of the library watches it
                assert step <= steps(here)[-1] <= step + 3, (what, steps(here))  # all ranks agree on a step soon after
        assert set(train(work, here, processes=processes, RESULT=str(result))) == {0}, what
        assert result.read_text() == whole.read_text(), what
    print("all equal", whole.read_text())


def differ(work: Callable[[], object], *aways: str, processes: int = 1) -> None:
    """Take things away from ``work`` (``AWAY``), one by one: killed, it has to end otherwise than in one run."""
    for away in aways:
        for name, more in (("whole", {}), ("pieces", {"DIE": "6"}), ("pieces", {})):
            train(work, f"{name}-{away}", processes=processes, RESULT=f"{name}-{away}.txt", AWAY=away, **more)
        assert Path(f"whole-{away}.txt").read_text() != Path(f"pieces-{away}.txt").read_text(), away
