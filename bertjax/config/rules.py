"""What a config must meet before anything is done with it: bounds of single values, and rules between several.

Each rule is one entry of a table; tests/test_config_rules.py shows every entry a config that it refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bertjax.config.bounds import BOUNDS
from bertjax.config.credentials import refuse_credentials_within
from bertjax.config.data import DataConfig
from bertjax.config.model import ModelConfig
from bertjax.config.rescale import seconds_of
from bertjax.config.run import Config
from bertjax.config.skips import check_skips
from bertjax.config.values import to_dict

# Values of `model.position_embedding` that no layer knows of.
_BELOW_LAYERS = ("learned", "sinusoidal", "none")
_NO_ROTATION = (ModelConfig.rope_theta, ModelConfig.rope_theta_local, ModelConfig.rope_interleaved)


@dataclass(frozen=True)
class Rule:
    """A condition between several keys."""

    holds: Callable[[Config], bool]
    says: Callable[[Config], str]  # where it does not: the keys, their values and what to do


def _beyond(model: ModelConfig) -> list[int]:
    """The features that are no layers of the model."""
    depth = model.num_hidden_layers
    return [layer for layer in model.features if not -depth - 1 <= layer <= depth]


def _of_distances(model: ModelConfig) -> bool:
    """Whether the options of relative positions are consistent, or all are unset without relative positions."""
    if model.position_embedding != "relative":
        return not (model.relative_max or model.relative_buckets or model.relative_shared or model.relative_norm)
    buckets = model.relative_buckets
    sound = not buckets or (buckets % 2 == 0 and buckets // 2 < model.relative_max - 1)
    return model.relative_max > 0 and sound and not model.window and not model.causal


def _hides_units(config: Config) -> bool:
    """Whether more than single tokens are hidden together, in the run or in one of its stages."""
    return config.data.masking != DataConfig.masking or any(stage.masking for stage in config.stages)


def _is_encoding(name: str) -> bool:
    """Whether Python has an encoding of text of this name."""
    try:
        "".encode(name)
    except (LookupError, ValueError):  # unknown, or one of bytes
        return False
    return True


RULES: dict[str, Rule] = {
    "heads divide the width": Rule(
        lambda c: c.model.hidden_size % c.model.num_attention_heads == 0,
        lambda c: (
            f"model.hidden_size={c.model.hidden_size} is not divisible by "
            f"model.num_attention_heads={c.model.num_attention_heads}; change one of them"
        ),
    ),
    "groups have layers": Rule(
        lambda c: c.model.layer_groups <= c.model.num_hidden_layers,
        lambda c: (
            f"model.layer_groups={c.model.layer_groups} is above "
            f"model.num_hidden_layers={c.model.num_hidden_layers}; change one of them"
        ),
    ),
    "a window belongs to some layers": Rule(
        lambda c: not c.model.window or c.model.global_every != 1,
        lambda c: (
            f"model.window={c.model.window} with model.global_every=1: every layer is global and none has the window; "
            "set model.global_every to 0 for a window in every layer, or to 2 or more"
        ),
    ),
    "a period of layers is of windows": Rule(
        lambda c: c.model.window > 0 or c.model.global_every == 1,
        lambda c: (
            f"model.global_every={c.model.global_every} with model.window=0: no layer has a window; set model.window, "
            "or model.global_every=1"
        ),
    ),
    "global tokens need windows": Rule(
        lambda c: (
            c.model.global_tokens == "none"
            or (
                c.model.window > 0
                and c.model.global_every == 0
                and not c.model.causal
                and c.model.position_embedding in _BELOW_LAYERS
            )
        ),
        lambda c: (
            f"model.global_tokens={c.model.global_tokens!r} with model.window={c.model.window}, "
            f"model.global_every={c.model.global_every}, model.causal={c.model.causal}, "
            f"model.position_embedding={c.model.position_embedding!r}: they are of a model with a window in every "
            f"layer and positions in its embeddings; set model.window, model.global_every=0 and one of {_BELOW_LAYERS}"
        ),
    ),
    "projections of global tokens are of some": Rule(
        lambda c: not c.model.global_projections or c.model.global_tokens != "none",
        lambda c: (
            "model.global_projections=True with model.global_tokens='none': no token would use them; set "
            "model.global_tokens or leave them out"
        ),
    ),
    "the first token is that of a row": Rule(
        lambda c: c.model.global_tokens != "first" or c.data.packing == "none",
        lambda c: (
            f"model.global_tokens='first' with data.packing={c.data.packing!r}: nothing says on the device where the "
            "sequences of a row begin; set data.packing='none', or model.global_tokens='marked', which in pretraining "
            "marks none"
        ),
    ),
    "blocks exclude windows": Rule(
        lambda c: (
            not c.model.attention_block
            or not (c.model.window or c.model.causal or c.model.position_embedding not in _BELOW_LAYERS)
        ),
        lambda c: (
            f"model.attention_block={c.model.attention_block} with model.window={c.model.window}, "
            f"model.causal={c.model.causal}, model.position_embedding={c.model.position_embedding!r}: blocks are of a "
            f"model without windows, that sees both sides, with one of {_BELOW_LAYERS}; change those or leave it 0"
        ),
    ),
    "random blocks are of blocks": Rule(
        lambda c: bool(c.model.attention_block) == bool(c.model.random_blocks),
        lambda c: (
            f"model.random_blocks={c.model.random_blocks} with model.attention_block={c.model.attention_block}: set "
            "both (BigBird: 3 and 64) or neither"
        ),
    ),
    "blocks are those of one sequence": Rule(
        lambda c: (
            c.data.packing == "none"
            or not c.model.attention_block
            or c.data.sequence_length <= (5 + 2 * c.model.random_blocks) * c.model.attention_block
        ),
        lambda c: (
            f"data.packing={c.data.packing!r} with model.attention_block={c.model.attention_block} and "
            f"data.sequence_length={c.data.sequence_length}: blocks are those of a row, so a sequence would see other "
            "tokens packed than alone; set data.packing='none' (data.rows='full_sentences' fills rows with one)"
        ),
    ),
    "rows fit the position table": Rule(
        lambda c: c.data.sequence_length <= c.model.max_position_embeddings,
        lambda c: (
            f"data.sequence_length={c.data.sequence_length} is beyond the model's positions "
            f"(model.max_position_embeddings={c.model.max_position_embeddings}); shorten the rows or raise it"
        ),
    ),
    "pairs of dims are rotated": Rule(
        lambda c: c.model.position_embedding != "rope" or c.model.hidden_size // c.model.num_attention_heads % 2 == 0,
        lambda c: (
            f"model.position_embedding='rope' rotates pairs of dims, and a head has "
            f"{c.model.hidden_size // c.model.num_attention_heads} (model.hidden_size={c.model.hidden_size} over "
            f"model.num_attention_heads={c.model.num_attention_heads}); change one of them"
        ),
    ),
    "options of rotation are of a rotation": Rule(
        lambda c: (
            c.model.position_embedding == "rope"
            or (c.model.rope_theta, c.model.rope_theta_local, c.model.rope_interleaved) == _NO_ROTATION
        ),
        lambda c: (
            f"model.rope_theta={c.model.rope_theta:g}, model.rope_theta_local={c.model.rope_theta_local:g}, "
            f"model.rope_interleaved={c.model.rope_interleaved} with model.position_embedding="
            f"{c.model.position_embedding!r}: nothing is rotated; set model.position_embedding='rope' or leave them out"
        ),
    ),
    "a local theta is of windows": Rule(
        lambda c: not c.model.rope_theta_local or c.model.window > 0,
        lambda c: (
            f"model.rope_theta_local={c.model.rope_theta_local:g} with model.window=0: no layer has a window; set "
            "model.window, or model.rope_theta for every layer"
        ),
    ),
    "distances belong to relative positions": Rule(
        lambda c: _of_distances(c.model),
        lambda c: (
            f"model.position_embedding={c.model.position_embedding!r} with model.relative_max={c.model.relative_max}, "
            f"model.relative_buckets={c.model.relative_buckets}, model.relative_shared={c.model.relative_shared}, "
            f"model.relative_norm={c.model.relative_norm}, model.window={c.model.window}, "
            f"model.causal={c.model.causal}: these options are of 'relative', which needs model.relative_max of 1 or "
            "more, no window, no causal model, and an even number of buckets whose half is below model.relative_max - 1"
        ),
    ),
    "a convolution has a middle": Rule(
        lambda c: (
            not c.model.conv_kernel
            or (
                c.model.conv_kernel % 2 == 1
                and not c.model.layer_groups
                and c.model.num_hidden_layers > 1
                and c.model.generator_layers != 1
            )
        ),
        lambda c: (
            f"model.conv_kernel={c.model.conv_kernel} with model.layer_groups={c.model.layer_groups}, "
            f"model.num_hidden_layers={c.model.num_hidden_layers}, model.generator_layers="
            f"{c.model.generator_layers}: a convolution has an odd number of tokens and "
            "belongs to the first of two or more layers that share nothing; set model.conv_kernel=0 or change those"
        ),
    ),
    "an enhanced decoder runs a last layer": Rule(
        lambda c: (
            c.model.mlm_decoder == "plain"
            or not (c.model.norm_place != "post" or c.model.layer_groups or c.model.window or c.model.attention_block)
        ),
        lambda c: (
            f"model.mlm_decoder='enhanced' with model.norm_place={c.model.norm_place!r}, model.layer_groups="
            f"{c.model.layer_groups}, model.window={c.model.window}, model.attention_block={c.model.attention_block}: "
            "it runs the last of layers that share nothing, see all of their sequence and have norms behind; set "
            "model.mlm_decoder='plain' or change them"
        ),
    ),
    "options of a generator are of one": Rule(
        lambda c: c.model.generator_width > 0 or (not c.model.generator_layers and c.model.embedding_sharing == "tied"),
        lambda c: (
            f"model.generator_layers={c.model.generator_layers}, model.embedding_sharing="
            f"{c.model.embedding_sharing!r} with model.generator_width=0: there is no generator; set "
            "model.generator_width or leave them out"
        ),
    ),
    "a root mean square has no bias": Rule(
        lambda c: c.model.norm != "rms" or not c.model.norm_bias,
        lambda c: "model.norm='rms' with model.norm_bias=True: this norm has a scale alone; set model.norm_bias=False",
    ),
    "the first norm is one of pre": Rule(
        lambda c: (
            c.model.first_norm
            or (c.model.norm_place == "pre" and not c.model.layer_groups and c.model.num_hidden_layers > 1)
        ),
        lambda c: (
            f"model.first_norm=False with model.norm_place={c.model.norm_place!r}, "
            f"model.layer_groups={c.model.layer_groups}, model.num_hidden_layers={c.model.num_hidden_layers}: layer 0 "
            "can lack its norm where norms are in front, layers share nothing and there are two or more; set "
            "model.first_norm=True or change those"
        ),
    ),
    "a matrix of its own is as wide as the layers": Rule(
        lambda c: c.model.mlm_tied or not (c.model.embedding_size or c.model.generator_width),
        lambda c: (
            f"model.mlm_tied=False with model.embedding_size={c.model.embedding_size}, "
            f"model.generator_width={c.model.generator_width}: both are of a head tied to the word table; leave them 0"
        ),
    ),
    "rows hold two segments": Rule(
        lambda c: c.data.sequence_length >= 8,
        lambda c: f"data.sequence_length={c.data.sequence_length} is too short for two segments; use 8 or more",
    ),
    "a weight for each source": Rule(
        lambda c: (
            not c.data.weights
            or (len(c.data.weights) == len(c.data.sources) and min(c.data.weights) >= 0 and sum(c.data.weights) > 0)
        ),
        lambda c: (
            f"data.weights={c.data.weights}: give one for each of the {len(c.data.sources)} data.sources, none below 0 "
            "and not all of them 0"
        ),
    ),
    "weights or a temperature": Rule(
        lambda c: not c.data.weights or c.data.temperature == 1,
        lambda c: f"data.temperature={c.data.temperature} with data.weights={c.data.weights}: give one of them",
    ),
    "words for a segmenter": Rule(
        lambda c: c.data.segmenter == "none" or _hides_units(c),
        lambda c: (
            f"data.segmenter={c.data.segmenter!r} with data.masking={c.data.masking!r} has no effect; choose a "
            "data.masking of whole words, or leave the segmenter out"
        ),
    ),
    "units for a masking": Rule(
        lambda c: not c.data.units or _hides_units(c),
        lambda c: (
            f"data.units={c.data.units!r} with data.masking={c.data.masking!r} has no effect; set data.masking, or "
            "that of a stage, to one of whole words or units, or leave the units out"
        ),
    ),
    "unknown characters are WordPiece's": Rule(
        lambda c: c.data.unknown == "words" or bool(c.data.vocab) or c.data.tokenizer == "wordpiece",
        lambda c: (
            f"data.unknown={c.data.unknown!r} with data.tokenizer={c.data.tokenizer!r}: it is WordPiece's option; "
            "leave it at 'words'"
        ),
    ),
    "an entity map is WordPiece's": Rule(
        lambda c: not c.data.entity_map or bool(c.data.vocab) or c.data.tokenizer == "wordpiece",
        lambda c: (
            f"data.entity_map={c.data.entity_map!r} with data.tokenizer={c.data.tokenizer!r}: it is WordPiece's "
            "option; leave it out"
        ),
    ),
    "a bare start is byte-level BPE's": Rule(
        # Without sources no vocabulary is trained: that of an imported model may be of another kind.
        lambda c: c.data.prefix_space or c.data.vocab or not c.data.sources or c.data.tokenizer == "byte_bpe",
        lambda c: (
            f"data.prefix_space=False with data.tokenizer={c.data.tokenizer!r}: it is byte-level BPE's option; "
            "leave it True"
        ),
    ),
    "names of special tokens are byte-level BPE's": Rule(
        lambda c: c.data.special_tokens == "<s>" or bool(c.data.vocab) or c.data.tokenizer == "byte_bpe",
        lambda c: (
            f"data.special_tokens={c.data.special_tokens!r} with data.tokenizer={c.data.tokenizer!r}: it is byte-level "
            "BPE's option; leave it at '<s>'"
        ),
    ),
    "a segmenter is WordPiece's": Rule(
        lambda c: c.data.segmenter == "none" or bool(c.data.vocab) or c.data.tokenizer == "wordpiece",
        lambda c: (
            f"data.segmenter={c.data.segmenter!r} with data.tokenizer={c.data.tokenizer!r}: it is WordPiece's option; "
            "leave it at 'none'"
        ),
    ),
    "a mixture has no next document": Rule(
        lambda c: c.data.rows != "full_sentences" or not c.data.is_mixture,
        lambda c: (
            f"data.rows='full_sentences' with data.weights={c.data.weights}, data.temperature={c.data.temperature}: a "
            "row goes on with the next document of the store, which a mixture may not read; use 'doc_sentences'"
        ),
    ),
    "causal models predict the next token": Rule(
        lambda c: (c.data.predict == "next") == c.model.causal,
        lambda c: (
            f"data.predict={c.data.predict!r} with model.causal={c.model.causal}: a token must not see what it is to "
            "predict, and must see what it predicts from; use 'next' with a causal model, 'masked' with any other"
        ),
    ),
    "microbatches divide the batch": Rule(
        lambda c: c.training.global_batch_size % c.training.grad_accum_steps == 0,
        lambda c: (
            f"training.global_batch_size={c.training.global_batch_size} is not divisible by "
            f"training.grad_accum_steps={c.training.grad_accum_steps}; change one of them"
        ),
    ),
    "text has a known encoding": Rule(
        lambda c: _is_encoding(c.data.encoding),
        lambda c: f"data.encoding={c.data.encoding!r} is unknown; give one of Python's, as utf-8, cp1252 or shift_jis",
    ),
    "kept and random tokens are shares of one": Rule(
        lambda c: c.data.keep_share + c.data.random_share <= 1 + 1e-9,
        lambda c: (
            f"data.keep_share={c.data.keep_share} and data.random_share={c.data.random_share} are shares of the masked "
            "positions and sum to more than 1; lower one of them"
        ),
    ),
    "rare tokens are tokens of text": Rule(
        lambda c: not c.data.mask_power or not c.data.mask_special,
        lambda c: (
            f"data.mask_power={c.data.mask_power} with data.mask_special=True: special tokens have no count in the "
            "text; set one of them to its default"
        ),
    ),
    "a shape of decay is of a stable schedule": Rule(
        lambda c: c.optimizer.decay_shape == "linear" or c.optimizer.schedule == "warmup_stable_decay",
        lambda c: (
            f"optimizer.decay_shape={c.optimizer.decay_shape!r} with optimizer.schedule={c.optimizer.schedule!r}: it "
            "is of 'warmup_stable_decay'; leave it at 'linear'"
        ),
    ),
    "a length of decay is of a stable schedule": Rule(
        lambda c: not c.optimizer.decay_steps or c.optimizer.schedule == "warmup_stable_decay",
        lambda c: (
            f"optimizer.decay_steps={c.optimizer.decay_steps} with optimizer.schedule={c.optimizer.schedule!r}: it is "
            "of 'warmup_stable_decay'; leave it at 0"
        ),
    ),
    "the decay begins after the warm-up": Rule(
        lambda c: not c.optimizer.decay_steps or c.optimizer.warmup_steps + c.optimizer.decay_steps <= c.training.steps,
        lambda c: (
            f"optimizer.warmup_steps={c.optimizer.warmup_steps} and optimizer.decay_steps={c.optimizer.decay_steps} "
            f"are more than the {c.training.steps} steps of the schedule; shorten one of them or train longer"
        ),
    ),
    "the warm-up ends before the run": Rule(
        lambda c: c.optimizer.warmup_steps < c.training.steps,
        lambda c: (
            f"optimizer.warmup_steps={c.optimizer.warmup_steps} leaves nothing of training.steps={c.training.steps}; "
            "shorten the warm-up or train longer"
        ),
    ),
    "layers to start as are of a model": Rule(
        lambda c: not c.init_layers or (bool(c.init_from) and len(c.init_layers) == c.model.num_hidden_layers),
        lambda c: (
            f"init_layers={c.init_layers} with init_from={c.init_from!r}: name a model, and one of its layers for each "
            f"of model.num_hidden_layers={c.model.num_hidden_layers}"
        ),
    ),
    "features are layers of the model": Rule(
        lambda c: not _beyond(c.model),
        lambda c: (
            f"model.features={c.model.features}: the model has no layer {_beyond(c.model)[0]}; choose from 1 to "
            f"{c.model.num_hidden_layers}, 0 for the embeddings, or count from the last with -1"
        ),
    ),
}


def value_at(config: Any, key: str) -> Any:
    """The value at a dotted key."""
    for name in key.split("."):
        config = getattr(config, name)
    return config


def validate(config: Config) -> Config:
    """Return the config if its values are within their bounds and go together.

    Raises ValueError naming the key, its value and what to do: of the first bound that is broken, else the first rule.
    """
    refuse_credentials_within(to_dict(config))
    for key, bounds in BOUNDS.items():
        if not bounds.hold(value := value_at(config, key)):
            raise ValueError(f"{key}={value} must be {bounds}")
    if broken := next((rule for rule in RULES.values() if not rule.holds(config)), None):
        raise ValueError(broken.says(config))
    if config.training.budget:
        seconds_of(config.training.budget)
    check_skips(config.training)
    return config
