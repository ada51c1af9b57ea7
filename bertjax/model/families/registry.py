"""The members of the family by name."""

from __future__ import annotations

import difflib

from bertjax.model.families.albert import ALBERT
from bertjax.model.families.bert import BERT
from bertjax.model.families.camembert import CAMEMBERT
from bertjax.model.families.family import Family
from bertjax.model.families.roberta import ROBERTA
from bertjax.model.families.spanbert import SPANBERT
from bertjax.model.families.xlm_roberta import XLM_ROBERTA

FAMILIES: dict[str, Family] = {
    family.name: family for family in (BERT, ROBERTA, XLM_ROBERTA, CAMEMBERT, ALBERT, SPANBERT)
}


def family_of(name: str) -> Family:
    """The member of that name. Raises ValueError for an unknown name, with the nearest one."""
    if name not in FAMILIES:
        near = difflib.get_close_matches(name, FAMILIES, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(FAMILIES)}"
        raise ValueError(f"model.family={name!r} is unknown; {hint}")
    return FAMILIES[name]
