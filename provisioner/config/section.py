"""What all sections of failover.yaml share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, WithJsonSchema, WrapValidator

from provisioner.config.values import Duration, duration_text

T = TypeVar("T")
Names = Annotated[tuple[T, ...], Field(strict=False)]
"""A list of the file, kept as a tuple: pydantic's strict mode takes none behind a validator of ours."""


class Section(BaseModel):
    """What all sections share: unknown keys are mistakes, values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def word(text: str, value: Any) -> WrapValidator:
    """Let one word stand for a value that the type itself does not have."""

    def validate(given: Any, handler: Callable[[Any], Any]) -> Any:
        return value if given == text else handler(given)

    return WrapValidator(validate)


DurationOrAuto = Annotated[
    Duration | None,
    word("auto", None),
    PlainSerializer(lambda seconds: "auto" if seconds is None else duration_text(seconds), when_used="json"),
    WithJsonSchema({"type": "string", "pattern": r"^(auto|(\d+d)?(\d+h)?(\d+m)?(\d+(\.\d+)?s)?)$", "minLength": 2}),
]
"""Seconds, more than 0; None, written ``auto``, leaves the time to the program."""
