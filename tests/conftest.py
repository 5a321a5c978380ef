"""What every test stands on: no real cloud, no real account, no network but this machine.

Hypothesis profiles: `default` searches, `ci` (chosen where the environment variable CI is set) repeats the same
examples, so a red run stays red. `HYPOTHESIS_PROFILE=thorough` searches ten times longer.
"""

from __future__ import annotations

import ipaddress
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# A loaded two-core machine says nothing about the code, so examples have no deadline.
settings.register_profile("default", deadline=None, print_blob=True)
settings.register_profile(
    "ci", parent=settings.get_profile("default"), derandomize=True, database=None, max_examples=60
)
settings.register_profile(
    "thorough", parent=settings.get_profile("default"), max_examples=1000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "default"))

_FOREIGN = ("AWS_", "AUTODL_", "FAILOVER_", "GOOGLE_", "CLOUDSDK_", "TF_", "DBOS_")
_KEPT = {"AWS_CA_BUNDLE", "FAILOVER_TF_MIRROR"}
_OURS = {
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "CHECKPOINT_DISABLE": "1",
}


def pytest_configure(config: pytest.Config) -> None:
    """Drop the operator's accounts and settings before any module of ours reads them, children included."""
    for name in list(os.environ):
        if name.startswith(_FOREIGN) and name not in _KEPT:
            del os.environ[name]
    os.environ.update(_OURS)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job; our children would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # moto reads it when it is imported, which may be by a test that knows nothing of our sandbox.
    os.environ["MOTO_AMIS_PATH"] = str(config.rootpath / "provisioner" / "sandbox" / "images.json")
    # The node's wheels are fetched once for all tests; everything else has a home of its own.
    os.environ["FAILOVER_CACHE_DIR"] = str(config.rootpath / ".pytest_cache" / "runtime")
    sys.addaudithook(_stay_on_this_machine)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Have `make test-all` import the files alone that have a slow test: each worker imports all that it collects."""
    if not str(config.option.markexpr).startswith("slow ") or not collection_path.match("test_*.py"):
        return None
    return None if "mark.slow" in collection_path.read_text(encoding="utf-8") else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have each worker begin with what takes minutes, so that none is left alone with it at the end.

    At first a worker has its share of the list in one piece. The others stay beside those who share their fixtures.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    long = [item for item in items if "[official" in item.name or "/e2e/" in item.nodeid or "killed_after" in item.name]
    rest = [item for item in items if item not in set(long)]
    cuts = [len(rest) * number // workers for number in range(workers + 1)]
    shares = [long[number::workers] + rest[cuts[number] : cuts[number + 1]] for number in range(workers)]
    items[:] = [item for share in shares for item in share]


def _stay_on_this_machine(event: str, args: tuple[Any, ...]) -> None:
    """Refuse a connection or a look-up that would leave this machine. An audit hook, so no test can patch it away."""
    if event == "socket.connect":
        address = args[1]
        host = address[0] if isinstance(address, tuple) else None
    elif event == "socket.getaddrinfo":
        host = args[0]
    else:
        return
    if host is not None and not _is_local(host.decode() if isinstance(host, bytes) else str(host)):
        message = f"a test tried to reach {host}: tests stay on this machine"
        raise RuntimeError(message)


def _is_local(host: str) -> bool:
    if host in {"", "localhost"} or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


@pytest.fixture(autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test a home and a state directory that no other test sees."""
    home = tmp_path_factory.mktemp("home")
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(home if name == "HOME" else home / name.lower()))
