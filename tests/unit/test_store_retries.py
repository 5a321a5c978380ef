"""What is asked again and what is not, how long it is waited, and what the operator reads in the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from provisioner.checkpoint.store import Credentials, Store, open_store
from provisioner.errors import StoreError, Unauthorized, Unreachable
from tests.scripted import Answer, Asked, Scripted, error, scripted

KEY = Credentials("AKIACANARY0000000001", "canary-secret")
MIB = 2**20


@pytest.fixture
def server() -> Iterator[Scripted]:
    with scripted() as running:
        yield running


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def store(server, pauses) -> Store:
    return opened(server, pauses)


def opened(server: Scripted, pauses: list[float], **options) -> Store:
    options = {"timeout_s": 2, "retry_s": 60} | options
    return open_store(
        "s3://bucket/p", endpoint=server.url, credentials=KEY, environ={}, sleep=pauses.append, **options
    ).at("job")


CALLS = {
    "get": lambda store: store.get("k"),
    "get_range": lambda store: store.get_range("k", 0, 2),
    "exists": lambda store: store.exists("k"),
    "put": lambda store: store.put("k", b"x"),
    "long put": lambda store: store.put("k", bytes(MIB)),
    "create": lambda store: store.create("k", b"x"),
    "objects": lambda store: store.objects("k"),
    "folders": lambda store: store.folders("k"),
    "delete": lambda store: store.delete(["k"]),
}
GOOD = {
    "get_range": Answer(206, b"ab", {"Content-Range": "bytes 0-1/5"}),
    "objects": Answer(200, b"<ListBucketResult></ListBucketResult>"),
    "folders": Answer(200, b"<ListBucketResult></ListBucketResult>"),
}


PASSING = {"reset": Answer(reset=True), "400 RequestTimeout": error(400, "RequestTimeout")} | {
    str(status): error(status) for status in (408, 429, 500, 502, 503, 504)
}


@pytest.mark.parametrize(
    ("call", "fault"),
    # An answer to HEAD has no code by which a 400 could be told from another.
    [pytest.param(c, PASSING[f], id=f"{c}-{f}") for c in CALLS for f in PASSING if (c, f[:3]) != ("exists", "400")],
)
def test_what_passes_by_itself_is_asked_again(server, store, pauses, call, fault):
    server.script(fault, fault, fault, GOOD.get(call, Answer()))
    CALLS[call](store)
    assert (len(server.asked), store.requests, store.retries) == (4, 4, 3)
    assert len(pauses) == 3
    slow = fault.status in {429, 503}
    assert all((0.5 if slow else 0.05) <= pause <= 10 for pause in pauses)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("status", [400, 401, 403, 416, 501])
def test_a_refusal_is_not_asked_again_and_costs_one_request(server, store, pauses, call, status):
    server.script(error(status))
    with pytest.raises((StoreError, Unauthorized)) as caught:
        CALLS[call](store)
    assert (len(server.asked), store.requests, store.retries, pauses) == (1, 1, 0, [])
    assert isinstance(caught.value, Unauthorized) == (status in {401, 403})


def test_what_is_absent_is_no_error_and_is_not_asked_again(server, store):
    server.script(error(404, "NoSuchKey"))
    assert store.get("k") is None
    assert store.get_range("k", 0, 2) is None
    assert store.exists("k") is False
    store.delete(["k"])
    assert (store.requests, store.retries) == (4, 0)


def test_a_conflict_with_another_writer_is_asked_again_by_put_and_told_by_create(server, store):
    server.script(error(409, "ConditionalRequestConflict"), Answer())
    store.put("k", b"x")
    assert store.retries == 1
    for status in (409, 412):
        server.script(error(status, "ConditionalRequestConflict"))
        assert store.create("k", b"x") is False
    with pytest.raises(StoreError):
        store.put("k", b"x")  # 412: nothing was asked that could fail so
    assert store.retries == 1


def test_a_body_that_was_cut_short_is_asked_for_again(server, store):
    server.script(Answer(200, b"abc", length=10), Answer(200, b"abc", length=10), Answer(200, b"abcdefghij"))
    assert store.get("k") == b"abcdefghij"
    assert store.retries == 2


@pytest.mark.parametrize(
    "wrong",
    [
        Answer(206, b"ab", {"Content-Range": "bytes 2-5/10"}),
        Answer(206, b"abcdef", {"Content-Range": "bytes 2-5/10"}),
        Answer(206, b"ab", {"Content-Range": "bytes 2-5/10"}, length=4),
        Answer(206, b"abcd", {"Content-Range": "bytes 0-3/10"}),
        Answer(206, b"abcd"),
    ],
    ids=["short", "long", "cut", "elsewhere", "unsaid"],
)
def test_a_part_of_the_wrong_length_or_place_is_asked_for_again(server, store, wrong):
    right = Answer(206, b"cdef", {"Content-Range": "bytes 2-5/10"})
    server.script(wrong, wrong, right)
    assert bytes(store.get_range("k", 2, 4)) == b"cdef"
    assert store.retries == 2
    server.script(wrong)
    once = opened(server, [], retry_s=0)
    with pytest.raises((StoreError, Unreachable)):
        once.get_range("k", 2, 4)


def test_a_stream_that_breaks_again_and_again_goes_on_where_it_broke_as_long_as_it_brings_something(server):
    body = bytes(range(256)) * 4096 * 4  # 4 MiB, of which each answer brings about one
    came = []

    def rule(asked: Asked) -> Answer:
        first, last = (int(part) for part in asked.headers["range"].removeprefix("bytes=").split("-"))
        told = {"Content-Range": f"bytes {first}-{last}/{len(body)}"}
        return Answer(206, body[first : min(last + 1, first + MIB)], told, length=last + 1 - first)

    server.rule = rule
    store = opened(server, [], retry_s=0)
    assert store.stream("k", 10, len(body) - 20, lambda place, data: came.append((place, bytes(data))))
    assert b"".join(data for _, data in came) == body[10:-10]
    assert [place for place, _ in came] == [sum(len(data) for _, data in came[:n]) for n in range(len(came))]
    assert store.retries == store.requests - 1 >= 3
    server.script(error(503))
    with pytest.raises(Unreachable):
        store.stream("k", 0, 10, lambda *_: None)


def test_an_object_that_ends_before_is_told_at_once(server, store):
    server.script(Answer(206, b"cd", {"Content-Range": "bytes 2-3/4"}))
    with pytest.raises(StoreError, match=r"s3://bucket/p/job/k: 2 bytes came where 8 were asked for"):
        store.get_range("k", 2, 8)
    assert store.retries == 0


def test_half_a_listing_is_never_taken_for_all(server, store):
    half = b"<ListBucketResult><Contents><Key>p/job/packs/a</Key><Size>1</Size>"
    server.script(Answer(200, half), Answer(200, b"<ListBucketResult></ListBucketResult>"))
    assert store.objects("packs") == []
    assert store.retries == 1


def test_pauses_grow_and_have_an_end(server, pauses):
    server.script(error(503, "SlowDown"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tenacity.time.monotonic", lambda: sum(pauses))
        store = opened(server, pauses)
        with pytest.raises(Unreachable, match="the store answers 503 SlowDown"):
            store.get("k")
    assert sum(pauses) < 60
    assert all(pause <= limit for pause, limit in zip(pauses, [1, 2, 4, 8, *[10] * 90], strict=False))
    assert max(pauses) > 3
    assert 8 <= len(server.asked) <= 60


def test_no_time_for_retries_is_one_request(server, pauses):
    server.script(error(503))
    for call in CALLS.values():
        store = opened(server, pauses, retry_s=0)
        with pytest.raises(Unreachable):
            call(store)
        assert store.requests == 1
    assert pauses == []


def test_a_server_that_falls_silent_is_noticed_by_the_time_of_one_request(server, pauses):
    def rule(_: Asked) -> Answer:
        time.sleep(1.5)
        return Answer()

    server.rule = rule
    store = opened(server, pauses, timeout_s=0.3, retry_s=0)
    began = time.monotonic()
    with pytest.raises(Unreachable, match="no answer"):
        store.get("k")
    assert time.monotonic() - began < 1.2


def test_over_a_slow_line_fewer_long_writes_are_under_way_and_all_arrive(server):
    """16 bodies of 2 MiB share 7 MiB/s, and none may take longer than 4 s: all at once, none would arrive."""
    lock, free = threading.Lock(), [0.0]

    def share_the_line(part: int) -> None:
        with lock:
            free[0] = max(free[0], time.monotonic()) + part / (7 * MIB)
            mine = free[0]
        time.sleep(max(0.0, mine - time.monotonic()))

    server.on_part = share_the_line
    store = opened(server, [], timeout_s=4, retry_s=20)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda number: store.put(f"k{number}", bytes(2 * MIB)), range(24)))
    assert 0 < store.retries <= 32  # without turns: 80 and more, and not all arrive
    assert len({asked.path for asked in server.asked if len(asked.body) == 2 * MIB}) == 24


def test_counters_are_shared_by_all_views_and_threads(server):
    store = opened(server, [])
    server.rule = lambda _: error(500) if len(server.asked) % 10 == 0 else Answer()
    views = [store.at(f"job-{number}") for number in range(4)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda number: views[number % 4].put(f"k{number}", b"x"), range(200)))
    assert store.requests == views[0].requests == len(server.asked)
    assert store.retries == len(server.asked) - 200 > 0


def test_a_refused_condition_is_remembered_and_nothing_is_spent_on_it_again(server, store):
    server.rule = lambda asked: error(501, "NotImplemented") if "if-none-match" in asked.headers else Answer()
    for _ in range(3):
        with pytest.raises(StoreError):
            store.at("deeper").create("owner.json", b"{}")
    assert len(server.asked) == 1
    assert store.create_refused
    store.put("owner.json", b"{}")


def test_several_buffers_become_one_object_by_one_request(server, store):
    store.put("k", [b"abc", memoryview(b"xdefx")[1:4], bytearray(b"ghi")])
    (asked,) = server.asked
    assert (asked.verb, asked.body) == ("PUT", b"abcdefghi")
    assert "transfer-encoding" not in asked.headers


def test_many_objects_are_removed_at_once_one_a_request(server, store):
    at_once, most = [0], [0]

    def rule(asked: Asked) -> Answer:
        assert (asked.verb, asked.body) == ("DELETE", b"")
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        time.sleep(0.05)
        at_once[0] -= 1
        return Answer(204)

    server.rule = rule
    store.delete(f"k{number}" for number in range(48))
    assert sorted(asked.path for asked in server.asked) == sorted(f"/bucket/p/job/k{n}" for n in range(48))
    assert 4 <= most[0] <= 16


def test_removing_stops_at_the_first_refusal(server, store):
    server.script(error(403))
    with pytest.raises(Unauthorized):
        store.delete(f"k{number}" for number in range(500))
    assert len(server.asked) < 200


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("status", [400, 403, 503])
def test_what_is_told_is_one_line_with_the_place_and_no_secret(server, pauses, call, status):
    server.script(error(status))
    store = opened(server, pauses, retry_s=0)
    with pytest.raises((StoreError, Unauthorized, Unreachable)) as caught:
        CALLS[call](store)
    told = f"{caught.value} {caught.value.hint}"
    assert "s3://bucket/p/job/k" in told
    assert "\n" not in told
    assert "canary" not in told.lower()
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert "canary" not in repr(store).lower()
