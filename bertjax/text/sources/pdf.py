"""The `pdf` source: the text of PDF files, read with pypdf, with the pages joined.

Lines that recur at the top or the bottom of pages are left out, words divided at the end of a line are joined, and
lines are joined into paragraphs.
"""

from __future__ import annotations

import io
import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import quantiles

from bertjax.storage.lines import whole_content
from bertjax.storage.utf8 import ReadCounts
from bertjax.text.sources.source import Paragraphs, SourceFile, SourceKind

_EDGE = 2  # lines at the top and at the bottom of a page that may be headers and footers
_RECURRING = 1 / 3  # least share of the pages that have a header or footer
_LEAST_PAGES = 3  # least number of pages that have it
_PAGE_NUMBER = re.compile(
    r"""(?xi) \W* (?:(?:page|seite|p\.)\s*)?
    (?: \d{1,4} (?:\s*(?:/|of|von)\s*\d+)? | (?=[ivxlc]) (?:xc|xl|l?x{0,3}) (?:ix|iv|v?i{0,3}) ) \W*"""
)
_DIVIDED = re.compile(r"(\w+)[-\u2010\u00ad]$")
_CONTENTS = re.compile(r".*(?:\. ?){6,}\s*\w*")  # a line of a table of contents
_BULLET = re.compile(r"[\u2022\u2023\u25e6\u25aa\u2013]\s")
_NUMBERED = re.compile(r"\d+(?:\.\d+)*\.?\s+[^\W\d_]")  # the heading of a section, if it is short
_HYPHENATED = re.compile(r"\b\w+[-\u2010]\w+\b")
_ENDS = (".", "!", "?", ":", '."', ".”", ".)", "。", "！", "？")
_SHORT = 0.75  # share of the line width; a shorter line that ends a sentence ends a paragraph
_HEADING = 0.6  # share of the line width; a shorter line always ends a paragraph
_LIGATURES = str.maketrans({"ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl", "ﬅ": "st", "ﬆ": "st"})


def read(file: SourceFile, counts: ReadCounts) -> Paragraphs:
    """Read the file as one document.

    Raises ValueError naming the file if it is damaged, encrypted with a password, or without text because its pages are
    pictures.
    """
    pages = [text.translate(_LIGATURES).splitlines() for text in _page_texts(file.path)]
    if not any(line.strip() for page in pages for line in page):
        raise ValueError(
            f"{file.path}: no text on its {len(pages):,} pages, they may be pictures of text; recognise it (OCR), or "
            "leave the file out of the source"
        )
    yield from paragraphs(without_headers([[line.strip() for line in page] for page in pages]))
    yield None


def _page_texts(path: str) -> Iterator[str]:
    import pypdf

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it logs every deviation from the standard
    content = whole_content(path)
    where = path
    try:
        reader = pypdf.PdfReader(io.BytesIO(content))
        if reader.is_encrypted and not reader.decrypt(""):
            raise ValueError("it is encrypted with a password; save it without one")
        for number, page in enumerate(reader.pages, 1):
            where = f"{path}, page {number}"
            yield page.extract_text()
    except ModuleNotFoundError:
        raise
    except Exception as error:  # damaged files raise errors of many types
        what = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ValueError(f"{where}: cannot be read as PDF: {what}; or leave it out of the source") from None


def without_headers(pages: Sequence[Sequence[str]]) -> list[str]:
    """Join the lines of all pages, without page numbers and lines that recur at the edges of pages.

    Lines count as the same if they differ only in numbers.
    """
    edges = [_edges(page) for page in pages]
    recurring = Counter(
        shape for page, edge in zip(pages, edges, strict=True) for shape in {_shape(page[n]) for n in edge}
    )
    least = max(_LEAST_PAGES, _RECURRING * len(pages))
    lines: list[str] = []
    for page, edge in zip(pages, edges, strict=True):
        dropped = {
            number
            for number in edge
            if recurring[_shape(page[number])] >= least or (len(pages) > 1 and _PAGE_NUMBER.fullmatch(page[number]))
        }
        lines += [line for number, line in enumerate(page) if number not in dropped]
    return lines


def _edges(page: Sequence[str]) -> list[int]:
    """The indices of the first and last lines with text."""
    filled = [number for number, line in enumerate(page) if line]
    return sorted({*filled[:_EDGE], *filled[-_EDGE:]})


def _shape(line: str) -> str:
    return re.sub(r"\d+", "0", line.casefold())


def paragraphs(lines: Sequence[str]) -> Iterator[str]:
    """Join lines into paragraphs, which end at blank and at short lines; divided words are joined.

    Bullets and numbered headings begin a paragraph, and lines of a table of contents are left out. A word keeps the
    hyphen at the end of a line if it has one elsewhere too.
    """
    lines = [line for line in lines if not _CONTENTS.fullmatch(line)]
    hyphenated = {word.casefold() for line in lines for word in _HYPHENATED.findall(line)}
    sizes = [len(line) for line in lines if line]
    width = quantiles(sizes, n=10)[-1] if len(sizes) > 1 else 0
    paragraph = ""
    for line in lines:
        if not line:
            if paragraph:
                yield paragraph
            paragraph = ""
            continue
        if paragraph and (_BULLET.match(line) or (_NUMBERED.match(line) and len(line) < _HEADING * width)):
            yield paragraph
            paragraph = ""
        divided = _DIVIDED.search(paragraph)
        if divided and line[0].islower():
            second = re.match(r"\w+", line)
            whole = f"{divided[1]}-{second[0] if second else ''}".casefold()
            paragraph = paragraph + line if whole in hyphenated else paragraph[:-1] + line
        else:
            paragraph = f"{paragraph} {line}" if paragraph else line
        is_last = len(line) < _HEADING * width or (len(line) < _SHORT * width and line.endswith(_ENDS))
        if is_last and not _DIVIDED.search(paragraph):
            yield paragraph
            paragraph = ""
    if paragraph:
        yield paragraph


KIND = SourceKind(
    "pdf",
    read,
    example="papers/**/*.pdf",
    file_is_document=True,
    needs=("pypdf", "'bertjax[pdf]'"),
    folder_names=("*.pdf",),
)
