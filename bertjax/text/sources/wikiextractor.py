"""The `wikiextractor` source: what WikiExtractor makes of a dump, articles between `<doc ...>` and `</doc>`."""

from __future__ import annotations

import html
import re

from bertjax.storage.utf8 import ReadCounts
from bertjax.text.sources.globs import DUMPS
from bertjax.text.sources.source import Paragraphs, SourceFile, SourceKind, lines_of

_TAGS = re.compile(
    r"</?(?:br|poem|only|onlyinclude|noinclude|includeonly|nowiki|table|td|tr|th|li|ul|ol|div|span|center|small|big|"
    r"score|gallery|ref|references|p|i|b|u|sup|sub|font|blockquote|h[1-6])\b[^<>]{0,500}>",
    re.IGNORECASE,
)
_TITLE = re.compile(r'\btitle="(.*?)"(?=\s+\w+=|\s*/?>)')


def read(file: SourceFile, counts: ReadCounts) -> Paragraphs:
    """WikiExtractor's output: `<doc ... title="...">`, the title, paragraphs a line each, `</doc>`.

    The line that repeats the title is left out, left-over markup too. A document that the next one or the end of the
    file cuts off is kept and counted. Raises ValueError if the file has text but no `<doc`.
    """
    inside, title, seen, outside = False, "", False, 0
    for line in lines_of(file, counts):
        if line[:1] == "<":
            if line.startswith("<doc "):
                if inside:
                    counts.unterminated_documents += 1
                    yield None
                found = _TITLE.search(line)
                inside = seen = True
                title = html.unescape(found[1]) if found else ""
                continue
            if inside and line.startswith("</doc>"):
                inside = False
                yield None
                continue
        if not inside:
            outside += bool(line.strip())
            continue
        if "<" in line:
            line = _TAGS.sub(" ", line)
        line = line.strip()
        if line and title:
            repeated, title = html.unescape(line) == title, ""
            if repeated:
                continue
        if line:
            yield line
    if outside and not seen:
        raise ValueError(f"{file.path}: {outside} lines of text but no `<doc ...>`; is it WikiExtractor's output?")
    if inside:
        counts.unterminated_documents += 1
        yield None
    counts.lines_outside_documents += outside


KIND = SourceKind(
    "wikiextractor",
    read,
    example="extracted/*/wiki_*",
    where_from=f"WikiExtractor makes them of a dump; or have wikipedia:GLOB read the dump itself, from {DUMPS}",
)
