"""The frozen values: names that clouds accept, tokens that never change, and no third-party import."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner import model
from provisioner.model import Gpu, JobRef, Launch, Market, Money, Offer

ROOT = Path(__file__).parents[2]

JOB_NAMES = st.from_regex(r"[a-z]([a-z0-9-]{0,30}[a-z0-9])?", fullmatch=True)
UIDS = st.from_regex(r"[0-9a-f]{8}", fullmatch=True)
JOBS = st.builds(JobRef, JOB_NAMES, UIDS)
EPOCHS = st.integers(min_value=1, max_value=999_999)
WORDS = st.from_regex(r"[a-z0-9.-]{1,20}", fullmatch=True)
OFFERS = st.builds(
    Offer,
    cloud=WORDS,
    region=WORDS,
    zone=st.one_of(st.just(""), st.from_regex(r"[a-z0-9]{1,20}", fullmatch=True)),
    instance_type=WORDS,
    gpu=st.just(Gpu("T4", 1, 16.0)),
    market=st.sampled_from(Market),
    price_per_hour=st.none(),
)
CLAIMS = st.tuples(JOBS, EPOCHS, OFFERS, st.integers(min_value=0, max_value=99))


@given(CLAIMS, CLAIMS)
def test_a_token_names_one_claim(one: tuple[JobRef, int, Offer, int], other: tuple[JobRef, int, Offer, int]) -> None:
    token = model.claim_token(*one)

    assert re.fullmatch(r"[0-9a-f]{32}", token), "EC2 takes at most 64 ASCII characters"
    assert (token == model.claim_token(*other)) == (one == other)


def test_a_token_is_the_same_in_the_next_version_and_after_a_restart() -> None:
    # A controller that comes back after an upgrade must find its machine by the token that it recorded before.
    offer = Offer("aws", "us-east-1", "us-east-1a", "g4dn.xlarge", Gpu("T4", 1, 16.0), Market.SPOT, None)

    assert model.claim_token(JobRef("digits", "1a2b3c4d"), 2, offer, 1) == "366e8562d8f6618b1ccc83c9c4d09055"


def test_neither_price_nor_free_cards_change_a_token() -> None:
    job = JobRef("digits", "1a2b3c4d")
    offer = Offer("aws", "us-east-1", "us-east-1a", "g4dn.xlarge", Gpu("T4", 1, 16.0), Market.SPOT, None)
    later = dataclasses.replace(offer, price_per_hour=Money(Decimal("0.2"), "USD"), available=3)

    assert model.claim_token(job, 1, offer) == model.claim_token(job, 1, later)


@given(OFFERS, OFFERS)
def test_the_key_of_an_offer_names_it(one: Offer, other: Offer) -> None:
    assert (one.key == other.key) == (one == other)
    assert len(one.key.split("/")) == 5


@given(JOBS, EPOCHS)
def test_a_node_name_is_a_host_name_at_every_cloud(job: JobRef, epoch: int) -> None:
    launch = Launch(job=job, epoch=epoch, token="t", user_data="", ttl_s=60.0)

    assert re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", launch.node_name), "RFC 1035 label, as Compute Engine asks"


@given(CLAIMS)
def test_tags_are_within_the_limits_of_ec2(claim: tuple[JobRef, int, Offer, int]) -> None:
    job, epoch, *_ = claim
    tags = model.tags(job, epoch, model.claim_token(*claim))

    assert tags[model.TAG_OWNER] == model.OWNER
    assert all(key.startswith("failover:") and len(key) <= 128 for key in tags)
    assert all(0 < len(value) <= 256 for value in tags.values())


@given(st.decimals(min_value=0, max_value=1_000_000, allow_nan=False, places=6))
def test_money_prints_its_exact_amount_and_no_exponent(amount: Decimal) -> None:
    number, currency = str(Money(amount, "USD")).split(" ")

    assert Decimal(number) == amount
    assert currency == "USD"
    assert re.fullmatch(r"\d+(\.\d*[1-9])?", number)


@pytest.mark.parametrize("value", [Money(Decimal(1), "USD"), Gpu("T4", 1, 16.0), JobRef("a", "00000000")])
def test_values_are_frozen(value: object) -> None:
    with pytest.raises((dataclasses.FrozenInstanceError, AttributeError, TypeError)):
        value.name = "other"  # type: ignore[attr-defined]


def test_the_node_can_import_model_and_errors_without_any_third_party_package() -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import provisioner.model, provisioner.errors"
    # -S leaves site-packages out, -I leaves the user's directory and PYTHONPATH out.
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True, timeout=60)
