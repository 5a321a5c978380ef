"""The contract of ``clouds/base.py`` with processes: for tests, and for a workstation as the last fallback."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from provisioner.clock import now as unix_now
from provisioner.clouds.base import Request
from provisioner.clouds.local.gpus import Look, gpu_here
from provisioner.clouds.local.process import NodeProcess
from provisioner.model import Failure, FailureKind, JobRef, Launch, Market, Node, NodeState, Offer, Owned, Scope

REGION = "local"


class LocalCloud:
    """Processes of one job on this machine. They live on when the controller ends."""

    name: ClassVar[str] = "local"

    def __init__(
        self,
        job: JobRef,
        directory: Path,
        environ: Mapping[str, str],
        *,
        look: Look | None = None,
        now: Callable[[], float] = unix_now,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Keep nodes below ``directory / "local"``; a folder is named by its token."""
        self._job = job
        self._root = directory / "local"
        self._environ = environ
        self._look = look
        self._now = now
        self._sleep = sleep

    @classmethod
    def open(
        cls, *, job: JobRef, config: Any, directory: Path, environ: Mapping[str, str], events: Any = None
    ) -> LocalCloud:
        """Open the room. It has no settings and tells no events."""
        del config, events
        return cls(job, directory, environ)

    def offers(self, request: Request) -> Sequence[Offer]:
        """Offer this machine as it is: whoever writes ``local: {}`` knows it. It costs nothing that we know of."""
        del request
        gpu = gpu_here(self._environ, self._look)
        return [Offer(self.name, REGION, "", platform.node() or "this-machine", gpu, Market.ON_DEMAND, None, gpu.count)]

    def prepare(self, region: str) -> None:
        """Nothing: this machine is there."""

    def claim(self, offer: Offer, launch: Launch) -> Node | Failure:
        """Start the user data. A token that started a process already gives that one, also when it has ended."""
        process = self._process(launch.token)
        try:
            process.start(launch.user_data, self._environ)
        except OSError as error:
            text = f"{process.directory}: {error.strerror or error}"
            return Failure(FailureKind.INVALID, Scope.OFFER, type(error).__name__, text, "look at disk and permissions")
        return Node(launch.token, offer, launch.job, launch.epoch, launch.token, self._now())

    def adopt(self, node: Node) -> None:
        """Nothing: a process has no Terraform."""

    def release(self, node: Node) -> None:
        """End every process of the node: SIGTERM, a time of grace, SIGKILL. Raises CloudError if one survives."""
        self._process(node.id).end(self._sleep)

    def inspect(self, node: Node) -> NodeState:
        """Say whether the node's own process lives."""
        return NodeState.RUNNING if self._process(node.id).running() else NodeState.GONE

    def owned(self) -> Sequence[Owned]:
        """List the nodes of this job of which a process lives, if only a helper that was left behind."""
        tokens = sorted(path.name for path in self._root.iterdir()) if self._root.is_dir() else []
        alive = [token for token in tokens if self._process(token).alive()]
        return [Owned(self.name, REGION, "machine", token, "running", self._job.name, None, token) for token in alive]

    def dismantle(self) -> None:
        """Remove the folders of nodes that have ended; their logs are in the store."""
        for path in sorted(self._root.iterdir()) if self._root.is_dir() else []:
            process = self._process(path.name)
            if not process.alive():
                process.remove()

    def _process(self, token: str) -> NodeProcess:
        return NodeProcess(self._root / token)
