"""Filling [MASK]: probabilities, the choice of held-out words, and refused texts."""

from __future__ import annotations

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stored_documents import write_store

from bertjax.__main__ import main
from bertjax.config import Config, DataConfig, ModelConfig
from bertjax.convert.huggingface.exporter import export_huggingface
from bertjax.families.networks import abstract_network
from bertjax.interpret.fill_mask import _predict, close_up, fill_mask, held_out_completions
from bertjax.interpret.token_rows import row_width
from bertjax.model.network import bind
from bertjax.run.run_directory import TrainedModel
from bertjax.text.store.format import TokenStore
from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.wordpiece import SPECIAL_TOKENS, WordPiece

RARE = [f"{a}{b}{c}" for a in "bdfgklm" for b in "aeiou" for c in "nrst"]  # 140 words
PIECES = ["[", "]", "mask", "cls", "##ing", "##ed", ".", ",", "1877"]
TOKENIZER = WordPiece([*SPECIAL_TOKENS, "the", "of", *PIECES, *RARE], TextRules(True, True))
LENGTH = 40


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    config = ModelConfig(
        vocab_size=TOKENIZER.vocab_size, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=48, max_position_embeddings=64,
    )  # fmt: skip
    graphdef, shapes, _ = abstract_network(config)
    draw = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: jnp.asarray(draw.normal(0, 0.3, leaf.shape), jnp.float32), shapes)
    whole = Config(model=config, data=DataConfig(sequence_length=LENGTH))
    return TrainedModel(tmp_path_factory.mktemp("run"), 1, whole, TOKENIZER, graphdef, params)


def token_ids(*tokens):
    return [TOKENIZER.tokens.index(token) for token in tokens]


def probabilities(model, ids, types, length=16):
    """Probabilities of the plain model at a padded length: float [length, vocabulary]."""
    row = [np.pad(values, (0, length - len(ids)))[None] for values in (ids, types, np.ones_like(ids))]
    return np.asarray(plain(model.graphdef, model.params, *row))[0]


@functools.partial(jax.jit, static_argnums=0)
def plain(graphdef, params, ids, types, sequence_ids):
    bert = bind(graphdef, params)
    everywhere = jnp.arange(ids.shape[1])[None]
    return jax.nn.softmax(bert.mlm_logits(bert.encoder(ids, types, sequence_ids, packed=False), everywhere))


def assert_best_guesses(guesses, row, top):
    best = np.argsort(-row[: TOKENIZER.vocab_size], kind="stable")[:top]
    assert [guess.token for guess in guesses] == [TOKENIZER.tokens[i] for i in best]
    np.testing.assert_allclose([guess.probability for guess in guesses], row[best], rtol=1e-5)


def test_guesses_equal_the_plain_model(model):
    (first, second), (only,) = fill_mask(model, ["The [MASK] of [MASK]ing ban.", "Ban [MASK]"], top=7)
    ids = token_ids("[CLS]", "the", "[MASK]", "of", "[MASK]")
    # The text after a [MASK] begins a word, and this vocabulary has no word "ing".
    ids += token_ids("[UNK]", "ban", ".", "[SEP]")
    rows = probabilities(model, ids, [0] * len(ids))
    assert_best_guesses(first, rows[2], 7)
    assert_best_guesses(second, rows[4], 7)
    assert_best_guesses(only, probabilities(model, token_ids("[CLS]", "ban", "[MASK]", "[SEP]"), [0] * 4)[2], 7)


def test_verb_reads_a_hugging_face_model(model, tmp_path, capsys):
    folder = export_huggingface(model, tmp_path / "exported")
    assert main(["fill-mask", f"hf:{folder}", "the [MASK] of", "--top", "2"]) == 0
    (guesses,) = fill_mask(model, ["the [MASK] of"], top=2)[0]
    shown = "  ".join(f"{token} {share:.1%}" for token, share in guesses)
    assert capsys.readouterr().out.splitlines() == ["the [MASK] of", f"    {shown}"]
    assert main(["fill-mask", f"hf:{folder}", "the end"]) == 1
    assert "has no [MASK]" in capsys.readouterr().err


def test_generator_is_used_if_there_is_one(model, tmp_path):
    config = replace(model.config.model, family="electra", pooler="gelu", generator_width=0.5)
    graphdef, shapes, _ = abstract_network(config)
    draw = np.random.default_rng(1)
    params = jax.tree.map(lambda leaf: jnp.asarray(draw.normal(0, 0.3, leaf.shape), jnp.float32), shapes)
    both = TrainedModel(tmp_path, 1, replace(model.config, model=config), TOKENIZER, graphdef, params)
    ids = token_ids("[CLS]", "the", "[MASK]", "of", "ban", ".", "[SEP]")
    ((guesses,),) = fill_mask(both, ["The [MASK] of ban."], top=7)
    assert_best_guesses(guesses, probabilities(both.generator, ids, [0] * len(ids))[2], 7)


@pytest.mark.long  # the suite has such texts in tests/embed/test_predict.py
def test_block_sparse_prompt_is_computed_alone(model):
    """Rows of up to 28 tokens have full attention, as without blocks; longer rows consist of whole blocks."""
    blocks = {"attention_block": 4, "random_blocks": 1}
    sparse = replace(model, config=replace(model.config, model=replace(model.config.model, **blocks)))
    sparse = replace(sparse, graphdef=abstract_network(sparse.config.model)[0])
    texts = ["The [MASK] of ban.", "ban of " * 11 + "[MASK].", "ban of " * 15 + "[MASK]", "ban of " * 17 + "the [MASK]"]
    results = fill_mask(sparse, texts, top=7)
    expected = (model, 16), (model, 28), (sparse, 36), (sparse, 40)
    for (guesses,), text, (of, length) in zip(results, texts, expected, strict=True):
        ids = token_ids("[CLS]", *text.lower().replace("[mask]", "[MASK]").replace(".", " .").split(), "[SEP]")
        row = probabilities(of, ids, [0] * len(ids), length)
        assert_best_guesses(guesses, row[ids.index(TOKENIZER.mask_id)], 7)


def test_prompts_use_few_widths(model):
    longest = {"model": replace(model.config.model, max_position_embeddings=8192)}
    far = replace(model, config=replace(model.config, data=DataConfig(sequence_length=8192), **longest))
    assert [row_width(far, tokens) for tokens in (5, 12, 17, 40, 600)] == [16, 16, 32, 64, 1024]
    assert {row_width(model, tokens) for tokens in range(1, LENGTH + 1)} == {16, 32, LENGTH}
    before = _predict._cache_size()
    fill_mask(model, ["ban " * count + "[MASK]" for count in range(1, LENGTH - 3)], top=6)
    assert _predict._cache_size() <= before + 3


def test_pair_is_two_segments(model):
    ((guesses,),) = fill_mask(model, [("the ban", "of [MASK]")], top=3)
    ids = token_ids("[CLS]", "the", "ban", "[SEP]", "of", "[MASK]", "[SEP]")
    assert_best_guesses(guesses, probabilities(model, ids, [0, 0, 0, 0, 1, 1, 1])[5], 3)


def test_other_special_tokens_are_plain_text(model):
    ((guesses,),) = fill_mask(model, ["[CLS] [mask] [MASK]"], top=3)
    ids = token_ids("[CLS]", "[", "cls", "]", "[", "mask", "]", "[MASK]", "[SEP]")
    assert_best_guesses(guesses, probabilities(model, ids, [0] * 9)[7], 3)


def test_invalid_texts_and_counts_are_refused(model):
    with pytest.raises(ValueError, match=r"text 'no gap here' has no \[MASK\]"):
        fill_mask(model, ["the [MASK]", "no gap here"], 5)
    assert fill_mask(model, ["ban " * (LENGTH - 3) + "[MASK]"], 1)
    with pytest.raises(ValueError, match=r"has 41 tokens, special ones included; the model was trained on rows of 40"):
        fill_mask(model, ["ban " * (LENGTH - 2) + "[MASK]"], 1)
    for top in (0, TOKENIZER.vocab_size + 1):
        with pytest.raises(ValueError, match=f"top={top}: give 1 to {TOKENIZER.vocab_size}"):
            fill_mask(model, ["[MASK]"], top)
    assert len(fill_mask(model, ["[MASK]"], TOKENIZER.vocab_size)[0][0]) == TOKENIZER.vocab_size


def sentence(draw, words, *, pieces=False, unknown=False):
    """Ids of a sentence with many occurrences of "the" and "of"."""
    tokens = []
    for number in range(words):
        tokens.append(["the", "of"][number % 2] if number % 3 else RARE[draw.integers(len(RARE))])
        if pieces and number == 3:
            tokens.append("##ing")
    return token_ids(*tokens, *(["[UNK]"] if unknown else []), ".")


def held_out(tmp_path, sentences):
    path = write_store(tmp_path / "store", {"held_out": [sentences]}, TOKENIZER)
    return TokenStore.open(path).split("held_out")


def test_completions_hide_whole_and_telling_words(model, tmp_path):
    draw = np.random.default_rng(1)
    good = [sentence(draw, int(draw.integers(7, 25))) for _ in range(300)]
    bad = [sentence(draw, words, unknown=unknown) for words, unknown in ((3, False), (35, False), (9, True)) * 100]
    bad += [token_ids("1877", *["the"] * 9)] * 50
    pieces = [sentence(draw, 12, pieces=True) for _ in range(300)]
    split = held_out(tmp_path, [*pieces, *bad, *good])
    results = held_out_completions(model, split, 40, seed=3)
    assert results == held_out_completions(model, split, 40, seed=3)
    assert results[:5] != held_out_completions(model, split, 5, seed=4)
    texts = {TOKENIZER.decode(ids) for ids in good}
    for completion in results:
        assert completion.text.count("[MASK]") == 1 and completion.answer in RARE
        assert completion.text.replace("[MASK]", completion.answer) in texts
        ((guesses,),) = fill_mask(model, [completion.text], top=5)
        assert [token for token, _ in completion.guesses] == [guess.token for guess in guesses]
        np.testing.assert_allclose([p for _, p in completion.guesses], [g.probability for g in guesses], rtol=1e-5)
    assert len({completion.answer for completion in results}) == len(results) == 40


def test_sentences_with_pieces_come_last(model, tmp_path):
    draw = np.random.default_rng(1)
    split = held_out(tmp_path, [sentence(draw, 12, pieces=True) for _ in range(300)])
    results = held_out_completions(model, split, 4, seed=0)
    # The fourth word goes on as "...ing" and is never the one hidden: a [MASK] never has a piece after it.
    assert len(results) == 4 and all("[MASK]ing" not in c.text and "ing" in c.text for c in results)


def test_small_split_gives_fewer_completions(model, tmp_path):
    assert held_out_completions(model, held_out(tmp_path, [token_ids(*["the"] * 10)] * 9), 5, seed=0) == ()
    empty = TokenStore.open(write_store(tmp_path / "empty", {"train": [[[7]]]}, TOKENIZER)).split("held_out")
    assert held_out_completions(model, empty, 5, seed=0) == ()


def test_rows_of_the_trained_length_hold_the_sentences(model, tmp_path):
    """A row of 16 tokens holds a sentence of 14 between [CLS] and [SEP], and no longer one."""
    short = replace(model, config=replace(model.config, data=DataConfig(sequence_length=16)))
    draw = np.random.default_rng(1)
    sentences = [sentence(draw, words) for words in (13, 14) * 200]
    assert {len(ids) for ids in sentences} == {14, 15}
    split = held_out(tmp_path, sentences)

    def lengths(of):
        results = held_out_completions(of, split, 20, seed=0)
        return [len(TOKENIZER.encode([c.text.replace("[MASK]", "the")])[0]) for c in results]

    assert lengths(short) == [14] * 20
    assert set(lengths(model)) == {14, 15}


@pytest.mark.parametrize(
    ("text", "closed"),
    [
        ("it ' s site - local - - and ( so on )", "it's site-local -- and (so on)"),
        ('" i wish [MASK] father would come home, " he said.', '"i wish [MASK] father would come home," he said.'),
        ("if i can find them. '", "if i can find them.'"),
        ("' they ' [MASK] come home - later. '", "' they ' [MASK] come home-later. '"),
    ],
)
def test_spaces_around_punctuation_are_closed_up(text, closed):
    assert close_up(text) == closed
