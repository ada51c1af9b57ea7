"""Every family equals transformers: outputs, gradients, tensors, configs, and counts of parameters."""

from __future__ import annotations

import math
from dataclasses import replace

import jax
import numpy as np
import pytest
from test_family_training import MEMBERS
from their_families import (
    IN_TRANSFORMERS,
    SMALL,
    SPECIAL,
    SUITE,
    global_positions,
    members,
    our_forward,
    our_gradients,
    our_params,
    output_slopes,
    relative,
    rows,
    small,
    their_config,
    their_forward,
    their_gradients,
    their_model,
    their_tensors,
    total_norm,
)
from tiers import long_unless

from bertjax.config import ModelConfig
from bertjax.convert.huggingface.config import from_config_json, to_config_json
from bertjax.convert.huggingface.names import (
    architecture,
    has_class,
    hf_class,
    left_out,
    tensor_table,
    their_shapes,
    to_huggingface_tensors,
)
from bertjax.families.networks import abstract_network
from bertjax.families.registry import FAMILIES, get_family
from bertjax.model.network import HEADS, PretrainingNetwork, bind
from bertjax.model.parameters import named_arrays

EXPORTED = {name: network for name, network in HEADS.items() if not network.served}
FAMILY_HEADS = [
    (name, head)
    for name in IN_TRANSFORMERS
    for head, network in EXPORTED.items()
    if network.transformers not in FAMILIES[name].huggingface.lacking
]
# Reference: parameters of transformers' classes at the published sizes, tied tensors counted once.
COUNTS = {
    ("bert", "base", "ForPreTraining"): 110_106_428,
    ("roberta", "base", "ForMaskedLM"): 124_697_433,
    ("roberta", "large", "ForMaskedLM"): 355_412_057,
    ("xlm-roberta", "base", "ForMaskedLM"): 278_295_186,
    ("xlm-roberta", "large", "ForMaskedLM"): 560_142_482,
    ("camembert", "base", "ForMaskedLM"): 110_655_493,
    ("spanbert", "base", "ForMaskedLM"): 108_340_804,
    ("spanbert", "large", "ForMaskedLM"): 333_610_308,
    ("esm", "8m", "ForMaskedLM"): 7_512_353,
    ("esmc", "base", "ForMaskedLM"): 332_997_184,
    ("esmc", "600m", "ForMaskedLM"): 575_036_992,
    ("esm", "650m", "ForMaskedLM"): 651_042_593,
    ("distilbert", "base", "ForMaskedLM"): 66_985_530,
    ("macbert", "base", "ForPreTraining"): 102_882_442,
    ("macbert", "large", "ForPreTraining"): 326_597_258,
    ("ernie", "base", "ForPreTraining"): 100_477_778,
    ("ernie", "base-v2", "ForPreTraining"): 110_120_252,
    ("ernie", "base-v3", "ForPreTraining"): 118_578_498,
    ("electra", "small", "ForPreTraining"): 13_549_057,
    ("electra", "base", "ForPreTraining"): 109_483_009,
    ("electra", "large", "ForPreTraining"): 335_142_913,
    ("electra-generator", "small", "ForMaskedLM"): 4_620_026,
    ("electra-generator", "base", "ForMaskedLM"): 33_740_602,
    ("electra-generator", "large", "ForMaskedLM"): 51_295_290,
    ("longformer", "base", "ForMaskedLM"): 148_711_257,
    ("longformer", "large", "ForMaskedLM"): 434_653_273,
    ("bigbird", "base", "ForPreTraining"): 128_112_824,
    ("bigbird", "large", "ForPreTraining"): 360_228_024,
    ("modernbert", "base", "ForMaskedLM"): 149_655_232,
    ("modernbert", "large", "ForMaskedLM"): 395_881_664,
    ("eurobert", "base", "ForMaskedLM"): 310_266_624,
    ("eurobert", "610m", "Model"): 607_874_688,
    ("eurobert", "2.1b", "Model"): 2_107_590_912,
    ("nomic-bert", "base", "ForMaskedLM"): 137_354_304,
    ("mpnet", "base", "ForMaskedLM"): 109_518_527,
    ("xlm-roberta-xl", "base", "ForMaskedLM"): 3_482_741_760,
    ("xlm-roberta-xl", "xxl", "ForMaskedLM"): 10_712_994_816,
    ("modernbert", "mmbert-base", "ForMaskedLM"): 307_786_240,
    ("modernbert", "mmbert-small", "Model"): 140_493_696,
    ("modernbert", "ettin-17m", "ForMaskedLM"): 16_913_600,
    ("modernbert", "ettin-1b", "Model"): 1_028_050_688,
    ("ultrabert", "base", "ForMaskedLM"): 149_455_104,
    ("ultrabert", "large", "ForMaskedLM"): 382_131_200,
    ("deberta", "base", "ForMaskedLM"): 139_244_121,
    ("deberta", "large", "ForMaskedLM"): 406_264_921,
    ("deberta-v2", "base", "ForMaskedLM"): 184_551_780,
    ("deberta-v2", "large", "ForMaskedLM"): 435_191_908,
    ("deberta-v2", "xlarge", "ForMaskedLM"): 887_085_156,
    ("deberta-v2", "xxlarge", "ForMaskedLM"): 1_567_041_636,
    ("deberta-v3", "xsmall", "Model"): 70_682_112,
    ("deberta-v3", "small", "Model"): 141_304_320,
    ("deberta-v3", "base", "Model"): 183_831_552,
    ("deberta-v3", "large", "Model"): 434_012_160,
    ("albert", "base", "ForPreTraining"): 11_813_810,
    ("albert", "base-v2", "ForPreTraining"): 11_813_810,
    ("albert", "large", "ForPreTraining"): 17_847_474,
    ("albert", "xlarge", "ForPreTraining"): 59_021_490,
    ("albert", "xxlarge", "ForPreTraining"): 223_158_450,
    ("albert", "xxlarge-v2", "ForMaskedLM"): 206_368_944,
    ("albert", "large-v2", "Model"): 17_683_968,
    ("albert", "xlarge-v2", "Model"): 58_724_864,
}
# Whole pretraining networks with random weights, compared with --long.
WHOLE = [
    (family, preset, suffix)
    for family, preset, suffix in COUNTS
    if preset.startswith("base")
    and FAMILIES[family].huggingface.pretraining.name.endswith(suffix)
    and COUNTS[family, preset, suffix] < 1e9
]


@pytest.mark.parametrize("name", members(SMALL))
def test_states_and_logits_equal_transformers(name: str) -> None:
    config = SMALL[name]
    network, batch = their_model(config), rows(config)
    ours = our_forward(config, our_params(network, config), batch)
    theirs = their_forward(network, config, batch)
    real = batch["attention_mask"] == 1
    assert theirs.keys() == ours.keys() and len(theirs["states"]) == config.num_hidden_layers + 1
    for key, output in theirs.items():
        mine, reference = np.asarray(ours[key]), output.detach().numpy()
        if key == "states":
            mine, reference = mine[:, real], reference[:, real]
        elif mine.ndim == 3:
            mine, reference = mine[real], reference[real]
        assert relative(mine, reference) < 1e-5, key


@pytest.mark.long
@pytest.mark.parametrize("name", WHOLE)
def test_full_size_network_equals_transformers(name: tuple[str, str, str]) -> None:
    family, preset, _ = name
    config = FAMILIES[family].presets[preset]
    network = their_model(config, std=0.02)
    unpadded = abstract_network(replace(config, vocab_pad_multiple=1))[1]
    assert sum(p.numel() for p in network.parameters()) == COUNTS[name]
    before = FAMILIES[family].huggingface.rows_before_positions(SPECIAL["pad"]) * config.hidden_size
    theirs = {module: shapes for module, shapes in unpadded.items() if module not in left_out(config)}
    assert sum(leaf.size for leaf in jax.tree.leaves(theirs)) + before == COUNTS[name]
    draw = np.random.default_rng(3)
    ids = draw.integers(3, config.vocab_size, (1, 32))
    types = draw.integers(0, max(1, config.type_vocab_size), ids.shape)
    batch = {"input_ids": ids, "token_type_ids": types, "attention_mask": np.ones_like(ids)}
    params = our_params(network, config)
    theirs = {key: output.detach().numpy() for key, output in their_forward(network, config, batch).items()}
    del network
    ours = our_forward(config, params, batch)
    assert ours.keys() == theirs.keys() and len(theirs["states"]) == config.num_hidden_layers + 1
    off = {key: relative(ours[key], output) for key, output in theirs.items()}
    print(f"{family} {preset}: {COUNTS[name]:,} parameters; " + ", ".join(f"{key} {x:.1e}" for key, x in off.items()))
    assert max(off.values()) < 1e-5, off


@pytest.mark.parametrize(
    "name", long_unless(lambda name: name in ("bert", "modernbert", "deberta-v2"), [(name,) for name in SMALL])
)
def test_gradients_equal_transformers(name: str) -> None:
    network, batch = their_model(SMALL[name]), rows(SMALL[name])
    assert_same_gradients(SMALL[name], network, batch, their_forward(network, SMALL[name], batch))


def assert_same_gradients(config: ModelConfig, network, batch, theirs) -> None:
    """Compare the gradient of every parameter, relative to its own norm or to the norm of all gradients."""
    slopes = output_slopes(theirs, batch)
    expected = their_gradients(network, config, theirs, slopes)
    ours = our_gradients(config, our_params(network, config), batch, slopes)
    assert ours.keys() == expected.keys()
    whole = total_norm(expected)
    for key, gradient in ours.items():
        off, norm = np.linalg.norm(gradient - expected[key]), np.linalg.norm(expected[key])
        assert off <= 1e-5 * norm or off <= 1e-6 * whole, (key, off, norm, whole)


@pytest.mark.parametrize(("family", "head"), long_unless(lambda family, head: family in SUITE, FAMILY_HEADS))
def test_tensor_table_has_transformers_names_and_shapes(family: str, head: str) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = small(family, head=head, num_labels=3 * HEADS[head].labelled)
    values = their_config(config)
    values.num_labels = config.num_labels or {"choice": 1}.get(head, 2)
    with torch.device("meta"):
        network = getattr(transformers, architecture(config))(values)
    prefix = get_family(family).huggingface.prefix if hf_class(config).bare else ""
    theirs = {prefix + name: tuple(p.shape) for name, p in network.named_parameters(remove_duplicate=False)}
    hf = get_family(family).huggingface
    theirs = {name: shape for name, shape in theirs.items() if not name.startswith((*hf.tied, *hf.ignored))}
    assert their_shapes(config, SPECIAL["pad"]) == theirs
    ours = [name for name in named_arrays(abstract_network(config)[1]) if name.split("/")[0] not in left_out(config)]
    assert sorted(tensor.ours for tensor in tensor_table(config)) == sorted(ours)


@pytest.mark.parametrize("name", members(SMALL))
def test_tensors_round_trip_bit_for_bit(name: str) -> None:
    config = SMALL[name]
    network = their_model(config)
    before = get_family(config.family).huggingface.rows_before_positions(SPECIAL["pad"])
    theirs = their_tensors(network, config)
    back = to_huggingface_tensors(our_params(network, config), config, SPECIAL["pad"])
    assert back.keys() == theirs.keys()
    for key, array in back.items():
        expected = theirs[key].copy()
        if key.endswith("position_embeddings.weight"):
            expected[:before] = 0  # rows that no token uses
        np.testing.assert_array_equal(array, expected, key)


@pytest.mark.parametrize(
    "name", [*SMALL, *(f"{family} {preset}" for family in IN_TRANSFORMERS for preset in FAMILIES[family].presets)]
)
def test_config_json_round_trips(name: str) -> None:
    config = SMALL.get(name) or FAMILIES[name.split()[0]].presets[name.split()[1]]
    values = to_config_json(config, SPECIAL)
    assert from_config_json(values, "config.json") == config
    # transformers reads the keys, and writes the same ones itself.
    theirs = their_config(config).to_dict()
    assert all(theirs[key] == value for key, value in values.items() if key not in ("architectures", "dtype"))
    assert from_config_json(theirs, "config.json") == config


@pytest.mark.parametrize("family", IN_TRANSFORMERS)
def test_missing_config_keys_take_transformers_defaults(family: str) -> None:
    transformers = pytest.importorskip("transformers")
    model_type = FAMILIES[family].huggingface.model_type
    theirs = from_config_json(transformers.AutoConfig.for_model(model_type).to_dict(), "config.json")
    assert from_config_json({"model_type": model_type, "vocab_size": theirs.vocab_size}, "config.json") == theirs


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("bert", {"embedding_size": 8}),
        ("bert", {"layer_groups": 1}),
        ("bert", {"type_vocab_size": 0}),
        ("bert", {"pooler": "none"}),
        ("roberta", {"window": 4}),
        ("roberta", {"hidden_act": "gelu_tanh"}),
        ("bert", {"task_type_vocab_size": 3}),
        ("distilbert", {"type_vocab_size": 2}),
        ("distilbert", {"layer_norm_eps": 1e-5}),
        ("electra", {"embedding_size": 12}),
        ("electra", {"pooler": "tanh"}),
        ("bert", {"norm_place": "pre"}),
        ("bert", {"position_embedding": "rope"}),
        ("bert", {"position_embedding": "none"}),
        ("roberta", {"mlp": "glu"}),
        ("modernbert", {"position_embedding": "sinusoidal"}),
        ("modernbert", {"hidden_act": "silu"}),
        ("modernbert", {"first_norm": True}),
        ("modernbert", {"rope_interleaved": True}),
        ("eurobert", {"mlm_bias": True}),
        ("ultrabert", {"norm_bias": True, "norm": "layer"}),
        ("longformer", {"window": 0}),
        ("longformer", {"global_tokens": "first"}),
        ("bigbird", {"task_heads": "plain"}),
        ("bigbird", {"causal": True}),
        ("albert", {"causal": True}),
        ("albert", {"layer_groups": 0}),
        ("albert", {"embedding_size": 0}),
    ],
)
def test_tensor_table_refuses_networks_transformers_lacks(family: str, fields: dict) -> None:
    config = small(family, **fields)
    assert not has_class(config)
    with pytest.raises(ValueError, match=f"transformers has no such network of the family '{family}'"):
        tensor_table(config)


@pytest.mark.parametrize(("family", "preset", "suffix"), long_unless(lambda family, *_: family in SUITE, COUNTS))
def test_presets_have_published_parameter_counts(family: str, preset: str, suffix: str) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config, hf = FAMILIES[family].presets[preset], FAMILIES[family].huggingface
    whole = (hf_class(replace(config, head=head)) for head in EXPORTED)
    their_class = next(member for member in (*hf.partial, *whole) if member.name == hf.beginning + suffix)
    head = next((name for name, head in EXPORTED.items() if head.transformers == suffix), PretrainingNetwork.name)
    beginnings = tuple(tensor.theirs.partition("{}")[0] for tensor in their_class.tensors)
    shapes = their_shapes(replace(config, head=head), SPECIAL["pad"])
    ours = sum(math.prod(shape) for tensor, shape in shapes.items() if tensor.startswith(beginnings))
    with torch.device("meta"):
        network = getattr(transformers, their_class.name)(their_config(config))
    others = (*hf.tied, *hf.ignored)
    named = network.named_parameters(remove_duplicate=False)
    theirs = {name: p.numel() for name, p in named if not name.startswith(others)}
    assert ours == sum(theirs.values()) == COUNTS[family, preset, suffix]


# Parameters without the vocabulary's padding. The repositories of these two publish no count, so these are derived.
# NeoBERT: a layer has 4 x 768^2 + 3 x 768 x 2,048 + 2 x 768; two tables of 30,522 x 768, decoder bias, final norm.
# MosaicBERT: a layer has 4 x (768^2 + 768) + 3 x 768 x 3,072 + 768 + 4 x 768; 30,522 + 2 rows and a norm; the head
# 768^2 + 768 + 2 x 768 + 30,522.
WITHOUT_A_CLASS = {
    "neobert": 28 * (4 * 768**2 + 3 * 768 * 2048 + 2 * 768) + 2 * 30_522 * 768 + 30_522 + 768,
    "mosaicbert": 12 * (4 * (768**2 + 768) + 3 * 768 * 3072 + 768 + 4 * 768)
    + 30_524 * 768
    + 2 * 768
    + (768**2 + 768 + 2 * 768 + 30_522),
}


@pytest.mark.parametrize("family", WITHOUT_A_CLASS)
def test_tensor_table_refuses_families_without_a_class(family: str) -> None:
    config = FAMILIES[family].presets["base"]
    unpadded = abstract_network(replace(config, vocab_pad_multiple=1))[1]
    assert sum(leaf.size for leaf in jax.tree.leaves(unpadded)) == WITHOUT_A_CLASS[family]
    assert not has_class(config)
    with pytest.raises(ValueError, match=rf"^transformers has no class of {FAMILIES[family].title}; .*bertjax embed, "):
        tensor_table(config)


@pytest.mark.parametrize("family", FAMILIES)
def test_family_is_counted_and_trained(family: str) -> None:
    assert family in {*WITHOUT_A_CLASS} | {name for name, *_ in COUNTS}, "add its number of parameters to COUNTS"
    # Other tests of runs train BERT, and a generator is trained with its model.
    assert family in {*MEMBERS, "bert", "electra-generator"}, "add it to MEMBERS of test_family_training.py"


def test_rotary_bases_are_read_from_old_and_new_keys() -> None:
    config = small("modernbert", rope_theta=20_000.0, rope_theta_local=500.0)
    values = to_config_json(config, SPECIAL)
    old = {key: value for key, value in values.items() if key not in ("rope_parameters", "layer_types")}
    old |= {"global_rope_theta": 20_000.0, "local_rope_theta": 500.0}
    assert from_config_json(old, "config.json") == config
    assert their_config(config).rope_parameters["sliding_attention"]["rope_theta"] == 500.0
    for key, value, message in (
        (
            "layer_types",
            ["full_attention", "full_attention", "sliding_attention"],
            "in every n-th layer from the first",
        ),
        (
            "rope_parameters",
            {"full_attention": {"rope_type": "yarn"}},
            "rope_type is 'yarn'; bertjax has only 'default'",
        ),
        ("rope_parameters", {"full_attention": {"rope_theta": -1}}, "rope_theta of full_attention is -1, which is not"),
        ("norm_bias", True, "norm_bias is True; bertjax imports only models with norm_bias False"),
    ):
        with pytest.raises(ValueError, match=message):
            from_config_json(values | {key: value}, "config.json")


def test_mean_pooling_is_refused_only_if_a_head_uses_it() -> None:
    values = to_config_json(small("modernbert"), SPECIAL) | {"classifier_pooling": "mean"}
    assert from_config_json(values | {"architectures": ["ModernBertForMaskedLM"]}, "config.json") == small("modernbert")
    with pytest.raises(ValueError, match="classifier_pooling is 'mean'; bertjax has heads that read"):
        from_config_json(values | {"architectures": ["ModernBertForSequenceClassification"]}, "config.json")


LONG = {
    "modernbert": {"num_hidden_layers": 5},
    "eurobert": {"num_key_value_heads": 1},
    "ultrabert": {"num_hidden_layers": 4, "num_key_value_heads": 1},
    "longformer": {},
    "deberta": {},
    "deberta-v2": {"conv_kernel": 3},
    "deberta-v3": {},
}


def long_case(family: str):
    """Return (config, network, batch) with published windows and bases, for a full and a padded row.

    In Longformer, the full row's first 40 tokens and another one are global, and two of the padded row's.
    """
    sizes = {"vocab_size": 301, "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 48}
    config = replace(FAMILIES[family].presets["base"], **(sizes | {"num_hidden_layers": 2} | LONG[family]))
    real = np.arange(2048) < np.array([[2048], [1500]])
    ids = np.where(real, np.random.default_rng(7).integers(3, 301, real.shape), SPECIAL["pad"])
    batch = {"input_ids": ids, "token_type_ids": np.zeros_like(ids), "attention_mask": real.astype(np.int64)}
    if config.global_tokens == "marked":
        batch["global_attention_mask"] = np.zeros_like(ids)
        batch["global_attention_mask"][0, [*range(40), 1000]] = 1
        batch["global_attention_mask"][1, [0, 1200]] = 1
    return config, their_model(config), batch


@pytest.mark.long
@pytest.mark.parametrize("family", LONG)
def test_packed_sequences_of_2048_tokens_equal_separate_rows(family: str) -> None:
    """Compare two sequences, of 548 and 1,500 tokens, in one row with each in its own row.

    States of every layer agree to 2e-6, and the gradients of all parameters to 1e-5, for random slopes of the states.
    """
    config, network, batch = long_case(family)
    graphdef, params = abstract_network(config)[0], our_params(network, config)
    ids, marked = batch["input_ids"].astype(np.int32), batch.get("global_attention_mask")

    @jax.jit
    def states_and_gradients(ids: jax.Array, numbers: jax.Array, places: jax.Array | None, slopes: jax.Array):
        def slope(params):
            encoder = bind(graphdef, params).encoder
            states = encoder.hidden_states(ids, ids * 0, numbers, packed=True, global_positions=places)
            return (states * slopes).sum(), states

        (_, states), gradients = jax.value_and_grad(slope, has_aux=True)(params)
        return states, gradients

    alone = np.zeros((2, 2048), np.int32)
    alone[0, :548], alone[1, :1500] = 1, 1
    together = np.repeat([1, 2], [548, 1500])[None].astype(np.int32)
    packed = np.concatenate([ids[0, :548], ids[1, :1500]])[None]
    alone_positions = packed_positions = None
    if marked is not None:
        both = np.concatenate([marked[0, :548], marked[1, :1500]])[None]
        alone_positions, packed_positions = (
            global_positions({"global_attention_mask": m}) for m in (marked * alone, both)
        )
    shape = (config.num_hidden_layers + 1, 1, 2048, config.hidden_size)
    slopes = np.random.default_rng(8).standard_normal(shape).astype(np.float32)
    apart = np.zeros((shape[0], 2, *shape[2:]), np.float32)
    apart[:, 0, :548], apart[:, 1, :1500] = slopes[:, 0, :548], slopes[:, 0, 548:]
    single, single_gradients = states_and_gradients(ids, alone, alone_positions, apart)
    row, row_gradients = states_and_gradients(packed, together, packed_positions, slopes)
    single, row = np.asarray(single), np.asarray(row)[:, 0]
    off = {"states": max(relative(row[:, :548], single[:, 0, :548]), relative(row[:, 548:], single[:, 1, :1500]))}
    ones, others = (jax.tree_util.tree_flatten_with_path(tree)[0] for tree in (single_gradients, row_gradients))
    largest = max(float(np.abs(leaf).max()) for _, leaf in ones)
    for (path, one), (_, other) in zip(ones, others, strict=True):
        scale = max(
            float(np.abs(one).max()), 1e-3 * largest
        )  # softmax cancels some biases: their gradients are rounding
        off[jax.tree_util.keystr(path)] = float(np.abs(np.asarray(one) - np.asarray(other)).max()) / scale
    worst = max(off, key=lambda name: off[name])
    print(f"{family} packed at 2,048 tokens: states {off['states']:.1e}, largest of all {off[worst]:.1e} ({worst})")
    assert off["states"] < 2e-6 and off[worst] < 1e-5, (worst, off)


def test_unsupported_windows_and_blocks_are_refused() -> None:
    longformer, bigbird = (to_config_json(small(family), SPECIAL) for family in ("longformer", "bigbird"))
    assert from_config_json(longformer | {"attention_window": 6}, "config.json").window == 3
    full = from_config_json(bigbird | {"attention_type": "original_full"}, "config.json")
    assert (full.attention_block, full.random_blocks) == (0, 0) and from_config_json(
        to_config_json(full, SPECIAL), "config.json"
    ) == full
    seeded = small("bigbird", random_blocks_seed=7)
    assert from_config_json(to_config_json(seeded, SPECIAL), "config.json") == seeded
    for values, change, message in (
        (longformer, {"attention_window": [8, 8, 16]}, "attention_window is .8, 8, 16.; bertjax has one even window"),
        (longformer, {"attention_window": 7}, "attention_window is 7; bertjax has one even window"),
        (bigbird, {"attention_type": "ring"}, "attention_type is 'ring'; bertjax has 'block_sparse'"),
        (bigbird, {"block_size": -1}, "block_size is -1, which is not a sensible number"),
        (bigbird, {"rescale_embeddings": True}, "rescale_embeddings is True; bertjax imports only models with"),
    ):
        with pytest.raises(ValueError, match=message):
            from_config_json(values | change, "config.json")
