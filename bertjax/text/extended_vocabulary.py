"""Extend a vocabulary with words of new text, so that a domain's terms take fewer tokens.

New tokens first replace `[unused]` ones, so that the tables need not grow, then are appended. A model that starts from
weights for the old vocabulary initialises each new token to the mean of its former pieces (`convert.adapt`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

import numpy as np

from bertjax.config import DataConfig
from bertjax.storage.progress import Progress, no_progress
from bertjax.storage.remote import AnyPath
from bertjax.text.pool import processes
from bertjax.text.readable import readable_corpus, reporting_unreadable
from bertjax.text.store.manifest import json_sha256
from bertjax.text.trained_vocabulary import READING_VERSION, count_corpus, find_or_make, load_vocabulary
from bertjax.tokenization.tokenizer import TextRules, Tokenizer
from bertjax.tokenization.training import smoothed
from bertjax.tokenization.wordpiece import with_tokens

EXTENDER_VERSION = 2  # of the choice of words; a change makes new vocabularies
LEAST_COUNT = 10  # of a word; rarer words would not be learned
LONGEST_WORD = 30  # characters


@dataclass(frozen=True)
class Extension:
    """An extended vocabulary, and its effect on the text it was extended for."""

    path: AnyPath
    added: tuple[str, ...]
    replaced: int  # number of [unused] tokens that were replaced
    pieces_before: float  # per word of the text
    pieces_after: float


def extend_vocabulary(data: DataConfig, most: int, progress: Progress = no_progress) -> Extension:
    """Extend `data.vocab` by at most `most` words of the training documents of `data.sources`.

    The new vocabulary is stored like a trained one. Raises ValueError if no vocabulary is named, and for text that
    cannot be read.
    """
    if not data.vocab or most < 1:
        raise ValueError(
            f"data.vocab={data.vocab!r}, --max-new {most}: name the vocabulary to extend, and allow at least one new "
            "token"
        )
    old = load_vocabulary(data.vocab, TextRules.of(data))
    if not old.is_wordpiece:
        raise ValueError(f"data.vocab={data.vocab!r} is {old.kind_name}: only a WordPiece vocabulary can be extended")
    # Count words as the vocabulary normalises them, not as a recipe would.
    data = replace(data, tokenizer=old.kind, **asdict(old.rules))
    runner = processes(data.workers)
    corpus = readable_corpus(data, progress, runner)
    versions = [EXTENDER_VERSION, READING_VERSION]
    inputs_json = {"extends": old.fingerprint, "most": most, "sources": corpus.description(), "held_out": data.held_out}
    inputs = json_sha256(inputs_json | {"versions": versions, "vocab_temperature": data.vocab_temperature})
    with reporting_unreadable(corpus, progress, runner):
        counts, share = count_corpus(corpus, data, progress, runner)
    words = smoothed(counts, data.vocab_temperature)
    added = worthwhile_words(old, words, most)
    tokens, replaced = with_words(old.tokens, added)
    new = with_tokens(old, tokens)
    record = {
        "sources": [str(source) for source in corpus.sources],
        "extends": old.fingerprint,
        "added_words": added,
        "replaced_unused": replaced,
        "share_of_documents": share,
    }
    path = find_or_make(data, inputs, lambda: (new, record))
    return Extension(path, tuple(added), replaced, _pieces(old, words), _pieces(new, words))


def worthwhile_words(old: Tokenizer, words: Mapping[str, int], most: int) -> list[str]:
    """The words that save the most tokens: count x (pieces - 1), plus count for a word that is [UNK].

    Considers words that consist of letters and occur at least `LEAST_COUNT` times; ties are in alphabetical order.
    """
    present = set(old.tokens)
    eligible = sorted(
        word
        for word, count in words.items()
        if count >= LEAST_COUNT and word.isalpha() and len(word) <= LONGEST_WORD and word not in present
    )
    if not eligible:
        return []
    ids, lengths = old.encode(eligible)
    is_unknown = np.array([bool((part == old.unk_id).any()) for part in np.split(ids, np.cumsum(lengths)[:-1])])
    saved = (lengths - 1 + is_unknown) * np.array([words[word] for word in eligible])
    ranked = np.argsort(-saved, kind="stable")[:most]
    return [eligible[number] for number in ranked.tolist() if saved[number] > 0]


def with_words(tokens: list[str], added: list[str]) -> tuple[list[str], int]:
    """Replace `[unused…]` tokens by new ones, then append the rest. Returns (tokens, number replaced)."""
    unused = [number for number, token in enumerate(tokens) if token.startswith("[unused")][: len(added)]
    extended = list(tokens)
    for number, token in zip(unused, added, strict=False):
        extended[number] = token
    return extended + added[len(unused) :], len(unused)


def _pieces(tokenizer: Tokenizer, words: Mapping[str, int]) -> float:
    """Mean number of tokens per word of the text."""
    names = list(words)
    lengths = tokenizer.encode(names)[1]
    counts = np.array([words[name] for name in names])
    return float((lengths * counts).sum() / max(counts.sum(), 1))
