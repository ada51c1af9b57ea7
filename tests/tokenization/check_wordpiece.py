"""Prove the WordPiece tokenizer: all of the real text, every published vocabulary, every Unicode scalar value.

    python tests/tokenization/check_wordpiece.py --data ../shared/data

Ours must give the ids of google-research/bert's rules (written again in reference_wordpiece.py) and of transformers'
`BertTokenizerLegacy`, in all text but that which a row of `DIFFERENCES` is about; and there, exactly the ids of those
rules with the differences. Prints figures for each vocabulary, and ends with 1 if a single id is otherwise.

The references, which are pure Python, see each distinct word between white space once. That is exact: cleaning and
setting Chinese characters apart go by single characters, and white space becomes spaces there or stays what `str.split`
splits at; NFC leaves alone what a space parts, for no canonical decomposition has one in it (test_wordpiece_parity.py
shows it for every character); all that follows goes by the words of `str.split`. So the ids of a text are those of its
parts between white space, one after the other. Every --every-th line is nevertheless given to the references whole.
Ours, which cuts text in another way, gets every line whole.
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

from reference_wordpiece import GOOGLE, OURS, TRANSFORMERS, Reference, differences, lowered, separated
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
# A character by itself, between letters, and after and before what composes with some.
CONTEXTS = "{0} a{0}b E{0}\u0323\u0301"
SCALARS = (*range(0xD800), *range(0xE000, sys.maxunicode + 1))

Setting = tuple[Path, bool, bool]  # vocabulary, lowercase, strip_accents

_OPENED = {".xz": lzma.decompress, ".bz2": bz2.decompress}
_SHOWN = 10
_BLOCK = 4096


@dataclass
class Found:
    """The result of a comparison: amounts, rows of the table, and texts with ids that no row explains."""

    texts: int = 0
    ids: int = 0
    google: Counter[str] = field(default_factory=Counter)
    transformers: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def __iadd__(self, other: Found) -> Found:
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
        by_the_table = (
            f"; other than {name}, by the table: {', '.join(f'{row} {count:,}' for row, count in sorted(each.items()))}"
            for name, each in rows
        )
        return (
            f"{self.texts:,} texts, {self.ids:,} ids, unexplained differences {len(self.wrong)}{''.join(by_the_table)}"
        )


class Trial:
    """One vocabulary and one setting of the switches, in all implementations."""

    def __init__(self, vocabulary: Path, lowercase: bool, strip_accents: bool) -> None:
        self.lowercase, self.strip_accents = lowercase, strip_accents
        self.wordpiece = WordPiece.load(vocabulary, TextRules(lowercase, strip_accents))
        ids = {token: place for place, token in enumerate(self.wordpiece.tokens)}
        self.ours, self.google, self.transformers = (
            Reference(ids, lowercase, strip_accents, rules) for rules in (OURS, GOOGLE, TRANSFORMERS)
        )
        self._legacy = BertTokenizerLegacy(str(vocabulary), do_lower_case=lowercase, strip_accents=strip_accents)

    def legacy(self, text: str) -> list[int]:
        """The ids of `BertTokenizerLegacy`, what spells a special token being plain text."""
        return self._legacy.convert_tokens_to_ids(self._legacy._tokenize(text, split_special_tokens=True))

    def compare(self, texts: Sequence[str], every_row_shows: bool = False) -> Found:
        """All implementations on each text as a whole; `every_row_shows`: a row about a text must change its ids."""
        found = Found(len(texts))
        for text, array in zip(texts, self.wordpiece.encode_sentences(texts), strict=True):
            ours, google, legacy = array.tolist(), self.google.ids(text), self.legacy(text)
            found.ids += len(ours)
            if ours == google == legacy and not every_row_shows:
                continue
            for other, rules, rows in ((google, GOOGLE, found.google), (legacy, TRANSFORMERS, found.transformers)):
                names = differences(text, self.lowercase, self.strip_accents, rules)
                if bool(names) != (other != ours) and (every_row_shows or not names):
                    found.wrong.append(f"{text!r}: ours {ours}, other {other}, rows of the table {names}")
                if other != ours:
                    rows.update(names)
            if ours == google == legacy:
                continue
            for what, ids, rules in (("ours", ours, self.ours), ("BertTokenizerLegacy", legacy, self.transformers)):
                if ids != (expected := rules.ids(text)):
                    found.wrong.append(f"{text!r}: {what} {ids}, by its rules {expected}")
        return found


@lru_cache(1)
def _trial(vocabulary: Path, lowercase: bool, strip_accents: bool) -> Trial:
    return Trial(vocabulary, lowercase, strip_accents)


def _compared_words(setting: Setting, words: Sequence[str]) -> tuple[Found, list[bytes]]:
    """The comparison, and the ids of each word as the bytes of uint32."""
    trial = _trial(*setting)
    return trial.compare(words), [ids.tobytes() for ids in trial.wordpiece.encode_sentences(words)]


def _compared_lines(setting: Setting, lines: Sequence[str]) -> Found:
    """The comparison of whole lines, and that of each reference with itself on their words."""
    trial = _trial(*setting)
    found = trial.compare(lines)
    references = (trial.google.ids, trial.legacy, trial.ours.ids, trial.transformers.ids)
    for line, reference in itertools.product(lines, references):
        if reference(line) != [number for word in separated(line) for number in reference(word)]:
            found.wrong.append(f"{line!r}: a reference gives other ids to the words of it")
    return found


def _compared_scalars(setting: Setting, scalars: Sequence[int]) -> Found:
    return _trial(*setting).compare(in_contexts(scalars))


def in_contexts(scalars: Iterable[int]) -> list[str]:
    """A text for each character that shows its treatment."""
    return [CONTEXTS.format(chr(place)) for place in scalars]


def compare_with_an_alphabet(scalars: Sequence[int], lowercase: bool, strip_accents: bool) -> Found:
    """The scalars in their contexts, under a vocabulary of all characters in them: no difference hides in an [UNK]."""
    texts = in_contexts(scalars)
    characters = sorted({character for text in texts for form in _all_forms(text) for character in form})
    known = [character for character in characters if unicodedata.category(character) not in ("Cc", "Zl", "Zp", "Zs")]
    tokens = [*SPECIAL_TOKENS, *known, *(f"##{character}" for character in known)]
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = Path(folder) / "vocab.txt"
        vocabulary.write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8", newline="")
        trial = Trial(vocabulary, lowercase, strip_accents)
    found = trial.compare(texts, every_row_shows=True)
    unknown = (text for text in texts if trial.wordpiece.unk_id in trial.ours.ids(text))
    found.wrong += [f"{text!r}: its vocabulary lacks a character" for text in unknown]
    return found


def _all_forms(text: str) -> Iterator[str]:
    for form in (text, text.lower(), lowered(text, OURS)):
        yield from (form, unicodedata.normalize("NFD", form), unicodedata.normalize("NFC", form))


def text_files(root: Path) -> list[Path]:
    """Every file with text in it."""
    return sorted(path for path in root.rglob("*") if path.is_file() and not path.name.endswith(NO_TEXT))


def read_lines(path: Path) -> list[str]:
    """The lines of a file, of JSON its strings, which are the text that it escapes."""
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


def compare_lines(wordpiece: WordPiece, lines: Sequence[str], known: dict[str, bytes]) -> Found:
    """Ours on whole lines against the ids of their words."""
    ids, lengths = wordpiece.encode(lines)
    found = Found(len(lines), len(ids))
    expected = [b"".join(map(known.__getitem__, separated(line))) for line in lines]
    if ids.tobytes() != b"".join(expected) or lengths.tolist() != [len(each) // ids.itemsize for each in expected]:
        for line, each, by_words in zip(lines, wordpiece.encode_sentences(lines), expected, strict=True):
            if each.tobytes() != by_words:
                found.wrong.append(f"{line!r}: other ids than its words")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare WordPiece with two references on everything there is.")
    parser.add_argument("--data", type=Path, required=True, help="the folder of real text, with vocab/*/vocab.txt")
    parser.add_argument("--every", type=int, default=1000, help="give the references every how many-th line whole")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    arguments = parser.parse_args()
    start = time.perf_counter()
    files = text_files(arguments.data)
    words, sample = _read(files, arguments.every)
    with ProcessPoolExecutor(arguments.workers, get_context("spawn")) as pool:
        mapped = pool.map if arguments.workers > 1 else map
        wrong = sum(
            _prove((arguments.data / "vocab" / name / "vocab.txt", *switches), files, words, sample, mapped)
            for name, *switches in PUBLISHED
        )
        wrong += sum(_prove_alphabets(*switches, mapped) for switches in SWITCHES)
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
        words.update(dict.fromkeys(itertools.chain.from_iterable(map(separated, content))))
    count = f"{len(files)} files, {lines:,} lines, {characters:,} characters, {len(words):,} distinct words"
    print(f"{count}; {_since(start)}", flush=True)
    return list(words), sample


def _prove(setting: Setting, files: list[Path], words: list[str], sample: list[str], mapped: Callable) -> int:
    """All of the text and all scalars with a published vocabulary; how much is wrong."""
    vocabulary, lowercase, strip_accents = setting
    print(f"{vocabulary.parent.name}, lowercase {lowercase}, strip_accents {strip_accents}")
    start, found, known = time.perf_counter(), Found(), {}
    compared = mapped(partial(_compared_words, setting), _blocks(words))
    for block, (each, ids) in zip(_blocks(words), compared, strict=True):
        found += each
        known.update(zip(block, ids, strict=True))
    wrong = _report("distinct words", found, start)

    wordpiece = WordPiece.load(vocabulary, TextRules(lowercase, strip_accents))
    start, found = time.perf_counter(), Found()
    for block in itertools.chain.from_iterable(_blocks(read_lines(path)) for path in files):
        found += compare_lines(wordpiece, block, known)
    wrong += _report("all lines, ours against the ids of their words", found, start)
    for what, compared, everything in (
        ("a sample of whole lines", _compared_lines, sample),
        ("scalars, in three contexts each", _compared_scalars, SCALARS),
    ):
        start, found = time.perf_counter(), Found()
        for each in mapped(partial(compared, setting), _blocks(everything)):
            found += each
        wrong += _report(what, found, start)
    return wrong


def _prove_alphabets(lowercase: bool, strip_accents: bool, mapped: Callable) -> int:
    """All scalars, with vocabularies that know every character; how much is wrong."""
    print(f"vocabularies of every character, lowercase {lowercase}, strip_accents {strip_accents}")
    start, found = time.perf_counter(), Found()
    compared = partial(compare_with_an_alphabet, lowercase=lowercase, strip_accents=strip_accents)
    for each in mapped(compared, _blocks(SCALARS)):
        found += each
    return _report("scalars, in three contexts each", found, start)


def _report(what: str, found: Found, start: float) -> int:
    print(f"  {what}: {found}; {_since(start)}", flush=True)
    for text in found.wrong[:_SHOWN]:
        print(f"    {text}")
    return len(found.wrong)


def _since(start: float) -> str:
    return f"{time.perf_counter() - start:.0f} s"


def _blocks(everything: Sequence) -> Iterator[Sequence]:
    return (everything[place : place + _BLOCK] for place in range(0, len(everything), _BLOCK))


if __name__ == "__main__":
    sys.exit(main())
