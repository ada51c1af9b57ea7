"""XLM-R (Conneau et al. 2020): RoBERTa over a SentencePiece vocabulary of 100 languages."""

from __future__ import annotations

from bertjax.families.family import Family
from bertjax.families.roberta import TEMPLATE, huggingface, sizes

XLM_ROBERTA = Family(
    name="xlm-roberta",
    title="XLM-R",
    presets=sizes("xlm-roberta", 250_002),
    heads=("mlm_head",),
    template=TEMPLATE,
    huggingface=huggingface("xlm-roberta", "XLMRoberta"),
)
