"""Check before any text is read that the data marks the units that the stages mask."""

from __future__ import annotations

from collections.abc import Sequence

from bertjax.config import DataConfig
from bertjax.input.masking.options import member
from bertjax.input.masking.units import UNITS, WORDS
from bertjax.text.units import listed_planes


def require_marked(stages: Sequence[DataConfig]) -> None:
    """Raise ValueError if the data marks no units for a `data.masking` of the run, or a list of units for none of them.

    `stages` are the data of all stages. What spans mark is known only when the text is read.
    """
    data = stages[0]
    listed = listed_planes(data)
    units = {stage.masking: member(UNITS, "masking", stage.masking).make(stage) for stage in stages}
    for name, unit in units.items():
        is_segmented = unit.plane == WORDS and data.segmenter != "none"
        if not unit.needs_plane or is_segmented or (data.units and listed is None):
            continue
        if unit.plane not in (listed or ()):
            raise ValueError(
                f"data.masking={name!r} with data.units={data.units!r}, data.segmenter={data.segmenter!r}: no unit of "
                "this kind is marked; give data.units that has them (data.segmenter for units), or set another "
                "data.masking"
            )
    if listed is not None and not listed & {unit.plane for unit in units.values()}:
        raise ValueError(
            f"data.units={data.units!r} with data.masking={', '.join(units)} has no effect: the list marks "
            f"{', '.join(sorted(listed))}; name the kinds of its units (word, phrase, entity) after a tab, set another "
            "data.masking, or leave the list out"
        )
