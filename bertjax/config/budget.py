"""Parse time budgets to seconds."""

from __future__ import annotations

import math
import re

_SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_BUDGET = re.compile("".join(rf"(?:(?P<{unit}>\d+(?:\.\d+)?){unit})?" for unit in _SECONDS), re.ASCII)
SHORTEST_BUDGET, LONGEST_BUDGET = 20, 366 * 86_400


def budget_seconds(budget: str) -> float:
    """Parse `training.budget` to seconds: 90s, 10m, 1.5h, 1h30m, 2d.

    Raises ValueError for other text, and for a time that is too short or too long for a run.
    """
    match = _BUDGET.fullmatch(budget)
    if not budget or not match:
        raise ValueError(
            f"training.budget={budget!r} is not a duration; write a number with its unit, as in 90s, 10m, 2h, 1h30m "
            "or 1d"
        )
    seconds = math.fsum(float(match[unit] or 0) * size for unit, size in _SECONDS.items())
    if not SHORTEST_BUDGET <= seconds <= LONGEST_BUDGET:
        raise ValueError(
            f"training.budget={budget!r} is {seconds:,g} seconds; give {SHORTEST_BUDGET}s to "
            f"{LONGEST_BUDGET // 86_400}d, or a number of steps with --training.steps"
        )
    return seconds
