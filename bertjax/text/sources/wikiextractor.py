"""The `wikiextractor` source: WikiExtractor's output, articles between `<doc ...>` and `</doc>`."""

from __future__ import annotations

import html
import re

from bertjax.storage.utf8 import ReadCounts
from bertjax.text.sources.globs import DUMPS
from bertjax.text.sources.source import Paragraphs, SourceFile, SourceKind, source_lines

# Notes, with their content, and comments.
_NOTES = re.compile(r"<ref\b[^<>]{0,500}/>|<ref\b[^<>]{0,500}>.{0,5000}?</ref\s*>|<!--.{0,5000}?-->", re.IGNORECASE)
# Tags within a line of text: their content stays, and they leave no space.
_INLINE_TAGS = re.compile(
    r"</?(?:a|abbr|b|bdi|big|cite|code|del|em|font|i|ins|kbd|mark|math|nowiki|q|rp|rt|ruby|s|samp|small|span|strike|"
    r"strong|sub|sup|tt|u|var|wbr)(?:\s[^<>]{0,2000})?/?>",
    re.IGNORECASE,
)
_BLOCK_TAGS = re.compile(
    r"</?(?:blockquote|br|caption|center|dd|div|dl|dt|gallery|h[1-6]|hr|includeonly|li|noinclude|ol|only|onlyinclude|p|"
    r"poem|pre|ref|references|score|section|syntaxhighlight|table|tbody|td|templatestyles|th|thead|timeline|tr|ul)"
    r"\b[^<>]{0,500}>",
    re.IGNORECASE,
)
_SPACES = re.compile(" {2,}")
_TITLE = re.compile(r'\btitle="(.*?)"(?=\s+\w+=|\s*/?>)')


def read(file: SourceFile, counts: ReadCounts) -> Paragraphs:
    """Read WikiExtractor's output: `<doc ... title="...">`, the title, one line per paragraph, `</doc>`.

    The repeated title and leftover markup are left out. A document cut off by the next one or the end of the file is
    retained and counted. Raises ValueError if the file has text but no `<doc`.
    """
    inside, title, seen, outside = False, "", False, 0
    first_outside = ""
    for line in source_lines(file, counts):
        if line[:1] == "<":
            if line.startswith("<doc "):
                if inside:
                    counts.unterminated_documents += 1
                    yield None
                match = _TITLE.search(line)
                inside = seen = True
                title = html.unescape(match[1]) if match else ""
                continue
            if inside and line.startswith("</doc>"):
                inside = False
                yield None
                continue
        if not inside:
            outside += bool(line.strip())
            first_outside = first_outside or line.strip()
            continue
        line = " ".join(html.unescape(line).splitlines()).strip() if "&" in line else line.strip()
        if line and title:
            is_title, title = line == title, ""
            if is_title:
                continue
        if "<" in line:
            # The text of anchors and other elements stays.
            plain = _BLOCK_TAGS.sub(" ", _INLINE_TAGS.sub("", _NOTES.sub("", line)))
            line = _SPACES.sub(" ", plain).strip() if plain != line else line
        if line:
            yield line
    if outside and not seen:
        if first_outside.startswith('{"'):
            raise ValueError(
                f"{file.path}: JSON Lines, as WikiExtractor writes them with --json; name the source jsonl:GLOB, as in "
                f"jsonl:{file.path}"
            )
        raise ValueError(f"{file.path}: {outside} lines of text but no `<doc ...>`; is it WikiExtractor's output?")
    if inside:
        counts.unterminated_documents += 1
        yield None
    counts.lines_outside_documents += outside


KIND = SourceKind(
    "wikiextractor",
    read,
    example="extracted/*/wiki_*",
    version=1,
    folder_names=("wiki_*",),
    takes_encoding=True,
    where_from=f"make them from a dump with WikiExtractor, or read the dump itself as wikipedia:GLOB, from {DUMPS}",
)
