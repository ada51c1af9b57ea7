"""Check the `wikipedia` source on real dumps: speed, agreement with mwparserfromhell, and leftover markup.

    python tests/text/check_wikipedia.py dumps/*.xml.bz2 [--differences 20]

For each dump it prints
- its pages, the redirects among them, and its articles (pages in namespace 0 that are not redirects);
- MB of XML (decompressed) read per second of processor time, decompression and cleaning together, best of three;
- precision and recall of our words, and of pairs of successive words, against mwparserfromhell's parse of the same
  pages. They are counted as multisets page by page and summed: precision is the share of our words that its parse also
  has, recall the share of its words that we have. A word is a run of letters and digits; in Chinese, Japanese, Korean
  and Thai each character is one. Both sides leave out every template, because mwparserfromhell does (the words from our
  table of templates are counted separately, as `templ.`). mwparserfromhell's tree is rendered as by its strip_code,
  without the parts that we drop on purpose: headings, lists, tables, files, categories, links to other languages,
  addresses without a label, lines that begin with a space, and the contents of the tags in `DROPPED_TAGS`;
- the pages in which more than `APART` of the words differ: their markup is broken, and one side loses a part of it;
- traces of markup (`LEFTOVERS`) per million words of our text. `--differences` shows some of both.

Exits with 1 if a share of a dump is below `LEAST`, or its traces are above `MOST_LEFTOVERS`.

mwparserfromhell (pip install mwparserfromhell) is an independent parser, which shares no code with ours.
"""

from __future__ import annotations

import argparse
import bz2
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from bertjax.text.sources.wikipedia import templates as wikitemplates
from bertjax.text.sources.wikipedia.dump import Dump, Page
from bertjax.text.sources.wikipedia.wikitext import paragraphs

DROPPED_TAGS = """
    ref references math chem ce gallery timeline score imagemap hiero graph mapframe maplink inputbox categorytree
    templatestyles templatedata pre source syntaxhighlight s del strike table ul ol dl rt rp
"""
# Names of the namespaces for files and categories in the languages of our dumps.
HIDDEN_NAMES = """
    file image media category datei bild kategorie fichier catégorie файл изображение категория картинка
    ファイル 画像 カテゴリ 文件 圖像 图像 分类 分類 파일 그림 분류 ملف صورة تصنيف קובץ תמונה קטגוריה चित्र श्रेणी
    ไฟล์ ภาพ หมวดหมู่
"""
LEFTOVERS = re.compile(
    r"\{\{|\}\}|\[\[|\]\]|\{\||\|\}|\|\||&(?:[a-z]+|#\d+);|''|==+|__[A-Z]{3}|\b(?:style|align|class|colspan)=|\|\w"
    r"|\b\d+px\b|</?(?:ref|br|small|div|span|nowiki|su[bp]|math|i|b|p)\b|https?:|-\{|\}-|[(（][,;，；、 ]|\(\)|（）",
    re.I,
)
WORD = re.compile(r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W_]+")
APART = 0.05
LEAST = 0.985  # the lowest share in our dumps is 0.9871
MOST_LEFTOVERS = 25.0  # per million words; the highest figure in our dumps is 19.3
LIST_MARK, DROPPED_MARK = "\ue000\ue001"
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[a-z-]+)?|simple")


def reference(wikitext: str) -> str:
    """Render a page with mwparserfromhell, without the parts that we drop on purpose."""
    import mwparserfromhell

    lines = _render(mwparserfromhell.parse(wikitext)).split("\n")
    prose_lines = [line for line in lines if line.lstrip(f" {DROPPED_MARK}")[:1] != LIST_MARK]
    return "\n".join(line for line in prose_lines if not line.startswith(" ")).replace(DROPPED_MARK, "")


def _render(code: Any) -> str:
    from mwparserfromhell import nodes

    parts = []
    for node in code.nodes:
        if isinstance(node, nodes.Text):
            parts.append(str(node))
        elif isinstance(node, nodes.HTMLEntity):
            parts.append(node.normalize())
        elif isinstance(node, nodes.Wikilink):
            parts.append(_render_link(node))
        elif isinstance(node, nodes.ExternalLink):
            parts.append(_render(node.title) if node.brackets and node.title else DROPPED_MARK)
        elif isinstance(node, nodes.Tag):
            parts.append(_render_tag(node))
        elif isinstance(node, nodes.Heading):
            parts.append("\n")
        elif not isinstance(node, nodes.Comment):
            parts.append(DROPPED_MARK)
    return "".join(parts)


def _render_link(node: Any) -> str:
    target = str(node.title)
    prefix = target.partition(":")[0].strip()
    if ":" in target and (prefix.lower() in HIDDEN_NAMES.split() or _LANGUAGE.fullmatch(prefix)):
        return DROPPED_MARK
    return _render(node.title if node.text is None else node.text)


def _render_tag(node: Any) -> str:
    name = str(node.tag).strip().lower()
    if node.wiki_markup in ("*", "#", ":", ";"):
        return LIST_MARK
    if name in DROPPED_TAGS.split() or not node.contents:
        return f"{DROPPED_MARK} " if name == "br" else DROPPED_MARK
    return DROPPED_MARK + _render(node.contents)


def words(text: str) -> list[str]:
    """Split a text into words."""
    return WORD.findall(text.lower())


@dataclass
class Report:
    """The figures of one dump."""

    pages: int = 0
    redirects: int = 0
    articles: int = 0
    megabytes: float = 0.0
    seconds: float = 0.0
    words: int = 0  # in our text, with words from templates
    from_templates: int = 0  # words from templates
    agreement: Counter[str] = field(default_factory=Counter)
    leftovers: list[str] = field(default_factory=list)
    apart: list[tuple[int, int, str]] = field(default_factory=list)  # words only in ours, only in theirs, title

    def share(self, measure: str, side: str) -> float:
        """Precision (`side` is ours) or recall (theirs) for a measure, `words` or `pairs`."""
        return self.agreement[f"{measure} both"] / max(self.agreement[f"{measure} {side}"], 1)


def check(path: str, repeats: int = 3) -> Report:
    """Read a dump and compare it with mwparserfromhell's parse."""
    report = Report()
    with bz2.open(path) if path.endswith(".bz2") else open(path, "rb") as stream:
        report.megabytes = len(stream.read()) / 1e6
    report.seconds = min(_seconds(path) for _ in range(repeats))
    dump = Dump(path)
    for page in dump.pages():
        report.pages += 1
        report.redirects += page.redirect
        if page.namespace == 0 and not page.redirect:
            report.articles += 1
            _compare(page, dump, report)
    return report


def _seconds(path: str) -> float:
    begin = time.process_time()
    dump = Dump(path)
    for page in dump.pages():
        paragraphs(page.text, dump.hidden_names)
    return time.process_time() - begin


def _compare(page: Page, dump: Dump, report: Report) -> None:
    text = "\n".join(paragraphs(page.text, dump.hidden_names))
    report.leftovers += [text[max(m.start() - 30, 0) : m.end() + 30] for m in LEFTOVERS.finditer(text)]
    with no_templates():
        ours = words("\n".join(paragraphs(page.text, dump.hidden_names)))
    theirs = words(reference(page.text))
    report.words += len(words(text))
    report.from_templates += len(words(text)) - len(ours)
    for measure, mine, other in (("words", ours, theirs), ("pairs", _pairs(ours), _pairs(theirs))):
        mine, other = Counter(mine), Counter(other)
        report.agreement[f"{measure} ours"] += mine.total()
        report.agreement[f"{measure} theirs"] += other.total()
        report.agreement[f"{measure} both"] += (mine & other).total()
    here, there = (Counter(ours) - Counter(theirs)).total(), (Counter(theirs) - Counter(ours)).total()
    if here + there > APART * len(ours):
        report.apart.append((here, there, page.title))


def _pairs(tokens: list[str]) -> list[tuple[str, str]]:
    return list(pairwise(tokens))


@contextmanager
def no_templates() -> Iterator[None]:
    """Drop every template inside the context."""
    original, wikitemplates.template_words = wikitemplates.template_words, lambda call: wikitemplates.GAP
    try:
        yield
    finally:
        wikitemplates.template_words = original


@contextmanager
def as_utf8(path: str) -> Iterator[str]:
    """The path of a dump, or of a UTF-8 copy if it is in UTF-16, which Wikimedia's own dumps never are."""
    with bz2.open(path) if path.endswith(".bz2") else open(path, "rb") as stream:
        data = stream.read() if stream.peek(2)[:2] == b"\xff\xfe" else b""
    if not data:
        yield path
        return
    with tempfile.NamedTemporaryFile(suffix=".xml.bz2") as copy:
        copy.write(bz2.compress(data.decode("utf-16").encode()))
        copy.flush()
        yield copy.name


def main() -> int:
    """Print a line for every dump. Returns 1 if one exceeds the limits, else 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dumps", nargs="+")
    parser.add_argument("--differences", type=int, default=0, help="number of differing pages and leftovers to show")
    arguments = parser.parse_args()
    print(
        f"{'dump':30} pages redir. artic.   MB/s   words templ. "
        "word prec.     recall pair prec.     recall apart  left/M"
    )
    worse = []
    for path in arguments.dumps:
        with as_utf8(path) as readable:
            report = check(readable)
        agreement = [report.share(measure, side) for measure in ("words", "pairs") for side in ("ours", "theirs")]
        leftovers = 1e6 * len(report.leftovers) / max(report.words, 1)
        if min(agreement) < LEAST or leftovers > MOST_LEFTOVERS:
            worse.append(path)
        shares = [f"{share:10.2%}" for share in agreement]
        print(
            f"{Path(path).name[:30]:30} {report.pages:5} {report.redirects:6} {report.articles:6} "
            f"{report.megabytes / report.seconds:6.1f} {report.words:7} {report.from_templates:6} {' '.join(shares)} "
            f"{len(report.apart):5} {leftovers:7.1f}"
        )
        if arguments.differences:
            for here, there, title in sorted(report.apart, reverse=True)[: arguments.differences]:
                print(f"  {title}: {here} words only in ours, {there} only in theirs")
            print(*(f"  left over: {leftover!r}" for leftover in report.leftovers[: arguments.differences]), sep="\n")
    print(f"beyond the limits: {', '.join(worse) or 'none'}")
    return int(bool(worse))


if __name__ == "__main__":
    sys.exit(main())
