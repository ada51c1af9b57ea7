"""Training of WordPiece matches plain byte-pair merging and is deterministic."""

import hashlib
import itertools
import lzma
import os
import random
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from bertjax.tokenization.bpe_training import count_words, train_wordpiece
from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.training import smoothed
from bertjax.tokenization.wordpiece import SPECIAL_TOKENS, WordPiece


def plain_merges(word_counts, vocab_size):
    """Reference implementation: count all pairs again before every merge."""
    words = {word: [word[0], *("##" + c for c in word[1:])] for word in word_counts}
    pieces = sorted({piece for split in words.values() for piece in split})
    while len(pieces) + len(SPECIAL_TOKENS) < vocab_size:
        pairs = Counter()
        for word, split in words.items():
            for pair in itertools.pairwise(split):
                pairs[pair] += word_counts[word]
        if not pairs or max(pairs.values()) < 2:
            break
        left, right = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merged = left + right.removeprefix("##")
        if merged not in pieces:
            pieces.append(merged)
        for split in words.values():
            place = 0
            while place < len(split) - 1:
                if (split[place], split[place + 1]) == (left, right):
                    split[place : place + 2] = [merged]
                place += 1
    return [*SPECIAL_TOKENS, *pieces]


words = st.text("abc", min_size=1, max_size=9)


@settings(max_examples=100)
@given(st.dictionaries(words, st.integers(1, 6), min_size=1, max_size=25), st.integers(25, 80))
def test_merges_match_the_plain_algorithm(counts, vocab_size):
    assert train_wordpiece(counts, vocab_size) == plain_merges(counts, vocab_size)


def test_merges_by_hand():
    # ab: 9, bc: 5 + 4; a tie goes to the smaller strings, ("##b", "##c") before ("a", "##b").
    trained = train_wordpiece({"abc": 5, "ab": 4, "xbc": 4}, 12)
    assert trained == [*SPECIAL_TOKENS, "##b", "##c", "a", "x", "##bc", "abc", "ab"]


def test_overlapping_pairs_are_merged_from_the_left():
    trained = train_wordpiece({"aaaaa": 3, "aaaa": 2}, 20)
    assert trained == plain_merges({"aaaaa": 3, "aaaa": 2}, 20)


def test_training_ends_without_repeated_pairs():
    assert train_wordpiece({"ab": 1, "cd": 1}, 1000) == [*SPECIAL_TOKENS, "##b", "##d", "a", "c"]


def test_rare_characters_are_left_out():
    counts = {"common": 100_000, "rareŻ": 3}
    trained = train_wordpiece(counts, 100)
    assert not any("ż" in token.lower() for token in trained)
    assert "rare" not in "".join(trained)  # the word would be [UNK] in any case


def test_alphabet_takes_a_limited_share():
    characters = {chr(0x4E00 + place): 1000 - place for place in range(400)}
    ascending = {"".join(letters): 2 for letters in itertools.product("abcdefghijklmnopqrstuvwxyz", repeat=3)}
    trained = train_wordpiece(characters | ascending, 400)
    assert len(trained) == 400
    assert sum(piece >= "\u4e00" for piece in trained) == 100 - 26


def test_characters_fill_the_rest_of_the_vocabulary():
    assert len(train_wordpiece({chr(0x4E00 + place): 20 for place in range(3000)}, 4000)) == 3005
    # Without room for all, the most frequent characters are included, in each of their forms.
    counts = {chr(0xAC00 + place): 1000 - place for place in range(400)} | {"\uac00\uac01": 1}
    expected = [*SPECIAL_TOKENS, "##\uac01", *(chr(0xAC00 + place) for place in range(294))]
    assert train_wordpiece(counts, 300) == expected


def test_alphabet_leaves_room_for_merges():
    characters = {chr(0x4E00 + place): 1000 - place for place in range(400)}
    trained = train_wordpiece(characters | {"abc": 4000, "abd": 3000}, 200)
    assert len(trained) == 200
    assert {"a", "##b", "##c", "##d", "ab", "abc", "abd"} <= set(trained)


def test_smoothing_gives_a_small_source_more_of_the_words():
    large, small = Counter(the=9_000, of=1_000), Counter(der=75, und=25)
    assert smoothed([large, small], 1.0) == large + small
    counts = smoothed([large, Counter(), small], 0.7)
    assert counts.total() == pytest.approx(10_100, abs=2)
    assert (counts["the"] + counts["of"]) / (counts["der"] + counts["und"]) == pytest.approx(100**0.7, rel=0.01)
    assert counts["der"] == pytest.approx(3 * counts["und"], abs=2)
    assert smoothed([], 0.7) == Counter()


def test_text_without_words_is_refused():
    with pytest.raises(ValueError, match=r"no words to train on; is data\.sources right\?"):
        train_wordpiece({}, 100)


def test_vocabulary_smaller_than_its_alphabet_is_refused():
    with pytest.raises(ValueError, match=r"data\.vocab_size=24 is too small: .* take 25 already; raise it"):
        train_wordpiece({a + b: 2 for a in "abcdefghij" for b in "abcdefghij"}, 24)


TEXT = "The naïve café's owner, Zürich-born, said: it's 3.14 — really! 東京 is 'far' é\x01e\u0301.\n" * 3


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("strip_accents", [True, False])
@pytest.mark.parametrize("text", [TEXT, "x" * 201 + " " + "y" * 200, "", "AB ab\u00ada b\u200d"])
def test_counted_words_match_tokenizers(text, lowercase, strip_accents):
    normalizer = normalizers.BertNormalizer(strip_accents=strip_accents, lowercase=lowercase)
    split = pre_tokenizers.BertPreTokenizer().pre_tokenize_str(normalizer.normalize_str(text))
    expected = Counter(word for word, _ in split if len(word) <= 200)
    assert count_words([text], TextRules(lowercase, strip_accents)) == expected
    assert count_words(text.split("\n"), TextRules(lowercase, strip_accents)) == expected


def generated_counts(seed=0):
    draw = random.Random(seed)
    stems = ["".join(draw.choices("etaoinshrdluäñ東", k=draw.randint(2, 7))) for _ in range(400)]
    ends = ["", "s", "ing", "ed", "er", "ers"]
    return Counter(draw.choice(stems) + draw.choice(ends) for _ in range(20_000))


IN_ANOTHER_PROCESS = """
import hashlib, random, sys
sys.path.insert(0, {folder!r})
from test_wordpiece_training import generated_counts, train_wordpiece
items = list(generated_counts().items())
random.Random(1).shuffle(items)
print(hashlib.sha256("\\n".join(train_wordpiece(dict(items), 900)).encode()).hexdigest())
"""


@pytest.mark.run
def test_training_is_deterministic_across_processes():
    digests = {hashlib.sha256("\n".join(train_wordpiece(generated_counts(), 900)).encode()).hexdigest()}
    script = IN_ANOTHER_PROCESS.format(folder=os.path.dirname(__file__))
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    digests.add(done.stdout.strip())
    # If this figure changes, TRAINER_VERSION must change too.
    assert digests == {"dfd993bc7669a5c466c987d2f9cc013a16ddcb163aa60ccf4dc4f66c76918337"}


@pytest.mark.long  # tests above compare the pieces with the plain algorithm's
def test_pieces_are_as_good_as_the_librarys(real_data):
    with lzma.open(real_data / "wikipedia_en" / "AA_00.txt.xz", "rt", encoding="utf-8") as stream:
        seen, unseen = stream.read(1_500_000).split("\n"), stream.read(300_000).split("\n")
    library = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer(strip_accents=True, lowercase=True)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.train_from_iterator(seen, trainers.WordPieceTrainer(vocab_size=2400, special_tokens=list(SPECIAL_TOKENS)))
    theirs = sum(len(encoding.ids) for encoding in library.encode_batch(unseen))
    ours = WordPiece(train_wordpiece(count_words(seen, TextRules(True, True)), 4000), TextRules(True, True))
    ids, _ = ours.encode(unseen)
    assert len(ids) <= 1.01 * theirs
    assert (ids == ours.unk_id).mean() < 0.001
