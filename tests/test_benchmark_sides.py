"""The train step benchmarks: the loss with a gathered head, and the ratios."""

from __future__ import annotations

import sys
from dataclasses import replace

import bench_train_step
import numpy as np
import pytest
from sides import HEADS, Work, dense_labels

from bertjax.config import ModelConfig
from bertjax.families.registry import get_family


@pytest.mark.parametrize("family", HEADS)
def test_gathered_head_equals_full_head(family: str) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    pytest.importorskip("transformers", reason="needs transformers")
    from their_pretraining import predict_where_labelled, pretraining

    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    presets = get_family(family).presets
    model = replace(next(iter(presets.values())) if presets else ModelConfig(), **small)
    model = replace(model, vocab_size=2000, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    batch = Work(model, 2, length=64, predictions=10).batch()
    labels = torch.tensor(dense_labels(batch))
    inputs = {name: torch.tensor(batch[name], dtype=torch.long) for name in ("input_ids", "token_type_ids")}
    inputs["pair_labels"] = torch.tensor(batch["pair_labels"][:, 0], dtype=torch.long)
    network, loss_of = pretraining(model)
    expected = loss_of(inputs | {"labels": labels})
    gradients = torch.autograd.grad(expected, list(network.parameters()), allow_unused=True)
    shapes: list[tuple[int, ...]] = []
    labelled = predict_where_labelled(network, family, labels)
    network.get_submodule(HEADS[family]).register_forward_hook(
        lambda _, inputs, outputs: shapes.append(tuple(inputs[0].shape))
    )
    actual = loss_of(inputs | {"labels": labelled})
    assert shapes[0][:2] == labelled.shape == (1, (labels >= 0).sum()) and labelled.numel() < labels.numel() / 4
    np.testing.assert_allclose(actual.item(), expected.item(), rtol=1e-6)
    actual_gradients = torch.autograd.grad(actual, list(network.parameters()), allow_unused=True)
    for one, other in zip(actual_gradients, gradients, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            np.testing.assert_allclose(one.numpy(), other.numpy(), atol=1e-6)


def test_ratio_compares_fastest_settings_with_range() -> None:
    times = {
        ("bertjax", "float32"): [2.0, 2.0, 4.0],
        ("bertjax", "bfloat16"): [1.0, 1.25, 1.0],
        ("transformers", "float32"): [3.0, 3.0, 3.0],
        ("transformers", "bfloat16 compiled"): [2.5, 2.0, 2.0],
    }
    assert bench_train_step.ratio(times, "transformers") == "2.00 (1.60 to 2.50 in a round)"
    assert bench_train_step.ratio(times, "transformers", "float32") == "1.50 (0.75 to 1.50 in a round)"


def test_gathered_option_refuses_unsupported_families(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["bench_train_step.py", "electra", "--gathered"])
    with pytest.raises(SystemExit):
        bench_train_step.main()
    assert "not supported for electra (electra), only for bert, albert" in capsys.readouterr().err
