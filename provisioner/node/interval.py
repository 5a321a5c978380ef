"""How long to train between two checkpoints: Daly's rule, from what a save costs and how likely a loss is.

Source: J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", 2006.
"""

from __future__ import annotations

import math

LEAST_S = 20.0
MOST_S = 3600.0


def interval_s(cost_s: float, losses_per_hour: float, *, least_s: float = LEAST_S, most_s: float = MOST_S) -> float:
    """Return the seconds of training between the end of one save and the begin of the next, within the bounds.

    ``cost_s`` is what one save keeps the training from its work, in seconds.
    """
    if losses_per_hour <= 0.0:
        return most_s
    between = 3600.0 / losses_per_hour
    if cost_s >= 2.0 * between:
        best = between
    else:
        share = math.sqrt(cost_s / (2.0 * between))
        best = math.sqrt(2.0 * cost_s * between) * (1.0 + share / 3.0 + share * share / 9.0) - cost_s
    return min(most_s, max(least_s, best))
