"""Train a small net on real handwritten digits, with numpy alone, so that it survives the loss of its machine.

Nothing of gpu-failover is imported. Two environment variables make the difference:

- ``FAILOVER_RESTORE_PATH``: a directory that holds the last checkpoint, or empty on the very first start;
- ``FAILOVER_CHECKPOINT_DIR``: where finished checkpoints go. One that is renamed into it is kept for good.

Every step depends only on its number and the state before it, so a run that was interrupted ends with the same bits
as one that was not.
"""

from __future__ import annotations

import argparse
import gzip
import os
import shutil
import signal
import sys
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # several threads may add in another order, and change last bits
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

DATA = Path(__file__).resolve().parent / "data" / "digits.csv.gz"
SEED = 20240229
HIDDEN = 48
BATCH = 64
RATE = 0.05
MOMENTUM = 0.9
KEPT_HERE = 3

Arrays = dict[str, np.ndarray]


def load_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return (images, labels): 1797 x 64 floats from 0 to 1, and 1797 digits."""
    with gzip.open(DATA, "rt", encoding="ascii") as file:
        table = np.loadtxt(file, delimiter=",")
    return table[:, :64] / 16.0, table[:, 64].astype(np.int64)


def fresh_state() -> Arrays:
    """Return the parameters and their velocities before the first step."""
    rng = np.random.default_rng(SEED)
    shapes = {"w1": (64, HIDDEN), "b1": (HIDDEN,), "w2": (HIDDEN, 10), "b2": (10,)}
    state = {name: rng.normal(0.0, 0.1, shape) for name, shape in shapes.items()}
    return state | {f"v_{name}": np.zeros(shape) for name, shape in shapes.items()}


def train_step(state: Arrays, images: np.ndarray, labels: np.ndarray, step: int) -> float:
    """Do one step of gradient descent with momentum, in place; return the loss. The batch follows from the number."""
    batch = np.random.default_rng([SEED, step]).integers(0, len(images), BATCH)
    x, y = images[batch], labels[batch]
    hidden = np.tanh(x @ state["w1"] + state["b1"])
    scores = hidden @ state["w2"] + state["b2"]
    scores -= scores.max(axis=1, keepdims=True)
    likely = np.exp(scores)
    likely /= likely.sum(axis=1, keepdims=True)
    loss = float(-np.log(likely[np.arange(BATCH), y]).mean())

    likely[np.arange(BATCH), y] -= 1.0
    likely /= BATCH
    back = (likely @ state["w2"].T) * (1.0 - hidden**2)
    slopes = {"w1": x.T @ back, "b1": back.sum(axis=0), "w2": hidden.T @ likely, "b2": likely.sum(axis=0)}
    for name, slope in slopes.items():
        velocity = state[f"v_{name}"]
        velocity *= MOMENTUM
        velocity -= RATE * slope
        state[name] += velocity
    return loss


def accuracy(state: Arrays, images: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of digits that the net reads right."""
    hidden = np.tanh(images @ state["w1"] + state["b1"])
    return float((np.argmax(hidden @ state["w2"] + state["b2"], axis=1) == labels).mean())


def save(state: Arrays, step: int, directory: Path) -> None:
    """Write a checkpoint beside its place and rename it in: it appears whole or not at all."""
    final = directory / f"step-{step}"
    if final.exists():
        return
    unfinished = directory / f".step-{step}.tmp"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    for name, array in state.items():  # .npy, not .npz: a zip holds the time, and equal states would differ
        np.save(unfinished / f"{name}.npy", array)
    unfinished.rename(final)
    old = sorted(directory.glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))[:-KEPT_HERE]
    for path in old:
        shutil.rmtree(path, ignore_errors=True)


def restore(directory: str) -> tuple[int, Arrays]:
    """Return the step and state to go on from."""
    found = sorted(Path(directory).glob("step-*")) if directory else []
    if not found:
        return 0, fresh_state()
    state = {path.stem: np.load(path) for path in sorted(found[-1].glob("*.npy"))}
    return int(found[-1].name.removeprefix("step-")), state


def main() -> int:
    """Train, from the last checkpoint if there is one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100, help="the last step")
    parser.add_argument("--every", type=int, default=10, help="steps between two checkpoints")
    parser.add_argument(
        "--step-seconds", type=float, default=0.0, help="make each step last this long, for a rehearsal"
    )
    parser.add_argument("--model-out", type=Path, help="write the final parameters into this .npy file")
    arguments = parser.parse_args()

    stop = False

    def ask_to_stop(*_: object) -> None:
        nonlocal stop
        stop = True

    signal.signal(signal.SIGTERM, ask_to_stop)
    checkpoints = Path(os.environ.get("FAILOVER_CHECKPOINT_DIR") or "checkpoints")
    step, state = restore(os.environ.get("FAILOVER_RESTORE_PATH", ""))
    images, labels = load_digits()
    print(f"training from step {step} to {arguments.steps}", flush=True)
    while step < arguments.steps and not stop:
        began = time.monotonic()
        step += 1
        loss = train_step(state, images, labels, step)
        time.sleep(max(0.0, arguments.step_seconds - (time.monotonic() - began)))
        print(f"step {step} loss {loss:.6f}", flush=True)
        if step % arguments.every == 0:
            save(state, step, checkpoints)
    save(state, step, checkpoints)
    if step >= arguments.steps:
        print(f"done at step {step}, accuracy {accuracy(state, images, labels):.4f}", flush=True)
        if arguments.model_out:
            parameters = [state[name].ravel() for name in ("w1", "b1", "w2", "b2")]
            np.save(arguments.model_out, np.concatenate(parameters))
    return 0


if __name__ == "__main__":
    sys.exit(main())
