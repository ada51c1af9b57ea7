"""The vocabulary of a run: the one that is named, or one trained on the training documents of the sources."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from bertjax.config import DataConfig
from bertjax.text.corpus import Corpus, Unit, draws, fingerprint
from bertjax.text.kept import alone_in, nothing_left_of, require_inputs
from bertjax.text.marks import warn_of_lost_marks
from bertjax.text.pool import run_units
from bertjax.text.progress import Progress, no_progress
from bertjax.text.sources import parse_source, read_documents, require_text
from bertjax.text.store_writer import write_durably
from bertjax.tokenization.wordpiece import WordPiece
from bertjax.tokenization.wordpiece_training import TRAINER_VERSION, count_words, smoothed, train_wordpiece

READING_VERSION = 2  # of reading, sentence splitting and the cut into units; a change makes other stores
VOCABULARY_TEXT_BYTES = 1 << 30  # a vocabulary of more text is trained on a share of its documents


def prepare_vocabulary(data: DataConfig, progress: Progress = no_progress) -> Path:
    """Return the `vocab.txt` of a run: `data.vocab`, or one trained on the training documents of the sources.

    A trained one is kept as `<root>/vocab-<fingerprint>/vocab.txt`, with how it was made beside it. Raises ValueError
    for text or a vocabulary that does not fit, OSError if the disk is full.
    """
    require_text(parse_source(source) for source in data.sources)
    return vocabulary_of(data, None if data.vocab else Corpus.of(data), progress)


def vocabulary_of(data: DataConfig, corpus: Corpus | None, progress: Progress) -> Path:
    """As `prepare_vocabulary`, of sources that were found and digested already; without `data.vocab` they must be."""
    if data.vocab:
        WordPiece.load(data.vocab, data.lowercase, data.strip_accents)
        return Path(data.vocab)
    assert corpus is not None
    made_of = {
        "sources": corpus.description(),
        "held_out": data.held_out,
        "lowercase": data.lowercase,
        "strip_accents": data.strip_accents,
        "vocab_size": data.vocab_size,
        "versions": [TRAINER_VERSION, READING_VERSION],
    }
    if data.vocab_temperature != 1:
        made_of["vocab_temperature"] = data.vocab_temperature
    inputs = fingerprint(made_of)
    folder = Path(data.root) / f"vocab-{inputs[:12]}"
    with alone_in(Path(data.root)):
        if folder.exists():
            require_vocabulary(folder, inputs)
        else:
            _train_vocabulary(folder, inputs, corpus, data, progress)
    return folder / "vocab.txt"


def _train_vocabulary(folder: Path, inputs: str, corpus: Corpus, data: DataConfig, progress: Progress) -> None:
    if data.strip_accents:
        warn_of_lost_marks([file for group in corpus.files for file in group])
    of_source, share = count_corpus(corpus, data, progress)
    words = smoothed(of_source, data.vocab_temperature)
    tokens = train_wordpiece(words, data.vocab_size, partial(progress, "training the vocabulary"))
    tokenizer = WordPiece(tokens, data.lowercase, data.strip_accents)
    how = {"asked_vocab_size": data.vocab_size, "words": words.total(), "distinct_words": len(words)}
    keep_vocabulary(folder, inputs, tokenizer, corpus, how | {"share_of_documents": share})


def count_corpus(corpus: Corpus, data: DataConfig, progress: Progress) -> tuple[list[Counter[str]], float]:
    """The words of each source's training documents, and the share of the documents that was read for them."""
    share = min(1.0, VOCABULARY_TEXT_BYTES / max(corpus.text_bytes, 1))
    count = partial(_count_unit, data=data, share=share)
    of_source: list[Counter[str]] = [Counter() for _ in corpus.sources]
    total, done = sum(unit.size for unit in corpus.units), 0
    for unit, counted in run_units(count, corpus.units, data.workers, "counting words"):
        of_source[unit.source].update(counted)
        done += unit.size
        progress("counting words", done, total)
    corpus.require_unchanged()
    return of_source, share


def keep_vocabulary(folder: Path, inputs: str, tokenizer: WordPiece, corpus: Corpus, how: Mapping[str, Any]) -> None:
    """Write a vocabulary and how it was made; the folder appears whole or not at all."""
    about = {
        "inputs": inputs,
        "sha256": hashlib.sha256(tokenizer.vocab_bytes).hexdigest(),
        "vocab_size": tokenizer.vocab_size,
        "lowercase": tokenizer.lowercase,
        "strip_accents": tokenizer.strip_accents,
        "sources": [str(source) for source in corpus.sources],
    }
    unfinished = folder.with_name(f"{folder.name}.partial")
    with nothing_left_of(unfinished, lambda: len(tokenizer.vocab_bytes)):
        unfinished.mkdir(exist_ok=True)
        write_durably(unfinished / "vocab.txt", tokenizer.vocab_bytes)
        write_durably(unfinished / "made.json", json.dumps(about | dict(how), indent=1).encode())
        unfinished.rename(folder)


def _count_unit(unit: Unit, data: DataConfig, share: float) -> Counter[str]:
    """The words of a unit's training documents, or of a share of them."""

    def texts() -> Iterator[str]:
        for file in unit.files:
            for document in read_documents(file):
                held, sampled = draws(document.text)
                if held >= data.held_out and sampled < share:
                    yield document.text

    return count_words(texts(), data.lowercase, data.strip_accents)


def require_vocabulary(folder: Path, inputs: str) -> None:
    """Raise ValueError unless the folder holds what was made of these inputs, unchanged."""
    try:
        how = json.loads((folder / "made.json").read_bytes())
        found = hashlib.sha256((folder / "vocab.txt").read_bytes()).hexdigest()
    except (FileNotFoundError, ValueError):
        raise ValueError(
            f"vocabulary {folder}: made.json or vocab.txt is missing or damaged; delete the folder"
        ) from None
    require_inputs(how["inputs"], inputs, folder)
    if found != how["sha256"]:
        raise ValueError(
            f"vocabulary {folder / 'vocab.txt'} was changed after it was made; delete the folder, or name the file in "
            "data.vocab to use it as it is"
        )
