"""The `wikipedia` source: the articles of MediaWiki's XML dumps (`*-pages-articles*.xml.bz2`), page by page.

The format is documented at mediawiki.org, Help:Export (export-0.11.xsd and earlier). Dumps of several bz2 streams are
read as one, or in byte spans by several processes. Articles are the pages in namespace 0 that hold wikitext and are not
redirects.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from xml.parsers import expat

from bertjax.storage.lines import RECORD_CAP, Span, read_lines
from bertjax.storage.remote import file_size
from bertjax.storage.utf8 import ReadCounts
from bertjax.text.sources.globs import DUMPS
from bertjax.text.sources.source import Paragraphs, SourceFile, SourceKind
from bertjax.text.sources.wikipedia.links import HIDDEN_NAMES, normal_name
from bertjax.text.sources.wikipedia.multistream import cut_at, split
from bertjax.text.sources.wikipedia.wikitext import paragraphs

# Elements whose text is used -> their parent.
_TEXT_PARENTS = {"namespace": "namespaces", "title": "page", "ns": "page", "model": "revision", "text": "revision"}
_IS_IT = "is it a MediaWiki XML dump, as downloaded?"
_HIDDEN_NAMESPACES = (-2, 6, 14)  # media, files, categories
# In dumps older than <redirect>: `#REDIRECT [[Target]]`, with the word in the edition's language.
_REDIRECT = re.compile(r"\s*+#[^\s\[\]#*:;]{1,40}+(?: [^\s\[\]:]{1,20}+)?\s*+:?\s*+\[\[[^\[\]\n]++\]\]")


@dataclass(frozen=True)
class Page:
    """A page of a dump; `text` is wikitext, and empty unless the page is an article."""

    title: str
    namespace: int
    redirect: bool
    text: str


def read(file: SourceFile, counts: ReadCounts) -> Paragraphs:
    """Read the articles of a dump in order.

    Adjacent spans yield every article once, wherever they end. Raises ValueError like `Dump.pages`.
    """
    dump = Dump(file.path, counts, file.span)
    for page in dump.pages():
        if page.namespace == 0 and not page.redirect:
            yield from paragraphs(page.text, dump.hidden_names)
            yield None


class Dump:
    """A dump, or the streams of a multistream dump that begin in a span of bytes; read once, in bounded memory."""

    def __init__(self, path: str, counts: ReadCounts | None = None, span: Span | None = None) -> None:
        self.path = path
        self.hidden_names = HIDDEN_NAMES  # the head of the dump adds its own
        self._counts = counts
        self._span = None if span is None else (cut_at(path, span[0]), cut_at(path, span[1]))
        self._name = path if self._span is None else f"{path}, bytes {self._span[0]} to {self._span[1]}"
        self._headed = False  # whether the part before the pages has been read
        self._finished: list[Page] = []
        self._open_elements: list[str] = []
        self._namespaces: dict[str, int] = {}  # numbers by local names, normalised
        self._key = ""  # of the current namespace
        self._page: dict[str, str] = {}
        self._text: list[str] = []  # of the current element
        self._parser = expat.ParserCreate("utf-8")
        self._parser.buffer_text = True
        self._parser.buffer_size = 1 << 16
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end

    def pages(self) -> Iterator[Page]:
        """Yield every page.

        Raises ValueError naming the file and the page or line if the file is not a dump, is truncated or damaged, or
        has a line above `RECORD_CAP`.
        """
        if self._span is not None:
            start, end = self._span
            if start == end:
                return
            if start:
                self._take_head()
                self._parse("<mediawiki>", 0)
        number = 0
        for number, line in enumerate(self._lines(self._counts, self._span), 1):
            self._parse(f"{line}\n", number)
            if self._finished:
                yield from self._finished
                self._finished.clear()
        if self._span is not None and self._span[1] < file_size(self.path):
            self._parse("</mediawiki>", number)
        self._parse("", number, last=True)

    def _take_head(self) -> None:
        """Read the namespaces' names at the beginning of the file."""
        head = Dump(self.path)
        for number, line in enumerate(head._lines(None, (0, cut_at(self.path, 1))), 1):
            head._parse(f"{line}\n", number)
            if head._headed:
                break
        self.hidden_names, self._namespaces = head.hidden_names, head._namespaces

    def _lines(self, counts: ReadCounts | None, span: Span | None) -> Iterator[str]:
        return read_lines(self.path, self._refuse_line, RECORD_CAP, counts, span)

    def _parse(self, text: str, number: int, last: bool = False) -> None:
        try:
            self._parser.Parse(text, last)
        except expat.ExpatError as error:
            what = expat.ErrorString(error.code)
            if last and self._open_elements:
                raise ValueError(f"{self._location()}: cut off here ({what}); get the file again") from None
            raise ValueError(f"{self._location()}, line {number}: bad XML ({what}); {_IS_IT}") from None

    def _location(self) -> str:
        """Name the file and the current or previous page."""
        title = self._page.get("title")
        return f"{self._name}, page {title!r}" if title else self._name

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        parent = self._open_elements[-1] if self._open_elements else ""
        if not parent and name != "mediawiki":
            raise ValueError(f"{self._name}: its first element is <{name}>, not <mediawiki>; {_IS_IT}")
        self._open_elements.append(name)
        if name == "page":
            self._page, self._headed = {}, True
        elif name == "redirect" and parent == "page":
            self._page["redirect"] = ""
        elif _TEXT_PARENTS.get(name) == parent and (name != "text" or self._is_article()):
            self._key = attributes.get("key", "")
            self._text = []
            self._parser.CharacterDataHandler = self._text.append

    def _end(self, name: str) -> None:
        self._open_elements.pop()
        if self._parser.CharacterDataHandler is not None:
            self._parser.CharacterDataHandler = None
            text = "".join(self._text)
            if name == "namespace":
                self._namespaces[normal_name(text)] = self._number(self._key)
            else:
                self._page[name] = text  # the last revision overrides earlier ones
        elif name == "namespaces":
            own = {name for name, number in self._namespaces.items() if number in _HIDDEN_NAMESPACES}
            self.hidden_names = HIDDEN_NAMES | own
        elif name == "page":
            redirect = "redirect" in self._page or bool(_REDIRECT.match(self._page.get("text", "")))
            text = "" if redirect else self._page.get("text", "")
            self._finished.append(Page(self._page.get("title", ""), self._namespace(), redirect, text))

    def _is_article(self) -> bool:
        wikitext = self._page.get("model", "wikitext") == "wikitext"
        return wikitext and "redirect" not in self._page and self._namespace() == 0

    def _namespace(self) -> int:
        """The namespace of the current page; in dumps before 2012 only the title has it."""
        if "ns" in self._page:
            return self._number(self._page["ns"])
        prefix, colon, _ = self._page.get("title", "").partition(":")
        return self._namespaces.get(normal_name(prefix), 0) if colon else 0

    def _number(self, text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,9}", text):
            raise ValueError(f"{self._location()}: a namespace has the number {text[:40]!r}; {_IS_IT}")
        return int(text)

    def _refuse_line(self, number: int) -> None:
        raise ValueError(f"{self._location()}, line {number}: a line of more than {RECORD_CAP >> 20} MiB; {_IS_IT}")


KIND = SourceKind(
    "wikipedia",
    read,
    example="enwiki-latest-pages-articles-multistream.xml.bz2",
    where_from=f"download a dump from {DUMPS} (dewiki for German, and so on), and do not unpack it",
    split=split,
    folder_names=("*.xml",),
)
