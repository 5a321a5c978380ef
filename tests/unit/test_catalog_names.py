"""Names of GPUs, as people and clouds write them; names of Google's machines and regions in a failover.yaml."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from provisioner import catalog
from provisioner.catalog import tables
from provisioner.config.names import GcpMachineType, GcpRegion

NAMES = [
    (name, card.name, card.group)
    for card in tables.cards().values()
    for name in (card.name, card.aws, *card.gcp, *card.autodl, card.pro_spec, *card.aliases)
    if name
]
GROUPS = {card.group for card in tables.cards().values() if card.group}


@pytest.mark.parametrize(
    ("written", "ours"),
    [
        ("4090", "RTX 4090"),
        ("RTX 4090", "RTX 4090"),
        ("rtx4090", "RTX 4090"),
        ("RTX_4090 24GB", "RTX 4090"),
        ("a100-80g", "A100-80GB"),
        ("A100 80GB", "A100-80GB"),
        ("A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("nvidia-tesla-a100", "A100-40GB"),
        ("nvidia-a100-80gb", "A100-80GB"),
        ("nvidia-tesla-t4", "T4"),
        ("l4", "L4"),
        ("nvidia-h100-mega-80gb", "H100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("RTX 4090D", "RTX 4090D"),
        ("4090D", "RTX 4090D"),
        ("NVIDIA GeForce RTX 4090 D", "RTX 4090D"),
        ("v-48g", "vGPU-48GB"),
        ("4090-48G", "vGPU-48GB"),
        ("vGPU-48GB-350W", "vGPU-48GB-350W"),
        ("4080(S)-32G", "vGPU-32GB"),
        ("V100-16G", "V100"),
        ("Tesla V100-SXM2-32GB", "V100-32GB"),
        ("T4g", "T4g"),
        ("A100", "A100"),
        ("RTX PRO Server 6000", "RTX PRO 6000"),
        ("4080", None),
        ("A100-60GB", None),
        ("T", None),
    ],
)
def test_names_that_people_and_clouds_write(written, ours):
    assert catalog.canonical(written) == ours


@given(
    st.sampled_from(NAMES),
    st.sampled_from(("", "NVIDIA ", "nvidia-")),
    st.sampled_from((" ", "-", "_", "")),
    st.sampled_from((str.lower, str.upper, str)),
)
def test_every_name_on_every_cloud_is_its_own_card_however_it_is_spelled(known, prefix, between, case):
    name, card, group = known
    assert catalog.canonical(name) in {card, group}
    written = case(prefix + name.replace(" ", between))
    assert catalog.canonical(written) in {card, group} - {""}
    if name not in GROUPS and not name.startswith("nvidia-tesla-a100"):
        assert catalog.canonical(written) == card


def test_no_name_means_two_cards_but_those_of_a_group():
    owners = {}
    for name, card, _ in NAMES:
        owners.setdefault(name.casefold(), set()).add(card)
    shared = {name: cards for name, cards in owners.items() if len(cards) > 1}
    assert shared == {"a100": {"A100-40GB", "A100-80GB"}, "v100": {"V100", "V100-32GB"}}


def meant(kind, value):
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(kind).validate_python(value)
    (error,) = caught.value.errors()
    return f"{error['msg']} {error.get('ctx')}"


@pytest.mark.parametrize("name", ["us-central1", "europe-west4", "africa-south1"])
def test_google_regions_are_known_also_those_without_gpus(name):
    assert TypeAdapter(GcpRegion).validate_python(name) == name


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("us-central-1", "did you mean `us-central1`?"),
        ("us-centrall", "did you mean `us-central1`?"),
        ("us-central1-a", "write its region, us-central1"),
        ("us-east-1", "Google Cloud has no region"),
    ],
)
def test_a_region_that_google_does_not_have_is_refused(written, words):
    assert words in meant(GcpRegion, written)


@pytest.mark.parametrize(
    ("written", "ours"),
    [
        ("g2-standard-4", "g2-standard-4"),
        ("n1-standard-8", "n1-standard-8"),
        ("n1-standard-8+1xT4", "n1-standard-8+1xT4"),
        ("n1-standard-8+1xnvidia-tesla-t4", "n1-standard-8+1xT4"),
        ("n1-highmem-16+2xt4", "n1-highmem-16+2xT4"),
    ],
)
def test_google_machine_types_are_known(written, ours):
    assert TypeAdapter(GcpMachineType).validate_python(written) == ours


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("g2-standart-4", "did you mean `g2-standard-4`?"),
        ("n1-standard-8+3xT4", "it carries 1xT4, 2xT4, 4xT4"),
        ("n1-standard-96+1xV100", "it carries 4xT4, 8xV100, 4xP4"),
        ("g2-standard-4+1xL4", "comes with its cards"),
        ("e2-standard-4", "Google Cloud has no GPU machine type"),
    ],
)
def test_a_machine_type_that_google_does_not_have_is_refused(written, words):
    assert words in meant(GcpMachineType, written)
