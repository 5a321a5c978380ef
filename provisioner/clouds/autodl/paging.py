"""Walk through AutoDL's pages: 1-based, until ``max_page``, which is 0 or 1 for an empty list."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from provisioner.clouds.autodl.units import mapping, number
from provisioner.clouds.autodl.wire import UnusableError, Wire

T = TypeVar("T")

_PAGE_SIZE = 100
_MOST_PAGES = 1000
_GAP_S = 0.2


def pages(
    wire: Wire, path: str, read: Callable[[Mapping[str, Any]], T], filters: Mapping[str, Any] | None = None
) -> Iterator[T]:
    """Yield every item of a list. Raises Unreachable, or the typed refusal.

    A list that moves while it is read can show an item twice; the caller knows its items by their ids.
    """
    for index in range(1, _MOST_PAGES + 1):
        body = {**(filters or {}), "page_index": index, "page_size": _PAGE_SIZE}
        items, last = wire.read("POST", path, body=body, parse=_page)
        yield from (read(item) for item in items)
        if index >= last or not items:
            return
        wire.sleep(_GAP_S)


def _page(data: Any) -> tuple[list[Mapping[str, Any]], int]:
    """Read one page. Null is an empty list where the page is there; a page that is not there is no answer."""
    if not isinstance(data, dict) or "list" not in data or not isinstance(data["list"], list | None):
        raise UnusableError("the answer holds no list")
    return [mapping(item) for item in data["list"] or []], number(data.get("max_page")) or 0
