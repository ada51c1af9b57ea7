"""`fill-mask --correct`: log ratios, kinds of tokens, windows, offsets in the text, figures."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exported_models import trained_model
from flax import nnx
from small_models import small_model

from bertjax.__main__ import main
from bertjax.convert.sources import write_run
from bertjax.interpret.correction import Examined, Proposal, Word, examine
from bertjax.interpret.correction_figures import ErrorPair, judge, read_error_pairs
from bertjax.interpret.token_rows import TokenRow
from bertjax.model.network import Params, bind
from bertjax.run.run_directory import TrainedModel
from bertjax.tokenization.byte_level import ByteLevelBPE
from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.training import count_for, train_tokenizer

# A ratio is the difference of two logarithms of about -5, each rounded to 2.4e-7; the bound is four times the 3.6e-7
# measured with another instruction set. It is absolute, because ratios may be near 0.
ROUNDING = 2e-6
TEXT = "The Museum opened, in 1877 strawberries & INTEREST; drawings."
EVERY_WORD = -1e9  # a threshold


def log_probabilities(model: TrainedModel, ids: list[int]) -> np.ndarray:
    """Log probabilities of the plain network, without padding: float [tokens, vocabulary]."""
    logits = plain_logits(model.graphdef, model.params, jnp.array([ids], jnp.int32))
    known = logits[0, :, : model.tokenizer.vocab_size]
    return np.asarray(jax.nn.log_softmax(known.astype(jnp.float32)), np.float64)


@functools.partial(jax.jit, static_argnums=0)
def plain_logits(graphdef: nnx.GraphDef, params: Params, row: jax.Array) -> jax.Array:
    net = bind(graphdef, params)
    hidden = net.encoder(row, jnp.zeros_like(row), jnp.ones_like(row), packed=False)
    return net.mlm_logits(hidden, jnp.arange(row.shape[1])[None])


def encode(model: TrainedModel, text: str) -> list[int]:
    tokenizer = model.tokenizer
    return [tokenizer.cls_id, *tokenizer.encode([text])[0].tolist(), tokenizer.sep_id]


def expected(model: TrainedModel, ids: list[int], place: int, masked: bool) -> list[tuple[str, float]]:
    """Every alphabetic word with its log ratio, the likeliest first."""
    own, masked_ids = ids[place], list(ids)
    if masked:
        masked_ids[place] = model.tokenizer.mask_id
    row = log_probabilities(model, masked_ids)[place]
    words = {token: row[n] - row[own] for n, token in enumerate(model.tokenizer.tokens) if token.isalpha() and n != own}
    return sorted(words.items(), key=lambda item: -item[1])


@pytest.mark.parametrize("masked", [False, True])
def test_log_ratios_equal_the_plain_model(model: TrainedModel, masked: bool) -> None:
    (result,) = examine(model, [TEXT], masked=masked, top=4)
    ids = encode(model, TEXT)
    assert [word.text for word in result.words] == [
        "The",
        "Museum",
        "opened",
        ",",
        "in",
        "&",
        "INTEREST",
        "drawings",
        ".",
    ]
    assert all(TEXT[word.start : word.end] == word.text for word in result.words)
    assert result.skipped == ("1877", "strawberries", ";")
    for word, place in ((result.words[1], 2), (result.words[7], len(ids) - 3)):
        best = expected(model, ids, place, masked)[:4]
        assert [one.text.lower() for one in word.proposals] == [token for token, _ in best]
        np.testing.assert_allclose(
            [one.log_ratio for one in word.proposals], [ratio for _, ratio in best], rtol=1e-4, atol=ROUNDING
        )


def test_short_text_is_examined_with_full_attention(model: TrainedModel, tmp_path: Path) -> None:
    sparse = small_model(tmp_path, attention_block=4, random_blocks=1)  # full attention in rows of up to 28 tokens
    (result,), (best,) = (examine(one, ["the bank opened " * 8], top=3) for one in (sparse, model))
    assert len(result.words) == 24
    for one, other in zip(result.words, best.words, strict=True):
        assert [proposal.text for proposal in one.proposals] == [proposal.text for proposal in other.proposals]
        ratios = ([proposal.log_ratio for proposal in word.proposals] for word in (one, other))
        np.testing.assert_allclose(*ratios, rtol=1e-5, atol=ROUNDING)


def test_masked_rows_are_made_lazily(model: TrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each window has one row in memory, however many words are hidden in turn."""
    rows: list[TokenRow] = []
    of = TokenRow.of
    monkeypatch.setattr(TokenRow, "of", lambda *given: rows.append(of(*given)) or rows[-1])
    result = examine(model, [TEXT, TEXT], masked=True)
    assert len(rows) == 2 < sum(len(one.words) for one in result)


def test_proposals_match_kind_and_case_of_the_word(model: TrainedModel) -> None:
    (result,) = examine(model, [TEXT], top=model.tokenizer.vocab_size)
    by_word = {word.text: {one.text for one in word.proposals} for word in result.words}
    assert by_word[","] == {"&", "<", ">", "/", "."}
    assert {"Bank", "The"} & by_word["Museum"] == {"Bank", "The"} and "Museum" not in by_word["Museum"]
    assert "BANK" in by_word["INTEREST"] and "bank" in by_word["in"]
    letters = {token for token in model.tokenizer.tokens if token.isalpha()}
    assert by_word["drawings"] == letters - {"drawings"}


def test_correction_uses_the_first_proposals() -> None:
    words = (
        Word(0, 4, "Whet", (Proposal("What", 9.0), Proposal("When", 8.0))),
        Word(5, 7, "is", (Proposal("was", 1.0),)),
        Word(8, 11, "tat", (Proposal("that", 7.0),)),
    )
    examined = Examined("Whet is tat?", words, ())
    assert examined.correction(6.5) == ("What is that?", (words[0], words[2]))
    assert examined.correction(7.0) == ("What is tat?", (words[0],))
    assert examined.correction(9.0) == ("Whet is tat?", ())


def test_long_texts_are_read_in_windows(model: TrainedModel) -> None:
    draw = np.random.default_rng(0)
    words = [token for token in model.tokenizer.tokens if token.isalpha()]
    text = " ".join(draw.choice(words, 100))
    short = replace(model, config=replace(model.config, data=replace(model.config.data, sequence_length=22)))
    (result,) = examine(short, [text], top=1)
    assert [word.text for word in result.words] == text.split()
    ids = encode(model, text)[1:-1]
    cls, sep = model.tokenizer.cls_id, model.tokenizer.sep_id
    # Windows of 20 tokens begin every 10; the last ends with the text. A word is 5 tokens or more from both edges.
    for place, start in ((3, 0), (57, 50), (99, 80)):
        window = [cls, *ids[start : start + 20], sep]
        best = expected(model, window, place - start + 1, masked=False)[0]
        assert result.words[place].proposals[0].text == best[0]
        np.testing.assert_allclose(result.words[place].proposals[0].log_ratio, best[1], rtol=1e-4, atol=ROUNDING)


def test_chinese_characters_are_words(tmp_path: Path) -> None:
    (result,) = examine(trained_model(tmp_path), ["北京museum是。"], top=9)
    assert [(word.start, word.end, word.text) for word in result.words] == [
        (0, 1, "北"), (1, 2, "京"), (2, 8, "museum"), (8, 9, "是"), (9, 10, "。"),
    ]  # fmt: skip
    assert {one.text for one in result.words[0].proposals} == {"京", "是"}


def test_byte_level_words_exclude_their_space(tmp_path: Path) -> None:
    letters = {chr(number): number - 33 for number in range(33, 127)}
    tokens = {**letters, "Ġ": 94, "Ġc": 95, "Ġca": 96, "Ġcat": 97, "Ġd": 98, "Ġdo": 99, "Ġdog": 100}
    tokens |= {name: 101 + n for n, name in enumerate(("<s>", "<pad>", "</s>", "<unk>", "<mask>"))}
    merges = "#version: 0.2\nĠ c\nĠc a\nĠca t\nĠ d\nĠd o\nĠdo g\n"
    tokenizer = ByteLevelBPE(json.dumps(tokens).encode(), merges.encode(), TextRules(False, False))
    (result,) = examine(trained_model(tmp_path, tokenizer), ["cat dog bird"], top=30)
    assert [(word.start, word.end, word.text) for word in result.words] == [(0, 3, "cat"), (4, 7, "dog")]
    assert {one.text for one in result.words[1].proposals} == {"c", "ca", "cat", "d", "do"}
    assert result.skipped == ("bird",)


def test_removed_accent_belongs_to_its_word(model: TrainedModel) -> None:
    (result,) = examine(model, ["the ba\u0301nk\u0301, opene\u0301d\u0301"], top=1)
    assert [word.text for word in result.words] == ["the", "ba\u0301nk\u0301", ",", "opene\u0301d\u0301"]
    assert "\u0301" not in result.correction(EVERY_WORD).text


def test_character_of_several_tokens_is_one_word(tmp_path: Path) -> None:
    texts = ["1⁄2 of the bank", "the … river ...", "½ the bank of 1 2 ⁄ . river"]
    rules = TextRules(False, False)
    tokenizer = train_tokenizer("unigram", count_for("unigram", texts * 20, rules), 40, rules)
    (result,) = examine(trained_model(tmp_path, tokenizer), ["the ½ … bank"], top=2)
    assert result.skipped == ("the", "½", "…", "bank") and not result.words


def test_examine_refuses_invalid_texts_and_models(model: TrainedModel) -> None:
    assert examine(model, ["", " \t"]) == [Examined("", (), ()), Examined(" \t", (), ())]
    with pytest.raises(ValueError, match=r"text 8, 'a \[MASK\]', contains the special token \[MASK\]; leave it out"):
        examine(model, ["the", "a [MASK]"], number_from=7)
    with pytest.raises(ValueError, match="text 1 has a lone surrogate"):
        examine(model, ["a \ud800"])
    with pytest.raises(ValueError, match="top=0: give 1 to"):
        examine(model, ["the"], top=0)
    without = {name: part for name, part in model.params.items() if name != "mlm_head"}
    with pytest.raises(ValueError, match="it has no MLM head"):
        examine(replace(model, params=without), ["the"])


def examined(text: str, *proposals: tuple[str, str, float]) -> Examined:
    """A text with one proposal for some words."""
    words = [Word(text.index(w), text.index(w) + len(w), w, (Proposal(p, ratio),)) for w, p, ratio in proposals]
    return Examined(text, tuple(words), ())


def test_figures_count_detected_and_corrected_words() -> None:
    pairs = [
        ErrorPair("a", "the cat sad down .", "the cat sat down ."),
        ErrorPair("b", "a dig barks", "A dog barks"),
        ErrorPair("c", "one word", "two more words"),
        ErrorPair("d", "all is right", "all is right"),
        ErrorPair("e", "unkown things", "unknown things"),
    ]
    result = [
        examined(pairs[0].source, ("cat", "dog", 4.0), ("sad", "sat", 9.0)),
        examined(pairs[1].source, ("dig", "cat", 8.0), ("barks", "runs", 1.0)),
        examined(pairs[2].source, ("one", "two", 99.0)),
        examined(pairs[3].source, ("is", "was", 5.0)),
        examined(pairs[4].source, ("things", "thing", -3.0)),
    ]
    judged, left_out = judge(result, pairs, lowercase=True)
    assert left_out == ["c"] and (judged.words, judged.errors) == (5 + 3 + 3 + 2, 3)
    figures = judged.figures(4.5)
    assert (figures.replaced, figures.detected, figures.corrected) == (3, 2, 1)
    assert (figures.precision(2), figures.recall(2), figures.f1(2)) == (2 / 3, 2 / 3, 2 / 3)
    assert (figures.precision(1), figures.recall(1), figures.f1(1)) == (1 / 3, 1 / 3, 1 / 3)
    assert judged.best_threshold() == 8.5  # one word replaced and corrected: F1 2 / (1 + 3)
    assert judge(result, pairs, lowercase=False)[0].errors == 4  # `a` for `A`
    nothing = judge([result[3]], [pairs[3]], lowercase=True)[0]
    assert nothing.best_threshold() == 0 and nothing.figures(9.0).f1(0) == nothing.figures(9.0).precision(0) == 0


def test_sighan_layout(tmp_path: Path) -> None:
    path = tmp_path / "test.tsv"
    path.write_text(
        "A2-0003-1\t但是我不能去参加，因为我有一点事情阿！\t但是我不能去参加，因为我有一点事情啊！\n", encoding="utf-8"
    )
    (pair,) = read_error_pairs(path)
    assert pair.id == "A2-0003-1" and pair.source.index("阿") == pair.target.index("啊") == 17
    judged, left_out = judge([examined(pair.source, ("阿", "啊", 3.0))], [pair], lowercase=True)
    assert not left_out and (judged.words, judged.errors) == (19, 1)
    assert judged.figures(2.0).corrected == judged.figures(2.0).replaced == 1
    path.write_text("id\tsource\ttarget\n1\ta\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"test.tsv:2: 2 fields for 3 columns"):
        read_error_pairs(path)
    path.write_text("id\tsource\ttarget\n", encoding="utf-8")
    with pytest.raises(ValueError, match="no rows; give an id"):
        read_error_pairs(path)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    return write_run(replace(small_model(folder), step=0))


def test_verb_corrects_texts_and_files(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    correct = ["fill-mask", str(run), "--correct"]
    assert main([*correct, "the bank", "strawberries", "--threshold", "1e9", "--top", "2"]) == 0
    output = capsys.readouterr().out.splitlines()
    assert output[:3] == ["the bank", "    nothing to correct", "strawberries"] and "several tokens" in output[4]
    lines = tmp_path / "lines.txt"
    lines.write_text("The bank\n\ninto muddy water\n")
    out = tmp_path / "out.jsonl"
    command = [*correct, "--file", str(lines), "--output", str(out), "--threshold", str(EVERY_WORD)]
    assert main(command) == 0
    assert "4-8  bank  ->  " in capsys.readouterr().out
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [record["text"] for record in records] == ["The bank", "", "into muddy water"]
    (first, second) = records[0]["words"]
    assert first["proposals"][0]["text"][0].isupper() and len(second["proposals"]) == 3
    assert records[0]["corrected"] == f"{first['proposals'][0]['text']} {second['proposals'][0]['text']}"
    assert main(command) == 1
    assert "add --overwrite" in capsys.readouterr().err
    text = tmp_path / "out.txt"
    assert main([*command[:5], "--output", str(text), "--masked", "--threshold", "1e9"]) == 0
    assert text.read_text() == lines.read_text()
    records = tmp_path / "in.jsonl"
    records.write_text('{"body": "The bank"}\n')
    assert main([*correct, "--file", str(records), "--field", "body", "--threshold", "1e9"]) == 0
    assert capsys.readouterr().out.startswith("The bank\n")


def test_replaced_characters_are_reported(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_bytes(b"The bank \xff\n" + b"The bank\n" * 20)
    assert main(["fill-mask", str(run), "--correct", "--file", str(texts), "--threshold", "1e9"]) == 0
    assert "1 characters were not UTF-8 and became U+FFFD\n" in capsys.readouterr().out


def test_verb_measures_pairs(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{n}\tthe bank sat\tthe store sat\n" for n in range(4)))
    assert main(["fill-mask", str(run), "--correct", "--evaluate", str(pairs)]) == 0
    output = capsys.readouterr().out
    assert "chosen on pairs 1, 3, 5, ...; the figures" in output and "2 pairs, 6 words, 2 errors" in output
    assert main(["fill-mask", str(run), "--correct", "--evaluate", str(pairs), "--threshold", "1e9"]) == 0
    output = capsys.readouterr().out
    assert "4 pairs, 12 words, 4 errors, 0 words replaced" in output and "precision   0.0%" in output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "nothing given: give one of TEXT, --file FILE and --evaluate FILE.tsv"),
        (["a", "--file", "b"], "TEXT and --file given"),
        (["a", "--field", "f"], "--column f without --file"),
        (
            ["one\ntwo", "--output", "lines.txt"],
            "'one\\ntwo' has more than one line, and lines.txt has one text",
        ),
        (["a", "--output", "b.csv"], "unsupported format '.csv'; use .txt, .jsonl"),
        (["--evaluate", "b.tsv", "--output", "b.txt"], "--evaluate writes no texts"),
        (["--evaluate", "nowhere.tsv"], "nowhere.tsv: no such file"),
        (["--file", "nowhere.txt"], "nowhere.txt: no such file"),
        (["a [SEP]"], "contains the special token [SEP]"),
    ],
)
def test_verb_refuses_conflicting_options(
    run: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.parent)
    assert main(["fill-mask", str(run), "--correct", *words]) == 1
    assert message in capsys.readouterr().err
