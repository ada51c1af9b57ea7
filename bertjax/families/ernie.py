"""Baidu's ERNIE (Sun et al. 2019): BERT with phrases and entities masked as a whole.

Version 1.0 hides words, then phrases, then entities, in three stages of one run (`data.masking` of a stage, and
`data.units`). Its published network has ReLU and a table of 513 positions.

Versions 2.0 and 3.0 add a table of tasks to the embeddings. Every token gets its first row here, as in transformers
without a task, so weights of these versions can be imported, fine-tuned and exported. Their pretraining on several
tasks is not implemented: capitalisation, token-document relation, sentence reordering and distance, discourse and
search relations of 2.0, and the two networks of 3.0; nor is the dialogue task of 1.0.

The published next-sentence label is 1 if B follows A, and ours is 0. Heads are read and written unchanged, so the
two outputs of a published model have swapped meanings.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bertjax.config import ModelConfig
from bertjax.families.bert import BERT, MLM, NSP, layers
from bertjax.families.family import Class, Family, Tensor, dense, tables
from bertjax.families.hf_config import HfConfig, read_fields, write_fields

_TASKS = Tensor("encoder/embeddings/task_type", "ernie.embeddings.task_type_embeddings.weight", optional=True)
_ENCODER = (*tables("ernie.embeddings"), _TASKS, *layers("ernie."))
_POOLER = dense("pooler/dense", "ernie.pooler.dense")

_BASE = ModelConfig(
    family="ernie", vocab_size=18_000, hidden_act="relu", max_position_embeddings=513, layer_norm_eps=1e-5
)
_ENGLISH = ModelConfig(family="ernie", type_vocab_size=4, task_type_vocab_size=16)


def _to_hf_config(model: ModelConfig) -> dict[str, Any]:
    rows = model.task_type_vocab_size
    return write_fields(model) | ({"task_type_vocab_size": rows} if rows else {}) | {"use_task_id": rows > 0}


def _from_hf_config(config: HfConfig) -> dict[str, Any]:
    rows = config.size("task_type_vocab_size", 3)
    return read_fields(config) | {"task_type_vocab_size": rows if config.get("use_task_id", False) else 0}


ERNIE = Family(
    name="ernie",
    title="ERNIE",
    presets={
        "base": _BASE,
        "base-v2": _ENGLISH,
        "large-v2": replace(
            _ENGLISH, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
        ),
        "base-v3": replace(
            _ENGLISH, vocab_size=40_000, max_position_embeddings=2048, task_type_vocab_size=3, layer_norm_eps=1e-5
        ),
    },
    heads=BERT.heads,
    huggingface=replace(
        BERT.transformers,
        model_type="ernie",
        prefix="ernie.",
        beginning="Ernie",
        encoder=_ENCODER,
        pooler=_POOLER,
        pretraining=Class(
            "ErnieForPreTraining",
            (*_ENCODER, *_POOLER, *MLM, *NSP),
            outputs={"mlm_head": "prediction_logits", "nsp_head": "seq_relationship_logits"},
        ),
        partial=(
            Class("ErnieForMaskedLM", (*_ENCODER, *MLM), outputs={"mlm_head": "logits"}),
            Class("ErnieForNextSentencePrediction", (*_ENCODER, *_POOLER, *NSP), outputs={"nsp_head": "logits"}),
        ),
        tied={
            "cls.predictions.decoder.weight": "ernie.embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
        to_hf_config=_to_hf_config,
        from_hf_config=_from_hf_config,
    ),
)
