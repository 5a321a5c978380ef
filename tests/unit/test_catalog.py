"""The packaged catalog: facts that a plan rests on, and names that mean the same card."""

from __future__ import annotations

import csv
import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner import catalog
from provisioner.catalog import build, overlay, tables
from provisioner.clouds.autodl import cards as autodl
from provisioner.clouds.base import Request
from provisioner.model import Market, Money


def types(offers):
    return {offer.instance_type for offer in offers}


def test_one_t4_in_us_east_1():
    offers = catalog.aws_offers(["us-east-1"], Request(gpus=("T4",)), markets=[Market.ON_DEMAND])
    cheapest = [offer for offer in offers if offer.instance_type == "g4dn.xlarge"]
    assert [offer.zone[-1] for offer in cheapest] == ["a", "b", "c", "d", "f"]
    assert {offer.price_per_hour for offer in cheapest} == {Money(Decimal("0.526"), "USD")}
    assert {offer.gpu.count for offer in offers} == {1}


def test_p3_2xlarge_is_offered_nowhere_and_the_catalog_says_so():
    request = Request(gpus=("V100",))
    assert catalog.aws_offers(catalog.regions(), request) == []
    reasons = [one.reason for one in catalog.aws_absent(["us-east-1"], request)]
    assert "p3.2xlarge is not offered in any zone of us-east-1 (catalog of 2026-11)" in reasons


def test_one_v100_does_not_become_eight_unless_they_are_named():
    request = Request(gpus=("V100",))
    (reason,) = [a.reason for a in catalog.aws_absent(["us-east-1"], request) if a.instance_type == "p3dn.24xlarge"]
    assert "8 GPUs, the job asks for 1" in reason
    assert types(catalog.aws_offers(["us-east-1"], request, ["p3dn.24xlarge"])) == {"p3dn.24xlarge"}


def test_three_cards_take_the_next_size_that_is_sold():
    offers = catalog.aws_offers(["us-east-1"], Request(gpus=("L4",), count=3))
    assert types(offers) == {"g6.12xlarge", "g6.24xlarge"}


def test_a_slice_of_a_card_is_never_a_card():
    for names in ((), ("g6f.large", "gr6f.4xlarge", "g6.xlarge")):
        offers = catalog.aws_offers(["us-east-1"], Request(gpus=("L4",)), names)
        assert all(offer.gpu.count >= 1 for offer in offers)
        assert not any(offer.instance_type.startswith(("g6f", "gr6f")) for offer in offers)
    (slice_, *_) = catalog.aws_absent(["us-east-1"], Request(), ["g6f.large"])
    assert slice_.reason == "g6f.large holds a slice of one L4 (2.8 GB), not a whole one"


def test_arm_machines_are_not_offered_to_an_x86_image():
    # g5g.xlarge is the cheapest machine with a whole GPU: any card at the lowest price must not end there
    offers = catalog.aws_offers(["us-east-1"], Request())
    assert not any(offer.instance_type.startswith("g5g") for offer in offers)
    assert catalog.aws_absent(["us-east-1"], Request(), ["g5g.xlarge"])[0].reason.startswith("g5g.xlarge is arm64")


def test_memory_is_counted_as_the_card_is_sold():
    assert "g6.xlarge" in types(catalog.aws_offers(["us-east-1"], Request(min_vram_gb=24)))
    assert "g4dn.xlarge" not in types(catalog.aws_offers(["us-east-1"], Request(min_vram_gb=24)))


@pytest.mark.parametrize(
    ("gpu", "cuda", "problem"),
    [
        ("V100", (13, 0), "V100 ends with CUDA 12.9, the job asks for 13.0"),
        ("V100", (12, 4), ""),
        ("B200", (12, 4), "B200 needs CUDA 12.8 or newer, the job asks for 12.4"),
        ("L4", (11, 8), ""),
        ("L4", None, ""),
        ("a card from tomorrow", (12, 4), ""),
    ],
)
def test_cuda_bounds(gpu, cuda, problem):
    assert catalog.cuda_problem(gpu, cuda) == problem


def test_spot_has_no_price_but_a_bound():
    (spot, *_) = catalog.aws_offers(["us-east-1"], Request(), ["g6.xlarge"], [Market.SPOT])
    assert spot.price_per_hour is None
    assert catalog.price_ceiling(spot) == Money(Decimal("0.8048"), "USD")


def test_a_price_that_is_not_known_is_not_invented():
    (offer, *_) = catalog.aws_offers(["us-west-2"], Request(), ["g6.xlarge"], [Market.ON_DEMAND])
    assert offer.price_per_hour is None
    assert catalog.price_ceiling(offer) is None
    assert catalog.reference_price("g6.xlarge") == Money(Decimal("0.8048"), "USD")


@pytest.mark.parametrize(
    ("region", "reason"),
    [
        ("cn-north-1", "the catalog of 2026-11 does not know what cn-north-1 offers"),
        ("ca-west-1", "no GPU machine is offered in ca-west-1 (catalog of 2026-11)"),
    ],
)
def test_regions_without_offers_say_why(region, reason):
    assert catalog.aws_offers([region], Request()) == []
    assert [(one.region, one.reason) for one in catalog.aws_absent([region], Request())] == [(region, reason)]


def test_every_named_type_is_offered_or_has_a_reason():
    names = catalog.instance_types()
    for region in ("us-east-1", "eu-west-3"):
        offered = types(catalog.aws_offers([region], Request(count=2), names))
        absent = {one.instance_type for one in catalog.aws_absent([region], Request(count=2), names)}
        assert offered | absent == set(names)
        assert not offered & absent


@pytest.mark.parametrize(
    ("written", "ours"),
    [
        ("NVIDIA T4", "T4"),
        ("Tesla V100", "V100"),
        ("nvidia geforce rtx 4090", "RTX 4090"),
        ("4090", "RTX 4090"),
        ("RTX-4090D", "RTX 4090D"),
        ("A100 40GB", "A100-40GB"),
        ("A100-PCIE-40GB", "A100-40GB"),
        ("v-48g", "vGPU-48GB"),
        ("a100", "A100"),
        ("4080", None),
        ("", None),
    ],
)
def test_names_that_people_write(written, ours):
    assert catalog.canonical(written) == ours


@pytest.mark.parametrize(
    ("wanted", "offered", "same"),
    [
        (["A100"], "A100-80GB", True),
        (["A100-40GB"], "A100-80GB", False),
        (["V100"], "V100-SXM2-32GB", True),
        (["V100-32GB"], "V100", False),
        (["RTX 4090"], "RTX 4090D", False),
        (["vGPU-48GB"], "vGPU-48GB-350W", False),
        (["A100"], "A10G", False),
        ([], "anything", True),
        (["a card from tomorrow"], "a card from tomorrow", True),
        (["a card from tomorrow"], "T4", False),
    ],
)
def test_when_two_names_are_one_card(wanted, offered, same):
    assert catalog.matches(wanted, offered) is same


@given(st.sampled_from(catalog.gpu_names()))
def test_every_name_that_is_listed_is_its_own(name):
    assert catalog.canonical(name) == name
    assert catalog.canonical(f"NVIDIA {name.lower()}") == name


def test_every_gpu_of_the_machine_table_is_known():
    assert {machine.gpu for machine in tables.machines().values()} <= set(tables.cards())


def test_v100_needs_the_proprietary_driver():
    drivers = {name: card.driver for name, card in tables.cards().items()}
    assert (drivers["V100"], drivers["T4"], drivers["L4"]) == ("proprietary", "open", "open")


def test_autodl_names_and_regions_are_one_table_for_config_and_room():
    assert set(catalog.AUTODL_REGIONS) == set(autodl.REGION_NAMES)
    assert set(catalog.AUTODL_PRO_REGIONS) <= set(catalog.AUTODL_REGIONS)
    assert set(catalog.autodl_prices()) <= set(autodl.stock_names(catalog.gpu_names()))
    assert catalog.autodl_stock_names("V100") == ("V100-32GB", "V100-SXM2-32GB")
    assert catalog.autodl_pro_specs("RTX 4090D") == ("4090D",)
    assert catalog.autodl_pro_specs("v-48g") == ("v-48g",)
    assert catalog.autodl_pro_specs("RTX 4090") == ()


def test_build_makes_small_tables_of_source_rows(tmp_path):
    def write(name, *rows):
        with (tmp_path / name).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)

    write(
        "gpu_instance_types.csv",
        ("instance_type", "gpu_name", "gpu_count", "gpu_memory_mib_each", "vcpus", "memory_mib"),
        ("g5g.xlarge", "NVIDIA T4g", 1, 16384, 4, 8192),
        ("p4de.24xlarge", "NVIDIA A100", 8, 81920, 96, 1179648),
    )
    write(
        "gpu_zone_offerings.csv",
        ("region", "zone", "instance_type"),
        ("us-east-1", "us-east-1c", "p4de.24xlarge"),
        ("us-east-1", "us-east-1a", "p4de.24xlarge"),
    )
    write(
        "gpu_on_demand_prices.csv",
        ("region", "instance_type", "price_per_hour", "currency"),
        ("us-east-1", "p4de.24xlarge", "27.44705", "USD"),
    )
    files = build.build(tmp_path, "2030-01")
    assert "p4de.24xlarge,A100-80GB,8,81920,96,x86_64" in files["aws_types.csv"]
    assert "g5g.xlarge,T4g,1,16384,4,arm64" in files["aws_types.csv"]
    assert "us-east-1,p4de.24xlarge,ac\n" in files["aws_zones.csv"]
    assert json.loads(files["sources.json"])["aws_zones"]["as_of"] == "2030-01"
    assert build.sources(catalog.snapshot()) == (tables.DATA / "sources.json").read_text(encoding="utf-8")
    write(
        "gpu_zone_offerings.csv", ("region", "zone", "instance_type"), ("us-east-1", "us-east-1-atl-2a", "g4dn.xlarge")
    )
    with pytest.raises(ValueError, match="a local zone"):
        build.build(tmp_path, "2030-01")


def gcp(regions, request, names=(), markets=tuple(Market)):
    return catalog.gcp_offers(regions, request, names, markets)


def test_one_t4_at_google_in_us_central1():
    offers = gcp(["us-central1"], Request(gpus=("T4",)), markets=[Market.ON_DEMAND])
    assert types(offers) == {"n1-standard-4+1xT4", "n1-standard-8+1xT4"}
    smallest = [offer for offer in offers if offer.instance_type == "n1-standard-4+1xT4"]
    assert [offer.zone for offer in smallest] == [f"us-central1-{letter}" for letter in "abcf"]
    assert {offer.price_per_hour for offer in smallest} == {Money(Decimal("0.54"), "USD")}


@pytest.mark.parametrize(
    ("name", "usd"),
    [
        # what others publish for us-central1: see SOURCES.md
        ("n1-standard-8+1xT4", "0.73"),
        ("n1-standard-8+1xV100", "2.86"),
        ("a2-highgpu-1g", "3.673385"),
        ("a2-highgpu-8g", "29.38708"),
        ("a2-megagpu-16g", "55.739504"),
        ("a2-ultragpu-8g", "40.5504"),
        ("a3-highgpu-8g", "88.49"),
        ("g2-standard-4", "0.7068"),
        ("n1-highmem-8+1xT4", "0.8236"),
    ],
)
def test_google_machines_are_priced_by_their_parts(name, usd):
    price = tables.price("gcp", "us-central1", name)
    assert price is not None
    assert float(price.amount) == pytest.approx(float(usd), rel=1e-4)


def test_google_prices_that_no_source_gives_are_unknown():
    for name in ("a3-megagpu-8g", "a4-highgpu-8g"):
        assert tables.price("gcp", "us-central1", name, Market.SPOT) is None
    (offer, *_) = gcp(["europe-west4"], Request(), ["a2-ultragpu-1g"], [Market.ON_DEMAND])
    assert offer.price_per_hour is None
    assert catalog.price_ceiling(offer) is None
    assert catalog.reference_price("a2-ultragpu-1g", "gcp") == Money(Decimal("5.06880"), "USD")


def test_a_spot_machine_of_google_is_never_dearer_than_the_same_on_demand():
    for region in catalog.regions("gcp"):
        for machine in tables.machines("gcp").values():
            spot, listed = (tables.price("gcp", region, machine.instance_type, market) for market in Market)
            assert spot is None or listed is None or spot.amount < listed.amount


def test_small_a3_machines_are_sold_on_the_spot_market_only():
    request = Request(gpus=("H100",))
    assert gcp(["us-central1"], request, markets=[Market.ON_DEMAND]) == []
    assert types(gcp(["us-central1"], request)) == {"a3-highgpu-1g"}
    (reason,) = catalog.gcp_absent(["us-central1"], request, ["a3-highgpu-1g"], [Market.ON_DEMAND])
    assert reason.reason == "a3-highgpu-1g is sold on the spot market only"


def test_an_n1_machine_named_without_cards_takes_every_card_that_fits():
    assert types(gcp(["us-central1"], Request(), ["n1-standard-8"])) == {
        f"n1-standard-8+1x{card}" for card in ("T4", "V100", "P100", "P4")
    }
    assert types(gcp(["us-central1"], Request(gpus=("T4",), count=2), ["n1-standard-8"])) == {"n1-standard-8+2xT4"}
    (absent,) = catalog.gcp_absent(["us-central1"], Request(gpus=("H100",)), ["n1-standard-8"])
    assert absent.reason == "n1-standard-8 can carry no card that the job asks for"


def test_cards_that_google_does_not_have_in_a_region_say_so():
    (absent, *_) = catalog.gcp_absent(["europe-west9"], Request(gpus=("L4",)))
    assert absent.reason == "g2-standard-4 is not offered in any zone of europe-west9 (catalog of 2026-11)"
    (absent,) = catalog.gcp_absent(["africa-south1"], Request(gpus=("L4",)))
    assert absent.reason == "no GPU machine is offered in africa-south1 (catalog of 2026-11)"
    assert gcp(["us-central1"], Request(gpus=("V100",), cuda=(13, 0))) == []
    reasons = [one.reason for one in catalog.gcp_absent(["us-central1"], Request(gpus=("V100",), cuda=(13, 0)))]
    assert "n1-standard-4+1xV100: V100 ends with CUDA 12.9, the job asks for 13.0" in reasons


def test_every_zone_of_google_lies_in_a_region_and_every_series_has_a_machine():
    series = {machine.series for machine in tables.machines("gcp").values()}
    for region, offered in tables.zones("gcp").items():
        assert region in catalog.regions("gcp")
        assert set(offered) <= series
        assert all(zone.startswith(f"{region}-") for zones in offered.values() for zone in zones)


def test_a_machine_is_found_by_cloud_and_name():
    machine = catalog.machine("gcp", "n1-standard-8+1xT4")
    assert machine is not None
    assert (machine.vcpus, machine.host, machine.accelerator) == (8, "n1-standard-8", "nvidia-tesla-t4")
    assert catalog.machine("aws", "g4dn.xlarge") == tables.machines()["g4dn.xlarge"]
    assert catalog.machine("gcp", "g4dn.xlarge") is None
    assert catalog.machine("local", "this") is None


def test_v100_ends_with_driver_580_and_cuda_12():
    cards = tables.cards()
    card = cards["V100"]
    assert (card.architecture, card.driver_to, card.cuda_to) == ("Volta", 580, (12, 9))
    assert (cards["T4"].driver_to, cards["T4"].cuda_to) == (None, None)
    assert cards["L4"].fp16_tflops < cards["A100-80GB"].fp16_tflops < cards["H100"].fp16_tflops


def test_every_packaged_table_says_where_it_is_from():
    text = (tables.DATA.parent / "SOURCES.md").read_text(encoding="utf-8")
    files = {file.name for file in tables.DATA.iterdir()}
    assert [name for name in sorted(files) if f"`data/{name}`" not in text] == []
    for name, one in tables.sources().items():
        assert one["as_of"] == "" or f"{name}.csv" in files
        assert set(one) == {"cloud", "what", "as_of", "source"}


def test_packaged_rows_are_in_order_and_each_key_is_there_once():
    for name, width in {**overlay.KEYS, "egress": 2, "gcp_regions": 1, "gcp_n1_cards": 3}.items():
        file = tables.DATA / f"{name}.csv"
        if not file.exists():
            continue
        with file.open(encoding="utf-8", newline="") as text:
            keys = [tuple(row[:width]) for row in csv.reader(text)][1:]
        assert len(set(keys)) == len(keys), name
        if name in {"aws_zones", "gcp_zones", "gcp_rates"}:
            assert keys == sorted(keys), name
