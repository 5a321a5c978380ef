"""``policy.failback``: when a job that left goes home to the primary."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from provisioner.config.section import Section
from provisioner.config.values import Duration, DurationOrZero, matching, mistake

_CLOCK = r"([01]\d|2[0-3]):[0-5]\d"
Mode = Literal["auto", "ask", "never"]


class FailbackConfig(Section):
    """When to go home, and how carefully."""

    mode: Mode = Field(
        default="auto",
        description="`auto`: the job goes home when a card has been there for `after` and the move pays. `ask`: that "
        "is only told, and `failover home JOB` moves it. `never`: it goes home only when its fallback machine is lost.",
    )
    after: DurationOrZero = Field(
        default=600.0, description="How long the primary must have had a card. Pro tells no stock: there a try decides."
    )
    every: Duration = Field(default=60.0, description="How often the primary's stock is asked; a fifth more or less.")
    again: Duration = Field(
        default=900.0,
        description="Pause after a try that came to nothing: at Pro only a try tells whether there is a card.",
    )
    per_day: Annotated[int, Field(ge=0, le=100)] = Field(default=4, description="Most moves home in 24 hours.")
    quiet: (
        Annotated[str, matching(f"{_CLOCK}-{_CLOCK}", "is no span of the day", 'write it as "22:00-07:00", in quotes')]
        | None
    ) = Field(
        default=None,
        description="Span of the day, by this machine's clock, in which no job moves by itself.",
        examples=["22:00-07:00"],
    )
    trial: Duration = Field(
        default=900.0,
        description="How long the command has for its first step at home, before the fallback is asked to stop.",
    )
    handover: Duration = Field(
        default=120.0, description="How long the command has for its last checkpoint on the fallback machine."
    )

    @model_validator(mode="before")
    @classmethod
    def _one_word(cls, value: Any) -> Any:
        """``true`` and ``auto`` stand for the defaults, ``false`` and ``never`` for staying away."""
        if isinstance(value, bool):
            value = "auto" if value else "never"
        if value is None or isinstance(value, int | float | list):
            raise mistake("this is neither a word nor a section", "write auto, ask or never, or its keys below it")
        return {"mode": value} if isinstance(value, str) else value

    def is_quiet(self, minute: int) -> bool:
        """Say whether a minute of the day, from 0 to 1439, is in the quiet span."""
        if self.quiet is None:
            return False
        begin, end = (int(hour) * 60 + int(rest) for hour, rest in re.findall(r"(\d\d):(\d\d)", self.quiet))
        return begin <= minute < end if begin <= end else minute >= begin or minute < end


class _OrOneWord:
    """Lets editors take the one word, too."""

    @staticmethod
    def __get_pydantic_json_schema__(schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"enum": ["auto", "ask", "never", True, False]}, handler(schema)]}


Failback = Annotated[FailbackConfig, _OrOneWord]
"""A section, or one word for its mode."""
