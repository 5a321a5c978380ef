"""Lightning: ``Trainer(callbacks=[FailoverCallback()])``. The same for the package name pytorch_lightning.

Needs the library that the script uses; ``import provisioner.node.torch`` does not import this.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable

from provisioner.node.torch import files, randomness
from provisioner.node.torch.moments import COME_AGAIN, Moments, Stopped
from provisioner.node.torch.ranks import NOTHING, STOP
from provisioner.node.torch.shield import shield
from provisioner.node.torch.trainers import Told

_NAMES = ("lightning.pytorch", "pytorch_lightning")


def _callback() -> Any:
    """Return the base class out of the library that the script has imported already, else of the one that there is."""
    for name in (*(name for name in _NAMES if name in sys.modules), *_NAMES):
        with contextlib.suppress(ImportError):
            return importlib.import_module(name).Callback
    raise ImportError("FailoverCallback needs lightning or pytorch_lightning")


if TYPE_CHECKING:  # a callback of both: `lightning` brings the other package, and a script may import either
    import pytorch_lightning
    from lightning.pytorch import Callback

    class _Base(Callback, pytorch_lightning.Callback):  # type: ignore[misc]
        pass
else:
    _Base = _callback()


class FailoverCallback(Told, _Base):  # type: ignore[misc, unused-ignore]
    """Saves as the node advises, when the machine has to go, and at the end; then ``trainer.fit`` raises Stopped.

    For example::

        failover = FailoverCallback()
        trainer = Trainer(callbacks=[failover], ...)
        trainer.fit(model, resumable(loader), ckpt_path=failover.restored)

    Checkpoints are Lightning's own, with the random generators of all processes. ``every_s``, ``keep``,
    ``watch`` and ``advise`` are those of :func:`provisioner.node.torch.checkpointing`.
    """

    _put_off = False
    _random: Sequence[Any] = ()
    _restored_random: Sequence[Any] = ()
    _hook: Callable[..., Any] | None = None

    @property
    def restored(self) -> str | None:
        """Return the newest whole checkpoint, for ``trainer.fit(ckpt_path=...)``; None at the very first start."""
        found = files.newest_first(*self._around.restore_from)
        whole = next((path for path in found if files.is_whole(path)), None)
        return None if whole is None else str(whole)

    # ------------------------------------------------------------------------------ what Lightning calls

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002 - Lightning's signature
        """Begin to listen; the process group is there."""
        if stage != "fit":
            return
        # last of all: what others keep of a step belongs to its checkpoint
        trainer.callbacks = [*(one for one in trainer.callbacks if one is not self), self]
        self._begin()

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Take the signals back from Lightning."""
        self._listen(trainer)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Put the random generators back, and look at each step from now on."""
        self._listen(trainer)
        if self._moments is None:
            return
        for loader in _several(trainer.val_dataloaders):
            shield(loader)
        loader = trainer.train_dataloader
        if not isinstance(loader, (list, tuple, dict)):
            self._begin_advising(loader)
        rank = self._moments.ranks.rank
        if rank < len(self._restored_random):
            randomness.restore(self._restored_random[rank])
            self._moments.saved_step = trainer.global_step
            self._moments.say(f"going on after step {trainer.global_step}")
        self._restored_random = ()
        # The module's own hook is the last that a step runs through (averages of weights are kept there), and callbacks
        # come before it. So it is followed, not preceded.
        self._hook = hook = pl_module.on_train_batch_end

        def then_look(outputs: Any, batch: Any, batch_idx: int) -> None:
            hook(outputs, batch, batch_idx)
            self._look(trainer, batch_idx)

        pl_module.on_train_batch_end = then_look

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Save the last step."""
        self._unhook(pl_module)
        if self._moments is not None:
            if self._moments.saved_step != trainer.global_step:
                self._save(trainer, self._moments)
            self._moments.ranks.close()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002
        """Give the signals back."""
        if self._moments is not None:
            self._moments.leave_signals()
            self._moments = None

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Tell the loggers that a run which goes on elsewhere has not failed."""
        self._unhook(pl_module)
        if isinstance(exception, Stopped):
            for logger in trainer.loggers:
                logger.finalize("finished")
            trainer.loggers = []
        elif self._moments is not None:
            self._moments.leave_signals()

    def state_dict(self) -> dict[str, Any]:
        """Return what the checkpoint is to carry; nothing in one that somebody else saves."""
        return {"random": self._random} if self._random else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take it."""
        self._restored_random = list(state_dict.get("random", []))

    # ------------------------------------------------------------------------------ the rest

    def _listen(self, trainer: Any) -> None:
        if self._moments is not None:
            self._moments.listen()
            if trainer.received_sigterm:  # heard by both: one process alone must not end by it
                trainer._signal_connector.received_sigterm = False  # noqa: SLF001 - it has no other way

    def _look(self, trainer: Any, batch_idx: int) -> None:
        """Save and leave, if all agree, where Lightning can go on: between two steps of the optimizer.

        A checkpoint that is saved before a validation, or before the end of an epoch, goes on after it. So it waits for
        the step behind, once.
        """
        moments = self._moments
        if moments is None:
            return
        self._wanted = max(self._wanted, moments.agreed(trainer.global_step))
        within = (batch_idx + 1) % trainer.accumulate_grad_batches and not trainer.is_last_batch
        if self._wanted == NOTHING or within:
            return
        if not self._put_off and _something_follows(trainer, batch_idx):
            self._put_off = True
            return
        wanted, self._wanted, self._put_off = self._wanted, NOTHING, False
        if moments.saved_step != trainer.global_step:
            self._save(trainer, moments)
        if wanted == STOP:
            raise moments.stop(trainer.global_step, code=_code(trainer))

    def _save(self, trainer: Any, moments: Moments) -> None:
        began = moments.begin()
        step = trainer.global_step
        folder = self._around.checkpoints
        draft, final = folder / f".step-{step}.ckpt.tmp", folder / f"step-{step}.ckpt"
        self._random = moments.ranks.gather(randomness.portable(randomness.capture())) or [None]
        if moments.ranks.rank == 0:
            folder.mkdir(parents=True, exist_ok=True)
            files.remove(draft)
        try:
            trainer.save_checkpoint(draft, weights_only=False)
        finally:
            self._random = ()
        if moments.ranks.rank == 0:
            if not draft.exists():
                raise RuntimeError("FailoverCallback needs a CheckpointIO that has written when it returns")
            files.put(draft, final)
            files.prune(folder, self._keep, step)
        moments.saved(step, began)

    def _unhook(self, pl_module: Any) -> None:
        self._close_advising()
        if self._hook is not None:
            vars(pl_module).pop("on_train_batch_end", None)
            self._hook = None


def _something_follows(trainer: Any, batch_idx: int) -> bool:
    """Say whether a validation or the end of the epoch comes after this batch."""
    if trainer.is_last_batch:
        return True
    every = getattr(trainer, "val_check_batch", None)
    if not trainer.enable_validation or not isinstance(every, int):
        return False
    batch = trainer.fit_loop.total_batch_idx if trainer.check_val_every_n_epoch is None else batch_idx
    return bool((batch + 1) % every == 0)


def _code(trainer: Any) -> int:
    """Return 0 for what Lightning's own launcher watches: it kills the main process for any other."""
    return 0 if trainer.local_rank else COME_AGAIN


def _several(loaders: Any) -> list[Any]:
    if loaders is None:
        return []
    if isinstance(loaders, dict):
        loaders = list(loaders.values())
    return list(loaders) if isinstance(loaders, (list, tuple)) else [loaders]
