"""A sentence-transformers folder gives the vectors that sentence-transformers computes, or is refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exported_models import trained_model

import bertjax
from bertjax.__main__ import main
from bertjax.convert.sentence_transformers.reader import vector_options
from bertjax.convert.sentence_transformers.sentence_format import export_sentence_transformers
from bertjax.convert.sources import open_source
from bertjax.search.index import open_index

TEXTS = ["the museum opened", "of drawings, and the museum " * 9, "the"]
Edit = Callable[[Path], object]
pytestmark = [pytest.mark.run, pytest.mark.filterwarnings("ignore:.*were truncated:UserWarning")]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of one model, by pooling; the vectors of all but `mean` have length 1."""
    folder = tmp_path_factory.mktemp("sentence_transformers")
    model = trained_model(folder / "run")
    return {
        pooling: export_sentence_transformers(model, folder / pooling, pooling, normalize=pooling != "mean")
        for pooling in ("mean", "cls", "pooler")
    }


def change(path: Path, **values: Any) -> None:
    """Change keys of a JSON object; None removes a key."""
    content = json.loads(path.read_text()) | values
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def pooled_by(*modes: str) -> Edit:
    """Write a pooling in the keys that sentence-transformers wrote before version 6."""
    keys = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    config = {"word_embedding_dimension": 32} | {f"pooling_mode_{key}": key in modes for key in keys}
    return lambda folder: (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))


def pooled_by_name(mode: str | list[str]) -> Edit:
    config = {"embedding_dimension": 32, "pooling_mode": mode, "include_prompt": True}
    return lambda folder: (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))


def length_of_rows(folder: Path) -> None:
    change(folder / "sentence_bert_config.json", max_seq_length=12)


def length_of_tokenizer(folder: Path) -> None:
    """Set the length in the file where sentence-transformers 6 writes it."""
    change(folder / "sentence_bert_config.json", max_seq_length=None)
    change(folder / "tokenizer_config.json", model_max_length=10)


def default_prompt(folder: Path) -> None:
    prompts = {"prompts": {"query": "the museum of "}, "default_prompt_name": "query"}
    change(folder / "config_sentence_transformers.json", **prompts)


@pytest.mark.parametrize(
    ("pooling", "edits"),
    [
        ("cls", ()),
        ("pooler", ()),
        ("mean", (pooled_by("max_tokens"), length_of_rows)),
        ("mean", (pooled_by(), length_of_tokenizer)),
        ("mean", (pooled_by_name("cls"), default_prompt)),
        ("mean", (pooled_by_name(["max"]),)),
    ],
)
def test_encode_equals_sentence_transformers(exported, tmp_path, pooling: str, edits: tuple[Edit, ...]) -> None:
    library = pytest.importorskip("sentence_transformers")
    folder = shutil.copytree(exported[pooling], tmp_path / "folder")
    for edit in edits:
        edit(folder)
    theirs = library.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    ours = bertjax.load(f"hf:{folder}").encode(TEXTS)
    assert np.abs(ours - theirs).max() < 1e-5 * np.abs(theirs).max()


def test_encode_reads_folders_saved_by_the_library(exported, tmp_path) -> None:
    library = pytest.importorskip("sentence_transformers")
    theirs = library.SentenceTransformer(str(exported["cls"]), device="cpu")
    theirs.max_seq_length = 12
    theirs.save(str(tmp_path / "saved"))
    ours = bertjax.load(f"hf:{tmp_path / 'saved'}").encode(TEXTS)
    assert np.abs(ours - theirs.encode(TEXTS)).max() < 1e-5


@pytest.mark.long
def test_encode_equals_published_sentence_encoder(minilm) -> None:
    library = pytest.importorskip("sentence_transformers")
    texts = ["A query.", "a long passage about nothing " * 80]  # more than the 256 tokens of its settings
    theirs = library.SentenceTransformer(str(minilm), device="cpu").encode(texts)
    with pytest.warns(UserWarning, match="1 of 2 texts were cut to 256 tokens"):
        ours = bertjax.load(f"hf:{minilm}").encode(texts)
    assert np.abs(ours - theirs).max() < 1e-5


def test_options_replace_settings_of_folder(exported) -> None:
    model = open_source(f"hf:{exported['cls']}")[0]
    assert vector_options(model, {}) == {"pooling": "cls", "normalize": True, "max_length": 64, "prompt": ""}
    options = {"pooling": "max", "normalize": False, "max_length": 9, "prompt": "a"}
    assert vector_options(model, options) == options
    assert vector_options(model, {"pooling": "none"})["normalize"] is False


def test_settings_outlast_the_working_directory(exported, tmp_path, monkeypatch) -> None:
    folder = shutil.copytree(exported["cls"], tmp_path / "folder")
    monkeypatch.chdir(tmp_path)
    models = [bertjax.load("hf:folder") for _ in range(2)]
    expected = models[0].encode(TEXTS)
    monkeypatch.chdir("/")
    assert np.array_equal(models[1].encode(TEXTS), expected)
    shutil.rmtree(folder)
    assert np.array_equal(models[0].encode(TEXTS), expected)


def test_encoder_folder_within_sentence_transformers_folder(exported, tmp_path) -> None:
    """Before version 2 of sentence-transformers the encoder was in its own folder."""
    folder = shutil.copytree(exported["cls"], tmp_path / "folder")
    (folder / "0_Transformer").mkdir()
    for path in list(folder.iterdir()):
        if path.is_file() and path.name not in ("modules.json", "config_sentence_transformers.json"):
            path.rename(folder / "0_Transformer" / path.name)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))
    ours, whole = (bertjax.load(f"hf:{path}").encode(TEXTS) for path in (folder / "0_Transformer", exported["cls"]))
    assert np.array_equal(ours, whole)


def replaced_module(number: int, kind: str) -> Edit:
    def edit(folder: Path) -> None:
        modules = json.loads((folder / "modules.json").read_text())
        modules[number]["type"] = f"sentence_transformers.models.{kind}"
        (folder / "modules.json").write_text(json.dumps(modules))

    return edit


@pytest.mark.parametrize(
    ("pooling", "edit", "message"),
    [
        ("mean", pooled_by("mean_sqrt_len_tokens"), "pooling mean_sqrt_len_tokens is unsupported"),
        ("mean", pooled_by("cls_token", "mean_tokens"), r"pooling cls \+ mean is unsupported"),
        ("mean", pooled_by_name("lasttoken"), "pooling lasttoken is unsupported"),
        ("mean", pooled_by_name("weightedmean"), "pooling weightedmean is unsupported"),
        ("cls", replaced_module(2, "WordWeights"), "Transformer, Pooling, WordWeights are unsupported"),
        ("cls", replaced_module(1, "LSTM"), "Transformer, LSTM, Normalize are unsupported"),
        ("pooler", lambda f: change(f / "2_Dense" / "config.json", activation_function="torch.nn.modules.Identity"),
         "2_Dense: a dense layer other than BERT's pooler"),
        ("mean", lambda f: change(f / "1_Pooling" / "config.json", include_prompt=False), "include_prompt=false"),
        ("mean", lambda f: change(f / "sentence_bert_config.json", transformer_task="fill-mask"), "'fill-mask' is un"),
        ("mean", lambda f: change(f / "config_sentence_transformers.json", default_prompt_name="q"), "prompt_name='q'"),
        ("mean", lambda f: (f / "modules.json").write_text("[]"), "it lists no steps"),
        ("mean", lambda f: (f / "modules.json").write_text('[{"type": "a.Transformer", "path": "../x"}]'), "leaves"),
    ],
)  # fmt: skip
def test_unsupported_setting_is_refused_by_name(exported, tmp_path, pooling: str, edit: Edit, message: str) -> None:
    folder = shutil.copytree(exported[pooling], tmp_path / "folder")
    edit(folder)
    with pytest.raises(ValueError, match=message):
        bertjax.load(f"hf:{folder}").encode(TEXTS)


def test_pooling_option_replaces_unsupported_pooling(exported, tmp_path) -> None:
    folder = shutil.copytree(exported["pooler"], tmp_path / "folder")
    pooled_by("lasttoken")(folder)
    ours = bertjax.load(f"hf:{folder}").encode(TEXTS, pooling="cls", normalize=False)
    plain = bertjax.load(f"hf:{exported['mean']}").encode(TEXTS, pooling="cls")
    assert np.array_equal(ours, plain)


def test_verbs_use_settings_of_folder(exported, tmp_path, capsys) -> None:
    model, texts = f"hf:{exported['cls']}", tmp_path / "texts.txt"
    texts.write_text("".join(f"{text}\n" for text in TEXTS))
    expected = bertjax.load(model).encode(TEXTS, pooling="cls", normalize=True)
    assert main(["embed", model, str(texts), "--output", str(tmp_path / "a.npy")]) == 0
    assert "pooling cls, scaled to length 1" in capsys.readouterr().out
    assert np.array_equal(np.load(tmp_path / "a.npy"), expected)
    assert main(["embed", model, str(texts), "--output", str(tmp_path / "b.npy"), "--no-normalize"]) == 0
    assert np.abs(np.linalg.norm(np.load(tmp_path / "b.npy"), axis=1) - 1).min() > 1e-3
    words = [model, "the museum", "--index", str(tmp_path / "index"), "--documents", str(texts)]
    assert main(["search", *words]) == 0
    index = open_index(tmp_path / "index")
    assert index.origin.encoding.pooling == "cls" and np.array_equal(index.vectors, expected)
