"""Dropout: share and scale, and masks that do not depend on each other or on how a batch is split."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from real_batches import real_batch, small_wordpiece
from their_model import our_params, relative, their_model, their_outputs

from bertjax.config import ModelConfig
from bertjax.families.networks import abstract_network
from bertjax.model.dropout import ATTENTION_OUTPUT, ATTENTION_PROBS, EMBEDDINGS, MLP_OUTPUT, dropout, fold, row_keys
from bertjax.model.network import bind

SITES = (EMBEDDINGS, ATTENTION_PROBS, ATTENTION_OUTPUT, MLP_OUTPUT)
ELEMENTS = 16_384
SIGMAS = 5  # a true generator fails a test this far out once in 1.7 million times


def keys(rows=(0,), step=7, seed=1):
    return row_keys(seed, jnp.int32(step), jnp.asarray(rows, jnp.uint32))


def keep_mask(keys, site=EMBEDDINGS, rate=0.1, elements=ELEMENTS):
    """The mask of the elements that dropout keeps, bool [rows, elements]."""
    return np.asarray(dropout(jnp.ones((len(keys), elements)), keys, site, rate)) != 0


def assert_independent(masks, rate):
    """Assert that any two masks agree as often as independent ones."""
    expected = rate**2 + (1 - rate) ** 2
    error = np.sqrt(expected * (1 - expected) / masks.shape[1])
    for one, other in itertools.combinations(masks, 2):
        assert abs((one == other).mean() - expected) < SIGMAS * error


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_drops_the_requested_share_of_every_row(rate):
    shares = 1 - keep_mask(keys(range(64)), rate=rate).mean(axis=1)
    error = np.sqrt(rate * (1 - rate) / ELEMENTS)
    assert np.abs(shares - rate).max() < SIGMAS * error
    assert abs(shares.mean() - rate) < SIGMAS * error / 8
    # If the masks of rows were permutations of one mask, their shares would all be equal.
    assert 0.6 * error < shares.std() < 1.5 * error


def test_dropout_keeps_the_mean():
    x = jnp.asarray(np.random.default_rng(0).normal(5, 1, (4, ELEMENTS)), jnp.float32)
    y = np.asarray(dropout(x, keys(range(4)), MLP_OUTPUT, 0.2))
    kept = y != 0
    np.testing.assert_allclose(y[kept], np.asarray(x)[kept] / 0.8, rtol=1e-6)
    assert y.mean() == pytest.approx(float(x.mean()), rel=0.02)


def test_dropout_gradient_uses_the_same_mask():
    x = jnp.ones((2, 512))
    y, back = jax.vjp(lambda x: dropout(x, keys((0, 1)), MLP_OUTPUT, 0.3), x)
    np.testing.assert_array_equal(back(jnp.ones_like(x))[0], y)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_masks_are_independent_across_rows_sites_and_steps(rate):
    folded = [fold(keys(), layer + 1) for layer in range(12)]
    families = {
        "rows": keep_mask(keys([*range(24), 255, 256, 65_535]), rate=rate),
        "layers": np.concatenate([keep_mask(key, rate=rate) for key in folded]),
        "sites": np.concatenate([keep_mask(keys(), site, rate) for site in SITES]),
        "layers and sites": np.concatenate([keep_mask(key, site, rate) for key in folded[:4] for site in SITES]),
        "steps": np.concatenate([keep_mask(keys(step=step), rate=rate) for step in (0, 1, 2, 3, 1000, 1001, 999_999)]),
        "seeds": np.concatenate([keep_mask(keys(seed=seed), rate=rate) for seed in (0, 1, 2, 3, 12345)]),
        "row n of step m": np.concatenate([keep_mask(keys((n,), m), rate=rate) for n in range(4) for m in range(4)]),
    }
    for masks in families.values():
        assert_independent(masks, rate)


def test_mask_is_independent_of_its_shifts():
    (mask,) = keep_mask(keys(), rate=0.5)
    shifts = (1, 2, 3, 64, 128, 4096)
    assert_independent(np.stack([mask, *(np.roll(mask, shift) for shift in shifts)]), 0.5)


def test_mask_of_a_row_does_not_depend_on_batch_split():
    x = jnp.ones((8, 3, 32))
    all_keys = keys(range(8))
    whole = np.asarray(dropout(x, all_keys, ATTENTION_OUTPUT, 0.1))
    for rows in ([1, 3, 5, 7], [6]):
        part = np.asarray(dropout(x[np.array(rows)], keys(rows), ATTENTION_OUTPUT, 0.1))
        np.testing.assert_array_equal(part, whole[rows])


def test_dropout_without_keys_or_rate_is_identity():
    x = jnp.arange(12.0).reshape(2, 6)
    assert dropout(x, None, EMBEDDINGS, 0.1) is x
    assert dropout(x, keys((0, 1)), EMBEDDINGS, 0.0) is x


def test_dropout_keeps_dtype():
    assert dropout(jnp.ones((1, 8), jnp.bfloat16), keys(), EMBEDDINGS, 0.1).dtype == jnp.bfloat16


def our_masks(config: ModelConfig, rows: int, length: int, row: jax.Array) -> Iterator[tuple[float, np.ndarray]]:
    """Yield (rate, factors) of every dropout site, in the order in which a network applies them."""
    hidden, heads = (length, config.hidden_size), (config.num_attention_heads, length, length)
    sites = [(row, EMBEDDINGS, hidden)]
    for layer in range(config.num_hidden_layers):
        key = fold(row, layer + 1)
        sites += [(key, ATTENTION_PROBS, heads), (key, ATTENTION_OUTPUT, hidden), (key, MLP_OUTPUT, hidden)]
    for key, site, inner in sites:
        rate = config.attention_probs_dropout_prob if site == ATTENTION_PROBS else config.hidden_dropout_prob
        yield rate, np.array(dropout(jnp.ones((rows, *inner)), key, site, rate))


def test_dropout_sites_match_transformers(monkeypatch):
    """With our masks at its own dropout sites, transformers computes our outputs, heads included."""
    torch = pytest.importorskip("torch")
    batch = real_batch(small_wordpiece(), rows=6)
    config = ModelConfig(
        vocab_size=small_wordpiece().vocab_size, hidden_size=64, num_hidden_layers=3, num_attention_heads=4,
        intermediate_size=160, max_position_embeddings=64, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.3,
    )  # fmt: skip
    network = their_model(config).train()
    network.set_attn_implementation("eager")
    row_key = keys(range(6))
    masks = our_masks(config, 6, 64, row_key)

    def drop(x, p=0.5, training=True, inplace=False):
        rate, factors = next(masks)
        assert training and p == rate and x.shape == factors.shape
        return x * torch.from_numpy(factors)

    monkeypatch.setattr(torch.nn.functional, "dropout", drop)
    theirs = their_outputs(network, batch)
    assert next(masks, None) is None, "transformers has fewer sites"

    @jax.jit
    def ours(params):
        bert = bind(abstract_network(config)[0], params)
        inputs = batch["input_ids"], batch["token_type_ids"], batch["sequence_ids"]
        hidden = bert.encoder(*inputs, row_key, packed=False)
        everywhere = jnp.broadcast_to(jnp.arange(64), batch["input_ids"].shape)
        return hidden, bert.mlm_logits(hidden, everywhere), bert.nsp_logits(hidden, batch["cls_positions"])

    hidden, mlm, nsp = jax.device_get(ours(our_params(network, config)))
    real = batch["sequence_ids"] > 0
    assert relative(hidden[real], theirs.hidden_states[-1].detach().numpy()[real]) < 2e-6
    assert relative(mlm[real][:, : config.vocab_size], theirs.prediction_logits.detach().numpy()[real]) < 2e-6
    assert relative(nsp[:, 0], theirs.seq_relationship_logits.detach().numpy()) < 2e-6
