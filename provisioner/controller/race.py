"""Claims in several regions at the same time, for those who pay for speed: one machine is kept, the others go back.

What makes it right under ``kill -9``: the tokens of all claims follow from recorded values, so the same race asks again
for the same machines. No machine can start the job before it is chosen: the start object, which its user data links to,
is written for the chosen one alone. The choice is noted on disk before that, so a race that is run again keeps the
machine that may have started, and finds the others by their tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from provisioner.controller.beside import each
from provisioner.controller.records import Choice, Claimed, Surplus
from provisioner.model import Failure, Node, Offer


class Course(Protocol):
    """What a race needs of the world: one epoch and attempt of one job. No method raises for what a cloud does."""

    def prepare(self, offer: Offer) -> None:
        """Make the region ready. A failure is met again by the claim."""
        ...

    def claim(self, choice: Choice) -> Claimed:
        """Claim a machine that cannot start the job yet; the same machine when it is called again."""
        ...

    def lives(self, node: Node) -> bool:
        """Say whether a machine is there. After a crash a claim may give one that was given back before."""
        ...

    def choose(self, node: Node) -> Failure | None:
        """Note durably that this machine is kept, then let it start; or say why it cannot."""
        ...

    def chosen(self, choices: Sequence[Choice]) -> Choice | None:
        """Return what was noted as kept, where this race was run before."""
        ...

    def made(self, choices: Sequence[Choice]) -> Sequence[Claimed]:
        """Find what earlier claims of these choices made and is still there."""
        ...

    def give_back(self, node: Node) -> Surplus:
        """Release a machine that is not kept."""
        ...


def race(course: Course, choices: Sequence[Choice]) -> tuple[Claimed, ...]:
    """Claim all choices, which are in the order of the ranking, and keep the best machine of those that were given.

    Return the answers; the one with the kept machine, if any, is the last.
    """
    before = course.chosen(choices)
    if before is not None:
        kept = course.claim(before)
        answers = [kept, *course.made([choice for choice in choices if choice != before])]
    else:
        each(course.prepare, [choice.offer for choice in choices])  # first: a machine waits for its start only so long
        answers = each(course.claim, choices)
        kept = next((one for one in answers if one.node is not None and course.lives(one.node)), answers[0])
    refusal = course.choose(kept.node) if kept.node is not None else None

    def given_back(one: Claimed) -> Claimed:
        if one.node is None or (one is kept and refusal is None):
            return one
        return replace(one, node=None, surplus=course.give_back(one.node))

    *others, last = each(given_back, [*(one for one in answers if one is not kept), kept])
    return (*others, last if refusal is None else replace(last, failure=refusal))
