"""Keeps a DataLoader's workers alive when the whole process group is asked to stop: the last step still needs them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing.context import ForkContext, ForkProcess
from typing import Any, Callable

from torch.utils.data import DataLoader


class Shield:
    """A ``worker_init_fn``. Only the worker's own parent may end it by SIGTERM, as the loader does when it closes."""

    def __init__(self, init: Callable[[int], object] | None) -> None:
        """Take the script's own ``worker_init_fn``."""
        self.init = init

    def __call__(self, worker: int) -> None:
        """Run in the worker, before its first batch."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_obey, args=(os.getppid(),), name="failover-shield", daemon=True).start()
        if self.init is not None:
            self.init(worker)


def _obey(parent: int) -> None:
    while True:
        if signal.sigwaitinfo({signal.SIGTERM}).si_pid == parent:
            os._exit(0)


class _Worker(ForkProcess):
    """Born with SIGTERM blocked: it may come before the worker has got to its Shield."""

    def start(self) -> None:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Workers(ForkContext):
    Process = _Worker


def shield(loader: Any) -> None:
    """Shield the workers that a loader will start; any other iterable is left alone."""
    if isinstance(loader, DataLoader) and not isinstance(loader.worker_init_fn, Shield):
        loader.worker_init_fn = Shield(loader.worker_init_fn)
        if loader.num_workers and loader.multiprocessing_context is None and _forks():
            loader.multiprocessing_context = _Workers()


def _forks() -> bool:
    """Say whether workers are forked; nothing is decided by the question."""
    chosen = multiprocessing.get_start_method(allow_none=True)
    return (chosen or multiprocessing.get_all_start_methods()[0]) == "fork"
