"""Batches of real text for small models: the standard library's documentation, as pretraining sees text."""

from __future__ import annotations

import argparse
import inspect
import json
import logging
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from stored_documents import write_store

from bertjax.config import DataConfig
from bertjax.input.batches import RowBatches
from bertjax.text.sentences import split_sentences
from bertjax.text.store.format import TokenStore
from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.wordpiece import SPECIAL_TOKENS, WordPiece

DOCUMENTED = (argparse, json, logging, random, re, argparse.ArgumentParser, json.JSONEncoder, random.Random)


def documents() -> list[list[str]]:
    """Documents of a few sentences of several words each."""
    text = " ".join(" ".join((inspect.getdoc(thing) or "").split()) for thing in DOCUMENTED)
    sentences = [sentence for sentence in split_sentences(text) if len(sentence.split()) > 3]
    return [sentences[start : start + 5] for start in range(0, len(sentences), 5)]


@cache
def small_wordpiece() -> WordPiece:
    """A vocabulary of all characters and two thirds of the words; the other words are spelled in pieces."""
    words = re.findall(r"[a-z]+|[^a-z\s]", " ".join(" ".join(d) for d in documents()).lower())
    whole = [word for number, word in enumerate(sorted(set(words))) if len(word) > 1 and number % 3]
    letters = sorted(set("".join(words)))
    return WordPiece([*SPECIAL_TOKENS, *letters, *(f"##{letter}" for letter in letters), *whole], TextRules(True, True))


def whole_epoch(tokenizer: WordPiece, data: DataConfig) -> dict:
    """Every pair of the documents' first epoch, once, in rows that `data` describes."""
    with _batches(tokenizer, data) as batches:
        return batches.batch(0, batches.rows_per_epoch)


def real_batch(tokenizer: WordPiece, rows: int) -> dict:
    """A pretraining batch of rows of 64 tokens with two segments, padding and masks, as the trainer gets it."""
    data = DataConfig(sequence_length=64, max_predictions=10, short_sequence_probability=0.7)
    with _batches(tokenizer, data) as batches:
        batch = batches.batch(0, rows)
    assert np.any(batch["sequence_ids"] == 0) and np.any(batch["token_type_ids"] == 1)
    assert np.any(batch["mlm_weights"] == 0) and set(batch["pair_labels"].flat) == {0, 1}
    return batch


@contextmanager
def _batches(tokenizer: WordPiece, data: DataConfig) -> Iterator[RowBatches]:
    encoded = [tokenizer.encode_sentences(document) for document in documents()]
    nonempty = [[ids.tolist() for ids in document if len(ids)] for document in encoded]
    with TemporaryDirectory() as folder:
        store = TokenStore.open(write_store(Path(folder) / "store", {"train": nonempty}, tokenizer))
        yield RowBatches(store.split("train"), tokenizer, data, seed=0)
