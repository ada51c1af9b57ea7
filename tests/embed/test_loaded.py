"""The loaded model as an object: results, warnings and errors."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from exported_models import fine_tuned_model, trained_model

import bertjax
from bertjax.config import to_dict
from bertjax.convert.huggingface.exporter import WEIGHTS_FILE, export_huggingface
from bertjax.convert.sentence_transformers.sentence_format import export_sentence_transformers
from bertjax.interpret.correction import Correction, examine
from bertjax.interpret.fill_mask import fill_mask
from bertjax.loaded import LoadedModel
from bertjax.pipeline.finetuning import make_request

pytestmark = pytest.mark.usefixtures("one_device")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_huggingface(trained_model(tmp_path_factory.mktemp("api") / "run"), tmp_path_factory.mktemp("a") / "b")


@pytest.fixture(scope="module")
def model(folder: Path) -> LoadedModel:
    return bertjax.load(f"hf:{folder}")


def test_single_text_or_file_counts_as_list(folder: Path, tmp_path: Path) -> None:
    texts, model = tmp_path / "texts.txt", f"hf:{folder}"
    texts.write_text("the museum\nopened\n")
    assert bertjax.tokenize(model, "the museum") == bertjax.tokenize(model, ["the museum"])
    assert bertjax.embed(model, texts, tmp_path / "vectors.npy").counts.examples == 2
    ((best,),) = bertjax.search(model, "opened", index=tmp_path / "index", documents=str(texts), by="bm25")
    assert best.text == "opened"
    (words,) = bertjax.load(model).examine("the museum")
    assert len(words.words) == 2 and len(bertjax.load(model).score("the museum")) == 1
    expected = dict.fromkeys(("text", "labels", "from_text", "positives"), ("review",))
    options = bertjax.FinetuneOptions(**dict.fromkeys(expected, "review"), dims=(8,))
    assert make_request("classification", model, options).task == expected | {"dims": (8,)}


@pytest.mark.run
def test_importing_bertjax_imports_nothing_heavy() -> None:
    code = (
        "import bertjax, sys; print([name for name in ('jax', 'numpy', 'flax', 'tokenizers') if name in sys.modules])"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout == "[]\n"


def test_encode_gives_vector_for_text_matrix_for_list(model: LoadedModel) -> None:
    both = model.encode(["the museum", "of drawings"])
    one = model.encode("of drawings")
    assert both.shape == (2, 32) and one.shape == (32,) and one.dtype == np.float32
    np.testing.assert_allclose(one, both[1], rtol=1e-5, atol=1e-6)
    assert model.encode([]).shape == (0, 32)
    tokens = model.encode(["the museum", "of drawings and"], pooling="none")
    assert [matrix.shape for matrix in tokens] == [(4, 32), (5, 32)]
    assert model.encode("the museum", pooling="none").shape == (4, 32)
    assert "<BERT of 2 layers, width 32" in repr(model) and model.config.hidden_size == 32


def test_truncation_warns_and_is_counted(model: LoadedModel) -> None:
    with pytest.warns(UserWarning, match="1 of 2 texts were cut to 8 tokens: 2 of 9 tokens"):
        model.encode(["the museum of " * 2 + "the drawings", "the"], max_length=8)
    assert (model.counts.truncated, model.counts.tokens_cut) == (1, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.encode(["the museum of " * 2 + "the drawings", "the"], max_length=8, long="split")
    assert (model.counts.examples, model.counts.truncated, model.counts.windowed, model.counts.windows) == (2, 0, 1, 2)


def test_fill_mask_gives_sorted_guesses(model: LoadedModel) -> None:
    (guesses,) = model.fill_mask("the [MASK] opened", top=3)
    assert len(guesses) == 3 and guesses == sorted(guesses, key=lambda guess: -guess.probability)
    texts = ["the [MASK] opened", ("a [MASK]", "b [MASK]")]
    assert model.fill_mask(texts, top=3) == fill_mask(model._model, texts, 3)
    with pytest.raises(ValueError, match="has no \\[MASK\\]"):
        model.fill_mask("the")


def test_correct_follows_threshold(model: LoadedModel) -> None:
    ((word,),) = [one.words for one in examine(model._model, ["museum"], top=2)]
    (best, _) = word.proposals
    assert model.correct("museum", best.log_ratio - 1, top=2) == Correction(best.text, (word,))
    assert model.correct(["museum", ""], best.log_ratio + 1) == [Correction("museum", ()), Correction("", ())]
    hidden = model.examine(["museum"], masked=True, top=1)[0].words[0].proposals[0]
    assert model.correct("museum", hidden.log_ratio - 1, masked=True).text == hidden.text


def test_fill_mask_rejects_fine_tuned_models(tmp_path: Path) -> None:
    run = tmp_path / "pretrained"
    run.mkdir()
    (run / "config.json").write_text(json.dumps(to_dict(trained_model(run).config)))
    tuned = fine_tuned_model(tmp_path / "tuned", "sequence", ("a", "b"))
    for name, source in (("mnli", run), ("mrpc", tmp_path / "mnli"), ("lost", tmp_path / "nowhere")):
        model = replace(tuned, config=replace(tuned.config, init_from=str(source)))
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(to_dict(model.config)))
        advice = f"fill masks; use {run}, which it was fine-tuned from" if name != "lost" else "fill masks$"
        with pytest.raises(ValueError, match=advice):
            LoadedModel(model, ("MLM head",)).fill_mask("the [MASK]")


def test_untrained_modules_are_not_used(model: LoadedModel, folder: Path, tmp_path: Path) -> None:
    bare = export_sentence_transformers(model._model, tmp_path / "bare")
    with pytest.raises(ValueError, match="it has no MLM head and cannot fill masks"):
        bertjax.load(f"hf:{bare}").fill_mask("the [MASK]")
    with pytest.raises(ValueError, match="it has no MLM head and cannot correct texts"):
        bertjax.load(f"hf:{bare}").correct("the")
    tensors = safetensors.numpy.load_file(bare / WEIGHTS_FILE)
    without_pooler = {name: x for name, x in tensors.items() if not name.startswith("pooler")}
    safetensors.numpy.save_file(without_pooler, bare / WEIGHTS_FILE)
    headless = bertjax.load(f"hf:{bare}")
    with pytest.raises(ValueError, match="pooling=pooler: the model has no trained pooler"):
        headless.encode("the", pooling="pooler")
    np.testing.assert_array_equal(headless.encode("the"), model.encode("the"))


def test_load_rejects_other_folders(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"for a folder of Hugging Face's layout write hf:{folder}"):
        bertjax.load(folder)
    with pytest.raises(ValueError, match="no checkpoint there"):
        bertjax.load(tmp_path)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([1, 2], r"^text 1: 1 is int; give a text or a list of texts$"),
        (["a", None], r"^text 2: None is NoneType; give a text or a list of texts$"),
        (["a", ("b", "c")], r"^text 2: \('b', 'c'\) is tuple; give a text or a list of texts$"),
        (7, r"^texts=7 is int; give a text or a list of texts$"),
        (b"bytes", r"^texts=b'bytes' is bytes; give a text or a list of texts$"),
        ({"a": "b"}, r"^texts=\{'a': 'b'\} is dict; give a text or a list of texts$"),
        (np.ones((2, 2)), r"^text 1: array\(\[1., 1.\]\) is ndarray; give"),
    ],
)
def test_encode_rejects_non_texts_by_number(model: LoadedModel, texts: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model.encode(texts)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([1, 2], r"^text 1: 1 is int; give a text, or a list of texts or of pairs of texts$"),
        (["[MASK]", ("a", "b", "c")], r"^text 2: \('a', 'b', 'c'\) is tuple; give a text, or a list"),
        (None, r"^texts=None is NoneType; give a text, or a list"),
    ],
)
def test_fill_mask_rejects_non_texts(model: LoadedModel, texts: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model.fill_mask(texts)


def test_encode_accepts_generators_and_arrays(model: LoadedModel) -> None:
    texts = ["the museum", "of drawings"]
    expected = model.encode(texts)
    np.testing.assert_array_equal(model.encode(text for text in texts), expected)
    np.testing.assert_array_equal(model.encode(np.array(texts)), expected)
