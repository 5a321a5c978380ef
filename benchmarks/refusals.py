"""What a refusal costs: `python benchmarks/refusals.py [--quick] [--without dstack] [--json FILE]`.

The emulated EC2 answers every launch with one code, after 0.2 s. Counted are the launches that are asked for, and the
seconds, until a zone, a region (all its zones) and the cloud (three regions) are left.

Ours is the whole controller, without a store, and with Terraform's work done by the SDK beforehand. Theirs are the
functions that get a machine: SkyPilot's ``provision.aws.instance``, dstack's ``AWSCompute.create_instance``, each in an
environment of its own (made when it is first needed), called once for each region as their own loops do. It is not
their whole product: what they do between regions (SkyPilot runs its optimizer again) is not in the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.report import cpu, markdown_table
from provisioner import catalog
from provisioner.clouds.aws.cloud import AwsCloud
from provisioner.config import AwsConfig
from provisioner.controller.flow import Flow
from provisioner.sandbox.ec2 import AwsEmulator
from provisioner.sandbox.machines import Machines
from tests import sweeps
from tests.integration.aws.conftest import AwsBox, SdkStack

REGIONS = ("us-east-1", "us-west-2", "eu-west-1")
TYPE = "g4dn.xlarge"
LATENCY_S = 0.2
CASES = (
    ("InsufficientInstanceCapacity", "spot"),
    ("InsufficientFreeAddressesInSubnet", "spot"),
    ("SpotMaxPriceTooLow", "spot"),
    ("MaxSpotInstanceCountExceeded", "spot"),
    ("VcpuLimitExceeded", "on-demand"),
    ("Unsupported", "on-demand"),
    ("UnauthorizedOperation", "on-demand"),
    ("BrandNewIn2031", "on-demand"),
    ("RequestLimitExceeded", "on-demand"),
)
SLOW = "RequestLimitExceeded"
HERE = Path(__file__).parent
RIVALS = {
    "skypilot": ("skypilot[aws]==0.14.1", "refusals_sky.py"),
    "dstack": ("dstack[aws]==0.22.5", "refusals_dstack.py"),
}
"""What is installed, and the script that is run with it."""
DEADLINE_S = 900.0


@dataclass(frozen=True)
class Cost:
    """Launches and seconds until a zone, one region, and all regions were left; ``said``: how it ended."""

    zone_calls: int
    zone_s: float
    region_calls: int
    region_s: float
    cloud_calls: int
    cloud_s: float
    said: str


Contender = Callable[[AwsBox, Path, Sequence[str], str], tuple[float, str]]
"""Look for a machine in these regions and market; return the Unix time when the last answer was judged, and a word."""


def ours(box: AwsBox, folder: Path, regions: Sequence[str], market: str) -> tuple[float, str]:
    """Run the controller."""
    settings: dict[str, Any] = {"regions": [*regions], "instance_types": [TYPE], "market": market}
    settings |= {"max_price": "1 USD"} if market == "spot" else {}
    cloud = AwsCloud(
        [AwsConfig.model_validate(settings)],
        sweeps.JOB,
        folder / "job",
        _never,
        box.environ,
        bucket="bucket",
        prefix="jobs",
        stack=lambda spec, where: SdkStack(box, spec, where),
    )
    for region in regions:
        cloud.prepare(region)
    world: Any = sweeps.world({"aws": cloud}, sweeps.aws(**settings), folder / "state")
    ended = [time.time()]

    def step(name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        answer = call(*arguments)
        if name == "claim":
            ended.append(time.time())
        return answer

    report = Flow(world, step).run()
    kinds = sorted({str(one["failure"]) for one in report["refused"]})  # type: ignore[attr-defined]
    return ended[-1], f"{'/'.join(kinds)}, exit {report['exit_code']}"


def _never() -> Any:
    raise AssertionError("Terraform is stood in for")


def theirs(python: Path, script: str) -> Contender:
    """Run a script of ours with a peer's Python: it prints one JSON object, ``{"ended": Unix time, "said": ...}``."""

    def run(box: AwsBox, folder: Path, regions: Sequence[str], market: str) -> tuple[float, str]:
        task = {"regions": {region: _subnets(box, region) for region in regions}, "market": market, "type": TYPE}
        for region in regions:
            _lead_out(box, region)
        path = HERE / script
        home = folder / "home"
        home.mkdir(parents=True, exist_ok=True)
        environ = {**box.environ, "HOME": str(home), "PATH": "/usr/bin:/bin", "AWS_DEFAULT_REGION": REGIONS[0]}
        argv = [str(python), str(path), json.dumps(task)]
        done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        if done.returncode:
            raise RuntimeError(f"{script}: {done.stderr[-2000:]}")
        answer = json.loads(done.stdout.strip().splitlines()[-1])
        return float(answer["ended"]), str(answer["said"])

    return run


def environment(folder: Path, pinned: str) -> Path:
    """Return the Python of a virtual environment that holds a package; made where it is not there yet."""
    python, stamp = folder / "bin" / "python", folder / ".pinned"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != pinned:
        uv = HERE.parent / ".venv" / "bin" / "uv"
        subprocess.run([str(uv), "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)], check=True)
        subprocess.run([str(uv), "pip", "install", "--quiet", "--python", str(python), pinned], check=True)
        stamp.write_text(pinned, encoding="utf-8")
    return python


def _lead_out(box: AwsBox, region: str) -> None:
    """Give the default network a way to the internet, as AWS's has: dstack looks for it, and moto's has none."""
    ec2 = box.client("ec2", region)
    (network,) = ec2.describe_vpcs(Filters=[{"Name": "isDefault", "Values": ["true"]}])["Vpcs"]
    gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=network["VpcId"])
    main = [{"Name": "vpc-id", "Values": [network["VpcId"]]}, {"Name": "association.main", "Values": ["true"]}]
    table = ec2.describe_route_tables(Filters=main)["RouteTables"][0]["RouteTableId"]
    ec2.create_route(RouteTableId=table, DestinationCidrBlock="0.0.0.0/0", GatewayId=gateway)


def _subnets(box: AwsBox, region: str) -> dict[str, str]:
    """Return zone -> subnet of the default network, for the zones that have the machine."""
    zones = catalog_zones(region)
    found = box.client("ec2", region).describe_subnets()["Subnets"]
    return {one["AvailabilityZone"]: one["SubnetId"] for one in found if one["AvailabilityZone"] in zones}


def catalog_zones(region: str) -> set[str]:
    """Return the zones of a region that have the machine."""

    class Any_:  # noqa: N801 - what a job asks for: anything
        gpus: tuple[str, ...] = ()
        count = 1
        min_vram_gb = 0.0
        cuda = None

    return {offer.zone for offer in catalog.aws_offers([region], Any_(), [TYPE])}


def measure(contender: Contender, box: AwsBox, folder: Path, code: str, market: str) -> Cost:
    """Answer with one code, and count: once with one region, once with all."""
    box.emulator.reset()
    one, one_end, said = _swept(contender, box, folder / "one", REGIONS[:1], code, market)
    box.emulator.reset()
    all_, all_end, _ = _swept(contender, box, folder / "all", REGIONS, code, market)
    begun = one[0]["time"] - LATENCY_S  # the log has the time of the answer
    elsewhere = next((call["time"] - LATENCY_S for call in one if call["az"] != one[0]["az"]), one_end)
    return Cost(
        max(Counter(call["az"] for call in one).values()),
        elsewhere - begun,
        len(one),
        one_end - begun,
        len(all_),
        all_end - (all_[0]["time"] - LATENCY_S),
        said,
    )


def _swept(
    contender: Contender, box: AwsBox, folder: Path, regions: Sequence[str], code: str, market: str
) -> tuple[list[dict[str, Any]], float, str]:
    folder.mkdir(parents=True)
    box.emulator.faults.set([{"action": "RunInstances", "code": code, "delay": LATENCY_S}])
    ended, said = contender(box, folder, regions, market)
    calls = box.emulator.faults.log()
    if not calls:
        raise RuntimeError(f"no launch was asked for: {said}")
    return calls, ended, said


def table(costs: Mapping[str, Mapping[str, Cost]]) -> str:
    """Return the figures as Markdown: calls and seconds, a contender in each column."""
    names = [name for name in costs if costs[name]]
    rows = [["EC2 answers", *(f"{name}: {what}" for name in names for what in ("zone", "region", "cloud"))]]
    for code, _ in CASES:
        if not any(code in costs[name] for name in names):
            continue
        row = [f"`{code}`"]
        for name in names:
            cost = costs[name].get(code)
            row += _cells(cost) if cost is not None else ["not run"] * 3
        rows.append(row)
    return markdown_table(rows)


def _cells(cost: Cost) -> list[str]:
    pairs = ((cost.zone_calls, cost.zone_s), (cost.region_calls, cost.region_s), (cost.cloud_calls, cost.cloud_s))
    return [f"{calls} / {seconds:.1f} s" for calls, seconds in pairs]


def main() -> int:
    """Measure and print."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--without", action="append", default=[], choices=sorted(RIVALS), help="leave one out")
    words.add_argument("--scratch", type=Path, default=HERE.parent / ".venv-plan", help="their environments")
    words.add_argument("--quick", action="store_true", help=f"leave {SLOW} out: it takes minutes")
    words.add_argument("--json", type=Path, help="write every figure to this file, too")
    chosen = words.parse_args()
    contenders: dict[str, Contender] = {"gpu-failover": ours}
    for name, (pinned, script) in RIVALS.items():
        if name in chosen.without:
            continue
        contenders[name] = theirs(environment(chosen.scratch / name, pinned), script)
    costs: dict[str, dict[str, Cost]] = {name: {} for name in contenders}
    with tempfile.TemporaryDirectory(prefix="bench-refusals-") as scratch:
        machines = Machines(Path(scratch) / "machines")
        emulator = AwsEmulator(machines)
        box = AwsBox(emulator, machines, emulator.start(), Path(scratch))
        try:
            for code, market in CASES:
                for name, contender in contenders.items():
                    if not (chosen.quick and code == SLOW):
                        folder = Path(scratch) / f"{name}-{code}"
                        costs[name][code] = measure(contender, box, folder, code, market)
                        print(f"{name}: {code}: {costs[name][code]}", file=sys.stderr, flush=True)
        finally:
            machines.stop_all()
            emulator.stop()
    print(f"{os.cpu_count()} cores ({cpu()}), Python {platform.python_version()}; emulator and clients share them.")
    print(f"Launches asked for / seconds; each answer takes {LATENCY_S:g} s.\n\n{table(costs)}")
    if chosen.json is not None:
        figures = {name: {code: asdict(cost) for code, cost in found.items()} for name, found in costs.items()}
        chosen.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
