"""Quote values for the language they are put into. What is not quoted is not rendered (see :mod:`.render`)."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Final


class Quoted(str):
    """Text that is ready for its language. Templates print nothing but this and numbers."""

    __slots__ = ()


_HCL_ESCAPES: Final = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_FIRST_PRINTABLE: Final = 0x20
_DELETE: Final = 0x7F


def hcl(value: object) -> Quoted:
    """Return ``value`` (text, number, bool, None, list or map) as an HCL expression that means exactly it.

    Terraform itself brings text into Unicode's normal form C. Raises ValueError for what HCL cannot hold: NUL, lone
    surrogates, infinite numbers.
    """
    return Quoted(_expression(value))


def _expression(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _hcl_string(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        return json.dumps(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"({_hcl_string(str(k))}) = {_expression(v)}" for k, v in value.items()) + " }"
    if isinstance(value, Sequence):
        return "[" + ", ".join(_expression(item) for item in value) + "]"
    message = f"no HCL for a {type(value).__name__}"
    raise ValueError(message)


def _hcl_string(text: str) -> str:
    _refuse_unspeakable(text, "HCL")
    escaped = "".join(_hcl_character(character) for character in text)
    return '"' + escaped.replace("${", "$${").replace("%{", "%%{") + '"'


def _hcl_character(character: str) -> str:
    if character in _HCL_ESCAPES:
        return _HCL_ESCAPES[character]
    if ord(character) < _FIRST_PRINTABLE or ord(character) == _DELETE:
        return f"\\u{ord(character):04x}"
    return character


def sh(value: object) -> Quoted:
    """Return ``value`` (text or number) as one word for a POSIX shell. Raises ValueError for NUL."""
    text = str(value)
    _refuse_unspeakable(text, "a shell")
    return Quoted(shlex.quote(text))


def _refuse_unspeakable(text: str, language: str) -> None:
    if "\0" in text:
        message = f"text for {language} must not contain a NUL character"
        raise ValueError(message)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        message = f"text for {language} is not valid Unicode"
        raise ValueError(message) from error
