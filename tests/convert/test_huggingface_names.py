"""The table of tensor names: complete, reversible bit for bit, and clear about mismatches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from exported_models import trained_model
from flax import nnx
from their_families import small

import bertjax
from bertjax.config import Config, DataConfig, ModelConfig, TrainingConfig
from bertjax.convert.huggingface.config import from_config_json, to_config_json
from bertjax.convert.huggingface.names import (
    from_huggingface_tensors,
    tensor_table,
    their_shapes,
    to_huggingface_tensors,
)
from bertjax.families.bert import BERT
from bertjax.families.registry import FAMILIES
from bertjax.model.task_heads import TaskHead


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return trained_model(tmp_path_factory.mktemp("run"))


@pytest.mark.parametrize("vocab_pad_multiple", [1, 128, 1000])
def test_tensors_round_trip_for_any_padding(model, vocab_pad_multiple):
    config = replace(model.config.model, vocab_pad_multiple=vocab_pad_multiple)
    tensors = to_huggingface_tensors(model.params, config)
    assert {name: tensor.shape for name, tensor in tensors.items()} == their_shapes(config)
    back = from_huggingface_tensors(tensors, config)
    again = to_huggingface_tensors(back, config)
    for name, tensor in tensors.items():
        assert tensor.flags["C_CONTIGUOUS"] and tensor.dtype == np.float32
        np.testing.assert_array_equal(again[name], tensor, name)
    if vocab_pad_multiple == model.config.model.vocab_pad_multiple:
        jax.tree.map(np.testing.assert_array_equal, back, jax.device_get(model.params))


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        (
            "spanbert",
            {"left_out": ()},
            r"no tensors for sbo_head/bias.*or name sbo_head in its `left_out`",
        ),
        ("bert", {"pretraining": BERT.transformers.partial[0]}, r"or name nsp_head, pooler in its `left_out`"),
        (
            "distilbert",
            {"pretraining": BERT.transformers.pretraining},
            r"no parameter for encoder/embeddings/token_type",
        ),
    ],
)
def test_pretrain_names_heads_that_tables_lack(
    family: str, changes: dict, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    definition = FAMILIES[family]
    monkeypatch.setitem(FAMILIES, family, replace(definition, huggingface=replace(definition.transformers, **changes)))
    config = Config(
        model=definition.presets["base"],
        data=DataConfig(sources=(f"lines:{tmp_path / 'absent.txt'}",)),
        training=TrainingConfig(steps=20_000, objectives=("mlm",)),
        run_dir=str(tmp_path / "run"),
    )
    with pytest.raises(ValueError, match=message):
        bertjax.pretrain(config)


def test_tensor_table_refuses_the_feature_based_tagger():
    with pytest.raises(ValueError, match=r"lstm_size=8: transformers has no such network"):
        tensor_table(ModelConfig(head="tokens", num_labels=2, lstm_size=8))


def test_from_huggingface_tensors_names_mismatches(model):
    config = model.config.model
    tensors = to_huggingface_tensors(model.params, config)
    without = {name: tensor for name, tensor in tensors.items() if name != "bert.pooler.dense.bias"}
    with pytest.raises(ValueError, match=r"missing bert\.pooler\.dense\.bias; left over none"):
        from_huggingface_tensors(without, config)
    with pytest.raises(ValueError, match=r"num_hidden_layers=1.*left over bert\.encoder\.layer\.1.* and 11 more"):
        from_huggingface_tensors(tensors, replace(config, num_hidden_layers=1))
    with pytest.raises(ValueError, match=r"word_embeddings\.weight has shape \(\d+, 32\).*is \(7, 32\)"):
        from_huggingface_tensors(tensors, replace(config, vocab_size=7))


@pytest.mark.parametrize(
    ("family", "key", "value", "rate"),
    [
        ("albert", "classifier_dropout_prob", 0.25, 0.25),
        ("albert", "classifier_dropout_prob", "absent", 0.1),
        ("bert", "classifier_dropout", 0.25, 0.25),
        ("bert", "classifier_dropout", None, 0.3),
        ("roberta", "classifier_dropout", 0.0, 0.0),
        ("modernbert", "classifier_dropout", "absent", 0.0),
        ("longformer", "classifier_dropout", 0.25, 0.3),
    ],
)
def test_from_config_json_reads_the_dropout_of_heads(family: str, key: str, value: object, rate: float) -> None:
    written = to_config_json(small(family, hidden_dropout_prob=0.3), {"pad": 0})
    values = {name: x for name, x in written.items() if name != key} | ({} if value == "absent" else {key: value})
    config = from_config_json(values, "config.json")
    assert config.hidden_dropout_prob == 0.3 and config.task_dropout_prob == rate
    assert from_config_json(to_config_json(config, {"pad": 0}), "again") == config
    assert TaskHead(config, config.hidden_size, 2, rngs=nnx.Rngs(0)).dropout_rate == rate


def test_from_config_json_refuses_invalid_dropout() -> None:
    written = to_config_json(small("bert"), {"pad": 0})
    with pytest.raises(ValueError, match="classifier_dropout is 'much', which is not a sensible number"):
        from_config_json(written | {"classifier_dropout": "much"}, "config.json")
