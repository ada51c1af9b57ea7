"""`evaluate TEXT`: pseudo-log-likelihoods equal those of transformers; minimal pairs judged by them."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from exported_models import trained_model
from small_models import random_sentences, small_model

from bertjax.__main__ import main
from bertjax.convert.huggingface.exporter import export_huggingface
from bertjax.interpret import masked_tokens
from bertjax.interpret.pseudo_likelihood import (
    VARIANTS,
    Judgement,
    MinimalPair,
    PairSet,
    judge_pairs,
    perplexity,
    pseudo_likelihoods,
    read_pair_sets,
)
from bertjax.loaded import LoadedModel
from bertjax.model.network import bind
from bertjax.run.run_directory import TrainedModel

# Words of one piece, of two and of four, signs, and a repeated word.
TEXTS = [
    "The museum opened.",
    "strawberries strawberries, fresh straw",
    "bank",
    "i paid the money into a sweet strawberries bank & went",
]


@pytest.fixture(scope="module")
def exported(model: TrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "hf"
    export_huggingface(model, folder)
    return folder


def theirs(folder: Path, text: str, variant: str) -> tuple[float, int]:
    """The score by transformers and torch, one row at a time, without padding, with their word boundaries."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    network = transformers.BertForMaskedLM.from_pretrained(folder).eval()
    encoding = tokenizer(text, return_tensors="pt")
    ids, words = encoding.input_ids[0], encoding.word_ids(0)
    total = 0.0
    for place in range(1, len(ids) - 1):
        masked = ids.clone()
        masked[place] = tokenizer.mask_token_id
        for other in range(1, len(ids) - 1):
            together = words[other] == words[place] and variant != "original"
            if together and (other > place or variant == "whole-word"):
                masked[other] = tokenizer.mask_token_id
        with torch.no_grad():
            logits = network(input_ids=masked[None]).logits[0, place].double()
        total += float(torch.log_softmax(logits, -1)[ids[place]])
    return total, len(ids) - 2


@pytest.mark.parametrize("variant", VARIANTS)
def test_scores_equal_transformers(model: TrainedModel, exported: Path, variant: str) -> None:
    actual = pseudo_likelihoods(model, TEXTS, variant)
    expected = [theirs(exported, text, variant) for text in TEXTS]
    assert [score.tokens for score in actual] == [tokens for _, tokens in expected]
    np.testing.assert_allclose([one.log_probability for one in actual], [total for total, _ in expected], rtol=1e-5)


def test_variants_differ_only_for_split_words(model: TrainedModel) -> None:
    actual = {variant: pseudo_likelihoods(model, ["the bank", "strawberries"], variant) for variant in VARIANTS}
    assert len({scores[0] for scores in actual.values()}) == 1
    assert len({scores[1] for scores in actual.values()}) == 3


def test_score_does_not_depend_on_batching(model: TrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [*random_sentences(7), "strawberries " * 20]
    together = pseudo_likelihoods(model, texts)
    monkeypatch.setattr(masked_tokens, "_TOKENS", 48)
    alone = [pseudo_likelihoods(model, [text])[0] for text in texts]
    assert [one.tokens for one in alone] == [one.tokens for one in together]
    np.testing.assert_allclose([one[0] for one in together], [one[0] for one in alone], rtol=1e-5)
    total = sum(one.log_probability for one in alone)
    assert perplexity(alone) == pytest.approx(math.exp(-total / sum(one.tokens for one in alone)))


@pytest.mark.long  # the suite has such texts in tests/embed/test_predict.py
def test_block_sparse_text_is_scored_alone(tmp_path: Path) -> None:
    blocks = {"attention_block": 4, "random_blocks": 1}  # full attention in rows of up to 28 tokens
    full, sparse = small_model(tmp_path), small_model(tmp_path, **blocks)
    texts = ["the bank " * 12, "the bank " * 14 + "opened ."]
    actual = pseudo_likelihoods(sparse, texts)
    assert [one.tokens for one in actual] == [24, 30]
    assert actual[0].log_probability == pytest.approx(pseudo_likelihoods(full, texts)[0].log_probability, rel=1e-6)
    network, tokenizer = bind(sparse.graphdef, sparse.params), sparse.tokenizer
    ids = [tokenizer.cls_id, *tokenizer.encode([texts[1]])[0], tokenizer.sep_id]
    rows = np.pad(np.tile(ids, (30, 1)), ((0, 0), (0, 4)))  # the 36 tokens of nine blocks
    positions = np.arange(1, 31)[:, None]
    np.put_along_axis(rows, positions, tokenizer.mask_id, 1)
    real = np.broadcast_to(np.arange(36) < 32, rows.shape).astype(np.int32)
    logits = network.mlm_logits(network.decode(rows, np.zeros_like(rows), real, packed=False), positions)[:, 0]
    plain = jax.nn.log_softmax(logits)[np.arange(30), np.array(ids)[1:-1]].sum()
    assert actual[1].log_probability == pytest.approx(float(plain), rel=1e-5)


def test_unscorable_texts_are_refused(model: TrainedModel) -> None:
    with pytest.raises(ValueError, match=r"text 2, '   ', has no tokens and so no score; leave it out"):
        pseudo_likelihoods(model, ["bank", "   "])
    with pytest.raises(ValueError, match=r"text 1, 'bank bank .*\.\.\.', has 102 tokens.* rows of 64 .*; shorten it"):
        pseudo_likelihoods(model, ["bank " * 100])
    with pytest.raises(ValueError, match="variant='l2r' is unknown; choose from original, word-l2r, whole-word"):
        pseudo_likelihoods(model, ["bank"], "l2r")
    with pytest.raises(ValueError, match="it has no MLM head and cannot score texts"):
        LoadedModel(model, ["MLM head"]).score(["bank"])


def test_pairs_are_judged_by_the_higher_score(model: TrainedModel) -> None:
    sentences = random_sentences(12, seed=3)
    scores = [one.log_probability for one in pseudo_likelihoods(model, sentences)]
    pairs = tuple(MinimalPair(*sentences[n : n + 2]) for n in range(0, 12, 2))
    tie = MinimalPair("the bank", "The bank")
    sets = [PairSet("first", pairs[:4]), PairSet("second", (*pairs[4:], tie))]
    right = [scores[n] > scores[n + 1] for n in range(0, 12, 2)]
    assert 0 < sum(right) < 6
    assert judge_pairs(model, sets) == [Judgement("first", 4, sum(right[:4])), Judgement("second", 3, sum(right[4:]))]
    assert judge_pairs(model, []) == []
    assert Judgement("x", 400, 300).accuracy == 0.75
    assert Judgement("x", 400, 300).standard_error == pytest.approx(math.sqrt(0.75 * 0.25 / 400))


def test_generator_is_used_if_there_is_one(tmp_path: Path) -> None:
    electra = {"family": "electra", "pooler": "", "generator_width": 0.5, "embedding_size": 16}
    both = small_model(tmp_path, hidden_act="gelu", **electra)
    assert both.generator is not None
    assert pseudo_likelihoods(both, TEXTS) == pseudo_likelihoods(both.generator, TEXTS)


def test_model_with_global_tokens_scores_texts(tmp_path: Path) -> None:
    fields = {"family": "longformer", "type_vocab_size": 1, "window": 16, "global_every": 0}
    fields |= {"global_tokens": "marked", "global_projections": True}
    model = trained_model(tmp_path, **fields)
    (score,) = pseudo_likelihoods(model, ["The museum opened"])
    assert score.tokens == 3 and score.log_probability < 0


def write_pairs(path: Path, pairs: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    return path


def test_blimp_files_are_read(tmp_path: Path) -> None:
    row = {"sentence_good": "They ran.", "sentence_bad": "They runs.", "field": "morphology", "UID": "agreement_1",
           "simple_LM_method": True, "pairID": "0"}  # fmt: skip
    write_pairs(tmp_path / "agreement_1.jsonl", [row, row | {"sentence_bad": "Them ran."}])
    (tmp_path / "binding.tsv").write_text("id\tsentence_bad\tsentence_good\n0\tHe saw hisself.\tHe saw himself.\n")
    (tmp_path / "notes.md").write_text("no pairs")
    first, second = read_pair_sets([tmp_path])
    assert first == PairSet("agreement_1", (("They ran.", "They runs."), ("They ran.", "Them ran.")))
    assert second == PairSet("binding", (MinimalPair("He saw himself.", "He saw hisself."),))
    wrong = write_pairs(tmp_path / "wrong.jsonl", [row, row | {"sentence_bad": None}])
    with pytest.raises(ValueError, match=r"wrong.jsonl:2: sentence_bad is None; it must be a sentence"):
        read_pair_sets([wrong])
    write_pairs(wrong, [{"good": "a", "bad": "b"}])
    with pytest.raises(ValueError, match=r"wrong.jsonl:1: no column 'sentence_good'; there are 'good', 'bad'"):
        read_pair_sets([wrong])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty: no files of minimal pairs"):
        read_pair_sets([tmp_path / "empty"])
    (tmp_path / "other").mkdir()
    alike = write_pairs(tmp_path / "other" / "binding.jsonl", [{"not": "read"}])
    with pytest.raises(ValueError, match=r"other/binding\.jsonl: both are minimal pairs named 'binding'"):
        read_pair_sets([tmp_path / "binding.tsv", alike])


def test_verb_prints_scores_and_accuracies(
    exported: Path, model: TrainedModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = f"hf:{exported}", tmp_path / "scores.jsonl"
    assert main(["evaluate", source, *TEXTS, "--variant", "word-l2r", "--output", str(output)]) == 0
    printed = capsys.readouterr().out
    expected = pseudo_likelihoods(model, TEXTS, "word-l2r")
    for line, score, text in zip(printed.splitlines(), expected, TEXTS, strict=False):
        assert line == (
            f"{score.log_probability:10.3f}  {score.tokens:4} tokens  {score.per_token:8.3f} per token  {text}"
        )
    assert f"pseudo-perplexity {perplexity(expected):.3f} over" in printed
    records = [json.loads(line) for line in output.read_text().splitlines()]
    assert [record["text"] for record in records] == TEXTS
    assert main(["evaluate", source, "bank", "--output", str(output)]) == 1
    assert "add --overwrite to replace it" in capsys.readouterr().err

    pairs = [{"sentence_good": "the bank went", "sentence_bad": "bank the went"}] * 3
    write_pairs(tmp_path / "a.jsonl", pairs)
    write_pairs(tmp_path / "b.jsonl", [{"sentence_good": one["sentence_bad"], "sentence_bad": one["sentence_good"]}
                                       for one in pairs[:1]])  # fmt: skip
    assert main(["evaluate", source, "--pairs", str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]) == 0
    lines = capsys.readouterr().out.splitlines()
    good, bad = pseudo_likelihoods(model, ["the bank went", "bank the went"])
    right = (3, 0) if good > bad else (0, 1)
    assert lines[0].split() == ["a", f"{right[0] / 3:.1%}", "±", "0.0%", "of", "3", "pairs"]
    assert lines[1].split() == ["b", f"{right[1] / 1:.1%}", "±", "0.0%", "of", "1", "pairs"]
    assert lines[2].split()[:2] == ["all", f"{sum(right) / 4:.1%}"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["RUN", "a", "--pairs", "x.jsonl"], "TEXT and --pairs given"),
        (["RUN", "a", "--field", "text"], "--column text without --file"),
        (["RUN", "a", "--output", "x.csv"], "--output x.csv: unsupported format '.csv'; use .jsonl"),
        (["RUN", "--pairs", "nowhere.jsonl"], "nowhere.jsonl: no such file"),
        (["RUN", "--file", os.devnull], f"--file {os.devnull}: it has no text; give a file with some"),
    ],
)
def test_verb_refuses_conflicting_options(
    exported: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", *(f"hf:{exported}" if word == "RUN" else word for word in words)]) == 1
    assert message in capsys.readouterr().err


def test_replaced_characters_are_reported(exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_bytes(b"the bank \xff\n" + b"the bank went\n" * 12)
    assert main(["evaluate", f"hf:{exported}", "--file", str(texts)]) == 0
    assert capsys.readouterr().out.startswith("1 characters were not UTF-8 and became U+FFFD\n")


def test_scores_do_not_depend_on_execution_options(model: TrainedModel) -> None:
    execution = replace(model.config.execution, dtype="bfloat16")
    in_bfloat16 = replace(model, config=replace(model.config, execution=execution))
    assert pseudo_likelihoods(in_bfloat16, TEXTS) == pseudo_likelihoods(model, TEXTS)
