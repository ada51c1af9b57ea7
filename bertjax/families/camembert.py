"""CamemBERT (Martin et al. 2020): RoBERTa over French text and a SentencePiece vocabulary."""

from __future__ import annotations

from bertjax.families.family import Family
from bertjax.families.roberta import TEMPLATE, huggingface, sizes

CAMEMBERT = Family(
    name="camembert",
    title="CamemBERT",
    presets=sizes("camembert", 32_005),
    heads=("mlm_head",),
    template=TEMPLATE,
    huggingface=huggingface("camembert", "Camembert"),
)
