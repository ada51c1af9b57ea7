"""SpanBERT (Joshi et al. 2020): BERT over single segments, also trained to predict hidden spans from their boundaries.

In transformers it is a BERT: its classes have no head for span boundaries.
"""

from __future__ import annotations

from dataclasses import replace

from bertjax.families.bert import BERT, SIZES
from bertjax.families.family import Family

_OF_BERT = BERT.huggingface
_MASKED_LM = _OF_BERT.partial[0]

SPANBERT = Family(
    name="spanbert",
    title="SpanBERT",
    presets={
        name: replace(preset, family="spanbert", vocab_size=28_996, pooler="none") for name, preset in SIZES.items()
    },
    heads=("mlm_head", "sbo_head"),
    huggingface=replace(
        _OF_BERT, pretraining=_MASKED_LM, partial=(), left_out=("sbo_head",), implied={"pooler": "none"}
    ),
)
