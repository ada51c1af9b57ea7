"""SpanBERT (Joshi et al. 2020): BERT over single segments, also trained to predict masked spans from their boundaries.

In transformers it is a BERT: its classes have no head for span boundaries.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bertjax.families.bert import BERT, SIZES
from bertjax.families.family import Family
from bertjax.families.hf_config import HfConfig, read_fields

_BERT = BERT.transformers
_MASKED_LM = _BERT.partial[0]


def _from_hf_config(config: HfConfig) -> dict[str, Any]:
    return read_fields(config) | {"pooler": "none"}


SPANBERT = Family(
    name="spanbert",
    title="SpanBERT",
    presets={
        name: replace(preset, family="spanbert", vocab_size=28_996, pooler="none") for name, preset in SIZES.items()
    },
    heads=("mlm_head", "sbo_head"),
    huggingface=replace(
        _BERT, pretraining=_MASKED_LM, partial=(), left_out=("sbo_head",), from_hf_config=_from_hf_config
    ),
)
