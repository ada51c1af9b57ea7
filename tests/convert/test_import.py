"""Imported models keep their bits and outputs, start other models, and export again."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from exported_models import assert_same, trained_model, wordpiece

from bertjax.__main__ import main
from bertjax.cli import import_model
from bertjax.config import ModelConfig
from bertjax.convert import compare
from bertjax.convert.adapt import _EQUAL, _REPORTED, _SIZED, adapt
from bertjax.convert.foreign import ForeignModel
from bertjax.convert.huggingface.exporter import export_huggingface
from bertjax.convert.huggingface.importer import read_huggingface
from bertjax.convert.sources import as_run, read_source, write_run
from bertjax.families.networks import abstract_network
from bertjax.model.encoder import padded_vocab_size
from bertjax.model.network import bind
from bertjax.run.run_directory import TrainedModel, load_run
from bertjax.tokenization.byte_level import ByteLevelBPE
from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.wordpiece import WordPiece

pytestmark = pytest.mark.run


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TrainedModel:
    return trained_model(tmp_path_factory.mktemp("run"), hidden_act="gelu_tanh")


@pytest.fixture(scope="module")
def folder(model: TrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_huggingface(model, tmp_path_factory.mktemp("out") / "huggingface")


def foreign(model: TrainedModel) -> ForeignModel:
    params = jax.tree.map(np.asarray, model.params)
    return ForeignModel("here", model.config.model, model.tokenizer, params, (), ())


def test_huggingface_round_trip_keeps_the_bits(model: TrainedModel, folder: Path, tmp_path: Path) -> None:
    imported = read_huggingface(folder)
    assert_same(imported.params, model.params)
    assert imported.config == model.config.model
    assert imported.tokenizer.fingerprint == model.tokenizer.fingerprint
    assert not imported.untrained and not imported.notes
    run = load_run(write_run(as_run(imported, tmp_path / "run")))
    assert_same(run.params, model.params)
    assert run.step == 0
    again = read_source(str(tmp_path / "run"))
    assert_same(again.params, model.params)


@pytest.mark.parametrize("zipped", [True, False])
def test_import_reads_pickled_state_dicts(model: TrainedModel, folder: Path, tmp_path: Path, zipped: bool) -> None:
    torch = pytest.importorskip("torch")
    shutil.copytree(folder, tmp_path / "bin")
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    (tmp_path / "bin" / "model.safetensors").unlink()
    # As published until 2019: other names for LayerNorm, buffers, and a copy of the tied projection.
    renamed = {
        k.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): v
        for k, v in tensors.items()
    }
    state = {k: torch.from_numpy(v) for k, v in renamed.items()}
    state["cls.predictions.decoder.weight"] = state["bert.embeddings.word_embeddings.weight"]
    state["bert.embeddings.position_ids"] = torch.arange(80)[None]
    torch.save(state, tmp_path / "bin" / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    assert_same(read_huggingface(tmp_path / "bin").params, model.params)


def test_import_of_a_bare_encoder_initialises_heads(model: TrainedModel, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "encoder")
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    bare = {
        name.removeprefix("bert."): x for name, x in tensors.items() if not name.startswith(("cls.", "bert.pooler"))
    }
    bare["classifier.weight"] = np.zeros((2, 32), np.float32)
    safetensors.numpy.save_file(bare, tmp_path / "encoder" / "model.safetensors")
    imported = read_huggingface(tmp_path / "encoder")
    assert imported.untrained == ("pooler", "MLM head", "NSP head")
    assert imported.notes == ("left out, since BertForPreTraining has no such tensors: classifier.weight",)
    assert_same(imported.params["encoder"], model.params["encoder"])
    assert np.std(imported.params["pooler"]["dense"]["kernel"]) > 0


def test_import_drops_rows_beyond_the_vocabulary(model: TrainedModel, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "padded")
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    for name in ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias"):
        tensors[name] = np.concatenate([tensors[name], np.ones_like(tensors[name][:6])])
    safetensors.numpy.save_file(tensors, tmp_path / "padded" / "model.safetensors")
    imported = read_huggingface(tmp_path / "padded")
    assert imported.notes == ("6 rows of the word table beyond the vocabulary were left out",)
    assert_same(imported.params, model.params)


def test_import_reads_tokenizer_json_without_vocab_txt(model: TrainedModel, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "json")
    (tmp_path / "json" / "vocab.txt").unlink()
    assert read_huggingface(tmp_path / "json").tokenizer.fingerprint == model.tokenizer.fingerprint


def broken_weights(change) -> object:
    def apply(folder: Path) -> None:
        tensors = safetensors.numpy.load_file(folder / "model.safetensors")
        change(tensors)
        safetensors.numpy.save_file(tensors, folder / "model.safetensors")

    return apply


def broken_config(**values: object) -> object:
    def apply(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return apply


def untied(tensors: dict) -> None:
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"] + 1


QUERY = "bert.encoder.layer.1.attention.self.query.weight"
BROKEN = {
    "no config": (lambda f: (f / "config.json").unlink(), "config.json: no such file"),
    "config not JSON": (lambda f: (f / "config.json").write_text("{"), "config.json: not JSON"),
    "another architecture": (broken_config(model_type="gpt2"), "model_type is 'gpt2'"),
    "relative positions": (broken_config(position_embedding_type="relative_key"), "position_embedding_type"),
    "another activation": (broken_config(hidden_act="tanh"), "hidden_act is 'tanh'"),
    "a list for the activation": (broken_config(hidden_act=["gelu"]), r"hidden_act is \['gelu'\]"),
    "absurd size": (broken_config(hidden_size=10**12), "hidden_size is 1000000000000"),
    "size of words": (broken_config(hidden_size="big"), "hidden_size is 'big'"),
    "no layers": (broken_config(num_hidden_layers=0), "at least 1"),
    "odd heads": (broken_config(num_attention_heads=5), "not divisible"),
    "more layers": (broken_config(num_hidden_layers=3), "missing bert.encoder.layer.2"),
    "another width": (broken_config(intermediate_size=40), "has shape"),
    "no vocabulary": (
        lambda f: [(f / n).unlink() for n in ("vocab.txt", "tokenizer.json")],
        "no tokenizer.json, no vocab.txt, .*; a tokenizer needs one of them",
    ),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "no model.safetensors and no pytorch_model.bin"),
    "missing tensor": (broken_weights(lambda t: t.pop(QUERY)), f"missing {QUERY}"),
    "untied": (broken_weights(untied), "decoder.weight differs from bert.embeddings.word_embeddings.weight"),
    "more layers than the weights": (broken_config(num_hidden_layers=1000, intermediate_size=2**20), "has shape"),
    "path-like name": (broken_weights(lambda t: t.update({"../../evil": np.ones(2, np.float32)})), "left over"),
    "NaN": (broken_weights(lambda t: t[QUERY].__setitem__((0, 0), np.nan)), "contains NaN or infinity"),
    "integers": (broken_weights(lambda t: t.update({QUERY: np.ones((32, 32), np.int32)})), "dtype int32"),
    "another shape": (broken_weights(lambda t: t.update({QUERY: t[QUERY][:16].copy()})), r"has shape \(16, 32\)"),
    "fewer words": (
        broken_weights(lambda t: t.update({"bert.embeddings.word_embeddings.weight": np.ones((5, 32), np.float32)})),
        "belong to different models",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_folder_is_refused_and_nothing_written(folder: Path, tmp_path: Path, name: str) -> None:
    breaks, message = BROKEN[name]
    shutil.copytree(folder, tmp_path / "broken")
    breaks(tmp_path / "broken")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match=message):
        write_run(as_run(read_source(f"hf:{tmp_path / 'broken'}"), tmp_path / "run"))
    assert sorted(tmp_path.rglob("*")) == before


def test_within_limit_detects_nan() -> None:
    ones, real = np.ones((1, 2, 3)), np.ones((1, 2), bool)
    outputs = {"hidden states": ones, "MLM logits": np.full((1, 2, 3), np.nan)}
    for order in (list(outputs), list(reversed(outputs))):
        with pytest.raises(RuntimeError, match=r"different outputs: .*MLM logits nan"):
            compare.within_limit(dict.fromkeys(order, ones), {name: outputs[name] for name in order}, real, "it")


def test_import_with_different_outputs_is_not_kept(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("torch", "transformers"):
        pytest.importorskip(package)
    monkeypatch.setattr(compare, "LIMIT", -1.0)
    arguments = argparse.Namespace(source=f"hf:{folder}", output=str(tmp_path / "run"))
    with pytest.raises(RuntimeError, match="different outputs"):
        import_model.run(arguments)
    assert not (tmp_path / "run").exists()


def test_import_reports_unreadable_config_in_one_sentence(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in ("torch", "transformers"):
        pytest.importorskip(package)
    shutil.copytree(folder, tmp_path / "broken")
    broken_config(id2label=["a"])(tmp_path / "broken")
    assert main(["import", f"hf:{tmp_path / 'broken'}", "--output", str(tmp_path / "run")]) == 1
    assert re.search(
        r"^bertjax import: \S+broken: transformers cannot read it \(AttributeError", capsys.readouterr().err
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("with_transformers", [True, False])
def test_import_reads_a_folder_without_model_type(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch, with_transformers: bool
) -> None:
    """As published before 2020: a vocabulary, weights, and a config that does not name its class."""
    old = Path(shutil.copytree(folder, tmp_path / "old"))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (old / name).unlink()
    config = json.loads((old / "config.json").read_text())
    values = {key: value for key, value in config.items() if key not in ("model_type", "architectures", "dtype")}
    (old / "config.json").write_text(json.dumps(values))
    if with_transformers:
        pytest.importorskip("torch"), pytest.importorskip("transformers")
    else:
        monkeypatch.setattr(compare.importlib.util, "find_spec", lambda name: None)
    assert main(["import", f"hf:{old}", "--output", str(tmp_path / "run")]) == 0
    shown = "compared with transformers on real text: hidden states" if with_transformers else "Not verified"
    assert shown in capsys.readouterr().out


def test_import_reports_uncompared_token_ids(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An ALBERT with a WordPiece vocabulary, which transformers' AlbertTokenizer does not read."""
    pytest.importorskip("torch"), pytest.importorskip("transformers")
    model = trained_model(tmp_path / "source", family="albert", layer_groups=1, embedding_size=16)
    albert = export_huggingface(model, tmp_path / "albert")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (albert / name).unlink()
    assert main(["import", f"hf:{albert}", "--output", str(tmp_path / "run")]) == 0
    assert re.search(
        r"on real text: hidden states \S+, .*; not compared: token ids, because AlbertTokenizer of transformers reads "
        r"spiece\.model or tokenizer\.json, and the folder has vocab\.txt",
        capsys.readouterr().out,
    )


@pytest.mark.long  # the suite imports it in test_real_models.py
def test_import_reads_a_published_albert_of_molecules(real_data: Path, tmp_path: Path) -> None:
    assert main(["import", f"hf:{real_data}/checkpoints/rxnmapper_albert", "--output", str(tmp_path / "run")]) == 0
    assert load_run(tmp_path / "run").config.model.layer_groups == 1


def test_export_refuses_tokenizer_unreadable_by_transformers(tmp_path: Path, capsys, monkeypatch) -> None:
    write_run(trained_model(tmp_path / "run"))
    difference = compare.Difference({"hidden states": 0.0}, ("token ids, because of a reason",))
    monkeypatch.setattr(
        "bertjax.convert.huggingface.huggingface_format.compare_with_transformers", lambda *a, **k: difference
    )
    assert main(["export", str(tmp_path / "run"), "--output", str(tmp_path / "out")]) == 1
    assert "not compared: token ids, because of a reason; correct the export" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# Fields of ModelConfig that need no rule in `adapt`.
WITHOUT_A_RULE = {
    # Heads of the new network that the old one lacks are initialised.
    *("family", "pooler", "task_heads", "head", "num_labels", "features", "lstm_size"),
    # Tables and projections that `adapt` fits.
    *("vocab_size", "mask_token_id", "vocab_pad_multiple", "max_position_embeddings", "type_vocab_size"),
    *("global_tokens", "global_projections"),
    # Dropout, and the initialisation of weights.
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout_prob"),
    *("initializer", "initializer_range"),
}


def test_every_model_field_has_one_rule_in_adapt() -> None:
    """A new field of ModelConfig fails here until it is classified."""
    size_keys = {name for names in _SIZED.values() for name in names}
    classes = [set(_EQUAL), set(_REPORTED), size_keys, WITHOUT_A_RULE]
    assert sorted(name for names in classes for name in names) == sorted(
        field.name for field in dataclasses.fields(ModelConfig)
    )


def test_adapt_to_the_same_model_changes_nothing(model: TrainedModel) -> None:
    params, notes = adapt(foreign(model), model.config.model, model.tokenizer)
    assert_same(params, model.params)
    assert not notes


def test_adapt_starts_a_longformer_from_a_roberta(tmp_path: Path) -> None:
    wide = {"pooler": "none", "type_vocab_size": 1, "layer_norm_eps": 1e-5, "max_position_embeddings": 16}
    roberta = trained_model(tmp_path, wordpiece(), family="roberta", **wide)
    longer = {"family": "longformer", "max_position_embeddings": 40, "window": 4, "global_every": 0}
    config = dataclasses.replace(roberta.config.model, **longer, global_tokens="marked", global_projections=True)
    params, notes = adapt(foreign(roberta), config, roberta.tokenizer)
    text = " ".join(notes)
    assert "start as copies of the ordinary ones" in text and "has 40 rows: the source's 16, repeated" in text
    encoder, was = params["encoder"], roberta.params["encoder"]
    attention = encoder["layers"]["attention"]
    for role in ("query", "key", "value"):
        jax.tree.map(np.testing.assert_array_equal, attention[f"{role}_global"], was["layers"]["attention"][role])
    table, old = encoder["embeddings"]["position"], np.asarray(was["embeddings"]["position"])
    np.testing.assert_array_equal(table, np.concatenate([old, old, old[:8]]))
    # Within one window, it computes the same as RoBERTa.
    ids = jnp.arange(5, 11, dtype=jnp.int32)[None]
    narrow, wide_one = (
        bind(abstract_network(model)[0], weights).encoder(ids, ids * 0, ids * 0 + 1, packed=False)
        for model, weights in ((roberta.config.model, roberta.params), (dataclasses.replace(config, window=8), params))
    )
    np.testing.assert_array_equal(narrow, wide_one)
    back, notes = adapt(ForeignModel("here", config, roberta.tokenizer, params, (), ()), roberta.config.model,
                        roberta.tokenizer)  # fmt: skip
    assert any("were left out: the model has none" in note for note in notes)
    jax.tree.map(np.testing.assert_array_equal, back, jax.tree.map(np.asarray, roberta.params))


def test_adapt_to_another_padding_keeps_real_rows(model: TrainedModel) -> None:
    size = model.tokenizer.vocab_size
    for multiple in (1, 8, 512):
        config = dataclasses.replace(model.config.model, vocab_pad_multiple=multiple)
        params, _ = adapt(foreign(model), config, model.tokenizer)
        word = params["encoder"]["embeddings"]["word"]
        assert word.shape == (padded_vocab_size(config), 32)
        np.testing.assert_array_equal(word[:size], model.params["encoder"]["embeddings"]["word"][:size])
        assert not word[size:].any() and not params["mlm_head"]["bias"][size:].any()


def test_new_tokens_start_as_the_mean_of_their_pieces(model: TrainedModel) -> None:
    old = model.tokenizer
    new = WordPiece([*old.tokens, "cab", "##ab", "漢"], TextRules(True, True))
    config = dataclasses.replace(model.config.model, vocab_size=new.vocab_size)
    params, notes = adapt(foreign(model), config, new)
    table, grown = np.asarray(model.params["encoder"]["embeddings"]["word"]), params["encoder"]["embeddings"]["word"]
    ids = {token: number for number, token in enumerate(old.tokens)}
    size = old.vocab_size
    np.testing.assert_array_equal(grown[:size], table[:size])
    # Values of about 0.02 may cancel in a mean, whose rounding is that of the larger values.
    near = {"rtol": 1e-6, "atol": 1e-8}
    np.testing.assert_allclose(grown[size], table[[ids["c"], ids["##a"], ids["##b"]]].mean(axis=0), **near)
    np.testing.assert_allclose(grown[size + 1], table[[ids["a"], ids["##b"]]].mean(axis=0), **near)
    np.testing.assert_allclose(grown[size + 2], table[:size].mean(axis=0), **near)
    bias = np.asarray(model.params["mlm_head"]["bias"])
    np.testing.assert_allclose(params["mlm_head"]["bias"][size + 1], bias[[ids["a"], ids["##b"]]].mean(), rtol=1e-6)
    assert notes == ["3 tokens are new (cab, ##ab, 漢): each starts as the mean of its pieces"]


def test_new_byte_level_word_starts_as_its_pieces(tmp_path: Path) -> None:
    """A word after a space keeps its space: "Ġcats" starts as "Ġcat" and "s", not as "cat" and "s"."""
    letters = [*map(chr, range(33, 127)), "Ġ", "Ġc", "Ġca", "Ġcat", "ca", "cat"]
    merges = ["Ġ c", "Ġc a", "Ġca t", "c a", "ca t"]
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]

    def byte_tokenizer(*more: tuple[str, str]) -> ByteLevelBPE:
        ids = {token: n for n, token in enumerate((*letters, *special, *map("".join, more)))}
        lines = "\n".join(["#version: 0.2", *merges, *map(" ".join, more)])
        return ByteLevelBPE(json.dumps(ids).encode(), lines.encode(), TextRules(False, False, prefix_space=False))

    old, new = byte_tokenizer(), byte_tokenizer(("Ġcat", "s"), ("cat", "s"))
    model = trained_model(tmp_path, old)
    params, _ = adapt(foreign(model), dataclasses.replace(model.config.model, vocab_size=new.vocab_size), new)
    table, grown = np.asarray(model.params["encoder"]["embeddings"]["word"]), params["encoder"]["embeddings"]["word"]
    ids = {token: n for n, token in enumerate(old.tokens)}
    for row, pieces in ((-2, ("Ġcat", "s")), (-1, ("cat", "s"))):
        expected = table[[ids[piece] for piece in pieces]].mean(axis=0)
        np.testing.assert_allclose(grown[: new.vocab_size][row], expected, rtol=1e-6)


def test_adapt_keeps_the_projection_to_a_teacher(tmp_path: Path) -> None:
    model = trained_model(tmp_path / "student", teacher_width=24)
    grown = WordPiece([*model.tokenizer.tokens, "cab"], TextRules(True, True))
    config = dataclasses.replace(model.config.model, vocab_size=grown.vocab_size)
    params, _ = adapt(foreign(model), config, grown)
    assert_same(params["teacher_projection"], model.params["teacher_projection"])
    params, notes = adapt(foreign(model), dataclasses.replace(config, teacher_width=16), grown)
    assert params["teacher_projection"]["kernel"].shape == (32, 16)
    assert "of another size in the source; initialised at random" in notes[0]
    params, _ = adapt(foreign(model), dataclasses.replace(config, teacher_width=0), grown)
    assert "teacher_projection" not in params


def test_adapt_reports_changed_attention(tmp_path: Path) -> None:
    model = trained_model(tmp_path / "run", position_embedding="rope")
    config = dataclasses.replace(model.config.model, rope_theta=160_000.0, window=16)
    params, notes = adapt(foreign(model), config, model.tokenizer)
    assert_same(params, model.params)
    assert notes == ["model.window: 0 in the source, 16 here", "model.rope_theta: 10000 in the source, 160000 here"]


def test_adapt_refuses_another_vocabulary_or_network(model: TrainedModel) -> None:
    other = WordPiece([*wordpiece().tokens[11:16], *(f"w{n}" for n in range(300))], TextRules(True, True))
    config = dataclasses.replace(model.config.model, vocab_size=other.vocab_size)
    with pytest.raises(ValueError, match=r"another vocabulary: .* of its .* tokens are not in this one"):
        adapt(foreign(model), config, other)
    config = dataclasses.replace(model.config.model, num_hidden_layers=3, hidden_act="gelu")
    with pytest.raises(ValueError, match=r"num_hidden_layers: 2 there, 3 here\n  model.hidden_act"):
        adapt(foreign(model), config, model.tokenizer)


def test_longer_tables_repeat_positions_and_segments(model: TrainedModel) -> None:
    config = dataclasses.replace(model.config.model, max_position_embeddings=200, type_vocab_size=4)
    params, notes = adapt(foreign(model), config, model.tokenizer)
    old, new = model.params["encoder"]["embeddings"], params["encoder"]["embeddings"]
    np.testing.assert_array_equal(new["position"], np.concatenate([old["position"]] * 3)[:200])
    np.testing.assert_array_equal(new["token_type"], np.asarray(old["token_type"])[[0, 1, 0, 0]])
    assert len(notes) == 2 and "repeated" in notes[0]
    shorter = dataclasses.replace(model.config.model, max_position_embeddings=40)
    params, notes = adapt(foreign(model), shorter, model.tokenizer)
    np.testing.assert_array_equal(params["encoder"]["embeddings"]["position"], old["position"][:40])
    assert notes == ["the position table was cut from 80 to 40"]


@pytest.mark.long
def test_command_line_imports_compares_and_exports(
    model: TrainedModel,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["import", f"hf:{folder}", "--output", "run"]) == 0
    output = capsys.readouterr().out
    assert "hidden states" in output or "not compared" in output
    assert "imported to run" in output
    assert main(["fill-mask", "run", "the [MASK] of drawings"]) == 0
    assert main(["export", "run", "--to", "huggingface", "--output", "again"]) == 0
    assert "None by bertjax" in (tmp_path / "again" / "README.md").read_text()
    ours, theirs = (safetensors.numpy.load_file(f / "model.safetensors") for f in (tmp_path / "again", folder))
    assert ours.keys() == theirs.keys()
    for name in theirs:
        np.testing.assert_array_equal(ours[name], theirs[name])
    capsys.readouterr()
    assert main(["import", f"hf:{folder}", "--output", "run"]) == 1 and "not empty" in capsys.readouterr().err
    assert main(["import", str(folder), "--output", "other"]) == 1 and f"write hf:{folder}" in capsys.readouterr().err
