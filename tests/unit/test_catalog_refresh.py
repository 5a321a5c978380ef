"""``failover catalog refresh`` against EC2 as moto plays it, and HTTP servers that answer in the clouds' shapes."""

from __future__ import annotations

import json
import threading
import time
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from provisioner import catalog
from provisioner.catalog import tables
from provisioner.catalog.refresh import autodl, aws, gcp
from provisioner.catalog.refresh.found import together
from provisioner.cli import main
from provisioner.clouds.autodl.client import AutodlClient
from provisioner.clouds.autodl.pro_api import ProOrder
from provisioner.errors import Unauthorized, Unreachable
from provisioner.model import Market, Money
from provisioner.sandbox.autodl import AutodlEmulator, EmulatorConfig
from provisioner.sandbox.autodl.box import Server as Emulated

NOW = 1_790_000_000.0
KEYS = {"aws_access_key_id": "AKIAEXAMPLE", "aws_secret_access_key": "example"}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FAILOVER_CACHE_DIR", str(tmp_path / "cache"))
    tables.forget()
    yield
    tables.forget()


class Server(ThreadingHTTPServer):
    """Answers with what a function makes of method, path, query, headers and body."""

    daemon_threads = True

    def __init__(self, answer):
        outer = self
        self.asked = []

        class Handler(BaseHTTPRequestHandler):
            def _do(self):
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length)
                parts = urlsplit(self.path)
                query = {name: values[0] for name, values in parse_qs(parts.query).items()}
                outer.asked.append((parts.path, query))
                status, document = answer(parts.path, query, self.headers, body)
                text = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = _do
            do_POST = _do

            def log_message(self, *_):
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


def product(name, region, price, currency="USD"):
    return json.dumps(
        {
            "product": {"attributes": {"instanceType": name, "regionCode": region, "operatingSystem": "Linux"}},
            "terms": {
                "OnDemand": {
                    "A.B": {"priceDimensions": {"A.B.C": {"unit": "Hrs", "pricePerUnit": {currency: price}}}},
                },
                "Reserved": {"A.D": {"priceDimensions": {}}},
            },
        }
    )


def price_list(_path, _query, headers, body):
    assert headers["X-Amz-Target"] == "AWSPriceListService.GetProducts"
    asked = json.loads(body)
    assert {"Type": "TERM_MATCH", "Field": "tenancy", "Value": "Shared"} in asked["Filters"]
    if "NextToken" not in asked:
        return 200, {
            "PriceList": [
                product("g4dn.xlarge", "us-east-1", "0.6150000000"),
                product("g4dn.xlarge", "sa-east-1", "0.9"),
            ],
            "NextToken": "more",
            "FormatVersion": "aws_v1",
        }
    return 200, {"PriceList": [product("g5.xlarge", "us-east-1", "0.0000000000")], "FormatVersion": "aws_v1"}


class Refusing:
    """A region that this account has not opened."""

    def get_paginator(self, _name):
        return self

    def paginate(self, **_):
        raise ClientError(
            {"Error": {"Code": "AuthFailure", "Message": "AWS was not able to validate\nyou"}}, "Describe"
        )


@mock_aws
def test_aws_is_read_region_by_region_and_what_one_refuses_is_named():
    with Server(price_list) as server:

        def client(service, region):
            if region == "af-south-1":
                return Refusing()
            url = server.url if service == "pricing" else None
            session: Any = boto3.Session(region_name=region, **KEYS)
            return session.client(service, endpoint_url=url)

        ended: dict[str, int] = {}
        found = aws.refresh(client, ["us-east-1", "af-south-1"], now=NOW, done=ended.__setitem__)
    assert ended.keys() == {"aws/us-east-1", "aws/af-south-1", "aws price list"}
    assert (ended["aws/us-east-1"] > 40, ended["aws/af-south-1"], ended["aws price list"]) == (True, 0, 1)
    zones = {row[:2]: row[2] for row in found.tables["aws_zones"].rows}
    assert zones["us-east-1", "g4dn.xlarge"] == "abcdf"
    assert not [name for _, name in zones if name.startswith(("m5", "t3", "g3s.nothing"))]
    types = {row[0]: row for row in found.tables["aws_types"].rows}
    packaged = {name: tables.machines()[name] for name in types if name in tables.machines()}
    assert len(packaged) > 40
    for name, machine in packaged.items():
        row = types[name]
        assert (row[1], int(row[2]), int(row[4])) == (machine.gpu, machine.gpu_count, machine.vcpus), name
    assert found.tables["aws_prices"].rows == (("us-east-1", "g4dn.xlarge", "0.615", "USD"),)
    assert ("us-east-1a", "g4dn.xlarge", "0.00001", "USD", f"{NOW:.0f}") in found.tables["aws_spot"].rows
    assert list(together(found.missed)) == [
        ("aws", "zones", "AuthFailure: AWS was not able to validate you", ["af-south-1"])
    ]


def sku(description, usage, regions, units="0", nanos=0, unit="h"):
    return {
        "description": description,
        "category": {"resourceFamily": "Compute", "resourceGroup": "GPU", "usageType": usage},
        "serviceRegions": regions,
        "pricingInfo": [
            {
                "pricingExpression": {
                    "usageUnit": unit,
                    "tieredRates": [
                        {"startUsageAmount": 0, "unitPrice": {"currencyCode": "USD", "units": units, "nanos": nanos}}
                    ],
                }
            }
        ],
    }


AMERICAS = "running in Americas"
ONE = ["us-central1"]
SPOT = "Spot Preemptible"
SKUS = [
    sku(f"N1 Predefined Instance Core {AMERICAS}", "OnDemand", ["us-central1", "us-east1"], nanos=31611000),
    sku(f"N1 Predefined Instance Ram {AMERICAS}", "OnDemand", ["us-central1", "us-east1"], nanos=4237000),
    sku(f"{SPOT} N1 Predefined Instance Core {AMERICAS}", "Preemptible", ONE, nanos=9000000),
    sku(f"{SPOT} N1 Predefined Instance Ram {AMERICAS}", "Preemptible", ONE, nanos=1000000),
    sku(f"N1 Predefined Instance Core {AMERICAS} for 1 Year", "Commit1Yr", ONE, nanos=1),
    sku(f"Nvidia Tesla T4 GPU {AMERICAS}", "OnDemand", ONE, nanos=350000000),
    sku(f"Nvidia Tesla T4 GPU attached to {SPOT} VMs {AMERICAS}", "Preemptible", ONE, nanos=90000000),
    sku(f"Commitment v1: Nvidia Tesla T4 GPU {AMERICAS} for 1 Year", "Commit1Yr", ONE, nanos=1),
    sku(f"Nvidia Tesla T4 GPU attached to DWS Defined Duration VMs {AMERICAS}", "OnDemand", ONE, nanos=1),
    sku(f"Reserved Nvidia Tesla T4 GPU {AMERICAS}", "OnDemand", ONE, nanos=1),
    sku(f"N1 Custom Instance Core {AMERICAS}", "OnDemand", ONE, units="9"),
    sku("A3Plus Instance Core running in Iowa", "OnDemand", ONE, nanos=32000000),
    sku("A3Plus Instance Ram running in Iowa", "OnDemand", ONE, nanos=3000000),
    sku("Nvidia H100 80GB Plus GPU running in Iowa", "OnDemand", ONE, units="10"),
    sku("Nvidia Tesla A100 80GB GPU running in Europe", "OnDemand", ["europe-west4"], units="3", nanos=928080000),
    sku("A2 Instance Core running in Europe", "OnDemand", ["europe-west4"], nanos=34806000),
    sku("A2 Instance Ram running in Europe", "OnDemand", ["europe-west4"], nanos=4664000),
    sku("SSD backed Local Storage in Netherlands", "OnDemand", ["europe-west4"], nanos=88000000, unit="GiBy.mo"),
    sku("Something else entirely", "OnDemand", ["us-central1"], nanos=1),
    {"description": "Nvidia L4 GPU running in Iowa"},
]  # fmt: skip


def machine_type(name, accelerator, count, **more):
    return {
        "name": name,
        "guestCpus": 4,
        "memoryMb": 16384,
        "accelerators": [{"guestAcceleratorType": accelerator, "guestAcceleratorCount": count}],
        **more,
    }


def google(path, query, headers, _body):
    if headers["Authorization"] != "Bearer a-token":
        return 401, {"error": {"status": "UNAUTHENTICATED", "message": "no token"}}
    if path.endswith("/aggregated/machineTypes"):
        if "pageToken" not in query:
            items = {"zones/us-west9-a": {"machineTypes": [machine_type("g2-standard-4", "nvidia-l4", 1)]}}
            return 200, {"items": items, "nextPageToken": "2"}
        return 200, {
            "items": {
                "zones/us-west9-c": {
                    "machineTypes": [
                        machine_type("g2-standard-4", "nvidia-l4", 1),
                        machine_type("g4-standard-48", "nvidia-rtx-pro-6000", 1),
                        machine_type("a4x-highgpu-4g", "nvidia-gb200", 4),
                        machine_type("a2-old-1g", "nvidia-tesla-a100", 1, deprecated={"state": "OBSOLETE"}),
                    ]
                },
                "zones/us-south1-ai1b": {"machineTypes": [machine_type("g2-standard-4", "nvidia-l4", 1)]},
                "zones/us-west9-b": {"warning": {"code": "NO_RESULTS_ON_PAGE"}},
            }
        }
    if path.endswith("/aggregated/acceleratorTypes"):
        return 200, {
            "items": {
                "zones/us-west9-b": {
                    "acceleratorTypes": [
                        {"name": "nvidia-tesla-t4", "maximumCardsPerInstance": 4},
                        {"name": "nvidia-tesla-t4-vws", "maximumCardsPerInstance": 4},
                        {"name": "nvidia-l4", "maximumCardsPerInstance": 8},
                        {"name": "ct5lp", "maximumCardsPerInstance": 8},
                    ]
                }
            }
        }
    assert path.endswith(f"/services/{gcp.COMPUTE_ENGINE}/skus")
    half = len(SKUS) // 2
    if "pageToken" not in query:
        return 200, {"skus": SKUS[:half], "nextPageToken": "2"}
    return 200, {"skus": SKUS[half:], "nextPageToken": ""}


@pytest.fixture
def accounts(monkeypatch):
    """Set an account of Google Cloud whose services are a server of this test."""

    def use(server):
        monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", "a-token")
        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "a-project")
        monkeypatch.setenv("GOOGLE_COMPUTE_CUSTOM_ENDPOINT", f"{server.url}/compute/v1/")
        monkeypatch.setenv("GOOGLE_CLOUD_BILLING_CUSTOM_ENDPOINT", f"{server.url}/v1/")

    return use


def test_google_cloud_is_read_and_laid_over(accounts, capsys):
    before = tables.price("gcp", "us-east1", "g2-standard-4")
    with Server(google) as server:
        accounts(server)
        assert main(["catalog", "refresh", "--cloud", "gcp", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["missed"] == []
    assert {table["table"]: table["refreshed"] is not None for table in document["tables"]}["gcp_rates"]
    assert ("/compute/v1/projects/a-project/aggregated/machineTypes") in {path for path, _ in server.asked}

    zones = tables.zones("gcp")["us-west9"]
    assert zones["g2-standard-4"] == ("us-west9-a", "us-west9-c")
    assert zones["n1+T4"] == ("us-west9-b",)
    assert "us-south1" not in tables.zones("gcp") or "g2-standard-4" not in tables.zones("gcp")["us-south1"]
    machines = tables.machines("gcp")
    assert machines["g4-standard-48"].gpu == "RTX PRO 6000"
    assert not {"a4x-highgpu-4g", "a2-old-1g"} & set(machines)
    # 4 vCPUs and 15 GiB by their parts, and one card
    listed = Decimal(4) * Decimal("0.031611") + Decimal(15) * Decimal("0.004237")
    assert tables.price("gcp", "us-central1", "n1-standard-4+1xT4") == Money(round(listed + Decimal("0.35"), 5), "USD")
    spot = tables.price("gcp", "us-central1", "n1-standard-4+1xT4", Market.SPOT)
    assert spot == Money(Decimal("0.14100"), "USD")
    whole = tables.price("gcp", "europe-west4", "a2-ultragpu-1g")
    assert whole is not None
    assert float(whole.amount) == pytest.approx(12 * 0.034806 + 170 * 0.004664 + 3.92808 + 375 * 0.088 / 730, abs=1e-4)
    assert tables.price("gcp", "us-east1", "g2-standard-4") == before
    mega = tables.price("gcp", "us-central1", "a3-megagpu-8g")
    assert mega is not None
    assert float(mega.amount) == pytest.approx(208 * 0.032 + 1872 * 0.003 + 80 + 16 * 0.041096, abs=1e-4)


def test_one_service_that_refuses_does_not_hide_the_other(accounts, capsys):
    def without_billing(path, query, headers, body):
        if path.endswith("/skus"):
            return 403, {
                "error": {"status": "PERMISSION_DENIED", "message": "Cloud Billing API has not been used in project 1"}
            }
        return google(path, query, headers, body)

    with Server(without_billing) as server:
        accounts(server)
        assert main(["catalog", "refresh", "--cloud", "gcp"]) == 5
    captured = capsys.readouterr()
    assert "gcp_zones: 3 rows" in captured.out
    assert "gcp zones and machine types: " in captured.err
    assert "gcp prices: 0 rows" in captured.err
    assert "gcp: prices not refreshed: PERMISSION_DENIED: Cloud Billing API has not been used" in captured.err
    assert "zones 0 min ago" in captured.err
    assert "prices of 2026-11" in captured.err


def test_a_busy_service_is_asked_again(accounts, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: None)
    turns = iter(range(1000))

    def busy_at_first(path, query, headers, body):
        return (503, {}) if next(turns) < 2 else google(path, query, headers, body)

    with Server(busy_at_first) as server:
        accounts(server)
        assert main(["catalog", "refresh", "--cloud", "gcp"]) == 0


def test_a_cloud_without_credentials_is_left_out_unless_it_is_named(accounts, capsys):
    with Server(google) as server:
        accounts(server)
        assert main(["catalog", "refresh"]) == 0
    err = capsys.readouterr().err
    assert "autodl: everything not refreshed" in err
    assert "AUTODL_TOKEN" in err
    assert "aws: everything not refreshed: no credentials" in err
    assert main(["catalog", "refresh", "--cloud", "autodl"]) == 5


def test_offline_asks_nobody(monkeypatch, capsys):
    monkeypatch.setattr("provisioner.cli.catalog_refresh.READERS", {})
    assert main(["catalog", "refresh", "--offline"]) == 0
    assert "zones of 2026-11" in capsys.readouterr().err


class Cells:
    def __init__(self, idle, total):
        self.idle, self.total = idle, total


def test_autodl_tells_stock_by_region_and_prices_of_what_runs():
    def stock(region):
        if region == "beijingDC1":
            raise Unauthorized("the token is refused")
        return {"RTX 4090": Cells(3, 300)} if region == "westDC3" else {}

    found = autodl.refresh(
        stock, lambda: [("RTX 4090D", Money(Decimal("1.880"), "CNY"))], ["westDC3", "beijingDC1", "foshanDC1"], now=NOW
    )
    assert found.tables["autodl_stock"].rows == (("westDC3", "RTX 4090", "3", "300"),)
    assert found.tables["autodl_prices"].rows == (("RTX 4090D", "1.88"),)
    assert [(one.what, one.where) for one in found.missed] == [("stock", "beijingDC1")]
    (missed,) = autodl.refresh(lambda _: {}, list, ["westDC3"], now=NOW).missed
    assert missed.why.startswith("AutoDL tells a price only for a running machine")


def test_an_autodl_that_does_not_answer_is_left_after_two_regions():
    asked = []

    def stock(region):
        asked.append(region)
        if region != "westDC3":
            raise Unreachable("no usable answer")
        return {"RTX 4090": Cells(3, 300)}

    def prices():
        asked.append("prices")
        return []

    found = autodl.refresh(stock, prices, ["beijingDC1", "westDC3", "beijingDC2", "foshanDC1"], now=NOW)
    assert asked == ["beijingDC1", "westDC3", "beijingDC2"]
    assert found.tables["autodl_stock"].rows == (("westDC3", "RTX 4090", "3", "300"),)
    assert [(one.what, one.where) for one in found.missed] == [
        ("stock", "beijingDC1"), ("stock", "beijingDC2"), ("stock", "foshanDC1"), ("prices", ""),
    ]  # fmt: skip


def test_a_cache_that_cannot_be_written_is_named(monkeypatch, capsys, tmp_path):
    found = autodl.refresh(lambda _: {"RTX 4090": Cells(3, 300)}, list, ["westDC3"], now=NOW)
    monkeypatch.setattr("provisioner.cli.catalog_refresh.READERS", {"autodl": lambda _question: found})
    (tmp_path / "file").touch()
    monkeypatch.setenv("FAILOVER_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert main(["catalog", "refresh", "--cloud", "autodl"]) == 2
    assert "FAILOVER_CACHE_DIR" in capsys.readouterr().err


def test_the_command_asks_autodl_for_stock_and_for_prices_of_what_runs(monkeypatch, capsys):
    emulator = AutodlEmulator(EmulatorConfig(token="a-token", speed=1000.0))
    server = Emulated(emulator)
    monkeypatch.setenv("AUTODL_TOKEN", "a-token")
    monkeypatch.setenv("AUTODL_BASE_URL", server.url)
    try:
        with AutodlClient("a-token", server.url) as client:
            machine = client.pro.create(ProOrder("mine", "4090D", 1, "base-image-l2t43iu6uk", (11, 8)))
            deadline = time.monotonic() + 10
            while client.pro.status(machine) != "running" and time.monotonic() < deadline:
                time.sleep(0.01)
            listed = client.pro.snapshot(machine).price_per_hour
        assert main(["catalog", "refresh", "--cloud", "autodl", "--json"]) == 0
        assert main(["catalog", "ls", "--gpu", "RTX 4090", "--by-region", "--json"]) == 0
    finally:
        server.stop()
    first, _, second = capsys.readouterr().out.partition("}\n{")
    assert json.loads(first + "}")["missed"] == []
    rows = json.loads("{" + second)["machines"]
    assert {row["region"] for row in rows} <= set(catalog.AUTODL_REGIONS)
    assert all(row["idle"] is not None for row in rows)
    assert tables.autodl_prices()["RTX 4090D"] == listed
