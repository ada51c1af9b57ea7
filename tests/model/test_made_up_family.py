"""A member of the family is one object and a line in the registry: a new one trains, is exported and comes back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from generated_corpus import write_corpus
from tiny_runs import write_recipe

# Not among the members: Baidu's ERNIE, which transformers has, so that its class can tell whether the names are right.
FAMILY = """
import sys
from dataclasses import replace

from bertjax.config import ModelConfig
from bertjax.model.families.bert import BERT, layers
from bertjax.model.families.family import Family
from bertjax.model.families.family import Class, tables
from bertjax.model.families.family import dense
from bertjax.model.families.registry import FAMILIES

of_bert = BERT.huggingface
encoder = (*tables("ernie.embeddings"), *layers("ernie."))
pooler = dense("pooler/dense", "ernie.pooler.dense")
heads = tuple(tensor for tensor in of_bert.pretraining.tensors if tensor.theirs.startswith("cls."))
FAMILIES["ernie"] = Family(
    name="ernie",
    presets={"base": ModelConfig(family="ernie", vocab_size=18_000, hidden_act="relu", max_position_embeddings=513)},
    heads=BERT.heads,
    huggingface=replace(
        of_bert,
        model_type="ernie",
        prefix="ernie.",
        beginning="Ernie",
        encoder=encoder,
        pooler=pooler,
        pretraining=Class("ErnieForPreTraining", (*encoder, *pooler, *heads), of_bert.pretraining.outputs),
        partial=(),
        tied={name: of.replace("bert.", "ernie.") for name, of in of_bert.tied.items()},
        defaults={"hidden_act": "relu"},
    ),
)

from bertjax.__main__ import main

sys.exit(main(sys.argv[1:]))
"""


def test_a_made_up_family_trains_is_exported_and_comes_back(tmp_path: Path) -> None:
    program = tmp_path / "ernie.py"
    program.write_text(FAMILY)
    corpus, run, exported = write_corpus(tmp_path / "corpus.txt", 200), tmp_path / "run", tmp_path / "out"

    def bertjax(*arguments: str) -> str:
        command = [sys.executable, str(program), *arguments]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    few = ("--training.steps", "12", "--training.eval-every", "12", "--optimizer.warmup-steps", "2")
    ernie = ("--model.family", "ernie", "--model.hidden-act", "relu", "--model.layer-norm-eps", "1e-5")
    data = ("--data.sources", f"lines:{corpus}", "--data.root", str(tmp_path / "data"), "--run-dir", str(run))
    bertjax("pretrain", str(write_recipe(tmp_path)), *few, *ernie, *data)
    config = json.loads((run / "huggingface" / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("ernie", ["ErnieForPreTraining"])
    told = bertjax("export", str(run), "--to", "huggingface", "--output", str(exported))
    assert "ErnieForPreTraining" in (exported / "config.json").read_text()
    again = bertjax("import", f"hf:{exported}", "--output", str(tmp_path / "again"))
    assert "ernie" in (tmp_path / "again" / "config.json").read_text()
    back = bertjax("export", str(tmp_path / "again"), "--to", "huggingface", "--output", str(tmp_path / "back"))
    assert (tmp_path / "back" / "model.safetensors").read_bytes() == (exported / "model.safetensors").read_bytes()
    pytest.importorskip("transformers")
    pytest.importorskip("torch")
    for printed in (told, again, back):
        assert "hidden states" in printed and "MLM logits" in printed and "NSP logits" in printed, printed
