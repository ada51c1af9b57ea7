"""Each member of the family trains from scratch, resumes to the same bits, packs, and exports as its own class."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from generated_corpus import write_corpus
from tiny_runs import command, digests, finish, write_recipe

from bertjax.convert.compare import compare_with_transformers
from bertjax.training.run_directory import load_run
from bertjax.training.telemetry import curves, read_metrics

STEPS = 160
OF_ROBERTA = (
    *("--model.pooler", "none", "--model.type-vocab-size", "1", "--model.layer-norm-eps", "1e-5"),
    *("--training.objectives", "mlm", "--data.rows", "doc_sentences", "--data.packing", "pairs"),
    *("--data.mask-count", "random_round", "--data.random-ids", "ordinary", "--data.max-predictions", "6"),
    *("--optimizer.name", "adamw", "--optimizer.schedule", "linear_after_warmup", "--optimizer.decay-all", "True"),
)
MEMBERS = {  # arguments, the class of the export
    "roberta": (("--data.tokenizer", "byte_bpe", *OF_ROBERTA), "RobertaForMaskedLM"),
    "xlm-roberta": (("--data.tokenizer", "unigram", *OF_ROBERTA), "XLMRobertaForMaskedLM"),
    "camembert": (("--data.tokenizer", "unigram", "--data.masking", "words", *OF_ROBERTA), "CamembertForMaskedLM"),
    "spanbert": (
        (
            *("--model.pooler", "none", "--training.objectives", "mlm", "sbo", "--data.rows", "doc_sentences"),
            *("--data.packing", "pairs", "--data.masking", "spans", "--data.mask-count", "ceil_of_text"),
            *("--data.replace-by", "span", "--data.random-ids", "corpus", "--optimizer.decay-all", "True"),
            *("--optimizer.learning-rate", "4e-3"),
        ),
        "BertForMaskedLM",
    ),
    "electra": (
        (
            *("--model.pooler", "gelu", "--model.generator-width", "1.0"),
            *("--training.objectives", "mlm", "rtd", "--data.packing", "pairs", "--data.short-sequence-probability"),
            *("0.05", "--data.keep-share", "0.15", "--data.random-share", "0"),
        ),
        "ElectraForPreTraining",
    ),
    "albert": (
        (
            *("--model.embedding-size", "16", "--model.layer-groups", "1", "--model.hidden-act", "gelu_tanh"),
            *("--data.tokenizer", "unigram", "--data.masking", "ngrams", "--data.packing", "pairs"),
            *("--data.ngram-shares", "0.5454545454545454", "0.2727272727272727", "0.1818181818181818"),
            *("--training.objectives", "mlm", "sop", "--optimizer.learning-rate", "4e-3"),
        ),
        "AlbertForPreTraining",
    ),
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus") / "corpus.txt", 700)


@pytest.mark.parametrize("family", MEMBERS)
def test_a_member_trains_resumes_and_is_exported(family: str, corpus: Path, tmp_path: Path) -> None:
    arguments, architecture = MEMBERS[family]
    recipe, log, run = write_recipe(tmp_path), tmp_path / "log", tmp_path / "run"
    fixed = ("--model.family", family, "--training.eval-every", "80", "--training.checkpoint-every", "40", *arguments)
    finish(command(recipe, corpus, run, *fixed, "--training.steps", str(STEPS)), log)
    found = curves(read_metrics(run / "metrics.jsonl"))
    assert found["eval/mlm_loss"][1][-1] < found["baseline/unigram_loss"][1][-1]
    # Stopped half-way by its number of steps and gone on, it has the bits of the run that was not.
    half, ended = tmp_path / "half", str(STEPS // 2)
    kept = ("--training.keep-every", ended)
    finish(command(recipe, corpus, half, *fixed, *kept, "--training.steps", str(STEPS)), log)
    for step in (half / "checkpoints").iterdir():
        if step.name != ended:
            shutil.rmtree(step)
    finish(command(recipe, corpus, half, *fixed, *kept, "--training.steps", str(STEPS)), log)
    assert "resuming" in log.read_text() and digests(half) == digests(run)
    assert json.loads((run / "huggingface" / "config.json").read_text())["architectures"] == [architecture]
    model = load_run(run)
    written = {"huggingface": model} | ({"huggingface-generator": model.generator} if model.generator else {})
    for folder, one in written.items():
        difference = compare_with_transformers(one, run / folder)
        if difference is not None:
            assert difference.largest < 1e-5
