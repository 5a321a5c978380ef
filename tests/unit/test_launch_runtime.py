"""What is known of a machine's Python and image before one is rented, and what a machine is told of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioner import assets
from provisioner.checkpoint.store import open_store
from provisioner.config import ConfigMistakes, parse
from provisioner.controller import launch, launch_runtime, runtime_bundle
from provisioner.controller.directory import JobDirectory
from provisioner.controller.launch import Launcher, start_object
from provisioner.controller.records import Published
from provisioner.controller.runtime_bundle import Bundle, Manifest
from provisioner.errors import ConfigError, FailoverError
from provisioner.model import Gpu, JobRef, Market, Offer

ENVIRON = {"GHCR_TOKEN": "canary-registry", "AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": "canary"}
AUTODL = "primary: {autodl: {mode: pro, gpus: [RTX 4090D], %s}}\n"
FALLBACK = "fallback: [{%s}]\n"
LOCAL, AWS = FALLBACK % "local: {}", FALLBACK % "aws: {regions: [us-east-1]}"
OFFER = Offer("aws", "us-east-1", "us-east-1a", "g4dn.xlarge", Gpu("T4", 1, 16), Market.SPOT, None)


def config(tmp_path: Path, job: str = "", places: str = LOCAL):
    text = f"job: {{name: digits, command: 'true'{job}}}\ncheckpoint: {{store: file://{tmp_path}/store}}\n{places}"
    text = text.replace(f"file://{tmp_path}/store", "s3://bucket/p") if places != LOCAL else text
    return parse(text.encode(), "failover.yaml", tmp_path, ENVIRON)


def bundle(tmp_path: Path) -> Bundle:
    path = tmp_path / "made.tar.gz"
    path.write_bytes(b"tar")
    return Bundle(
        path, "ab" * 32, 3, Manifest("0.1.0", "3.11.7", "linux-x86_64", "Linux 3.2.0", "this installation", "p")
    )


def launcher(tmp_path: Path, job: str = "", places: str = LOCAL, **more):
    store = open_store(f"file://{tmp_path}/store").at("digits")
    directory = JobDirectory(tmp_path / "state", "digits")
    return Launcher(
        JobRef("digits", "1a2b3c4d"), config(tmp_path, job, places), directory, store, ENVIRON, None, **more
    )


@pytest.mark.parametrize(
    ("job", "places", "wanted"),
    [
        ("", LOCAL, False),
        (", runtime: bundle", LOCAL, True),
        ("", AWS, True),
        (", runtime: installed", AWS, False),
        ("", AUTODL % "image_uuid: image-0123456789" + AWS, True),
    ],
)
def test_a_bundle_is_made_only_where_a_place_may_need_it(tmp_path, job, places, wanted):
    assert launch_runtime.wants_bundle(config(tmp_path, job, places), ENVIRON) is wanted


def test_a_bundle_goes_into_the_store_once(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "runtime_wheels", lambda _: [])
    monkeypatch.setattr(runtime_bundle, "build", lambda _: bundle(tmp_path))
    made = launcher(tmp_path, ", runtime: bundle")
    published = made.publish()
    key, shared = f".runtime/{'ab' * 32}.tar.gz", made.store.above()
    assert published.bundle == (key, "ab" * 32)
    assert shared.get(key) == b"tar"
    shared.put(key, b"another job has sent it")
    assert made.publish() == published
    assert shared.get(key) == b"another job has sent it"
    orders = dict(made._orders(OFFER, 1, published))
    assert orders["bundle-url"] == shared.sign(key, 60.0)
    assert orders["bundle-sha256"] == "ab" * 32


def test_a_run_that_an_older_release_published_starts_from_the_job_s_own_runtime(tmp_path):
    made, key = launcher(tmp_path, ""), f"runtime/{'ab' * 32}.tar.gz"
    orders = dict(made._orders(OFFER, 1, Published((), None, (key, "ab" * 32))))
    assert orders["bundle-url"] == made.store.sign(key, 60.0)


def test_a_bundle_that_cannot_be_made_stops_only_who_asked_for_it(tmp_path, monkeypatch):
    def fails(_):
        raise FailoverError("this Python needs libx.so.1, which is not here")

    monkeypatch.setattr(launch, "runtime_wheels", lambda _: [])
    monkeypatch.setattr(runtime_bundle, "build", fails)
    published = launcher(tmp_path, "", AWS).publish()
    assert dict(launcher(tmp_path, "", AWS)._orders(OFFER, 1, published))["no-bundle"].startswith("this Python needs")
    with pytest.raises(FailoverError, match=r"libx\.so\.1"):
        launcher(tmp_path, ", runtime: bundle").publish()
    with pytest.raises(ConfigError, match=r"Ubuntu 20\.04\) has no Python 3\.11.*libx\.so\.1"):
        launcher(tmp_path, "", AUTODL % "image_uuid: base-image-l2t43iu6uk" + AWS).publish()


def test_a_bundle_of_another_version_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(runtime_bundle, "opened", lambda _: bundle(tmp_path))
    path = tmp_path / "made.tar.gz"
    monkeypatch.setattr("provisioner.__version__", "0.1.0")
    assert launcher(tmp_path, runtime_file=path)._bundle()[0].path == path
    monkeypatch.setattr("provisioner.__version__", "0.2.0")
    with pytest.raises(ConfigError, match=r"made by gpu-failover 0\.1\.0, and this is 0\.2\.0"):
        launcher(tmp_path, runtime_file=path)._bundle()


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("ubuntu:22.04", "m.example/library/ubuntu:22.04"),
        ("pytorch/pytorch:2.4", "m.example/pytorch/pytorch:2.4"),
        ("docker.io/library/ubuntu", "m.example/library/ubuntu"),
        ("docker.io/ubuntu", "m.example/library/ubuntu"),
        ("ghcr.io/me/train@sha256:ab", "m.example/me/train@sha256:ab"),
        ("localhost:5000/train", "m.example/train"),
    ],
)
def test_an_image_keeps_its_name_at_a_mirror(image, name):
    assert launch_runtime.pull_names(image, ("m.example",)) == [name, image]


def test_an_image_in_the_store_is_there_before_anything_is_rented(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "runtime_wheels", lambda _: [])
    made = launcher(tmp_path, ", image: 'store://images/train.tar'")
    with pytest.raises(ConfigError, match=r"there is no file://.*/store/images/train\.tar"):
        made.publish()
    open_store(f"file://{tmp_path}/store").put("images/train.tar", b"layers")
    published = made.publish()
    assert dict(made._orders(OFFER, 1, published))["archive"].endswith("/store/images/train.tar")


def test_a_login_is_told_to_machines_with_an_engine_and_to_no_file_here(tmp_path):
    job = ", image: ghcr.io/me/train, image_login: {registry: ghcr.io, user: me, secret: GHCR_TOKEN}"
    made = launcher(tmp_path, job)
    assert dict(made._orders(OFFER, 1, Published((), None)))["login-password"] == "canary-registry"
    at_autodl = Offer("autodl", "westDC3", "", "v-48g", Gpu("RTX 4090D", 1, 48), Market.ON_DEMAND, None)
    assert "canary" not in str(made._orders(at_autodl, 1, Published((), None)))
    made.write_spec()
    assert b"canary" not in made.store.get("spec.json")


@pytest.mark.parametrize(
    ("job", "line"),
    [
        (", image_mirrors: [m.example]", "job.image_mirrors: there is no job.image"),
        (", image: 'store://'", "names no object"),
        (", image: 'store://../x'", "names no object"),
        (", image: a, image_mirrors: ['https://m.example']", "is not a registry"),
        (", image: a, image_login: {registry: ghcr.io, user: me, secret: NOT_SET}", "NOT_SET is not set"),
        (", runtime_file: gone.tar.gz", "there is no file `gone.tar.gz`"),
        (", runtime: python", "runtime"),
    ],
)
def test_mistakes_are_named(tmp_path, job, line):
    with pytest.raises(ConfigMistakes) as caught:
        config(tmp_path, job)
    assert line in str(caught.value)


def test_a_start_object_has_three_parts_and_refuses_values_of_several_lines():
    text = start_object([("image", "r/i:t")], {"version": 1}).decode()
    lines, _, rest = text.partition("--- script\n")
    script, _, json_text = rest.partition("--- json\n")
    assert lines == "version 1\nimage r/i:t\n"
    assert script == assets.path("templates/machine.sh").read_text()
    assert json_text == '{"version": 1}\n'
    assert "\n---" not in script
    with pytest.raises(ConfigError, match="image"):
        start_object([("image", "a\n--- json")], {})
