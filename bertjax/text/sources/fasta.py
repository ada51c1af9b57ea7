"""The `fasta` source: sequences of letters, such as proteins and genomes, each after a header that begins with `>`.

A record is a document of one sentence: its lines joined, in upper case, without white space and a final `*`. A record
of over `PIECE` letters is read in pieces of that size, which the store joins into one document.
"""

from __future__ import annotations

from collections.abc import Iterator

from bertjax.storage.lines import read_lines
from bertjax.storage.utf8 import ReadCounts
from bertjax.text.sources.source import Paragraphs, SourceFile, SourceKind
from bertjax.text.spans import MarkedText, Record

PIECE = 720_720  # letters; a multiple of 1 to 16, so that strided k-mers continue across the end of a piece

_LOWER = bytes(range(ord("a"), ord("z") + 1))


def read(file: SourceFile, counts: ReadCounts) -> Paragraphs:
    """Read the records; the first word of a header is the record's name.

    Raises ValueError if letters come before the first header.
    """
    name = None
    letters: list[str] = []  # of the record, after its last whole piece
    size = 0
    for line in read_lines(file.path, lambda number: None, counts=counts):  # the pieces of a cut line are joined
        line = line.strip()
        if line[:1] == ">":
            if name is not None:
                yield from _end_record("".join(letters), name, counts)
            name, letters, size = next(iter(line[1:].split()), ""), [], 0
            continue
        if not line:
            continue
        if name is None:
            raise ValueError(
                f"{file.path}: {line[:40]!r} comes before the first header, a line that begins with '>'; is it FASTA?"
            )
        letters.append(_in_upper_case(line, counts))
        size += len(letters[-1])
        if size > PIECE:  # more than a whole piece, so that the last piece of a record is never empty
            joined = "".join(letters)
            whole = (size - 1) // PIECE * PIECE
            yield from (MarkedText(joined[at : at + PIECE], record=Record(name)) for at in range(0, whole, PIECE))
            letters, size = [joined[whole:]], size - whole
    if name is not None:
        yield from _end_record("".join(letters), name, counts)


def _in_upper_case(line: str, counts: ReadCounts) -> str:
    joined = line if line.isalpha() else "".join(line.split())
    upper = joined.upper()
    if upper != joined:
        written = joined.encode()
        counts.lower_case_letters += len(written) - len(written.translate(None, _LOWER))
    return upper


def _end_record(letters: str, name: str, counts: ReadCounts) -> Iterator[str | None]:
    """Yield the last piece of a record, and None for its end."""
    if letters.endswith("*"):
        letters = letters[:-1]
        counts.stop_marks += 1
    if letters:
        yield MarkedText(letters, record=Record(name))
    yield None


KIND = SourceKind(
    "fasta",
    read,
    example="proteins/*.fasta.gz",
    folder_names=("*.fasta", "*.fa", "*.faa", "*.fna", "*.ffn", "*.fas"),
    is_sequence=True,
)
