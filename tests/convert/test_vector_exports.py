"""Exported encoders: onnxruntime, transformers and sentence-transformers compute our vectors."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from exported_models import compare_with_onnxruntime, export_onnx, trained_model

from bertjax.__main__ import main
from bertjax.convert import compare
from bertjax.convert.compare import PAIRS
from bertjax.convert.executable import onnx_format
from bertjax.convert.executable.onnx_format import DATA_FILE, MODEL_FILE
from bertjax.convert.huggingface.exporter import WEIGHTS_FILE
from bertjax.convert.model_card import CARD_FILE
from bertjax.convert.sentence_transformers.sentence_format import (
    compare_with_sentence_transformers,
    export_sentence_transformers,
)
from bertjax.convert.sources import open_source, write_run
from bertjax.embed.encoder import Encoding, TextEncoder
from bertjax.families.networks import abstract_network
from bertjax.run.run_directory import TrainedModel
from bertjax.storage.remote import RemotePath

pytestmark = pytest.mark.run

TEXTS = [text for pair in PAIRS for text in pair]
LONG = functools.partial(pytest.param, marks=pytest.mark.long)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TrainedModel:
    return trained_model(tmp_path_factory.mktemp("exports") / "run")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("fields", "pooling", "normalize"),
    [
        LONG({}, "none", False),
        ({"hidden_act": "gelu_tanh", "dtype": "bfloat16", "position_embedding": "sinusoidal"}, "pooler", True),
        LONG({"num_hidden_layers": 1}, "cls", True),
    ],
)
def test_onnxruntime_equals_our_outputs(onnx, tmp_path, fields, pooling, normalize):
    model = trained_model(tmp_path / "run", **fields)
    folder = export_onnx(model, tmp_path / "out", pooling, normalize)
    difference = compare_with_onnxruntime(model, folder, pooling, normalize)
    assert list(difference.values) == ["hidden states"] + ["vectors"] * (pooling != "none")
    assert difference.largest < 2e-6


def test_causal_export_equals_our_outputs(onnx, model, tmp_path):
    config = replace(
        model.config,
        model=replace(model.config.model, causal=True),
        data=replace(model.config.data, predict="next", rows="doc_sentences"),
        training=replace(model.config.training, objectives=("mlm",)),
    )
    causal = replace(model, config=config, graphdef=abstract_network(config.model)[0])
    folder = export_onnx(causal, tmp_path / "out", "max")
    assert compare_with_onnxruntime(causal, folder, "max", False).largest < 2e-6


def relative(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


@pytest.mark.long
def test_large_weights_are_in_a_file_beside_the_graph(onnx, model, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_format, "_LARGEST_MESSAGE", 1000)
    folder = export_onnx(model, tmp_path / "out", "mean")
    assert (folder / DATA_FILE).stat().st_size > (folder / MODEL_FILE).stat().st_size
    assert compare_with_onnxruntime(model, folder, "mean", False).largest < 2e-6
    monkeypatch.undo()
    assert not (export_onnx(model, folder) / DATA_FILE).exists()


def test_other_weights_are_detected(onnx, model, tmp_path):
    folder = export_onnx(model, tmp_path / "out", "mean")
    encoder = {**model.params["encoder"], "embeddings": dict(model.params["encoder"]["embeddings"])}
    encoder["embeddings"]["position"] = encoder["embeddings"]["position"] * 1.001
    other = replace(model, params={**model.params, "encoder": encoder})
    with pytest.raises(RuntimeError, match="onnxruntime computes different outputs"):
        compare_with_onnxruntime(other, folder, "mean", False)


@pytest.mark.parametrize(
    ("pooling", "normalize"), [LONG("mean", True), LONG("cls", False), LONG("max", False), ("pooler", True)]
)
def test_sentence_transformers_folder_is_pooled_as_ours(model, tmp_path, pooling, normalize):
    pytest.importorskip("torch"), pytest.importorskip("transformers")
    folder = export_sentence_transformers(model, tmp_path / "out", pooling, normalize)
    assert compare_with_sentence_transformers(model, folder, pooling, normalize).largest < 2e-6
    kinds = [module["type"].rpartition(".")[2] for module in json.loads((folder / "modules.json").read_text())]
    assert kinds == ["Transformer", "Pooling", *["Dense"] * (pooling == "pooler"), *["Normalize"] * normalize]
    if pooling != "cls":  # one case is enough to detect a difference
        return
    with pytest.raises(RuntimeError, match="computes different outputs"):
        compare_with_sentence_transformers(model, folder, "mean", normalize)


def test_vectors_equal_sentence_transformers(model, minilm, tmp_path):
    library = pytest.importorskip("sentence_transformers", reason="needs sentence-transformers")
    published = open_source(f"hf:{minilm}")[0]
    for number, (which, pooling, normalize) in enumerate(
        [(published, "mean", True), (model, "pooler", True), (model, "max", False), (model, "cls", False)]
    ):
        folder = export_sentence_transformers(which, tmp_path / str(number), pooling, normalize)
        theirs = library.SentenceTransformer(str(folder), device="cpu")
        assert theirs.max_seq_length == which.max_length
        encoder = TextEncoder(which, Encoding(pooling=pooling, normalize=normalize), jax.devices()[:1])
        ours = np.stack([embedding.vectors for embedding in encoder.encode(TEXTS)])
        assert relative(ours, theirs.encode(TEXTS)) < 1e-5


@pytest.mark.parametrize("exporter", [export_sentence_transformers, export_onnx])
def test_export_is_reproducible_and_replaces_only_exports(onnx, model, tmp_path, exporter):
    first = contents(exporter(model, tmp_path / "one", "pooler", True))
    assert contents(exporter(model, tmp_path / "two", "pooler", True)) == first
    assert not [name for name, content in first.items() if b"secret" in content]
    again = contents(exporter(model, tmp_path / "one", "mean"))
    assert again != first and not [name for name in again if "Dense" in name]
    (tmp_path / "two" / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"it holds mine\.txt, which does not belong to an export"):
        exporter(model, tmp_path / "two", "mean")
    weights = tmp_path / "one" / ("model.onnx" if exporter is export_onnx else "model.safetensors")
    weights.write_bytes(weights.read_bytes() + b"\0")
    with pytest.raises(ValueError, match=f"its {weights.name} does not match the digest in its README.md"):
        exporter(model, tmp_path / "one", "mean")


def objects(folder: RemotePath) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in folder.sizes()}


@pytest.mark.parametrize(
    ("form", "exporter", "weights"),
    [("sentence-transformers", export_sentence_transformers, WEIGHTS_FILE), ("onnx", export_onnx, MODEL_FILE)],
    ids=["sentence-transformers", "onnx"],
)
@pytest.mark.parametrize("storage", ["memory", LONG("s3")])
def test_export_to_object_storage_is_the_same(onnx, request, model, tmp_path, capsys, storage, form, exporter, weights):
    if form == "sentence-transformers":
        pytest.importorskip("torch")
    bucket = request.getfixturevalue("s3") if storage == "s3" else f"memory://{form}"
    folder = RemotePath(f"{bucket}/runs/out")
    assert exporter(model, str(folder), "pooler", True) == folder
    assert objects(folder) == contents(exporter(model, tmp_path / "out", "pooler", True))
    # An interrupted upload has no card: it is replaced, and files of only the earlier export are removed.
    (folder / CARD_FILE).unlink()
    run = write_run(trained_model(tmp_path / "run"))
    again = ["export", str(run), "--to", form, "--output", str(folder), "--pooling", "mean", "--overwrite"]
    assert main(again) == 0
    output = capsys.readouterr().out
    assert "compared with" in output and "not compared" not in output
    assert f"exported step 0 to {folder}: pooling mean" in output
    assert (folder / CARD_FILE).is_file() and not [name for name in folder.sizes() if "Dense" in name]
    # An upload interrupted now never gets its card.
    with pytest.MonkeyPatch.context() as patch, pytest.raises(OSError, match="cut"):
        patch.setattr(RemotePath, "upload_all", fail_upload)
        exporter(model, folder, "mean")
    assert not (folder / CARD_FILE).exists()
    exporter(model, folder, "mean")
    (folder / weights).write_bytes((folder / weights).read_bytes() + b"\0")
    with pytest.raises(ValueError, match=f"its {weights} does not match the digest in its README.md"):
        exporter(model, folder, "mean")
    (folder / "1_Pooling" / "mine.txt").write_bytes(b"mine")
    with pytest.raises(ValueError, match=r"it holds 1_Pooling/mine\.txt, which does not belong to an export"):
        exporter(model, folder, "mean")


def fail_upload(self: RemotePath, folder: Path, names: list[str]) -> None:
    raise OSError("cut")


def test_unsupported_vectors_are_refused(model, tmp_path):
    with pytest.raises(ValueError, match="--pooling none: sentence-transformers makes one vector per text"):
        export_sentence_transformers(model, tmp_path / "out", "none")
    with pytest.raises(ValueError, match="--normalize scales a text's vector"):
        export_onnx(model, tmp_path / "out", "none", True)
    assert list(tmp_path.iterdir()) == []


def test_comparison_is_skipped_without_the_library(model, tmp_path, monkeypatch):
    monkeypatch.setattr(compare.importlib.util, "find_spec", lambda name: None)
    assert compare_with_onnxruntime(model, tmp_path, "mean", True) is None
    assert compare_with_sentence_transformers(model, tmp_path, "mean", True) is None
