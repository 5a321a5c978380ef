"""A secret is planted wherever secrets come from, a whole drill is played, and everything is searched for it."""

from __future__ import annotations

import base64
import binascii
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import boto3
import pytest

from provisioner.sandbox.client import BUCKET
from provisioner.sandbox.drill import Drill
from provisioner.sandbox.drill_controller import run_controller

CANARY = "canary-7f3e9a51c0d24b86"
SCENARIO = """
name: secrets
config:
  job: {secrets: [FAILOVER_TEST_CANARY]}
events:
  - when: {epoch: 1, step: 40}
    do: {stock: zero, take_machine: {cloud: autodl}}
"""
BASE64 = re.compile(rb"[A-Za-z0-9+/]{24,}={0,2}")


def readings(content: bytes) -> Iterator[bytes]:
    """Yield the content as it is, and whatever in it decodes from base64 (DBOS's pickles, user data)."""
    yield content
    for match in BASE64.findall(content):
        try:
            yield base64.b64decode(match + b"=" * (-len(match) % 4))
        except binascii.Error:
            continue


def found_in(content: bytes, secrets: Mapping[str, str]) -> list[str]:
    return [name for name, value in secrets.items() if any(value.encode() in reading for reading in readings(content))]


def database_text(path: Path) -> bytes:
    """Return every value of every table."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
        tables = [row[0] for row in database.execute("select name from sqlite_master where type = 'table'")]
        rows = [repr(row) for table in tables for row in database.execute(f'select * from "{table}"')]  # noqa: S608
    return "\n".join(rows).encode()


class Argv(threading.Thread):
    """Looks at the command line of every process on this machine, again and again."""

    def __init__(self, secrets: Callable[[], Mapping[str, str]]) -> None:
        super().__init__(daemon=True)
        self.secrets = secrets
        self.ended = threading.Event()
        self.seen: set[str] = set()
        self.looks = 0

    def run(self) -> None:
        while not self.ended.wait(0.05):
            self.looks += 1
            for entry in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    command = entry.read_bytes()
                except OSError:
                    continue
                self.seen.update(f"{name} in {command[:60]!r}" for name in found_in(command, self.secrets()))


@pytest.mark.slow
def test_a_planted_secret_is_found_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAILOVER_TEST_CANARY", CANARY)
    scenario = tmp_path / "secrets.yaml"
    scenario.write_text(SCENARIO)
    secrets: dict[str, str] = {"config secret": CANARY}
    argv = Argv(lambda: secrets)
    stored: dict[str, list[str]] = {}

    def controller(config: Path, environ: Mapping[str, str], say: Callable[[str], None]) -> dict[str, Any]:
        secrets["AUTODL_TOKEN"] = environ["AUTODL_TOKEN"]
        secrets["AWS_SECRET_ACCESS_KEY"] = environ["AWS_SECRET_ACCESS_KEY"]
        argv.start()
        report = run_controller(config, environ, say)
        bucket = boto3.resource(
            "s3",
            endpoint_url=environ["AWS_ENDPOINT_URL"],
            region_name="us-east-1",
            aws_access_key_id=environ["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=environ["AWS_SECRET_ACCESS_KEY"],
        ).Bucket(BUCKET)
        objects = {item.key: item.get()["Body"].read() for item in bucket.objects.all()}
        assert any(key.endswith("spec.json") for key in objects)
        assert not any("/bootstrap" in key for key in objects), "the start object outlived the start"
        stored.update({key: names for key, body in objects.items() if (names := found_in(body, secrets))})
        return report

    folder = tmp_path / "drill"
    words: list[str] = []
    report = Drill(
        scenario, directory=folder, provider="stand-in", step_seconds=0.15, say=words.append, controller=controller
    ).run()
    argv.ended.set()
    argv.join()
    assert report["result"] == "completed", "\n".join(words)
    assert [placement["cloud"] for placement in report["placements"]] == ["autodl", "aws"]

    assert argv.looks > 50
    assert argv.seen == set()
    assert stored == {}
    assert found_in("\n".join(words).encode(), secrets) == []
    assert found_in(repr(report).encode(), secrets) == []
    assert leaks_in_files(folder, secrets) == {}


def leaks_in_files(folder: Path, secrets: Mapping[str, str]) -> dict[str, list[str]]:
    """Search every file of the drill but the two that must hold a secret: the box's own address card (gone by now)
    and the start object on the machine's disk."""
    searched, leaks = 0, {}
    for path in folder.rglob("*"):
        if not path.is_file() or path.is_symlink() or path.name == "bootstrap.json":
            continue
        content = database_text(path) if path.suffix == ".sqlite" else path.read_bytes()
        searched += 1
        if names := found_in(content, secrets):
            leaks[str(path.relative_to(folder))] = names
    assert searched > 30
    for start in folder.rglob("bootstrap.json"):
        assert start.stat().st_mode & 0o077 == 0, f"{start} can be read by others"
    return leaks


def test_the_search_finds_what_is_there(tmp_path: Path) -> None:
    """A search that cannot find is no proof."""
    hidden = base64.b64encode(f"before {CANARY} after".encode())
    assert found_in(b'{"user_data": "' + hidden + b'"}', {"it": CANARY}) == ["it"]
    with sqlite3.connect(tmp_path / "one.sqlite") as database:
        database.execute("create table answers (value text)")
        database.execute("insert into answers values (?)", (hidden.decode(),))
    assert found_in(database_text(tmp_path / "one.sqlite"), {"it": CANARY}) == ["it"]
