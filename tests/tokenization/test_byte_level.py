"""Byte-level BPE gives the ids of transformers and of a plain reference implementation; nothing is unknown."""

import functools
import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.tokenization.byte_level import ByteLevelBPE
from bertjax.tokenization.loading import load_tokenizer
from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.training import count_for, train_tokenizer

AS_IT_IS = TextRules(lowercase=False, strip_accents=False)
BARE = TextRules(lowercase=False, strip_accents=False, prefix_space=False)
CHARACTERS = st.characters(exclude_categories=["Cs"])
TEXT = ["the cat sat on the mat; the dog didn't.", "naïve cafés 東京は日本の首都である。", "a (b) c-d 12,5 %"] * 9


def gpt2_bytes():
    """Radford et al.'s table, as in their code: printable bytes map to themselves, others to characters from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    letters = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        if byte not in letters:
            letters[byte] = chr(256 + len(letters) - len(printable))
    return letters


class Plain:
    """Plain byte-level BPE: split by GPT-2's expression, then merge the best pair until none is left."""

    def __init__(self, tokenizer):
        regex = pytest.importorskip("regex", reason="needs the regex package")
        self.ids = json.loads(tokenizer.files["vocab.json"])
        lines = tokenizer.files["merges.txt"].decode().split("\n")
        pairs = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
        self.rank = {pair: number for number, pair in enumerate(pairs)}
        self.cut = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
        self.letters = gpt2_bytes()
        self.merged = functools.cache(self._merged)

    def _merged(self, word):
        parts = list(word)
        while len(parts) > 1:
            best = min(itertools.pairwise(parts), key=lambda pair: self.rank.get(pair, len(self.rank)))
            if best not in self.rank:
                break
            place = 0
            while place < len(parts) - 1:
                if (parts[place], parts[place + 1]) == best:
                    parts[place : place + 2] = ["".join(best)]
                place += 1
        return [self.ids[part] for part in parts]

    def encode(self, text):
        text = text if text[:1].isspace() or not text else f" {text}"
        words = ("".join(self.letters[byte] for byte in word.encode()) for word in self.cut.findall(text))
        return [number for word in words for number in self.merged(word)]


@pytest.fixture(scope="module")
def small():
    return train_tokenizer("byte_bpe", count_for("byte_bpe", TEXT, AS_IT_IS), 340, AS_IT_IS)


@pytest.fixture(scope="module")
def roberta(real_data):
    return load_tokenizer(real_data / "vocab" / "roberta-base", AS_IT_IS)


def encode_ids(tokenizer, texts):
    return [ids.tolist() for ids in tokenizer.encode_sentences(texts)]


@settings(max_examples=300)
@given(
    st.lists(
        st.text(
            st.one_of(
                st.sampled_from("the's  \t\n東é12.\u3000"),
                # Without <, because the backend recognises special tokens in text.
                st.characters(exclude_categories=["Cs"], exclude_characters="<"),
            )
        )
    )
)
def test_encoding_matches_the_plain_algorithm(small, texts):
    texts = [text.replace("\0", "") for text in texts]
    encodings = small.backend.encode_batch(texts, add_special_tokens=False)
    assert encode_ids(small, texts) == [encoding.ids for encoding in encodings]


@pytest.mark.long  # the next test compares them with transformers
def test_robertas_files_match_the_plain_algorithm(roberta, sentences):
    plain = Plain(roberta)
    assert encode_ids(roberta, sentences[::3]) == [plain.encode(text) for text in sentences[::3]]


def test_robertas_files_match_transformers(roberta, real_data, sentences):
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    theirs = transformers.RobertaTokenizer.from_pretrained(real_data / "vocab" / "roberta-base", add_prefix_space=True)
    expected = theirs(sentences[::3], add_special_tokens=False, verbose=False)["input_ids"]
    assert encode_ids(roberta, sentences[::3]) == expected


def test_trained_model_matches_the_plain_algorithm(sentences):
    trained = train_tokenizer("byte_bpe", count_for("byte_bpe", sentences[::16], AS_IT_IS), 2000, AS_IT_IS)
    plain = Plain(trained)
    assert trained.vocab_size == 2000
    assert encode_ids(trained, sentences[::12]) == [plain.encode(text) for text in sentences[::12]]


def test_decoding_restores_the_text(small):
    for text in ("naïve 東京 \U0001f600 don't", "a\u0301 ﬁ"):
        assert small.decode(small.encode([text])[0]) == text
    assert small.unk_id not in small.encode(["\U0001f600 \u0e01 \x7f"])[0]


def test_text_cannot_forge_a_special_token(small):
    for name in ("<mask>", "<s>", "</s>", "<pad>", "<unk>"):
        assert not set(small.special.values()) & set(small.encode([f"a {name} b"])[0].tolist())
    assert small.mask_id in small.backend.encode("a <mask> b").ids


def test_layout_and_special_tokens(small, roberta):
    assert small.tokens[:4] == ["<s>", "<pad>", "</s>", "<unk>"] and small.tokens[-1] == "<mask>"
    assert (roberta.cls_id, roberta.pad_id, roberta.sep_id, roberta.unk_id, roberta.mask_id) == (0, 1, 2, 3, 50264)
    pair = small.backend.encode("the cat", "the dog")
    first, second = encode_ids(small, ["the cat", "the dog"])
    assert pair.ids == [small.cls_id, *first, small.sep_id, *second, small.sep_id]
    assert pair.type_ids == [0] * (len(first) + 2) + [1] * (len(second) + 1)


def test_continuations_follow_visible_words(roberta):
    (ids,) = roberta.encode_sentences(["unbelievably, the antediluvian 東京"])
    starts = [roberta.display_texts[n] for n in ids.tolist() if not roberta.is_continuation[n]]
    assert starts[0].startswith("un") and starts[1:4] == [",", "the", "an"]
    assert len(starts) == 6, starts  # including both Chinese characters, which are split into bytes


def test_same_words_give_the_same_bytes(small):
    counts = count_for("byte_bpe", TEXT, AS_IT_IS)
    assert train_tokenizer("byte_bpe", dict(reversed(list(counts.items()))), 340, AS_IT_IS).files == small.files


@pytest.mark.parametrize(
    ("vocabulary", "merges", "message"),
    [
        (b"{", b"", r"vocab\.json: not JSON"),
        (b'{"a":' * 100_000, b"", r"vocab\.json: JSON nested deeper than 64"),
        (b'{"a": "0"}', b"", r'vocab\.json: a is "0", not a whole number'),
        (b"[1]", b"", r"does not number its tokens from 0 without gaps"),
        (b'{"a": 0, "b": 2}', b"", r"does not number its tokens from 0 without gaps"),
        (b'{"a": 0, "b": 1}', b"#version: 0.2\na b\n", r"line 2 of merges\.txt is 'a b', not a pair of vocab\.json"),
        (b'{"a": 0, "b": 1}', b"\xff", r"merges\.txt is not UTF-8 at byte 0"),
        (b'{"a": 0, "b": 1, "ab": 2}', b"a b\n", r"no <s>, <pad>, </s>, <unk>, <mask> in vocab\.json"),
    ],
)
def test_bad_files_are_refused(vocabulary, merges, message):
    with pytest.raises(ValueError, match=message):
        ByteLevelBPE(vocabulary, merges, AS_IT_IS)


def test_message_keeps_braces_in_the_path():
    with pytest.raises(ValueError, match=r"/data/\{a\}/vocab\.json: no <s>, .* in vocab\.json"):
        ByteLevelBPE(b'{"a": 0, "b": 1, "ab": 2}', b"a b\n", AS_IT_IS, "byte-level BPE /data/{a}/vocab.json")


def test_missing_files_are_named(tmp_path, small):
    (tmp_path / "vocab.json").write_bytes(small.files["vocab.json"])
    with pytest.raises(ValueError, match=r"vocab\.json: no merges\.txt next to it; both are needed"):
        load_tokenizer(tmp_path, AS_IT_IS)
    (tmp_path / "merges.txt").write_bytes(small.files["merges.txt"])
    for path in (tmp_path, tmp_path / "vocab.json", tmp_path / "merges.txt"):
        assert load_tokenizer(path, AS_IT_IS).fingerprint == small.fingerprint
    (tmp_path / "vocab.txt").write_text("[PAD]\n")
    with pytest.raises(ValueError, match=r"the folder holds vocab\.txt and vocab\.json; name one file"):
        load_tokenizer(tmp_path, AS_IT_IS)
    with pytest.raises(ValueError, match=r"data\.unknown='characters': .* the option is for WordPiece"):
        load_tokenizer(tmp_path / "vocab.json", TextRules(False, False, "characters"))


def test_too_small_vocabulary_is_refused():
    with pytest.raises(ValueError, match=r"data\.vocab_size=200 is too small: .* has at least 261"):
        train_tokenizer("byte_bpe", {"a": 3}, 200, AS_IT_IS)
    with pytest.raises(ValueError, match="no words to train on"):
        train_tokenizer("byte_bpe", {}, 500, AS_IT_IS)


def test_text_without_prefix_space_matches_roberta():
    transformers = pytest.importorskip("transformers")
    spaced = train_tokenizer("byte_bpe", count_for("byte_bpe", TEXT, AS_IT_IS), 400, AS_IT_IS)
    bare = ByteLevelBPE(*spaced.files.values(), BARE)
    merges = [tuple(line.split(" ")) for line in spaced.files["merges.txt"].decode().split("\n")[1:] if line]
    theirs = transformers.RobertaTokenizer(vocab=json.loads(spaced.files["vocab.json"]), merges=merges)
    texts = [*TEXT[:3], " the cat", "the  cat ", "\tthe", "", "cat"]
    assert [ids.tolist() for ids in bare.encode_sentences(texts)] == theirs(texts, add_special_tokens=False)[
        "input_ids"
    ]
    assert bare.encode_sentences(["cat"])[0].tolist() != spaced.encode_sentences(["cat"])[0].tolist()
    assert bare.decode(bare.encode_sentences([" the cat"])[0]) == " the cat"
    assert bare.fingerprint != spaced.fingerprint


def test_other_kinds_refuse_prefix_space():
    with pytest.raises(ValueError, match=r"data\.prefix_space=False.*the option is for byte-level BPE"):
        train_tokenizer("unigram", count_for("unigram", TEXT, AS_IT_IS), 120, BARE)


def test_offsets_of_long_chunks_are_not_cached(small):
    """Without spaces between words, each chunk is a whole sentence."""
    for number in range(3):
        text = "東" * 200 + str(number)
        assert small.offsets(text)[-1].tolist() == [200, 201]
    assert small._chunks._offsets.cache_info().currsize == 0


@settings(max_examples=100)
@given(
    st.lists(
        st.text(
            st.one_of(
                st.sampled_from("the's  \t東é12."), st.characters(exclude_categories=["Cs"], exclude_characters="<")
            )
        )
        .map(lambda text: text.replace("\0", "").strip())
        .filter(bool)
    )
)
def test_running_sentences_encode_like_the_whole_text(small, sentences):
    """Sentences encode like their text joined by single spaces, and tokens have the same offsets."""
    bare = [number == 0 for number in range(len(sentences))]
    text = " ".join(sentences)
    assert small.encode_running(sentences, bare)[0].tolist() == small.backend.encode(text, add_special_tokens=False).ids
    tokenizer = ByteLevelBPE(*small.files.values(), BARE)
    ids, lengths = tokenizer.encode_running(sentences, bare)
    whole = tokenizer.backend.encode(text, add_special_tokens=False)
    assert ids.tolist() == whole.ids
    before = 0
    for sentence, begin, end in zip(sentences, np.cumsum(lengths) - lengths, np.cumsum(lengths), strict=True):
        theirs = np.array(whole.offsets[begin:end]) - before
        assert tokenizer.offsets(sentence, before == 0).tolist() == theirs.clip(0).tolist()
        before += len(sentence) + 1


def test_bare_matters_only_without_prefix_space(small):
    sentences, bare = ["the cat", "the\0 cat", "\0", "the  cat", "the cat"], [number == 3 for number in range(5)]
    without_prefix = ByteLevelBPE(*small.files.values(), BARE)
    ids, lengths = without_prefix.encode_running(sentences, bare)
    alone = [" the cat", " the cat", "", "the  cat", " the cat"]  # no space is added to a sentence without text
    assert [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])] == encode_ids(without_prefix, alone)
    for tokenizer in (small, train_tokenizer("unigram", count_for("unigram", TEXT, AS_IT_IS), 120, AS_IT_IS)):
        pairs = zip(tokenizer.encode_running(sentences, bare), tokenizer.encode(sentences), strict=True)
        for running, expected in pairs:
            assert running.tolist() == expected.tolist()
