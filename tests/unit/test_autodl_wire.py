"""One exchange with AutoDL: retries of reads, doubt about writes, and a token that shows nowhere."""

from __future__ import annotations

import json
import logging
import traceback

import httpx
import pytest
import respx
from hypothesis import given
from hypothesis import strategies as st

from provisioner.clouds.autodl.client import AutodlClient
from provisioner.clouds.autodl.errors import Doubtful, NotFound, Refused
from provisioner.clouds.autodl.pro_api import ProOrder
from provisioner.errors import ConfigError, FailoverError, Unauthorized, Unreachable
from provisioner.model import FailureKind

CANARY = "eyJhbGciOi.canary-developer-token.c2ln"
BASE = "https://api.autodl.com"
ORDER = ProOrder("failover-x", "4090D", 1, "base-image-l2t43iu6uk", (11, 8))
GOOD = {"code": "Success", "data": "running", "msg": "", "request_id": "0" * 32, "news": [1]}


class Time:
    """A clock that only sleep moves."""

    def __init__(self):
        self.now = 1000.0
        self.slept = []

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds

    def __call__(self):
        return self.now


def client(handler, time=None, **options):
    time = time or Time()
    return AutodlClient(CANARY, transport=httpx.MockTransport(handler), sleep=time.sleep, clock=time, **options)


def envelope(**changes):
    return httpx.Response(200, json={**GOOD, **changes})


def raising(error):
    def fault(request):
        raise error

    return fault


def in_turn(left):
    """Meet the faults one by one, then find all well."""

    def answer(request):
        return left.pop(0)(request) if left else envelope()

    return answer


FAULTS = {
    "429": lambda request: httpx.Response(429),
    "429 with a wait": lambda request: httpx.Response(429, headers={"Retry-After": "7"}),
    "500": lambda request: httpx.Response(500, text="oops"),
    "502 html": lambda request: httpx.Response(502, text="<html>"),
    "503 with an envelope": lambda request: httpx.Response(503, json={"code": "Busy", "msg": "忙"}),
    "500 that claims success": lambda request: httpx.Response(500, json=GOOD),
    "time-out": raising(httpx.ReadTimeout("slow")),
    "refused": raising(httpx.ConnectError("refused")),
    "cut": raising(httpx.RemoteProtocolError("peer closed connection")),
    "truncated": lambda request: httpx.Response(200, content=json.dumps(GOOD)[:30].encode()),
    "empty": lambda request: httpx.Response(200, content=b""),
    "html": lambda request: httpx.Response(200, text="<html>login</html>"),
    "not an object": lambda request: httpx.Response(200, json=[1]),
    "no code": lambda request: httpx.Response(200, json={"data": "running"}),
    "wrong shape": lambda request: httpx.Response(200, json={**GOOD, "data": {"status": 1}}),
    "null": lambda request: httpx.Response(200, json={**GOOD, "data": None}),
    "internal": lambda request: httpx.Response(200, json={"code": "InternalError", "msg": "内部错误", "data": None}),
    "deep": lambda request: httpx.Response(200, content=b"[" * 100_000),
    "long number": lambda request: httpx.Response(200, content=b'{"code": ' + b"1" * 9000 + b"}"),
}


@given(st.lists(st.sampled_from(sorted(FAULTS)), max_size=5))
def test_whatever_goes_wrong_five_times_the_sixth_answer_counts(faults):
    left = [FAULTS[name] for name in faults]
    time = Time()
    with client(in_turn(left), time) as autodl:
        assert autodl.pro.status("pro-1") == "running"
    assert len(time.slept) == len(faults)
    assert all(1 <= wait <= 60 for wait in time.slept)


@given(st.lists(st.sampled_from(sorted(FAULTS)), min_size=6, max_size=6))
def test_after_the_last_try_a_read_ends_in_a_typed_error_in_bounded_time(faults):
    left = [FAULTS[name] for name in faults]
    time = Time()
    with (
        client(in_turn(left), time, patience_s=90.0) as autodl,
        pytest.raises(FailoverError) as told,
    ):
        autodl.pro.status("pro-1")
    assert isinstance(told.value, Refused if faults[len(faults) - len(left) - 1] == "internal" else Unreachable)
    assert sum(time.slept) <= 90


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_a_create_is_sent_once_and_what_it_did_stays_open(name):
    sent = []

    def answer(request):
        sent.append(request)
        return FAULTS[name](request)

    with client(answer) as autodl, pytest.raises(FailoverError) as told:
        autodl.pro.create(ORDER)
    assert len(sent) == 1
    if name.startswith("429"):
        assert isinstance(told.value, Refused)
        assert told.value.failure.kind is FailureKind.THROTTLED
    elif name == "internal":
        assert isinstance(told.value, Refused)
        assert told.value.failure.kind is FailureKind.UNKNOWN
    else:
        assert isinstance(told.value, Doubtful)


def test_the_server_may_ask_for_a_longer_wait_but_not_for_a_day():
    for asked, at_least, at_most in (("30", 30, 60), ("86400", 60, 60), ("Wed, 21 Oct 2026 07:28:00 GMT", 1, 3)):
        time = Time()
        answers = [httpx.Response(429, headers={"Retry-After": asked}), envelope()]
        with client(lambda request, answers=answers: answers.pop(0), time) as autodl:
            autodl.pro.status("pro-1")
        assert at_least <= time.slept[0] <= at_most


def test_an_answer_that_trickles_in_for_ever_times_out():
    time = Time()

    def trickle():
        while True:
            time.now += 3
            yield b" "

    sent = []

    def answer(request):
        sent.append(1)
        return httpx.Response(200, content=trickle())

    with client(answer, time, tries=2) as autodl, pytest.raises(Unreachable, match="timed out"):
        autodl.pro.status("pro-1")
    assert len(sent) == 2


def test_an_answer_without_end_is_not_read_into_memory():
    def flood():
        while True:
            yield b"x" * 2**20

    with (
        client(lambda request: httpx.Response(200, content=flood()), tries=1) as autodl,
        pytest.raises(Unreachable, match="too big"),
    ):
        autodl.pro.status("pro-1")


@pytest.mark.parametrize("status", [401, 403])
def test_http_401_and_403_are_a_bad_token_and_are_not_repeated(status):
    sent = []

    def answer(request):
        sent.append(1)
        return httpx.Response(status, json={"code": "Success", "data": "running"})

    with client(answer) as autodl, pytest.raises(Unauthorized):
        autodl.pro.status("pro-1")
    assert sent == [1]


@pytest.mark.parametrize("status", [301, 302, 404, 405])
def test_a_wrong_address_is_said_at_once_and_the_token_goes_nowhere_else(status):
    seen = []

    def answer(request):
        seen.append(request.url.host)
        return httpx.Response(status, headers={"Location": "https://elsewhere.example/"}, text="404 page not found")

    with client(answer) as autodl, pytest.raises(Refused) as told:
        autodl.pro.status("pro-1")
    assert seen == ["api.autodl.com"]
    assert "base_url" in told.value.hint


@respx.mock(base_url=BASE)
def test_requests_look_as_autodl_wants_them(respx_mock):
    status = respx_mock.get("/api/v1/dev/instance/pro/status", params={"instance_uuid": "pro-1"}).respond(json=GOOD)
    delete = respx_mock.delete("/api/v1/dev/deployment").respond(json={"code": "Success", "msg": ""})
    stop = respx_mock.put("/api/v1/dev/deployment/operate").respond(json={"code": "Success", "data": None, "msg": ""})
    create = respx_mock.post("/api/v1/dev/instance/pro/create").respond(json={**GOOD, "data": "pro-9"})
    nfs = respx_mock.post("/api/v1/dev/exclusive_nfs/mount").respond(json={"code": "Success", "msg": ""})
    with AutodlClient(CANARY) as autodl:
        assert autodl.pro.status("pro-1") == "running"
        assert autodl.pro.create(ORDER) == "pro-9"
        autodl.elastic.delete("d1")
        autodl.elastic.stop("d1")
        autodl.mount_nfs("westDC3", dedicated=False)
    assert status.calls.last.request.headers["Authorization"] == CANARY
    assert status.calls.last.request.content == b""
    assert json.loads(delete.calls.last.request.content) == {"deployment_uuid": "d1"}
    assert json.loads(stop.calls.last.request.content) == {"deployment_uuid": "d1", "operate": "stop"}
    assert json.loads(nfs.calls.last.request.content) == {"data_center": "westDC3", "mountable": -1}
    assert json.loads(create.calls.last.request.content) == {
        "gpu_spec_uuid": "4090D",
        "req_gpu_amount": 1,
        "image_uuid": "base-image-l2t43iu6uk",
        "cuda_v_from": 118,
        "expand_system_disk_by_gb": 0,
        "instance_name": "failover-x",
    }


@pytest.mark.parametrize(
    ("last", "expected"),
    [({"max_page": 2}, ["a", "b"]), ({}, ["a"]), ({"max_page": 0}, ["a"]), ({"max_page": "2"}, ["a", "b"])],
)
def test_lists_are_read_to_the_last_page_each_machine_once(last, expected):
    pages = {1: ["a", "a"], 2: ["b", "a"]}

    def answer(request):
        index = json.loads(request.content)["page_index"]
        items = [{"uuid": name, "status": "running"} for name in pages[index]]
        return envelope(data={"list": items, "page_index": index, **last})

    with client(answer) as autodl:
        assert [item.id for item in autodl.pro.instances()] == expected


@pytest.mark.parametrize("data", [{"list": None, "max_page": 0}, {"list": [], "max_page": 1}])
def test_an_empty_list_is_empty(data):
    with client(lambda request: envelope(data=data)) as autodl:
        assert autodl.pro.instances() == []


@pytest.mark.parametrize("data", [None, {}, [], "x", {"list": {}}, {"max_page": 1}])
def test_a_list_that_is_not_there_is_not_an_empty_list(data):
    """Else a broken answer would read as "your machine is gone", and a second one would be bought."""
    with client(lambda request: envelope(data=data)) as autodl, pytest.raises(Unreachable):
        autodl.pro.instances()


def test_not_found_has_a_type_of_its_own():
    missing = {"code": "RecordNotFoundError", "msg": "未查询到相关实例", "data": None}
    with client(lambda request: httpx.Response(200, json=missing)) as autodl, pytest.raises(NotFound):
        autodl.pro.status("pro-1")


@pytest.mark.parametrize(
    "base_url",
    ["", "autodl.com", "ftp://autodl.com", "https://u:p@autodl.com", "https://a.com/?x=1", "http://[::1", "https://"],
)
def test_a_wrong_base_url_is_bad_input(base_url):
    with pytest.raises(ConfigError, match="base_url"):
        AutodlClient(CANARY, base_url)


@pytest.mark.parametrize("token", ["", "  \n", "Bearer canary", "cana\nry", "canarÿ", "canary\x00"])
def test_a_broken_token_is_bad_input_and_is_not_quoted(token):
    with pytest.raises(ConfigError) as told:
        AutodlClient(token)
    assert "canar" not in str(told.value) + told.value.hint


def test_blanks_around_a_token_are_dropped():
    seen = []

    def answer(request):
        seen.append(request.headers["Authorization"])
        return envelope()

    with AutodlClient(f" {CANARY}\n", transport=httpx.MockTransport(answer)) as autodl:
        autodl.pro.status("pro-1")
    assert seen == [CANARY]


def test_the_token_shows_in_no_log_error_or_repr(caplog):
    """Also when the server throws it back at us, and with every library at its most talkative."""
    caplog.set_level(logging.DEBUG)
    echoes = [
        lambda request: httpx.Response(200, json={"code": "Odd", "msg": f"bad token {CANARY}\nx", "data": CANARY}),
        lambda request: httpx.Response(200, json={"code": CANARY, "msg": CANARY}),
        lambda request: httpx.Response(401, json={"code": "AuthorizeFailed", "msg": CANARY}),
        lambda request: httpx.Response(500, text=CANARY),
        lambda request: httpx.Response(404, text=CANARY),
        raising(httpx.ConnectError(f"refused {CANARY}")),
        raising(httpx.LocalProtocolError(f"Illegal header value b'{CANARY}'")),
    ]
    told = ""
    for echo in echoes:
        autodl = client(echo, tries=2)
        told += repr(autodl) + repr(autodl.wire) + str(vars(autodl))
        for call in (lambda autodl=autodl: autodl.pro.status("pro-1"), lambda autodl=autodl: autodl.pro.create(ORDER)):
            with pytest.raises(FailoverError) as error:
                call()
            told += "".join(traceback.format_exception(error.value)) + error.value.hint
            assert "\n" not in str(error.value)
        autodl.close()
    assert "canary" not in told
    assert "canary" not in caplog.text
    assert "/api/v1/dev/instance/pro/status" in caplog.text  # the log was really on
