"""Fine-tuned models export as transformers' classes with labels, compute the same there, and import again."""

from __future__ import annotations

import json
import logging
import re
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
import safetensors.numpy
from exported_models import compare_with_onnxruntime, export_onnx, fine_tuned_model, trained_model

import bertjax
from bertjax.__main__ import main
from bertjax.convert.adapt import adapt
from bertjax.convert.compare import compare_with_transformers
from bertjax.convert.foreign import ForeignModel
from bertjax.convert.huggingface.exporter import export_huggingface
from bertjax.convert.huggingface.importer import read_huggingface
from bertjax.convert.huggingface.names import architecture
from bertjax.convert.sentence_transformers.sentence_format import export_sentence_transformers
from bertjax.convert.sources import as_run, open_source, read_source, write_run
from bertjax.convert.tf1.tf1_format import export_tensorflow
from bertjax.interpret.fill_mask import fill_mask
from bertjax.run.run_directory import TrainedModel, load_run
from bertjax.run.telemetry import METRICS_FILE

pytestmark = pytest.mark.run

TASKS = {
    "sequence": ("negative", "neutral", "positive"),
    "regression": (),
    "relevance": (),
    "choice": ("0", "1", "2", "3"),
    "tokens": ("O", "B-PER", "I-PER"),
    "token_regression": (),
    "span": (),
    "vector": (),
}


@pytest.fixture(scope="module", params=TASKS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TrainedModel:
    return fine_tuned_model(tmp_path_factory.mktemp("task") / "run", request.param, TASKS[request.param])


@pytest.fixture(scope="module")
def folder(model: TrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export that no test changes."""
    return export_huggingface(model, tmp_path_factory.mktemp("exported") / "out")


@pytest.fixture
def classifier(tmp_path: Path) -> tuple[TrainedModel, Path]:
    model = fine_tuned_model(tmp_path / "run", "sequence", TASKS["sequence"])
    return model, export_huggingface(model, tmp_path / "out")


def assert_same(ours: dict, theirs: dict) -> None:
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(ours), jax.device_get(theirs))


def test_transformers_loads_and_computes_the_same(model, folder, caplog):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    logging.getLogger("transformers").addHandler(caplog.handler)
    try:
        name = architecture(model.config.model)
        network, info = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
        difference = compare_with_transformers(model, folder)
    finally:
        logging.getLogger("transformers").removeHandler(caplog.handler)
    assert not any(info.values())
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert list(difference.values) == ["hidden states"] + ["logits"] * (model.kind != "vector")
    assert difference.largest < 2e-6
    if model.config.model.num_labels:
        names = TASKS[model.kind] or ("LABEL_0",)
        assert network.config.id2label == dict(enumerate(names))
        assert network.config.label2id == {label: number for number, label in enumerate(names)}
    problems = {
        "sequence": "single_label_classification",
        "regression": "regression",
        "token_regression": "regression",
        "relevance": "multi_label_classification",
    }
    assert network.config.problem_type == problems.get(model.kind)


def test_import_restores_bits_and_labels(model, folder, tmp_path):
    imported = read_huggingface(folder)
    if model.kind == "vector":  # transformers sees a plain encoder
        assert imported.untrained == ("MLM head", "NSP head") and imported.kind == ""
        assert_same(imported.params["encoder"], model.params["encoder"])
        return
    assert (imported.kind, imported.labels) == (model.kind, () if model.kind == "choice" else TASKS[model.kind])
    assert imported.config == model.config.model and not imported.untrained and not imported.notes
    assert_same(imported.params, model.params)
    run = load_run(write_run(as_run(imported, tmp_path / "back")))
    assert_same(run.params, model.params)
    assert (run.kind, run.labels) == (imported.kind, imported.labels)
    again = export_huggingface(run, tmp_path / "again")
    for name in ("config.json", "model.safetensors", "vocab.txt", "tokenizer.json"):
        assert (again / name).read_bytes() == (folder / name).read_bytes(), name


def test_card_describes_the_task(classifier, tmp_path):
    model, folder = classifier
    assert "This checkpoint was not evaluated in its run." in (folder / "README.md").read_text()
    model.directory.mkdir()
    record = {"step": 700, "eval/accuracy": 0.8125, "eval/sequence_loss": 0.5, "train/loss": 0.25}
    (model.directory / METRICS_FILE).write_text(json.dumps(record) + "\n")
    card = (export_huggingface(model, tmp_path / "again") / "README.md").read_text()
    assert "classifies texts or pairs (task `mytask`; labels `negative`, `neutral`, `positive`)" in card
    assert "| `accuracy` | 0.8125 |" in card and "| `sequence_loss` | 0.5000 |" in card and "0.25" not in card
    assert "fine-tuned from the weights of another model" in card and "BertForSequenceClassification" in card
    hub = pytest.importorskip("huggingface_hub", reason="needs huggingface_hub")
    assert hub.ModelCard(card).data.pipeline_tag == "text-classification"


def test_code_of_the_card_runs(folder):
    pytest.importorskip("torch"), pytest.importorskip("transformers")
    code = re.search(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)[1]
    if "sentence_transformers" in code:
        pytest.importorskip("sentence_transformers")
    exec(compile(code.replace("path/to/this/folder", str(folder)), "card", "exec"), {})


def test_adapt_keeps_encoder_and_pooler_of_a_task_model(model):
    params = jax.device_get(model.params)
    foreign = ForeignModel("here", model.config.model, model.tokenizer, params, (), (), model.kind, model.labels)
    config = trained_model(model.directory).config.model
    params, notes = adapt(foreign, config, model.tokenizer)
    assert sorted(params) == ["encoder", "mlm_head", "nsp_head", "pooler"]
    assert_same(params["encoder"], foreign.params["encoder"])
    pooled = "pooler" in model.params
    if pooled:
        assert_same(params["pooler"], foreign.params["pooler"])
    missing = ("MLM head", "NSP head") if pooled else ("MLM head", "NSP head", "pooler")
    assert notes == [f"{', '.join(missing)}: missing in the source; initialised at random"]
    assert float(np.std(params["mlm_head"]["transform"]["kernel"])) == pytest.approx(0.0176, rel=0.1)


def changed(folder: Path, **values) -> Path:
    config = json.loads((folder / "config.json").read_text()) | values
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    return folder


def test_unnamed_labels_get_transformers_names(classifier):
    _, folder = classifier
    imported = read_huggingface(changed(folder, id2label=None, num_labels=3, problem_type=None))
    assert (imported.kind, imported.labels) == ("sequence", ("LABEL_0", "LABEL_1", "LABEL_2"))


@pytest.mark.parametrize("count", [3, 1])
def test_read_huggingface_takes_num_labels_over_id2label(classifier, count):
    """transformers does the same, and renames the labels."""
    transformers = pytest.importorskip("transformers")
    _, folder = classifier
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    rows = {name: array[:count] for name, array in tensors.items() if name.startswith("classifier.")}
    safetensors.numpy.save_file(tensors | rows, folder / "model.safetensors", metadata={"format": "pt"})
    changed(folder, id2label={"0": "yes", "1": "no"}, num_labels=count, problem_type=None)
    theirs = transformers.AutoConfig.from_pretrained(folder)
    imported = read_huggingface(folder)
    assert imported.config.num_labels == theirs.num_labels == count
    assert imported.labels == (tuple(theirs.id2label.values()) if count > 1 else ())


@pytest.fixture(scope="module")
def electra_choice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The export of an ELECTRA for multiple choice."""
    folder = tmp_path_factory.mktemp("electra")
    model = fine_tuned_model(folder / "run", "choice", family="electra", pooler="gelu")
    return export_huggingface(model, folder / "out")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("summary_type", "mean"),
        ("summary_type", "last"),
        ("summary_type", "cls_index"),
        ("summary_activation", "tanh"),
        ("summary_activation", None),
        ("summary_use_proj", False),
    ],
)
def test_read_huggingface_refuses_other_summaries_of_electra(electra_choice, tmp_path, key, value):
    folder = Path(shutil.copytree(electra_choice, tmp_path / "out"))
    assert read_huggingface(folder).kind == "choice"
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {key: value}))
    with pytest.raises(ValueError, match=rf"{key} is {value!r}; bertjax imports only models with {key} "):
        read_huggingface(folder)
    (folder / "config.json").write_text(json.dumps(config | {key: value, "architectures": ["ElectraModel"]}))
    assert read_huggingface(folder).kind == "", "other classes do not read the key"


def test_multi_label_classifier_predicts_as_transformers(classifier, tmp_path, capsys):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    model, folder = classifier
    changed(folder, problem_type="multi_label_classification")
    assert main(["import", f"hf:{folder}", "--output", str(tmp_path / "back")]) == 0
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    network = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    texts = ["the museum opened", "and the drawings of 1877"]
    with torch.no_grad():
        expected = network(**tokenizer(texts, padding=True, return_tensors="pt")).logits.sigmoid().numpy()
    for source in (f"hf:{folder}", str(tmp_path / "back")):
        predictions = bertjax.load(source).predict(texts)
        for one, shares in zip(predictions, expected, strict=True):
            np.testing.assert_allclose([*one.probabilities.values()], shares, atol=1e-5)
            assert one.labels == tuple(label for label, p in zip(model.labels, shares, strict=True) if p >= 0.5)
    assert read_huggingface(folder).kind == "multi_label"
    capsys.readouterr()
    assert main(["predict", str(tmp_path / "back"), texts[0]]) == 0
    assert ", ".join(predictions[0].labels) in capsys.readouterr().out
    again = export_huggingface(load_run(tmp_path / "back"), tmp_path / "again")
    assert json.loads((again / "config.json").read_text())["problem_type"] == "multi_label_classification"


def test_imported_regressor_takes_texts_and_pairs(tmp_path):
    model = fine_tuned_model(tmp_path / "run", "regression")
    source = f"hf:{export_huggingface(model, tmp_path / 'out')}"
    inputs = ["the museum opened", ("the museum", "and the drawings")]
    ours, theirs = ([bertjax.load(path).predict(one) for one in inputs] for path in (str(write_run(model)), source))
    assert theirs == pytest.approx(ours, abs=1e-5)


def test_import_leaves_out_the_pooler_of_a_tagger(tmp_path):
    model = fine_tuned_model(tmp_path / "run", "tokens", TASKS["tokens"])
    folder = export_huggingface(model, tmp_path / "out")
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    tensors["bert.pooler.dense.bias"] = np.zeros(32, np.float32)
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    imported = read_huggingface(folder)
    assert imported.notes == ("left out, since BertForTokenClassification has no such tensors: bert.pooler.dense.bias",)
    assert_same(imported.params, model.params)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"id2label": {"0": "a", "2": "b"}}, r"config\.json: id2label does not give each label, from 0 on, a name"),
        ({"id2label": ["a", "b"]}, "id2label does not give each label"),
        ({"id2label": None, "num_labels": "many"}, "num_labels is 'many', which is not a sensible number"),
        ({"id2label": {"0": "a", "1": "b"}}, r"classifier\.(bias|weight) has shape .*; by the config it is"),
    ],
)
def test_mismatched_labels_are_refused(classifier, values, message):
    with pytest.raises(ValueError, match=message):
        read_huggingface(changed(classifier[1], **values))


def test_missing_head_is_named(classifier):
    _, folder = classifier
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    del tensors["classifier.weight"]
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"missing classifier\.weight"):
        read_huggingface(folder)


def test_command_line_exports_and_imports_task_models(classifier, tmp_path, capsys):
    pytest.importorskip("torch"), pytest.importorskip("transformers")
    model, folder = classifier
    run = write_run(model)
    assert main(["export", str(run), "--output", str(tmp_path / "exported")]) == 0
    assert "transformers.BertForSequenceClassification.from_pretrained" in capsys.readouterr().out
    assert main(["import", f"hf:{folder}", "--output", str(tmp_path / "imported")]) == 0
    output = capsys.readouterr().out
    assert "compared with transformers" in output and "at random" not in output and "predict" in output
    assert read_source(str(tmp_path / "imported")).labels == TASKS["sequence"]
    assert open_source(f"hf:{folder}")[1] == ("MLM head", "NSP head")


def test_fine_tuned_model_refuses_unsupported_uses(classifier, tmp_path):
    model, _ = classifier
    with pytest.raises(ValueError, match=r"it was fine-tuned \(sequence\) and has no MLM head"):
        fill_mask(model, ["The [MASK] opened."], 3)
    with pytest.raises(ValueError, match=r"model\.head='sequence': google-research/bert has no name for the head"):
        export_tensorflow(model, tmp_path / "tf1")
    with pytest.raises(ValueError, match="a network for span has no pooler"):
        export_sentence_transformers(fine_tuned_model(tmp_path / "span", "span"), tmp_path / "vectors")
    with pytest.raises(ValueError, match=r"pooling=pooler: a network with model\.head='span' has no pooler"):
        export_onnx(fine_tuned_model(tmp_path / "span", "span"), tmp_path / "onnx", "pooler")


def test_onnxruntime_gives_our_logits_at_any_shape(onnx, model, tmp_path):
    folder = export_onnx(model, tmp_path / "onnx")
    difference = compare_with_onnxruntime(model, folder)
    assert list(difference.values) == (["hidden states"] if model.kind == "vector" else ["logits"])
    assert difference.largest < 2e-6
    if model.kind == "vector":
        return
    card = (folder / "README.md").read_text()
    code = re.search(r"```python\n(.*?)```", card, re.DOTALL)[1].replace("path/to/this/folder", str(folder))
    namespace: dict = {}
    exec(compile(code, "card", "exec"), namespace)
    names = ("start_logits", "end_logits") if model.kind == "span" else ("logits",)
    assert all(len(namespace[name]) == 2 for name in names)
    if model.config.model.num_labels > 1:
        assert namespace["logits"].shape[-1] == 3 and "`, `".join(model.labels) in card
        assert list(json.loads((folder / "config.json").read_text())["label2id"]) == sorted(model.labels)


def test_export_verb_gives_logits_or_trained_vectors(onnx, classifier, tmp_path, capsys):
    run = write_run(classifier[0])
    assert main(["export", str(run), "--to", "onnx", "--output", str(tmp_path / "logits")]) == 0
    output = capsys.readouterr().out
    assert "compared with onnxruntime on real text: logits" in output and output.endswith("logits: logits\n")
    assert main(["export", str(run), "--to", "onnx", "--output", str(tmp_path / "mean"), "--pooling", "mean"]) == 0
    assert "hidden states" in capsys.readouterr().out
    vectors = write_run(fine_tuned_model(tmp_path / "vectors", "vector"))
    assert main(["export", str(vectors), "--to", "onnx", "--output", str(tmp_path / "pooled")]) == 0
    assert "pooling mean" in capsys.readouterr().out
    assert "scaled to length 1" in (tmp_path / "pooled" / "README.md").read_text()
