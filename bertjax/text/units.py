"""Units masked as a whole: finds the words, phrases and entities of a sentence, and their tokens.

`data.units` says where units are marked: `spans:FIELD`, a field of the sources' records, or `list:FILE`, a file with a
unit on each line and, after tabs, its kinds. A store that was made with it has a plane for each kind. In each of them a
token that is in no unit of the kind continues the word before it, or begins one, as it does without units.
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
from bertjax.storage.remote import path_of
from bertjax.text.sources.registry import KINDS, parse_sources, read_documents
from bertjax.text.sources.source import SourceFile
from bertjax.text.spans import PLANE_OF_KIND, USUAL_KIND, Span, get_spans
from bertjax.tokenization.chunks import SEPARATOR
from bertjax.tokenization.tokenizer import Tokenizer

_SEARCHED = 1_000  # documents
VERSION = 1  # of the rules by which units are found; a change makes other stores

_MOST_BYTES = 256 << 20  # of a list

_Atom = tuple[str, int, int]  # as it is compared, where it begins, and where it ends
FindUnits = Callable[[str], Sequence[Span]]  # the units of a sentence, in order of their starts

# A word, or a single character: a mark, or one of a script that puts no spaces between words.
_ALONE = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_UNSPACED = re.compile(f"[{_ALONE}]")
_ATOM = re.compile(f"[{_ALONE}]|[^\\W{_ALONE}]+|[^\\w\\s]")


def units_fingerprint(data: DataConfig) -> dict[str, Any]:
    """What the units of a store are made of, as JSON values: with a list its content, and not its path.

    Raises ValueError as `find_units` does, and if no source has fields to name.
    """
    find_units(data.units, data.lowercase)
    if digest := list_digest(data.units):
        return {"list": digest, "version": VERSION}
    named = spans_field(data)
    if not any(KINDS[source.kind].has_fields for source in parse_sources(data.sources)):
        able = ", ".join(name for name, known in KINDS.items() if known.has_fields)
        raise ValueError(
            f"data.units={data.units!r} with data.sources={data.sources}: only records of {able} have fields; name "
            "such a source, or a list of units"
        )
    return {"spans": named, "version": VERSION}


def is_unspaced(character: str) -> bool:
    """Whether a character is of a script without spaces between words, such as Chinese."""
    return _UNSPACED.match(character) is not None


def spans_field(data: DataConfig) -> str:
    """The field of records with their spans; empty if units come from elsewhere."""
    kind, _, named = data.units.partition(":")
    return named if kind == "spans" else ""


def list_digest(written: str) -> str:
    """SHA-256 (hex) of the list that a `data.units` names; empty if it names none."""
    return hashlib.sha256(_content(written)).hexdigest() if written.startswith("list:") else ""


def listed_planes(data: DataConfig) -> set[str] | None:
    """The planes in which the list of `data.units` marks units; None without a list."""
    if not data.units.startswith("list:"):
        return None
    found = find_units(data.units, data.lowercase)
    assert isinstance(found, _UnitList)
    return {PLANE_OF_KIND[kind] for kind in found.kinds}


def require_spans(data: DataConfig, sources: Iterable[Sequence[SourceFile]]) -> None:
    """Raise ValueError if no document has a span of units, of the first ones of the files of each source."""
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
    """The function of a `data.units`.

    Raises ValueError for one that is unknown, for a list that is bad, and for one that has not this `list_digest`.
    """
    kind, _, named = written.partition(":")
    if kind not in ("spans", "list") or not named:
        raise ValueError(
            f"data.units={written!r}: write spans:FIELD, a field of records with the spans of their units, or "
            "list:FILE, a file with a unit on each line"
        )
    if kind == "spans":
        return get_spans
    content = _content(written)
    if digest and hashlib.sha256(content).hexdigest() != digest:
        raise ValueError(
            f"data.units={written!r}: {named} was changed while text was prepared; run the command again when nothing "
            "writes to it"
        )
    return _unit_list(content, f"data.units={written!r}", lowercase)


class UnitMarker:
    """Marks the tokens of units, and counts the units of each plane of the store in `counts`."""

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
        """The plane of each kind of unit, bool [tokens].

        `bare` [sentences] as they were encoded with; `lengths` int64 [sentences] in tokens; `continues` bool [tokens],
        which tokens continue a word. The tokens of a unit are those with a character of it that are in no unit before
        it; what follows them does not continue it.
        """
        planes = {plane: continues.copy() for plane in PLANE_OF_KIND.values()}
        starts = np.cumsum(lengths) - lengths
        for sentence, is_bare, start, size in zip(sentences, bare, starts, lengths, strict=True):
            if size and (spans := self._find(sentence)):
                of_sentence = {name: plane[start : start + size] for name, plane in planes.items()}
                offsets = tokenizer.offsets(sentence.replace(SEPARATOR, ""), is_bare)
                self._mark(of_sentence, spans, sentence, offsets)
        return planes

    def _mark(self, planes: dict[str, np.ndarray], spans: Sequence[Span], sentence: str, offsets: np.ndarray) -> None:
        """Write the units of one sentence into its part of the planes; `offsets` are those of its tokens."""
        taken = dict.fromkeys(planes, 0)  # the first token after the units of each plane so far
        for start, end, kind in spans:
            name = PLANE_OF_KIND[kind]
            plane = planes[name]
            assert len(offsets) == len(plane), "every token has its offsets"
            start, end = (offset - sentence.count(SEPARATOR, 0, offset) for offset in (start, end))
            inside = np.flatnonzero((offsets[:, 0] < end) & (offsets[:, 1] > start))
            inside = inside[inside >= taken[name]]
            if not len(inside):
                continue
            first, behind = int(inside[0]), int(inside[-1]) + 1
            plane[first : behind + 1] = False
            plane[first + 1 : behind] = True
            taken[name] = behind
            self.counts[name] += 1


@lru_cache(maxsize=1)
def _unit_list(content: bytes, origin: str, lowercase: bool) -> FindUnits:
    return _UnitList(content, origin, lowercase)


class _UnitList:
    """The units of a file; of those of one kind that begin at one word the longest is found, and none inside it."""

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
        self._sizes: dict[str, dict[str, set[int]]] = {}  # of each kind, those of units that begin with an atom
        for unit, kinds in table.items():
            atoms = tuple(atom for atom, _, _ in self._atoms(unit))
            for kind in kinds or [USUAL_KIND]:
                self._units.setdefault(kind, set()).add(atoms)
                self._sizes.setdefault(kind, {}).setdefault(atoms[0], set()).add(len(atoms))

    @property
    def kinds(self) -> Iterable[str]:
        """The kinds of its units, keys of `PLANE_OF_KIND`."""
        return self._units.keys()

    def __call__(self, sentence: str) -> list[Span]:
        """The units of a sentence."""
        atoms = self._atoms(sentence)
        names = [atom for atom, _, _ in atoms]
        found: list[Span] = []
        for kind, units in self._units.items():
            sizes, behind = self._sizes[kind], 0
            for first, name in enumerate(names):
                if first < behind or name not in sizes:
                    continue
                coming = (tuple(names[first : first + size]) for size in sizes[name])
                fitting = [len(unit) for unit in coming if unit in units]  # at the end of the sentence shorter
                if fitting:
                    behind = first + max(fitting)
                    found.append(Span(atoms[first][1], atoms[behind - 1][2], kind))
        return sorted(found)

    def _atoms(self, text: str) -> list[_Atom]:
        """The words and single characters of a text, with where they begin and end."""
        cut = ((found[0], *found.span()) for found in _ATOM.finditer(text))
        return [(atom.lower() if self._lowercase else atom, begin, end) for atom, begin, end in cut]


def _content(written: str) -> bytes:
    path = path_of(os.path.expanduser(written.partition(":")[2]))
    if not path.is_file():
        raise ValueError(f"data.units={written!r}: no such file; a list has a unit on each line")
    return read_whole(path, _MOST_BYTES)
