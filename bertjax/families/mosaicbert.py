"""MosaicBERT (Portes et al. 2023): BERT with ALiBi in place of positions, and gated MLPs.

Source of the numbers: mosaicml/examples, `bert/src/bert_layers.py`. transformers has no class for it. MLP
dropout follows the second matrix, as in BERT; in the original it precedes the matrix.
"""

from __future__ import annotations

from bertjax.config import ModelConfig
from bertjax.families.family import Family

_BASE = ModelConfig(
    family="mosaicbert",
    attention_probs_dropout_prob=0.0,
    position_embedding="alibi",
    mlp="glu",
    mlp_bias="output",
    pooler="none",
)
MOSAICBERT = Family(
    name="mosaicbert", title="MosaicBERT", presets={"base": _BASE}, heads=("mlm_head",), huggingface=None
)
