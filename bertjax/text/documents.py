"""Documents, which is what every kind of source is read into, and the notes on what reading changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bertjax.storage.utf8 import ReadCounts
from bertjax.text.sentences import cut_at_spaces, split_sentences

DOCUMENT_CAP = 1 << 20  # characters; a longer document is read in parts, so that memory stays bounded


@dataclass(frozen=True)
class Document:
    """A document, or one part of a document of more than `DOCUMENT_CAP` characters.

    `text` is paragraphs joined by newlines, or sentences where the source has one on each line; none is empty.
    """

    text: str
    sentence_per_line: bool = False
    is_continuation: bool = False  # a further part of the document that the previous part belongs to

    def sentences(self) -> list[str]:
        """The sentences, never empty strings; a line of a one-sentence-per-line source is not split."""
        if not self.sentence_per_line:
            return split_sentences(self.text)
        return [piece for line in self.text.split("\n") for piece in cut_at_spaces(line.strip()) if piece]


def paragraphs_of(text: str) -> Iterator[str | None]:
    """The lines of a document that is one string, as its paragraphs; None ends it."""
    yield from filter(None, map(str.strip, text.splitlines()))
    yield None


def assemble(
    paragraphs: Iterable[str | None], counts: ReadCounts, *, sentence_per_line: bool = False
) -> Iterator[Document]:
    """Group a stream of non-empty paragraphs, in which None ends a document, into documents or parts of documents.

    No part has more than `DOCUMENT_CAP` characters. Adds to `counts`, in which a document counts once however many
    parts it has.
    """
    held: list[str] = []
    size = parts = 0

    def part() -> Document:
        text = "\n".join(held)
        counts.documents += not parts
        counts.split_documents += parts == 1
        counts.characters += len(text)
        return Document(text, sentence_per_line, is_continuation=parts > 0)

    for paragraph in paragraphs:
        if paragraph is None:
            if held:
                yield part()
            else:
                counts.empty_documents += 1
            held, size, parts = [], 0, 0
            continue
        counts.cut_paragraphs += len(paragraph) > DOCUMENT_CAP
        for piece in (paragraph,) if len(paragraph) <= DOCUMENT_CAP else cut_at_spaces(paragraph, DOCUMENT_CAP):
            if held and size + len(piece) > DOCUMENT_CAP:
                yield part()
                held, size, parts = [], 0, parts + 1
            held.append(piece)
            size += len(piece) + 1


def notes_of(counts: ReadCounts) -> list[str]:
    """What reading split, cut, replaced or left out, a sentence for each; empty where it changed nothing."""
    told = {
        "empty_documents": "documents have no text and were left out",
        "split_documents": f"documents of over {DOCUMENT_CAP:,} characters were read in parts; each is one document of "
        "the store",
        "cut_paragraphs": f"paragraphs of over {DOCUMENT_CAP:,} characters were cut at spaces",
        "cut_lines": "lines were too long to hold and were cut at spaces",
        "unterminated_documents": "documents have no </doc> and end where the next one or the end of the file is",
        "lines_outside_documents": "lines of text belong to no document and were left out",
        "unreadable_modules": "modules are not valid Python and were left out",
        "replaced_characters": "characters are not valid text and became U+FFFD",
    }
    found = ((getattr(counts, name), what) for name, what in told.items())
    return [f"{number:,} {what}" for number, what in found if number]
