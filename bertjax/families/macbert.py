"""MacBERT (Cui et al. 2020): BERT that corrects similar words in place of [MASK], and predicts sentence order.

In transformers it is a BERT: `cls.seq_relationship` predicts whether two sentences are in order.
"""

from __future__ import annotations

from dataclasses import replace

from bertjax.families.bert import BERT, SIZES
from bertjax.families.family import Class, Family, dense

_BERT = BERT.transformers
_MASKED_LM = _BERT.partial[0]
_SOP = dense("sop_head/dense", "cls.seq_relationship")

MACBERT = Family(
    name="macbert",
    title="MacBERT",
    presets={name: replace(preset, family="macbert", vocab_size=21_128) for name, preset in SIZES.items()},
    heads=("pooler", "mlm_head", "sop_head"),
    huggingface=replace(
        _BERT,
        pretraining=Class(
            "BertForPreTraining",
            (*_MASKED_LM.tensors, *_BERT.pooler, *_SOP),
            outputs={"mlm_head": "prediction_logits", "sop_head": "seq_relationship_logits"},
        ),
        partial=(_MASKED_LM,),
    ),
)
