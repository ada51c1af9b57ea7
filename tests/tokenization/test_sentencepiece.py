"""SentencePiece gives the ids of the sentencepiece library and of transformers; unsupported models are refused."""

import io

import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.tokenization.loading import load_tokenizer
from bertjax.tokenization.sentencepiece import SentencePiece, read_model
from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.training import count_for, train_tokenizer

AS_IT_IS = TextRules(lowercase=False, strip_accents=False)
CHARACTERS = st.characters(exclude_categories=["Cs"])
TEXT = [
    "the cat sat on the mat; the dog did not.",
    "naïve cafés [MASK] ＡＢＣ ﬁne",
    "東京は日本の首都である。",
    "a (b) c-d 12,5 %",
] * 9


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def small(request):
    return train_tokenizer(request.param, count_for(request.param, TEXT, AS_IT_IS), 120, AS_IT_IS)


def library(tokenizer):
    return sentencepiece.SentencePieceProcessor(model_proto=tokenizer.files["spiece.model"])


def changed(tokenizer, change):
    proto = read_model(tokenizer.files["spiece.model"], "test")
    change(proto)
    return proto.SerializeToString()


def parse_model(tokenizer):
    return read_model(tokenizer.files["spiece.model"], "test")


def encode_ids(tokenizer, texts):
    return [ids.tolist() for ids in tokenizer.encode_sentences(texts)]


@settings(max_examples=150)
@given(
    st.lists(
        st.text(
            st.one_of(st.sampled_from("the cat▁[MASK]東 \u3000\u0301ﬁ\t"), st.characters(exclude_categories=["Cs"]))
        )
    )
)
def test_encoding_matches_the_library(small, texts):
    texts = [text.replace("\0", "") for text in texts]
    encodings = small.encoder.encode_batch(texts, add_special_tokens=False)
    assert encode_ids(small, texts) == [encoding.ids for encoding in encodings]


@pytest.mark.parametrize("kind", [pytest.param("unigram", marks=pytest.mark.long), "bpe"])
def test_trained_model_matches_the_library(sentences, kind):
    trained = train_tokenizer(kind, count_for(kind, sentences[::2], AS_IT_IS), 8000, AS_IT_IS)
    assert trained.vocab_size == 8000
    assert encode_ids(trained, sentences[1::4]) == library(trained).encode(sentences[1::4])


def test_alberts_model_matches_the_library(real_data, sentences):
    albert = load_tokenizer(real_data / "vocab" / "albert-base-v1", AS_IT_IS)
    processor = library(albert)
    score = np.array([processor.get_score(number) for number in range(albert.vocab_size)], np.float64)
    score[albert.unk_id] = 0
    sentences = sentences[::2]
    ours, theirs = encode_ids(albert, sentences), processor.encode(sentences)
    different = [(a, b) for a, b in zip(ours, theirs, strict=True) if a != b]
    assert len(different) <= len(sentences) / 2000
    for a, b in different:  # two segmentations whose scores are equal within the precision of 32 bits
        assert processor.decode(a) == processor.decode(b)
        assert abs(score[a].sum() - score[b].sum()) < 2**-23 * abs(score[b].sum()) * len(b)


@pytest.mark.parametrize("uncased", [True, pytest.param(False, marks=pytest.mark.long)])
def test_alberts_model_matches_transformers(real_data, sentences, uncased):
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    folder = real_data / "vocab" / "albert-base-v1"
    ours = load_tokenizer(folder, TextRules(uncased, uncased))
    # Built from the model's pieces, because from_pretrained, unlike the library, drops the space before ( ) " - .
    theirs = transformers.AlbertTokenizer(
        vocab=[(piece.piece, piece.score) for piece in parse_model(ours).pieces],
        _spm_precompiled_charsmap=parse_model(ours).normalizer_spec.precompiled_charsmap,
        do_lower_case=uncased,
        keep_accents=not uncased,
    )
    texts = [text for text in sentences if "''" not in text and "``" not in text]
    assert len(texts) > 0.99 * len(sentences)
    texts = texts[::9]  # the test above compares half of them with the library
    assert encode_ids(ours, texts) == theirs(texts, add_special_tokens=False, verbose=False)["input_ids"]


def test_text_cannot_forge_a_special_token(small):
    for name in ("[MASK]", "[CLS]", "<pad>", "<unk>"):
        assert not set(small.special.values()) - {small.unk_id} & set(small.encode([f"a {name} b"])[0].tolist())
    assert small.mask_id in small.backend.encode("a [MASK] b").ids


def user_defined(kind, symbols):
    """Train a model with user-defined symbols."""
    output = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT), model_writer=output, model_type=kind, vocab_size=90, hard_vocab_limit=False,
        pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, user_defined_symbols=symbols, minloglevel=2,
    )  # fmt: skip
    return output.getvalue()


def test_user_defined_special_tokens_are_not_in_text():
    model = SentencePiece(user_defined("unigram", ["[CLS]", "[SEP]", "[MASK]", "<nl>"]), AS_IT_IS)
    assert model.surfaces[model.mask_id] == b"" and model.mask_id not in model.encode(["the [MASK] cat"])[0]
    assert model.tokens.index("<nl>") in model.encode(["the <nl> cat"])[0]
    assert encode_ids(model, ["a cat <nl> b"]) == library(model).encode(["a cat <nl> b"])
    with pytest.raises(ValueError, match=r"a BPE model with user-defined symbols is unsupported"):
        SentencePiece(user_defined("bpe", ["[CLS]", "[SEP]", "[MASK]", "<nl>"]), AS_IT_IS)


def test_exported_tokenizer_encodes_pairs(small):
    pair = small.backend.encode("the cat", "the dog")
    first, second = encode_ids(small, ["the cat", "the dog"])
    assert pair.ids == [small.cls_id, *first, small.sep_id, *second, small.sep_id]
    assert pair.type_ids == [0] * (len(first) + 2) + [1] * (len(second) + 1)
    assert small.decode(pair.ids) == "the cat the dog"


def test_empty_input_gives_no_tokens(small):
    ids, lengths = small.encode(["", " ", "\0", "the"])
    assert lengths.tolist()[:3] == [0, 0, 0] and lengths[3] == len(ids) > 0
    assert small.encode([])[1].shape == (0,)
    with pytest.raises(ValueError, match=r"lone surrogate, in 'th\\ud800e'; .*correct the source"):
        small.encode(["a th\ud800e"])


def test_continuations_follow_visible_words(real_data):
    albert = load_tokenizer(real_data / "vocab" / "albert-base-v1", AS_IT_IS)
    (ids,) = albert.encode_sentences(["unbelievably, the antediluvian's 12th-century"])
    continues = albert.is_continuation[ids]
    words, word = [], b""
    for number, is_inside in zip(ids.tolist(), continues.tolist(), strict=True):
        if not is_inside and word:
            words.append(word.decode())
            word = b""
        word += albert.surfaces[number]
    # Punctuation begins a word, and text that follows it without a space continues it, unlike with WordPiece.
    assert [*words, word.decode()] == ["unbelievably", ",", "the", "antediluvian", "'s", "12th", "-century"]


def test_every_piece_of_an_unspaced_script_is_a_word(small):
    (ids,) = small.encode_sentences(["東京は日本の首都である。"])
    assert not small.is_continuation[ids].any()


def test_special_tokens_are_displayed_by_role(small):
    assert small.display_texts[small.mask_id] == "[MASK]" and small.display_texts[small.unk_id] == "[UNK]"
    assert "▁" in small.display_texts and "" not in small.display_texts
    assert small.surfaces[small.mask_id] == b"" and not small.is_continuation[small.mask_id]


def test_same_words_give_the_same_bytes():
    counts = count_for("unigram", TEXT, AS_IT_IS)
    others = dict(reversed(list(counts.items())))
    for kind in ("unigram", "bpe"):
        first = train_tokenizer(kind, counts, 120, AS_IT_IS)
        assert train_tokenizer(kind, others, 120, AS_IT_IS).files == first.files
        assert first.fingerprint != train_tokenizer(kind, counts, 120, TextRules(True, False)).fingerprint


def test_sums_of_scores_are_exact(small):
    scores = np.array([piece.score for piece in parse_model(small).pieces])
    assert (scores * 1024 == np.round(scores * 1024)).all() and scores.min() > -64 * 64


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: setattr(p.normalizer_spec, "add_dummy_prefix", False), "models that keep spaces"),
        (lambda p: setattr(p.normalizer_spec, "remove_extra_whitespaces", False), "models that keep spaces"),
        (lambda p: setattr(p.trainer_spec, "treat_whitespace_as_suffix", True), "or have them after words"),
        (lambda p: setattr(p.trainer_spec, "model_type", 4), "model type 4 with .* pieces is unsupported"),
        (lambda p: setattr(p.pieces[20], "piece", "a▁b"), "pieces across spaces"),
        (
            lambda p: setattr(p.pieces[2], "piece", "<c>"),
            r"no \[CLS\] or <cls> or <s>; train it with --pad_id=0",
        ),
    ],
)
def test_unsupported_models_are_refused(small, change, message):
    with pytest.raises(ValueError, match=message):
        SentencePiece(changed(small, change), AS_IT_IS)


def test_invalid_model_is_refused(tmp_path, small):
    for content in (b"", b"\xff\xfe no model", small.files["spiece.model"][:900] + b"\x07"):
        (tmp_path / "x.model").write_bytes(content)
        with pytest.raises(ValueError, match=r"SentencePiece model .*x\.model"):
            load_tokenizer(tmp_path / "x.model", AS_IT_IS)
    with pytest.raises(ValueError, match=r"data\.unknown='characters': .* the option is for WordPiece"):
        SentencePiece(small.files["spiece.model"], TextRules(False, False, "characters"))


def test_too_small_vocabulary_is_refused():
    counts = count_for("unigram", TEXT, AS_IT_IS)
    with pytest.raises(ValueError, match=r"data\.vocab_size=20: sentencepiece cannot train"):
        train_tokenizer("unigram", counts, 20, AS_IT_IS)
    with pytest.raises(ValueError, match="no words to train on"):
        train_tokenizer("bpe", {}, 100, AS_IT_IS)
