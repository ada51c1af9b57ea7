"""WordPiece gives the ids of `tokenizers` for any text; bad vocabularies are refused."""

import functools
import itertools
import lzma
import re
import sys
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import long_unless
from tokenizers import BertWordPieceTokenizer

from bertjax.tokenization import artefact, chunks
from bertjax.tokenization.loading import load_tokenizer
from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.wordpiece import SPECIAL_TOKENS, WordPiece

LETTERS = [chr(place) for place in range(ord("a"), ord("z") + 1)]
TOKENS = [
    *(
        "the",
        "[MASK]",
        "[SEP]",
        "##ing",
        "[CLS]",
        "play",
        "[UNK]",
        "[PAD]",
        ".",
        "[",
        "]",
        "mask",
        "zurich",
        "é",
        "##é",
    ),
    *("E", "##E", "中", "文", "か", "##か", "が", "न", "म", "##म", "“", "’", "-", "##\u0301"),
    *LETTERS,
    *(f"##{letter}" for letter in LETTERS),
]
SWITCHES = [(lowercase, strip) for lowercase in (True, False) for strip in (True, False)]


@functools.lru_cache(4)
def library_tokenizer(wordpiece):
    """The library's own BERT tokenizer with the same vocabulary and rules."""
    rules, vocab = wordpiece.rules, {token: number for number, token in enumerate(wordpiece.tokens)}
    library = BertWordPieceTokenizer(
        vocab=vocab,
        clean_text=True,
        handle_chinese_chars=True,
        strip_accents=rules.strip_accents,
        lowercase=rules.lowercase,
    )
    library._tokenizer.encode_special_tokens = True  # special tokens in text are plain text
    return library


@functools.cache
def small_wordpiece(lowercase, strip_accents):
    return WordPiece(TOKENS, TextRules(lowercase, strip_accents))


def assert_same_ids(wordpiece, sentences):
    expected = library_tokenizer(wordpiece).encode_batch(sentences, add_special_tokens=False)
    ids, lengths = wordpiece.encode(sentences)
    assert lengths.tolist() == [len(encoding.ids) for encoding in expected]
    assert ids.tolist() == [i for encoding in expected for i in encoding.ids]


def test_special_tokens_are_looked_up_by_name():
    wordpiece = WordPiece(TOKENS, TextRules(True, True))
    assert (wordpiece.pad_id, wordpiece.unk_id, wordpiece.cls_id, wordpiece.sep_id, wordpiece.mask_id) == (
        7,
        6,
        4,
        2,
        1,
    )
    assert wordpiece.vocab_size == len(TOKENS)
    assert [TOKENS[i] for i in np.flatnonzero(wordpiece.is_continuation)] == [t for t in TOKENS if t.startswith("##")]


def test_pieces_by_hand():
    wordpiece = WordPiece(TOKENS, TextRules(True, True))
    ids = wordpiece.encode_sentences(["The playing, Zürich.", "", "\u200b\x01", "é" * 201 + " 𐍈 the"])
    tokens = [[TOKENS[i] for i in sentence] for sentence in ids]
    assert tokens == [["the", "play", "##ing", "[UNK]", "zurich", "."], [], [], ["[UNK]", "[UNK]", "the"]]


def test_empty_input_gives_no_tokens():
    wordpiece = WordPiece(TOKENS, TextRules(True, True))
    ids, lengths = wordpiece.encode([])
    assert (len(ids), len(lengths), wordpiece.encode_sentences([])) == (0, 0, [])
    assert wordpiece.encode(["", ""])[1].tolist() == [0, 0]


def test_corpus_cannot_forge_special_tokens():
    wordpiece = WordPiece(TOKENS, TextRules(True, True))
    (ids,) = wordpiece.encode_sentences(["[MASK][SEP]the [mask]"])
    assert not set(ids.tolist()) & {wordpiece.pad_id, wordpiece.cls_id, wordpiece.sep_id, wordpiece.mask_id}
    assert wordpiece.decode(ids[:3]) == "[ mask ]"


def test_exported_tokenizer_handles_roles_and_pairs():
    wordpiece = WordPiece(TOKENS, TextRules(True, True))
    encoding = wordpiece.backend.encode("the [MASK]", "playing")
    assert encoding.tokens == ["[CLS]", "the", "[MASK]", "[SEP]", "play", "##ing", "[SEP]"]
    assert encoding.type_ids == [0, 0, 0, 0, 1, 1, 1]
    assert wordpiece.decode(encoding.ids) == "the playing"
    assert wordpiece.decode(encoding.ids, skip_special_tokens=False) == "[CLS] the [MASK] [SEP] playing [SEP]"


@pytest.mark.parametrize("switches", [(True, True), pytest.param((False, False), marks=pytest.mark.long)])
def test_every_character_of_unicode(switches):
    # Only the cut of text into chunks could differ, and it depends on single characters. Characters at which the
    # category changes would reveal a range with a wrong end.
    categories = [unicodedata.category(chr(place)) for place in range(sys.maxunicode + 1)]
    borders = {place + side for place, (a, b) in enumerate(itertools.pairwise(categories)) if a != b for side in (0, 1)}
    characters = [
        chr(p) for p, kind in enumerate(categories) if kind != "Cs" and (p < 0x800 or p % 61 == 0 or p in borders)
    ]
    sentences = [f"a{c}b {c}{c} \u0301{c}\u0323\u0301" for c in characters]
    assert_same_ids(WordPiece(TOKENS, TextRules(*switches)), sentences)


def test_single_character_chunks_are_tokens():
    cut = re.compile(f"[{artefact._ALONE}]")
    alone = [chr(place) for place in range(sys.maxunicode + 1) if cut.match(chr(place))]
    assert len(alone) > 80_000
    for character in alone:
        assert unicodedata.combining(character) == 0
        assert len(unicodedata.normalize("NFD", character)) == 1


pieces = st.one_of(
    st.sampled_from(["the", "playing", "Zürich", "[MASK]", "[UNK]", " ", "\0", "\n", "\x0b", "\x85", "\u2028", "中文"]),
    st.sampled_from("éがнй\u0301\u0345\u3099क़ﷺ≠=İıſẞ\u00ad\u200d️–“’.…#'\u00a0"),
    st.characters(exclude_categories=["Cs"]),
)


@settings(max_examples=150)
@given(st.lists(st.lists(pieces, max_size=12).map("".join), max_size=5), st.sampled_from(SWITCHES))
def test_any_text(sentences, switches):
    assert_same_ids(small_wordpiece(*switches), sentences)


CORPORA = [
    ("bert-base-uncased", True, True, "wikipedia_en/AA_00.txt.xz"),
    ("bert-base-cased", False, False, "wikipedia_en/AB_03.txt.xz"),
    ("bert-base-uncased", True, False, "books_en/Cbronte_Villette_1853.txt.xz"),
    ("bert-base-chinese", True, True, "wikipedia_zh/zh_00.txt.xz"),
    ("bert-base-multilingual-cased", False, False, "wikipedia_ko/ko_00.txt.xz"),
    ("bert-base-multilingual-cased", False, True, "wikipedia_zh/zh_00.txt.xz"),
]


@pytest.mark.parametrize(
    ("vocab", "lowercase", "strip_accents", "corpus"),
    long_unless(lambda vocab, lower, strip, corpus: (lower, strip) != (False, False), CORPORA),
)
def test_real_text(real_data, vocab, lowercase, strip_accents, corpus):
    with lzma.open(real_data / corpus, "rt", encoding="utf-8") as stream:
        lines = stream.read(100_000).split("\n")
    wordpiece = WordPiece.load(real_data / "vocab" / vocab / "vocab.txt", TextRules(lowercase, strip_accents))
    assert_same_ids(wordpiece, lines)


def test_full_cache_does_not_change_ids(monkeypatch):
    wordpiece = WordPiece(TOKENS, TextRules(True, True))
    text = ["the playing of zurich", "the mask", "a b c d e f g", "the playing"]
    expected = [wordpiece.encode([sentence])[0].tolist() for sentence in text]
    monkeypatch.setattr(chunks, "_CACHED_CHUNKS", 3)
    small = WordPiece(TOKENS, TextRules(True, True))
    assert [small.encode([sentence])[0].tolist() for sentence in text] == expected
    assert len(small._chunks._known) < 10


def test_lone_surrogate_is_refused():
    with pytest.raises(ValueError, match=r"lone surrogate, in 'th\\ud800e'.*correct the source"):
        WordPiece(TOKENS, TextRules(True, True)).encode(["the", "th\ud800e."])


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_loading_gives_the_same_tokenizer(tmp_path):
    wordpiece = WordPiece(TOKENS, TextRules(True, False))
    unix = WordPiece.load(write(tmp_path / "vocab.txt", wordpiece.files["vocab.txt"]), TextRules(True, False))
    dos = WordPiece.load(write(tmp_path / "dos.txt", "\r\n".join(TOKENS)), TextRules(True, False))
    assert unix.tokens == dos.tokens == TOKENS
    assert wordpiece.fingerprint == unix.fingerprint == dos.fingerprint
    rules = TextRules(True, True), TextRules(False, False)
    others = [*(WordPiece(TOKENS, rule) for rule in rules), WordPiece([*TOKENS, "more"], TextRules(True, False))]
    assert len({wordpiece.fingerprint, *(other.fingerprint for other in others)}) == 4


def test_line_separator_can_be_a_token(tmp_path):
    # The published Chinese vocabulary has U+2028.
    vocab = write(tmp_path / "vocab.txt", "".join(f"{token}\n" for token in ["\u2028", *TOKENS]))
    assert WordPiece.load(vocab, TextRules(True, True)).tokens[:2] == ["\u2028", "the"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("\n".join(t for t in TOKENS if t != "[MASK]"), r"vocabulary .*bad\.txt: \[MASK\] missing; BERT needs \[PAD\]"),
        ("the\nof\n", r"\[PAD\], \[UNK\], \[CLS\], \[SEP\], \[MASK\] missing"),
        ("\n".join([*TOKENS, "play"]), rf"token 'play' is on lines 6 and {len(TOKENS) + 1}; rename one of them"),
        ("\n".join([*SPECIAL_TOKENS, "", "the"]), r"line 6 is empty; write a token there"),
        (b"[PAD]\n\xff\xfe", r"vocabulary .*bad\.txt: not UTF-8 at byte 6"),
        ("", r"vocabulary .*bad\.txt: the file is empty"),
    ],
)
def test_bad_vocabularies_are_refused(tmp_path, content, message):
    with pytest.raises(ValueError, match=message):
        WordPiece.load(write(tmp_path / "bad.txt", content), TextRules(True, True))


def test_missing_vocabulary_is_reported(tmp_path):
    with pytest.raises(
        ValueError, match=r"vocabulary .*none\.txt: no such file; give .* vocab\.txt, .*or leave it empty to train one"
    ):
        load_tokenizer(tmp_path / "none.txt", TextRules(True, True))


WORDS, CHARACTERS = (WordPiece(TOKENS, TextRules(True, True, unknown)) for unknown in ("words", "characters"))
KNOWN = set("".join(token.removeprefix("##") for token in TOKENS if token not in SPECIAL_TOKENS))


@settings(max_examples=150)
@given(st.lists(st.text(st.one_of(st.sampled_from("the playing ☃я中é"), st.characters(exclude_categories=["Cs"])))))
def test_unknown_characters_can_be_unknown_alone(sentences):
    """Words of known characters do not change; others are split at their unknown characters."""
    for sentence, ids in zip(sentences, CHARACTERS.encode_sentences(sentences), strict=True):
        expected = []
        clean = WORDS.backend.normalizer.normalize_str(sentence)
        for word, _ in WORDS.backend.pre_tokenizer.pre_tokenize_str(clean):
            for part in re.findall(f"[{re.escape(''.join(sorted(KNOWN)))}]+|.", word, re.DOTALL):
                expected += WORDS.encode([part])[0].tolist() if part[0] in KNOWN else [WORDS.unk_id]
        assert ids.tolist() == expected


def test_words_lose_less_to_unknown_characters():
    words, characters = (WordPiece(TOKENS, TextRules(True, True, unknown)) for unknown in ("words", "characters"))
    text = ["play☃ing, яthe z"]
    tokens = [[wordpiece.tokens[n] for n in wordpiece.encode(text)[0]] for wordpiece in (words, characters)]
    assert tokens[0] == ["[UNK]", "[UNK]", "[UNK]", "z"]
    assert tokens[1] == ["play", "[UNK]", "i", "##n", "##g", "[UNK]", "[UNK]", "the", "z"]
    assert words.fingerprint != characters.fingerprint
    assert not characters.is_continuation[characters.unk_id]


def test_published_vocabularies_contain_characters(real_data):
    vocab = real_data / "vocab" / "bert-base-multilingual-cased" / "vocab.txt"
    words, characters = (WordPiece.load(vocab, TextRules(False, False, unknown)) for unknown in ("words", "characters"))
    text = ["The naïve 北京 is в Москве 😀and 😀.", "a\u0f40b"]
    ids = [wordpiece.encode(text)[0].tolist() for wordpiece in (words, characters)]
    assert ids[0].count(words.unk_id) == 3 and ids[1].count(words.unk_id) == 3
    assert {"and", "a", "b"} <= {words.tokens[n] for n in ids[1]} and "and" not in {words.tokens[n] for n in ids[0]}
