"""A run that was fine-tuned is used: it predicts what it learned, and leaves for other frameworks as what it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from exported_models import compare_with_onnxruntime, export_onnx
from small_tasks import content_of, small_config, small_start, write_classes, write_questions, write_tags

import bertjax
from bertjax.convert.compare import compare_with_transformers
from bertjax.convert.huggingface.exporter import export_huggingface
from bertjax.finetune.kinds.tokens import Tag
from bertjax.finetune.run import finetune
from bertjax.loaded import LoadedModel
from bertjax.run.run_directory import load_run
from bertjax.runtime.processes import alone

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], Path]], LoadedModel]:
    folder = tmp_path_factory.mktemp("use")
    start = small_start(folder)

    def make(task: str, write: Callable[[Path], Path]) -> LoadedModel:
        config = small_config(task, start, write(folder / task / "data"), folder / task / "run", epochs=12)
        with alone() as processes:
            result = finetune(config, start, content_of(config, start), processes, lambda line: None)
        return bertjax.load(result.directory)

    return make


def exported(model: LoadedModel, folder: Path) -> dict:
    """The config of what goes to transformers, which computes the same there, as onnxruntime does."""
    pytest.importorskip("torch"), pytest.importorskip("transformers")
    run = load_run(model._model.directory)
    target = export_huggingface(run, folder / "huggingface")
    assert compare_with_transformers(run, target).largest < 2e-6
    if pytest.importorskip("onnx") and pytest.importorskip("onnxruntime"):
        assert compare_with_onnxruntime(run, export_onnx(run, folder / "onnx")).largest < 2e-6
    card = (target / "README.md").read_text()
    assert "was not evaluated" not in card and "| `" in card.partition("## Development sets")[2]
    return json.loads((target / "config.json").read_text())


def test_a_classifier(tuned: Callable, tmp_path: Path) -> None:
    model = tuned("classification", write_classes)
    assert model.labels == ("blue", "green", "red")
    assert [one.label for one in model.predict(["the red cat saw a dog .", "the blue fox saw a owl ."])] == [
        "red",
        "blue",
    ]
    assert exported(model, tmp_path)["id2label"] == {"0": "blue", "1": "green", "2": "red"}
    assert model.encode(["the red cat"]).shape == (1, 32)


def test_a_tagger(tuned: Callable, tmp_path: Path) -> None:
    model = tuned("pos", write_tags)
    found = model.predict("the green owl saw a cat .")
    assert all(isinstance(one, Tag) for one in found)
    assert [one.tag for one in found] == ["DET", "ADJ", "NOUN", "VERB", "DET", "NOUN", "PUNCT"]
    assert set(exported(model, tmp_path)["label2id"]) == set(model.labels)
    with pytest.raises(ValueError, match="has no pooler"):
        model.encode("the cat", pooling="pooler")


def test_a_reader(tuned: Callable, tmp_path: Path) -> None:
    model = tuned("squad", write_questions)
    found = model.predict(("what colour is the dog ?", "the green dog saw a cat near the owl ."))
    assert found.text == "green" and found.probability > 0.5
    assert "id2label" not in exported(model, tmp_path)
