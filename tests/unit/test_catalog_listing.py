"""``failover catalog ls``: what a person sees, offline and without an account."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest

from provisioner import catalog
from provisioner.catalog import overlay, tables
from provisioner.catalog.listing import Filter, listing, usd
from provisioner.cli import main
from provisioner.model import Market, Money


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FAILOVER_CACHE_DIR", str(tmp_path / "cache"))
    tables.forget()
    yield
    tables.forget()


def ls(capsys, *options):
    code = main(["catalog", "ls", *options])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_t4_as_json_offline(capsys):
    code, out, _ = ls(capsys, "--gpu", "T4", "--json")
    document = json.loads(out)
    assert code == 0
    assert {row["cloud"] for row in document["machines"]} == {"aws", "gcp"}
    assert {row["gpu"] for row in document["machines"]} == {"T4"}
    (row,) = [
        row
        for row in document["machines"]
        if (row["instance_type"], row["region"], row["market"]) == ("g4dn.xlarge", "us-east-1", "on-demand")
    ]
    assert row["price_per_hour"] == {"amount": "0.526", "currency": "USD"}
    assert row["zones"] == [f"us-east-1{letter}" for letter in "abcdf"]
    assert (row["vcpus"], row["count"], row["fp16_tflops"], row["compute_capability"]) == (4, 1, 65.0, "7.5")
    ages = {table["table"]: table for table in document["tables"]}
    assert ages["aws_zones"]["packaged"] == "2026-11"
    assert ages["aws_spot"]["age_days"] is None


def test_the_table_fits_eighty_columns_and_says_how_old_it_is(capsys):
    for options in (["--gpu", "T4"], ["--gpu", "A100"], ["--cloud", "autodl"], ["--gpu", "L4", "--region", "us-west4"]):
        code, out, err = ls(capsys, *options)
        assert code == 0
        assert max(len(line.rstrip()) for line in out.splitlines()) <= 80
        assert "of 2026-1" in err
    assert "us-west4" in out
    assert "a c" in out


def test_no_slice_no_arm_and_no_machine_without_cuda_is_listed():
    names = {row.instance_type for row in listing(Filter())}
    assert not [name for name in names if name.startswith(("g6f", "gr6f", "g5g", "g4ad"))]
    assert {"g6.xlarge", "g2-standard-4", "RTX 4090"} <= names


def test_nothing_that_matches_is_exit_code_3_and_a_wrong_name_is_2(capsys):
    assert ls(capsys, "--gpu", "T4", "--max-price", "0.01")[0] == 3
    code, _, err = ls(capsys, "--gpu", "RTX 4080 Ti")
    assert code == 2
    assert "did you mean `RTX 3080 Ti`?" in err
    code, _, err = ls(capsys, "--region", "us-centrall", "--cloud", "gcp")
    assert code == 2
    assert "did you mean `us-central1`?" in err
    assert ls(capsys, "--max-price", "cheap")[0] == 2


def test_filters_only_take_away(capsys):
    everything = set(listing(Filter()))
    for wanted in (
        Filter(gpus=("A100",)),
        Filter(min_vram_gb=48),
        Filter(clouds=("gcp",), markets=(Market.SPOT,)),
        Filter(regions=("us-east-1", "westDC3")),
        Filter(count=8, max_price=Money(Decimal(40), "USD")),
    ):
        rows = set(listing(wanted))
        assert rows < everything
        assert rows
    assert all(row.vram_gb >= 48 for row in listing(Filter(min_vram_gb=48)))


@pytest.mark.parametrize("sort", ["price", "value", "speed", "vram", "name"])
def test_sorted_rows_are_all_there_and_unknown_prices_come_last(sort):
    rows = listing(Filter(gpus=("T4", "RTX 4090")), sort=sort)
    assert sorted(map(repr, rows)) == sorted(map(repr, listing(Filter(gpus=("T4", "RTX 4090")))))
    if sort == "price":
        known = [row.price is not None for row in rows]
        assert known == sorted(known, reverse=True)
        in_usd = [usd(row.price, Decimal("7.1")) for row in rows if row.price]
        assert in_usd == sorted(in_usd)


def test_yuan_and_dollars_are_compared(capsys):
    rows = listing(Filter(max_price=Money(Decimal("0.3"), "USD"), clouds=("autodl",)))
    assert "RTX 4090" in {row.gpu for row in rows}  # 1.98 yuan
    assert not [row for row in rows if row.price is None or row.price.amount > Decimal("2.13")]


def test_what_a_refresh_found_is_laid_over_and_loses_nothing(tmp_path, capsys):
    before = {(row.cloud, row.region, row.instance_type, row.market) for row in listing(Filter())}
    now = 1_790_000_000.0
    found = {
        "aws_zones": overlay.Table((("us-east-1", "g4dn.xlarge", "az"), ("eu-west-9", "g9.xlarge", "a")), now, "EC2"),
        "aws_types": overlay.Table((("g9.xlarge", "L40S", "1", "46068", "4", "x86_64"),), now, "EC2"),
        "aws_spot": overlay.Table((("us-east-1z", "g4dn.xlarge", "0.16", "USD", f"{now}"),), now, "EC2"),
        "gcp_rates": overlay.Table((("us-central1", "T4", "", "0.11"),), now, "Billing"),
        "autodl_stock": overlay.Table((("westDC3", "RTX 4090", "12", "300"),), now, "AutoDL"),
    }
    overlay.write(overlay.path({"FAILOVER_CACHE_DIR": str(tmp_path / "cache")}), overlay.Overlay().merged(found))
    tables.forget()
    after = listing(Filter())
    keys = {(row.cloud, row.region, row.instance_type, row.market) for row in after}
    assert {key for key in before - keys if key[0] != "autodl"} == set()
    assert ("aws", "eu-west-9", "g9.xlarge", Market.ON_DEMAND) in keys
    assert "eu-west-9" in catalog.regions()
    (spot,) = [
        row for row in after if (row.region, row.instance_type, row.market) == ("us-east-1", "g4dn.xlarge", Market.SPOT)
    ]
    assert (spot.zones, spot.price) == (("us-east-1a", "us-east-1z"), Money(Decimal("0.16"), "USD"))
    assert tables.price("gcp", "us-central1", "n1-standard-4+1xT4") == Money(Decimal("0.54000"), "USD")
    assert tables.price("gcp", "us-central1", "n1-standard-4+1xT4", Market.SPOT) == Money(Decimal("0.16223"), "USD")
    (cell,) = [row for row in after if row.instance_type == "RTX 4090"]
    assert (cell.region, cell.idle) == ("westDC3", 12)
    _, _, err = ls(capsys, "--gpu", "T4")
    assert "zones" in err
    assert " d ago" in err


def one_table(name, row, read_at=1.0):
    return json.dumps({"format": 2, "tables": {name: {"read_at": read_at, "source": "x", "rows": [row]}}})


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "[" * 9_999, '{"format": 9, "tables": {}}',
        '{"format": 2, "tables": {"aws_spot": {"rows": [["x"]]}}}',
        one_table("aws_spot", ["us-east-1a", "g4dn.xlarge", "nan", "USD", "1"]),
        one_table("aws_spot", ["us-east-1a", "g4dn.xlarge", "-1", "USD", "1"]),
        one_table("aws_spot", ["us-east-1a", "g4dn.xlarge", "1", "USD", "1e18"]),
        one_table("aws_spot", ["us-east-1a", "g4dn.xlarge", "1", "USD"]),
        one_table("aws_types", ["g4dn.xlarge", "T4", "1.5", "16384", "4", "x86_64"]),
        one_table("autodl_stock", ["westDC3", "RTX 4090", "inf", "3"]),
        one_table("autodl_prices", ["RTX 4090", "1.5"], read_at=float("nan")),
        one_table("autodl_prices", ["RTX 4090", "1.5"], read_at=1e18),
    ],
)  # fmt: skip
def test_a_damaged_file_of_a_refresh_is_not_used_and_said_to_be_so(tmp_path, capsys, text):
    file = tmp_path / "cache" / overlay.NAME
    file.parent.mkdir()
    file.write_text(text)
    tables.forget()
    code, out, err = ls(capsys, "--gpu", "T4")
    assert code == 0
    assert "g4dn.xlarge" in out
    assert "the last refresh is not used" in err


def test_newer_rows_lie_over_older_ones_and_an_empty_cell_takes_nothing_away():
    older = overlay.Overlay().merged(
        {"gcp_rates": overlay.Table((("a", "T4", "1", "2"), ("b", "T4", "3", "")), 1, "x")}
    )
    newer = older.merged({"gcp_rates": overlay.Table((("a", "T4", "", "5"), ("c", "T4", "6", "7")), 2, "y")})
    assert newer.rows("gcp_rates") == (("a", "T4", "1", "5"), ("b", "T4", "3", ""), ("c", "T4", "6", "7"))
    assert newer.tables["gcp_rates"].read_at == 2


def test_the_file_of_a_refresh_is_read_back_as_it_was_written(tmp_path):
    table = overlay.Table((("us-east-1a", "g4dn.xlarge", "0.2", "USD", "5"),), 5.0, "EC2")
    overlay.write(tmp_path / "deep" / "catalog.json", overlay.Overlay({"aws_spot": table}))
    assert overlay.read(tmp_path / "deep" / "catalog.json").tables == {"aws_spot": table}
    assert [file.name for file in (tmp_path / "deep").iterdir()] == ["catalog.json"]
