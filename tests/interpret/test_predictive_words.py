"""Predicting words equal those computed one by one with the plain model."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from exported_models import trained_model

from bertjax.interpret import attention_patterns as measured
from bertjax.interpret import masked_tokens
from bertjax.interpret.token_rows import read_row
from bertjax.model.network import bind
from bertjax.storage.progress import no_progress


def test_predicting_word_lowers_probability_most(tmp_path, monkeypatch):
    monkeypatch.setattr(masked_tokens, "_TOKENS", 5 * 16)
    model = trained_model(tmp_path)
    # Larger weights, so that words depend on each other more than in a random model.
    model = replace(model, params=jax.tree.map(lambda leaf: 2 * leaf, model.params))
    rows = [
        read_row(model.tokenizer, texts, 64)
        for texts in (["the museum opened, and the drawings", "of 1877"], ["naive museum"], ["the"])
    ]

    @jax.jit
    def log_probability(ids, types, place, token):
        bert = bind(model.graphdef, model.params)
        hidden = bert.encoder(ids[None], types[None], jnp.ones_like(ids)[None])
        return jax.nn.log_softmax(bert.mlm_logits(hidden, place[None, None])[0, 0])[token]

    def asked(row, place, *hidden):
        ids = row.ids.copy()
        ids[[place, *hidden]] = model.tokenizer.mask_id
        return float(log_probability(ids, row.segments, np.int32(place), row.ids[place]))

    questions = [(row, place) for row in rows for place in np.flatnonzero(row.is_word).tolist()]
    expected = []
    for row, place in questions:
        others = [other for other in np.flatnonzero(row.is_word).tolist() if other != place]
        drops = [asked(row, place) - asked(row, place, other) for other in others]
        best = int(np.argmax(drops)) if drops else None
        expected.append(None if best is None or drops[best] < np.log(1.1) else others[best])
    assert measured.predictive_words(model, questions, no_progress) == expected
    assert None in expected and len({answer for answer in expected if answer is not None}) > 1


def test_masked_tokens_use_at_most_two_batch_heights(tmp_path, monkeypatch):
    model, shapes = trained_model(tmp_path), []
    compute = masked_tokens._token_log_probabilities

    def computed(graphdef, params, ids, *others):
        shapes.append(ids.shape)
        return compute(graphdef, params, ids, *others)

    monkeypatch.setattr(masked_tokens, "_token_log_probabilities", computed)
    rows = [read_row(model.tokenizer, ["the museum " * count], 64) for count in (2, 12, 3, 20, 1, 9, 12, 3)]
    questions = [(row, place) for row in rows for place in np.flatnonzero(row.is_word).tolist()]
    measured.predictive_words(model, questions, no_progress)
    asked = {width: sum(len(r) - 2 for r, _ in questions if masked_tokens.row_width(model, len(r)) == width)
             for width in {width for _, width in shapes}}  # fmt: skip
    assert {*asked} == {16, 32, 64}
    most = {width: masked_tokens._TOKENS // width for width in asked}
    assert all(height in (masked_tokens._FEW, most[width]) for height, width in shapes)
    assert len(shapes) == sum(-(-count // most[width]) for width, count in asked.items())
