"""Executable exports: each runtime computes our outputs from the folder alone, in every precision."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from exported_models import fine_tuned_model, trained_model
from family_models import family_model, traits
from their_families import IN_TRANSFORMERS

from bertjax.__main__ import main
from bertjax.convert.executable.network import input_names
from bertjax.convert.executable.runtime import HIDDEN, LIMITS
from bertjax.convert.executable.stablehlo_format import MODEL_FILE as FUNCTION_FILE
from bertjax.convert.executable.stablehlo_format import SIGNATURE_FILE
from bertjax.convert.executable.stablehlo_format import load as load_function
from bertjax.convert.formats import FORMATS, Format, Vectors, load_format
from bertjax.convert.huggingface.exporter import export_huggingface
from bertjax.convert.model_card import CARD_FILE
from bertjax.convert.sources import write_run
from bertjax.families.registry import FAMILIES
from bertjax.run.run_directory import TrainedModel

pytestmark = pytest.mark.run

TINY = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
PACKAGES = {"savedmodel": ("tensorflow",), "stablehlo": (), "litert": ("tensorflow", "ai_edge_litert")}
PACKAGES |= dict.fromkeys(("onnx", "web"), ("onnx", "onnxruntime"))
PRECISIONS = [("onnx", "float16"), ("onnx", "int8"), ("litert", "float32"), ("litert", "float16"), ("litert", "int8")]
LONG = pytest.mark.long
NEW = ("savedmodel", "stablehlo", "litert")
# The other families have only BERT's operators.
OPERATORS = ("albert", "modernbert", "mosaicbert", "neobert", "deberta", "deberta-v2", "deberta-v3", "longformer")
OPERATORS += ("esm", "esmc")
POOLED = Vectors("mean", True)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> TrainedModel:
    return fine_tuned_model(tmp_path_factory.mktemp("exports") / "run", "sequence", ("bad", "fair", "good"), **TINY)


def format_here(name: str, precision: str = "") -> Format:
    """Load a format; skips the test if its packages are not installed."""
    for package in PACKAGES[name]:
        pytest.importorskip(package, reason=f"needs {package}")
    return load_format(name).precisions[precision]() if precision else load_format(name)


def difference(form: Format, model: TrainedModel, folder: Path, vectors: Vectors = Vectors()) -> float:  # noqa: B008
    result = form.compare(model, Path(form.export(model, folder, vectors)), vectors)
    assert result is not None
    return result.largest


@pytest.mark.parametrize("name", NEW)
def test_runtime_gives_our_logits_and_card_code_runs(name: str, classifier: TrainedModel, tmp_path: Path) -> None:
    form = format_here(name, "float32" if name == "litert" else "")
    assert difference(form, classifier, tmp_path / "out") < 5e-6
    card = (tmp_path / "out" / CARD_FILE).read_text()
    code = re.search(r"```python\n(.*?)```", card, re.DOTALL)
    assert code is not None and "/secret/" not in card and "up to 80 tokens" in card
    namespace: dict = {}
    exec(compile(code[1].replace("path/to/this/folder", str(tmp_path / "out")), "card", "exec"), namespace)
    assert namespace["logits"].shape == (2, 3)


@pytest.mark.parametrize(
    ("name", "precision"),
    [pytest.param(*case, marks=() if case in (("onnx", "float16"), ("onnx", "int8")) else LONG) for case in PRECISIONS],
)
def test_lower_precision_gives_nearly_the_same_outputs(
    name: str, precision: str, classifier: TrainedModel, tmp_path: Path
) -> None:
    form = format_here(name, precision)
    value = difference(form, classifier, tmp_path / "out")
    assert value < LIMITS[precision]
    assert (value > 1e-5) == (precision != "float32"), "as close as float32: nothing was rounded"


@LONG
@pytest.mark.parametrize("family", OPERATORS)
@pytest.mark.parametrize(("name", "precision"), [case for case in PRECISIONS if case[1] != "float32"])
def test_lower_precision_gives_nearly_the_same_vectors(name: str, precision: str, family: str, tmp_path: Path) -> None:
    form = format_here(name, precision)
    assert 1e-5 < difference(form, family_model(tmp_path / "run", family), tmp_path / "out", POOLED) < LIMITS[precision]


@pytest.mark.parametrize(
    ("family", "part", "factor"),
    [
        *(pytest.param(*cell, marks=LONG) for cell in (("modernbert", "query", 4), ("neobert", "query", 4))),
        ("neobert", "word", 1000),
    ],
)
def test_float16_keeps_far_angles_and_large_squares(family: str, part: str, factor: float, tmp_path: Path) -> None:
    """Uses onnx's own evaluator, which rounds as the graph does: onnxruntime computes much in float32 on a CPU."""
    format_here("onnx")
    from onnx.reference import ReferenceEvaluator

    size = {"hidden_size": 64, "num_attention_heads": 1, "num_hidden_layers": 2, "max_position_embeddings": 2048}
    model = family_model(tmp_path / "run", family, **size)
    larger = jax.tree_util.tree_map_with_path(lambda path, x: x * factor if part in str(path) else x, model.params)
    model = replace(model, params=larger)
    length = 1500 if part == "query" else 200  # the largest angles are at the last positions
    ids = np.random.default_rng(0).integers(5, model.config.model.vocab_size, (1, length))
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    inputs = {name: inputs[name] for name in input_names(model.config.model)}
    outputs = []
    for precision in ("float32", "float16"):
        folder = format_here("onnx", precision).export(model, tmp_path / precision, Vectors())
        outputs.append(ReferenceEvaluator(f"{folder}/model.onnx").run([HIDDEN], inputs)[0])
    assert np.linalg.norm(outputs[1] - outputs[0]) < LIMITS["float16"] * np.linalg.norm(outputs[0])


def test_precision_limits_detect_another_model(classifier: TrainedModel, tmp_path: Path) -> None:
    form = format_here("onnx", "int8")
    folder = Path(form.export(classifier, tmp_path / "out", Vectors()))
    other = fine_tuned_model(tmp_path / "other", "sequence", ("bad", "fair", "good"), **TINY)
    other.params["head"]["dense"]["kernel"] = -other.params["head"]["dense"]["kernel"]
    with pytest.raises(RuntimeError, match="onnxruntime computes different outputs"):
        form.compare(other, folder, Vectors())


@LONG
@pytest.mark.parametrize("family", OPERATORS)
@pytest.mark.parametrize("name", NEW)
def test_runtime_gives_our_vectors(name: str, family: str, tmp_path: Path) -> None:
    form = format_here(name, "float32" if name == "litert" else "")
    assert difference(form, family_model(tmp_path / "run", family), tmp_path / "out", POOLED) < 5e-6


PADDED = [("onnx", family) for family in ("roberta", "longformer", "bert")]
PADDED += [("stablehlo", "roberta"), ("stablehlo", "longformer")]
PADDED += [pytest.param(name, "roberta", marks=LONG) for name in ("savedmodel", "litert")]
PADDED += [pytest.param("onnx", family, marks=LONG) for family in ("camembert", "deberta", "modernbert", "electra")]


@pytest.mark.parametrize(("name", "family"), PADDED)
def test_exports_take_padding_on_either_side(name: str, family: str, tmp_path: Path) -> None:
    """Positions equal transformers': RoBERTa's relatives count only real tokens, the other families all tokens."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    model = family_model(tmp_path / "run", family)
    theirs = transformers.AutoModel.from_pretrained(export_huggingface(model, tmp_path / "theirs")).eval()
    draw, pad = np.random.default_rng(0), model.tokenizer.pad_id
    real = np.array([[1] * 12, [0] * 5 + [1] * 7, [1] * 9 + [0] * 3, [0] * 2 + [1] * 8 + [0] * 2])
    ids = draw.choice([n for n in range(model.config.model.vocab_size) if n != pad], real.shape)
    batch = {"input_ids": np.where(real, ids, pad), "attention_mask": real, "token_type_ids": np.zeros_like(real)}
    form = format_here(name, "float32" if name == "litert" else "")
    folder = Path(form.export(model, tmp_path / "out", Vectors()))
    run = importlib.import_module(f"bertjax.convert.executable.{name}_format").load(folder)
    ours = run({key: batch[key] for key in input_names(model.config.model)})[HIDDEN]
    has_types = model.config.model.type_vocab_size > 0
    inputs = {key: torch.from_numpy(x) for key, x in batch.items() if has_types or key != "token_type_ids"}
    with torch.no_grad():
        expected = theirs(**inputs).last_hidden_state.numpy()
    np.testing.assert_allclose(ours[real == 1], expected[real == 1], atol=3e-5)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in IN_TRANSFORMERS])
def test_family_outside_transformers_is_exported_to_onnx(family: str, tmp_path: Path) -> None:
    form = format_here("onnx")
    assert difference(form, family_model(tmp_path / "run", family), tmp_path / "out", POOLED) < 5e-6
    assert not (tmp_path / "out" / "config.json").exists(), "transformers has no such network"
    fields = traits(family) | TINY | {"max_position_embeddings": 80}
    classifier = fine_tuned_model(tmp_path / "task", "sequence", ("a", "b"), **fields)
    assert difference(form, classifier, tmp_path / "logits") < 5e-6


@LONG
@pytest.mark.parametrize("kind", ["tokens", "span", "choice"])
@pytest.mark.parametrize("name", NEW)
def test_runtime_gives_our_task_outputs(name: str, kind: str, tmp_path: Path) -> None:
    model = fine_tuned_model(tmp_path / "run", kind, ("a", "b") if kind == "tokens" else (), **TINY)
    assert difference(format_here(name, "float32" if name == "litert" else ""), model, tmp_path / "out") < 5e-6


def test_stablehlo_is_reproducible_and_records_versions(classifier: TrainedModel, tmp_path: Path) -> None:
    form = format_here("stablehlo")
    folders = [Path(form.export(classifier, tmp_path / name, Vectors())) for name in ("one", "two")]
    contents = [{path.name: path.read_bytes() for path in folder.iterdir()} for folder in folders]
    assert contents[0] == contents[1]
    assert not [name for name, content in contents[0].items() if b"bertjax/model" in content or b"/secret" in content]
    signature = json.loads(contents[0][SIGNATURE_FILE])
    assert signature["version"] == 1 and signature["jax"] == jax.__version__ and signature["longest"] == 80
    assert signature["platforms"] == ["cpu", "cuda", "rocm", "tpu"] and signature["outputs"] == ["logits"]
    run = load_function(folders[0])
    ids = np.full((3, 80), 12)
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    assert run(inputs)["logits"].shape == (3, 3)
    with pytest.raises(ValueError, match=r"length|shape"):
        run({name: np.pad(x, ((0, 0), (0, 1))) for name, x in inputs.items()})
    assert (folders[0] / FUNCTION_FILE).stat().st_size < 100_000, "weights are beside it"
    (folders[0] / SIGNATURE_FILE).write_text(json.dumps(signature | {"version": 2}))
    with pytest.raises(ValueError, match="version 2, not 1; export the model again"):
        load_function(folders[0])


@pytest.mark.parametrize(
    ("make_model", "vectors", "message"),
    [
        (
            lambda folder: family_model(folder, "bigbird"),
            POOLED,
            r"model\.attention_block=.*: not supported by this format",
        ),
        (
            lambda folder: fine_tuned_model(
                folder, "sequence", ("a", "b"), family="longformer", window=4, global_tokens="marked", **TINY
            ),
            Vectors(),
            r"model\.global_tokens='marked': the export has no input for the tokens",
        ),
        (lambda folder: trained_model(folder, **TINY), Vectors("none", True), "--normalize scales a text's vector"),
    ],
    ids=["blocks", "global tokens", "no vector"],
)
@pytest.mark.parametrize("name", ["onnx", "web", *NEW])
def test_unsupported_network_is_refused_by_name(
    name: str, make_model: Callable[[Path], TrainedModel], vectors: Vectors, message: str, tmp_path: Path
) -> None:
    form = format_here(name)
    assert form.export is not None
    with pytest.raises(ValueError, match=message):
        form.export(make_model(tmp_path / "run"), tmp_path / "out", vectors)
    assert not (tmp_path / "out").exists()


def test_export_precision_option(classifier: TrainedModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    format_here("onnx")
    run = write_run(classifier)
    assert main(["export", str(run), "--to", "onnx", "--precision", "int8"]) == 0
    output = capsys.readouterr().out
    assert "compared with onnxruntime on real text: logits" in output and f"{run}/onnx-int8: logits" in output
    assert main(["export", str(run), "--to", "stablehlo", "--precision", "int8"]) == 1
    assert "--precision int8: --to stablehlo has one precision; leave --precision out" in capsys.readouterr().err


def test_every_executable_format_is_covered() -> None:
    assert {*PACKAGES} == {name for name in FORMATS if name not in ("huggingface", "tf1", "sentence-transformers")}
