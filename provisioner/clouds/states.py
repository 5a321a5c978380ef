"""Where the Terraform states of one job's stacks are, and what opens them.

The configuration says where a stack's state begins. From then on a note in the stack's directory says where it is, and
wins: a state that was moved stays where it was moved to, and an open run goes on with it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from provisioner.checkpoint.opening import aws_endpoint, bucket_address
from provisioner.checkpoint.probe import probe
from provisioner.checkpoint.store import Store
from provisioner.clouds.stores import open_as_controller
from provisioner.config import Config, StoreConfig, state_store
from provisioner.errors import StoreError, TerraformError
from provisioner.model import JobRef
from provisioner.terraform import statefile
from provisioner.terraform.backend import MOVED, Key, Remote, replace
from provisioner.terraform.runner import STATE_FILE
from provisioner.terraform.waits import Waits

NOTE: Final = "state-place.json"
_OWN_NAMES: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_AMAZON: Final = (".amazonaws.com", ".amazonaws.com.cn")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a stack's state is: ``local``, ``store`` or a URI.

    ``was``: where it was moved from and may still be. ``left``: where a sign stands that it was moved.
    """

    state: str
    was: str = ""
    left: tuple[str, ...] = ()


@dataclass(slots=True)
class States:
    """The states of a job. ``directory`` is the job's. Asks nobody until a bucket is looked into."""

    config: Config
    job: JobRef
    directory: Path
    environ: Mapping[str, str]
    emit: Callable[..., None] = lambda *_, **__: None
    waits: Waits = field(init=False)
    _stores: dict[str, Store] = field(default_factory=dict, init=False)
    _probed: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        """Begin to count the waits for locks."""
        self.waits = Waits(self.config.terraform.lock_timeout)

    def stack_directory(self, stack: str) -> Path:
        """Return the directory of a stack, ``aws-us-east-1`` say."""
        return self.directory / "terraform" / stack

    def place(self, stack: str) -> Place:
        """Say where a stack's state is, or will be: by its note, by a state that is there, by the job's note.

        A bucket where it is not any more says where it is. Raises CloudError.
        """
        noted = _read(self.stack_directory(stack) / NOTE) or self._beside(stack) or self._of_run()
        if noted is not None:
            return noted
        wanted = Place(self.config.terraform.state)
        return Place(self._followed(stack, wanted.state, set()) or wanted.state)

    def remote(self, stack: str) -> Remote | None:
        """Open a stack's state for work, and note where it is; None: on this machine. Raises CloudError."""
        place = self.place(stack)
        if place.state != self.config.terraform.state:
            self.emit("state_elsewhere", stack=stack, state=place.state, wanted=self.config.terraform.state)
        if _read(self.stack_directory(stack) / NOTE) is None:
            self.note(stack, place)
        return self.at(stack, place.state)

    def exists(self, stack: str) -> bool:
        """Say whether a bucket has a state of the stack. Raises CloudError."""
        remote = self.at(stack, self.place(stack).state)
        return remote is not None and remote.objects.get(remote.state_key) is not None

    def forget(self, stack: str) -> None:
        """Remove what a stack's state has left behind where it was moved from: it is gone. Raises CloudError."""
        place = _read(self.stack_directory(stack) / NOTE)
        for state in (place.was, *place.left) if place is not None else ():
            remote = self.at(stack, state) if state else None
            if remote is not None:
                remote.objects.delete([remote.state_key + MOVED, remote.state_key])

    def note(self, stack: str, place: Place) -> None:
        """Note where a stack's state is."""
        _write(self.stack_directory(stack) / NOTE, asdict(place))

    def note_run(self, run: int, state: str) -> None:
        """Note where the stacks of an open run begin that it has not prepared yet."""
        _write(self.directory / "terraform" / NOTE, {"state": state, "run": run})

    def at(self, stack: str, state: str) -> Remote | None:
        """Return a stack's state in a place, looked into by nobody yet; None for ``local``."""
        settings = state_store(self.config.terraform, self.config.checkpoint, state)
        if settings is None:
            return None
        store = self._stores.setdefault(state, open_as_controller(settings, self.environ))
        folder = f"{self.job.name}-{self.job.uid}"
        parts = urlsplit(settings.uri)
        prefix = "".join(f"{part}/" for part in parts.path.split("/") if part)
        common = {
            "objects": store,
            "waits": self.waits,
            "file": self._file(),
            "ready": lambda: self._ready(state, store),
        }
        if parts.scheme == "gs":
            key = f"{folder}/{stack}/default"
            block: dict[str, Any] = {"bucket": parts.netloc, "prefix": f"{prefix}{folder}/{stack}"}
            env, custom = _google(settings, self.environ)
            names = {"state_key": f"{key}.tfstate", "lock_key": f"{key}.tflock"}
            uri = f"gs://{parts.netloc}/{prefix}{key}.tfstate"
            return Remote("gcs", block | custom, uri=uri, env=env, **names, **common)  # type: ignore[arg-type]
        key = f"{folder}/{stack}.tfstate"
        names = {"state_key": key, "lock_key": f"{key}.tflock"}
        block = _s3(settings, parts.netloc, f"{prefix}{key}", self.environ)
        uri = f"s3://{parts.netloc}/{prefix}{key}"
        own = _key(settings, self.environ)
        return Remote("s3", block, uri=uri, key=own, **names, **common)  # type: ignore[arg-type]

    def _file(self) -> str:
        """Return the job's failover.yaml as a shell takes it."""
        try:
            record = json.loads((self.directory / "job.json").read_text(encoding="utf-8"))
            return shlex.quote(record["config_path"])
        except (OSError, ValueError, KeyError, TypeError):
            return "FILE"

    def _ready(self, state: str, store: Store) -> None:
        """Raise StoreError for a store where two runs could both hold a lock."""
        if state in self._probed:
            return
        if problem := lock_problem(probe(store).conditional, store.uri):
            raise StoreError(problem, hint="set terraform.state to local, or to a bucket that honours them")
        self._probed.add(state)

    def _beside(self, stack: str) -> Place | None:
        """Find a state that an earlier version made: it noted no place."""
        path = self.stack_directory(stack) / STATE_FILE
        if not path.exists() or statefile.read(path.read_bytes(), str(path)).empty:
            return None
        return Place("local")

    def _of_run(self) -> Place | None:
        path = self.directory / "terraform" / NOTE
        try:
            run = json.loads((self.directory / "job.json").read_text(encoding="utf-8"))["run"]
            return _read(path) if json.loads(path.read_text(encoding="utf-8"))["run"] == run else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _followed(self, stack: str, state: str, seen: set[str]) -> str:
        """Follow the signs that a moved state has left behind; return where it is now, empty where there is none."""
        remote = self.at(stack, state)
        if remote is None or state in seen:
            return ""
        if remote.objects.get(remote.state_key) is not None:
            return state
        sign = remote.objects.get(remote.state_key + MOVED)
        if sign is None:
            return ""
        try:
            told = json.loads(sign)
            place, host = str(told["to"]), str(told["host"])
        except (ValueError, KeyError, TypeError):
            place, host = "local", "another machine"
        if place == "local":
            message = f"the state of {stack} was moved from {remote.uri} to {host}, where no other machine sees it"
            raise TerraformError(message, hint=f"there: failover state migrate FILE --to {state}")
        found = self._followed(stack, place, {*seen, state})
        if not found:  # it has ended there
            remote.objects.delete([remote.state_key + MOVED])
        return found


def lock_problem(conditional: str, uri: str) -> str:
    """Say why Terraform's lock is not safe in a store, by what its probe has found; empty where it is."""
    if conditional == "honoured":
        return ""
    return f"{uri}: conditional writes are {conditional}, so Terraform's lock there would keep nobody out"


def _s3(store: StoreConfig, bucket: str, key: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the backend block; every address is said in full, as it is for checkpoints."""
    region = store.region or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    endpoint = store.endpoint or environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
    address, in_host = bucket_address(bucket, (endpoint or aws_endpoint(region)).rstrip("/"))
    parts = urlsplit(address)
    service = parts._replace(netloc=parts.netloc.removeprefix(f"{bucket}.")).geturl() if in_host else address
    foreign = not (parts.hostname or "").endswith(_AMAZON)
    block: dict[str, Any] = {
        "bucket": bucket,
        "key": key,
        "region": region,
        "use_lockfile": True,
        "use_path_style": not in_host,
        # The store itself says what is wrong with a key; a region may be newer than Terraform.
        "skip_credentials_validation": True,
        "skip_requesting_account_id": True,
        "skip_region_validation": True,
    }
    if endpoint or foreign:
        block["endpoints"] = {"s3": service}
    if foreign:
        block |= {"skip_metadata_api_check": True, "skip_s3_checksum": True}
    return block


def _key(store: StoreConfig, environ: Mapping[str, str]) -> Key | None:
    """Return the names of the key's variables, where the store has a key of its own."""
    names = (store.access_key_id_env, store.secret_access_key_env, store.session_token_env)
    own = environ.get(names[0]) and environ.get(names[1])
    return Key(*names) if own and names[:2] != _OWN_NAMES[:2] else None


def _google(store: StoreConfig, environ: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return what Terraform's environment needs for the bucket, and what its block does."""
    endpoint = (store.endpoint or "").rstrip("/")
    if environ.get("STORAGE_EMULATOR_HOST") or urlsplit(endpoint).scheme == "http":
        env = {"GOOGLE_OAUTH_ACCESS_TOKEN": environ.get("GOOGLE_OAUTH_ACCESS_TOKEN") or "emulator"}
        return {**env, **({"STORAGE_EMULATOR_HOST": endpoint} if endpoint else {})}, {}
    given = ("GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH")
    own = next((environ[name] for name in given if environ.get(name)), "")
    env = {"GOOGLE_BACKEND_CREDENTIALS": own} if own else {}
    return env, {"storage_custom_endpoint": f"{endpoint}/storage/v1/"} if endpoint else {}


def _read(path: Path) -> Place | None:
    try:
        note = json.loads(path.read_text(encoding="utf-8"))
        return Place(str(note["state"]), str(note.get("was") or ""), tuple(map(str, note.get("left") or ())))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(path: Path, note: Mapping[str, Any]) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace(path, json.dumps(note))
