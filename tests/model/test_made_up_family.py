"""A new family is one object and its entry in the registry: it trains, is exported, and is imported again."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from generated_corpus import write_corpus
from several_processes import Group
from tiny_runs import write_recipe

pytestmark = pytest.mark.usefixtures("one_device")

# The new family is data2vec's text encoder. transformers has a class for it, which checks the names of tensors. The
# program adds it to the registry of its own process, and runs the command lines in a file.
PROGRAM = """
import json
import sys
from dataclasses import replace

from bertjax.families.family import Class
from bertjax.families.registry import FAMILIES
from bertjax.families.roberta import ROBERTA

NAME, OURS, THEIRS = "data2vec-text", "data2vec_text.", "roberta."
known = ROBERTA.huggingface
rename = lambda tensors: tuple(replace(one, theirs=one.theirs.replace(THEIRS, OURS)) for one in tensors)
FAMILIES[NAME] = replace(
    ROBERTA,
    name=NAME,
    title="",
    presets={"base": replace(ROBERTA.presets["base"], family=NAME)},
    huggingface=replace(
        known,
        model_type=NAME,
        prefix=OURS,
        beginning="Data2VecText",
        encoder=rename(known.encoder),
        pooler=rename(known.pooler),
        pretraining=Class("Data2VecTextForMaskedLM", rename(known.pretraining.tensors), known.pretraining.outputs),
        tied={name: of.replace(THEIRS, OURS) for name, of in known.tied.items()},
    ),
)

from bertjax.__main__ import main

for line in open(sys.argv[1]):
    print("ended with", main(json.loads(line)), flush=True)
"""


@pytest.mark.long  # the suite tests a family from a plug-in, in tests/test_plugins.py
def test_made_up_family_trains_and_round_trips(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    corpus, run = write_corpus(tmp_path / "corpus.txt", 200), tmp_path / "run"
    few = ("--training.steps", "12", "--training.eval-every", "12", "--optimizer.warmup-steps", "2")
    family = ("--model.family", "data2vec-text", "--model.type-vocab-size", "1", "--model.pooler", "none")
    family += ("--model.layer-norm-eps", "1e-5", "--data.tokenizer", "byte_bpe", "--training.objectives", "mlm")
    family += ("--data.rows", "doc_sentences")
    data = ("--data.sources", f"lines:{corpus}", "--data.root", str(tmp_path / "data"), "--run-dir", str(run))
    lines = [
        ["pretrain", str(write_recipe(tmp_path)), *few, *family, *data],
        ["export", "run", "--to", "huggingface", "--output", "out"],
        ["import", "hf:out", "--output", "again"],
        ["export", "again", "--to", "huggingface", "--output", "back"],
    ]
    (tmp_path / "lines").write_text("\n".join(map(json.dumps, lines)))
    command, log = [sys.executable, str(tmp_path / "program.py"), "lines"], tmp_path / "log"
    with Group(command, 1, log) as group:
        group.finish()
    outputs = group.logs[0].split("ended with 0\n")
    assert len(outputs) == len(lines) + 1, group.logs[0]
    for folder in (run / "huggingface", tmp_path / "out"):
        config = json.loads((folder / "config.json").read_text())
        assert (config["model_type"], config["architectures"]) == ("data2vec-text", ["Data2VecTextForMaskedLM"])
    assert json.loads((tmp_path / "again" / "config.json").read_text())["model"]["family"] == "data2vec-text"
    weights = [(tmp_path / folder / "model.safetensors").read_bytes() for folder in ("out", "back")]
    assert weights[0] == weights[1]
    pytest.importorskip("transformers")
    pytest.importorskip("torch")
    for printed in outputs[1:4]:
        assert "hidden states" in printed and "MLM logits" in printed, printed
