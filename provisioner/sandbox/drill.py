"""A drill: the real controller, templates, modules and node code against the cloud in a box, then a report.

The controller is a process of its own (``failover run``), the cloud another. Only endpoints differ from real life.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from provisioner import assets
from provisioner.checkpoint.restore import restore
from provisioner.checkpoint.store import Credentials, open_store
from provisioner.model import JobRef
from provisioner.sandbox import training
from provisioner.sandbox.client import BUCKET, Box, open_box
from provisioner.sandbox.containers import Containers, choose
from provisioner.sandbox.drill_controller import play_controller
from provisioner.sandbox.machines import MARKER
from provisioner.sandbox.notices import heard
from provisioner.sandbox.scenario import load

JOB = "digits"
STEP_SECONDS = 0.6
CANNOT_PROVE = (
    "real capacity, prices and quotas",
    "how long a real machine takes to boot",
    "a real GPU and its driver",
    "the network between the clouds",
)


class Drill:
    """One drill. Everything it makes is below one directory and ends with it."""

    def __init__(
        self,
        scenario: Path | None = None,
        *,
        directory: Path | None = None,
        provider: str = "auto",
        docker: bool = False,
        image: str | None = None,
        step_seconds: float = STEP_SECONDS,
        say: Callable[[str], None] = lambda _: None,
        controller: Callable[[Path, Mapping[str, str], Callable[[str], None]], dict[str, Any]] | None = None,
    ) -> None:
        """Take the scenario file, default ``examples/drills/default.yaml``.

        ``provider`` is ``auto``, ``official`` or ``stand-in``. With ``docker`` machines run containers of ``image``,
        or of what ``make image`` builds where an engine has it; else processes. ``controller`` runs the job; by
        default it is a process, which the scenario may kill. Raises ConfigError for a scenario with a mistake.
        """
        self.scenario = scenario or assets.path("examples/drills/default.yaml")
        self._training = training.of(load(self.scenario))  # a mistake in it is said before anything starts
        self.provider = provider
        self.docker = docker
        self.image = image
        self.step_seconds = step_seconds
        self.say = say
        self._directory = directory
        self._controller = controller

    def run(self) -> dict[str, Any]:
        """Play the scenario and return the report. Raises FailoverError when the drill itself cannot be held."""
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(self._folder())
            containers = self._containers(folder)
            image = None if containers is None else containers.image
            if containers is not None:
                stack.callback(containers.remove, folder / "cloud" / "machines")
            box = stack.enter_context(open_box(folder / "cloud", self.scenario, image=image))
            self.say(f"cloud in a box: AutoDL at {box.autodl}, AWS at {box.aws}, Google Cloud at {box.gcp}")
            self.say(f"files in {folder}")
            reference = stack.enter_context(
                _reference(folder / "reference", self._training, containers, str(box.directory))
            )
            environ = box.environ(os.environ, state=folder / "state", provider=self.provider)
            config = self.write_config(folder, box, image=image)
            absences: list[dict[str, Any]] = []
            if self._controller is None:
                report, absences = play_controller(box, JOB, config, environ, self.say)
            else:
                report = self._controller(config, environ, self.say)
            state = box.state()
            report["leaked"] = [*report.get("leaked", []), *state["left"]]
            if containers is not None:
                report["leaked"] += [f"docker/{name}" for name in containers.left(folder / "cloud" / "machines")]
            if report["result"] == "completed":
                weights = _final_model(box, report, folder / "final", self._training)
                report["model_identical"] = bool(weights) and weights == reference.digest()
            report["drill"] = {
                "scenario": str(self.scenario),
                "machines": "processes" if image is None else f"containers of {image}",
                "terraform": _toolchain(folder / "state"),
                "launches": state["launches"],
                "absences": absences,
                "notices": heard(folder / "cloud" / "machines", state["events"]),
                "cannot_prove": list(CANNOT_PROVE),
            }
            return report

    def _containers(self, folder: Path) -> Containers | None:
        if not self.docker:
            return None
        if self._training.torch is not None:
            self.say("machines are processes: the training has its own environment here")
            return None
        containers, why = choose(self.image, folder)
        self.say(why)
        return containers

    @contextlib.contextmanager
    def _folder(self) -> Iterator[Path]:
        if self._directory is not None:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            yield self._directory.resolve()
            return
        folder = Path(tempfile.mkdtemp(prefix="failover-drill-"))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def write_config(self, folder: Path, box: Box, *, image: str | None = None) -> Path:
        """Write the job's failover.yaml: the same that an operator would write, but for two endpoints."""
        pause = self.step_seconds if box.scenario.step_seconds is None else box.scenario.step_seconds
        config: dict[str, Any] = {
            "job": {"name": JOB, **training.settings(self._training, pause)},
            "resources": {"gpus": ["V100", "T4", "RTX 4090"], "count": 1},
            "checkpoint": {"store": f"s3://{BUCKET}/jobs", "endpoint": box.aws, "region": "us-east-1", "keep": 3},
            "primary": {
                "autodl": {
                    "mode": "pro",
                    "base_url": box.autodl,
                    "gpus": ["4090D"],
                    "image_uuid": "base-image-l2t43iu6uk",
                    "wait": "0s",
                }
            },
            "fallback": [{"aws": {"regions": ["us-east-1"], "market": "spot-then-on-demand", "max_price": "5 USD"}}],
            "policy": {
                "budget": "20 USD",
                "heartbeat": "1s",
                "poll": "1s",
                "lost_after": "20s",
                "boot_timeout": "2m",
                "ttl": "15m",
                "retry_for": "0s",
            },
        }
        _lay_over(config, box.scenario.config)
        config["job"].pop("image", None)  # a scenario's own would be pulled from a registry
        if image is not None:
            config["job"]["image"] = image
        path = folder / "failover.yaml"
        path.write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True), encoding="utf-8")
        return path


def _lay_over(base: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Lay a scenario's settings over the drill's, section by section."""
    for name, value in changes.items():
        if isinstance(value, Mapping) and isinstance(base.get(name), dict):
            _lay_over(base[name], value)
        else:
            base[name] = value


class _Reference:
    """The same training, never interrupted, beside the drill; in a container of the image where machines have one."""

    def __init__(self, folder: Path, trained: training.Training, containers: Containers | None, mark: str) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self._trained = trained
        place = {"FAILOVER_CHECKPOINT_DIR": str(folder), "FAILOVER_RESTORE_PATH": "", "FAILOVER_RESTORED": "0"}
        argv = trained.here()
        if containers is None:
            environ = {"PATH": os.environ.get("PATH", ""), **place, MARKER: mark}
        else:
            script, words = Path(argv[1]), argv[2:]
            options = ["--network", "none", "--workdir", str(folder), "--entrypoint", "python"]
            options += ["--volume", f"{script.parent}:{script.parent}:ro", "--volume", f"{folder}:{folder}"]
            options += [word for name, value in place.items() for word in ("--env", f"{name}={value}")]
            argv = containers.command(folder, options, [str(script), *words])
            environ = containers.environment()
        self._process = subprocess.Popen(
            argv,
            env=environ,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def digest(self) -> dict[str, str] | None:
        """Wait for the end and return the hashes of the last checkpoint."""
        self._process.wait(120)
        return self._trained.digest(self.folder / self._trained.last)

    def end(self) -> None:
        """End it, wherever it is."""
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def _reference(
    folder: Path, trained: training.Training, containers: Containers | None, mark: str
) -> Iterator[_Reference]:
    reference = _Reference(folder, trained, containers, mark)
    try:
        yield reference
    finally:
        reference.end()
        if containers is not None:
            containers.remove(folder)


def _final_model(
    box: Box, report: Mapping[str, Any], folder: Path, trained: training.Training
) -> dict[str, str] | None:
    """Restore the newest checkpoint of the store, as a node would, and hash it."""
    credentials = Credentials(box.access_key_id, box.secret_access_key)
    store = open_store(f"s3://{BUCKET}/jobs", endpoint=box.aws, region="us-east-1", credentials=credentials)
    restored = restore(store.at(JOB), JobRef(JOB, str(report["uid"])), folder)
    return None if restored is None else trained.digest(restored.directory / restored.entry)


def _toolchain(state: Path) -> dict[str, Any]:
    """Return what the controller noted about Terraform and its provider, with a line about every provider used."""
    noted = []
    for name in ("toolchain.json", "toolchain-gcp.json"):
        with contextlib.suppress(OSError, ValueError):
            found = json.loads((state / "jobs" / JOB / name).read_text("utf-8"))
            noted += [found] if isinstance(found, dict) else []
    if not noted:
        return {}
    return {**noted[0], "note": "; ".join(str(found.get("note", "")) for found in noted)}
