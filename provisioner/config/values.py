"""Values that YAML has no type for: durations (``1h30m``), money (``1.5 USD``), CUDA versions, checked texts.

Each is a pydantic type. A file must write them as text; Python code may also hand over the finished value.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, PlainSerializer, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from provisioner.model import Money

T = TypeVar("T")

_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_DURATION = re.compile(r"(?:(\d{1,5})d)?(?:(\d{1,6})h)?(?:(\d{1,7})m)?(?:(\d{1,9}(?:\.\d{1,3})?)s)?")
_MONEY = re.compile(r"(\d{1,9}(?:\.\d{1,6})?) *([A-Za-z]+)|([$\u00a5\uffe5]) *(\d{1,9}(?:\.\d{1,6})?)")
_SIGNS = {"$": "USD", "\u00a5": "CNY", "\uffe5": "CNY"}
_CURRENCIES = {"USD": "USD", "CNY": "CNY", "RMB": "CNY"}
_DURATION_ADVICE = "write a number and a unit: 90s, 10m, 1h30m, 2d"
_MONEY_ADVICE = "write an amount and its currency: 1.5 USD or 5 CNY"
_LONGEST_S = 366 * 86400.0


def mistake(message: str, hint: str = "") -> PydanticCustomError:
    """Return a validation error with its advice. Both are shown to the operator, so they carry no secret."""
    return PydanticCustomError("failover", "{message}", {"message": message, "hint": hint})


def parse_duration(text: str) -> float:
    """Return the seconds of ``10m``, ``1h30m`` or ``90s``. Raises PydanticCustomError."""
    match = _DURATION.fullmatch(text.strip())
    if match is None or not any(match.groups()):
        raise mistake(f"{short(text)} is not a duration", _DURATION_ADVICE)
    seconds = sum(float(number or 0) * unit for number, unit in zip(match.groups(), _UNITS.values(), strict=True))
    if seconds > _LONGEST_S:
        raise mistake(f"{short(text)} is longer than a year", "write at most 366d")
    return seconds


def duration_text(seconds: float) -> str:
    """Return ``1h30m`` for 5400: what ``parse_duration`` reads as the same number, to the millisecond."""
    left, text = round(seconds * 1000), ""
    for name, unit in _UNITS.items():
        if name == "s":
            return f"{text}{left / 1000:g}s" if left or not text else text
        count, left = divmod(left, unit * 1000)
        text += f"{count}{name}" if count else ""
    return text


def parse_money(text: str) -> Money:
    """Return the amount in ``1.5 USD``, ``5 CNY``, ``$1.5`` or ``¥5``. Raises PydanticCustomError."""
    match = _MONEY.fullmatch(text.strip())
    if match is None:
        raise mistake(f"{short(text)} is not an amount of money", _MONEY_ADVICE)
    number, name, sign, signed = match.groups()
    currency = _SIGNS[sign] if sign else _CURRENCIES.get(name.upper())
    if currency is None:
        raise mistake(f"currency {name} is not known", _MONEY_ADVICE)
    amount = Decimal(number or signed)
    if amount == 0:
        raise mistake("an amount of 0 buys nothing", "leave it out for no limit")
    return Money(amount, currency)


def parse_cuda(text: str) -> tuple[int, int]:
    """Return ``(12, 4)`` for ``12.4``. Raises PydanticCustomError."""
    match = re.fullmatch(r"(\d{1,2})\.(\d)", text.strip())
    if match is None or not 8 <= int(match[1]) <= 19:
        raise mistake(f"{short(text)} is not a CUDA version", 'write major and minor in quotes: "12.4"')
    return int(match[1]), int(match[2])


def short(text: str) -> str:
    """Return a text fit for one line of an error: in quotes, without control characters, cut at 40 characters."""
    plain = "".join(letter if letter.isprintable() else "?" for letter in text)
    return f"`{plain[:40]}...`" if len(plain) > 40 else f"`{plain}`"


def _from_text(parse: Callable[[str], T], missing: str, advice: str, *kinds: type) -> PlainValidator:
    """Accept text, or from Python code the finished value. ``missing``: what a bare number lacks."""

    def validate(value: Any) -> Any:
        if isinstance(value, str):
            return parse(value)
        if isinstance(value, kinds) and not isinstance(value, bool):
            return value
        bare = isinstance(value, (int, float)) and not isinstance(value, bool)
        raise mistake(missing if bare else "a text is wanted here", advice)

    return PlainValidator(validate)


def _no_bare_number(value: Any, info: Any) -> Any:
    """A file says which unit it means; Python code hands over seconds."""
    if info.mode == "json" and isinstance(value, (int, float)) and not isinstance(value, bool):
        raise mistake("a number without its unit", f"write {value:g}s for seconds, or 10m, 1h30m, 2d")
    return value


def _positive(value: float) -> float:
    if value <= 0:
        raise mistake("a duration of 0 makes no sense here", "write a longer one, e.g. 10m")
    return value


def _plain_text(value: str) -> str:
    if "\0" in value:
        raise mistake("the text holds a NUL character", "remove it: no command line or variable can carry one")
    if not value.strip():
        raise mistake("the text is empty", "")
    return value


_DURATION_SCHEMA = {
    "type": "string",
    "pattern": r"^(\d+d)?(\d+h)?(\d+m)?(\d+(\.\d+)?s)?$",
    "minLength": 2,
    "examples": ["10m", "1h30m", "90s"],
}

DurationOrZero = Annotated[
    float,
    _from_text(parse_duration, "a number without its unit", _DURATION_ADVICE, int, float),
    BeforeValidator(_no_bare_number),
    PlainSerializer(duration_text, return_type=str, when_used="json"),
    WithJsonSchema(_DURATION_SCHEMA),
]
"""Seconds; written ``10m``. May be ``0s``."""

Duration = Annotated[DurationOrZero, AfterValidator(_positive)]
"""Seconds, more than 0; written ``10m``."""

Amount = Annotated[
    Money,
    _from_text(parse_money, "an amount without its currency", _MONEY_ADVICE, Money),
    PlainSerializer(str, return_type=str, when_used="json"),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": "^([0-9.]+ *(USD|CNY|RMB)|[$\u00a5\uffe5] *[0-9.]+)$",
            "examples": ["1.5 USD", "5 CNY"],
        }
    ),
]
"""Money; written ``1.5 USD``."""

Cuda = Annotated[
    tuple[int, int],
    _from_text(parse_cuda, "this is read as a number", 'write major and minor in quotes: "12.4"', tuple),
    PlainSerializer(lambda version: f"{version[0]}.{version[1]}", return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": r"^\d{1,2}\.\d$", "examples": ["12.4"]}),
]
"""A CUDA version; written ``"12.4"``."""

Text = Annotated[str, AfterValidator(_plain_text)]
"""A text with something in it and without NUL."""


def matching(pattern: str, message: str, hint: str = "", *, show: bool = True) -> Any:
    """Return a validator: the whole text must match. ``show=False`` keeps the value out of the error."""
    compiled = re.compile(pattern)

    def validate(value: str) -> str:
        if compiled.fullmatch(value) is None:
            raise mistake(f"{short(value)} {message}" if show else message, hint)
        return value

    return AfterValidator(validate)
