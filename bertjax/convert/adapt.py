"""Adapt the weights of one model to another config: a larger vocabulary, a longer position table, more segments.

Options that the weights depend on must be equal. Three tables may differ, each by its own rule:

words      a token of both vocabularies keeps its row; a new token starts as the mean row of the pieces into which the
           old vocabulary splits it (the mean of all rows if there are none)
positions  a longer table repeats the old one from its start (Longformer's rule); a shorter one is cut
segments   new segments start as copies of segment 0; a model without segments drops the rows

Projections of global tokens start as copies of the ordinary ones if the old network lacks them (Longformer's rule).
Modules that only the new network has are initialised at random; modules that only the old one has are dropped.
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
from bertjax.model.parameters import named_arrays
from bertjax.model.shared_tables import DIFFERENCE, own_words
from bertjax.parallel.sharding import is_names
from bertjax.tokenization.tokenizer import Tokenizer

# Options that the weights depend on: both models must agree on them.
_EQUAL = (
    "hidden_size",
    "embedding_size",
    "task_type_vocab_size",
    "layer_groups",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "hidden_act",
    "layer_norm_eps",
    "position_embedding",
    "rope_interleaved",
    "relative_max",
    "relative_buckets",
    "relative_shared",
    "relative_norm",
    "score_bias_buckets",
    "score_bias_reach",
    "conv_kernel",
    "token_dropout",
    "embedding_norm",
    "norm",
    "norm_bias",
    "final_norm_bias",
    "qk_norm",
    "residual_depth",
    "norm_place",
    "first_norm",
    "attention_bias",
    "mlp_bias",
    "head_bias",
    "mlp",
    "mlm_tied",
    "mlm_transform",
    "mlm_bias",
    "mlm_inner_size",
    "causal",
)
# Options that may change without changing an array (RoBERTa to Longformer, a longer context); changes are reported.
_REPORTED = ("window", "global_every", "first_global", "rope_theta", "rope_theta_local")
_REPORTED += ("attention_block", "random_blocks", "random_blocks_seed")
# Module -> the keys that set its size. A module whose size differs is initialised at random.
_SIZED = {
    "teacher_projection": ("teacher_width",),
    "rtd_head": ("rtd_context",),
    GENERATOR: ("generator_width", "generator_layers", "embedding_sharing", "mlm_decoder"),
}
_MOST_MISSING = 0.1  # share of the old tokens; above it the two vocabularies count as unrelated


def require_same_shape(model: ForeignModel, config: ModelConfig, layers: tuple[int, ...] = ()) -> None:
    """Raise ValueError naming every key of `_EQUAL` that differs, or a layer that does not exist.

    `layers` are the model's layers to take, as in a run's `init_layers`.
    """
    source = model.config
    if layers:
        if beyond := [layer for layer in layers if not 0 <= layer < source.num_hidden_layers]:
            raise ValueError(
                f"init_layers={layers}: {model.origin} has no layer {beyond[0]}; give numbers from 0 to "
                f"{source.num_hidden_layers - 1}"
            )
        if source.layer_groups:
            raise ValueError(f"init_layers={layers}: layers of {model.origin} share parameters; leave init_layers out")
        if source.first_layer_apart:
            raise ValueError(
                f"init_layers={layers}: the first layer of {model.origin} differs from the rest; leave init_layers out"
            )
        source = replace(source, num_hidden_layers=len(layers))
    different = {key: (getattr(source, key), getattr(config, key)) for key in _EQUAL}
    refused = [f"  model.{key}: {was!r} there, {now!r} here" for key, (was, now) in different.items() if was != now]
    if refused:
        raise ValueError(
            f"{model.origin} has another architecture:\n" + "\n".join(refused) + "\nset these keys to its values, or "
            "give another --init-from"
        )


def untrained_modules(model: ForeignModel, config: ModelConfig) -> list[str]:
    """Name the modules that a network of `config` initialises at random when it starts from `model`."""
    missing = _missing_modules(model, config)
    return [name for name in abstract_network(config)[1] if name in missing or module_label(name) in model.untrained]


def _missing_modules(model: ForeignModel, config: ModelConfig) -> list[str]:
    """Name the modules that the model lacks or has in another size."""
    resized = {
        name for name, keys in _SIZED.items() if any(getattr(model.config, k) != getattr(config, k) for k in keys)
    }
    return [name for name in abstract_network(config)[1] if name not in model.params or name in resized]


def adapt(
    model: ForeignModel, config: ModelConfig, tokenizer: Tokenizer, layers: tuple[int, ...] = ()
) -> tuple[Params, list[str]]:
    """Return (parameters for pretraining a model of `config` over `tokenizer`, lines about the changes).

    `layers` as in `require_same_shape`. Raises ValueError as `require_same_shape` does, and for another vocabulary.
    """
    require_same_shape(model, config, layers)
    source = model.config
    shapes, axes = abstract_network(config)[1], abstract_network(source)[2]
    changed = {field.name for field in fields(config) if getattr(source, field.name) != getattr(config, field.name)}

    # 1. Modules: new dicts that share the arrays
    missing = _missing_modules(model, config)
    params: Params = jax.tree.map(lambda x: x, {name: model.params[name] for name in shapes if name not in missing})
    encoder, notes = params["encoder"], list[str]()
    untrained = (*model.untrained, *(module_label(name) for name in missing if name not in model.params))
    if untrained:
        notes.append(f"{', '.join(untrained)}: missing in the source; initialised at random")
    notes += [
        f"{module_label(name)}: of another size in the source; initialised at random"
        for name in missing
        if name in model.params
    ]
    notes += [
        f"model.{key}: {getattr(source, key):g} in the source, {getattr(config, key):g} here"
        for key in _REPORTED
        if key in changed
    ]

    # 2. Layers
    if layers:
        encoder["layers"] = jax.tree.map(lambda x: x[np.array(layers)], encoder["layers"])
        notes.append(f"layers {', '.join(map(str, layers))} of its {source.num_hidden_layers} were taken")

    # 3. Words
    rows, lines = _word_rows(model.tokenizer, tokenizer)
    notes += lines

    def fit_words(names: tuple[str, ...], table: np.ndarray) -> np.ndarray:
        if "vocab" not in names:
            return table
        means = [table[ids[0]] if len(ids) == 1 else table[ids].mean(axis=0, dtype=np.float64) for ids in rows]
        fitted = np.stack(means).astype(np.float32)
        padding = padded_vocab_size(config) - len(fitted)
        assert padding >= 0, "the config and the tokenizer have the same vocabulary"
        return np.pad(fitted, [(0, padding), *[(0, 0)] * (fitted.ndim - 1)])

    params = jax.tree.map(fit_words, {name: axes[name] for name in params}, params, is_leaf=is_names)
    encoder = params["encoder"]
    if "embedding_sharing" in changed:
        tables = encoder["embeddings"]
        tables["word"] = own_words(tables)
        tables.pop(DIFFERENCE, None)
        if config.embedding_sharing == "gdes":
            tables[DIFFERENCE] = np.zeros_like(tables["word"])

    # 4. Projections of global tokens
    attention = encoder["layers"]["attention"]
    if config.global_projections and not GLOBAL_PROJECTIONS.keys() <= attention.keys():
        encoder["layers"]["attention"] = with_copied_projections(attention)
        notes.append("the projections of global tokens start as copies of the ordinary ones")
    elif not config.global_projections and GLOBAL_PROJECTIONS.keys() <= attention.keys():
        for name in GLOBAL_PROJECTIONS:
            del attention[name]
        notes.append("the projections of global tokens were left out: the model has none")

    # 5. Positions and segments
    notes += _fit_tables(params, shapes, config)
    if GENERATOR in params:
        lines = _fit_tables(params[GENERATOR], shapes[GENERATOR], config)
        notes += [line for line in lines if line not in notes]
    params |= fresh_modules(config, missing)
    fitted, expected = ({name: x.shape for name, x in named_arrays(tree).items()} for tree in (params, shapes))
    differing = sorted(name for name in fitted.keys() | expected.keys() if fitted.get(name) != expected.get(name))
    assert not differing, (
        f"{differing} have other shapes, changed by a key of {sorted(changed)} that belongs in _EQUAL or _SIZED"
    )
    return params, notes


def _fit_tables(network: Params, shapes: Params, config: ModelConfig) -> list[str]:
    """Fit a network's position and segment tables to the config in place; returns lines about the changes."""
    tables, notes = network["encoder"]["embeddings"], list[str]()
    size = config.max_position_embeddings
    for module in (tables, network.get("mask_decoder", {})):
        table = module.get("position")
        if table is None or len(table) == size:
            continue
        if size < len(table):
            line = f"the position table was cut from {len(table):,} to {size:,}"
            module["position"] = table[:size]
        else:
            line = f"the position table has {size:,} rows: the source's {len(table):,}, repeated from the start"
            module["position"] = np.resize(table, (size, table.shape[1]))
        if line not in notes:
            notes.append(line)
    table, size = tables.get("token_type"), config.type_vocab_size
    if "token_type" not in shapes["encoder"]["embeddings"]:
        if tables.pop("token_type", None) is not None:
            notes.append("the segment rows were left out: the model has no segments")
    elif table is None:
        raise ValueError(f"model.type_vocab_size={size}: the weights have no segments; set it to 0")
    elif size < len(table):
        raise ValueError(f"model.type_vocab_size={size} is below the {len(table)} segments of the weights; raise it")
    elif size > len(table):
        tables["token_type"] = np.concatenate([table, np.repeat(table[:1], size - len(table), axis=0)])
        notes.append(f"segments from {len(table)} on start as copies of segment 0")
    return notes


def _word_rows(old: Tokenizer, new: Tokenizer) -> tuple[list[list[int]], list[str]]:
    """Return (the rows of the old table that each new token starts from, lines about the changes)."""
    ids = {token: number for number, token in enumerate(old.tokens)}
    missing = sum(not token.startswith("[unused") for token in set(old.tokens) - set(new.tokens))
    if missing > _MOST_MISSING * old.vocab_size:
        raise ValueError(
            f"the weights belong to another vocabulary: {missing:,} of its {old.vocab_size:,} tokens are not in this "
            "one; give its vocabulary, or one that extends it, as data.vocab"
        )
    texts = zip(new.tokens, new.surfaces, strict=True)
    spellings = {token: text.decode(errors="replace") for token, text in texts if token not in ids}
    continues = dict(zip(new.tokens, new.is_continuation.tolist(), strict=True))
    encoded = old.encode_sentences([*spellings.values()], [continues[token] for token in spellings])
    pieces = dict(zip(spellings, encoded, strict=True))
    every_row = list(range(old.vocab_size))
    rows = [
        [ids[token]] if token in ids else [int(i) for i in pieces[token] if i != old.unk_id] or every_row
        for token in new.tokens
    ]
    notes = []
    if spellings:
        examples = ", ".join(list(spellings)[:5]) + (", ..." if len(spellings) > 5 else "")
        notes.append(f"{len(spellings):,} tokens are new ({examples}): each starts as the mean of its pieces")
    if missing:
        notes.append(f"{missing:,} tokens of the old vocabulary are not in this one; their rows were left out")
    if old.rules != new.rules:
        notes.append(f"the source normalised text differently: {old.rules}; here: {new.rules}")
    return rows, notes
