"""The `html` source: the main text of web pages without menus, adverts and footers, extracted with trafilatura."""

from __future__ import annotations

import logging
import re

from bertjax.storage.lines import whole_content
from bertjax.storage.utf8 import UTF8, ReadCounts, Utf8, byte_order_mark, encoding_name
from bertjax.text.documents import split_paragraphs
from bertjax.text.sources.source import Paragraphs, SourceFile, SourceKind

_CHARSET = re.compile(rb"""<meta[^>]{0,500}?charset\s*=\s*["']?\s*([\w.:-]{1,40})""", re.IGNORECASE)
_HEAD = 4096  # bytes to search for the name of the encoding
_REMEDY = "leave the page out of the source, or give its encoding as data.encoding"


def read(file: SourceFile, counts: ReadCounts) -> Paragraphs:
    """Read the main text of the page as one document.

    The encoding comes from the byte order mark, else from the page's <meta>, else from `file`. Raises ValueError naming
    a file that is not HTML, or has too many invalid characters.
    """
    import trafilatura

    logging.getLogger("trafilatura").setLevel(logging.CRITICAL)  # it logs every odd page
    content = whole_content(file.path)
    if b"<" not in content:
        raise ValueError(f"{file.path}: not HTML, it has no tag; name the right kind of source, or leave it out")
    encoding = byte_order_mark(content) or _named_encoding(content) or file.encoding
    utf8 = Utf8(file.path, _REMEDY, counts, encoding)
    if encoding != UTF8:
        content = content.decode(encoding, errors="replace").encode(errors="replace")
    page = utf8.decode(content).removeprefix("\ufeff")
    utf8.finish()
    yield from split_paragraphs(trafilatura.extract(page, include_comments=False) or "")


def _named_encoding(content: bytes) -> str:
    """The encoding in the page's <meta>; '' if there is none, or Python does not support it."""
    match = _CHARSET.search(content[:_HEAD])
    try:
        return encoding_name(match[1].decode()) if match else ""
    except LookupError:
        return ""


KIND = SourceKind(
    "html",
    read,
    example="site/**/*.html",
    file_is_document=True,
    needs=("trafilatura", "'bertjax[html]'"),
    folder_names=("*.html", "*.htm", "*.xhtml"),
    takes_encoding=True,
)
