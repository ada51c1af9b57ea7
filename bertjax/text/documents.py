"""Documents, into which every kind of source is read, and notes on what reading changed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from bertjax.storage.utf8 import ReadCounts
from bertjax.text.sentences import cut_at_spaces, split_sentences
from bertjax.text.spans import join, split_spans

DOCUMENT_CAP = 1 << 20  # characters; a longer document is read in parts, to bound memory
PIECE_ENDS = ""  # ends a document in a stream of paragraphs; the next document belongs to the same work
DIVIDING_VERSION = 2  # of the rules that divide works; a change makes new stores

_HEADING_SIZE = 100  # characters at most
_HEADING = re.compile(
    # a word for a part of a book with its number, or a number alone
    r"""(?xi)
    (?:chapter|book|part|volume|canto|act|scene|section|letter|stave|story|lecture|kapitel|teil|buch|chapitre|livre
    |partie|cap[ií]tulo|capitolo|parte|libro|hoofdstuk|deel|kapitola|rozdzia[łl]|luku|b[öo]l[üu]m|глава|часть|книга)
    \s+ (?:the\s+\w+|[ivxlcdm]+|\d+|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|first|last) \b
    | [ivxlcdm]{1,8} \.? $ | \d{1,3} \.? $ | \#{1,3} \s+ \S | (?:prologue|epilogue|preface|introduction) \W* $
    | 第 .{1,6} [章回節节部卷] | 제 \s? \d+ \s? [장부]
    """
)
_SENTENCE_ENDS = (". ", "! ", "? ", '." ', ".” ", "。", "！", "？")


@dataclass(frozen=True)
class Document:
    """A document, or one part of a document of more than `DOCUMENT_CAP` characters.

    `text` is non-empty paragraphs joined by newlines, or sentences if the source has one per line.
    """

    text: str
    sentence_per_line: bool = False
    is_sequence: bool = False  # a sentence per line, of any length
    is_continuation: bool = False  # a further part of the previous part's document
    is_of_same_work: bool = False  # a further piece of the previous document's work

    def sentences(self) -> list[str]:
        """The sentences, none empty; a line of a one-sentence-per-line source is not split."""
        if self.is_sequence:
            return self.text.split("\n")
        if not self.sentence_per_line:
            return [*split_spans(self.text, split_sentences(self.text))]
        return [piece for line in self.text.split("\n") for piece in cut_at_spaces(line.strip()) if piece]

    def bare(self, sentences: Sequence[str]) -> list[bool]:
        """Whether each sentence follows without white space: a document's first, and later ones in Chinese."""
        bare = [False] * len(sentences)
        if not self.text.isascii():  # in ASCII text, a space follows every sentence
            end = 0
            for number, sentence in enumerate(sentences):
                begin = self.text.index(sentence, end)
                bare[number] = begin == end
                end = begin + len(sentence)
        if bare:
            bare[0] = not self.is_continuation
        return bare


def split_paragraphs(text: str) -> Iterator[str | None]:
    """Yield the lines of a document as its paragraphs, then None."""
    yield from split_spans(text, filter(None, map(str.strip, text.splitlines())))
    yield None


def end_last(paragraphs: Iterable[str | None]) -> Iterator[str | None]:
    """Add the None that ends the last document, if it is missing from a stream of paragraphs."""
    last = None
    for last in paragraphs:
        yield last
    if last is not None:
        yield None


def divide_works(paragraphs: Iterable[str | None], longest: int, counts: ReadCounts) -> Iterator[str | None]:
    """Divide documents of over `longest` characters in a stream of paragraphs, at headings or between paragraphs.

    A longer paragraph is cut after a sentence. A heading does not end a piece shorter than an eighth of `longest`, so
    that a table of contents stays together. Adds the divided works and their pieces to `counts`.
    """
    size, pieces = 0, 1
    for paragraph in paragraphs:
        if paragraph is None:
            counts.divided_works += pieces > 1
            counts.pieces += pieces if pieces > 1 else 0
            size, pieces = 0, 1
            yield None
            continue
        begins = size >= longest // 8 and len(paragraph) <= _HEADING_SIZE and _HEADING.match(paragraph) is not None
        for part in split_spans(paragraph, _cut_after_sentences(paragraph, longest)):
            if begins or (size and size + len(part) > longest):
                yield PIECE_ENDS
                size, pieces, begins = 0, pieces + 1, False
            size += len(part) + 1
            yield part


def _cut_after_sentences(paragraph: str, longest: int) -> Iterator[str]:
    begin = 0
    while len(paragraph) - begin > longest:
        ends = (paragraph.rfind(end, begin, begin + longest) + len(end) for end in _SENTENCE_ENDS)
        cut = max(ends)
        if cut <= begin + longest // 8:
            cut = paragraph.rfind(" ", begin, begin + longest) + 1 or begin + longest
        cut = cut if cut > begin else begin + longest
        if part := paragraph[begin:cut].strip():
            yield part
        begin = cut
    if part := paragraph[begin:].strip():
        yield part


def assemble(
    paragraphs: Iterable[str | None],
    counts: ReadCounts,
    *,
    sentence_per_line: bool = False,
    is_sequence: bool = False,
) -> Iterator[Document]:
    """Group a stream of paragraphs, where None or `PIECE_ENDS` ends a document, into documents or their parts.

    A part has at most `DOCUMENT_CAP` characters. Adds to `counts`, in which a document with several parts counts once.
    """
    pending: list[str] = []
    size = parts = 0
    is_of_same_work = False

    def part() -> Document:
        text = join(pending, "\n")
        counts.documents += not parts
        counts.split_documents += parts == 1
        counts.characters += len(text)
        return Document(text, sentence_per_line, is_sequence, parts > 0, is_of_same_work)

    for paragraph in paragraphs:
        if not paragraph:
            if pending:
                yield part()
            else:
                counts.empty_documents += 1
            pending, size, parts = [], 0, 0
            is_of_same_work = paragraph == PIECE_ENDS
            continue
        pieces: Iterable[str] = (paragraph,)
        if len(paragraph) > DOCUMENT_CAP:
            counts.cut_paragraphs += 1
            pieces = split_spans(paragraph, cut_at_spaces(paragraph, DOCUMENT_CAP))
        for piece in pieces:
            if pending and size + len(piece) > DOCUMENT_CAP:
                yield part()
                pending, size, parts = [], 0, parts + 1
            pending.append(piece)
            size += len(piece) + 1


def describe_counts(counts: ReadCounts) -> list[str]:
    """Describe what reading split, cut, replaced or left out, a line with a count each; empty if nothing."""
    descriptions = {
        "empty_documents": "documents without text (redirects, for example), which were left out",
        "split_documents": f"documents of over {DOCUMENT_CAP:,} characters, read in parts and stored as one",
        "divided_works": "documents split at headings or between paragraphs (data.split_documents)",
        "pieces": "documents that those were split into",
        "cut_paragraphs": f"paragraphs of over {DOCUMENT_CAP:,} characters, cut at spaces",
        "cut_lines": "overlong lines, cut at spaces",
        "unterminated_documents": "documents without </doc>, ended at the next document or the end of the file",
        "lower_case_letters": "lower-case letters in FASTA files, read as upper case",
        "stop_marks": "FASTA records that end in *, which was left out",
        "lines_outside_documents": "lines of text outside a document, which were left out",
        "unreadable_modules": "modules that are not valid Python, which were left out",
        "replaced_characters": "characters that are not valid text, replaced by U+FFFD",
    }
    counted = ((getattr(counts, name), what) for name, what in descriptions.items())
    return [f"{what}: {number:,}" for number, what in counted if number]
