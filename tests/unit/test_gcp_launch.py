"""What a machine at Google Cloud is told of the store, and that a claim of it can be repeated."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from provisioner.checkpoint.store import open_store
from provisioner.cli.check import _tell_of_google
from provisioner.clouds.gcp.cloud import GcpCloud, job_prefix
from provisioner.config import Config, parse
from provisioner.controller.access import node_credentials
from provisioner.controller.directory import JobDirectory
from provisioner.controller.launch import LINK_FRESH_S, Launcher
from provisioner.controller.records import Published
from provisioner.errors import Unauthorized
from provisioner.model import Gpu, JobRef, Market, Offer

JOB = JobRef("digits", "1a2b3c4d")
OFFER = Offer("gcp", "us-central1", "us-central1-a", "g2-standard-4", Gpu("L4", 1, 24), Market.SPOT, None)
KEYS = {"AWS_ACCESS_KEY_ID": "AKIAOWN", "AWS_SECRET_ACCESS_KEY": "canary-own"}


def config(store: str, tmp_path: Path, gcp: str = "", **environ: str) -> Config:
    text = f"""\
job: {{name: digits, command: "true"}}
checkpoint: {{store: {store}}}
fallback: [{{gcp: {{project: my-project, regions: [us-central1]{gcp}}}}}]
"""
    return parse(text.encode(), "failover.yaml", tmp_path, environ)


def test_a_machine_reaches_gs_by_its_own_account_and_s3_by_a_key(tmp_path: Path) -> None:
    gs, s3 = config("gs://bucket/jobs", tmp_path), config("s3://bucket/jobs", tmp_path)
    assert node_credentials(gs.checkpoint.main, "gcp", {}, role=False) is None
    key = node_credentials(s3.checkpoint.main, "gcp", KEYS, role=False)
    assert key is not None
    assert "AKIAOWN" in str(key.as_json())


@pytest.mark.parametrize(
    ("store", "environ", "found"),
    [
        ("gs://bucket/jobs", {}, ("bucket", "jobs/digits")),
        ("gs://bucket", {}, ("bucket", "digits")),
        ("s3://bucket/jobs", {}, (None, "")),
        ("gs://bucket/jobs", {"STORAGE_EMULATOR_HOST": "127.0.0.1:1"}, (None, "")),
    ],
)
def test_the_account_is_let_into_a_bucket_of_googles_own(
    tmp_path: Path, store: str, environ: dict[str, str], found: tuple[str | None, str]
) -> None:
    assert job_prefix(config(store, tmp_path), environ) == found


def test_an_account_of_the_operators_is_given_no_rights(tmp_path: Path) -> None:
    own = ", service_account: trainer@my-project.iam.gserviceaccount.com"
    for gcp, bucket in (("", "bucket"), (own, None)):
        loaded = config("gs://bucket/jobs", tmp_path, gcp)
        cloud = GcpCloud.open(job=JOB, config=loaded, directory=tmp_path, environ={})
        assert cloud.spec("us-central1").bucket == bucket
    assert cloud.account == "my-project"


def test_check_tells_of_the_projects_beside_autodl(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    def look(project: str, _: object) -> str:
        if project == "closed-project":
            raise Unauthorized("refused", hint="log in")
        return f"project {project} answers"

    monkeypatch.setattr("provisioner.clouds.gcp.probe.look", look)
    file = tmp_path / "failover.yaml"
    blocks = [f"  - gcp: {{project: {name}, regions: [us-central1]}}\n" for name in ("my-project", "closed-project")]
    file.write_text(
        'job: {name: digits, command: "true"}\ncheckpoint: {store: "gs://bucket/jobs"}\nfallback:\n' + "".join(blocks)
    )
    _tell_of_google(file)
    assert capsys.readouterr() == ("", "gcp: project my-project answers\ngcp: refused; log in\n")


def test_the_user_data_of_a_token_stay_the_same(tmp_path: Path, monkeypatch: Any) -> None:
    """Google compares a request with the earlier one of its id; AutoDL does not, and gets a fresh link."""
    store = open_store(f"file://{tmp_path}/store").at("digits")
    directory = JobDirectory(tmp_path / "state", "digits")
    directory.create()
    launcher = Launcher(JOB, config("s3://bucket/jobs", tmp_path), directory, store, KEYS, None)
    links = iter(range(100))
    monkeypatch.setattr(type(store), "sign", lambda *_: f"https://link/{next(links)}")
    first = launcher.launch(OFFER, 1, 0, Published((), None))
    for script in (directory.path / "launch").iterdir():
        old = time.time() - LINK_FRESH_S - 60
        os.utime(script, (old, old))
    assert launcher.launch(OFFER, 1, 0, Published((), None)).user_data == first.user_data
    assert launcher.launch(OFFER, 1, 1, Published((), None)).user_data != first.user_data
