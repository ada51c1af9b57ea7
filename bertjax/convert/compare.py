"""Proof of an export: the same text through our model and through transformers', logits compared."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.model.bert import Params, abstract_bert, bind
from bertjax.text.tokenizer import WordPiece
from bertjax.training.run_directory import TrainedModel

LIMIT = 1e-5  # of the relative difference, float32

# Padding (the pairs differ in length), two segments, accents, digits, other scripts.
PAIRS = (
    ("The museum opened in 1877.", "It holds more than 40,000 drawings, most of them given by a single family."),
    ("She had not expected an answer so soon.", "“Naïve,” he wrote, “but not wrong.”"),
    ("Returns the sum of the elements along an axis.", "Bananas are grown in over 130 countries."),
    ("La rivière traverse la vieille ville avant de rejoindre la mer, à trente kilomètres de là.", "Où est-elle?"),
    ("北京是中国的首都。", "Москва — столица России."),
)


@dataclass(frozen=True)
class Difference:
    """How far two sets of logits are apart: norm of the difference over the norm of the reference."""

    mlm: float
    nsp: float

    def __str__(self) -> str:
        return f"MLM logits {self.mlm:.1e}, NSP logits {self.nsp:.1e}"


def compare_with_transformers(
    model: TrainedModel, directory: str | Path, pairs: Sequence[tuple[str, str]] = PAIRS
) -> Difference | None:
    """Compare our float32 logits for pairs of texts with those of the exported model; None without torch, transformers.

    Padding is left out. Raises RuntimeError if token ids differ, or logits by more than `LIMIT`.
    """
    if any(importlib.util.find_spec(package) is None for package in ("torch", "transformers")):
        return None
    from transformers import AutoTokenizer, BertForPreTraining

    tokenizer = AutoTokenizer.from_pretrained(directory)
    network = BertForPreTraining.from_pretrained(directory).eval()
    _check_ids(model.tokenizer, tokenizer, pairs)
    first, second = zip(*pairs, strict=True)
    length = model.config.data.sequence_length
    batch = tokenizer(list(first), list(second), padding=True, truncation=True, max_length=length, return_tensors="np")
    found = _difference(batch, _our_logits(model, batch), _their_logits(network, batch))
    if not max(found.mlm, found.nsp) <= LIMIT:
        raise RuntimeError(f"export {directory}: transformers computes other logits, off by {found} (limit {LIMIT})")
    return found


def _check_ids(ours: WordPiece, theirs: Any, pairs: Sequence[tuple[str, str]]) -> None:
    for pair in pairs:
        first, second = (ids.tolist() for ids in ours.encode_sentences(pair))
        wanted = [ours.cls_id, *first, ours.sep_id, *second, ours.sep_id]
        found = theirs(*pair, verbose=False)["input_ids"]
        if found != wanted:
            raise RuntimeError(f"the exported tokenizer encodes {pair} as {found}, ours as {wanted}")


def _our_logits(model: TrainedModel, batch: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """MLM logits [B, L, V] and NSP logits [B, 2] of our network, in float32 whatever it was trained in."""
    config = replace(model.config.model, dtype="float32")
    graphdef = abstract_bert(config)[0]
    ids, types, mask = (jnp.asarray(batch[key], jnp.int32) for key in ("input_ids", "token_type_ids", "attention_mask"))

    @jax.jit
    def logits(params: Params) -> tuple[jax.Array, jax.Array]:
        bert = bind(graphdef, params)
        hidden = bert.encoder(ids, types, mask, packed=False)
        everywhere = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
        return bert.mlm_logits(hidden, everywhere), bert.nsp_logits(hidden, everywhere[:, :1])[:, 0]

    # Accelerators multiply float32 in fewer bits unless told otherwise.
    with jax.default_matmul_precision("highest"):
        mlm, nsp = jax.device_get(logits(model.params))
    return mlm[..., : config.vocab_size], nsp


def _their_logits(network: Any, batch: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The same of transformers' network."""
    import torch

    with torch.no_grad():
        out = network(**{key: torch.from_numpy(x) for key, x in batch.items()})
    return out.prediction_logits.numpy(), out.seq_relationship_logits.numpy()


def _difference(
    batch: Mapping[str, np.ndarray], ours: tuple[np.ndarray, ...], theirs: tuple[np.ndarray, ...]
) -> Difference:
    real = batch["attention_mask"] == 1
    pairs = (ours[0][real], theirs[0][real]), (ours[1], theirs[1])
    return Difference(*(float(np.linalg.norm(our - their) / np.linalg.norm(their)) for our, their in pairs))
