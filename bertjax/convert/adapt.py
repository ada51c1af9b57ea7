"""Weights of one model as the start of another: a vocabulary that grew, a longer position table, more segments.

What gives the weights their meaning must be equal; the three tables may differ, and each has its rule:

words      a token of both keeps its row; a new one starts as the mean of the rows of the pieces that the old vocabulary
           makes of it (of all rows, if it makes none)
positions  a longer table repeats the old one from its start (Longformer's rule); a shorter one is cut
segments   new ones start as the row of segment 0; a model without segments has no rows for them

Projections of global tokens start as copies of the ordinary ones where the old network has none (Longformer's rule).

Modules of the new network that the old one lacks are drawn at random; those that only the old one has are left out.
"""

from __future__ import annotations

from dataclasses import fields, replace

import jax
import numpy as np

from bertjax.config import ModelConfig
from bertjax.convert.foreign import ForeignModel, fresh_modules, module_label
from bertjax.families.networks import abstract_network
from bertjax.model.attention.sparse import GLOBAL_PROJECTIONS, with_copied_projections
from bertjax.model.encoder import padded_vocab_size
from bertjax.model.network import GENERATOR, Params
from bertjax.model.shared_tables import DIFFERENCE, own_words
from bertjax.parallel.sharding import is_names
from bertjax.tokenization.tokenizer import Tokenizer

_EQUAL = (
    "hidden_size",
    "embedding_size",
    "task_type_vocab_size",
    "layer_groups",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "layer_norm_eps",
    "position_embedding",
    "rope_interleaved",
    "relative_max",
    "relative_buckets",
    "relative_shared",
    "relative_norm",
    "conv_kernel",
    "embedding_norm",
    "norm",
    "norm_bias",
    "norm_place",
    "first_norm",
    "attention_bias",
    "mlp_bias",
    "mlp",
    "mlm_tied",
    "causal",
)
# What changes with the same arrays (`--init-from` a RoBERTa to a Longformer, a longer context), and is reported.
_NOTED = ("window", "global_every", "rope_theta", "rope_theta_local")
_NOTED += ("attention_block", "random_blocks", "random_blocks_seed")
# Modules whose arrays have a size of their own, and the keys that say it: of another size they are drawn at random.
_SIZED = {
    "teacher_projection": ("teacher_width",),
    "rtd_head": ("rtd_context",),
    GENERATOR: ("generator_width", "generator_layers", "embedding_sharing", "mlm_decoder"),
}
_MAY_BE_GONE = 0.1  # of the old tokens; beyond that it is no extension but another vocabulary


def require_same_shape(model: ForeignModel, config: ModelConfig, layers: tuple[int, ...] = ()) -> None:
    """Raise ValueError with every key that gives weights their meaning and differs, or a layer that is not there.

    `layers` are those of the model that are taken, as `init_layers` of a run has them.
    """
    there = model.config
    if layers:
        if beyond := [layer for layer in layers if not 0 <= layer < there.num_hidden_layers]:
            raise ValueError(
                f"init_layers={layers}: {model.origin} has no layer {beyond[0]}; give numbers from 0 to "
                f"{there.num_hidden_layers - 1}"
            )
        if there.layer_groups:
            raise ValueError(f"init_layers={layers}: layers of {model.origin} share parameters; leave init_layers out")
        if there.first_layer_apart:
            raise ValueError(
                f"init_layers={layers}: the first layer of {model.origin} is of another kind; leave init_layers out"
            )
        there = replace(there, num_hidden_layers=len(layers))
    different = {key: (getattr(there, key), getattr(config, key)) for key in _EQUAL}
    refused = [f"  model.{key}: there {was!r}, here {now!r}" for key, (was, now) in different.items() if was != now]
    if refused:
        raise ValueError(
            f"{model.origin} is another model:\n" + "\n".join(refused) + "\nset these keys as they are there, or give "
            "another --init-from"
        )


def drawn_modules(model: ForeignModel, config: ModelConfig) -> list[str]:
    """The modules of a network of `config` that have random weights when it starts from a model, by name."""
    lacking = _lacking(model, config)
    return [name for name in abstract_network(config)[1] if name in lacking or module_label(name) in model.drawn]


def _lacking(model: ForeignModel, config: ModelConfig) -> list[str]:
    """The modules that the model does not have, or has in another size."""
    resized = {
        name for name, keys in _SIZED.items() if any(getattr(model.config, k) != getattr(config, k) for k in keys)
    }
    return [name for name in abstract_network(config)[1] if name not in model.params or name in resized]


def adapt(
    model: ForeignModel, config: ModelConfig, tokenizer: Tokenizer, layers: tuple[int, ...] = ()
) -> tuple[Params, list[str]]:
    """(parameters for pretraining a model of `config` over `tokenizer`, what was done to get them, in lines).

    `layers` as in `require_same_shape`.

    Raises ValueError as `require_same_shape` does, and for another vocabulary.
    """
    require_same_shape(model, config, layers)
    wanted, axes = abstract_network(config)[1], abstract_network(model.config)[2]
    different = {
        field.name for field in fields(config) if getattr(model.config, field.name) != getattr(config, field.name)
    }
    lacking = _lacking(model, config)
    # Dicts of our own, the arrays shared.
    kept = [name for name in wanted if name not in lacking]
    params = jax.tree.map(lambda x: x, {name: model.params[name] for name in kept})
    drawn = (*model.drawn, *(module_label(name) for name in lacking if name not in model.params))
    notes = [f"{', '.join(drawn)}: not there; drawn at random"] if drawn else []
    notes += [
        f"{module_label(name)}: of another size there; drawn at random" for name in lacking if name in model.params
    ]
    notes += [
        f"model.{key} was {getattr(model.config, key):g} there and is {getattr(config, key):g} here"
        for key in _NOTED
        if key in different
    ]
    if layers:
        taken = np.array(layers)
        params["encoder"]["layers"] = jax.tree.map(lambda x: x[taken], params["encoder"]["layers"])
        notes.append(f"of its {model.config.num_hidden_layers} layers, {', '.join(map(str, layers))} were taken")
    rows, said = _rows_for(model.tokenizer, tokenizer)
    params = jax.tree.map(
        lambda names, x: _padded(_mean_rows(x, rows), config) if "vocab" in names else x,
        {name: axes[name] for name in kept},
        params,
        is_leaf=is_names,
    )
    tables = params["encoder"]["embeddings"]
    if "embedding_sharing" in different:
        tables["word"] = own_words(tables)
        tables.pop(DIFFERENCE, None)
        if config.embedding_sharing == "gdes":
            tables[DIFFERENCE] = np.zeros_like(tables["word"])
    notes += [*said, *_projections(params["encoder"], config.global_projections)]
    notes += _fit_tables(params, wanted, config)
    if GENERATOR in params:
        said = _fit_tables(params[GENERATOR], wanted[GENERATOR], config)
        notes += [line for line in said if line not in notes]
    params |= fresh_modules(config, lacking)
    assert jax.tree.map(np.shape, params) == jax.tree.map(np.shape, wanted)
    return params, notes


def _fit_tables(network: Params, wanted: Params, config: ModelConfig) -> list[str]:
    """Give a network's tables of positions and segments the rows that are wanted; what was done, in lines."""
    tables, notes = network["encoder"]["embeddings"], []
    for module in (tables, network.get("mask_decoder", {})):
        if "position" in module:
            module["position"], said = _positions(module["position"], config.max_position_embeddings)
            notes += [line for line in said if line not in notes]
    if "token_type" not in wanted["encoder"]["embeddings"]:
        if tables.pop("token_type", None) is not None:
            notes.append("the rows of segments were left out: the model has none")
    elif "token_type" not in tables:
        raise ValueError(f"model.type_vocab_size={config.type_vocab_size}: the weights have no segments; set it to 0")
    else:
        tables["token_type"], said = _segments(tables["token_type"], config.type_vocab_size)
        notes += said
    return notes


def _projections(encoder: Params, wanted: bool) -> list[str]:
    """Give the layers projections of global tokens, or take them away; what was done, in lines."""
    attention = encoder["layers"]["attention"]
    if wanted == (GLOBAL_PROJECTIONS.keys() <= attention.keys()):
        return []
    if not wanted:
        for name in GLOBAL_PROJECTIONS:
            del attention[name]
        return ["the projections of global tokens were left out: the model has none"]
    encoder["layers"]["attention"] = with_copied_projections(attention)
    return ["the projections of global tokens start as copies of the ordinary ones"]


def _rows_for(old: Tokenizer, new: Tokenizer) -> tuple[list[list[int]], list[str]]:
    """Per token of the new vocabulary, the rows of the old table that it starts from; and what to say of it."""
    ids = {token: number for number, token in enumerate(old.tokens)}
    gone = sum(not token.startswith("[unused") for token in set(old.tokens) - set(new.tokens))
    if gone > _MAY_BE_GONE * old.vocab_size:
        raise ValueError(
            f"the weights are of another vocabulary: {gone:,} of its {old.vocab_size:,} tokens are not in this one; "
            "give its vocabulary, or one that extends it, as data.vocab"
        )
    texts = zip(new.tokens, new.surfaces, strict=True)
    spelled = {token: text.decode(errors="replace") for token, text in texts if token not in ids}
    continues = dict(zip(new.tokens, new.is_continuation.tolist(), strict=True))
    encoded = old.encode_sentences([*spelled.values()], [continues[token] for token in spelled])
    pieces = dict(zip(spelled, encoded, strict=True))
    everything = list(range(old.vocab_size))
    rows = []
    for token in new.tokens:
        known = [ids[token]] if token in ids else [int(i) for i in pieces[token] if i != old.unk_id]
        rows.append(known or everything)
    notes = []
    if spelled:
        shown = ", ".join(list(spelled)[:5]) + (", ..." if len(spelled) > 5 else "")
        notes.append(f"{len(spelled):,} tokens are new ({shown}): each starts as the mean of its pieces")
    if gone:
        notes.append(f"{gone:,} tokens of the old vocabulary are not in this one; their rows were left out")
    if old.rules != new.rules:
        notes.append(f"text was normalised otherwise there: {old.rules}; here {new.rules}")
    return rows, notes


def _mean_rows(table: np.ndarray, rows: list[list[int]]) -> np.ndarray:
    return np.stack([table[of[0]] if len(of) == 1 else table[of].mean(axis=0, dtype=np.float64) for of in rows]).astype(
        np.float32
    )


def _padded(table: np.ndarray, config: ModelConfig) -> np.ndarray:
    missing = padded_vocab_size(config) - len(table)
    assert missing >= 0, "the config's vocabulary is that of the tokenizer"
    return np.pad(table, [(0, missing), *[(0, 0)] * (table.ndim - 1)])


def _positions(table: np.ndarray, size: int) -> tuple[np.ndarray, list[str]]:
    if size == len(table):
        return table, []
    if size < len(table):
        return table[:size], [f"the position table was cut from {len(table):,} to {size:,}"]
    return np.resize(table, (size, table.shape[1])), [
        f"the position table has {size:,} rows: the {len(table):,} there, repeated from the start"
    ]


def _segments(table: np.ndarray, size: int) -> tuple[np.ndarray, list[str]]:
    if size == len(table):
        return table, []
    if size < len(table):
        raise ValueError(f"model.type_vocab_size={size} is below the {len(table)} segments of the weights; raise it")
    more = np.repeat(table[:1], size - len(table), axis=0)
    return np.concatenate([table, more]), [f"segments from {len(table)} on start as the row of segment 0"]
