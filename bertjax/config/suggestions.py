"""Suggestions for unknown names in error messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggestion(name: str, known: Iterable[str], otherwise: str = "", count: int = 1) -> str:
    """Suggest the most similar known names, at most `count`; if there is none, return `otherwise` or list all names.

    As in "did you mean bert?" and "choose from bert, roberta". Case is ignored, and the beginning of a name is enough.
    """
    known = [*known]
    lowered = {other.lower(): other for other in known}
    near = difflib.get_close_matches(name.lower(), lowered, count)
    near = near or [other for other in lowered if name and other.startswith(name.lower())][:count]
    if near:
        return f"did you mean {' or '.join(lowered[other] for other in near)}?"
    return otherwise or f"choose from {', '.join(known)}"
