"""What Google said, in one shape: refusals of a call, errors of an operation, errors of its library.

A refusal has a reason (``quotaExceeded``) and often a more telling one in ``ErrorInfo`` (``SERVICE_DISABLED``); an
operation has codes in capitals. Nothing of Google's is imported here: its errors are told by what they carry.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from provisioner.clouds.meaning import one_line

NO_REASON: Final = "NO_REASON"
"""Our own word for an answer that Google did not give."""
_REQUEST: Final = re.compile(r"^[A-Z]+ https?://\S+: ")
"""Google's library puts the method and address of a call before its message."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One error. ``codes``: Google's words for it, the most telling first; ``status`` is HTTP's, 0 where there is none.

    ``details`` is what stands beside it: ``zonesAvailable``, ``metricName``, ``limit``, ``permission``, ``service``.
    """

    codes: tuple[str, ...]
    message: str
    status: int = 0
    details: Mapping[str, str] = field(default_factory=dict)

    @property
    def code(self) -> str:
        """Google's most telling word."""
        return self.codes[0] if self.codes else f"HTTP {self.status}"


def of_operation(operation: Any) -> list[Problem]:
    """Return the errors of an operation that is done; none: it went well."""
    found = [_of_item(item) for item in operation.error.errors]
    status = int(operation.http_error_status_code or 0)
    if not found and status >= 400:
        found.append(Problem((), one_line(operation.http_error_message or "no reason given"), status))
    return found


def of_error(error: Exception) -> list[Problem]:
    """Return what an error of a call says; a local one (no answer, no credentials) has its class as its code."""
    status = getattr(error, "code", None)
    if not isinstance(status, int):
        return [Problem((type(error).__name__,), one_line(str(error)))]
    message = _REQUEST.sub("", str(getattr(error, "message", error)))
    words, details = _of_details(getattr(error, "details", ()))
    try:
        items = [item for item in getattr(error, "errors", ()) if isinstance(item, Mapping)]
    except TypeError:  # Google's library makes a list of whatever a proxy has put there
        items = []
    if not items:
        return [Problem(_signed(words, status), one_line(message), int(status), details)]
    return [
        Problem(
            tuple(word for word in (*words, str(item.get("reason") or "")) if word),
            one_line(str(item.get("message") or message)),
            int(status),
            details,
        )
        for item in items
    ]


def of_answer(status: int, body: Any) -> list[Problem]:
    """Return what a JSON refusal says that did not pass through Google's library."""
    error = body.get("error") if isinstance(body, Mapping) else None
    error = error if isinstance(error, Mapping) else {}
    words, details = _of_details(error.get("details") or ())
    listed = error.get("errors")
    items = [item for item in listed if isinstance(item, Mapping)] if isinstance(listed, list) else []
    reasons = [str(item.get("reason") or "") for item in items]
    codes = tuple(word for word in (*words, *reasons, str(error.get("status") or "")) if word)
    return [Problem(_signed(codes, status), one_line(str(error.get("message") or "no reason given")), status, details)]


def no_answer(why: object) -> list[Problem]:
    """Return what an answer says that is not Google's, or not whole."""
    return [Problem((NO_REASON,), one_line(f"not an answer of Google's: {why}"))]


def _signed(codes: tuple[str, ...], status: int) -> tuple[str, ...]:
    """Google says with a reason that a thing is not there; a 404 without one is a proxy's, and says nothing."""
    return codes if codes or status != 404 else (NO_REASON,)


def _of_item(item: Any) -> Problem:
    details: dict[str, str] = {}
    for detail in item.error_details:
        details |= dict(detail.error_info.metadatas)
        quota = detail.quota_info
        if quota.metric_name:
            details |= {"metricName": quota.metric_name, "limit": f"{quota.limit:g}", **dict(quota.dimensions)}
    return Problem((str(item.code),), one_line(str(item.message or item.code)), details=details)


def _of_details(details: Iterable[Any]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Read the reasons and particulars of ``error.details``; the link of a help entry is kept as ``link``."""
    reasons: list[str] = []
    found: dict[str, str] = {}
    for detail in details:
        if not isinstance(detail, Mapping):
            continue
        if detail.get("reason"):
            reasons.append(str(detail["reason"]))
        found |= {str(key): str(value) for key, value in _pairs(detail.get("metadata"))}
        links = detail.get("links") or ()
        if links and isinstance(links[0], Mapping) and links[0].get("url"):
            found.setdefault("link", str(links[0]["url"]))
    return tuple(reasons), found


def _pairs(value: Any) -> Iterator[tuple[Any, Any]]:
    yield from value.items() if isinstance(value, Mapping) else ()
