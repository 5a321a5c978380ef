"""Read a YAML file as data with the line of every value, and refuse what YAML should not do to an operator.

Keys stay the text that is written (``on`` and ``007`` are keys, not a truth and a number). Values follow YAML 1.1 as
PyYAML reads it, but each keeps its text, so that an error can say "quote it".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from provisioner.config.mistakes import Loc, Mistake
from provisioner.config.values import short

MAX_BYTES = 1 << 20
"""A failover.yaml is a page of text. What is larger is another file, and is refused before it is parsed."""

_MAX_VALUES = 10_000
_MAX_DEPTH = 40
_STR, _NULL = "tag:yaml.org,2002:str", "tag:yaml.org,2002:null"
_MERGE = "tag:yaml.org,2002:merge"
_READ_AS = {
    "tag:yaml.org,2002:bool": "a truth value",
    "tag:yaml.org,2002:int": "a number",
    "tag:yaml.org,2002:float": "a number",
    _NULL: "nothing",
}
_KNOWN = frozenset({*_READ_AS, _STR, "tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:value", _MERGE})


@dataclass(frozen=True, slots=True)
class Scalar:
    """A value as it is written, and what YAML takes it for (empty: a text)."""

    text: str
    read_as: str


@dataclass
class Document:
    """The data of a file, the line of each key or item, and the text of each scalar."""

    data: Any
    lines: dict[Loc, int] = field(default_factory=dict)
    scalars: dict[Loc, Scalar] = field(default_factory=dict)

    def line(self, loc: Loc) -> int:
        """Return the line of a value, or of the nearest thing around it that is in the file."""
        while loc and loc not in self.lines:
            loc = loc[:-1]
        return self.lines.get(loc, 1)


class Unreadable(Exception):
    """The file is not one YAML mapping. Carries the mistakes found, at least one."""

    def __init__(self, mistakes: list[Mistake]) -> None:
        """Keep the mistakes."""
        super().__init__(f"{len(mistakes)} mistakes")
        self.mistakes = mistakes


def read(content: bytes, file: str) -> Document:
    """Parse the content of a file. Raises Unreadable."""

    def refuse(line: int | None, message: str, hint: str = "") -> Unreadable:
        return Unreadable([Mistake(file, line, "", message, hint)])

    text = _decode(content, refuse)
    try:
        root = _compose(text)
    except _TooMuch as error:
        raise refuse(error.line, str(error), "a failover.yaml is a page of text: is this the right file?") from None
    except yaml.YAMLError as error:
        raise refuse(*_why(error, text)) from None
    if root is None or (isinstance(root, ScalarNode) and not root.value.strip()):
        raise refuse(1, "the file is empty", "`failover init` writes one to begin with")
    if not isinstance(root, MappingNode):
        kind = "a list" if isinstance(root, SequenceNode) else "a single value"
        raise refuse(_line(root), f"{kind} stands at the top", "write sections: job:, checkpoint:, fallback:")
    reader = _Reader(file)
    data = reader.value(root, ())
    if reader.mistakes:
        raise Unreadable(reader.mistakes)
    reader.document.data = data
    return reader.document


def _decode(content: bytes, refuse: Callable[..., Unreadable]) -> str:
    if len(content) > MAX_BYTES:
        raise refuse(
            None, "the file is larger than 1 MiB", "a failover.yaml is a page of text: is this the right file?"
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise refuse(line, "the file is not UTF-8", "save it as UTF-8 in your editor") from None


class _TooMuch(Exception):
    """More, or deeper, than a configuration can be."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


class _Loader(yaml.SafeLoader):
    """PyYAML's composer with a limit to nodes and depth, checked before it goes deeper."""

    depth = 0
    count = 0

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        """Compose one node."""
        self.depth += 1
        self.count += 1
        line = self.peek_event().start_mark.line + 1  # type: ignore[no-untyped-call]
        if self.depth > _MAX_DEPTH:
            raise _TooMuch(f"values are nested deeper than {_MAX_DEPTH} levels", line)
        if self.count > _MAX_VALUES:
            raise _TooMuch(f"the file holds more than {_MAX_VALUES} values", line)
        node: Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _compose(text: str) -> Node | None:
    loader = _Loader(text)
    try:
        node: Node | None = loader.get_single_node()
        return node
    finally:
        loader.dispose()


def _why(error: yaml.YAMLError, text: str) -> tuple[int | None, str, str]:
    """Turn PyYAML's several lines into line, message and hint."""
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1
        return line, f"a character of code {error.character} is not allowed in YAML", "remove it"
    if not isinstance(error, yaml.MarkedYAMLError):
        return None, f"this is not YAML: {' '.join(str(error).split())}", ""
    mark = error.problem_mark or error.context_mark
    at = mark.line + 1 if mark else None
    problem = str(error.problem)
    if isinstance(error, ComposerError) and "single document" in str(error.context):
        return at, "a second document begins here", "keep one job a file, without `---` between"
    if "'\\t'" in problem:
        return at, "a tab stands where YAML wants spaces", "indent with spaces"
    context = f" ({error.context})" if error.context else ""
    return at, f"this is not YAML: {' '.join((problem + context).split())}", _advice(problem)


def _advice(problem: str) -> str:
    if "mapping values are not allowed" in problem:
        return "check the indentation, and quote texts that hold `: `"
    if "undefined alias" in problem:
        return "quote texts that begin with *"
    return "check indentation, brackets and quotes"


def _line(node: Node) -> int:
    line: int = node.start_mark.line + 1
    return line


class _Reader:
    """Turns nodes into data. Every visit counts, so aliases that multiply are stopped while they do."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.document = Document(None)
        self.mistakes: list[Mistake] = []
        self._visits = 0
        self._open: list[Node] = []

    def value(self, node: Node, loc: Loc) -> Any:
        """Return the data of a node."""
        self._visits += 1
        self.document.lines.setdefault(loc, _line(node))
        if self._visits > _MAX_VALUES or len(self._open) > _MAX_DEPTH:
            much = (
                f"deeper than {_MAX_DEPTH} levels"
                if self._visits <= _MAX_VALUES
                else f"to more than {_MAX_VALUES} values"
            )
            raise self._refuse(node, f"aliases expand {much}", "write out what is meant")
        if any(node is outer for outer in self._open):
            raise self._refuse(node, "an anchor holds an alias of itself", "remove the alias")
        self._open.append(node)
        try:
            if isinstance(node, MappingNode):
                return self._mapping(node, loc)
            if isinstance(node, SequenceNode):
                self._known_tag(node, loc, "tag:yaml.org,2002:seq")
                return [self.value(item, (*loc, index)) for index, item in enumerate(node.value)]
            return self._scalar(node, loc)
        finally:
            self._open.pop()

    def _mapping(self, node: MappingNode, loc: Loc) -> dict[str, Any]:
        self._known_tag(node, loc, "tag:yaml.org,2002:map")
        data: dict[str, Any] = {}
        first: dict[str, int] = {}
        merged: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, ScalarNode):
                self._add(key, loc, "a key is not a text", "check indentation and brackets")
                continue
            if key.tag == _MERGE and key.style is None:
                merged |= self._merge(value, loc)
                continue
            name = key.value.encode("utf-8", "replace").decode()
            if name in first:
                self._add(
                    key, (*loc, name), f"the key stands here twice, first in line {first[name]}", "keep one of them"
                )
                continue
            first[name] = _line(key)
            self.document.lines[*loc, name] = _line(key)
            data[name] = self.value(value, (*loc, name))
        return {**{name: value for name, value in merged.items() if name not in data}, **data}

    def _merge(self, node: Node, loc: Loc) -> dict[str, Any]:
        """``<<: *base``: the keys of another mapping; those written here win."""
        sources = node.value if isinstance(node, SequenceNode) else [node]
        found: dict[str, Any] = {}
        for source in sources:
            if not isinstance(source, MappingNode):
                self._add(node, loc, "`<<` takes a mapping or a list of them", "write <<: *anchor")
                continue
            for name, value in self.value(source, loc).items():
                found.setdefault(name, value)
        return found

    def _scalar(self, node: Node, loc: Loc) -> Any:
        text = str(node.value)
        quoted = isinstance(node, ScalarNode) and node.style is not None
        self.document.scalars[loc] = Scalar(text, "" if quoted else _READ_AS.get(node.tag, ""))
        self._known_tag(node, loc)
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            self._add(node, loc, "the text holds half a character (a lone surrogate)", "remove the escape")
        if node.tag == _NULL:
            return None
        if node.tag not in _READ_AS:
            return text
        try:
            return yaml.SafeLoader("").construct_object(node)
        except (ValueError, ConstructorError):
            self._add(node, loc, f"{short(text)} cannot be read as {_READ_AS[node.tag]}", "quote it if it is a text")
            return None

    def _known_tag(self, node: Node, loc: Loc, *expected: str) -> None:
        if node.tag not in (expected or _KNOWN):
            tag = node.tag.replace("tag:yaml.org,2002:", "!!")
            self._add(node, loc, f"the tag {short(tag)} is not used here", "remove it and write plain values")

    def _refuse(self, node: Node, message: str, hint: str) -> Unreadable:
        return Unreadable([Mistake(self.file, _line(node), "", message, hint)])

    def _add(self, node: Node, loc: Loc, message: str, hint: str) -> None:
        self.mistakes.append(Mistake(self.file, _line(node), dotted(loc), message, hint))


def dotted(loc: Loc) -> str:
    """Return ``fallback[0].aws.regions`` for ``("fallback", 0, "aws", "regions")``."""
    text = ""
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            name = part if part.replace("_", "").isalnum() else short(part)
            text += f".{name}" if text else name
    return text
