"""What every kind of source turns into: documents of bounded size, and the counts that tell how that went."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bertjax.storage.utf8 import ReadCounts
from bertjax.text.sentences import cut_at_spaces, split_sentences

DOCUMENT_CAP = 1 << 20  # characters; a longer document becomes successive ones, so that memory stays bounded


@dataclass(frozen=True)
class Document:
    """One document: non-empty paragraphs joined by newlines, or sentences where the source has one on each line."""

    text: str
    sentence_per_line: bool = False

    def sentences(self) -> list[str]:
        """The document's sentences, never empty strings; a line of a one-sentence-per-line source is not split."""
        if not self.sentence_per_line:
            return split_sentences(self.text)
        return [piece for line in self.text.split("\n") for piece in cut_at_spaces(line.strip()) if piece]


def paragraphs_of(text: str) -> Iterator[str | None]:
    """A document that came as one string: its lines are paragraphs, and None ends it."""
    yield from filter(None, map(str.strip, text.splitlines()))
    yield None


def assemble(
    paragraphs: Iterable[str | None], counts: ReadCounts, *, sentence_per_line: bool = False
) -> Iterator[Document]:
    """Group a stream of non-empty paragraphs, in which None ends a document, into documents of bounded size."""
    held: list[str] = []
    size = pieces = 0

    def document() -> Document:
        text = "\n".join(held)
        counts.documents += 1
        counts.characters += len(text)
        return Document(text, sentence_per_line)

    for paragraph in paragraphs:
        if paragraph is None:
            if held:
                yield document()
            elif not pieces:
                counts.empty_documents += 1
            counts.split_documents += pieces > 0
            held, size, pieces = [], 0, 0
            continue
        for part in (paragraph,) if len(paragraph) <= DOCUMENT_CAP else cut_at_spaces(paragraph, DOCUMENT_CAP):
            if held and size + len(part) > DOCUMENT_CAP:
                yield document()
                held, size, pieces = [], 0, pieces + 1
            held.append(part)
            size += len(part) + 1
