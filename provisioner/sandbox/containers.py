"""The host's container engine for machines of the sandbox: can it serve them, and nothing of theirs stays in it.

A machine has a ``docker`` of its own on its PATH: the host's client, which marks every container as the machine's,
hands it what a real machine has by address, and asks no registry. What carries the mark ends with the machine.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provisioner.errors import ConfigError
from provisioner.sandbox.guest import MACHINE_LABEL, end_containers

IMAGE = "gpu-failover:latest"
"""What ``make image`` builds."""
SANDBOX_LABEL = "gpu-failover-sandbox"
ANSWER_S = 15.0
"""How long the engine may take for an answer."""
PROBE_S = 60.0
"""How long it may take to start a container."""
_ROOT = "0:0"
_HERE = "use an engine that runs on this machine itself"
_ENGINE = ("DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH")
_PROBE = """
import json, pathlib, socket, sys
folder, port = pathlib.Path("/probe"), int(sys.argv[1])
facts = {"folder": folder.joinpath("word").exists(), "loopback": True, "numpy": True}
try:
    socket.create_connection(("127.0.0.1", port), 5).close()
except OSError:
    facts["loopback"] = False
try:
    import numpy
except ImportError:
    facts["numpy"] = False
try:
    folder.joinpath("file").write_text("")
except OSError:
    pass
print(json.dumps(facts))
"""


@dataclass(frozen=True, slots=True)
class Containers:
    """An engine that can serve machines, and the image for them.

    ``client`` is the path of its client, ``environ`` how that finds it. ``user`` is who a container must be, so that
    the files it writes are ours.
    """

    client: str
    image: str
    environ: Mapping[str, str] = field(repr=False)
    user: str = _ROOT

    def shim(self, machine: Path, sandbox: Path, names: Iterable[str]) -> str:
        """Return the ``docker`` of a machine: a bash script. ``names``: variables that its containers get too."""
        marks = (f"{MACHINE_LABEL}={machine}", f"{SANDBOX_LABEL}={sandbox}")
        options = [word for mark in marks for word in ("--label", mark)]
        options += [word for name in names for word in ("--env", name)]
        lines = [
            "#!/bin/bash",
            "# The host's container engine, as a machine of the sandbox has it. No registry is asked.",
            *(f"export {name}={shlex.quote(value)}" for name, value in self.environ.items()),
            "case ${1:-} in",
            "  run | create)",
            "    words=()",
            f'    for word in "${{@:2}}"; do [ "$word" = {_ROOT} ] && word={self.user}; words+=("$word"); done',
            f'    set -- "$1" {shlex.join(options)} "${{words[@]}}" ;;',
            '  pull) set -- image inspect "${@: -1}" ;;',
            "esac",
            f'exec {shlex.quote(self.client)} "$@"',
        ]
        return "\n".join(lines) + "\n"

    def command(self, sandbox: Path, options: Iterable[str], words: Iterable[str]) -> list[str]:
        """Return an argv that runs a container to its end; :meth:`remove` takes it away."""
        mark = f"{SANDBOX_LABEL}={sandbox}"
        return [self.client, "run", "--rm", "--label", mark, "--user", self.user, *options, self.image, *words]

    def environment(self) -> dict[str, str]:
        """Return an environment for the client."""
        return {**os.environ, **self.environ}

    def left(self, sandbox: Path) -> list[str]:
        """Return the names of containers that a sandbox has still."""
        mark = f"label={SANDBOX_LABEL}={sandbox}"
        asked = _ask(self.client, self.environ, "ps", "--all", "--filter", mark, "--format", "{{.Names}}")
        return asked.stdout.split()

    def remove(self, sandbox: Path) -> None:
        """Kill and remove every container of a sandbox, with the volumes that were made for it."""
        end_containers(self.client, f"{SANDBOX_LABEL}={sandbox}", self.environment())


def choose(image: str | None, folder: Path) -> tuple[Containers | None, str]:
    """Return what runs the machines of a drill in ``folder``, None for processes, and a line that says why.

    Without ``image`` it is what ``make image`` builds, where that will do. Raises ConfigError for one that will not.
    """
    try:
        found = find(image or IMAGE, folder)
    except ConfigError as error:
        if image is not None:
            raise
        return None, f"machines are processes: {error}"
    return found, f"machines are containers of {found.image}: an engine answers and has it (AutoDL's are processes)"


def find(image: str, folder: Path) -> Containers:
    """Return the engine that answers, after a try with ``image``. Raises ConfigError: it, or the image, will not do."""
    client = shutil.which(os.environ.get("DOCKER") or "docker")
    if client is None:
        raise ConfigError("there is no docker here", hint="install Docker, or leave --image out")
    environ = {name: os.environ[name] for name in _ENGINE if os.environ.get(name)}
    if _ask(client, environ, "info", "--format", "{{.ServerVersion}}").returncode != 0:
        raise ConfigError("no container engine answers", hint="start it, or give yourself the right to use it")
    # A machine has a home of its own, so the operator's choice of an engine must not come from the real one.
    context = _ask(client, environ, "context", "inspect", "--format", "{{.Endpoints.docker.Host}}")
    if context.returncode == 0 and context.stdout.strip():
        environ["DOCKER_HOST"] = context.stdout.strip()
    if _ask(client, environ, "image", "inspect", image).returncode != 0:
        hint = "make image" if image == IMAGE else f"pull or build it first: docker pull {image}"
        raise ConfigError(f"the engine has no image {image}", hint=hint)
    found = Containers(client, image, environ)
    folder = folder.absolute()  # the engine takes a relative one for the name of a volume
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="probe-", ignore_cleanup_errors=True) as name:
        try:
            return _tried(found, Path(name))
        finally:
            found.remove(Path(name))


def _tried(found: Containers, folder: Path) -> Containers:
    """Try what a machine will need: our files, our loopback, numpy for the training, and files that stay ours."""
    facts = _probe(found, folder)
    if not facts["folder"]:
        raise ConfigError("the engine's containers do not see this machine's files", hint=_HERE)
    if not facts["loopback"]:
        raise ConfigError("the engine's containers do not reach this machine's loopback", hint=_HERE)
    if not facts["numpy"]:
        raise ConfigError(
            f"the image {found.image} has no numpy, which the drill's training needs (docs/sandbox.md)",
            hint="docker build --file docker/training.Dockerfile --tag NAME examples, then --image NAME",
        )
    user = _ROOT
    if not _ours(folder / "file"):
        user = f"{os.getuid()}:{os.getgid()}"
        (folder / "file").unlink(missing_ok=True)
        _probe(Containers(found.client, found.image, found.environ, user), folder)
        if not _ours(folder / "file"):
            raise ConfigError("what the engine's containers write is not yours", hint="use an engine that runs as you")
    return Containers(found.client, found.image, found.environ, user)


def _probe(found: Containers, folder: Path) -> dict[str, Any]:
    """Run a container as a machine's start script does; return what it found."""
    (folder / "word").write_text("", encoding="ascii")
    options = ["--network", "host", "--volume", f"{folder}:/probe", "--entrypoint", "bash"]
    if Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi"):
        options += ["--gpus", "all"]
    with socket.create_server(("127.0.0.1", 0)) as server:
        words = ("-c", 'exec python -c "$@"', "bash", _PROBE, str(server.getsockname()[1]))
        argv = found.command(folder, options, words)
        ended = _ask(found.client, found.environ, *argv[1:], timeout=PROBE_S)
    try:
        facts = json.loads(ended.stdout)
    except ValueError:
        why = (ended.stderr.strip() or f"code {ended.returncode}").splitlines()[0]
        raise ConfigError(f"the image {found.image} does not start with bash and Python 3: {why}") from None
    return dict(facts)


def _ours(path: Path) -> bool:
    return path.exists() and path.stat().st_uid == os.getuid()


def _ask(
    client: str, environ: Mapping[str, str], *words: str, timeout: float = ANSWER_S
) -> subprocess.CompletedProcess[str]:
    """Ask the engine. One that does not answer in time has refused. Ctrl-C is ours, not the client's."""
    try:
        return subprocess.run(
            [client, *words],
            env={**os.environ, **environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, 1, "", f"no answer within {timeout:.0f} s")
