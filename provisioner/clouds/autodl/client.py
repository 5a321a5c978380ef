"""AutoDL's developer API, call by call: wallet and stock here, Pro instances and elastic deployments beside it.

Requests take plain units (yuan as Money, CUDA as ``(12, 4)``), answers are the values of ``models.py``. Reads raise
Unreachable after their retries; writes raise Doubtful at the first answer that says nothing. See ``errors.py``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import httpx

from provisioner.clouds.autodl.elastic_api import ElasticApi
from provisioner.clouds.autodl.models import Balance, GpuStock
from provisioner.clouds.autodl.pro_api import ProApi
from provisioner.clouds.autodl.units import cuda_code, milli_yuan
from provisioner.clouds.autodl.wire import DEFAULT_BASE_URL, Clock, Sleep, UnusableError, Wire
from provisioner.model import Money


class AutodlClient:
    """A client for one account. Close it, or use it as a context manager."""

    def __init__(
        self,
        token: str,
        base_url: str = DEFAULT_BASE_URL,
        *,
        transport: httpx.BaseTransport | None = None,
        timeout_s: float = 20.0,
        patience_s: float = 90.0,
        tries: int = 6,
        sleep: Sleep = time.sleep,
        clock: Clock = time.monotonic,
    ) -> None:
        """Open no connection yet. The parameters are those of ``Wire``. Raises ConfigError for a broken token."""
        self.wire = Wire(
            token,
            base_url,
            transport=transport,
            timeout_s=timeout_s,
            patience_s=patience_s,
            tries=tries,
            sleep=sleep,
            clock=clock,
        )
        self.pro = ProApi(self.wire)
        self.elastic = ElasticApi(self.wire)

    def __repr__(self) -> str:
        """Name the address, not the token."""
        return f"AutodlClient({self.wire.base_url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self.wire.close()

    def balance(self) -> Balance:
        """Read the wallet."""
        return self.wire.read("POST", "/api/v1/dev/wallet/balance", body={}, parse=_balance)

    def mount_nfs(self, region: str, *, dedicated: bool) -> None:
        """Use the dedicated NFS of a region, or go back to its ordinary file storage."""
        body = {"data_center": region, "mountable": 1 if dedicated else -1}
        self.wire.do("POST", "/api/v1/dev/exclusive_nfs/mount", body)

    def gpu_stock(
        self,
        region: str,
        *,
        gpu_names: Sequence[str] = (),
        cuda: tuple[int, int] | None = None,
        max_price: Money | None = None,
    ) -> dict[str, GpuStock]:
        """Read the free cards of a region by exact model name, counted one by one.

        An unknown region gives an empty answer, as a sold-out one without any host would. The numbers are those of
        elastic deployments and do not predict whether a Pro instance can be had. ``max_price`` is for one hour.
        """
        body: dict[str, Any] = {"region_sign": region}
        if gpu_names:
            body["gpu_name_set"] = list(gpu_names)
        if cuda is not None:
            body["cuda_v_from"] = cuda_code(cuda)
        if max_price is not None:
            body["price_to"] = milli_yuan(max_price)
        return self.wire.read("POST", "/api/v1/dev/machine/region/gpu_stock", body=body, parse=_stock)


def _balance(data: Any) -> Balance:
    if not isinstance(data, dict) or "assets" not in data:
        raise UnusableError("the wallet has no assets field")
    return Balance.read(data)


def _stock(data: Any) -> dict[str, GpuStock]:
    if data is not None and not isinstance(data, list | dict):
        raise UnusableError("the stock is no list")
    return GpuStock.read_all(data or [])
