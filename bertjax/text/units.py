"""Find units to mask whole: the words, phrases and entities of a sentence, and their tokens.

`data.units` names where units are marked: `spans:FIELD`, a field of the sources' records, or `list:FILE`, a file with a
unit per line and, after tabs, its kinds. A store made with it has a plane for each kind. Outside the units of its kind,
a plane marks the tokens that continue a word, as without units.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from bertjax.config import DataConfig
from bertjax.storage.files import read_whole
from bertjax.storage.lines import read_table
from bertjax.storage.remote import to_path
from bertjax.text.sources.registry import KINDS, parse_sources, read_documents
from bertjax.text.sources.source import SourceFile
from bertjax.text.spans import DEFAULT_KIND, PLANE_OF_KIND, Span, get_spans
from bertjax.tokenization.chunks import SEPARATOR
from bertjax.tokenization.tokenizer import Tokenizer

_SEARCHED = 1_000  # documents
VERSION = 1  # of the rules that find units; a change makes new stores

_MOST_BYTES = 256 << 20  # of a list

_Atom = tuple[str, int, int]  # (text to compare, begin, end)
FindUnits = Callable[[str], Sequence[Span]]  # the units of a sentence, in order of their starts

# An atom is a word or a single character: a punctuation mark, or a character of a script without spaces between words.
_ALONE = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
WORD = f"[{_ALONE}]|[^\\W{_ALONE}]+"  # a pattern; in scripts without spaces each character is a word
_ATOM = re.compile(f"{WORD}|[^\\w\\s]")


def units_fingerprint(data: DataConfig) -> dict[str, Any]:
    """Fingerprint of `data.units` as JSON: a list counts by its digest, not by its path.

    Raises ValueError like `find_units`, and if no source has fields.
    """
    find_units(data.units, data.lowercase)
    if digest := list_digest(data.units):
        return {"list": digest, "version": VERSION}
    field = spans_field(data)
    if not any(KINDS[source.kind].has_fields for source in parse_sources(data.sources)):
        able = ", ".join(name for name, known in KINDS.items() if known.has_fields)
        raise ValueError(
            f"data.units={data.units!r} with data.sources={data.sources}: only records of {able} have fields; name "
            "such a source, or a list of units"
        )
    return {"spans": field, "version": VERSION}


def spans_field(data: DataConfig) -> str:
    """The record field that lists spans; empty if units come from a list."""
    kind, _, field = data.units.partition(":")
    return field if kind == "spans" else ""


def list_digest(written: str) -> str:
    """SHA-256 (hex) of the list that `data.units` names; empty without a list."""
    return hashlib.sha256(_content(written)).hexdigest() if written.startswith("list:") else ""


def listed_planes(data: DataConfig) -> set[str] | None:
    """The planes that the list of `data.units` marks; None without a list."""
    if not data.units.startswith("list:"):
        return None
    units = find_units(data.units, data.lowercase)
    assert isinstance(units, _UnitList)
    return {PLANE_OF_KIND[kind] for kind in units.kinds}


def require_spans(data: DataConfig, sources: Iterable[Sequence[SourceFile]]) -> None:
    """Raise ValueError if none of the first documents of each source has a span."""
    field = spans_field(data)
    able = [[file for file in files if KINDS[file.kind].has_fields] for files in sources]
    if field and not any(
        get_spans(document.text)
        for files in able
        for document in itertools.islice((one for file in files for one in read_documents(file)), _SEARCHED)
    ):
        raise ValueError(
            f"data.units={data.units!r}: no unit was found in the first {_SEARCHED:,} documents of each source; check "
            "the field's name, or name files with marked text first"
        )


def find_units(written: str, lowercase: bool, digest: str = "") -> FindUnits:
    """The function that finds the units of `data.units` in a sentence.

    Raises ValueError if `written` is malformed, for a bad list, and for a list with another `list_digest`.
    """
    kind, _, name = written.partition(":")
    if kind not in ("spans", "list") or not name:
        raise ValueError(
            f"data.units={written!r}: write spans:FIELD, a record field that lists the spans of units, or list:FILE, "
            "a file with a unit on each line"
        )
    if kind == "spans":
        return get_spans
    content = _content(written)
    if digest and hashlib.sha256(content).hexdigest() != digest:
        raise ValueError(
            f"data.units={written!r}: {name} was changed while text was prepared; run the command again when nothing "
            "writes to it"
        )
    return _cached_list(content, f"data.units={written!r}", lowercase)


class UnitMarker:
    """Marks the tokens of units; `counts` counts the units of each plane."""

    def __init__(self, find: FindUnits) -> None:
        self._find = find
        self.counts: Counter[str] = Counter()

    def planes(
        self,
        tokenizer: Tokenizer,
        sentences: Sequence[str],
        bare: Sequence[bool],
        lengths: np.ndarray,
        continues: np.ndarray,
    ) -> dict[str, np.ndarray]:
        """Plane -> bool [tokens]: which tokens continue a unit of its kind.

        bare: [sentences], as in `encode_running`. lengths: int64 [sentences], in tokens. continues: bool [tokens],
        which tokens continue a word. A unit's tokens are those that share a character with it and are not part of an
        earlier unit; the token after them begins a new word.
        """
        planes = {plane: continues.copy() for plane in PLANE_OF_KIND.values()}
        starts = np.cumsum(lengths) - lengths
        for sentence, is_bare, start, size in zip(sentences, bare, starts, lengths, strict=True):
            if size and (spans := self._find(sentence)):
                parts = {name: plane[start : start + size] for name, plane in planes.items()}
                offsets = tokenizer.offsets(sentence.replace(SEPARATOR, ""), is_bare)
                self._mark(parts, spans, sentence, offsets)
        return planes

    def _mark(self, planes: dict[str, np.ndarray], spans: Sequence[Span], sentence: str, offsets: np.ndarray) -> None:
        """Write the units of one sentence into its part of the planes; `offsets` int64 [tokens, 2]."""
        ends = dict.fromkeys(planes, 0)  # the first token after the units of each plane so far
        for start, end, kind in spans:
            name = PLANE_OF_KIND[kind]
            plane = planes[name]
            assert len(offsets) == len(plane), "one pair of offsets per token"
            start, end = (offset - sentence.count(SEPARATOR, 0, offset) for offset in (start, end))
            inside = np.flatnonzero((offsets[:, 0] < end) & (offsets[:, 1] > start))
            inside = inside[inside >= ends[name]]
            if not len(inside):
                continue
            first, stop = int(inside[0]), int(inside[-1]) + 1
            plane[first : stop + 1] = False
            plane[first + 1 : stop] = True
            ends[name] = stop
            self.counts[name] += 1


class _UnitList:
    """The units of a list file. Of each kind, finds the longest unit that begins at a word, and none inside it."""

    def __init__(self, content: bytes, origin: str, lowercase: bool) -> None:
        self._lowercase = lowercase
        table = read_table(
            content,
            origin,
            called="a list of units",
            form=f"a unit, or a unit and its kinds ({', '.join(PLANE_OF_KIND)}), with tabs",
            is_row=lambda fields: bool(self._atoms(fields[0])) and PLANE_OF_KIND.keys() >= {*fields[1:]},
        )
        self._units: dict[str, set[tuple[str, ...]]] = {}
        self._sizes: dict[str, dict[str, set[int]]] = {}  # kind -> first atom -> sizes of units
        for unit, kinds in table.items():
            atoms = tuple(atom for atom, _, _ in self._atoms(unit))
            for kind in kinds or [DEFAULT_KIND]:
                self._units.setdefault(kind, set()).add(atoms)
                self._sizes.setdefault(kind, {}).setdefault(atoms[0], set()).add(len(atoms))

    @property
    def kinds(self) -> Iterable[str]:
        """The kinds of the units, keys of `PLANE_OF_KIND`."""
        return self._units.keys()

    def __call__(self, sentence: str) -> list[Span]:
        """Find the units of a sentence, in order."""
        atoms = self._atoms(sentence)
        names = [atom for atom, _, _ in atoms]
        spans: list[Span] = []
        for kind, units in self._units.items():
            sizes, stop = self._sizes[kind], 0
            for first, name in enumerate(names):
                if first < stop or name not in sizes:
                    continue
                candidates = (tuple(names[first : first + size]) for size in sizes[name])
                # A candidate is shorter than its size at the end of the sentence.
                matches = [len(unit) for unit in candidates if unit in units]
                if matches:
                    stop = first + max(matches)
                    spans.append(Span(atoms[first][1], atoms[stop - 1][2], kind))
        return sorted(spans)

    def _atoms(self, text: str) -> list[_Atom]:
        """Split a text into words and single characters, with their begins and ends."""
        atoms = ((match[0], *match.span()) for match in _ATOM.finditer(text))
        return [(atom.lower() if self._lowercase else atom, begin, end) for atom, begin, end in atoms]


_cached_list = lru_cache(maxsize=1)(_UnitList)


def _content(written: str) -> bytes:
    path = to_path(os.path.expanduser(written.partition(":")[2]))
    if not path.is_file():
        raise ValueError(f"data.units={written!r}: no such file; a list has a unit on each line")
    return read_whole(path, _MOST_BYTES)
