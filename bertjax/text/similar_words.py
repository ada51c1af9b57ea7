"""Tables of similar words: a word and its nearest ones per line, separated by tabs.

They are computed from word vectors, either a file in word2vec's text format or the caller's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from bertjax.storage.files import read_whole
from bertjax.storage.lines import read_table
from bertjax.storage.remote import open_bytes, to_path
from bertjax.tokenization.tokenizer import Tokenizer, is_unspaced

SimilarWords = Mapping[str, Sequence[str]]  # a word -> others, the nearest first

_LONGEST_LINE = 1 << 20  # bytes of a word and its vector
_BLOCK = 1024  # words whose cosines with all others are computed at once


def read_bytes(path: str) -> bytes:
    """Read a table. Raises ValueError if the file is missing or too large."""
    file = to_path(path)
    if not file.is_file():
        raise ValueError(
            f"data.similar_words={path!r}: no such file; make one from word vectors with `bertjax neighbors --output`, "
            "or name another"
        )
    return read_whole(file)


def digest(path: str) -> str:
    """SHA-256 (hex) of a table. Raises ValueError like `read_bytes`."""
    return hashlib.sha256(read_bytes(path)).hexdigest()


def parse(content: bytes, path: str) -> dict[str, tuple[str, ...]]:
    """Parse a table; `path` names it in messages.

    Raises ValueError naming the line if it is not UTF-8, has no similar words or an empty word, or repeats a word.
    """
    table = read_table(
        content,
        f"data.similar_words={path!r}",
        called="a table",
        form="a word and similar ones, with tabs",
        is_row=lambda fields: len(fields) > 1 and all(fields),
    )
    return {word: tuple(similar) for word, similar in table.items()}


def to_text(table: SimilarWords) -> str:
    """Write a table as text that `parse` reads."""
    return "".join("\t".join((word, *similar)) + "\n" for word, similar in table.items())


def read_vectors(path: str, most: int) -> tuple[list[str], np.ndarray]:
    """Read the first `most` words of a file in word2vec's text format, and their vectors, float32 [words, D].

    The first line may hold the two counts. Of a repeated word, the first line counts. Raises ValueError naming the line
    for another number of values, or values that are not finite.
    """
    words: dict[str, None] = {}
    vectors: list[np.ndarray] = []
    width = 0
    with open_bytes(path) as file:
        for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE + 1), b""), start=1):
            where = f"{path}, line {number}"
            if len(line) > _LONGEST_LINE:
                raise ValueError(f"{where}: over {_LONGEST_LINE:,} bytes; give vectors in word2vec's text format")
            try:
                fields = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n ").split(" ")
            except UnicodeDecodeError as error:
                raise ValueError(f"{where}: not UTF-8 at byte {error.start}; give vectors in text format") from None
            if number == 1 and len(fields) == 2 and all(field.isdecimal() and len(field) < 10 for field in fields):
                width = int(fields[1])
                continue
            width = width or len(fields) - 1
            try:
                vector = np.array(fields[-width:] if width else [], np.float32)
            except ValueError:
                vector = np.full(1, np.nan, np.float32)
            if width < 1 or len(fields) <= width or not np.isfinite(vector).all():
                raise ValueError(f"{where}: expected a word and {max(width, 1)} numbers, separated by spaces")
            word = " ".join(fields[:-width])
            if word not in words:
                words[word] = None
                vectors.append(vector)
            if len(words) == most:
                break
    if not words:
        raise ValueError(f"{path}: no vectors in it; a line has a word and its numbers, separated by spaces")
    return list(words), np.stack(vectors)


def usable_ids(tokenizer: Tokenizer, words: Sequence[str]) -> list[tuple[int, ...]]:
    """The tokens of each word inside a text; none for a word that the vocabulary cannot represent."""
    continues, unknown = tokenizer.is_continuation, tokenizer.unk_id
    encoded = tokenizer.encode_behind([("" if is_unspaced(word[:1] or " ") else " ") + word for word in words])
    return [() if unknown in ids or continues[ids[:1]].any() else tuple(ids.tolist()) for ids in encoded]


def nearest_words(
    words: Sequence[str], ids: Sequence[tuple[int, ...]], vectors: np.ndarray, count: int
) -> dict[str, tuple[str, ...]]:
    """For each word, the `count` nearest words by cosine with the same number of tokens, nearest first.

    ids: The tokens of each word, none for a word to leave out. vectors: float32 [words, D]. Of words with the same
    tokens the first counts; a word with a zero vector, or the only one with its number of tokens, has no entry.
    """
    norms = np.linalg.norm(vectors, axis=1)
    first = {tokens: number for number, tokens in reversed(list(enumerate(ids))) if tokens and norms[number] > 0}
    usable = np.array(sorted(first.values()), np.int64)
    sizes = np.array([len(ids[number]) for number in usable], np.int64)
    near: dict[int, tuple[str, ...]] = {}
    for size in np.unique(sizes):
        alike = usable[sizes == size]
        unit = vectors[alike] / norms[alike, None]
        for begin in range(0, len(alike), _BLOCK):
            for row, others in enumerate(_nearest(unit, begin, count), start=begin):
                near[int(alike[row])] = tuple(words[int(alike[other])] for other in others)
    return {words[int(number)]: near[number] for number in usable.tolist() if near[number]}


def _nearest(unit: np.ndarray, begin: int, count: int) -> Iterable[list[int]]:
    """For each row of one block of unit vectors, the other rows with the largest products."""
    cosines = unit[begin : begin + _BLOCK] @ unit.T
    rows = np.arange(len(cosines))
    cosines[rows, begin + rows] = -np.inf
    count = min(count, len(unit) - 1)
    if not count:
        return [[] for _ in rows]
    nearest = np.sort(np.argpartition(-cosines, count - 1, axis=1)[:, :count], axis=1)
    order = np.argsort(-np.take_along_axis(cosines, nearest, axis=1), axis=1, kind="stable")
    return np.take_along_axis(nearest, order, axis=1).tolist()
