"""Extract the prose of a docstring: whole sentences, without code, tables, parameter lists and markup."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator

from bertjax.text.sentences import split_sentences


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# sections that list parameters or show code, in the styles of numpydoc, Google and Keras
_LISTS = (
    r"(?:other |keyword |call |optional |key)?(?:parameters?|params?|arg(?:ument)?s?|kwargs|options|inputs?|outputs?)"
    r"|returns?|yields?|receives|raises?|throws|warns|attributes?|properties|members|fields|methods|functions|classes"
    r"|examples?(?: usage)?|example code|usages?|references?|see also|citations?|input shapes?|output shapes?|todos?"
    r"|history|authors?|license|contents|exports?|flags|demo|doctests?|routine listings|signature|type parameters"
)
_LIST_HEADING = re.compile(_LISTS, re.IGNORECASE)
_LIST_LABEL = re.compile(rf"\**(?:{_LISTS})(?: \([^)]*\))?\**::?(?:\s.*)?|#+ (?:{_LISTS}):?", re.IGNORECASE)
_UNDERLINE = re.compile(r"([=\-~^\"'`#*+.])\1{2,}")
_FENCE = re.compile(r"```|~~~")
_FIELD = re.compile(r":[\w-]+(?: [^:]*)?:(?:\s|$)|@\w+[ :]")
_DIRECTIVE = re.compile(r"\.\.(?: +(?:([\w:+-]+?)::(.*)|.*)|$)")
_PROSE_DIRECTIVES = _words("note warning tip important caution attention hint admonition topic")
_ITEM = re.compile(r"[-*+•] +|\(?\w{1,3}[.)] +")
_TABLE = re.compile(r"^ *[|+]|\S {3,}\S|=+ +=+|-+ +-+")

_MARKUP = (
    (re.compile(r"!?\[([^\]\[]*)\]\([^()\s]*\)"), r"\1"),  # [text](address)
    (re.compile(r"`([^`<]+?)\s*<[^<>`]*>`_{0,2}"), r"\1"),  # `text <address>`_
    (re.compile(r":(?:[\w+.-]+:)?[\w+.-]+:`~[^`]*\.([^`.]+)`"), r"\1"),  # :role:`~package.text`
    (re.compile(r":(?:[\w+.-]+:)?[\w+.-]+:`([^`]+)`"), r"\1"),  # :role:`text`
    (re.compile(r"``([^`]+)``|`([^`]+)`_{0,2}"), r"\1\2"),
    (re.compile(r"(?<![\w*])(\*\*?)(?=\S)([^*]*[^*\s])\1(?![\w*])"), r"\2"),  # *emphasis*, **strong**
    (re.compile(r" ?(?:\[[\w#*-]{1,12}\]_|\[\d+\](?!\w))"), ""),  # [1]_
    (re.compile(r"(?<=\w)_(?=[\s.,;:)])"), ""),  # reference_
    (re.compile(r"\\([ *`_|])"), r"\1"),
    (re.compile(r"\s+"), " "),
)
_CODE = re.compile(
    r"://|www\.|[={}<>\\|^~$@#%`*&]|\)\(|\w/\w+/|__|--|\.\.|\.\w+\(|\bTODO|\bFIXME|Copyright|Licensed|\w_\w+_\w+_"
)
_COMMON = _words(
    """
    a an the of to in is are be by for from with on as at it its this that these those which and or not if when will
    can has have was were you we your used must may only all any each into than then there
    """
)
_SENTENCE = re.compile(r"[A-Z\"'(].*[.!?][\"')\]]*")
_WORD = re.compile(r"[A-Za-z]+(?:['-][A-Za-z]+)*")
_SHORTEST, _LONGEST = 20, 600  # characters of a sentence


def prose(docstring: str) -> Iterator[str]:
    """Yield the paragraphs of a docstring's English prose, as whole sentences without markup."""
    lines = inspect.cleandoc(docstring).split("\n")
    for block in _blocks(_without_list_sections(list(_without_literals(lines)))):
        text = " ".join(block)
        if "." not in text or any(map(_TABLE.search, block)):
            continue
        for pattern, replacement in _MARKUP:
            text = pattern.sub(replacement, text)
        if sentences := [sentence for sentence in split_sentences(text) if _is_prose(sentence)]:
            yield " ".join(sentences)


def _is_prose(sentence: str) -> bool:
    if not _SHORTEST <= len(sentence) <= _LONGEST or not _SENTENCE.fullmatch(sentence) or _CODE.search(sentence):
        return False
    words = _WORD.findall(sentence)
    common = sum(word in _COMMON for word in map(str.lower, words))
    pieces = sentence.split()
    names = sum("_" in piece or "." in piece[:-1] for piece in pieces)
    letters = sum(map(len, words))
    return (
        len(words) >= 4
        and common * 10 >= len(words)
        and names * 6 <= len(pieces)
        and letters * 5 >= 4 * (len(sentence) - len(pieces))
    )


def _without_literals(lines: list[str]) -> Iterator[str]:
    """Leave out fenced code, doctests, literal blocks, directives, fields and the lists that a label begins."""
    hidden: int | None = None  # lines indented by more than this belong to an omitted block
    fenced = to_blank = False
    for line in lines:
        bare = line.lstrip()
        indent = len(line) - len(bare)
        if _FENCE.match(bare):
            fenced = not fenced
        elif fenced or (bare and (to_blank or (hidden is not None and indent > hidden))):
            continue
        elif not bare:
            to_blank = False
            yield ""
        elif bare.startswith(">>>"):
            to_blank = True
        elif match := _DIRECTIVE.match(bare):
            is_prose = match[1] in _PROSE_DIRECTIVES
            hidden = None if is_prose else indent
            yield " " * indent + match[2].strip() if is_prose else ""
        elif _FIELD.match(bare) or _LIST_LABEL.fullmatch(bare):
            hidden = indent
            to_blank = not bare.endswith(":")  # its text continues to the end of the paragraph
        elif bare.endswith("::"):
            hidden = indent
            yield line[:-1]
        else:
            hidden = None
            yield line


def _without_list_sections(lines: list[str]) -> Iterator[str]:
    """Leave out underlined headings, and sections that list parameters or show code."""
    listing = underline = False
    for line, following in zip(lines, [*lines[1:], ""], strict=False):
        if underline:
            underline = False
        elif line and _UNDERLINE.fullmatch(following.strip()) and not _UNDERLINE.fullmatch(line.strip()):
            listing, underline = _LIST_HEADING.fullmatch(line.strip()) is not None, True
            yield ""
        elif not listing:
            yield line


def _blocks(lines: Iterable[str]) -> Iterator[list[str]]:
    """Group lines into paragraphs, separated by blank lines, list items and changes of indentation."""
    block: list[str] = []
    depth = 0
    for line in lines:
        bare = line.strip()
        indent = len(line) - len(line.lstrip())
        item = _ITEM.match(bare)
        if block and (not bare or item or indent != depth):
            yield block
            block = []
        if item:
            bare, indent = bare[item.end() :], indent + item.end()
        if bare:
            block.append(bare)
            depth = indent
    if block:
        yield block
