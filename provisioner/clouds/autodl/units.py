"""AutoDL's encodings, turned into plain units at the edge: yuan, bytes, CUDA versions, Unix time.

Everything that reads an answer is lenient: a missing, null or oddly typed field becomes the empty value, never an
error. What must not be missing is checked where the answer is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from provisioner.model import Money

GIB = 1024**3
CNY = "CNY"
_TOO_BIG = Decimal(10) ** 18
_MILLI = Decimal(1000)


def number(value: object) -> int | None:
    """Read an integer that may come as int, float or digits in a string; None where it is neither."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        parsed = Decimal(str(value).strip())
        # The size is looked at before the conversion: int(Decimal("1e999999999")) does not come back.
        return int(parsed) if -_TOO_BIG < parsed < _TOO_BIG else None
    except (InvalidOperation, ValueError):
        return None


def yuan(milli: object) -> Money | None:
    """Turn AutoDL's integer 1/1000 yuan into Money: 12345 is 12.345 CNY."""
    value = number(milli)
    return None if value is None else Money(Decimal(value) / _MILLI, CNY)


def milli_yuan(money: Money) -> int:
    """Turn Money in CNY into integer 1/1000 yuan. Raises ValueError for another currency."""
    if money.currency != CNY:
        message = f"AutoDL counts in CNY, not in {money.currency}"
        raise ValueError(message)
    return int(money.amount * _MILLI)


def cuda_code(version: tuple[int, int]) -> int:
    """Turn CUDA (12, 4) into AutoDL's 124."""
    major, minor = version
    return major * 10 + minor


def cuda_version(code: object) -> tuple[int, int] | None:
    """Turn AutoDL's 124 into CUDA (12, 4). 0 and nonsense mean: not said."""
    value = number(code)
    return divmod(value, 10) if value is not None and value > 0 else None


def moment(value: object) -> float | None:
    """Read a time as Unix seconds: RFC 3339 text, or ``{"Time": text, "Valid": bool}``, or nothing."""
    if isinstance(value, Mapping):
        value = value.get("Time") if value.get("Valid") else None
    if not isinstance(value, str) or not value or value.startswith("0001-"):
        return None
    try:
        return datetime.fromisoformat(value).timestamp()
    except (ValueError, OverflowError):
        return None


def text(fields: Mapping[str, Any], *names: str) -> str:
    """Return the first of these fields that holds text (a number counts), else the empty string."""
    for name in names:
        value = fields.get(name)
        if isinstance(value, str) and value:
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
    return ""


def texts(value: object) -> tuple[str, ...]:
    """Read a list of strings; a lone string is a list of one, and null is empty."""
    if isinstance(value, str):
        return (value,) if value else ()
    if isinstance(value, list):
        return tuple(item for item in value if isinstance(item, str))
    return ()


def mapping(value: object) -> Mapping[str, Any]:
    """Return a JSON object, or an empty one for anything else."""
    return value if isinstance(value, dict) else {}
