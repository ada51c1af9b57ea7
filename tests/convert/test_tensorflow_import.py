"""Checkpoints of google-research/bert import and export with the same bits and outputs."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path

import jax
import numpy as np
import pytest
from exported_models import assert_same, trained_model

from bertjax.convert.sources import as_run, write_run
from bertjax.convert.tf1.tf1_format import (
    PREFIX,
    _write_arrays,
    compare_with_tensorflow,
    export_tensorflow,
    read_arrays,
    read_tensorflow,
    suggests_lowercase,
)
from bertjax.run.run_directory import TrainedModel, load_run
from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.wordpiece import WordPiece


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TrainedModel:
    return trained_model(tmp_path_factory.mktemp("run"), hidden_act="gelu_tanh")


@pytest.mark.run
def test_tensorflow_round_trip_keeps_the_bits(model: TrainedModel, tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    imported = read_tensorflow(export_tensorflow(model, tmp_path / "tf1"), lowercase=True)
    assert_same(imported.params, model.params)
    assert imported.config == model.config.model
    assert imported.tokenizer.tokens == model.tokenizer.tokens
    with pytest.raises(ValueError, match=r"it exists; choose another"):
        export_tensorflow(model, tmp_path / "tf1")


def test_export_refuses_the_erf_form_of_gelu(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"hidden_act='gelu': google-research/bert computes gelu only in its tanh form"
    ):
        export_tensorflow(trained_model(tmp_path / "run"), tmp_path / "tf1")
    assert not list(tmp_path.iterdir())


def test_read_tensorflow_detects_damaged_checkpoints(model: TrainedModel, tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    export_tensorflow(model, tmp_path / "tf1")
    rng = random.Random(0)
    for name in ("bert_model.ckpt.data-00000-of-00001", "bert_model.ckpt.index"):
        path = tmp_path / "tf1" / name
        whole = path.read_bytes()
        for _ in range(10):
            place = rng.randrange(len(whole))
            path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << rng.randrange(8))]) + whole[place + 1 :])
            try:
                imported = read_tensorflow(tmp_path / "tf1", lowercase=True)
            except ValueError:
                continue
            assert_same(imported.params, model.params)  # an unused byte
        path.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(ValueError, match=r"tf1|checkpoint"):
            read_tensorflow(tmp_path / "tf1", lowercase=True)
        path.write_bytes(whole)


def test_read_tensorflow_reads_a_published_checkpoint(real_data: Path, tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    source = real_data / "checkpoints" / "bert_tf1_fixture"
    imported = read_tensorflow(source)
    reader = tf.train.load_checkpoint(str(source / "bert_model.ckpt"))
    layer = "bert/encoder/layer_1/attention/self/query"
    query = imported.params["encoder"]["layers"]["attention"]["query"]
    np.testing.assert_array_equal(query["kernel"][1].reshape(4, 4), reader.get_tensor(f"{layer}/kernel"))
    np.testing.assert_array_equal(query["bias"][1].reshape(4), reader.get_tensor(f"{layer}/bias"))
    np.testing.assert_array_equal(
        imported.params["nsp_head"]["dense"]["kernel"], reader.get_tensor("cls/seq_relationship/output_weights").T
    )
    assert imported.config.hidden_act == "gelu_tanh" and imported.tokenizer.rules.lowercase
    run = load_run(write_run(as_run(imported, tmp_path / "run")))
    assert compare_with_tensorflow(run, source).values.keys() == {"hidden states", "MLM logits", "NSP logits"}
    exported = read_tensorflow(export_tensorflow(run, tmp_path / "again"))
    assert_same(exported.params, imported.params)


@pytest.mark.run
def test_exported_checkpoint_computes_the_same(model: TrainedModel, tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    folder = export_tensorflow(model, tmp_path / "tf1")
    assert compare_with_tensorflow(model, folder).largest < 5e-6
    for transposed in ("query", "output"):
        layers = jax.tree.map(np.array, model.params["encoder"]["layers"])
        kernel = layers["attention"][transposed]["kernel"]
        kernel[:] = kernel.reshape(2, 32, 32).swapaxes(1, 2).reshape(kernel.shape)
        other = dataclasses.replace(
            model, params=model.params | {"encoder": model.params["encoder"] | {"layers": layers}}
        )
        with pytest.raises(RuntimeError, match="google-research/bert computes different outputs"):
            compare_with_tensorflow(other, folder)


def test_export_refuses_lower_case_with_accents(model: TrainedModel, tmp_path: Path) -> None:
    tokenizer = WordPiece(model.tokenizer.tokens, TextRules(lowercase=True, strip_accents=False))
    with pytest.raises(ValueError, match=r"data\.strip_accents=False: google-research/bert has one rule for both"):
        export_tensorflow(dataclasses.replace(model, tokenizer=tokenizer), tmp_path / "tf1")


def test_read_tensorflow_refuses_incomplete_folders(model: TrainedModel, tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    export_tensorflow(model, tmp_path / "tf1")
    path = tmp_path / "tf1" / "bert_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_hidden_layers": 1}))
    with pytest.raises(ValueError, match=r"bert/encoder/layer_1/.* does not belong to the model that bert_config.json"):
        read_tensorflow(tmp_path / "tf1")
    (tmp_path / "tf1" / "vocab.txt").unlink()
    with pytest.raises(ValueError, match=r"vocab\.txt: no such file"):
        read_tensorflow(tmp_path / "tf1")


@pytest.mark.parametrize(
    ("name", "lowercase"), [("bert-base-chinese", True), ("bert-base-cased", False), ("bert-base-uncased", True)]
)
def test_suggests_lowercase_follows_the_words(real_data: Path, name: str, lowercase: bool) -> None:
    """In the Chinese vocabulary only the special tokens <S> and <T> have capitals."""
    vocabulary = WordPiece.load(real_data / "vocab" / name / "vocab.txt", TextRules(True, True))
    assert suggests_lowercase(vocabulary) is lowercase


def rewrite(folder: Path, arrays: dict[str, np.ndarray]) -> Path:
    """Replace the arrays of a folder's checkpoint."""
    for path in folder.glob("bert_model.ckpt*"):
        path.unlink()
    _write_arrays(folder / PREFIX, arrays)
    return folder


@pytest.mark.parametrize("slots", [("BERTAdam", "BERTAdam_1"), ("lamb_m", "lamb_v"), ("adam_m", "adam_v")])
def test_read_tensorflow_drops_slots_of_any_optimizer(model: TrainedModel, tmp_path: Path, slots: tuple) -> None:
    pytest.importorskip("tensorflow")
    folder = export_tensorflow(model, tmp_path / "tf1")
    arrays = read_arrays(folder)
    more = {f"{name}/{slot}": np.zeros_like(x) for name, x in arrays.items() for slot in slots if name != "global_step"}
    imported = read_tensorflow(rewrite(folder, arrays | more), lowercase=True)
    assert_same(imported.params, model.params)
    assert imported.notes == ("text is lower-cased, as requested",) and not imported.untrained


def test_read_tensorflow_leaves_out_a_squad_head(model: TrainedModel, tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    folder = export_tensorflow(model, tmp_path / "tf1")
    arrays = {name: x for name, x in read_arrays(folder).items() if not name.startswith("cls/")}
    squad = {
        "cls/squad/output_weights": np.zeros((2, 32), np.float32),
        "cls/squad/output_bias": np.zeros(2, np.float32),
    }
    squad |= {f"{name}/lamb_m": x for name, x in squad.items()}
    imported = read_tensorflow(rewrite(folder, arrays | squad))
    assert imported.notes[1] == (
        "left out, since BERT's pretraining has no such array: cls/squad/output_bias, cls/squad/output_weights"
    )
    assert imported.untrained == ("MLM head", "NSP head")
    assert_same(imported.params["encoder"], model.params["encoder"])
    difference = compare_with_tensorflow(as_run(imported, tmp_path / "run"), folder)
    assert [*difference.values] == ["hidden states"] and difference.not_compared == ("MLM logits", "NSP logits")


def test_read_tensorflow_names_git_lfs_pointers(model: TrainedModel, tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    folder = export_tensorflow(model, tmp_path / "tf1")
    for name in ("bert_model.ckpt.data-00000-of-00001", "bert_model.ckpt.index", "bert_config.json", "vocab.txt"):
        whole = (folder / name).read_bytes()
        (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
        with pytest.raises(ValueError, match=rf"{name} is a Git LFS pointer, not the file itself; run `git lfs pull`"):
            read_tensorflow(folder)
        (folder / name).write_bytes(whole)
