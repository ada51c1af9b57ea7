"""The fingerprint of an index changes with every option that changes vectors."""

from __future__ import annotations

from dataclasses import fields, replace

import jax
import numpy as np
import pytest
from exported_models import trained_model, wordpiece

from bertjax.config import ModelConfig
from bertjax.families.networks import abstract_network
from bertjax.model.network import bind
from bertjax.model.pooling import pool, token_vectors
from bertjax.search import index as index_module
from bertjax.search.index import forward_options, model_fingerprint


def test_fingerprint_changes_with_the_model(tmp_path):
    model = trained_model(tmp_path)
    other_weight = trained_model(tmp_path)
    other_weight.params["encoder"]["layers"]["mlp"]["output"]["bias"] += 1e-6
    other_head = trained_model(tmp_path)
    other_head.params["pooler"]["dense"]["bias"] += 1
    fingerprints = {
        "the same": model_fingerprint(trained_model(tmp_path), "mean"),
        "weight": model_fingerprint(other_weight, "mean"),
        "epsilon": model_fingerprint(trained_model(tmp_path, layer_norm_eps=1e-6), "mean"),
        "window": model_fingerprint(trained_model(tmp_path, window=4, global_every=2), "mean"),
        "vocabulary": model_fingerprint(trained_model(tmp_path, wordpiece(lowercase=False)), "mean"),
        "pooler": model_fingerprint(other_head, "pooler"),
    }
    assert fingerprints.pop("the same") == model_fingerprint(model, "mean") == model_fingerprint(other_head, "mean")
    assert len({model_fingerprint(model, "mean"), model_fingerprint(model, "pooler"), *fingerprints.values()}) == 7


BLOCKS = {"attention_block": 4, "random_blocks": 1}
RELATIVE = {"position_embedding": "relative", "relative_max": 8}
BUCKETS = RELATIVE | {"relative_buckets": 4}
WINDOWS = {"window": 4, "global_every": 0}
MASKED = {"token_dropout": 0.1, "mask_token_id": 3}
DEEP = {"norm_place": "pre", "residual_depth": 4}
SCORES = {"score_bias_buckets": 8}


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ({}, BLOCKS),
        (BLOCKS, {"attention_block": 5}),
        (BLOCKS, {"random_blocks": 2}),
        (BLOCKS, {"random_blocks_seed": 3}),
        (WINDOWS, {"global_tokens": "first"}),
        (BUCKETS, {"relative_max": 9}),
        (BUCKETS, {"relative_max": 4, "relative_buckets": 0}),
        ({"position_embedding": "sinusoidal"}, {"initializer_range": 0.03}),
        (MASKED, {"token_dropout": 0.2}),
        (MASKED, {"mask_token_id": 4}),
        (DEEP, {"residual_depth": 5}),
        (SCORES, {"score_bias_reach": 16}),
        (WINDOWS | {"global_every": 2}, {"first_global": 1}),
    ],
)
def test_fingerprint_changes_with_an_option(options, changed):
    model, other = ModelConfig(**SMALL | options), ModelConfig(**SMALL | options | changed)
    assert fingerprint_content(model) != fingerprint_content(other) and vector_program(model) != vector_program(other)


def fingerprint_content(model):
    """Get the content of a fingerprint except the values of weights."""
    return weight_shapes(model), {name: getattr(model, name) for name in forward_options(model)}


SMALL = {
    "vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12,
    "max_position_embeddings": 48, "vocab_pad_multiple": 1,
}  # fmt: skip
# All other fields, which change the shapes of weights or no vectors: (options of a model, another value).
OTHERS = {
    "family": ({}, "roberta"),
    "vocab_size": ({}, 21),
    "hidden_size": ({}, 16),
    "embedding_size": ({}, 4),
    "layer_groups": ({}, 1),
    "num_key_value_heads": ({}, 1),
    "intermediate_size": ({}, 16),
    "hidden_dropout_prob": ({}, 0.3),
    "attention_probs_dropout_prob": ({}, 0.3),
    "classifier_dropout_prob": ({}, 0.3),
    "max_position_embeddings": ({"position_embedding": "rope"}, 64),
    "type_vocab_size": ({}, 3),
    "task_type_vocab_size": ({}, 2),
    "relative_shared": (RELATIVE, True),
    "relative_norm": (RELATIVE, True),
    "score_bias_buckets": ({}, 8),
    "embedding_norm": ({}, "dropout_norm"),
    "norm_bias": ({}, False),
    "final_norm_bias": ({"norm_place": "pre"}, False),
    "qk_norm": ({}, True),
    "first_norm": ({"norm_place": "pre"}, False),
    "attention_bias": ({}, "query_value"),
    "mlp_bias": ({}, "output"),
    "head_bias": ({"mlp_bias": "none"}, "all"),
    "mlp": ({}, "glu"),
    "mlm_tied": ({}, False),
    "mlm_transform": ({}, "gelu"),
    "mlm_bias": ({}, False),
    "mlm_inner_size": ({"mlm_tied": False}, 8),
    "mlm_decoder": (RELATIVE, "enhanced"),
    "conv_kernel": ({}, 3),
    "global_projections": (WINDOWS | {"global_tokens": "first"}, True),
    "pooler": ({"head": "sequence", "num_labels": 2}, "none"),
    "task_heads": ({"head": "sequence", "num_labels": 2}, "deep"),
    "generator_width": ({"family": "electra"}, 0.5),
    "generator_layers": ({"family": "electra", "generator_width": 0.5}, 1),
    "embedding_sharing": ({"family": "electra", "generator_width": 0.5}, "gdes"),
    "rtd_context": ({"family": "electra"}, True),
    "teacher_width": ({}, 16),
    "initializer": ({}, "uniform"),
    "vocab_pad_multiple": ({}, 16),
    "head": ({}, "vector"),
    "num_labels": ({"head": "sequence", "num_labels": 2}, 3),
    "features": ({"head": "tokens", "num_labels": 2, "features": (1,)}, (0,)),
    "lstm_size": ({"head": "tokens", "num_labels": 2, "features": (1,)}, 4),
}


def weight_shapes(model):
    """Get the shapes of the arrays that a fingerprint covers."""
    shapes = abstract_network(model)[1]
    return jax.tree.map(lambda leaf: leaf.shape, {name: shapes.get(name) for name in ("encoder", "pooler")})


def vector_program(model):
    """Trace the program that computes vectors of texts; returns it with its constants."""
    graphdef, shapes, _ = abstract_network(model)
    shapes_used = {name: shapes[name] for name in ("encoder", "pooler") if name in shapes}
    unused = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)

    def vectors(params, ids):
        network = bind(graphdef, unused | params)
        tokens = token_vectors(network, ids, ids * 0, ids * 0 + 1, "last")
        return pool(network, tokens, ids > 0, "pooler" if "pooler" in params else "mean")

    program = jax.make_jaxpr(vectors)(shapes_used, jax.ShapeDtypeStruct((1, 40), np.int32))
    return str(program), [np.asarray(constant).tolist() for constant in program.consts]


def test_fingerprint_covers_every_option():
    every = [field.name for field in fields(ModelConfig)]
    conditional = [name for _, names in index_module._CONDITIONAL_FORWARD for name in names]
    assert sorted([*index_module._FORWARD, *conditional, *OTHERS]) == sorted(every)


@pytest.mark.parametrize("name", OTHERS)
def test_omitted_options_show_or_change_nothing(name):
    options, value = OTHERS[name]
    model = ModelConfig(**SMALL | options)
    other = replace(model, **{name: value})
    assert getattr(model, name) != value
    assert weight_shapes(model) != weight_shapes(other) or vector_program(model) == vector_program(other)
