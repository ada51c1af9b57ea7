"""Verify the WordPiece tokenizer on all of the real text, every published vocabulary and every Unicode scalar value.

    python tests/tokenization/check_wordpiece.py --data ../shared/data

Our ids must equal those of google-research/bert's rules (reimplemented in reference_wordpiece.py) and of transformers'
`BertTokenizerLegacy`, except for text to which a row of `DIFFERENCES` applies; there they must be exactly the ids of
those rules with the differences. Prints figures for each vocabulary, and exits with 1 if any id is wrong.

The references, which are pure Python, get each distinct word between white space only once. This is exact, because the
ids of a text are the concatenated ids of its words: cleaning and splitting at Chinese characters depend on single
characters, and white space becomes spaces, or remains a separator of `str.split`; NFC does not compose across spaces,
because no canonical decomposition contains one (test_wordpiece_parity.py tests every character); and all later steps
work on the words of `str.split`. In addition, the references get every --every-th line as a whole. Our tokenizer, which
splits text differently, gets every line as a whole.
"""

from __future__ import annotations

import argparse
import bz2
import itertools
import json
import lzma
import sys
import tempfile
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache, partial
from multiprocessing import get_context
from pathlib import Path

from reference_wordpiece import GOOGLE, OURS, TRANSFORMERS, Reference, differences, lower, split_words
from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.wordpiece import SPECIAL_TOKENS, WordPiece

PUBLISHED = (
    ("bert-base-uncased", True, True),
    ("bert-base-cased", False, False),
    ("bert-base-multilingual-cased", False, False),
    ("bert-base-chinese", True, True),
)
SWITCHES = ((True, True), (False, False), (True, False), (False, True))
NO_TEXT = (".bin", ".model", ".index", ".data-00000-of-00001")
# A character alone, between letters, and next to characters that can compose with it
CONTEXTS = "{0} a{0}b E{0}\u0323\u0301"
SCALARS = (*range(0xD800), *range(0xE000, sys.maxunicode + 1))

Setting = tuple[Path, bool, bool]  # vocabulary, lowercase, strip_accents

_OPENED = {".xz": lzma.decompress, ".bz2": bz2.decompress}
_PRINTED = 10
_BLOCK = 4096


@dataclass
class Comparison:
    """The result of a comparison: counts, uses of the table's rows, and texts with ids that no row explains."""

    texts: int = 0
    ids: int = 0
    google: Counter[str] = field(default_factory=Counter)
    transformers: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def __iadd__(self, other: Comparison) -> Comparison:
        self.texts += other.texts
        self.ids += other.ids
        self.google += other.google
        self.transformers += other.transformers
        self.wrong += other.wrong
        return self

    def __str__(self) -> str:
        rows = (
            (name, each)
            for name, each in (("google-research/bert", self.google), ("BertTokenizerLegacy", self.transformers))
            if each
        )
        explained = (
            f"; differences from {name} by row of the table: "
            f"{', '.join(f'{row} {count:,}' for row, count in sorted(each.items()))}"
            for name, each in rows
        )
        return f"{self.texts:,} texts, {self.ids:,} ids, unexplained differences {len(self.wrong)}{''.join(explained)}"


class Trial:
    """All implementations, with the same vocabulary and switches."""

    def __init__(self, vocabulary: Path, lowercase: bool, strip_accents: bool) -> None:
        self.lowercase, self.strip_accents = lowercase, strip_accents
        self.wordpiece = WordPiece.load(vocabulary, TextRules(lowercase, strip_accents))
        ids = {token: place for place, token in enumerate(self.wordpiece.tokens)}
        self.ours, self.google, self.transformers = (
            Reference(ids, lowercase, strip_accents, rules) for rules in (OURS, GOOGLE, TRANSFORMERS)
        )
        self._legacy = BertTokenizerLegacy(str(vocabulary), do_lower_case=lowercase, strip_accents=strip_accents)

    def legacy(self, text: str) -> list[int]:
        """The ids of `BertTokenizerLegacy`, with special tokens in text as plain text."""
        return self._legacy.convert_tokens_to_ids(self._legacy._tokenize(text, split_special_tokens=True))

    def compare(self, texts: Sequence[str], every_row_shows: bool = False) -> Comparison:
        """Compare all implementations on each text as a whole.

        With `every_row_shows`, each row that applies to a text must change its ids.
        """
        result = Comparison(len(texts))
        for text, array in zip(texts, self.wordpiece.encode_sentences(texts), strict=True):
            ours, google, legacy = array.tolist(), self.google.ids(text), self.legacy(text)
            result.ids += len(ours)
            if ours == google == legacy and not every_row_shows:
                continue
            for other, rules, rows in ((google, GOOGLE, result.google), (legacy, TRANSFORMERS, result.transformers)):
                names = differences(text, self.lowercase, self.strip_accents, rules)
                if bool(names) != (other != ours) and (every_row_shows or not names):
                    result.wrong.append(f"{text!r}: ours {ours}, other {other}, rows of the table {names}")
                if other != ours:
                    rows.update(names)
            if ours == google == legacy:
                continue
            for what, ids, rules in (("ours", ours, self.ours), ("BertTokenizerLegacy", legacy, self.transformers)):
                if ids != (expected := rules.ids(text)):
                    result.wrong.append(f"{text!r}: {what} {ids}, by its rules {expected}")
        return result


@lru_cache(1)
def _trial(vocabulary: Path, lowercase: bool, strip_accents: bool) -> Trial:
    return Trial(vocabulary, lowercase, strip_accents)


def _compare_words(setting: Setting, words: Sequence[str]) -> tuple[Comparison, list[bytes]]:
    """Compare words; also returns the ids of each word as bytes of uint32."""
    trial = _trial(*setting)
    return trial.compare(words), [ids.tobytes() for ids in trial.wordpiece.encode_sentences(words)]


def _compare_whole_lines(setting: Setting, lines: Sequence[str]) -> Comparison:
    """Compare whole lines, and check that each reference gives a line the concatenated ids of its words."""
    trial = _trial(*setting)
    result = trial.compare(lines)
    references = (trial.google.ids, trial.legacy, trial.ours.ids, trial.transformers.ids)
    for line, reference in itertools.product(lines, references):
        if reference(line) != [number for word in split_words(line) for number in reference(word)]:
            result.wrong.append(f"{line!r}: a reference gives its words other ids")
    return result


def _compare_scalars(setting: Setting, scalars: Sequence[int]) -> Comparison:
    return _trial(*setting).compare(in_contexts(scalars))


def in_contexts(scalars: Iterable[int]) -> list[str]:
    """A text for each character, with all contexts in which its treatment may differ."""
    return [CONTEXTS.format(chr(place)) for place in scalars]


def compare_with_an_alphabet(scalars: Sequence[int], lowercase: bool, strip_accents: bool) -> Comparison:
    """Compare scalars in their contexts, with a vocabulary of all their characters, so that [UNK] hides nothing."""
    texts = in_contexts(scalars)
    characters = sorted({character for text in texts for form in _all_forms(text) for character in form})
    known = [character for character in characters if unicodedata.category(character) not in ("Cc", "Zl", "Zp", "Zs")]
    tokens = [*SPECIAL_TOKENS, *known, *(f"##{character}" for character in known)]
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = Path(folder) / "vocab.txt"
        vocabulary.write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8", newline="")
        trial = Trial(vocabulary, lowercase, strip_accents)
    result = trial.compare(texts, every_row_shows=True)
    unknown = (text for text in texts if trial.wordpiece.unk_id in trial.ours.ids(text))
    result.wrong += [f"{text!r}: its vocabulary lacks a character" for text in unknown]
    return result


def _all_forms(text: str) -> Iterator[str]:
    for form in (text, text.lower(), lower(text, OURS)):
        yield from (form, unicodedata.normalize("NFD", form), unicodedata.normalize("NFC", form))


def text_files(root: Path) -> list[Path]:
    """All files that contain text."""
    return sorted(path for path in root.rglob("*") if path.is_file() and not path.name.endswith(NO_TEXT))


def read_lines(path: Path) -> list[str]:
    """The lines of a file; for JSON, its unescaped strings."""
    content = path.read_bytes()
    if path.suffix in _OPENED:
        content = _OPENED[path.suffix](content)
    text = _decoded(content)
    return list(_strings(json.loads(text))) if ".json" in path.suffixes else text.split("\n")


def _decoded(content: bytes) -> str:
    if content.startswith(b"\xff\xfe"):
        return content.decode("utf-16")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        yield from itertools.chain.from_iterable(map(_strings, value))
    elif isinstance(value, str):
        yield value


def compare_lines(wordpiece: WordPiece, lines: Sequence[str], known: dict[str, bytes]) -> Comparison:
    """Compare our ids of whole lines with the ids of their words."""
    ids, lengths = wordpiece.encode(lines)
    result = Comparison(len(lines), len(ids))
    expected = [b"".join(map(known.__getitem__, split_words(line))) for line in lines]
    if ids.tobytes() != b"".join(expected) or lengths.tolist() != [len(each) // ids.itemsize for each in expected]:
        for line, each, by_words in zip(lines, wordpiece.encode_sentences(lines), expected, strict=True):
            if each.tobytes() != by_words:
                result.wrong.append(f"{line!r}: its ids differ from those of its words")
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare WordPiece with two references on all available text.")
    parser.add_argument("--data", type=Path, required=True, help="folder of real text, with vocab/*/vocab.txt")
    parser.add_argument("--every", type=int, default=1000, help="give the references every N-th line as a whole")
    parser.add_argument("--workers", type=int, default=1, help="number of processes")
    arguments = parser.parse_args()
    start = time.perf_counter()
    files = text_files(arguments.data)
    words, sample = _read(files, arguments.every)
    with ProcessPoolExecutor(arguments.workers, get_context("spawn")) as pool:
        mapped = pool.map if arguments.workers > 1 else map
        wrong = sum(
            _check((arguments.data / "vocab" / name / "vocab.txt", *switches), files, words, sample, mapped)
            for name, *switches in PUBLISHED
        )
        wrong += sum(_check_alphabets(*switches, mapped) for switches in SWITCHES)
    print(f"{'FAILED' if wrong else 'passed'}: {wrong} unexplained differences; {_since(start)}")
    return int(wrong > 0)


def _read(files: list[Path], every: int) -> tuple[list[str], list[str]]:
    """The distinct words of all lines, and a sample of the lines."""
    start, words, sample = time.perf_counter(), {}, []
    lines = characters = 0
    for path in files:
        content = read_lines(path)
        lines, characters = lines + len(content), characters + sum(map(len, content))
        sample += content[::every]
        words.update(dict.fromkeys(itertools.chain.from_iterable(map(split_words, content))))
    count = f"{len(files)} files, {lines:,} lines, {characters:,} characters, {len(words):,} distinct words"
    print(f"{count}; {_since(start)}", flush=True)
    return list(words), sample


def _check(setting: Setting, files: list[Path], words: list[str], sample: list[str], mapped: Callable) -> int:
    """Check all text and all scalars with a published vocabulary; return the number of errors."""
    vocabulary, lowercase, strip_accents = setting
    print(f"{vocabulary.parent.name}, lowercase {lowercase}, strip_accents {strip_accents}")
    start, total, known = time.perf_counter(), Comparison(), {}
    compared = mapped(partial(_compare_words, setting), _blocks(words))
    for block, (each, ids) in zip(_blocks(words), compared, strict=True):
        total += each
        known.update(zip(block, ids, strict=True))
    wrong = _report("distinct words", total, start)

    wordpiece = WordPiece.load(vocabulary, TextRules(lowercase, strip_accents))
    start, total = time.perf_counter(), Comparison()
    for block in itertools.chain.from_iterable(_blocks(read_lines(path)) for path in files):
        total += compare_lines(wordpiece, block, known)
    wrong += _report("all lines, our ids against those of their words", total, start)
    for what, compared, everything in (
        ("a sample of whole lines", _compare_whole_lines, sample),
        ("scalars, in three contexts each", _compare_scalars, SCALARS),
    ):
        start, total = time.perf_counter(), Comparison()
        for each in mapped(partial(compared, setting), _blocks(everything)):
            total += each
        wrong += _report(what, total, start)
    return wrong


def _check_alphabets(lowercase: bool, strip_accents: bool, mapped: Callable) -> int:
    """Check all scalars, with vocabularies that contain every character; return the number of errors."""
    print(f"vocabularies of every character, lowercase {lowercase}, strip_accents {strip_accents}")
    start, total = time.perf_counter(), Comparison()
    compared = partial(compare_with_an_alphabet, lowercase=lowercase, strip_accents=strip_accents)
    for each in mapped(compared, _blocks(SCALARS)):
        total += each
    return _report("scalars, in three contexts each", total, start)


def _report(what: str, result: Comparison, start: float) -> int:
    print(f"  {what}: {result}; {_since(start)}", flush=True)
    for text in result.wrong[:_PRINTED]:
        print(f"    {text}")
    return len(result.wrong)


def _since(start: float) -> str:
    return f"{time.perf_counter() - start:.0f} s"


def _blocks(everything: Sequence) -> Iterator[Sequence]:
    return (everything[place : place + _BLOCK] for place in range(0, len(everything), _BLOCK))


if __name__ == "__main__":
    sys.exit(main())
