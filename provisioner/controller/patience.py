"""How long is a machine waited for? Of what is silent, by its own rhythm and by what its cloud says of it."""

from __future__ import annotations

from dataclasses import dataclass

from provisioner.controller.rhythm import Rhythm
from provisioner.model import NodeState

LAST_WORDS_S = 20.0
"""A machine on its way out that is silent for this long has nothing more to say; one that is not may still save."""
UNKNOWN_S = 60.0
"""The silence that is suspicious while a node's rhythm is not known yet."""
RETRY_S = 10.0
"""What a node may need to write a heartbeat again: 8 s until it gives a try up, and its first pause."""
SILENT_S = 180.0
"""A machine that its cloud says is running, and that is silent for this long, is lost: its kernel hangs, or it does not
reach the store. Long enough for what passes by itself (a route that heals, a disk that was busy), short beside a start.
"""
UNASKED_S = 300.0
"""The same where the cloud cannot be asked either: then the next machine may not be had, nor this one given back."""
MOST_S = 600.0
"""No silence is waited out for longer, however slow the rhythm was."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait, in seconds: between looks, for a silent node, for a first sign of life.

    ``lost_after_s`` None: what a silence means is learned from the node's rhythm, and takes the cloud's word too.
    """

    poll_s: float
    lost_after_s: float | None
    boot_timeout_s: float
    heartbeat_s: float = 5.0

    @property
    def least_s(self) -> float:
        """What is seen no better: three heartbeats, at three looks."""
        return 3.0 * (self.poll_s + self.heartbeat_s)

    def suspicious_s(self, rhythm: Rhythm) -> float:
        """Return the silence that makes a node suspected."""
        learned = rhythm.suspicious_s(self.poll_s + RETRY_S)
        found = max(UNKNOWN_S, self.least_s) if learned is None else min(learned, max(MOST_S, self.least_s))
        return found if self.lost_after_s is None else min(found, self.lost_after_s)

    def lost_s(self, rhythm: Rhythm, state: NodeState | None) -> float:
        """Return the silence that makes a node lost which its cloud sees in this state; None: it cannot be asked."""
        if self.lost_after_s is not None:
            return self.lost_after_s
        usual = max(UNASKED_S if state is None else SILENT_S, self.least_s)
        return min(max(usual, 2.0 * self.suspicious_s(rhythm)), max(MOST_S, self.least_s))

    def due_s(self, rhythm: Rhythm) -> float:
        """Return the silence in which a heartbeat of a living node would have come, if none is very late."""
        return 1.5 * max(self.poll_s, rhythm.mean_s or self.heartbeat_s)

    def last_words_s(self, rhythm: Rhythm) -> float:
        """Return the silence after which a machine on its way out has nothing more to say."""
        return min(max(LAST_WORDS_S, 2.0 * (rhythm.mean_s or 0.0)), self.lost_s(rhythm, NodeState.STOPPING))
