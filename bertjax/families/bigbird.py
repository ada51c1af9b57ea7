"""BigBird (Zaheer et al. 2020, arXiv 2007.14062): a block attends to its neighbours, both ends and random blocks.

The random blocks of each layer and head are drawn once from `model.random_blocks_seed` and are the same in training and
evaluation, as in google-research/bigbird. transformers' class uses other blocks. In training it draws them from NumPy's
generator, seeded with the number of the layer. In evaluation it takes block 0 every time, so that a key of block 0
counts 1 + random times in all blocks but the ends.

An imported folder is read as transformers evaluates it (a seed of -1); set the seed for further training. `config.json`
keeps the seed, but transformers does not read it. An export therefore computes the same as the run only in rows of up
to (5 + 2 random) blocks (704 tokens for the published sizes), where attention is full. In longer rows transformers uses
other random blocks, as it does with the authors' weights.

The tokens that a token attends to depend on the length of its row, including padding, because rows are split into
blocks. The original has no dropout on attention probabilities: set `model.attention_probs_dropout_prob` to 0 to match.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bertjax.config import ModelConfig
from bertjax.families.bert import MLM, NSP, layers
from bertjax.families.family import Class, Family, HuggingFace, dense, norm, tables
from bertjax.families.hf_config import HfConfig, read_fields, write_fields

_ENCODER = (*tables("bert.embeddings"), *layers("bert."))
_POOLER = dense("pooler/dense", "bert.pooler")
_ANSWER = (
    *dense("inner/mlp/intermediate", "qa_classifier.intermediate.dense"),
    *dense("inner/mlp/output", "qa_classifier.output.dense"),
    *norm("inner/norm", "qa_classifier.output.LayerNorm"),
    *dense("head/dense", "qa_classifier.qa_outputs"),
)
_BLOCK, _RANDOM = 64, 3  # tokens per block and random blocks per block in the published models
_SPARSE, _FULL = "block_sparse", "original_full"
_SEED = "bertjax_random_blocks_seed"  # our own key
_LIKE_TRANSFORMERS = -1


_CONSTANTS = {"use_bias": True, "rescale_embeddings": False}
_ARCHITECTURE: dict[str, Any] = {"embedding_norm": "dropout_norm", "task_heads": "deep"}


def _to_hf_config(model: ModelConfig) -> dict[str, Any]:
    written = write_fields(model) | _CONSTANTS
    if not model.attention_block:
        return written | {"attention_type": _FULL}
    written |= {
        "attention_type": _SPARSE,
        "block_size": model.attention_block,
        "num_random_blocks": model.random_blocks,
    }
    seed = model.random_blocks_seed
    return written if seed == _LIKE_TRANSFORMERS else written | {_SEED: seed}


def _from_hf_config(config: HfConfig) -> dict[str, Any]:
    config.require(_CONSTANTS)
    defaults = {"vocab_size": 50_358, "hidden_act": "gelu_new", "max_position_embeddings": 4096}
    fields = read_fields(config, defaults=defaults, causal=False) | _ARCHITECTURE
    kind = config.get("attention_type", _SPARSE)
    if kind == _FULL:
        return fields
    if kind != _SPARSE:
        raise ValueError(f"{config.where}: attention_type is {kind!r}; bertjax has {_SPARSE!r} and {_FULL!r}")
    return fields | {
        "attention_block": config.integer("block_size", _BLOCK, least=1),
        "random_blocks": config.integer("num_random_blocks", _RANDOM, least=1),
        "random_blocks_seed": config.integer(_SEED, _LIKE_TRANSFORMERS, least=-1, most=2**63),
    }


_BASE = ModelConfig(
    family="bigbird",
    vocab_size=50_358,
    hidden_act="gelu_tanh",
    max_position_embeddings=4096,
    attention_block=_BLOCK,
    random_blocks=_RANDOM,
    **_ARCHITECTURE,
)

BIGBIRD = Family(
    name="bigbird",
    title="BigBird",
    presets={
        "base": _BASE,
        "large": replace(_BASE, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096),
    },
    heads=("pooler", "mlm_head", "nsp_head"),
    huggingface=HuggingFace(
        model_type="big_bird",
        prefix="bert.",
        beginning="BigBird",
        encoder=_ENCODER,
        pooler=_POOLER,
        pretraining=Class(
            "BigBirdForPreTraining",
            (*_ENCODER, *_POOLER, *MLM, *NSP),
            outputs={"mlm_head": "prediction_logits", "nsp_head": "seq_relationship_logits"},
        ),
        partial=(Class("BigBirdForMaskedLM", (*_ENCODER, *_POOLER, *MLM), outputs={"mlm_head": "logits"}),),
        own_heads={
            "ForSequenceClassification": (
                *_POOLER,
                *dense("inner/dense", "classifier.dense"),
                *dense("head/dense", "classifier.out_proj"),
            ),
            "ForTokenClassification": (*_POOLER, *dense("head/dense", "classifier")),
            "ForQuestionAnswering": _ANSWER,
        },
        tied={
            "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
        to_hf_config=_to_hf_config,
        from_hf_config=_from_hf_config,
        token_ids={"pad_token_id": "pad", "bos_token_id": "cls", "eos_token_id": "sep", "sep_token_id": "sep"},
    ),
)
