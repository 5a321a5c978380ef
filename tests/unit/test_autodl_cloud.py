"""AutoDL as a cloud, against the emulator in the same process and on a clock that only sleep moves."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioner.clouds.autodl import AutodlClient, AutodlCloud
from provisioner.clouds.autodl.errors import NotFound, failure_for
from provisioner.clouds.autodl.naming import machine_name
from provisioner.clouds.base import Cloud, Request
from provisioner.errors import CloudError, Unauthorized, Unreachable
from provisioner.model import Failure, FailureKind, JobRef, Launch, Money, Node, NodeState, Scope
from provisioner.sandbox.autodl import AutodlEmulator, Delays, EmulatorConfig, Fault
from provisioner.sandbox.autodl.direct import DirectTransport

JOB = JobRef("digits", "1a2b3c4d")
SCRIPT = "#!/bin/bash\necho 'hello \"$USER\"'\n"
LAUNCH = Launch(JOB, 3, "0123456789abcdef0123456789abcdef", SCRIPT, 3600.0)
CREATE = {"pro": "/api/v1/dev/instance/pro/create", "elastic": "/api/v1/dev/deployment"}
CNY = "CNY"


@dataclass(frozen=True)
class Settings:
    mode: str = "pro"
    regions: Sequence[str] = ()
    gpus: Sequence[str] = ()
    image_uuid: str | None = "base-image-l2t43iu6uk"
    max_price: Money | None = None


class Setting:
    """An account, its clock, and a cloud on top."""

    def __init__(self, mode="pro", *, account=None, **settings):
        self.now = 1_790_000_000.0
        self.emulator = AutodlEmulator(
            EmulatorConfig(token="t0ken", **(account or {})), hooks=self, clock=lambda: self.now
        )
        self.started = {}
        self.settings = Settings(mode=mode, **{"gpus": ("4090D" if mode == "pro" else "RTX 4090",), **settings})
        self.client = AutodlClient(
            "t0ken", transport=DirectTransport(self.emulator), sleep=self.sleep, clock=lambda: self.now
        )
        self.cloud = self.open()

    def open(self, job=JOB, **changes):
        config = replace(self.settings, **changes)
        return AutodlCloud(config, job, self.client, sleep=self.sleep, clock=lambda: self.now, wall=lambda: self.now)

    def on_start(self, instance_id, command, env):
        self.started[instance_id] = command

    def on_stop(self, instance_id):
        self.started.pop(instance_id, None)

    def sleep(self, seconds):
        self.now += seconds
        self.emulator.tick()

    @property
    def offer(self):
        return next(offer for offer in self.cloud.offers(Request()) if offer.available != 0)

    @property
    def machines(self):
        state = self.emulator.state()
        return [*state["instances"], *state["deployments"]]

    def sent(self, path):
        return [entry for entry in self.emulator.requests() if entry["path"] == path]

    def claim(self, launch=LAUNCH):
        node = self.cloud.claim(self.offer, launch)
        assert isinstance(node, Node), node
        return node


MODES = pytest.mark.parametrize("mode", ["pro", "elastic"])


def test_it_is_a_cloud():
    assert isinstance(Setting().cloud, Cloud)


# -- offers


def test_pro_offers_a_spec_in_the_region_that_the_platform_chooses_and_tells_no_stock():
    (offer,) = Setting().cloud.offers(Request())
    assert (offer.region, offer.instance_type, offer.gpu.name, offer.available) == ("", "4090D", "RTX 4090D", None)
    assert offer.price_per_hour == Money(Decimal("1.88"), CNY)
    assert offer.key == "autodl/-/-/4090D/on-demand"


def test_pro_offers_each_named_region_that_it_takes_and_says_why_not_the_others():
    setting = Setting(regions=("westDC3", "beijingDC2", "westDC2"), gpus=())
    offers, passed = setting.cloud.survey(Request(gpus=("RTX 4090D", "H800"), count=2))
    assert {(offer.instance_type, offer.region) for offer in offers} == {
        (spec, region) for spec in ("4090D", "h800") for region in ("westDC3", "beijingDC2")
    }
    assert {offer.price_per_hour.amount for offer in offers if offer.price_per_hour} == {
        Decimal("3.76"),
        Decimal("18.7"),
    }
    assert [(item.name, "westDC3" in item.reason) for item in passed] == [("westDC2", True)]


@pytest.mark.parametrize(
    ("settings", "request_", "reason"),
    [
        ({"gpus": ("4090D",), "max_price": Money(Decimal("1.5"), CNY)}, Request(), "1.88 CNY"),
        ({"gpus": ("v-48g",), "max_price": Money(Decimal(9), CNY)}, Request(), "not known"),
        ({"gpus": ("4090D",)}, Request(min_vram_gb=40), "24 GB"),
        ({"gpus": ("4090D",)}, Request(count=5), "1 to 4"),
        ({"gpus": ("RTX 4090",)}, Request(), "no Pro machine"),
        ({"gpus": (), "regions": ("foshanDC1",)}, Request(), "westDC3"),
    ],
)
def test_pro_says_why_it_offers_nothing(settings, request_, reason):
    offers, passed = Setting(**settings).cloud.survey(request_)
    assert offers == []
    assert reason in passed[0].reason


def test_elastic_offers_each_region_with_its_free_cards_sold_out_ones_included():
    setting = Setting("elastic", gpus=("vGPU-48GB", "L20"))
    offers = setting.cloud.offers(Request())
    assert {(offer.region, offer.gpu.name, offer.available) for offer in offers} == {
        ("westDC2", "vGPU-48GB", 0),
        ("beijingDC4", "L20", 9),
    }


def test_elastic_never_confuses_names_that_begin_alike():
    setting = Setting("elastic", gpus=("RTX 4090",))
    assert {offer.gpu.name for offer in setting.cloud.offers(Request())} == {"RTX 4090"}


def test_elastic_tells_an_unknown_region_from_one_without_such_a_card():
    setting = Setting("elastic", regions=("westDC9", "foshanDC1", "westDC3"))
    offers, passed = setting.cloud.survey(Request())
    assert [offer.region for offer in offers] == ["westDC3"]
    assert [(item.name, item.reason) for item in passed] == [
        ("westDC9", "AutoDL knows no such region"),
        ("foshanDC1", "no such card here"),
    ]


def test_elastic_respects_max_price_and_memory():
    setting = Setting("elastic", gpus=(), max_price=Money(Decimal(3), CNY))
    offers = setting.cloud.offers(Request(min_vram_gb=30))
    assert offers
    assert all(offer.gpu.vram_gb >= 30 for offer in offers)
    assert all(offer.price_per_hour is None or offer.price_per_hour.amount <= 3 for offer in offers)
    assert setting.open(gpus=()).offers(Request(gpus=("T4",))) == []


# -- a machine's life


@MODES
def test_a_machine_is_claimed_runs_the_script_and_goes_without_a_trace(mode):
    setting = Setting(mode)
    node = setting.claim()
    assert setting.cloud.inspect(node) is NodeState.PENDING
    setting.sleep(60)
    assert setting.cloud.inspect(node) is NodeState.RUNNING
    (command,) = setting.started.values()
    encoded = command.removeprefix('bash -c "$(echo ').removesuffix(' | base64 -d)"')
    assert base64.b64decode(encoded).decode() == SCRIPT
    (owned,) = setting.cloud.owned()
    assert (owned.id, owned.job, owned.epoch, owned.kind) == (node.id, "digits", 3, "machine")
    assert LAUNCH.token.startswith(owned.token)
    setting.cloud.release(node)
    assert setting.cloud.inspect(node) is NodeState.UNLISTED
    assert (setting.machines, setting.started, list(setting.cloud.owned())) == ([], {}, [])
    setting.cloud.release(node)


@MODES
def test_the_command_stands_in_no_request_log(mode):
    setting = Setting(mode)
    setting.claim()
    assert "base64" not in str(setting.emulator.requests())


@MODES
def test_a_claim_that_is_repeated_after_a_crash_finds_its_machine(mode):
    setting = Setting(mode)
    first = setting.claim()
    again = setting.open().claim(first.offer, LAUNCH)
    assert isinstance(again, Node)
    assert again.id == first.id
    assert len(setting.machines) == 1


@MODES
def test_a_claim_that_is_made_again_an_hour_later_tells_when_the_machine_was_made(mode):
    setting = Setting(mode)
    begun, first = setting.now, setting.claim()
    setting.sleep(3600)
    again = setting.open().claim(first.offer, LAUNCH)
    assert first.claimed_at == begun
    assert again.claimed_at == pytest.approx(begun, abs=1)


@MODES
def test_two_tokens_are_two_machines(mode):
    setting = Setting(mode)
    assert setting.claim().id != setting.claim(replace(LAUNCH, token="f" * 32)).id
    assert len(setting.machines) == 2


@MODES
def test_r40_a_machine_never_comes_from_the_reuse_cache(mode):
    """Files that a reused container brings along win over the store: see docs/autodl.md."""
    setting = Setting(mode)
    setting.claim()
    bodies = [entry["body"] for entry in setting.sent(CREATE[mode])]
    assert [body.get("reuse_container", False) for body in bodies] == [False]
    assert all("reuse_container_scope" not in body for body in bodies)


@MODES
def test_a_machine_that_one_list_does_not_show_is_released_all_the_same(mode, monkeypatch):
    setting = Setting(mode)
    node = setting.claim()
    setting.sleep(60)
    calls = setting.client.pro if mode == "pro" else setting.client.elastic
    name = "instances" if mode == "pro" else "deployments"
    shown, looks = getattr(calls, name), []

    def shows_late(**asked):
        looks.append(1)
        return [] if len(looks) == 1 else shown(**asked)

    monkeypatch.setattr(calls, name, shows_late)
    if mode == "pro":
        unknown = NotFound(failure_for("", "no such machine"), call="")
        monkeypatch.setattr(calls, "status", Mock(side_effect=unknown))
    setting.cloud.release(node)
    assert (setting.machines, setting.started) == ([], {})


@MODES
def test_a_machine_that_powers_itself_off_is_stopped_not_gone_and_is_still_released(mode):
    setting = Setting(mode)
    node = setting.claim()
    setting.sleep(60)
    (machine,) = setting.started
    setting.emulator.guest_shutdown(machine)
    assert setting.cloud.inspect(node) in {NodeState.STOPPING, NodeState.STOPPED}
    setting.sleep(60)
    assert setting.cloud.inspect(node) is NodeState.STOPPED
    assert setting.cloud.owned()
    setting.cloud.release(node)
    assert setting.machines == []


@MODES
def test_a_machine_that_the_cloud_took_is_not_listed(mode):
    setting = Setting(mode)
    node = setting.claim()
    setting.sleep(60)
    setting.emulator.take_away(node.id)
    assert setting.cloud.inspect(node) is NodeState.UNLISTED
    setting.cloud.release(node)


def test_r40_the_other_mode_finds_and_releases_what_the_first_left():
    setting = Setting("elastic")
    node = setting.claim()
    cloud = setting.open(mode="pro", gpus=("4090D",))
    assert [owned.id for owned in cloud.owned()] == [node.id]
    cloud.release(node)
    assert setting.machines == []


def test_only_this_jobs_machines_are_its_own():
    setting = Setting()
    setting.claim()
    for job in (JobRef("digits", "99999999"), JobRef("digits-1a2b3c4d", "1a2b3c4d"), JobRef("digit", "1a2b3c4d")):
        assert setting.open(job=job).owned() == []
    setting.client.pro.create(_order("failover-digits-1a2b3c4d-mine"))
    setting.client.pro.create(_order("somebody-else"))
    assert len(setting.cloud.owned()) == 1
    assert len(setting.cloud.tagged(()).found) == 1


def _order(name):
    from provisioner.clouds.autodl.pro_api import ProOrder

    return ProOrder(name, "4090D", 1, "base-image-l2t43iu6uk", (11, 8))


def test_a_status_that_nobody_knows_is_not_there_yet():
    setting = Setting()
    node = setting.claim()
    setting.emulator._pro.instances[node.id].status = "re_initializing"
    assert setting.cloud.inspect(node) is NodeState.PENDING


# -- refusals


@pytest.mark.parametrize(
    ("account", "fault", "mode", "kind", "scope", "word"),
    [
        ({"profile": "unverified"}, None, "pro", FailureKind.UNAUTHORIZED, Scope.ACCOUNT, "real-name"),
        ({"profile": "personal"}, None, "elastic", FailureKind.UNAUTHORIZED, Scope.ACCOUNT, "enterprise"),
        ({"assets": 1879}, None, "pro", FailureKind.QUOTA, Scope.ACCOUNT, "recharge"),
        ({"assets": 2000, "blocked": 500}, None, "elastic", FailureKind.QUOTA, Scope.ACCOUNT, "recharge"),
        ({}, Fault("no_stock"), "pro", FailureKind.NO_CAPACITY, Scope.OFFER, "free"),
        ({}, Fault("status", count=9, status=429), "pro", FailureKind.THROTTLED, Scope.ACCOUNT, "wait"),
        ({}, Fault("status", count=9, status=429), "elastic", FailureKind.THROTTLED, Scope.ACCOUNT, "wait"),
        ({}, Fault("status", status=401), "pro", FailureKind.UNAUTHORIZED, Scope.ACCOUNT, "AUTODL_TOKEN"),
        ({}, Fault("dropped"), "elastic", FailureKind.NETWORK, Scope.OFFER, ""),
    ],
)
def test_a_refusal_is_typed_and_makes_nothing(account, fault, mode, kind, scope, word):
    setting = Setting(mode, account=account)
    offer = setting.offer
    if fault is not None:
        setting.emulator.add_fault(replace(fault, path=CREATE[mode], method="POST"))
    failure = setting.cloud.claim(offer, LAUNCH)
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.scope) == (kind, scope)
    assert word in failure.advice
    assert setting.machines == []


def test_a_bad_token_is_a_failure_of_the_account():
    setting = Setting()
    client = AutodlClient("wr0ng", transport=DirectTransport(setting.emulator), sleep=setting.sleep)
    cloud = AutodlCloud(setting.settings, JOB, client)
    failure = cloud.claim(setting.offer, LAUNCH)
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.scope) == (FailureKind.UNAUTHORIZED, Scope.ACCOUNT)
    with pytest.raises(Unauthorized):
        cloud.owned()


def test_a_personal_account_owns_no_deployments_and_that_is_no_error():
    setting = Setting(account={"profile": "personal"})
    assert setting.cloud.owned() == []
    setting.claim()
    assert len(setting.cloud.owned()) == 1


def test_a_deployment_that_no_host_takes_is_taken_back():
    setting = Setting("elastic")
    offer = setting.offer
    setting.emulator.set_stock("*", "RTX 4090", 8, spread=True)
    failure = setting.cloud.claim(replace(offer, gpu=replace(offer.gpu, count=2)), LAUNCH)
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.scope) == (FailureKind.NO_CAPACITY, Scope.OFFER)
    assert len(setting.sent(CREATE["elastic"])) == 2  # made, and deleted
    assert setting.machines == []


def test_without_a_free_card_no_deployment_is_made():
    setting = Setting("elastic")
    offer = setting.offer
    setting.emulator.set_stock("*", "*", 0)
    failure = setting.cloud.claim(offer, LAUNCH)
    assert isinstance(failure, Failure)
    assert failure.kind is FailureKind.NO_CAPACITY
    assert setting.sent(CREATE["elastic"]) == []


# -- doubt


@MODES
@pytest.mark.parametrize("kind", ["lost_answer", "truncated", "slow"])
def test_a_create_whose_answer_is_lost_gives_exactly_one_machine(mode, kind):
    setting = Setting(mode)
    offer = setting.offer
    setting.emulator.add_fault(Fault(kind, path=CREATE[mode], seconds=99))
    node = setting.cloud.claim(offer, LAUNCH)
    assert isinstance(node, Node)
    assert [machine["id"] for machine in setting.machines] == [node.id]
    assert len(setting.sent(CREATE[mode])) == 1


@MODES
@pytest.mark.parametrize("kind", ["lost_answer", "truncated", "slow"])
def test_a_create_whose_answer_and_look_up_are_lost_is_in_doubt(mode, kind):
    setting = Setting(mode)
    offer = setting.offer
    setting.emulator.add_fault(Fault(kind, path=CREATE[mode], seconds=99))
    setting.emulator.add_fault(Fault("status", path="*/list", count=99, skip=1, status=503))
    failure = setting.cloud.claim(offer, LAUNCH)
    assert isinstance(failure, Failure)
    assert (failure.doubtful, len(setting.machines)) == (True, 1)


@MODES
def test_a_machine_that_shows_up_late_is_found_by_the_second_look(mode, monkeypatch):
    setting = Setting(mode)
    offer = setting.offer
    setting.emulator.add_fault(Fault("dropped", path=CREATE[mode]))
    real = setting.cloud._chosen.create

    def late(seconds):
        if not setting.machines and seconds == 5.0:
            real(machine_name(LAUNCH), offer, "true", "base-image-l2t43iu6uk")
        setting.now += seconds
        setting.emulator.tick()

    monkeypatch.setattr(setting.cloud, "_sleep", late)
    node = setting.cloud.claim(offer, LAUNCH)
    assert isinstance(node, Node)
    assert [machine["id"] for machine in setting.machines] == [node.id]


FAULTS = st.lists(
    st.builds(
        Fault,
        kind=st.sampled_from(
            ["status", "slow", "truncated", "not_json", "lost_answer", "dropped", "no_stock", "power_off_lost"]
        ),
        path=st.sampled_from(["*", "*/create", "*/deployment", "*/list", "*/power_off", "*/release", "*/status"]),
        count=st.integers(1, 3),
        skip=st.integers(0, 4),
        status=st.sampled_from([429, 500, 502, 503, 504]),
        seconds=st.sampled_from([0.0, 60.0]),
    ),
    max_size=4,
)


@MODES
@settings(max_examples=40)
@given(data=st.data())
def test_whatever_is_lost_on_the_way_one_token_never_makes_two_machines(mode, data):
    """Faults in claim and release, as they come; in the end, on a quiet line, one machine at most, and then none."""
    setting = Setting(mode, account={"delays": Delays(creating=0.5, starting=1, shutting_down=1)})
    offer = setting.offer
    for fault in data.draw(FAULTS):
        setting.emulator.add_fault(fault)
    first = setting.cloud.claim(offer, LAUNCH)
    assert len(setting.machines) <= (1 if isinstance(first, Node) or first.doubtful else 0)
    setting.emulator.clear_faults()
    node = setting.claim()
    if isinstance(first, Node):
        assert node.id == first.id
    assert [machine["id"] for machine in setting.machines] == [node.id]
    for fault in data.draw(FAULTS):
        setting.emulator.add_fault(fault)
    try:
        setting.cloud.release(node)
    except CloudError:
        setting.emulator.clear_faults()
        setting.cloud.release(node)
    assert setting.machines == []


@MODES
def test_a_dead_line_is_unreachable_and_never_gone(mode):
    setting = Setting(mode)
    node = setting.claim()
    setting.emulator.add_fault(Fault("status", count=1000))
    with pytest.raises(Unreachable):
        setting.cloud.inspect(node)
    with pytest.raises(Unreachable):
        setting.cloud.owned()


def test_a_release_that_never_works_says_so_and_what_to_do():
    setting = Setting()
    node = setting.claim()
    setting.sleep(60)
    setting.emulator.add_fault(Fault("power_off_lost", path="*/power_off", count=10_000))
    with pytest.raises(CloudError, match="running") as told:
        setting.cloud.release(node)
    assert "console" in told.value.hint
    assert setting.machines
