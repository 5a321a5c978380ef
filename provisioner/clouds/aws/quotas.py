"""The vCPU quotas of an AWS account against what runs now: a machine over its quota is not asked for.

Quotas of a region: https://docs.aws.amazon.com/servicequotas, service ``ec2``. They count vCPUs by family and market:
machines that are pending or running, and spot requests that are open. What cannot be told blocks nothing.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

from provisioner import catalog
from provisioner.clouds.aws.reading import code_and_message, failure_of
from provisioner.model import Failure, FailureKind, Gpu, Market, Offer, Scope
from provisioner.planner.memory import quota_family

FRESH_S: Final = 600.0
"""How old an answer may be, in seconds: quota calls are rate-limited, and a sweep asks for dozens of offers."""
PATIENCE_S: Final = 10.0
"""How long an answer is waited for. A job must not wait for facts that only save it a call."""
_AT_ONCE: Final = 12
_PAGES: Final = {"PageSize": 1000}
_UNKNOWN: Final = frozenset({"NoSuchResourceException", "NoSuchResource"})


@dataclass(frozen=True, slots=True)
class Quota:
    """One quota of the service ``ec2``, by its code and name."""

    code: str
    name: str

    def link(self, region: str) -> str:
        """Return the page on which more can be asked for."""
        domain = "console.amazonaws.cn" if region.startswith("cn-") else "console.aws.amazon.com"
        return f"https://{region}.{domain}/servicequotas/home/services/ec2/quotas/{self.code}"


QUOTAS: Final[Mapping[tuple[str, Market], Quota]] = {
    ("G", Market.ON_DEMAND): Quota("L-DB2E81BA", "Running On-Demand G and VT instances"),
    ("G", Market.SPOT): Quota("L-3819A6DF", "All G and VT Spot Instance Requests"),
    ("P", Market.ON_DEMAND): Quota("L-417A185B", "Running On-Demand P instances"),
    ("P", Market.SPOT): Quota("L-7212CCBC", "All P4, P3 and P2 Spot Instance Requests"),
    ("P5", Market.SPOT): Quota("L-C4BD4855", "All P5 Spot Instance Requests"),
}


def quota_of(offer: Offer) -> Quota | None:
    """Return the quota that counts an offer, where it is known."""
    return QUOTAS.get((quota_family(offer), offer.market))


def advice(offer: Offer) -> str:
    """Return what to do about a used-up quota of this offer; empty where the quota is not known."""
    quota = quota_of(offer)
    return "" if quota is None else f'raise the quota "{quota.name}" ({quota.code}): {quota.link(offer.region)}'


class Clients(Protocol):
    """Where the clients come from: ``api.Account`` is one."""

    def client(self, service: str, region: str) -> Any:
        """Return a boto3 client. Raises CloudError."""
        ...


@dataclass(slots=True)
class _Region:
    """What is known of a region: the limits by quota code (None: not known), and the vCPUs in use."""

    limits: dict[str, tuple[float, float | None]] = field(default_factory=dict)
    """Quota code -> (when it was asked, vCPUs)."""
    used_at: float = float("-inf")
    used: Counter[tuple[str, Market]] | None = None


class AccountQuotas:
    """The quotas of one account. Thread-safe; answers are kept for :data:`FRESH_S`."""

    def __init__(self, clients: Clients, tell: Callable[..., None], tick: Callable[[], float] = time.monotonic) -> None:
        """Take the account; ask nothing yet. ``tell(kind, **fields)`` takes events; ``tick`` only grows, in seconds."""
        self._clients = clients
        self._tell = tell
        self._tick = tick
        self._regions: dict[str, _Region] = {}
        self._denied = False
        self._lock = threading.Lock()

    def over(self, offers: Sequence[Offer]) -> dict[str, Failure]:
        """Return, by key, the offers that AWS would refuse for their quota, each with the reason. Never raises."""
        counted = [(offer, quota) for offer in offers if (quota := quota_of(offer)) is not None]
        with self._lock:
            self._learn({(offer.region, quota.code) for offer, quota in counted})
            found = ((offer, self._refusal(offer, quota)) for offer, quota in counted)
            return {offer.key: refusal for offer, refusal in found if refusal is not None}

    def forget_use(self, region: str) -> None:
        """Count anew at the next question: a machine of ours has come or gone."""
        with self._lock:
            if region in self._regions:
                self._regions[region].used_at = float("-inf")

    def _refusal(self, offer: Offer, quota: Quota) -> Failure | None:
        known, need = self._regions.get(offer.region), vcpus(offer.instance_type)
        if known is None or known.used is None or not need:
            return None
        _, limit = known.limits.get(quota.code, (0.0, None))
        used = known.used[quota_family(offer), offer.market]
        if limit is None or used + need <= limit:
            return None
        text = f"{quota.name} in {offer.region}: {limit:g} vCPU, {used} in use, {offer.instance_type} needs {need}"
        scope = Scope.FAMILY if used >= limit else Scope.OFFER
        return Failure(FailureKind.QUOTA, scope, quota.code, text, advice(offer), FRESH_S)

    def _learn(self, wanted: Iterable[tuple[str, str]]) -> None:
        """Ask what is not known, or too old, all at the same time."""
        if self._denied:
            return
        now = self._tick()
        questions: dict[tuple[str, str], Callable[[], object]] = {}
        for region, code in sorted(wanted):
            known = self._regions.setdefault(region, _Region())
            if now - known.limits.get(code, (float("-inf"), None))[0] >= FRESH_S:
                questions[region, code] = partial(self._limit, region, code)
            if now - known.used_at >= FRESH_S:
                questions[region, ""] = partial(self._used, region)
        if not questions:
            return
        pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="quotas")
        asked = {pool.submit(question): key for key, question in questions.items()}
        done, late = wait(asked, timeout=PATIENCE_S)
        pool.shutdown(wait=False, cancel_futures=True)
        for answer in done:
            self._note(asked[answer], answer, now)
        for answer in late:
            self._nothing(asked[answer], now)

    def _note(self, key: tuple[str, str], answer: Future[Any], now: float) -> None:
        error = answer.exception()
        region, code = key
        if error is None:
            if code:
                self._regions[region].limits[code] = (now, answer.result())
            else:
                self._regions[region].used_at, self._regions[region].used = now, answer.result()
            return
        self._nothing(key, now)
        failure = failure_of(error, "GetServiceQuota") if isinstance(error, Exception) else None
        if failure is not None and not self._denied:
            self._denied = failure.kind is FailureKind.UNAUTHORIZED  # it will be refused again: one word is enough
            self._tell("quotas_unknown", cloud="aws", region=region, problem=failure.message)

    def _nothing(self, key: tuple[str, str], now: float) -> None:
        region, code = key
        known = self._regions[region]
        if code:
            known.limits[code] = (now, None)
        else:
            known.used_at, known.used = now, None

    def _limit(self, region: str, code: str) -> float | None:
        """Return the applied value, else AWS's default; None where AWS knows no such quota."""
        client = self._clients.client("service-quotas", region)
        for ask in (client.get_service_quota, client.get_aws_default_service_quota):
            try:
                return float(ask(ServiceCode="ec2", QuotaCode=code)["Quota"]["Value"])
            except Exception as error:
                if code_and_message(error)[0] not in _UNKNOWN:
                    raise
        return None

    def _used(self, region: str) -> Counter[tuple[str, Market]]:
        """Count the vCPUs of GPU machines that are pending or running, and of spot requests that are open."""
        ec2 = self._clients.client("ec2", region)
        used: Counter[tuple[str, Market]] = Counter()
        alive = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
        for page in ec2.get_paginator("describe_instances").paginate(Filters=alive, PaginationConfig=_PAGES):
            for instance in (one for reservation in page["Reservations"] for one in reservation["Instances"]):
                if (instance.get("Placement") or {}).get("Tenancy") != "host":  # dedicated hosts have their own quota
                    market = Market.SPOT if instance.get("InstanceLifecycle") == "spot" else Market.ON_DEMAND
                    used[_family(region, str(instance["InstanceType"]), market), market] += _vcpus_of(instance)
        waiting = [{"Name": "state", "Values": ["open"]}]
        pages = ec2.get_paginator("describe_spot_instance_requests")
        for page in pages.paginate(Filters=waiting, PaginationConfig=_PAGES):
            for request in page["SpotInstanceRequests"]:
                name = str((request.get("LaunchSpecification") or {}).get("InstanceType") or "")
                used[_family(region, name, Market.SPOT), Market.SPOT] += vcpus(name)
        return used


def vcpus(instance_type: str) -> int:
    """Return the vCPUs of a machine type, 0 where the catalog does not know it: what is not known blocks nothing."""
    known = catalog.machine("aws", instance_type)
    return known.vcpus if known is not None else 0


def _vcpus_of(instance: Mapping[str, Any]) -> int:
    """Return what a running machine counts: its type's vCPUs, whatever cores its owner has switched off."""
    known = vcpus(str(instance["InstanceType"]))
    options = instance.get("CpuOptions") or {}
    return known or int(options.get("CoreCount") or 0) * int(options.get("ThreadsPerCore") or 1)


def _family(region: str, instance_type: str, market: Market) -> str:
    return quota_family(Offer("aws", region, "", instance_type, Gpu("", 0, 0), market, None))
