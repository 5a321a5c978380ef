"""What is wrong in a file: one line each, with the line of the file, the field, and what to write instead."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from provisioner.errors import ConfigError

Loc = tuple[str | int, ...]
"""A place in the data: ``("fallback", 0, "aws", "regions")``."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake. ``line`` counts from 1 and is None where the file has none to name."""

    file: str
    line: int | None
    field: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        """Return ``failover.yaml:12: fallback[0].aws.regions: message; hint``."""
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        what = f"{self.message}; {self.hint}" if self.hint else self.message
        return ": ".join(part for part in (place, self.field, what) if part)

    def as_json(self) -> dict[str, object]:
        """Return what ``failover config validate --json`` prints."""
        return asdict(self)


class ConfigMistakes(ConfigError):
    """Everything that is wrong in one file. ``str`` gives one line a mistake, in the order of the file."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        """Sort the mistakes by line."""
        self.mistakes = tuple(sorted(mistakes, key=lambda mistake: (mistake.line or 0, mistake.field)))
        super().__init__("\n".join(str(mistake) for mistake in self.mistakes))
