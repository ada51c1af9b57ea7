"""Every entry of the tables of rules refuses what it is about, with its key, its value and what to do."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from bertjax.config import Config, validate
from bertjax.config.bounds import BOUNDS
from bertjax.config.rules import RULES, value_at


def config_with(changes: dict[str, Any]) -> Config:
    """The default config with other values at dotted keys."""
    config = Config()
    for key, value in changes.items():
        part, _, name = key.partition(".")
        config = replace(config, **{part: replace(getattr(config, part), **{name: value}) if name else value})
    return config


def outside(key: str) -> list[float]:
    """Numbers that the bounds of a key do not hold: the nearest below and above, infinity and NaN."""
    bounds, is_whole = BOUNDS[key], isinstance(value_at(Config(), key), int)
    found = [bounds.low if bounds.above else bounds.low - 1, -math.inf, math.inf, math.nan]
    if bounds.high < 1e300:
        found.append(bounds.high if bounds.below else bounds.high + 1)
    return [value for value in found if not is_whole or math.isfinite(value)]


@pytest.mark.parametrize(("key", "value"), [(key, value) for key in BOUNDS for value in outside(key)])
def test_a_value_outside_its_bounds_is_refused(key, value):
    with pytest.raises(ValueError) as error:
        validate(config_with({key: value}))
    assert str(error.value) == f"{key}={value} must be {BOUNDS[key]}"


@pytest.mark.parametrize("key", BOUNDS)
def test_defaults_and_edges_are_inside(key):
    bounds = BOUNDS[key]
    assert bounds.hold(value_at(Config(), key))
    assert bounds.hold(bounds.low) is not bounds.above
    assert bounds.hold(bounds.high) is not bounds.below


def test_bounds_are_reported_as_intervals():
    told = {key: str(BOUNDS[key]) for key in ("training.steps", "optimizer.eps", "data.held_out", "data.vocab_size")}
    assert told == {
        "training.steps": "a finite number of at least 1",
        "optimizer.eps": "a finite number above 0",
        "data.held_out": "in [0, 1)",
        "data.vocab_size": "in [1, 4,194,304]",
    }


# Rule -> values that break it, and what is said of them.
BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "heads divide the width": ({"model.num_attention_heads": 7}, "model.hidden_size=768 is not divisible by"),
    "groups have layers": ({"model.layer_groups": 13}, "model.layer_groups=13 is above model.num_hidden_layers=12"),
    "a window belongs to some layers": ({"model.window": 64}, "every layer is global and none has the window; set"),
    "pairs of dims are rotated": (
        {"model.position_embedding": "rope", "model.hidden_size": 36},
        "rotates pairs of dims, and a head has 3 (model.hidden_size=36 over model.num_attention_heads=12); change one",
    ),
    "options of rotation are of a rotation": (
        {"model.rope_interleaved": True},
        "model.rope_interleaved=True with model.position_embedding='learned': nothing is rotated",
    ),
    "a local theta is of windows": (
        {"model.position_embedding": "rope", "model.rope_theta_local": 100.0},
        "model.rope_theta_local=100 with model.window=0: no layer has a window; set",
    ),
    "distances belong to relative positions": (
        {"model.relative_buckets": 8},
        "model.position_embedding='learned' with model.relative_max=0, model.relative_buckets=8",
    ),
    "a convolution has a middle": ({"model.conv_kernel": 4}, "model.conv_kernel=4 with model.layer_groups=0"),
    "an enhanced decoder runs a last layer": (
        {"model.mlm_decoder": "enhanced", "model.norm_place": "pre"},
        "model.mlm_decoder='enhanced' with model.norm_place='pre', model.layer_groups=0, model.window=0, "
        "model.attention_block=0: it runs the last of layers",
    ),
    "options of a generator are of one": (
        {"model.embedding_sharing": "gdes"},
        "model.embedding_sharing='gdes' with model.generator_width=0: there is no generator",
    ),
    "a root mean square has no bias": ({"model.norm": "rms"}, "norm_bias=True: this norm has a scale alone; set model"),
    "the first norm is one of pre": (
        {"model.first_norm": False},
        "model.first_norm=False with model.norm_place='post', model.layer_groups=0, model.num_hidden_layers=12: layer",
    ),
    "a matrix of its own is as wide as the layers": (
        {"model.mlm_tied": False, "model.embedding_size": 128},
        "model.mlm_tied=False with model.embedding_size=128, model.generator_width=0.0: both are of a head tied",
    ),
    "a period of layers is of windows": (
        {"model.global_every": 3},
        "model.global_every=3 with model.window=0: no layer has a window; set model.window, or model.global_every=1",
    ),
    "global tokens need windows": (
        {"model.global_tokens": "first"},
        "model.global_tokens='first' with model.window=0, model.global_every=1, model.causal=False, model.position_emb",
    ),
    "projections of global tokens are of some": (
        {"model.global_projections": True},
        "model.global_projections=True with model.global_tokens='none': no token would use them; set",
    ),
    "the first token is that of a row": (
        {"model.global_tokens": "first", "model.window": 4, "model.global_every": 0, "data.packing": "pairs"},
        "model.global_tokens='first' with data.packing='pairs': nothing says on the device where the sequences",
    ),
    "blocks exclude windows": (
        {"model.attention_block": 64, "model.random_blocks": 3, "model.position_embedding": "rope"},
        "model.attention_block=64 with model.window=0, model.causal=False, model.position_embedding='rope': blocks are",
    ),
    "random blocks are of blocks": (
        {"model.random_blocks": 3},
        "model.random_blocks=3 with model.attention_block=0: set both (BigBird: 3 and 64) or neither",
    ),
    "blocks are those of one sequence": (
        {"model.attention_block": 16, "model.random_blocks": 1, "data.packing": "pairs"},
        "data.packing='pairs' with model.attention_block=16 and data.sequence_length=128: blocks are those of a row",
    ),
    "rows fit the position table": ({"data.sequence_length": 1024}, "sequence_length=1024 is beyond the model's"),
    "rows hold two segments": ({"data.sequence_length": 4}, "sequence_length=4 is too short for two segments"),
    "a weight for each source": ({"data.weights": (1.0,)}, "give one for each of the 0 data.sources"),
    "weights or a temperature": (
        {"data.sources": ("docs",), "data.weights": (1.0,), "data.temperature": 0.5},
        "data.temperature=0.5 with data.weights=(1.0,): give one of them",
    ),
    "text has a known encoding": (
        {"data.encoding": "latin-9000"},
        "data.encoding='latin-9000' is unknown; give one of Python's, as utf-8, cp1252 or shift_jis",
    ),
    "words for a segmenter": ({"data.segmenter": "jieba"}, "with data.masking='tokens' has no effect"),
    "units for a masking": (
        {"data.units": "spans:entities"},
        "data.units='spans:entities' with data.masking='tokens' has no effect; set data.masking, or that of a stage",
    ),
    "unknown characters are WordPiece's": (
        {"data.unknown": "characters", "data.tokenizer": "unigram"},
        "data.unknown='characters' with data.tokenizer='unigram': it is WordPiece's option; leave it at 'words'",
    ),
    "an entity map is WordPiece's": (
        {"data.entity_map": "map.tsv", "data.tokenizer": "bpe"},
        "data.entity_map='map.tsv' with data.tokenizer='bpe': it is WordPiece's option; leave it out",
    ),
    "a bare start is byte-level BPE's": (
        {"data.prefix_space": False, "data.sources": ("text:x",)},
        "data.prefix_space=False with data.tokenizer=",
    ),
    "names of special tokens are byte-level BPE's": (
        {"data.special_tokens": "[CLS]"},
        "data.special_tokens='[CLS]' with data.tokenizer='wordpiece': it is byte-level BPE's option; leave it at '<s>'",
    ),
    "a segmenter is WordPiece's": (
        {"data.segmenter": "jieba", "data.masking": "words", "data.tokenizer": "unigram"},
        "data.segmenter='jieba' with data.tokenizer='unigram': it is WordPiece's option; leave it at 'none'",
    ),
    "a mixture has no next document": (
        {"data.rows": "full_sentences", "data.temperature": 0.5, "training.objectives": ("mlm",)},
        "data.weights=(), data.temperature=0.5: a row goes on",
    ),
    "causal models predict the next token": ({"data.predict": "next"}, "data.predict='next' with model.causal=False"),
    "microbatches divide the batch": ({"training.grad_accum_steps": 3}, "not divisible by training.grad_accum_steps=3"),
    "rare tokens are tokens of text": (
        {"data.mask_power": 0.7, "data.mask_special": True},
        "data.mask_power=0.7 with data.mask_special=True: special tokens have no count in the text; set one",
    ),
    "kept and random tokens are shares of one": (
        {"data.keep_share": 0.6, "data.random_share": 0.5},
        "data.keep_share=0.6 and data.random_share=0.5 are shares",
    ),
    "a shape of decay is of a stable schedule": (
        {"optimizer.decay_shape": "1-sqrt"},
        "optimizer.decay_shape='1-sqrt' with optimizer.schedule='linear': it is of 'warmup_stable_decay'; leave",
    ),
    "a length of decay is of a stable schedule": (
        {"optimizer.decay_steps": 5},
        "optimizer.decay_steps=5 with optimizer.schedule='linear': it is of 'warmup_stable_decay'; leave it at 0",
    ),
    "the decay begins after the warm-up": (
        {"optimizer.schedule": "warmup_stable_decay", "optimizer.decay_steps": 999_999},
        "optimizer.warmup_steps=10000 and optimizer.decay_steps=999999 are more than the 1000000 steps of the schedule",
    ),
    "the warm-up ends before the run": ({"optimizer.warmup_steps": 10**6}, "warmup_steps=1000000 leaves nothing of"),
    "layers to start as are of a model": (
        {"init_from": "runs/teacher", "init_layers": (0, 2)},
        "init_layers=(0, 2) with init_from='runs/teacher': name a model, and one of its layers for each",
    ),
    "features are layers of the model": (
        {"model.head": "tokens", "model.num_labels": 2, "model.features": (-1, 13)},
        "model.features=(-1, 13): the model has no layer 13; choose from 1 to 12",
    ),
}


def test_every_rule_is_shown_a_config_that_breaks_it():
    assert sorted(BROKEN) == sorted(RULES)


@pytest.mark.parametrize("name", RULES)
def test_a_broken_rule_says_what_to_do(name):
    changes, message = BROKEN[name]
    config = config_with(changes)
    assert not RULES[name].holds(config)
    with pytest.raises(ValueError) as error:
        validate(config)
    assert message in str(error.value)


def test_the_default_breaks_none():
    assert validate(Config()) == Config()
    assert all(rule.holds(Config()) for rule in RULES.values())
