"""Texts to search for in the training text: the held-out documents, or the lines of a file."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.input.randomness import derive_key, hash64, uniform
from bertjax.inspect.stretches import stretches
from bertjax.storage.lines import COMPRESSED, LINE_CAP, RECORD_CAP, read_lines
from bertjax.text.store.format import SplitView
from bertjax.tokenization.tokenizer import Tokenizer

MOST_TOKENS = 1 << 23
_LINES_AT_ONCE = 4096
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class EvaluationTexts:
    """Texts as token ids. A text is one segment or several, such as the two sentences of a pair."""

    name: str
    share: float  # of the texts in use, drawn at random if there are too many
    texts: int
    ids: np.ndarray  # uint32 [tokens]
    segment_lengths: np.ndarray  # int64 [segments], in tokens
    text_numbers: np.ndarray  # int64 [segments], ascending: the text of each segment


def held_out_texts(split: SplitView, name: str, most_tokens: int = MOST_TOKENS) -> EvaluationTexts:
    """Each document of a split as a text of one segment."""
    share = min(1.0, most_tokens / max(split.num_tokens, 1))
    chosen = np.flatnonzero(_draw(np.arange(split.num_documents)) < share)
    parts = list(stretches(split, chosen))
    return EvaluationTexts(
        name,
        share,
        len(chosen),
        np.concatenate([np.zeros(0, np.uint32), *(stretch.ids for stretch in parts)]).astype(np.uint32),
        np.concatenate([np.zeros(0, np.int64), *(stretch.lengths for stretch in parts)]),
        np.arange(len(chosen)),
    )


def file_texts(path: str, tokenizer: Tokenizer, most_tokens: int = MOST_TOKENS) -> EvaluationTexts:
    """Read each non-empty line of a file as a text.

    Segments are the fields of a .tsv, the strings of a .jsonl or .json record, or the whole line of any other file; the
    file may be compressed. Of too many tokens, half of the texts are used, or a quarter, and so on. Raises ValueError
    naming file and offset if the file cannot be read, is not text, or has none.
    """
    share, sample = 1.0, _NOTHING
    number, source = 0, _segments(path)
    while lines := list(itertools.islice(source, _LINES_AT_ONCE)):
        segments = [segment for line in lines for segment in line]
        # Most sentences of the training text do not begin a document.
        ids, lengths = tokenizer.encode_running(segments, [False] * len(segments))
        text_numbers = np.repeat(np.arange(number, number + len(lines)), [len(line) for line in lines])
        number += len(lines)
        drawn = _sample((ids, lengths, text_numbers), share)
        ids, lengths, text_numbers = (np.concatenate(both) for both in zip(sample, drawn, strict=True))
        sample = ids, lengths, text_numbers
        while len(sample[0]) > most_tokens:
            share /= 2
            sample = _sample(sample, share)
    if not number:
        raise ValueError(f"{path}: no text in it; give a file with a text per line")
    chosen = np.flatnonzero(_draw(np.arange(number)) < share)
    return EvaluationTexts(path, share, len(chosen), sample[0], sample[1], np.searchsorted(chosen, sample[2]))


_Parts = tuple[np.ndarray, np.ndarray, np.ndarray]  # ids, lengths of segments, the text of each segment
_NOTHING: _Parts = (np.zeros(0, np.uint32), np.zeros(0, np.int64), np.zeros(0, np.int64))


def _sample(parts: _Parts, share: float) -> _Parts:
    """Draw the segments of a random share of the texts; a smaller share is a subset of a larger one."""
    ids, lengths, text_numbers = parts
    is_drawn = _draw(text_numbers) < share
    return ids[np.repeat(is_drawn, lengths)], lengths[is_drawn], text_numbers[is_drawn]


def _draw(numbers: np.ndarray) -> np.ndarray:
    return uniform(hash64(derive_key("evaluation texts"), numbers))


def _segments(path: str) -> Iterator[list[str]]:
    """Yield the segments of each non-empty line."""
    name = Path(path)
    kind = (name.with_suffix("") if name.suffix in COMPRESSED else name).suffix.lower()
    is_json = kind in (".jsonl", ".json")

    def refuse(number: int) -> None:
        if is_json:
            raise ValueError(f"{path}, line {number}: a record of more than {RECORD_CAP >> 20} MiB; is it JSON Lines?")

    for number, line in enumerate(read_lines(path, refuse, RECORD_CAP if is_json else LINE_CAP), 1):
        if not line.strip():
            continue
        if is_json:
            try:
                yield list(_strings(json.loads(line)))
            except (ValueError, RecursionError) as error:
                raise ValueError(
                    f"{path}, line {number}: bad JSON ({error}); every line must be one JSON value"
                ) from None
        else:
            yield line.split("\t") if kind == ".tsv" else [line]


def _strings(value: Any) -> Iterator[str]:
    """Yield every string in a JSON value, except field names."""
    if isinstance(value, str):
        yield _SURROGATE.sub("\ufffd", value)
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings(inner)
