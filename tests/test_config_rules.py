"""Each check of a config refuses an invalid value with its key, the value and what to do."""

from __future__ import annotations

import ast
import inspect
import math
import traceback
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from bertjax.config import Config, data, model, run, validate
from bertjax.config.bounds import Bounds
from bertjax.config.values import flatten, to_dict

TABLES: dict[str, Mapping[str, Bounds]] = {
    "model": model.MODEL_BOUNDS,
    "execution": model.EXECUTION_BOUNDS,
    "data": data.DATA_BOUNDS,
    "optimizer": run.OPTIMIZER_BOUNDS,
    "training": run.TRAINING_BOUNDS,
    "distillation": run.DISTILLATION_BOUNDS,
    "probe": run.PROBE_BOUNDS,
}
BOUNDS = {f"{part}.{name}": bounds for part, table in TABLES.items() for name, bounds in table.items()}
DEFAULTS = flatten(to_dict(Config()))


def config_with(changes: dict[str, Any]) -> Config:
    """The default config with other values at dotted keys."""
    config = Config()
    for key, value in changes.items():
        part, _, name = key.partition(".")
        config = replace(config, **{part: replace(getattr(config, part), **{name: value}) if name else value})
    return config


def outside(key: str) -> list[float]:
    """Numbers outside the bounds of a key: the nearest below and above, infinity and NaN."""
    bounds, is_whole = BOUNDS[key], isinstance(DEFAULTS[key], int)
    values = [bounds.low if bounds.above else bounds.low - 1, -math.inf, math.inf, math.nan]
    if bounds.high < 1e300:
        values.append(bounds.high if bounds.below else bounds.high + 1)
    return [value for value in values if not is_whole or math.isfinite(value)]


@pytest.mark.parametrize(("key", "value"), [(key, value) for key in BOUNDS for value in outside(key)])
def test_validate_refuses_a_value_outside_its_bounds(key, value):
    with pytest.raises(ValueError) as error:
        validate(config_with({key: value}))
    assert str(error.value) == f"{key}={value} must be {BOUNDS[key]}"


@pytest.mark.parametrize("key", BOUNDS)
def test_bounds_hold_defaults_and_edges(key):
    bounds = BOUNDS[key]
    assert DEFAULTS[key] == "auto" or bounds.hold(DEFAULTS[key])
    assert bounds.hold(bounds.low) is not bounds.above
    assert bounds.hold(bounds.high) is not bounds.below


def test_bounds_are_reported_as_intervals():
    texts = {key: str(BOUNDS[key]) for key in ("training.steps", "optimizer.eps", "data.held_out", "data.vocab_size")}
    assert texts == {
        "training.steps": "a finite number of at least 1",
        "optimizer.eps": "a finite number above 0",
        "data.held_out": "in [0, 1)",
        "data.vocab_size": "in [1, 4,194,304]",
    }


# Rule -> values that break it, and a part of the message.
BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "heads divide the width": ({"model.num_attention_heads": 7}, "model.hidden_size=768 is not divisible by"),
    "no more groups than layers": (
        {"model.layer_groups": 13},
        "model.layer_groups=13 is above model.num_hidden_layers=12",
    ),
    "window needs a layer that has it": (
        {"model.window": 64},
        "model.window=64 has no effect with model.global_every=1",
    ),
    "rotation needs an even head": (
        {"model.position_embedding": "rope", "model.hidden_size": 36},
        "even number of dims in a head; model.hidden_size=36 and model.num_attention_heads=12 give 3; change one",
    ),
    "rotation options need rotation": (
        {"model.rope_interleaved": True},
        "options of rotation (model.rope_interleaved=True) require model.position_embedding='rope', not 'learned'",
    ),
    "local theta needs a window": (
        {"model.position_embedding": "rope", "model.rope_theta_local": 100.0},
        "model.rope_theta_local=100 requires model.window; set",
    ),
    "distances need relative positions": (
        {"model.relative_buckets": 8},
        "model.position_embedding='learned' with model.relative_max=0, model.relative_buckets=8",
    ),
    "convolution has an odd width": ({"model.conv_kernel": 4}, "model.conv_kernel=4 must be odd"),
    "enhanced decoder needs plain layers": (
        {"model.mlm_decoder": "enhanced", "model.norm_place": "pre"},
        "this model has model.norm_place='pre', model.layer_groups=0, model.window=0, model.attention_block=0; change",
    ),
    "generator options need a generator": (
        {"model.embedding_sharing": "gdes"},
        "model.embedding_sharing='gdes' require model.generator_width; set it",
    ),
    "repeated steps exclude a budget": (
        {"training.spike_deviations": 8.0, "training.budget": "1h"},
        "training.spike_deviations=8 excludes training.budget='1h'",
    ),
    "probes leave time in a budget": (
        {"probe.attention": True, "probe.share": 1.0, "training.budget": "1h"},
        "probe.share=1 with training.budget='1h': probes may take all of the time; lower the share",
    ),
    "scaled branches need pre-norm": (
        {"model.residual_depth": 36},
        "model.residual_depth=36 requires model.norm_place='pre', not 'post'; set it",
    ),
    "norms of queries exclude shared keys": (
        {"model.qk_norm": True, "model.num_key_value_heads": 4},
        "model.num_key_value_heads=4, model.rope_interleaved=False; change",
    ),
    "rms norm has no bias": ({"model.norm": "rms"}, "model.norm='rms' has no bias; set model.norm_bias=False"),
    "dropping the first norm needs pre-norm": (
        {"model.first_norm": False},
        "this model has model.norm_place='post', model.layer_groups=0, model.num_hidden_layers=12; change",
    ),
    "untied output has the layers' width": (
        {"model.mlm_tied": False, "model.embedding_size": 128},
        "this model has model.embedding_size=128, model.generator_width=0.0",
    ),
    "key-value heads divide the heads": (
        {"model.num_key_value_heads": 5},
        "model.num_key_value_heads=5 is not a proper divisor of model.num_attention_heads=12",
    ),
    "grouped queries have no relative positions": (
        {"model.num_key_value_heads": 4, "model.position_embedding": "relative", "model.relative_max": 64},
        "model.num_key_value_heads=4 excludes model.position_embedding='relative'",
    ),
    "the first global layer is in the first period": (
        {"model.window": 64, "model.global_every": 3, "model.first_global": 3},
        "model.first_global=3 must be below model.global_every=3",
    ),
    "biases of scores need whole rows": (
        {"model.score_bias_buckets": 32, "model.max_position_embeddings": 2048},
        "model.max_position_embeddings of at most 1024, not 2048",
    ),
    "inner layers of the MLM head need an untied one": (
        {"model.mlm_inner_size": 64},
        "model.mlm_inner_size=64 requires model.mlm_tied=False",
    ),
    "active sources are sources": (
        {"data.active_sources": ("text:other",)},
        "data.active_sources: 'text:other' is not one of data.sources",
    ),
    "active sources exclude weights": (
        {"data.sources": ("text:a", "text:b"), "data.active_sources": ("text:a",), "data.weights": (1.0, 2.0)},
        "data.active_sources=('text:a',) excludes data.weights=(1.0, 2.0)",
    ),
    "global_every needs a window": (
        {"model.global_every": 3},
        "model.global_every=3 requires model.window; set it, or model.global_every=1",
    ),
    "global tokens need windows": (
        {"model.global_tokens": "first"},
        "model has model.window=0, model.global_every=1, model.causal=False, model.position_embedding='learned'",
    ),
    "global projections need global tokens": (
        {"model.global_projections": True},
        "model.global_projections=True requires model.global_tokens; set",
    ),
    "global first token excludes packing": (
        {"model.global_tokens": "first", "model.window": 4, "model.global_every": 0, "data.packing": "pairs"},
        "model.global_tokens='first' excludes data.packing='pairs'",
    ),
    "blocks exclude windows": (
        {"model.attention_block": 64, "model.random_blocks": 3, "model.position_embedding": "rope"},
        "this model has model.window=0, model.causal=False, model.position_embedding='rope'",
    ),
    "random blocks need blocks": (
        {"model.random_blocks": 3},
        "model.random_blocks=3 and model.attention_block=0 require each other; set both (BigBird: 3 and 64) or neither",
    ),
    "blocks exclude packing": (
        {"model.attention_block": 16, "model.random_blocks": 1, "data.packing": "pairs"},
        "data.packing='pairs' excludes model.attention_block=16 with data.sequence_length=128",
    ),
    "rows fit the position table": ({"data.sequence_length": 1024}, "sequence_length=1024 is beyond the model's"),
    "rows have room for two segments": ({"data.sequence_length": 4}, "sequence_length=4 is too short for two segments"),
    "one weight for each source": ({"data.weights": (1.0,)}, "give one for each of the 0 data.sources"),
    "weights are shares": (
        {"data.sources": ("docs",), "data.weights": (-1.0,)},
        "data.weights=(-1.0,): none may be below 0, and not all of them 0",
    ),
    "weights exclude a temperature": (
        {"data.sources": ("docs",), "data.weights": (1.0,), "data.temperature": 0.5},
        "data.temperature=0.5 excludes data.weights=(1.0,); give one of them",
    ),
    "encoding is known": (
        {"data.encoding": "latin-9000"},
        "data.encoding='latin-9000' is unknown; give a Python encoding, such as utf-8, cp1252 or shift_jis",
    ),
    "segmenter needs word masking": (
        {"data.segmenter": "jieba"},
        "data.segmenter='jieba' has no effect with data.masking='tokens'; mask whole words or units",
    ),
    "units need unit masking": (
        {"data.units": "spans:entities"},
        "data.units='spans:entities' has no effect with data.masking='tokens'; mask whole words or units",
    ),
    "unknown characters need WordPiece": (
        {"data.unknown": "characters", "data.tokenizer": "unigram"},
        "data.unknown='characters' requires data.tokenizer='wordpiece', not 'unigram'; leave it at 'words'",
    ),
    "entity map needs WordPiece": (
        {"data.entity_map": "map.tsv", "data.tokenizer": "bpe"},
        "data.entity_map='map.tsv' requires data.tokenizer='wordpiece', not 'bpe'; leave it at ''",
    ),
    "prefix_space needs byte-level BPE": (
        {"data.prefix_space": False, "data.sources": ("text:x",)},
        "data.prefix_space=False requires data.tokenizer='byte_bpe', not 'wordpiece'; leave it at True",
    ),
    "special token names need byte-level BPE": (
        {"data.special_tokens": "[CLS]"},
        "data.special_tokens='[CLS]' requires data.tokenizer='byte_bpe', not 'wordpiece'; leave it at '<s>'",
    ),
    "segmenter needs WordPiece": (
        {"data.segmenter": "jieba", "data.masking": "words", "data.tokenizer": "unigram"},
        "data.segmenter='jieba' requires data.tokenizer='wordpiece', not 'unigram'; leave it at 'none'",
    ),
    "full_sentences excludes a mixture": (
        {"data.rows": "full_sentences", "data.temperature": 0.5, "training.objectives": ("mlm",)},
        "excludes data.weights=(), data.temperature=0.5 and data.active_sources=()",
    ),
    "sampling of groups needs groups": (
        {"data.sampling": "groups"},
        "data.sampling='groups' requires data.groups; give a file or a column of groups",
    ),
    "sampling of groups excludes a mixture": (
        {"data.sampling": "groups", "data.groups": "file:a.tsv", "data.temperature": 0.5},
        "data.sampling='groups' excludes data.weights=(), data.temperature=0.5 and data.rows='full_sentences' (here",
    ),
    "augmentation needs rows of records": (
        {"data.augment": ("reverse_complement",)},
        "data.augment=('reverse_complement',) requires rows of records; set data.rows to crops or pieces, not 'pairs'",
    ),
    "augmentation excludes marked units": (
        {
            "data.augment": ("reverse_complement",),
            "data.rows": "crops",
            "data.units": "spans:entities",
            "data.masking": "units",
            "training.objectives": ("mlm",),
        },
        "excludes data.units='spans:entities' and data.segmenter='none', which mark tokens of the text as it was",
    ),
    "causal models predict the next token": ({"data.predict": "next"}, "data.predict='next' with model.causal=False"),
    "microbatches divide the batch": ({"training.grad_accum_steps": 3}, "not divisible by training.grad_accum_steps=3"),
    "mask_power excludes special tokens": (
        {"data.mask_power": 0.7, "data.mask_special": True},
        "data.mask_power=0.7 excludes data.mask_special=True, because special tokens have no count in the text; set",
    ),
    "kept and random shares fit into one": (
        {"data.keep_share": 0.6, "data.random_share": 0.5},
        "data.keep_share=0.6 and data.random_share=0.5 are shares",
    ),
    "decay_shape needs a stable phase": (
        {"optimizer.decay_shape": "1-sqrt"},
        "optimizer.decay_shape='1-sqrt' requires optimizer.schedule='warmup_stable_decay', not 'linear'; leave",
    ),
    "decay_steps need a stable phase": (
        {"optimizer.decay_steps": 5},
        "optimizer.decay_steps=5 requires optimizer.schedule='warmup_stable_decay', not 'linear'; leave it at 0",
    ),
    "decay begins after the warm-up": (
        {"optimizer.schedule": "warmup_stable_decay", "optimizer.decay_steps": 999_999},
        "optimizer.warmup_steps=10000 and optimizer.decay_steps=999999 are more than the 1000000 steps of the schedule",
    ),
    "warm-up ends before the run": (
        {"optimizer.warmup_steps": 10**6},
        "warmup_steps=1000000 must be below training.steps=1000000",
    ),
    "init_layers need init_from": (
        {"init_from": "runs/teacher", "init_layers": (0, 2)},
        "init_layers=(0, 2) requires init_from, and one layer for each of model.num_hidden_layers=12",
    ),
    "features are layers of the model": (
        {"model.head": "tokens", "model.num_labels": 2, "model.features": (-1, 13)},
        "model.features=(-1, 13): the model has no layer 13; choose from 1 to 12",
    ),
    "weights gathered by layer are recomputed": (
        {"execution.gather": "layer"},
        "execution.gather='layer' with execution.remat='none': the backward pass would keep the gathered weights",
    ),
}


def checks() -> dict[tuple[str, int], str]:
    """(file, line) of each `raise` in the check functions of the parts of a config -> its source."""
    raises = {}
    for module in (model, data, run):
        source = inspect.getsource(module)
        for function in ast.parse(source).body:
            if isinstance(function, ast.FunctionDef):
                for node in ast.walk(function):
                    if isinstance(node, ast.Raise):
                        raises[str(inspect.getsourcefile(module)), node.lineno] = ast.unparse(node)
    return raises


def test_every_check_has_a_config_that_breaks_it():
    untested = checks()
    for changes, _ in BROKEN.values():
        with pytest.raises(ValueError) as error:
            validate(config_with(changes))
        for frame in traceback.extract_tb(error.value.__traceback__):
            untested.pop((frame.filename, frame.lineno or 0), None)
    assert not untested


@pytest.mark.parametrize("name", BROKEN)
def test_broken_rule_is_reported(name):
    changes, message = BROKEN[name]
    with pytest.raises(ValueError) as error:
        validate(config_with(changes))
    assert message in str(error.value)


def test_default_config_is_valid():
    assert validate(Config()) == Config()
