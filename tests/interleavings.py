"""Every order in which several programs may use one store: explored without threads, as states.

Between two requests a program depends on nothing but the answers that it has had. So the code of each program is run
once for each row of answers, up to its next request, and what all programs together may do is a search through states
(what the store holds; how far each program is), each state once. In each of them a program may have stopped for ever.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import blake3

from provisioner.checkpoint.store import Stored

Content: TypeAlias = Mapping[str, bytes]
Request: TypeAlias = tuple[Any, ...]
ONE_PAGE = ("", "\x7f")
TWO_PAGES = ("", "8", "\x7f")
"""Where the pages of a listing begin and end, below its folder. Each page is what the store holds at its own time."""


def answer(request: Request, content: Content) -> tuple[Any, Content]:
    """Return what the store says, and what it holds afterwards."""
    verb, key, *rest = request
    if verb == "get":
        return content.get(key), content
    if verb == "exists":
        return key in content, content
    if verb == "range":
        data = content.get(key)
        start, length = rest
        return None if data is None else data[start : start + length], content
    if verb == "list":
        low, high = rest
        found = [name for name in content if f"{key}/{low}" <= name < f"{key}/{high}"]
        return tuple(Stored(name, len(content[name]), 0.0) for name in sorted(found)), content
    if verb == "put":
        return None, {**content, key: rest[0]}
    assert verb == "delete", verb
    return None, {name: data for name, data in content.items() if name != key}


class Pending(BaseException):
    """The program has come to a request whose answer is not known."""


class Asking:
    """Looks like a Store; ``ask`` answers one request at a time."""

    uri = "memory://"

    def __init__(self, ask: Callable[[Request], Any], pages: Sequence[str] = ONE_PAGE) -> None:
        self._ask = ask
        self._pages = pages

    def get(self, key: str) -> bytes | None:
        return self._ask(("get", key))

    def get_range(self, key: str, start: int, length: int, *, whole: bool = False) -> bytes | None:
        return self._ask(("range", key, start, length))

    def exists(self, key: str) -> bool:
        return self._ask(("exists", key))

    def put(self, key: str, data: Any) -> None:
        self._ask(("put", key, b"".join(data) if isinstance(data, list | tuple) else bytes(data)))

    def objects(self, folder: str) -> list[Stored]:
        pages = zip(self._pages, self._pages[1:], strict=False)
        return [stored for low, high in pages for stored in self._ask(("list", folder, low, high))]

    def delete(self, keys: Iterable[str]) -> None:
        for key in list(keys):
            self._ask(("delete", key))


class Plain(Asking):
    """A store that answers at once."""

    def __init__(self, content: Content) -> None:
        super().__init__(self._at_once)
        self.content = content

    def _at_once(self, request: Request) -> Any:
        said, self.content = answer(request, self.content)
        return said


class Tokens:
    """Stands in for ``secrets``: what is random is the same each time a program is run again."""

    def __init__(self) -> None:
        self.start("")

    def start(self, name: str) -> None:
        self._name, self._count = name, 0

    def token_hex(self, size: int) -> str:
        self._count += 1
        return blake3.blake3(f"{self._name} {self._count}".encode()).hexdigest(length=size)


class AtOnce(Executor):
    """Stands in for a pool of threads: what is submitted is done before anything else. Saves the time of threads."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def submit(self, work: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - as a pool does
            future.set_exception(error)
        return future


@dataclass(frozen=True, slots=True)
class Program:
    """A name, what it does with a store, and the beginnings of all keys that it may write or remove."""

    name: str
    run: Callable[[Any], Any]
    writes: tuple[str, ...]


class Result(NamedTuple):
    """How a program ended: what it returned, or raised."""

    value: Any
    error: Exception | None


class State(NamedTuple):
    """One moment: what the store holds, and the results of the programs, None for those that are not at their end."""

    content: Content
    results: tuple[Result | None, ...]


class _Place:
    """How far a program has come: the answers so far, and its next request or its result."""

    def __init__(self, number: int, answers: tuple[Any, ...]) -> None:
        self.number = number
        self.answers = answers
        self.request: Request | None = None
        self.result: Result | None = None
        self.settled = False
        """No answer matters any more."""
        self.steps: dict[int, tuple[int, int]] = {}
        """What follows, by the content of the store: the next place and the content then."""


class Explorer:
    """Visits every state that some order of the requests leads to."""

    def __init__(self, programs: Sequence[Program], tokens: Tokens, pages: Sequence[str] = ONE_PAGE) -> None:
        self._programs = programs
        self._tokens = tokens
        self._pages = pages
        self._contents: list[Content] = []
        self._known: dict[frozenset[tuple[str, bytes]], int] = {}
        self._places: list[_Place] = []
        self._found: dict[tuple[Any, ...], int] = {}
        self._alone: dict[tuple[int, int], bool] = {}
        self.states = 0

    @property
    def contents(self) -> Sequence[Content]:
        """What the store has held at some time in some order."""
        return self._contents

    def visit(self, content: Content) -> Iterator[State]:
        """Yield each state that matters once.

        A request whose answer no other program can change any more commutes with everything they do: it is made at
        once, and the other orders are left out.
        """
        start = (self._content(content), *(self._place(number, ()) for number in range(len(self._programs))))
        seen = {start}
        todo = [start]
        while todo:
            state = todo.pop()
            self.states += 1
            yield self._state(state)
            for number in self._choices(state):
                new = self._step(state, number)
                if new not in seen:
                    seen.add(new)
                    todo.append(new)

    def walk(self, content: Content, luck: random.Random) -> Iterator[State]:
        """Yield the states of one order, in which each program is by turns fast and slow."""
        state = (self._content(content), *(self._place(number, ()) for number in range(len(self._programs))))
        while True:
            self.states += 1
            yield self._state(state)
            ready = [number for number, place in enumerate(state[1:]) if self._places[place].request is not None]
            if not ready:
                return
            number = luck.choice(ready)
            for _ in range(luck.choice((1, 1, 2, 3, 8, 40))):
                if self._places[state[1 + number]].request is None:
                    break
                state = self._step(state, number)

    def _state(self, state: tuple[int, ...]) -> State:
        return State(self._contents[state[0]], tuple(self._places[place].result for place in state[1:]))

    def _choices(self, state: tuple[int, ...]) -> list[int]:
        ready = [number for number, place in enumerate(state[1:]) if self._places[place].request is not None]
        others = sum(1 << number for number in ready)
        for number in ready:
            mark = (state[1 + number], others)
            alone = self._alone.get(mark)
            if alone is None:
                alone = self._alone[mark] = self._is_alone(state[1 + number], [n for n in ready if n != number])
            if alone:
                return [number]
        return ready

    def _is_alone(self, place: int, others: Sequence[int]) -> bool:
        request = self._places[place].request
        assert request is not None
        verb, key, *_ = request
        written = [prefix for number in others for prefix in self._programs[number].writes]
        if verb == "list":
            return not any(prefix.startswith(f"{key}/") or f"{key}/".startswith(prefix) for prefix in written)
        return verb not in {"put", "delete"} and not any(key.startswith(prefix) for prefix in written)

    def _step(self, state: tuple[int, ...], number: int) -> tuple[int, ...]:
        place = self._places[state[1 + number]]
        step = place.steps.get(state[0])
        if step is None:
            assert place.request is not None
            said, after = answer(place.request, self._contents[state[0]])
            step = place.steps[state[0]] = self._place(number, (*place.answers, said)), self._content(after)
        return (step[1], *state[1 : 1 + number], step[0], *state[2 + number :])

    def _content(self, content: Content) -> int:
        mark = frozenset(content.items())
        if mark not in self._known:
            self._known[mark] = len(self._contents)
            self._contents.append(content)
        return self._known[mark]

    def _place(self, number: int, answers: tuple[Any, ...]) -> int:
        """Run a program from its beginning with these answers, up to the next request."""
        if (number, answers) in self._found:
            return self._found[number, answers]
        place = _Place(number, answers)
        left = iter(answers)

        def ask(request: Request) -> Any:
            if place.request is None:
                for said in left:
                    return list(said) if isinstance(said, list) else said
                place.request = request
            raise Pending

        program = self._programs[number]
        self._tokens.start(program.name)
        try:
            value = program.run(Asking(ask, self._pages))
            if place.request is None:
                place.result = Result(value, None)
        except Pending:
            pass
        except Exception as error:  # noqa: BLE001 - what a program raises is its result
            place.result = Result(None, error)
        place.settled = place.result is not None
        if place.request is not None and place.request[0] in {"put", "delete"}:
            assert place.request[1].startswith(program.writes), f"{program.name} writes {place.request[1]}"
        return self._same(place)

    def _same(self, place: _Place) -> int:
        """Return the number of a place. Those from which the same follows, whatever the store says, are one."""
        mark: tuple[Any, ...] = (place.number, place.answers)
        if place.result is not None:
            mark = (place.number, repr(place.result))
        elif place.request is not None and place.request[0] in {"put", "delete"}:
            after = self._place(place.number, (*place.answers, None))
            if self._places[after].settled:
                place.settled = True
                mark = (place.number, place.request, after)
        if mark not in self._found:
            self._places.append(place)
            self._found[mark] = len(self._places) - 1
        self._found[place.number, place.answers] = self._found[mark]
        return self._found[mark]
