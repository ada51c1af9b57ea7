"""Pretraining losses and all gradients against transformers' classes; sentence order also against its formula."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_batches import random_batches
from small_training import draw_params
from their_families import SPECIAL, our_params, small, their_config, their_model

from bertjax.config import ExecutionConfig, ModelConfig
from bertjax.convert.huggingface.names import to_huggingface_tensors
from bertjax.families.networks import abstract_network
from bertjax.model.network import GENERATOR, bind
from bertjax.run.run_directory import extract_generator
from bertjax.training.objectives import choose
from bertjax.training.objectives.objective import MODEL, Forward
from bertjax.training.objectives.rtd import replaced
from bertjax.training.step import averages, batch_weights, objective_sums

ROWS, LENGTH = 16, 14
IN_CHUNKS = ExecutionConfig(logits_chunk=16)
Batch = dict[str, np.ndarray]
CASES = {  # objectives, and the class's argument for the labels of pairs
    "albert": (("mlm", "sop"), "sentence_order_label"),
    "macbert": (("mlm", "sop"), "next_sentence_label"),
    "ernie": (("mlm", "nsp"), "next_sentence_label"),
    "distilbert": (("mlm",), ""),
    "roberta": (("mlm",), ""),
    "spanbert": (("mlm",), ""),
}


def make_config(family: str) -> ModelConfig:
    more = {"task_type_vocab_size": 3} if family == "ernie" else {}
    return small(family, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **more)


def make_batch(config: ModelConfig) -> Batch:
    """Rows of several lengths; tokens are never [PAD], because RoBERTa counts positions by the other ids."""
    shape = {"rows": ROWS, "length": LENGTH, "predictions": 4, "vocab_size": config.vocab_size, "seed": 7}
    (batch,) = random_batches(1, **shape)
    real = batch["sequence_ids"] > 0
    draw = np.random.default_rng(8)
    return batch | {
        "input_ids": np.where(real, np.maximum(batch["input_ids"], 3), SPECIAL["pad"]).astype(np.int32),
        "token_type_ids": batch["token_type_ids"].clip(max=max(config.type_vocab_size - 1, 0)),
        "rtd_weights": real.astype(np.float32),
        "rtd_draws": draw.integers(0, 2**32, batch["mlm_labels"].shape, dtype=np.uint32),
    }


def ours(config: ModelConfig, params: dict, batch: Batch, objectives: tuple[str, ...]) -> tuple[dict, dict]:
    """(figures, gradients), combined as in the train step."""
    graphdef, chosen = abstract_network(config, IN_CHUNKS)[0], choose(objectives)

    def loss(params: dict, batch: Batch) -> tuple[jax.Array, dict]:
        model = bind(graphdef, params)
        networks = {MODEL: model, **model.companions()}
        forward = Forward(networks, None, packed=False, trained=tuple(networks))
        figures = averages(objective_sums(forward, batch, None, chosen), batch_weights(batch, chosen), chosen)
        return figures["loss"], figures

    (_, figures), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(params, batch)
    return jax.device_get(figures), jax.device_get(gradients)


def their_inputs(batch: Batch, config: ModelConfig) -> dict:
    """The inputs of transformers' classes, with labels where ours predict."""
    import torch

    labels = np.full(batch["input_ids"].shape, -100)
    rows, slots = np.nonzero(batch["mlm_weights"])
    labels[rows, batch["mlm_positions"][rows, slots]] = batch["mlm_labels"][rows, slots]
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["sequence_ids"], "labels": labels}
    if config.type_vocab_size:
        inputs["token_type_ids"] = batch["token_type_ids"]
    return {name: torch.from_numpy(np.asarray(x, np.int64)) for name, x in inputs.items()}


def assert_same_gradients(actual: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """Compare each by the norm of the difference, relative to its norm, or to the norm of all if its own is tiny."""
    whole = np.sqrt(sum(np.square(x).sum() for x in expected.values()))
    for name, mine in actual.items():
        off = np.linalg.norm(mine - expected[name])
        assert off <= 1e-5 * np.linalg.norm(expected[name]) or off <= 1e-6 * whole, (name, off, whole)


def named_gradients(network) -> dict[str, np.ndarray]:
    """Their gradients by name, each tied one under all its names."""
    named = network.named_parameters(remove_duplicate=False)
    return {name: p.grad.numpy() for name, p in named if p.grad is not None}


@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=[pytest.mark.long] * (name not in ("albert", "ernie"))) for name in CASES],
)
def test_losses_and_gradients_equal_transformers(family: str) -> None:
    torch = pytest.importorskip("torch")
    objectives, pair_argument = CASES[family]
    config = make_config(family)
    network, batch = their_model(config), make_batch(config)
    figures, gradients = ours(config, our_params(network, config), batch, objectives)
    inputs = their_inputs(batch, config)
    if pair_argument:
        inputs[pair_argument] = torch.from_numpy(batch["pair_labels"][:, 0]).long()
    loss = network.double()(**inputs).loss
    loss.backward()
    assert figures["loss"] == pytest.approx(loss.item(), rel=1e-6)
    assert_same_gradients(to_huggingface_tensors(gradients, config, SPECIAL["pad"]), named_gradients(network))


@pytest.mark.long  # the suite has figures and samples in test_replaced_tokens.py
def test_electra_gradients_equal_transformers_with_one_table() -> None:
    """`ElectraForMaskedLM` on the masked tokens plus 50 times `ElectraForPreTraining` on our samples."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = small("electra", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, generator_width=1 / 3)
    batch, params = make_batch(config), random_params(config)

    @jax.jit
    def sampled(batch: dict) -> tuple[jax.Array, jax.Array]:
        model = bind(abstract_network(config, IN_CHUNKS)[0], params)
        return replaced(
            Forward({MODEL: model, **model.companions()}, None, packed=False, trained=(MODEL, GENERATOR)), batch
        )

    ids, is_replaced = (np.asarray(x, np.int64) for x in sampled(batch))
    assert is_replaced.any()
    figures, gradients = ours(config, params, batch, ("mlm", "rtd"))
    alone, without = replace(config, generator_width=0.0), lambda tree: {k: tree[k] for k in tree if k != GENERATOR}
    sides = [
        (transformers.ElectraForMaskedLM, extract_generator, config),
        (transformers.ElectraForPreTraining, None, alone),
    ]
    networks, our_gradients = [], []
    for their_class, part, one in sides:
        own, its_params = part(one, params) if part else (one, without(params))
        network = their_class(their_config(own))
        tensors = to_huggingface_tensors(its_params, own, SPECIAL["pad"])
        assert not network.load_state_dict({k: torch.from_numpy(x.copy()) for k, x in tensors.items()}, False)[1]
        our_gradients.append(
            to_huggingface_tensors(part(one, gradients)[1] if part else without(gradients), own, SPECIAL["pad"])
        )
        networks.append(network.eval().double())
    generator, discriminator = networks
    # Theirs drops the gradient of [PAD]'s row even where [PAD] was sampled.
    discriminator.electra.embeddings.word_embeddings.padding_idx = None
    generator.electra.embeddings = discriminator.electra.embeddings
    generator.tie_weights()
    inputs = their_inputs(batch, config)
    mlm = generator(**inputs).loss
    rtd = discriminator(**inputs | {"input_ids": torch.from_numpy(ids), "labels": torch.from_numpy(is_replaced)}).loss
    (mlm + 50 * rtd).backward()
    assert figures["mlm_loss"] == pytest.approx(mlm.item(), rel=1e-6)
    assert figures["rtd_loss"] == pytest.approx(rtd.item(), rel=1e-6)
    assert figures["loss"] == pytest.approx((mlm + 50 * rtd).item(), rel=1e-6)
    for mine, network in zip(our_gradients, networks, strict=True):
        assert_same_gradients(mine, named_gradients(network))


def random_params(config: ModelConfig) -> dict:
    return jax.tree.map(jnp.asarray, draw_params(config, noise=0.1))


@pytest.mark.parametrize("family", ["albert", pytest.param("macbert", marks=pytest.mark.long)])
def test_sop_loss_and_gradients_equal_their_formula(family: str) -> None:
    """softmax(W tanh(P h + b) + c) of the [CLS] vector h, whose second class is "exchanged"; in float64 NumPy."""
    config = make_config(family)
    batch, params = make_batch(config), random_params(config)
    batch["pair_weights"][::3] = 0.0
    figures, gradients = ours(config, params, batch, ("sop",))
    inputs = (batch[key] for key in ("input_ids", "token_type_ids", "sequence_ids"))
    model = bind(abstract_network(config)[0], params)
    hidden = jax.jit(partial(model.encode, packed=False))(*inputs)
    h = np.asarray(hidden, np.float64)[:, 0]
    P, b = (np.asarray(params["pooler"]["dense"][name], np.float64) for name in ("kernel", "bias"))
    W, c = (np.asarray(params["sop_head"]["dense"][name], np.float64) for name in ("kernel", "bias"))
    pooled = np.tanh(h @ P + b)
    z = pooled @ W + c
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    labels, weights = batch["pair_labels"][:, 0], batch["pair_weights"][:, 0]
    total = weights.sum()
    loss = -(np.log(p[np.arange(ROWS), labels]) * weights).sum() / total
    assert figures["sop_loss"] == pytest.approx(loss, rel=1e-6)
    assert figures["sop_accuracy"] == pytest.approx((((z[:, 1] > z[:, 0]) == labels) * weights).sum() / total)
    by_logits = (p - np.eye(2)[labels]) * weights[:, None] / total
    by_pooled = (by_logits @ W.T) * (1 - pooled**2)
    expected = {"W": pooled.T @ by_logits, "c": by_logits.sum(0), "P": h.T @ by_pooled, "b": by_pooled.sum(0)}
    head, pooler = gradients["sop_head"]["dense"], gradients["pooler"]["dense"]
    actual = {"W": head["kernel"], "c": head["bias"], "P": pooler["kernel"], "b": pooler["bias"]}
    for name, x in actual.items():
        assert np.linalg.norm(x - expected[name]) <= 1e-6 * np.linalg.norm(expected[name]), name
