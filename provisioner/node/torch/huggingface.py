"""Hugging Face's Trainer: ``Trainer(callbacks=[FailoverCallback()])``.

Needs transformers; ``import provisioner.node.torch`` does not import this.
"""

from __future__ import annotations

import json
import math
import sys
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Callable

from transformers import Trainer, TrainerCallback

from provisioner.node.torch import files
from provisioner.node.torch.ranks import NOTHING, STOP
from provisioner.node.torch.shield import shield
from provisioner.node.torch.trainers import Told

_WHOLE = "trainer_state.json"
"""What Trainer writes last."""


class FailoverCallback(Told, TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Saves as the node advises, when the machine has to go, and at the end; then ``trainer.train`` raises Stopped.

    For example::

        failover = FailoverCallback()
        trainer = Trainer(model, args, train_dataset=data, callbacks=[failover])
        trainer.train(resume_from_checkpoint=failover.restored)

    Checkpoints are Trainer's own. Each also appears in ``FAILOVER_CHECKPOINT_DIR``, by hard links. ``every_s``,
    ``keep``, ``watch`` and ``advise`` are those of :func:`provisioner.node.torch.checkpointing`.
    """

    _is_ours = False
    _began = 0.0

    @property
    def restored(self) -> str | None:
        """Return the newest checkpoint, for ``trainer.train(resume_from_checkpoint=...)``; None at the first start."""
        found = files.newest_first(*self._around.restore_from)
        return next((str(path) for path in found if (path / _WHOLE).is_file()), None)

    # ------------------------------------------------------------------------------ what Trainer calls

    def on_init_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: ARG002
        """See each training of this Trainer to its end: no callback is told of an exception."""
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - nothing that Trainer hands over knows it
        while frame is not None and not isinstance(frame.f_locals.get("self"), Trainer):
            frame = frame.f_back
        if frame is not None:
            trainer: Any = frame.f_locals["self"]
            trainer.train = partial(self._to_its_end, trainer.train)

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: ARG002
        """Begin to listen. Raises ValueError where Trainer would write its drafts in view of the node."""
        if Path(args.output_dir).resolve() == self._around.checkpoints.resolve():
            raise ValueError("output_dir is FAILOVER_CHECKPOINT_DIR: name another one, finished checkpoints are linked")
        self._end()
        moments = self._begin()
        loader = more.get("train_dataloader")
        shield(getattr(loader, "base_dataloader", loader))
        if loader is not None:
            self._begin_advising(loader)
        if state.global_step:
            moments.saved_step = state.global_step
            moments.say(f"going on after step {state.global_step}")

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: ARG002
        """Ask for a save, if all agree. One at an epoch's last step waits for what Trainer does at its end."""
        if self._moments is None:
            return
        self._wanted = max(self._wanted, self._moments.agreed(state.global_step))
        if state.epoch is None or state.epoch % 1:
            self._ask(args, state, control, wanted=self._wanted != NOTHING)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: ARG002
        """Save what has waited, and the last step of all."""
        if self._moments is not None and self._moments.saved_step != state.global_step:
            self._ask(args, state, control, wanted=self._wanted != NOTHING or state.global_step >= state.max_steps)

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: ARG002
        """Publish what Trainer has saved, and leave if that was agreed on. Raises Stopped."""
        moments = self._moments
        if moments is None:
            return
        began = self._began if self._is_ours else moments.begin()
        moments.ranks.wait()  # each process writes a file of its own
        if moments.ranks.rank == 0:
            self._publish(_saved(args, state), state)
        moments.saved(state.global_step, began)
        wanted, self._wanted, self._is_ours = self._wanted, NOTHING, False
        if wanted == STOP:
            stopped = moments.stop(state.global_step)
            self._end()
            raise stopped

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: ARG002
        """Wait for the other processes."""
        if self._moments is not None:
            self._moments.ranks.close()
        self._end()

    # ------------------------------------------------------------------------------ the rest

    def _to_its_end(self, train: Callable[..., Any], *args: Any, **more: Any) -> Any:
        try:
            return train(*args, **more)
        finally:
            self._end()

    def _end(self) -> None:
        """Give the loader and the signals back."""
        self._close_advising()
        if self._moments is not None:
            self._moments.leave_signals()
            self._moments = None
        self._wanted, self._is_ours = NOTHING, False

    def _ask(self, args: Any, state: Any, control: Any, *, wanted: bool) -> None:
        moments = self._moments
        if not wanted or control.should_save or moments is None:
            return
        control.should_save = self._is_ours = True
        self._began = moments.begin()
        if moments.ranks.rank == 0:  # what an earlier run left half written may share its files with what was published
            files.remove(_saved(args, state))
        moments.ranks.wait()

    def _publish(self, saved: Path, state: Any) -> None:
        folder = self._around.checkpoints
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f".{saved.name}.tmp"
        files.link(saved, draft)
        numbers: dict[str, float] = {}
        for entry in state.log_history:  # the last word on each
            numbers.update({name: value for name, value in entry.items() if _is_number(value)})
        (draft / "metadata.json").write_text(json.dumps({**numbers, "step": state.global_step}), "ascii")
        files.put(draft, folder / saved.name)
        files.prune(folder, self._keep, state.global_step)
        best = state.best_model_checkpoint
        if self._is_ours and not (best and Path(best).resolve() == saved.resolve()):
            files.remove(saved)  # the script's own arguments did not ask for it


def _saved(args: Any, state: Any) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)
