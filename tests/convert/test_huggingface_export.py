"""The exported folder: transformers loads it, its bytes are reproducible, and it overwrites no other files."""

from __future__ import annotations

import dataclasses
import itertools
import json
import lzma
import typing
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import safetensors.numpy
from exported_models import trained_model, wordpiece

from bertjax.config import Config, FinetuneConfig, StageConfig, load_recipe
from bertjax.convert import compare
from bertjax.convert.compare import PAIRS, compare_with_transformers
from bertjax.convert.huggingface.exporter import FILES, export_huggingface
from bertjax.convert.huggingface.names import their_shapes
from bertjax.convert.model_card import _PRIVATE, model_card
from bertjax.run.telemetry import METRICS_FILE
from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.wordpiece import SPECIAL_TOKENS, WordPiece

pytestmark = pytest.mark.run

TEXTS = [
    *itertools.chain(*PAIRS),
    "It's 3.5% — don't\tpanic\u00a0\u200b!  NAÏVE naïve Museum museums, CAFÉ İstanbul ß ﬁ \u0301x [unused1]",
    "नमस्ते दुनिया สวัสดี 東京は日本の首都です。 한국어 😀 " + " ".join("x" * n for n in (100, 101, 200, 201)),
    "",
]


@pytest.fixture
def model(tmp_path):
    return trained_model(tmp_path / "run")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """(model, folder) of an export that no test changes."""
    model = trained_model(tmp_path_factory.mktemp("run"))
    return model, export_huggingface(model, tmp_path_factory.mktemp("out") / "huggingface")


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_folder_has_the_files_of_hugging_face(exported):
    model, folder = exported
    assert sorted(contents(folder)) == sorted((*FILES, "vocab.txt"))
    config = json.loads((folder / "config.json").read_bytes())
    assert config["vocab_size"] == model.tokenizer.vocab_size
    assert config["pad_token_id"] == model.tokenizer.pad_id != 0
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    assert {name: tensor.shape for name, tensor in tensors.items()} == their_shapes(model.config.model)
    assert (folder / "vocab.txt").read_bytes() == model.tokenizer.files["vocab.txt"]
    assert len({(path.stat().st_mode & 0o777) for path in folder.iterdir()}) == 1


@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_tanh"])
def test_logits_equal_transformers(transformers, tmp_path, hidden_act):
    model = trained_model(tmp_path / "run", hidden_act=hidden_act, dtype="bfloat16")
    difference = compare_with_transformers(model, export_huggingface(model, tmp_path / "out"))
    assert list(difference.values) == ["hidden states", "MLM logits", "NSP logits"]
    assert difference.largest < 2e-6
    assert str(difference).startswith("hidden states ")


def test_comparison_detects_another_gelu_or_tokenizer(transformers, exported):
    model, folder = exported
    tanh = replace(model.config, model=replace(model.config.model, hidden_act="gelu_tanh"))
    with pytest.raises(RuntimeError, match="different outputs"):
        compare_with_transformers(replace(model, config=tanh), folder)
    with pytest.raises(RuntimeError, match="tokenizer encodes"):
        compare_with_transformers(replace(model, tokenizer=wordpiece(lowercase=False)), folder)


def test_nothing_is_compared_without_transformers(exported, monkeypatch):
    monkeypatch.setattr(compare.importlib.util, "find_spec", lambda name: None)
    assert compare_with_transformers(*exported) is None


def assert_auto_tokenizer_gives_our_ids(transformers, folder, ours, texts):
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    expected = [[ours.cls_id, *ids.tolist(), ours.sep_id] for ids in ours.encode_sentences(texts)]
    assert theirs(texts, verbose=False)["input_ids"] == expected
    special = [ours.pad_id, ours.unk_id, ours.cls_id, ours.sep_id, ours.mask_id]
    assert theirs.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == special
    their_special = (
        theirs.pad_token_id,
        theirs.unk_token_id,
        theirs.cls_token_id,
        theirs.sep_token_id,
        theirs.mask_token_id,
    )
    assert list(their_special) == special
    return theirs, expected


@pytest.mark.parametrize(("lowercase", "strip_accents"), list(itertools.product((True, False), repeat=2)))
def test_auto_tokenizer_gives_our_ids(transformers, tmp_path, lowercase, strip_accents):
    model = trained_model(tmp_path / "run", wordpiece(lowercase, strip_accents))
    folder = export_huggingface(model, tmp_path / "out")
    theirs, ids = assert_auto_tokenizer_gives_our_ids(transformers, folder, model.tokenizer, TEXTS)
    assert theirs.model_max_length == model.config.data.sequence_length
    used = {model.tokenizer.tokens[token] for text in ids for token in text}
    assert ("Museum" in used) == (not lowercase) and ("naïve" in used) == (not strip_accents)
    pair = theirs("the museum", "of drawings [MASK]")
    assert pair["token_type_ids"] == [0, 0, 0, 0, 1, 1, 1, 1] and pair["input_ids"][-2] == model.tokenizer.mask_id


@pytest.mark.parametrize(
    ("vocabulary", "lowercase"),
    [
        ("bert-base-uncased", True),
        *(pytest.param(name, False, marks=pytest.mark.long) for name in ("bert-base-cased", "bert-base-chinese")),
    ],
)
def test_auto_tokenizer_gives_our_ids_on_real_text(transformers, tmp_path, real_data, vocabulary, lowercase):
    tokenizer = WordPiece.load(real_data / "vocab" / vocabulary / "vocab.txt", TextRules(lowercase, lowercase))
    folder = export_huggingface(trained_model(tmp_path / "run", tokenizer), tmp_path / "out")
    lines = []
    for file in ("wikipedia_en/AA_00.txt.xz", "wikipedia_zh/zh_00.txt.xz", "wikipedia_ko/ko_00.txt.xz"):
        with lzma.open(real_data / file, "rt", encoding="utf-8") as stream:
            lines += stream.read(200_000).splitlines()
    assert_auto_tokenizer_gives_our_ids(transformers, folder, tokenizer, [*TEXTS, *lines])


def test_export_is_reproducible(model, tmp_path):
    first = contents(export_huggingface(model, tmp_path / "one"))
    assert contents(export_huggingface(model, tmp_path / "somewhere" / "else")) == first


def test_export_has_no_local_paths(exported):
    model, folder = exported
    for name, content in contents(folder).items():
        for private in ("secret", str(model.directory), str(folder)):
            assert private.encode() not in content, name


def test_earlier_export_is_replaced(model, tmp_path):
    folder = export_huggingface(model, tmp_path / "out")
    other = replace(model, step=900, params={**model.params, "pooler": _doubled(model.params["pooler"])})
    assert export_huggingface(other, tmp_path / "out") == folder
    assert contents(folder) == contents(export_huggingface(other, tmp_path / "fresh"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fresh", "out"]


def _doubled(tree):
    return {"dense": {name: array * 2 for name, array in tree["dense"].items()}}


@pytest.mark.parametrize("change", ["another file", "weights trained further", "no card", "a file of that name"])
def test_foreign_or_changed_folder_is_not_touched(model, tmp_path, change):
    folder = tmp_path / "out"
    if change == "a file of that name":
        folder.write_text("mine")
        message = "there is a file of that name"
    else:
        export_huggingface(model, folder)
        message = "its model.safetensors does not match the digest in its README.md"
    if change == "another file":
        (folder / "notes.txt").write_text("mine")
        message = "holds notes.txt"
    elif change == "weights trained further":
        weights = bytearray((folder / "model.safetensors").read_bytes())
        weights[-1] ^= 1
        (folder / "model.safetensors").write_bytes(weights)
    elif change == "no card":
        (folder / "README.md").unlink()
    before = contents(folder) if folder.is_dir() else folder.read_text()
    with pytest.raises(ValueError, match=message):
        export_huggingface(model, folder)
    assert (contents(folder) if folder.is_dir() else folder.read_text()) == before


def test_card_has_the_figures_of_the_exported_step(model, tmp_path):
    model.directory.mkdir()
    records = [
        {"step": 600, "eval/mlm_loss": 9.875},
        {"step": 700, "train/mlm_loss": 8.125},
        {"step": 700, "eval/mlm_loss": 4.5, "eval/mlm_accuracy": 0.254, "eval/nsp_accuracy": 0.81},
        {"step": 700, "baseline/no_context_loss": 6.25, "baseline/no_context_accuracy": 0.06},
    ]
    (model.directory / METRICS_FILE).write_text("".join(json.dumps(record) + "\n" for record in records))
    card = (export_huggingface(model, tmp_path / "out") / "README.md").read_text(encoding="utf-8")
    assert "| MLM loss (nats) | 4.500 | 6.250 (word frequencies, and copies of the tokens that are shown) |" in card
    assert "| MLM accuracy | 25.4% | 6.0% (the most frequent token, and copies of the tokens that are shown) |" in card
    assert "| NSP accuracy | 81.0% |  |" in card
    assert "9.875" not in card and "8.125" not in card
    assert "| steps | 700 of 1,000 |" in card and "| kinds of source | text, docs |" in card
    parameters = sum(np.prod(shape) for shape in their_shapes(model.config.model).values())
    assert f"{parameters:,} parameters" in card


def test_hub_parses_the_card(model, tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub", reason="needs huggingface_hub")
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache" / "models--ada--base").mkdir(parents=True)
    sources = ("hf:wikimedia/wikipedia:20231101.de", "wikipedia:/secret/frwiki-latest.xml.bz2", "novels:")

    def card(init_from: str, sources: tuple[str, ...] = sources):
        config = replace(model.config, init_from=init_from, data=replace(model.config.data, sources=sources))
        text = model_card(replace(model, config=config), 10, "digest")
        assert "secret" not in text
        return hub.ModelCard(text)  # parses the card as the Hub does

    model.directory.mkdir(exist_ok=True)
    figures = {"step": model.step, "eval/mlm_loss": 4.5, "eval/mlm_accuracy": 0.25}
    (model.directory / METRICS_FILE).write_text(json.dumps(figures) + "\n")
    read = card("hf:ada/base@main")
    assert (read.data.language, read.data.datasets) == (["de", "en", "fr"], ["wikimedia/wikipedia"])
    assert (read.data.base_model, read.data.license, read.data.library_name) == ("ada/base", None, "transformers")
    results = {one.metric_type: (one.metric_value, one.task_type) for one in read.data.eval_results}
    assert results["mlm_accuracy"] == (0.25, read.data.pipeline_tag) and len(results) == 2
    assert card("hf:secret/folder").data.base_model is None  # a local folder
    unknown = card("", ("notes/", "text:enwik/*.txt")).data
    assert (unknown.language, unknown.datasets, unknown.license) == (None, None, "apache-2.0")


def test_card_lists_settings_that_are_not_defaults(exported):
    body = (exported[1] / "README.md").read_text(encoding="utf-8")
    assert "This checkpoint was not evaluated" in body
    rows = body.partition("Settings that differ")[2].partition("</details>")[0].count("\n| `")
    assert 0 < rows < 30 and "| `optimizer.beta1` |" not in body and "| `model." not in body


def test_card_lists_settings_that_differ_from_the_recipe(model):
    recipe = load_recipe("quickstart")
    config = replace(recipe, optimizer=replace(recipe.optimizer, beta2=0.95))
    text = model_card(replace(model, config=replace(config, model=model.config.model)), 10, "digest")
    settings = text.partition("Settings that differ from bertjax's recipe `quickstart`")[2].partition("</details>")[0]
    assert settings.count("\n| `") == 1 and "| `optimizer.beta2` | `0.95` |" in settings


@pytest.mark.parametrize("init_from", ["", "hf:other"])
def test_card_has_licence_unless_weights_are_foreign(model, init_from):
    from_scratch = replace(model, config=replace(model.config, init_from=init_from))
    assert ('license: "apache-2.0"' in model_card(from_scratch, 10, "digest")) == (not init_from)


def test_card_names_the_untrained_nsp_head(model, tmp_path):
    config = replace(model.config, training=replace(model.config.training, objectives=("mlm",)))
    card = (export_huggingface(replace(model, config=config), tmp_path / "out") / "README.md").read_text()
    assert "its head for the next sentence (NSP) was never trained" in card


def test_card_names_no_local_files(model):
    source = "text:/secret/notes/*.txt"
    data = replace(
        model.config.data,
        sources=(source,),
        active_sources=(source,),
        store=("/secret/store",),
        groups="file:/secret/groups",
    )
    stages = (StageConfig(start=1, active_sources=(source,), mask_probability=0.3),)
    card = model_card(replace(model, config=replace(model.config, data=data, stages=stages)), 10, "digest")
    assert "secret" not in card and "'mask_probability': 0.3" in card


PUBLIC = (  # text keys without paths or names of machines
    *("name", "log", "profile", "model.family", "model.head"),
    *(
        "data.tokenizer",
        "data.encoding",
        "data.augment",
        "data.filters",
        "data.masking",
        "data.mask_count",
        "data.replace_by",
        "data.random_ids",
    ),
    *("hooks", "plugins", "training.budget", "training.objectives", "training.skips"),
    *("task.name", "task.text", "task.label", "task.id", "task.labels", "task.positives"),
)


def text_keys(config: type, before: str = "") -> Iterator[str]:
    """Yield the keys of a config that take any text, or lists or tables of text."""
    types = typing.get_type_hints(config)
    for field in dataclasses.fields(config):
        kind = types[field.name]
        if dataclasses.is_dataclass(kind):
            yield from text_keys(kind, f"{before}{field.name}.")
        elif "str" in str(kind) and "Literal" not in str(kind):
            yield before + field.name


def test_every_text_key_is_public_or_private() -> None:
    keys = {*text_keys(Config), *text_keys(FinetuneConfig)}
    assert keys == {*PUBLIC, *_PRIVATE} and not {*PUBLIC} & {*_PRIVATE}
