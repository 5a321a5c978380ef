"""What the probe says of a store that works, that is weaker, and that does not do what it says."""

from __future__ import annotations

import email.utils
import re
import time
from collections.abc import Iterator

import pytest

from provisioner.checkpoint.probe import probe
from provisioner.checkpoint.store import Credentials, Store, open_store
from provisioner.errors import StoreError, Unauthorized, Unreachable
from tests.scripted import Answer, Asked, Scripted, error, scripted


class Bucket:
    """A small S3 whose promises can be broken one by one. ``ahead_s``: how far its clock is ahead."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.conditional = "honoured"
        self.ahead_s = 0.0
        self.broken = ""

    def __call__(self, asked: Asked) -> Answer:
        path, _, query = asked.path.partition("?")
        if asked.verb == "PUT":
            return self._put(path, asked)
        if "list-type=2" in query:
            return Answer(200, self._listed())
        if asked.verb == "DELETE":
            if self.broken != "delete":
                self.kept.pop(path, None)
            return Answer(204)
        body = self.kept.get(path)
        if body is None:
            return error(404, "NoSuchKey")
        if (ranged := re.fullmatch(r"bytes=(\d+)-(\d+)", asked.headers.get("range", ""))) and self.broken != "range":
            first, last = int(ranged[1]), int(ranged[2])
            told = {"Content-Range": f"bytes {first}-{last}/{len(body)}"}
            return Answer(206, body[first : last + 1], told)
        return Answer(200, b"other" if self.broken == "read" else body)

    def _put(self, path: str, asked: Asked) -> Answer:
        if "if-none-match" in asked.headers:
            if self.conditional == "refused":
                return error(501, "NotImplemented")
            if self.conditional == "honoured" and path in self.kept:
                return error(412, "PreconditionFailed")
        self.kept[path] = asked.body
        return Answer()

    def _listed(self) -> bytes:
        at = email.utils.formatdate(time.time() + self.ahead_s, usegmt=True)
        at = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", email.utils.parsedate(at) or ())
        entries = "".join(
            f"<Contents><Key>{path.removeprefix('/b/')}</Key><Size>{len(body)}</Size><LastModified>{at}</LastModified>"
            "<ETag>e</ETag></Contents>"
            for path, body in self.kept.items()
            if self.broken != "list"
        )
        return f"<ListBucketResult>{entries}</ListBucketResult>".encode()


@pytest.fixture
def server() -> Iterator[Scripted]:
    with scripted() as running:
        yield running


@pytest.fixture
def bucket(server) -> Bucket:
    server.rule = Bucket()
    return server.rule


@pytest.fixture
def store(server) -> Store:
    key = Credentials("AKIACANARY0000000001", "canary-secret")
    return open_store("s3://b/p", endpoint=server.url, credentials=key, environ={}, sleep=lambda _: None).at("job")


def test_a_store_that_keeps_every_promise_costs_a_handful_of_requests_and_nothing_stays(server, bucket, store):
    found = probe(store)
    assert (found.conditional, found.line) == ("honoured", "")
    assert abs(found.clock_skew_s) < 3
    assert bucket.kept == {}
    assert len(server.asked) <= 8
    assert store.retries == 0


@pytest.mark.parametrize(("conditional", "word"), [("ignored", "ignores"), ("refused", "refuses")])
def test_a_weaker_fence_is_one_line_and_no_error(bucket, store, conditional, word):
    bucket.conditional = conditional
    found = probe(store)
    assert found.conditional == conditional
    fence = "only the epoch in every name keeps two nodes apart"
    assert found.line == f"s3://b/p/job {word} conditional writes: {fence}"
    assert bucket.kept == {}
    assert store.retries == 0


@pytest.mark.parametrize("ahead", [-900, 90])
def test_the_stores_clock_is_told(bucket, store, ahead):
    bucket.ahead_s = ahead
    assert abs(probe(store).clock_skew_s - ahead) < 3


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        ("read", "what was written is not read back"),
        ("list", "what was written is not listed"),
        ("delete", "what was deleted is still there"),
    ],
)
def test_a_store_that_does_not_do_what_it_says_is_an_error(bucket, store, broken, told):
    bucket.broken = broken
    with pytest.raises(StoreError, match=told) as caught:
        probe(store)
    assert "use another store" in caught.value.hint


def test_a_store_that_answers_parts_with_the_whole_works(bucket, store):
    bucket.broken = "range"
    assert probe(store).line == ""


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (error(403, "AccessDenied"), Unauthorized),
        (error(404, "NoSuchBucket"), StoreError),
        (error(503, "SlowDown"), Unreachable),
        (Answer(reset=True), Unreachable),
    ],
    ids=["denied", "no bucket", "busy", "reset"],
)
def test_what_stands_in_the_way_is_told_with_what_to_do(server, answer, kind):
    server.script(answer)
    key = Credentials("AKIACANARY0000000001", "canary-secret")
    store = open_store("s3://b/p", endpoint=server.url, credentials=key, environ={}, retry_s=0)
    with pytest.raises(kind) as caught:
        probe(store)
    told = f"{caught.value} {caught.value.hint}"
    assert "s3://b/p" in told
    assert "\n" not in told
    assert "canary" not in told.lower()
    assert len(server.asked) <= 2


def test_a_directory_and_memory_keep_every_promise(tmp_path):
    for uri in (f"file://{tmp_path}/store", "memory://"):
        found = probe(open_store(uri).at("job"))
        assert (found.conditional, found.line) == ("honoured", "")
        assert abs(found.clock_skew_s) < 3
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == []
