"""Every family exports to each format and back: equal ids and outputs, no missing and no unexpected tensors."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from exported_models import compare_with_onnxruntime, export_onnx
from family_models import PIECES, TEXTS, family_model, piece_model, tokenizer_of
from safetensors.numpy import load_file
from their_families import IN_TRANSFORMERS, members

from bertjax.__main__ import main
from bertjax.config import ModelConfig
from bertjax.convert import compare as comparison
from bertjax.convert.compare import PAIRS, compare_with_transformers, our_outputs, pair_batch
from bertjax.convert.executable.network import input_names
from bertjax.convert.executable.onnx_format import load as load_onnx
from bertjax.convert.foreign import module_label
from bertjax.convert.huggingface.exporter import export_huggingface
from bertjax.convert.huggingface.importer import read_huggingface
from bertjax.convert.huggingface.names import architecture, hf_class, left_out
from bertjax.convert.huggingface.tokenizer_files import read_tokenizer
from bertjax.convert.sentence_transformers.sentence_format import (
    compare_with_sentence_transformers,
    export_sentence_transformers,
)
from bertjax.convert.sources import read_source, write_run
from bertjax.convert.tf1.tf1_format import export_tensorflow
from bertjax.families.networks import abstract_network
from bertjax.families.registry import FAMILIES, get_family
from bertjax.finetune.kinds import get_kind
from bertjax.model.network import HEADS as NETWORKS
from bertjax.run.run_directory import TrainedModel
from bertjax.tokenization.loading import load_tokenizer
from bertjax.tokenization.tokenizer import TextRules

pytest.importorskip("torch")
pytestmark = pytest.mark.run

HEADS = {"sequence": 3, "choice": 0, "tokens": 4, "span": 0, "vector": 0}
OTHERS = [name for name in IN_TRANSFORMERS if name != "bert"]


def has_graph(config: ModelConfig, kind: str = "") -> bool:
    """Whether ONNX supports a network with the head of a kind of task."""
    marks = config.global_tokens == "marked" and kind and get_kind(kind).global_tokens is not None
    return not config.attention_block and not marks


@pytest.fixture(scope="module", params=members())
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TrainedModel:
    return family_model(tmp_path_factory.mktemp("family") / "run", request.param)


@pytest.fixture(scope="module")
def folder(model: TrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export that no test changes."""
    return export_huggingface(model, tmp_path_factory.mktemp("exported") / "out")


def test_transformers_loads_exports_and_computes_the_same(model: TrainedModel, folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    difference = compare_with_transformers(model, folder)
    head = "MLM" if "mlm_head" in get_family(model.config.model.family).heads else "RTD"
    output = f"{head} logits" if hf_class(model.config.model).outputs else "hidden states"
    assert difference is not None and difference.largest < 5e-6 and output in difference.values
    kind = getattr(transformers, architecture(model.config.model))
    _, loaded = kind.from_pretrained(folder, output_loading_info=True)
    drawn = tuple(FAMILIES[model.config.model.family].huggingface.transformers_only)  # parts that only transformers has
    assert all(key.startswith(drawn) for key in loaded["missing_keys"])
    assert not loaded["unexpected_keys"] and not loaded["mismatched_keys"]
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert all(f"`{prefix}*`) at random" in card for prefix in drawn)
    assert type(transformers.AutoModelForMaskedLM.from_pretrained(folder)).__name__.endswith("ForMaskedLM")


def test_family_round_trips(model: TrainedModel, folder: Path, tmp_path: Path) -> None:
    back = read_huggingface(folder)
    # transformers has no class with SpanBERT's second head or DeBERTa v3's head; the run keeps them.
    left_out_labels = {name: module_label(name) for name in left_out(model.config.model)}
    assert back.config == model.config.model and back.untrained == tuple(left_out_labels.values())
    assert back.tokenizer.fingerprint == model.tokenizer.fingerprint
    assert back.params.keys() == model.params.keys()
    for name in model.params.keys() - left_out_labels:
        jax.tree.map(np.testing.assert_array_equal, back.params[name], jax.device_get(model.params[name]))
    again = export_huggingface(replace(model, params=jax.device_put(back.params)), tmp_path / "again")
    ours, theirs = load_file(again / "model.safetensors"), load_file(folder / "model.safetensors")
    assert ours.keys() == theirs.keys() and all(np.array_equal(ours[key], theirs[key]) for key in ours)


def test_parameter_count_excludes_padding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = family_model(tmp_path / "run", "roberta")
    folder = export_huggingface(model, tmp_path / "out")
    assert main(["import", f"hf:{folder}", "--output", "imported"]) == 0
    output = capsys.readouterr().out
    shapes = abstract_network(replace(model.config.model, vocab_pad_multiple=1))[1]
    count = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    assert f"{count:,} parameters" in output and "compared with transformers on real text" in output
    assert read_source(f"hf:{folder}").num_parameters == count < sum(x.size for x in jax.tree.leaves(model.params))
    assert "2 rows of the position table" in output


def test_generator_is_exported_as_its_own_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    both = family_model(Path("run"), "electra", generator_width=1 / 3)
    write_run(both)
    assert main(["export", "run", "--generator"]) == 0 and main(["export", "run"]) == 0
    assert capsys.readouterr().out.count("compared with transformers on real text") == 2
    exports = {name: read_huggingface(Path("run") / name) for name in ("huggingface-generator", "huggingface")}
    generator, discriminator = exports.values()
    assert generator.config == both.generator.config.model and generator.config.hidden_size == 4
    jax.tree.map(np.testing.assert_array_equal, generator.params, jax.device_get(both.generator.params))
    architectures = json.loads(Path("run/huggingface-generator/config.json").read_text())["architectures"]
    assert architectures == ["ElectraForMaskedLM"]
    assert discriminator.config == replace(both.config.model, generator_width=0.0)
    assert "mlm_head" not in discriminator.params
    write_run(family_model(Path("alone"), "electra"))
    assert main(["export", "alone", "--generator"]) != 0
    assert "--generator: alone was trained without one; leave it out" in capsys.readouterr().err


def test_task_type_table_is_exported(tmp_path: Path) -> None:
    model = family_model(tmp_path / "run", "ernie", task_type_vocab_size=3)
    folder = export_huggingface(model, tmp_path / "out")
    difference = compare_with_transformers(model, folder)
    assert difference is not None and difference.largest < 5e-6
    back = read_huggingface(folder)
    assert back.config == model.config.model
    jax.tree.map(np.testing.assert_array_equal, back.params, jax.device_get(model.params))
    pytest.importorskip("onnxruntime")
    difference = compare_with_onnxruntime(model, export_onnx(model, tmp_path / "onnx", "mean", True), "mean", True)
    assert difference is not None and difference.largest < 5e-6


def head_cases() -> Iterator[Any]:
    """Every family with every task head; the suite runs the first, since test_task_exports.py has all heads of BERT."""
    for member, (number, head) in itertools.product(members(), enumerate(HEADS.items())):
        (family,) = member.values
        yield pytest.param(family, *head, marks=[*member.marks, *[pytest.mark.long] * (number > 0)])


@pytest.mark.parametrize(("family", "head", "labels"), [*head_cases()])
def test_task_heads_equal_transformers(family: str, head: str, labels: int, tmp_path: Path) -> None:
    from exported_models import fine_tuned_model

    transformers = pytest.importorskip("transformers")
    fields = family_model(tmp_path / "run", family).config.model
    sizes = {key: value for key, value in vars(fields).items() if key not in ("vocab_size", "head", "num_labels")}
    names = tuple(f"label {number}" for number in range(labels))
    model = fine_tuned_model(tmp_path / "run", head, names, tokenizer=tokenizer_of(family), **sizes)
    if NETWORKS[head].transformers in FAMILIES[family].huggingface.lacking:
        with pytest.raises(ValueError, match=f"model.head='{head}': transformers has no such network of the family"):
            export_huggingface(model, tmp_path / "out")
        return
    folder = export_huggingface(model, tmp_path / "out")
    difference = compare_with_transformers(model, folder)
    exact = None if head != "choice" else exact_logits(model, folder)
    if exact is None:
        assert difference is not None and difference.largest < 5e-6
    else:
        ours = our_outputs(model, pair_batch(model, PAIRS))["logits"]
        assert relative_size(ours - exact, exact) < 5e-6
    assert difference is not None and ("logits" in difference.values) == (head != "vector")
    _, loaded = getattr(transformers, architecture(model.config.model)).from_pretrained(
        folder, output_loading_info=True
    )
    hf = FAMILIES[family].huggingface
    prefix = hf.prefix if hf_class(model.config.model).bare else ""
    assert all((prefix + key).startswith(tuple(hf.transformers_only)) for key in loaded["missing_keys"])
    assert not loaded["unexpected_keys"]
    back = read_huggingface(folder)
    if head == "vector":
        jax.tree.map(np.testing.assert_array_equal, back.params["encoder"], jax.device_get(model.params["encoder"]))
        return
    assert (back.kind, back.labels) == (head, names)
    jax.tree.map(np.testing.assert_array_equal, back.params, jax.device_get(model.params))
    pytest.importorskip("onnxruntime")
    if not has_graph(fields, head):
        message = r"--to onnx: model\..*: (not supported by this format; export to|the export has no input)"
        with pytest.raises(ValueError, match=message):
            export_onnx(model, tmp_path / "onnx")
        return
    onnx_folder = export_onnx(model, tmp_path / "onnx")
    difference = compare_with_onnxruntime(model, onnx_folder)
    if exact is None:
        assert difference is not None and difference.largest < 5e-6
    else:
        batch = {name: pair_batch(model, PAIRS)[name] for name in input_names(model.config.model)}
        assert relative_size(load_onnx(Path(str(onnx_folder)))(batch)["logits"] - exact, exact) < 5e-6


def exact_logits(model: TrainedModel, folder: Path) -> np.ndarray:
    """transformers' logits in float64: a choice has one logit, which may be near 0, where rounding shows."""
    import transformers

    network = getattr(transformers, architecture(model.config.model)).from_pretrained(folder).double().eval()
    return comparison._their_outputs(
        network, pair_batch(model, PAIRS), hf_class(model.config.model), model.config.model.vocab_size
    )["logits"]


def relative_size(difference: np.ndarray, reference: np.ndarray) -> float:
    return float(np.linalg.norm(difference) / np.linalg.norm(reference))


@pytest.mark.parametrize(
    "pooling", ["mean", *(pytest.param(name, marks=pytest.mark.long) for name in ("cls", "max", "pooler"))]
)
def test_vectors_equal_onnxruntime_and_transformers(model: TrainedModel, pooling: str, tmp_path: Path) -> None:
    if pooling == "pooler" and "pooler" not in model.params:
        with pytest.raises(ValueError, match=r"pooling=pooler|not supported by this format"):
            export_onnx(model, tmp_path / "onnx", pooling, True)
        with pytest.raises(ValueError, match="pooling=pooler"):
            export_sentence_transformers(model, tmp_path / "st", pooling, True)
        return
    pytest.importorskip("onnxruntime")
    if has_graph(model.config.model):
        difference = compare_with_onnxruntime(
            model, export_onnx(model, tmp_path / "onnx", pooling, True), pooling, True
        )
        assert difference is not None and difference.largest < 5e-6
    folder = export_sentence_transformers(model, tmp_path / "st", pooling, True)
    difference = compare_with_sentence_transformers(model, folder, pooling, True)
    assert difference is not None and difference.largest < 5e-6


@pytest.mark.long  # the suite has the library in test_vector_exports.py
def test_vectors_equal_sentence_transformers(model: TrainedModel, folder: Path, tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    from bertjax.loaded import open_model

    exported = export_sentence_transformers(model, tmp_path / "st", "mean", True)
    # With blocks, transformers' vector of a text depends on shorter texts before it and longer ones in its batch.
    batches = [[text] for text in TEXTS] if model.config.model.attention_block else [TEXTS]
    theirs = np.concatenate(
        [library.SentenceTransformer(str(exported), device="cpu").encode(batch) for batch in batches]
    )
    opened = open_model(f"hf:{folder}")
    ours = opened.encode(TEXTS, pooling="mean", normalize=True, max_length=model.max_length)
    assert np.abs(ours - theirs).max() < 2e-6


@pytest.mark.parametrize("family", members(OTHERS))
def test_export_tensorflow_refuses_other_families(family: str, tmp_path: Path) -> None:
    from exported_models import wordpiece

    model = family_model(tmp_path / "run", family)
    with pytest.raises(ValueError, match=f"model.family='{family}': google-research/bert"):
        export_tensorflow(replace(model, tokenizer=wordpiece()), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_exported_tokenizer_has_the_template_of_the_family(model: TrainedModel, folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer, template = model.tokenizer, FAMILIES[model.config.model.family].template
    for first, second in itertools.pairwise(TEXTS):
        a, b = (ids.tolist() for ids in tokenizer.encode_sentences([first, second]))
        expected = [tokenizer.cls_id, *a, *[tokenizer.sep_id] * template.separators, *b, tokenizer.sep_id]
        row = theirs(first, second)
        assert row["input_ids"] == expected
        assert ("token_type_ids" in row) == template.token_types
    masked = theirs(f"the {theirs.mask_token} of", add_special_tokens=False)["input_ids"]
    the, of = tokenizer.encode_sentences(["the", " of"])
    assert masked == [*the, tokenizer.mask_id, *of]  # the mask takes the space on its left


@pytest.mark.parametrize(
    ("family", "file", "kind"),
    [
        ("xlm-roberta", "sentencepiece.bpe.model", "XLMRobertaTokenizer"),
        ("camembert", "sentencepiece.bpe.model", "CamembertTokenizer"),
        ("deberta-v2", "spm.model", "DebertaV2Tokenizer"),
    ],
)
def test_sentencepiece_ids_equal_transformers(family: str, file: str, kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    (tmp_path / file).write_bytes(piece_model(begins=PIECES[family][3]))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))
    ours, theirs = read_tokenizer(tmp_path, family), transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert type(theirs).__name__ == kind
    for text in TEXTS:
        assert ours.encode_sentences([text])[0].tolist() == theirs(text, add_special_tokens=False)["input_ids"], text
    for role, number in ours.special.items():
        assert getattr(theirs, f"{role}_token_id") == number, role
    assert ours.fingerprint != tokenizer_of("bert").fingerprint


def test_deberta_model_file_gets_a_mask_token(tmp_path: Path) -> None:
    library = pytest.importorskip("sentencepiece")
    content = piece_model(begins=PIECES["deberta-v2"][3])
    (tmp_path / "spm.model").write_bytes(content)
    ours = load_tokenizer(tmp_path / "spm.model", TextRules(lowercase=False, strip_accents=False))
    theirs = library.SentencePieceProcessor(model_proto=content)
    assert ours.special == {"pad": 0, "cls": 1, "sep": 2, "unk": 3, "mask": len(theirs)}
    plain = "the museum opened"
    assert ours.encode_sentences([plain])[0].tolist() == theirs.encode(plain)


def test_enhanced_decoder_is_left_out_of_exports(tmp_path: Path) -> None:
    model = family_model(tmp_path / "run", "deberta", mlm_decoder="enhanced")
    folder = export_huggingface(model, tmp_path / "out")
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["DebertaModel"]
    assert not [name for name in load_file(folder / "model.safetensors") if "lm_predictions" in name]
    card = (folder / "README.md").read_text()
    assert "with no pretraining head; in the run, but not in this export: MLM head, MASK decoder" in card
    assert "transformers has no enhanced mask decoder" in card and "fill-mask" not in card
    difference = compare_with_transformers(model, folder)
    assert difference is not None and difference.largest < 5e-6 and set(difference.values) == {"hidden states"}
    back = read_huggingface(folder)
    assert back.untrained == ("MLM head",) and back.config == replace(model.config.model, mlm_decoder="plain")


def test_folder_without_a_vocabulary_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ValueError, match=r"no tokenizer\.json, no vocab\.txt, .*; a tokenizer needs one of them"):
        read_tokenizer(tmp_path, "bert")


def test_import_reads_bare_encoders_and_masked_models(model: TrainedModel, folder: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    head = "MLM head" if "mlm_head" in get_family(model.config.model.family).heads else "RTD head"
    has_class = bool(hf_class(model.config.model).outputs)
    for auto, drawn in (("AutoModel", {head}), ("AutoModelForMaskedLM", set() if has_class else {head})):
        theirs = getattr(transformers, auto).from_pretrained(folder)
        shutil.rmtree(tmp_path / "theirs", ignore_errors=True)
        theirs.save_pretrained(tmp_path / "theirs")
        for path in folder.iterdir():
            if "token" in path.name or path.suffix in (".txt", ".model") or path.name == "vocab.json":
                shutil.copy(path, tmp_path / "theirs")
        imported = read_source(f"hf:{tmp_path / 'theirs'}")
        assert drawn == {head} & set(imported.untrained)
        jax.tree.map(np.testing.assert_array_equal, imported.params["encoder"], jax.device_get(model.params["encoder"]))
        assert imported.fills_masks == (not drawn)
        assert json.loads((tmp_path / "theirs" / "config.json").read_text())["architectures"] == [type(theirs).__name__]


def test_card_names_the_family_and_its_code_runs(model: TrainedModel, folder: Path) -> None:
    pytest.importorskip("transformers")
    hub = pytest.importorskip("huggingface_hub", reason="needs huggingface_hub")
    family = FAMILIES[model.config.model.family]
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert hub.ModelCard(card).data.tags == [family.huggingface.model_type, "bertjax"]
    assert (
        f"A model of {family.title or family.name}'s architecture with " in card
        and architecture(model.config.model) in card
    )
    assert ("the encoder and the pooler" in card) == ("pooler" in model.params)
    code = re.search(r"```python\n(.*?)```", card, re.DOTALL)[1].replace("path/to/this/folder", str(folder))
    exec(compile(code, "card", "exec"), {})
