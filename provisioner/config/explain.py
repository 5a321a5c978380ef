"""Turn what pydantic says into mistakes that an operator can mend."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from provisioner.config.document import Document, dotted
from provisioner.config.mistakes import Loc, Mistake
from provisioner.config.names import closest, did_you_mean
from provisioner.config.values import short

_WANTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "decimal_type": "a number",
    "decimal_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a section with keys",
    "model_attributes_type": "a section with keys",
}
_HINTS = {
    "tuple_type": "write [one, two], or one line each beginning with -",
    "dict_type": "write NAME: value, one line each",
    "model_type": "write its keys below it, indented",
}
_SECRET_PLACES = ("env", "secrets", "access_key_id_env", "secret_access_key_env", "session_token_env")


def explain(errors: Iterable[ErrorDetails], document: Document, file: str, root: type[BaseModel]) -> Iterator[Mistake]:
    """Yield one mistake for each error that is not only the echo of another one."""
    found = [(error, _place(error["loc"], document)) for error in errors]
    misspelt = {
        (*loc[:-1], meant)
        for error, loc in found
        if error["type"] == "extra_forbidden" and (meant := closest(str(loc[-1]), _keys(loc[:-1], root)))
    }
    told = set()
    for error, loc in found:
        if error["type"] == "too_short" and error["input"]:
            continue  # pydantic counts the valid items; each invalid one has its own line
        if error["type"] == "missing" and loc in misspelt:
            continue  # its misspelling has a line
        if error["type"] == "missing" and loc in document.scalars:
            if loc not in told:
                yield Mistake(file, document.line(loc), dotted(loc), *_empty(loc, found))
            told.add(loc)
            continue
        message, hint = _words(error, loc, document, root)
        yield Mistake(file, document.line(loc), dotted(loc), message, hint)


def _place(loc: Loc, document: Document) -> Loc:
    """Drop what pydantic adds to a place and the file does not have: marks of keys, words of a command in one text."""
    loc = tuple(part for part in loc if part != "[key]")
    while loc[:-1] in document.scalars:
        loc = loc[:-1]
    return loc


def _words(error: ErrorDetails, loc: Loc, document: Document, root: type[BaseModel]) -> tuple[str, str]:
    kind, context = error["type"], error.get("ctx", {})
    if kind == "failover":
        return _clock_time(error, loc, document) or (str(context["message"]), str(context["hint"]))
    if kind == "missing":
        return "this is missing", _example(loc, root) or f"add {loc[-1]}:"
    if kind == "extra_forbidden":
        known = _keys(loc[:-1], root)
        return "unknown key", did_you_mean(str(loc[-1]), known) or f"known keys are {', '.join(known)}"
    if kind == "string_type":
        return _not_a_text(loc, document)
    if kind == "literal_error":
        return _not_a_choice(error, context, loc)
    if kind == "too_short":
        return "the list is empty", _example(loc, root) or "write at least one"
    if kind in {"greater_than_equal", "greater_than", "less_than_equal", "less_than"}:
        return _out_of_range(kind, context, loc, document)
    return _not_a(kind, error, loc, document)


def _empty(loc: Loc, found: Iterable[tuple[ErrorDetails, Loc]]) -> tuple[str, str]:
    """Name all that a section without keys lacks."""
    lacking = [str(error["loc"][-1]) for error, place in found if place == loc and error["type"] == "missing"]
    return "the section is empty", f"write below it, indented: {', '.join(f'{name}:' for name in lacking)}"


def _clock_time(error: ErrorDetails, loc: Loc, document: Document) -> tuple[str, str] | None:
    """Explain ``12:00``, which YAML 1.1 reads as 720."""
    scalar = document.scalars.get(loc)
    if scalar is None or ":" not in scalar.text or scalar.read_as != "a number" or _is_secret(loc):
        return None
    return f"YAML reads {short(scalar.text)} as the number {error['input']}", "write hours and minutes: 1h30m"


def _not_a(kind: str, error: ErrorDetails, loc: Loc, document: Document) -> tuple[str, str]:
    wanted, scalar = _WANTED.get(kind), document.scalars.get(loc)
    if wanted is None:
        return error["msg"].lower(), ""
    if scalar is None or not scalar.text or _is_secret(loc):
        return f"{wanted} is wanted here", _HINTS.get(kind, "")
    quoted_number = not scalar.read_as and "number" in wanted and scalar.text.replace(".", "", 1).isdigit()
    hint = "remove the quotes" if quoted_number else _HINTS.get(kind, "")
    return f"{short(scalar.text)} is not {wanted}", hint


def _not_a_text(loc: Loc, document: Document) -> tuple[str, str]:
    scalar = document.scalars.get(loc)
    if scalar is None:
        return "a text is wanted here", ""
    if not scalar.text.strip() or scalar.read_as == "nothing":
        return "a text is wanted here, not nothing", 'write "" for an empty one' if "env" in loc else ""
    if _is_secret(loc):
        return f"the value is read as {scalar.read_as}", "quote it"
    return f"{short(scalar.text)} is read as {scalar.read_as}", f'quote it: "{scalar.text[:40]}"'


def _not_a_choice(error: ErrorDetails, context: dict[str, Any], loc: Loc) -> tuple[str, str]:
    known = [word.strip("' ") for word in str(context["expected"]).replace(" or ", ",").split(",")]
    given = error["input"]
    choices = f"write {', '.join(known[:-1])} or {known[-1]}"
    if not isinstance(given, str) or _is_secret(loc):
        return "this is not one of the choices", choices
    return f"{short(given)} is not one of the choices", did_you_mean(given, known) or choices


def _out_of_range(kind: str, context: dict[str, Any], loc: Loc, document: Document) -> tuple[str, str]:
    words = {
        "greater_than_equal": ("ge", "at least"),
        "greater_than": ("gt", "more than"),
        "less_than_equal": ("le", "at most"),
        "less_than": ("lt", "less than"),
    }
    key, text = words[kind]
    scalar = document.scalars.get(loc)
    given = f"{short(scalar.text)} is out of range" if scalar else "this is out of range"
    return given, f"write {text} {float(str(context[key])):g}"


def _is_secret(loc: Loc) -> bool:
    return any(part in _SECRET_PLACES for part in loc)


def _example(loc: Loc, root: type[BaseModel]) -> str:
    model = _model_at(loc[:-1], root)
    field = _fields(model).get(str(loc[-1])) if model else None
    if field is None or not field.examples:
        return ""
    value = field.examples[0]
    text = f"[{', '.join(value)}]" if isinstance(value, list) else str(value)
    return f"for example {loc[-1]}: {text}"


def _keys(loc: Loc, root: type[BaseModel]) -> list[str]:
    model = _model_at(loc, root)
    return list(_fields(model)) if model else []


def _fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the fields by the keys that a file has for them."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _model_at(loc: Loc, root: type[BaseModel]) -> type[BaseModel] | None:
    """Return the section that stands at a place."""
    model: type[BaseModel] | None = root
    for part in loc:
        if isinstance(part, str) and model is not None:
            field = _fields(model).get(part)
            model = _section(field.annotation) if field else None
    return model


def _section(annotation: Any) -> type[BaseModel] | None:
    """Find the section inside ``X | None``, ``tuple[X, ...]`` or ``Annotated[X, ...]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _section(inner))), None)
