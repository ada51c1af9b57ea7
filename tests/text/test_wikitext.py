"""Converting wikitext to prose: cases by kind of markup, and linear time on hostile text."""

import re
import time
from collections.abc import Callable
from math import isqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.text.sources.wikipedia.links import HIDDEN_NAMES
from bertjax.text.sources.wikipedia.wikitext import paragraphs

GERMAN = HIDDEN_NAMES | {"medium", "datei", "kategorie"}
CONTROL = re.compile("[\x00-\x08\x0e-\x1f]")


def text(wikitext, names=GERMAN):
    return "\n".join(paragraphs(wikitext, names))


CASES = {
    "paragraphs": [
        ("One\nline.\n\nTwo.\n\n\n", "One line.\nTwo."),
        ("Before.\n== Heading ==\nAfter.\n=== A === <!-- c -->\n", "Before.\nAfter."),
        ("Text.\n* item\n# item\n; term : meaning\n:: indented\nMore.", "Text.\nMore."),
        ("{{Box}}* item\n[[File:a.png]]\n<!-- c -->== A ==", ""),
        ("One\n----\nTwo", "One\nTwo"),
        ("Text.\n code = 1\n\n<!-- c -->Prose.", "Text.\nProse."),
        ("a<br>b<br/><br />c<p>d</p>e<div style='x'>f</div>", "a b\nc\nd\ne\nf"),
        ("1 = 2 and 2 == 2", "1 = 2 and 2 == 2"),
        ("—\n\n(…)\n\n7", "7"),
    ],
    "tables": [
        ("A.\n{| class=x\n|-\n! H\n| c || d\n* e\n\nf\n|}\nB.", "A.\nB."),
        ("A.\n:{|\n|\n{|\n| in\n|}\n| out\n|}\nB.", "A.\nB."),
        ("A.\n{|\n| never closed\n\nText of it.\n==H==\nB.", "A.\nB."),
        ("A.\n|-\n| left || over\nB.", "A.\nB."),
        ("A.\n<table><tr><td>x<table></table></td></tr></table>B.<ul><li>y</ul>C.", "A.\nB.\nC."),
        ("{{Box|\n{|\n|a\n|}}}\nB.", "B."),
        ("{{{!}} class=x\n{{!}} a\n{{!}}}\nB.", "B."),
    ],
    "templates": [
        ("A{{Box|a={{b|c}}|d=[[e|f]]}} b.", "A b."),
        ("A{{cite|title=a } b}} b{{cite|title={a} [b}}.", "A b."),
        ("A {{#if:x|y}}b{{{p|q}}}.", "A bq."),
        ("A {{open.\n\nC {{d}} e.", "A open.\nC e."),
        ("{{Infobox\n| a = b\nText.", "Text."),
        ("{{convert|5|km|mi}}, {{cvt|5|to|10|ft}}, {{Convert|3|C|F}}", "5 km, 5 to 10 ft, 3 °C"),
        ("{{lang|fr|''le'' [[a|mot]]}}, {{lang-de|Wort}}, {{lang-la|1=Anno}}", "le mot, Wort, Anno"),
        ("{{transl|ar|ALA|Allāh}} {{nihongo|Sun|日|hi}} {{Nihongo|Moon|月}}", "Allāh Sun (日, hi) Moon (月)"),
        (
            "{{as of|2010}}. {{As of|2010|5|lc=y}}. {{As of|2010|05|03}}.",
            "As of 2010. as of May 2010. As of 3 May 2010.",
        ),
        ("{{formatnum:1234}} {{val|6.2|e=18|u=m}} {{frac|2|1|4}} {{sfrac|3}}", "1234 6.2×10^18 m 2 1/4 1/3"),
        (
            "{{USS|Hornet|CV-12|6}}, {{chem|H|2|O}}, {{circa|1900}}, ''X''{{'s}}",
            "USS Hornet (CV-12), H2O, c. 1900, X's",
        ),
        ("a{{snd}}b{{mdash}}c{{nbsp}}d{{=}}e", "a – b—c d=e"),
        (
            "{{unité|350|km|2}} au {{s|XIX}}, {{1er|prix}}, {{XXe siècle}}",
            "350 km2 au XIXe siècle, 1er prix, XXe siècle",
        ),
        ("{{date-|12|novembre|1918}}, {{Lien|langue=en|trad=A|fr=B}}", "12 novembre 1918, B"),
        ("{{仮リンク|市|en|City}}の{{ill|City|de|lt=town}}", "市のtown"),
        ("Er sagte:\n{{Zitat|Es ist\n[[so]].}}\nUnd ging.", "Er sagte:\nEs ist so.\nUnd ging."),
        ("{{as of|2010|" + "1" * 9000 + "}}", "As of " + "1" * 9000 + " 2010"),
    ],
    "links": [
        ("[[Bus]]es, [[a|b]], [[a#b|c]], [[:Category:A]], [[w:a|]]", "Buses, b, c, Category:A, a"),
        ("[[Berlin (Town)|]] [[Rome, Italy|]]", "Berlin Rome"),
        ("A [[File:a.jpg|thumb|200px|A [[b|c]] [http://x y] {{d|e}} [f]]] b.", "A b."),
        ("A [[ datei :a|b]][[Bild:a.SVG|b]][[Medium:c]] b.", "A b."),
        ("A b.\n[[Kategorie:X|Y]]\n[[category:z]] [[Unbekannt:z]]\n[[de:A]]\n[[zh-min-nan:A]]", "A b."),
        ("[[de:A]]A[[simple:B|c]] [[s:Text|quelle]] [[mw:Help|hilfe]]", "A quelle hilfe"),
        ("[[a|{{lang|fr|b}}]] [[{{PAGENAME}} (x)|b]] [[a|b|c]]", "b b c"),
        ("[http://x y z] a [https://x] b [//x c] http://x.org/a(b)?c=d. [mailto:a@b D]", "y z a b c. D"),
        ("[[a|b [c] d]], [sic], [[[e]]], [[never closed\n\nB ]] c", "b [c] d, [sic], [e], never closed\nB c"),
    ],
    "tags": [
        ("A<ref>b [[c]] {{d}}</ref>, b<ref name=x/>.<REF name='y'>\n* e</ref> C.", "A, b. C."),
        ("A <!-- b <ref> --> c.<!-- never closed", "A c."),
        ("One\n<!-- alone -->\nparagraph.", "One paragraph."),
        (
            "E = mc<sup>2</sup>, H<sub>2</sub>O, <small>a</small> <span lang=x>b</span> <code>c</code>",
            "E = mc2, H2O, a b c",
        ),
        ("A <math>x<y</math> b, <chem>H2O</chem>.<gallery>\nA.jpg|c\n</gallery>", "A b."),
        ("A <nowiki>[[b]] {{c}} ''d'' &amp; <i></nowiki> e", "A [[b]] {{c}} ''d'' & <i> e"),
        ("<nowiki>#1</nowiki> a\n\n<nowiki>* b &#91;</nowiki>", "#1 a\n* b ["),
        ("''A''<nowiki/>'s b<syntaxhighlight lang=c inline>x[0]</syntaxhighlight> <source>y</source>", "A's bx[0]"),
        ("A <s>old</s> <del>b</del> <ruby>漢<rp>(</rp><rt>かん</rt><rp>)</rp></ruby>", "A 漢"),
        ("<blockquote>A\nb.</blockquote>\nC <foo> 1 < 2 > 1", "A b.\nC <foo> 1 < 2 > 1"),
        ('A<span style="display: none">key</span> b<section begin=x />c', "A bc"),
        ("A <ref>b </b> c", "A b c"),
    ],
    "entities": [
        ("a&nbsp;b &amp; &lt;c&gt; &#8211; &#x2014;&thinsp;d", "a b & <c> – — d"),
        ("&amp;lt; &amp;nbsp; &amp;amp;", "&lt; &nbsp; &amp;"),
        ("AT&T &notanentity; &copy 2000 &#1114112;", "AT&T &notanentity; &copy 2000 \ufffd"),
        ("&#42; no list &#91;&#91;no link&#93;&#93; &#2;", "* no list [[no link]]"),
    ],
    "apostrophes": [
        ("''a'' '''b''' '''''c''''' ''''d'''' ''''''e''''''", "a b c 'd' 'e'"),
        ("L'''Arc'' et l''''Autriche'''", "L'Arc et l'Autriche"),
        ("de l'''Humanité'' à", "de l'Humanité à"),
        ("rock 'n' roll's", "rock 'n' roll's"),
        ("'''open\nclosed''' again", "open closed again"),
    ],
    "gaps": [
        ("A ({{IPA|x}}; born 1900) b.", "A (born 1900) b."),
        ("A ({{IPA|x}}, {{IPA|y}}) b ({{a}}).", "A b."),
        ("柏林（{{IPA|x}}，{{b}}）是", "柏林是"),
        ("柏林（{{IPA|x}}，Berlin）是", "柏林（Berlin）是"),
        ("A (German: {{IPA|x}}; 1900 {{b}}–2000)", "A (1900 –2000)"),
        ("a, {{b}}, c {{d}} e {{f}}. g {{h}} , i", "a, c e. g, i"),
        ("A b ; c : d ! ( e )", "A b ; c : d ! ( e )"),
        ("__NOTOC__A __KEIN_INHALT__ b __init__ c__目次非表示__", "A b __init__ c"),
    ],
    "variants": [
        ("-{zh-hans:计算机;zh-hant:電腦}-和-{text}-、-{}-", "计算机和text、"),
        ("-{A|zh-cn:甲; zh-tw:乙;}--{H|zh-cn:丙;zh-tw:丁}--{T|戊}--{zh-hans;zh-hant|己}-", "甲己"),
        ("[[a|-{A|zh-cn:甲;zh-tw:乙}-]] -{zh:a&nbsp;b;zh-hk:c}-", "甲 a b"),
        ("a -{zh-hans:A-{zh-cn:B;zh-tw:C}-;zh-hant:D}- b", "a AB b"),
        ("a -{zh-hans:A-{zh-cn:B-{zh-sg:E}-;zh-tw:C}-;zh-hant:D-{F}-}- b-{R|c-{zh:d}-}-", "a ABE bcd"),
        ("-{A-{H|zh-cn:丙;zh-tw:丁}-b}- -{zh-hans:{x};zh-hant:y}-, a-{b", "Ab {x}, a-{b"),
    ],
    "lines that begin with a space": [
        ("<blockquote>\n Said\n so.\n\n Twice.\n</blockquote>\n code\n\nEnd.", "Said so.\nTwice.\nEnd."),
        ("<blockquote>\n<div>\n Said.\n</div>\n</blockquote>\n code", "Said."),
        ("<p>\n One\n two.\n</p>\n code\n\nEnd.", "One two.\nEnd."),
        ("<p class=x>One\n two.\n\n Three.</p>\n code", "One two.\nThree."),
        ("<p>Open.\n One.\n== H ==\n code\n\nEnd.", "Open. One.\nEnd."),
        ("<div>\n code\n</div>\n <p>Prose.</p>\n code\n<center> x</center>\n code", "Prose.\nx"),
        ("<poem>\nOne,\n  two.\n</poem>\n code", "One, two."),
        ("A <p-x>\n code\n <span>code</span>\nEnd.", "A\nEnd."),
    ],
}


@pytest.mark.parametrize(("wikitext", "expected"), [case for group in CASES.values() for case in group])
def test_wikitext_becomes_prose(wikitext, expected):
    assert text(wikitext) == expected


def test_files_are_recognised_by_suffix():
    assert text("A [[Fichier:a.ogg|b]] c [[Fichier:d|e]].", HIDDEN_NAMES) == "A c e."
    assert text("A [[Fichier:a.ogg|b]] c [[Fichier:d|e]].", HIDDEN_NAMES | {"fichier"}) == "A c."


def test_plain_text_is_unchanged():
    prose = "He said: “No!” (really) – 5 % of $3.50 [sic], a/b; it's #1 * 2 = 2 & x|y {z}."
    assert paragraphs(f"{prose}\n\n\t{prose}  \n", HIDDEN_NAMES) == [prose, prose]


# Texts that make careless expressions take quadratic time or worse, each repeated many times.
PIECES = [
    *(
        "{{",
        "}}",
        "[[",
        "]]",
        "{",
        "[",
        "(",
        "（",
        "{|\n",
        "|}\n",
        "-{",
        "}-",
        "-{}",
        "<p>\n a\n",
        "<blockquote>\n a\n</blockquote>\n b\n",
        "{{a {",
        "{{a}",
        "{{{",
        "{{{a|",
        "[[a|",
        "[[a]",
    ),
    *("<ref>", "<ref", "</ref>", "<!--", "<", "<br>", "<br ", "<div>", "<table>", "<ul></ul>", "<nowiki>", "<s><s>"),
    *("<span display:none", "<math>{{", "'", "''", "'''b''c ", "&", "&amp;", "__", "__a", "_a", "==a==\n", "=\n"),
    *("----\n", " ", "\n", "*a\n", "[http://a ", "http://", "http://a.", "[[File:", "[[a:b]] ", "[[a:b]]\n", "{{lang|"),
    *("{{convert|1", ";zh:", "-{zh:", "(<ref/>", "(<ref/>,", "<ref/> ,", "1", "字", "\x02"),
]
# Each function makes a text of about n characters.
HOSTILE: dict[str, Callable[[int], str]] = {
    piece: lambda n, piece=piece: piece * (n // len(piece)) for piece in PIECES
} | {
    "deep templates": lambda n: "{{a|" * (n // 6) + "}}" * (n // 6),
    "deep kept templates": lambda n: "{{lang|fr|" * (n // 12) + "}}" * (n // 12),
    "deep stray braces": lambda n: "{{a{b" * (n // 7) + "}}" * (n // 7),
    "deep variants": lambda n: "-{zh:a" * (n // 7) + "}-" * (n // 7),
    "deep links": lambda n: "[[a|" * (n // 6) + "]]" * (n // 6),
    "deep files": lambda n: "[[File:a|" * (n // 12) + "]]" * (n // 12),
    "deep tables": lambda n: "{|\n" * (n // 6) + "|}\n" * (n // 6),
    "deep HTML tables": lambda n: "<table>" * (n // 14) + "</table>" * (n // 16),
    "many arguments": lambda n: "{{lang|" + "a=|" * (n // 3) + "}}",
    "a long number": lambda n: "{{convert|" + "1" * n + "x|km}}",
    "spaces in a template": lambda n: "{{lang|" + " " * n + "x=}}",
    "spaces in a link": lambda n: "[[" + " " * n + "|]]",
    "parentheses in a link": lambda n: "[[a" + "(" * n + "|]]",
    "a long switch": lambda n: "__" + "a_" * (n // 2) + "__",
    "a long address": lambda n: "http://a" + "." * n,
    "spaces after <br>": lambda n: ("<br>" + " " * isqrt(n)) * isqrt(n),
    "spaces around gaps": lambda n: ("a<ref/>" + " " * isqrt(n)) * isqrt(n),
    "comments": lambda n: "a<!---->\n" * (n // 9),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_work_is_linear_in_the_text(name):
    """16 times the text takes less than 64 times the time; quadratic time would be 256 times, on every machine.

    Repeats both measurements, in case something else has slowed one of them.
    """

    def seconds(size):
        wikitext = HOSTILE[name](size)
        begin = time.thread_time()
        paragraphs(wikitext, GERMAN)
        return time.thread_time() - begin

    seconds(1000)
    assert any(seconds(160_000) < 64 * seconds(10_000) for _ in range(20))


MARKUP = """
    {{ }} [[ ]] {| |} | ' '' ''' <ref> </ref> <ref/> <!-- --> <nowiki> </nowiki> <br> <div> </div> <table> </table> & ;
    &amp; &lt; -{ }- : * # = == File: Category: de: http://a [ ] ( ) , . a b 字 lang convert __TOC__
"""
TOKENS = [*MARKUP.split(), " ", "\n", "\n\n", "\x02", "\x03", "\x04"]


@settings(max_examples=300)
@given(st.lists(st.sampled_from(TOKENS), max_size=60))
def test_any_markup_gives_clean_paragraphs(pieces):
    for paragraph in paragraphs("".join(pieces), GERMAN):
        assert not CONTROL.search(paragraph)
        assert paragraph == " ".join(paragraph.split()) and any(map(str.isalnum, paragraph))


@given(st.lists(st.text(st.characters(categories=("L", "N")), min_size=1), min_size=1))
def test_words_come_out_as_they_went_in(words):
    assert paragraphs(" ".join(words), GERMAN) == [" ".join(words)]
