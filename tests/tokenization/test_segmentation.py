"""Segmentation of Chinese: ids do not change, and the characters of a word continue it."""

import lzma
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.config import DataConfig
from bertjax.input.batches import RowBatches
from bertjax.text.prepare import prepare
from bertjax.text.store.format import TokenStore
from bertjax.tokenization.segmentation import encode_words, load_segmenter
from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.wordpiece import SPECIAL_TOKENS, WordPiece

TOKENS = [*SPECIAL_TOKENS, *"北京大学生的abc，。1", "##a", "##b", "##c", "##1"]
WORDPIECE = WordPiece(TOKENS, TextRules(True, True))


def by_length(*lengths):
    """A segmenter that cuts words of these lengths, repeatedly."""

    def segment(text):
        place, n = 0, 0
        while place < len(text):
            yield text[place : place + lengths[n % len(lengths)]]
            place, n = place + lengths[n % len(lengths)], n + 1

    return segment


def marked(text, segment):
    ids, _, continues = encode_words(WORDPIECE, [text], segment)
    return [("+" if is_inside else "") + TOKENS[n] for n, is_inside in zip(ids, continues, strict=True)]


def test_characters_of_a_word_continue_it():
    assert marked("北京大学的", by_length(2, 2, 1)) == ["北", "+京", "大", "+学", "的"]
    assert marked("abc北京 大学", by_length(3, 2, 1, 2)) == ["a", "+##b", "+##c", "北", "+京", "大", "+学"]
    # Unknown characters are joined too; punctuation and spaces end a word.
    assert marked("龘京，大学", by_length(5)) == ["[UNK]", "+京", "，", "大", "+学"]
    assert marked("北 京ab", by_length(5)) == ["北", "京", "a", "+##b"]


@settings(max_examples=200)
@given(st.lists(st.text("北京大学龘a1 ，\u3000\0\u0301か\n")), st.integers(1, 4))
def test_segmentation_does_not_change_ids(sentences, length):
    ids, lengths, continues = encode_words(WORDPIECE, sentences, by_length(length))
    expected = WORDPIECE.encode(sentences)
    assert (ids == expected[0]).all() and (lengths == expected[1]).all() and len(continues) == len(ids)
    assert (continues | ~WORDPIECE.is_continuation[ids]).all()
    if length == 1:
        assert (continues == WORDPIECE.is_continuation[ids]).all()


def test_real_chinese_is_masked_in_whole_words(real_data, tmp_path):
    pytest.importorskip("jieba", reason="needs jieba; pip install 'bertjax[chinese]'")
    with lzma.open(real_data / "wikipedia_zh" / "zh_00.txt.xz", "rt", encoding="utf-8") as stream:
        (tmp_path / "zh.txt").write_text(stream.read(150_000).rpartition("</doc>")[0] + "</doc>\n", encoding="utf-8")
    vocab = real_data / "vocab" / "bert-base-chinese" / "vocab.txt"
    data = DataConfig(
        sources=(f"wikiextractor:{tmp_path}/zh.txt",),
        root=str(tmp_path / "data"),
        vocab=str(vocab),
        held_out=0.2,
        workers=1,
        sequence_length=64,
        max_predictions=10,
        masking="words",
        segmenter="jieba",
    )
    store = TokenStore.open(prepare(data))
    store.verify()
    view = store.split("train")
    assert view.has_plane("continues") and store.manifest["planes"] == {"continues": "|b1"}
    starts = np.asarray(view.sentence_offsets[:-1])
    lengths = np.diff(view.sentence_offsets)
    words = np.split(view.tokens(starts, lengths), np.flatnonzero(~view.continues(starts, lengths))[1:])
    tokenizer = store.tokenizer()
    spelled = ["".join(tokenizer.tokens[n] for n in word) for word in words]
    segment = load_segmenter("jieba")
    assert np.mean([word == "".join(segment(word)) and len(list(segment(word))) == 1 for word in spelled]) > 0.95
    assert 0.2 < np.mean([len(word) > 1 for word in spelled]) < 0.8 and "中国" in spelled

    batches = RowBatches(view, tokenizer, data, seed=1)
    plain = RowBatches(view, tokenizer, DataConfig(**{**vars(data), "max_predictions": 1}), seed=1)
    rows, text = batches.rows(np.arange(200)), plain.rows(np.arange(200))
    long_words = {word for word in spelled if len(word) > 1}
    hidden_parts = 0
    for n in range(200):
        hidden = set(rows["mlm_positions"][n][rows["mlm_weights"][n] > 0].tolist())
        original = rows["input_ids"][n].copy()
        original[rows["mlm_positions"][n]] = np.where(rows["mlm_weights"][n] > 0, rows["mlm_labels"][n], original[0])
        assert (original == tokenizer.cls_id).sum() == 1 and (text["sequence_ids"][n] == rows["sequence_ids"][n]).all()
        runs = np.split(np.array(sorted(hidden)), np.flatnonzero(np.diff(sorted(hidden)) > 1) + 1)
        for run in runs:
            spelled_run = "".join(tokenizer.tokens[original[place]] for place in run)
            hidden_parts += spelled_run in long_words
    assert hidden_parts > 300  # masking of single characters would rarely give whole words


def test_unsegmentable_vocabulary_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jieba", None)
    load_segmenter.cache_clear()
    with pytest.raises(ValueError, match=r"data\.segmenter='jieba': .*; pip install 'bertjax\[chinese\]'"):
        load_segmenter("jieba")
