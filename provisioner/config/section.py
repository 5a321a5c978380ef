"""What all sections of failover.yaml share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, WrapValidator

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
