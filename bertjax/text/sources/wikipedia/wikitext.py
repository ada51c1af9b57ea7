"""Convert wikitext to prose: the paragraphs of an article without markup, headings, lists, tables, notes and pictures.

"For Wikipedia we extract only the text passages and ignore lists, tables, and headers" (Devlin et al. 2018, 3.1). The
rules are MediaWiki's (mediawiki.org: Help:Formatting, Help:Links, Help:Tables, Writing systems/Syntax), in its parser's
order. Nothing is expanded or looked up; `templates` lists the templates whose words stay. Every step takes linear time
on any text.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from html.entities import html5

from bertjax.text.sources.wikipedia.gaps import BREAK, GAP, JOINT, close_gaps, replace_nested, without_marks
from bertjax.text.sources.wikipedia.links import resolve_external_links, resolve_links
from bertjax.text.sources.wikipedia.tags import drop_opaque, drop_tags, unindent
from bertjax.text.sources.wikipedia.templates import resolve_templates

_ASIDE = f"{GAP}{BREAK}{JOINT} \t\r\u200e\u200f\ufeff"  # may precede a list or heading mark
_NO_PROSE = ("*", "#", ":", ";", "|", "{{")  # lists, remains of tables, unclosed templates
_HEADING = re.compile(r"=.*=")
_SWITCH = re.compile(r"__([^\W\d_]++(?:_[^\W\d_]++)*)__")
_QUOTES = re.compile("'{2,}")
_ENTITY = re.compile(r"&(#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,30});")
_LEFT_OPEN = re.compile(r"\{\{+|\}\}+|\[\[+|\]\]+")
_VARIANT = re.compile(r"-\{([^{}]*+)\}-")
_ANY_VARIANT = re.compile(r"-\{([^-}]*+(?:(?:-(?!\{)|\}(?!-))[^-}]*+)*)\}-")
_VARIANT_CODE = re.compile(
    r"(?:^|[;；])\s{0,9}(?:zh|sr|kk|ku|iu|uz|shi|crh|gan|tg|ban|[a-z]{2,3}-[a-z-]{2,9})\s{0,9}[:：]"
)
_HIDDEN_VARIANT = frozenset("HTD-")  # flags of rules and titles, which are invisible


def paragraphs(text: str, hidden_names: frozenset[str]) -> list[str]:
    """Extract the prose of a page's wikitext: paragraphs without newlines, each with a letter or digit.

    `hidden_names` are the names of the namespaces for files and categories, as in `resolve_links`.
    """
    text = drop_opaque(without_marks(text))
    text = resolve_templates(resolve_links(text, hidden_names))
    if "-{" in text:
        text = replace_nested(text, _VARIANT, _ANY_VARIANT, _first_variant)
    text = drop_tags(unindent(text))
    return [prose for block in _blocks(text) for part in block.split(BREAK) if (prose := _prose(part))]


def _first_variant(match: re.Match[str]) -> str:
    """Choose the first variant of a rule without nested rules: 计算机 for `-{zh-hans:计算机;zh-hant:電腦}-`."""
    flags, pipe, text = match[1].rpartition("|")
    if pipe and _HIDDEN_VARIANT.intersection(map(str.strip, flags.split(";"))):
        return GAP
    code = _VARIANT_CODE.search(text)
    if not code:
        return text.strip()
    following = _VARIANT_CODE.search(text, code.end())
    return text[code.end() : following.start() if following else None].strip(" ;；\n")


def _blocks(text: str) -> Iterator[str]:
    """Yield successive lines of prose joined by spaces, as in a browser; everything else ends a block.

    After `unindent`, a line that begins with a space is preformatted: a program or diagram, not prose.
    """
    block: list[str] = []
    lines = text.split("\n")
    for line in _outside_tables(lines) if "{|" in text else lines:
        start = line.lstrip(_ASIDE)
        if not start and GAP in line and BREAK not in line:
            continue  # a line without visible text
        prose = start and line[0] != " " and not start.startswith(_NO_PROSE) and not _is_heading(start)
        rule = start.startswith("----")
        if block and (rule or not prose):
            yield " ".join(block)
            block = []
        if prose:
            block.append(_without_quotes(start.lstrip("-") if rule else line))
    if block:
        yield " ".join(block)


def _is_heading(line: str) -> bool:
    return line[0] == "=" and bool(_HEADING.fullmatch(line.rstrip(_ASIDE)))


def _outside_tables(lines: list[str], headings_close: bool = False) -> list[str]:
    """Drop the lines of tables; if a table is never closed, tables end at headings."""
    outside, depth = [], 0
    for line in lines:
        start = line.lstrip(f"{_ASIDE}:")
        if start.startswith("{|"):
            depth += 1
            outside.append("")
        elif depth and start.startswith("|}"):
            depth -= 1
        elif depth and headings_close and start and _is_heading(start):
            depth = 0
        elif not depth:
            outside.append(line)
    return outside if not depth or headings_close else _outside_tables(lines, headings_close=True)


def _without_quotes(line: str) -> str:
    """Remove the apostrophes of italics and bold; of four or more than five, the rest are text."""
    if "''" not in line:
        return line
    apostrophe = _apostrophe(line)

    def rest(match: re.Match[str]) -> str:
        length = len(match[0])
        return "'" * (length - 5 if length > 5 else length == 4 or match.start() == apostrophe)

    return _QUOTES.sub(rest, line)


def _apostrophe(line: str) -> int:
    """Find where three apostrophes are a letter and italics (`l'''Humanité''`), by MediaWiki's rule; -1 if nowhere.

    The rule applies if both bold and italics would stay open: after a word of one letter, else after a longer one.
    """
    runs = [(match.start(), match.end() - match.start()) for match in _QUOTES.finditer(line)]
    bold = [start for start, length in runs if length == 3]
    italics = sum(length == 2 or length >= 5 for _, length in runs)
    if not bold or not italics % 2 or not sum(length >= 3 for _, length in runs) % 2:
        return -1

    def rank(start: int) -> int:
        return 2 if line[start - 1 : start] in (" ", "") else line[max(start - 2, 0) : start - 1] not in (" ", "")

    return min(bold, key=rank)


def _prose(text: str) -> str:
    """Remove the remaining markup of a paragraph; returns '' if it has neither letter nor digit."""
    text = resolve_external_links(text.replace(JOINT, ""))
    if "__" in text:
        text = _SWITCH.sub(lambda match: match[0] if match[1] != match[1].upper() else GAP, text)
    if "{{" in text or "}}" in text or "[[" in text or "]]" in text:
        text = _LEFT_OPEN.sub("", text)
    if "&" in text:
        text = _ENTITY.sub(_character, text)
    text = close_gaps(" ".join(text.split())).strip()
    return text if any(map(str.isalnum, text)) else ""


def _character(entity: re.Match[str]) -> str:
    """The character of an entity with a semicolon; an unknown entity is unchanged."""
    return html.unescape(entity[0]) if entity[1][0] == "#" else html5.get(f"{entity[1]};", entity[0])
