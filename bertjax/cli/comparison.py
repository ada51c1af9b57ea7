"""The line that tells how far a converted model's outputs are from the original's."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bertjax.convert.compare import Difference


def comparison_line(reference: str, difference: Difference | None) -> str:
    """The result of a comparison with a reference implementation; None if there was no comparison."""
    if difference is None:
        return f"not compared with {reference}: it is not installed here, or the checkpoint lacks a head"
    return f"compared with {reference} on real text: {difference}"
