"""Sentence splitting: hard cases, many scripts, linear time, and agreement with other splitters."""

import lzma
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertjax.text import sentences
from bertjax.text.sentences import (
    SENTENCE_CAP,
    SENTENCE_TERMINAL,
    SPACED,
    UNMARKED_CAP,
    UNSPACED,
    cut_at_spaces,
    split_sentences,
)
from bertjax.text.sources.registry import read_documents
from bertjax.text.sources.source import SourceFile

# `|` marks the end of a sentence
HARD = """
J. R. R. Tolkien wrote it.| C. S. Lewis read it.| Both liked E. R. Eddison.
See vol. 3, no. 4, pp. 12-15.| It says no. |Then it stops.
He was in D.C. on Jan. 5, 1990.| It rained.
He lived in the U.S. and the U.K. for years.| He left the U.S. |In 1990 he went back to the U.S. Army.
"Is it true?" she asked.| "Yes!" he cried. |"Run!"| They ran.
Oh dear! oh dear! |I shall be late.| What? |Who is there? |Nobody.
Mr. Smith, Mrs. Jones, Dr. No and Lt. Col. Brown met Prof. Plum on St. John St. |The end.
The value is 3.14 and not 2.71.| Version 2.0.1 is out.| It costs $5.50. |Fine.
It weighs approx. 5 kg, i.e. more than that, e.g. a lot, cf. Fig. 3 and eq. 4. |That is all.
Smith et al. |However, Jones et al. Brown agree.
He arrived at 5 p.m. |They left at 6 a.m. Monday.
Wait... what?| And then... |Nothing.| Hmm… |No.
And so on . . . and on . . . |Then it ended.
He said (it was late.) |Then he left.| (He came back.)| So it goes.
World War I. |British ships sailed.| Charles I. reigned.
1. Open the door. |2. Close it.| IV. The last part.
It works.[1] |It fails.[23][4] |It is [5] unknown.
Apple Inc. bought it.| It belongs to Apple Inc. |The price was 5 ft. |That is cheap.
She has a Ph.D. |Her Ph.D. Thesis is long.
¿Qué pasa?| ¡Nada! |¿Seguro?
“Is it true?” she asked. |‘No.’ |“Why?”| – Because.
visit example.com.| It is at www.example.com/a.b?c=d now.
No sentence ends here
Yes.
他走了。|她说：“是的。”|然后他也走了！|真的吗？|是的。
「そうですか？」と彼は言った。|「はい。」、そうです。|終わり。|
これはペンです。|Pythonは言語です。|iPhoneも。
नमस्ते।| यह एक वाक्य है। |दूसरा।
هل هذا صحيح؟| نعم. |انتهى۔
Это правда?| Да. |А. С. Пушкин родился в Москве.
이것은 책이다. |저것은 펜이다.
ይህ ዓረፍተ ነገር ነው። |ሌላ ነው። |ሦስተኛው፧| አዎ።
នេះជាប្រយោគ។|នេះទៀត។ |ចប់
ဤသည်မှာ ဝါကျဖြစ်သည်။|နောက်တစ်ခု။
བོད་ཡིག་ཡིན། |གཉིས་པ།
Սա նախադասություն է։ |Սա ևս։
"""


@pytest.mark.parametrize("line", HARD.strip().split("\n"))
def test_hard_strings_are_split_correctly(line):
    expected = [part.strip() for part in line.split("|") if part.strip()]
    assert split_sentences(line.replace("|", "")) == expected


def test_terminators_are_those_of_unicode():
    regex = pytest.importorskip("regex")
    everything = "".join(chr(point) for point in range(0x110000) if not 0xD800 <= point < 0xE000)
    assert "".join(regex.findall(r"\p{Sentence_Terminal}", everything)) == SENTENCE_TERMINAL


@pytest.mark.parametrize("sign", [*SPACED, *UNSPACED])
def test_every_terminator_ends_a_sentence(sign):
    assert split_sentences(f"कख गघ{sign} चछ जझ") == [f"कख गघ{sign}", "चछ जझ"]


def test_scripts_without_terminators_are_cut_at_phrases():
    phrase = "เบอร์ลินเป็นเมืองหลวงของประเทศเยอรมนี"
    pieces = split_sentences(" ".join([phrase] * 40))
    assert len(pieces) > 5 and max(map(len, pieces)) <= UNMARKED_CAP
    assert " ".join(pieces) == " ".join([phrase] * 40), "cut at spaces alone"
    english = f"{phrase} " + "is a long sentence in English " * 20
    assert split_sentences(english) == [english.strip()]


@pytest.mark.parametrize(
    ("language", "least", "longest"),
    [
        ("hi", 60, 250), ("th", 100, 250), ("ar", 250, 500), ("he", 190, 500),
        ("ru", 230, 800), ("zh", 120, 250), ("ja", 350, 250), ("ko", 55, 250),
    ],
)  # fmt: skip
def test_wikipedia_in_other_scripts(real_data, language, least, longest):
    """Paragraphs are split, not into tiny pieces, and few sentences contain the end of another."""
    (path,) = (real_data / "wikipedia_dumps").glob(f"{language}wiki_minidump.xml.bz2")
    sentences_found = [s for d in read_documents(SourceFile("wikipedia", str(path))) for s in d.sentences()]
    assert len(sentences_found) >= least and max(map(len, sentences_found)) <= longest
    assert sum(len(sentence) < 7 for sentence in sentences_found) < 0.03 * len(sentences_found)
    inside = re.compile(rf"[{re.escape(UNSPACED)}](?=\w)|[।॥۔؟?!](?=\s+\w)")
    assert sum(inside.search(sentence) is not None for sentence in sentences_found) < 0.03 * len(sentences_found)


def test_newlines_end_sentences():
    assert split_sentences("One two\nthree Mr.\r\nSmith\n\n \n.\u2028Five") == [
        "One two",
        "three Mr.",
        "Smith",
        ".",
        "Five",
    ]
    assert split_sentences("") == split_sentences(" \n\t\n") == []


def test_sentence_without_end_is_cut_at_spaces():
    pieces = split_sentences("Short one. " + "Word " * 5_000 + "x" * 25_000)
    assert pieces[0] == "Short one." and max(map(len, pieces)) <= SENTENCE_CAP
    assert len(pieces) == 1 + 3 + 3 and all(set(piece.split()) == {"Word"} for piece in pieces[1:3])
    assert cut_at_spaces("aa bb  cc dddd", 5) == ["aa", "bb", "cc", "dddd"]
    assert cut_at_spaces("", 5) == cut_at_spaces("   ", 2) == []


TEXT = st.text(st.sampled_from("abAB1.!?…。？」「と\"'”()[] \n\u3000\u2028-é話IX")) | st.text()


@given(TEXT)
def test_joined_sentences_are_the_text(text):
    pieces = split_sentences(text)
    assert "".join("".join(pieces).split()) == "".join(text.split())
    assert all(sentence and sentence == sentence.strip() for sentence in pieces)


@given(st.text(st.sampled_from("ab é"), max_size=200), st.integers(1, 30))
def test_cut_pieces_are_the_text(text, cap):
    pieces = cut_at_spaces(text, cap)
    assert "".join("".join(pieces).split()) == "".join(text.split())
    assert all(0 < len(piece) <= cap for piece in pieces)


UNKIND = [
    ".",
    ". ",
    '."',
    ".)",
    "!?",
    "[1]",
    ".[1]",
    "。",
    "。」",
    "。」と",
    "A. ",
    "...a",
    "( ",
    '" ',
    "-",
    ".\n",
    "a.b-",
    "'x",
    " ",
]


@pytest.mark.parametrize("unit", UNKIND)
def test_work_is_linear_in_the_text(unit):
    """16 times the text takes less than 50 times the time; quadratic time would be 256 times, on every machine.

    Repeats both measurements, in case something else has slowed one of them.
    """

    def seconds(size):
        text = "。" * ("。" in unit) + unit * (size // len(unit))
        begin = time.process_time()
        split_sentences(text)
        return time.process_time() - begin

    seconds(1000)
    assert any(seconds(128_000) < 50 * seconds(8_000) for _ in range(20))


@pytest.mark.long  # the suite compares with sentences that linguists marked
def test_agrees_with_punkt(real_data):
    """Compares boundaries in paragraphs with Punkt's, with the same lists. Where they differ, ours are mostly right."""
    punkt = pytest.importorskip("nltk.tokenize.punkt")
    parameters = punkt.PunktParameters()
    parameters.abbrev_types = set(sentences._NEVER_LAST | sentences._SOMETIMES_LAST | sentences._BEFORE_NUMBERS)
    parameters.abbrev_types |= {"u.s", "u.k", "d.c", "p.m", "a.m", "ph.d"}
    parameters.sent_starters = set(map(str.lower, sentences._STARTERS))
    tokenizer = punkt.PunktSentenceTokenizer(parameters)

    def ends(split, line):
        lengths = [len("".join(sentence.split())) for sentence in split(line)]
        return {sum(lengths[: n + 1]) for n in range(len(lengths) - 1)}

    ours = theirs = both = 0
    file = SourceFile("wikiextractor", str(real_data / "wikipedia_en" / "AB_02.txt.xz"))
    for _, document in zip(range(600), read_documents(file), strict=False):
        for line in document.text.split("\n"):
            mine, other = ends(split_sentences, line), ends(tokenizer.tokenize, line)
            ours, theirs, both = ours + len(mine), theirs + len(other), both + len(mine & other)
    assert ours > 2000 and both / ours > 0.98 and both / theirs > 0.96


@pytest.mark.parametrize(
    ("name", "gap", "precision", "recall"),
    [
        ("en_pud-ud-test", " ", 0.995, 0.995),
        ("ru_pud-ud-test", " ", 0.99, 0.995),
        ("hi_pud-ud-test", " ", 0.99, 0.99),
        ("ar_pud-ud-test", " ", 0.99, 0.995),
        ("ko_pud-ud-test", " ", 0.995, 0.995),
        ("zh_pud-ud-test", "", 0.99, 0.99),
        ("ja_gsd-ud-dev", "", 0.995, 0.96),
    ],
)
def test_finds_the_sentences_that_linguists_marked(real_data, name, gap, precision, recall):
    with lzma.open(real_data / "pos" / f"{name}.conllu.xz", "rt", encoding="utf-8") as stream:
        marked = [line.removeprefix("# text = ").strip() for line in stream if line.startswith("# text = ")]

    def ends(parts):
        total, places = 0, set()
        for part in parts:
            total += len("".join(part.split()))
            places.add(total)
        return places

    ours, theirs = ends(split_sentences(gap.join(marked))), ends(marked)
    assert len(ours & theirs) / len(ours) > precision and len(ours & theirs) / len(theirs) > recall
