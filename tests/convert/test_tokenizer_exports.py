"""Models with every kind of tokenizer export to Hugging Face's layout and back: equal ids and outputs."""

import json

import numpy as np
import pytest
from exported_models import trained_model, wordpiece
from stored_documents import write_store

from bertjax.convert.compare import PAIRS, compare_with_transformers
from bertjax.convert.huggingface.exporter import export_huggingface
from bertjax.convert.huggingface.importer import read_huggingface
from bertjax.convert.tf1.tf1_format import export_tensorflow
from bertjax.interpret.fill_mask import encode_with_masks, fill_mask, held_out_completions
from bertjax.run.run_directory import describe_run
from bertjax.text.store.format import TokenStore
from bertjax.tokenization.loading import load_tokenizer
from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.training import count_for, train_tokenizer
from bertjax.tokenization.wordpiece import WordPiece

TEXTS = [text for pair in PAIRS for text in pair]
TEXTS += ["東京は日本の首都である。  सत्य naïve ☃ [MASK] <mask>?", "don't\t12,5 % ÉTÉ", "ﬁne ① ｶﾞ x\u0301 \u200b."]


def make_tokenizer(kind, rules):
    if kind == "wordpiece":
        return WordPiece(wordpiece().tokens, rules)
    return train_tokenizer(kind, count_for(kind, TEXTS * 5, rules), 400, rules)


@pytest.fixture(params=["unigram", "bpe", "byte_bpe", "wordpiece with characters"])
def model(request, tmp_path):
    kind, _, characters = request.param.partition(" with ")
    rules = TextRules(True, True, "characters") if characters else TextRules(kind == "bpe", False)
    return trained_model(tmp_path / "run", make_tokenizer(kind, rules))


def test_ids_and_outputs_equal_transformers(model, tmp_path):
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    pytest.importorskip("torch", reason="needs torch")
    folder = export_huggingface(model, tmp_path / "out")
    assert compare_with_transformers(model, folder).largest < 2e-6
    theirs, ours = transformers.AutoTokenizer.from_pretrained(folder), model.tokenizer
    plain = [text for text in TEXTS if not any(name in text for name in ("[MASK]", "<mask>"))]
    expected = [ids.tolist() for ids in ours.encode_sentences(plain)]
    assert theirs(plain, add_special_tokens=False)["input_ids"] == expected
    for role, number in ours.special.items():
        assert getattr(theirs, f"{role}_token_id") == number
    first, last = ours.encode_sentences(["a", "b"])
    masked = theirs(f"a {theirs.mask_token} b", add_special_tokens=False)["input_ids"]
    assert masked == [*first, ours.mask_id, *last]  # as in training, without the space before the mask
    assert f"Text with a {theirs.mask_token} in it." in (folder / "README.md").read_text()
    pair = theirs(f"a {theirs.mask_token} b", "c")
    assert pair["input_ids"].count(ours.mask_id) == 1 and pair["token_type_ids"][-1] == 1
    assert theirs.model_max_length == model.max_length
    config = json.loads((folder / "config.json").read_text())
    assert config["pad_token_id"] == ours.pad_id and config["vocab_size"] == ours.vocab_size


def test_tokenizer_round_trips(model, tmp_path):
    folder = export_huggingface(model, tmp_path / "out")
    back = read_huggingface(folder).tokenizer
    assert (back.fingerprint, back.rules, back.kind_name) == (
        model.tokenizer.fingerprint,
        model.tokenizer.rules,
        model.tokenizer.kind_name,
    )
    assert export_huggingface(model, folder) == folder  # an export of any kind may be replaced by the next


def test_run_directory_keeps_the_tokenizer(model):
    model.directory.mkdir()
    describe_run(model.config, model.tokenizer)
    for name, content in model.tokenizer.files.items():
        assert (model.directory / name).read_bytes() == content
    other = make_tokenizer(
        "wordpiece" if "vocab.txt" not in model.tokenizer.files else "byte_bpe", TextRules(False, False)
    )
    describe_run(model.config, other)  # removes the old vocabulary of a run without checkpoints
    assert load_tokenizer(model.directory, other.rules).fingerprint == other.fingerprint


def test_export_tensorflow_requires_plain_wordpiece(tmp_path):
    unigram = make_tokenizer("unigram", TextRules(False, False))
    model = trained_model(tmp_path / "run", unigram, hidden_act="gelu_tanh")
    with pytest.raises(ValueError, match=r"the vocabulary is SentencePiece in spiece\.model: google-research"):
        export_tensorflow(model, tmp_path / "out")
    unknown = WordPiece(wordpiece().tokens, TextRules(True, True, "characters"))
    with pytest.raises(ValueError, match=r"data\.unknown='characters': google-research/bert has no such rule"):
        export_tensorflow(trained_model(tmp_path / "run", unknown, hidden_act="gelu_tanh"), tmp_path / "out")
    letters = next(token for token in wordpiece().tokens if token.isalpha())
    mapped = WordPiece(wordpiece().tokens, TextRules(True, True), entities=f"αβγ\t{letters}\n".encode())
    with pytest.raises(ValueError, match=r"data\.entity_map: google-research/bert has no entity maps"):
        export_tensorflow(trained_model(tmp_path / "run", mapped, hidden_act="gelu_tanh"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_fill_mask_takes_mask_for_any_vocabulary(model, tmp_path):
    (first,) = fill_mask(model, ["a [MASK] b"], top=3)
    assert len(first) == 1 and {guess.token for guess in first[0]} <= set(model.tokenizer.display_texts)
    ids = [ids.tolist() for ids in model.tokenizer.encode_sentences(TEXTS[:6] * 8)]
    known = [sentence for sentence in ids if model.tokenizer.unk_id not in sentence]
    store = TokenStore.open(write_store(tmp_path / "store", {"held_out": [known]}, model.tokenizer))
    for completion in held_out_completions(model, store.split("held_out"), 3, seed=0):
        assert completion.text.count("[MASK]") == 1 and "<mask>" not in completion.text
    encoded = encode_with_masks(model.tokenizer, "a [MASK] b")
    first, last = model.tokenizer.encode_sentences(["a", "b"])
    assert encoded == [*first, model.tokenizer.mask_id, *last]


def test_text_after_a_mask_has_the_ids_of_running_text(model):
    tokenizer = model.tokenizer
    (whole,) = tokenizer.encode_sentences(["a c, b."])
    begin, end = (len(ids) for ids in tokenizer.encode_sentences(["a", "a c"]))
    masked = encode_with_masks(tokenizer, "a [MASK], b.")
    assert masked == [*whole[:begin], tokenizer.mask_id, *whole[end:]]
    assert encode_with_masks(tokenizer, "[MASK]...") == [tokenizer.mask_id, *tokenizer.encode_behind(["..."])[0]]
    assert [ids.tolist() for ids in tokenizer.encode_behind([""])] == [[]] and tokenizer.encode_behind([]) == []


def test_sentences_are_shown_without_leading_space(tmp_path):
    rules = TextRules(False, False, prefix_space=False)
    draw = np.random.default_rng(0)
    words = [f"{a}{b}{c}" for a in "bdfgklmnprstvwz" for b in "aeiou" for c in "nrst"]
    texts = [" ".join(draw.permutation(words)[:12]) + "." for _ in range(300)]
    tokenizer = train_tokenizer("byte_bpe", count_for("byte_bpe", texts, rules), 1_000, rules)
    ids, lengths = tokenizer.encode_running(texts, [False] * len(texts))
    sentences = [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]
    store = TokenStore.open(write_store(tmp_path / "store", {"held_out": [sentences]}, tokenizer))
    split = store.split("held_out")
    shown = [one.text for one in held_out_completions(trained_model(tmp_path / "run", tokenizer), split, 9, seed=0)]
    assert len(shown) == 9 and not any(text.startswith(" ") for text in shown)
