"""Protein families: packed rows with masks, tensors of older files, and a mask token of another vocabulary."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from their_families import MASK, SMALL, SPECIAL, our_params, relative, their_model, their_tensors

from bertjax.convert.foreign import foreign_model
from bertjax.convert.huggingface.importer import canonical_names
from bertjax.families.networks import abstract_network
from bertjax.model.network import bind


@pytest.mark.parametrize("family", ["esm", "esmc"])
def test_packed_sequences_equal_separate_rows(family: str) -> None:
    """Token dropout scales embeddings by the share of <mask> in each sequence, not in the row."""
    torch = pytest.importorskip("torch")
    config = SMALL[family]
    network = their_model(config)
    ids = np.random.default_rng(7).integers(4, config.vocab_size, 14)
    ids[[2, 3, 4, 11]] = MASK
    parts = [ids[:6], ids[6:13], ids[13:]]
    numbers = np.repeat([1, 2, 3], [6, 7, 1])
    row, sequence_ids = (jnp.asarray(x[None], jnp.int32) for x in (ids, numbers))
    encoder = bind(abstract_network(config)[0], our_params(network, config)).encoder
    packed = encoder(row, row * 0, sequence_ids)[0]
    with torch.no_grad():
        alone = [
            getattr(network, family)(torch.from_numpy(part[None]), torch.ones(1, len(part))).last_hidden_state
            for part in parts
        ]
    assert relative(packed, torch.cat(alone, 1)[0].numpy()) < 1e-5


def test_canonical_names_leaves_out_tensors_of_older_files() -> None:
    config = SMALL["esm"]
    tensors = their_tensors(their_model(config), config)
    extra = {
        "esm.contact_head.regression.weight": np.ones((1, 9), np.float32),
        "esm.embeddings.position_embeddings.weight": np.ones((16, 12), np.float32),
        "esm.encoder.layer.0.attention.self.rotary_embeddings.inv_freq": np.ones(2, np.float32),
    }
    canonical, left_out = canonical_names(tensors | extra, config, "hf:folder")
    assert canonical.keys() == tensors.keys() and sorted(left_out) == sorted(extra)


def test_foreign_model_refuses_another_mask_token() -> None:
    from family_models import tokenizer_of

    tokenizer = tokenizer_of("bert")
    config = SMALL["esm"]
    words = np.zeros((tokenizer.vocab_size, config.hidden_size), np.float32)
    with pytest.raises(ValueError, match="mask_token_id is 3, and the mask token of the vocabulary is"):
        foreign_model(
            "hf:folder", config, tokenizer, {"esm.embeddings.word_embeddings.weight": words}, pad_id=SPECIAL["pad"]
        )
