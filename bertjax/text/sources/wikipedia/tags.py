"""Remove the tags of wikitext: comments, extensions such as <ref> and <math>, and HTML.

Dropped with their content: notes, formulas, galleries, maps, music, code blocks, struck-out text, headings, lists and
tables. Other HTML loses only its tags: <i>, <small>, <code>, <span> occur in sentences, <div> and <blockquote> around
paragraphs.
"""

from __future__ import annotations

import re

from bertjax.text.sources.wikipedia.gaps import BREAK, GAP, JOINT


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_DROPPED = _names(
    # As in MediaWiki, the first closing tag ends an element, whatever it contains.
    """
    ref references math chem ce gallery timeline score imagemap hiero graph mapframe maplink inputbox categorytree
    indicator templatestyles templatedata charinsert phonos pre includeonly style script rt rp s del strike h1 h2 h3 h4
    h5 h6 languages poll quiz rss
    """
)
_LITERAL = _names("nowiki syntaxhighlight source")  # code only if it is `inline` in a sentence
_BLOCKS = _names(
    "p div center blockquote poem li dd dt tr td th caption tbody thead hr article ul ol dl table gallery references "
    "h1 h2 h3 h4 h5 h6"
)
_INLINE = _LITERAL | _names(
    """
    a abbr b bdi bdo big cite code data del dfn em font i includeonly ins kbd langconvert mark math noinclude
    onlyinclude pre q rb ref rtc ruby s samp section small span strike strong sub sup templatestyles time translate tt
    tvar u var wbr
    """
)
_OPENING = re.compile(r"<(?:!--|([a-zA-Z][a-zA-Z0-9]*+)([^<>]*+)>)")
_TAG = re.compile(r"</?([a-zA-Z][a-zA-Z0-9]*+)[^<>]*+>")
_END = {name: re.compile(rf"</{name}\s*>", re.I) for name in _DROPPED | _LITERAL}
_NESTING = re.compile(r"<(/?)(?:table|ul|ol|dl)\b[^<>]*+>", re.I)
_HIDDEN = re.compile(r"<(span|div)\b[^<>]{0,300}display:\s{0,9}none[^<>]{0,300}>[^<>]*+</\1\s*>", re.I)
# From MediaWiki's includes/parser/BlockLevelPass.php: tags around blocks without preformatted lines.
_BLOCK_OPENS = re.compile(r"<(?:(?:table|h[1-6]|pre|p|ul|ol|dl)|/(?:td|th)|/?(?:tr|caption|dt|dd|li))(?![\w-])", re.I)
_BLOCK_CLOSES = re.compile(
    r"<(?:/(?:table|h[1-6]|pre|p|ul|ol|dl)|(?:td|th)|/?(?:center|blockquote|div|hr))(?![\w-])", re.I
)
_KEEPS_SPACES = re.compile(r"<(/?)(?:blockquote|poem)(?![\w-])", re.I)
_OTHER_BLOCK = ("=", "{|", "|")  # headings and tables
_BREAKS = re.compile(r"(?:<br\b[^<>]*+>\s*+){2,}", re.I)
_ESCAPED = str.maketrans({character: f"&#{ord(character)};" for character in "[]{}|'<>=*:_-!/"} | {"\n": " "})


def drop_opaque(text: str) -> str:
    """Drop comments and elements whose content is not markup: replace them by `GAP` or literal characters.

    Time is linear: a missing closing tag is searched for only once.
    """
    if "<" not in text:
        return text
    parts, copied, at = [], 0, 0
    endless: set[str] = set()
    while match := _OPENING.search(text, at):
        at = match.end()
        name = (match[1] or "").lower()
        if name in endless or (name and name not in _END):
            continue
        if name and match[2].endswith("/"):
            end, inside = at, ""
        else:
            begin, end = _find_end(text, name, at)
            if end < 0:
                endless.add(name)
                continue
            inside = text[at:begin]
        parts.append(text[copied : match.start()])
        parts.append(_replacement(name, match[2] or "", inside))
        copied = at = end
        if not name and text[end : end + 1] == "\n" == text[max(match.start() - 1, 0)]:
            copied = at = end + 1  # a comment alone on its line goes with the line
    return "".join(parts) + text[copied:]


def _find_end(text: str, name: str, at: int) -> tuple[int, int]:
    """The span of the closing tag of an element opened before `at`; (-1, -1) if there is none."""
    if not name:  # an unclosed comment extends to the end
        begin = text.find("-->", at)
        return (begin, begin + 3) if begin >= 0 else (len(text), len(text))
    match = _END[name].search(text, at)
    return match.span() if match else (-1, -1)


def _replacement(name: str, attributes: str, inside: str) -> str:
    if not name:
        return ""
    if name == "nowiki" or (name in _LITERAL and "inline" in attributes.lower()):
        text = inside.translate(_ESCAPED)
        return (f"&#{ord(text[0])};{text[1:]}" if text.startswith(("#", ";")) else text) + JOINT
    return GAP


def unindent(text: str) -> str:
    """Remove leading spaces of lines that MediaWiki shows as running text: in <p>, <blockquote> and <poem>.

    Other lines with a leading space are preformatted, unless they have a block tag.
    """
    if "<" not in text or "\n " not in text:
        return text
    lines = text.split("\n")
    in_block = in_quote = False
    for number, line in enumerate(lines):
        opens = closes = False
        if "<" in line:
            opens, closes = bool(_BLOCK_OPENS.search(line)), bool(_BLOCK_CLOSES.search(line))
            for tag in _KEEPS_SPACES.finditer(line):
                in_quote, closes = not tag[1], True
        elif line.startswith(_OTHER_BLOCK):
            closes = True
        if opens or closes:
            in_block = not closes
        if line[:1] == " " and (opens or closes or in_block or in_quote):
            lines[number] = line.lstrip(" ")
    return "\n".join(lines)


def drop_tags(text: str) -> str:
    """Drop HTML lists, tables and hidden text, and all other tags; `BREAK` separates blocks."""
    if "<" not in text:
        return text
    text = _drop_nesting(_HIDDEN.sub(GAP, text))
    return _TAG.sub(_instead_of_tag, _BREAKS.sub(BREAK, text))


def _instead_of_tag(match: re.Match[str]) -> str:
    name = match[1].lower()
    if name == "br":
        return f"{GAP} "
    if name in _INLINE:
        return JOINT
    return BREAK if name in _BLOCKS else match[0]  # MediaWiki shows unknown tags as text


def _drop_nesting(text: str) -> str:
    """Drop lists and tables, which may nest; an unclosed one loses only its tags."""
    parts, copied, opened, depth = [], 0, 0, 0
    for match in _NESTING.finditer(text):
        if not match[1]:
            if not depth:
                opened = match.start()
            depth += 1
        elif depth:
            depth -= 1
            if not depth:
                parts += text[copied:opened], BREAK
                copied = match.end()
    return "".join(parts) + text[copied:]
