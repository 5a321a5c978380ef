"""How sizes, ages, durations and odd names are written, and read."""

from __future__ import annotations

import re

import click

_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_DURATION = re.compile(r"(?:(\d{1,5})d)?(?:(\d{1,6})h)?(?:(\d{1,7})m)?(?:(\d{1,9}(?:\.\d{1,3})?)s)?")
"""As in failover.yaml (``provisioner.config.values``), which is not imported here: pydantic would come with it."""


class DurationType(click.ParamType[float]):
    """``90s``, ``10m``, ``1h30m``, ``2d``, as seconds. ``0`` needs no unit."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read it, or fail with what to write."""
        if isinstance(value, int | float):
            return value
        text = str(value).strip()
        match = _DURATION.fullmatch(text)
        if text == "0":
            return 0.0
        if match is None or not any(match.groups()):
            self.fail(f"{plain(text)} is not a duration: write 90s, 10m, 1h30m or 2d", param, ctx)
        return sum(float(number or 0) * unit for number, unit in zip(match.groups(), _UNITS.values(), strict=True))


def plain(text: str) -> str:
    """Return a text that any terminal can show on one line: what is not printable becomes a question mark."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def plain_lines(text: str) -> str:
    """Return a text of several lines with each as ``plain`` makes it."""
    return "\n".join(map(plain, text.split("\n")))


def size_words(size: int) -> str:
    """Return ``1.5 GiB``."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def rate_words(size: int, seconds: float) -> str:
    """Return ``103.2 MiB/s``, of bytes and seconds."""
    return f"{size / 2**20 / max(seconds, 1e-6):.1f} MiB/s"


def age_words(seconds: float) -> str:
    """Return ``5s``, ``3m``, ``2h`` or ``4d``; a clock that is behind gives ``0s``."""
    for name, unit in _UNITS.items():
        if seconds >= 2 * unit or name == "s":
            return f"{max(0, int(seconds // unit))}{name}"
    return ""


def duration_words(seconds: float) -> str:
    """Return ``1h30m``."""
    left, text = round(seconds), ""
    for name, unit in _UNITS.items():
        count, left = divmod(left, unit)
        text += f"{count}{name}" if count else ""
    return text or "0s"


def metadata_words(metadata: object, width: int = 48) -> str:
    """Return ``val_loss=0.31 lr=0.001``, cut where it is long."""
    import json

    items = metadata.items() if isinstance(metadata, dict) else ()
    text = " ".join(
        f"{name}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}" for name, value in items
    )
    text = plain(text)
    return text if len(text) <= width else f"{text[: width - 3]}..."
