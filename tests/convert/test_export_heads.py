"""Exports for one class of transformers: that class loads them without a warning, and others report the difference."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
import numpy as np
import pytest
from exported_models import fine_tuned_model
from family_models import family_model
from safetensors.numpy import load_file
from their_families import IN_TRANSFORMERS, SUITE
from tiers import long_unless

from bertjax.__main__ import main
from bertjax.convert.formats import load_format
from bertjax.convert.huggingface.exporter import export_huggingface
from bertjax.convert.huggingface.importer import read_huggingface
from bertjax.convert.huggingface.names import hf_classes
from bertjax.families.registry import FAMILIES, get_family

pytestmark = pytest.mark.run

LOADERS = {
    "pretraining": "AutoModelForPreTraining",
    "mlm": "AutoModelForMaskedLM",
    "nsp": "AutoModelForNextSentencePrediction",
    "rtd": "AutoModelForPreTraining",
    "encoder": "AutoModel",
}
HEADS = [(name, head) for name in IN_TRANSFORMERS for head in hf_classes(FAMILIES[name].presets["base"])]


@contextmanager
def logged_warnings(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """Collect what transformers logs at the level WARNING or above."""
    messages: list[str] = []
    logger = logging.getLogger("transformers")
    # transformers lets its records through to the root logger where CI is set, and pytest listens there too.
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(caplog.handler)
    caplog.clear()
    try:
        yield messages
    finally:
        logger.removeHandler(caplog.handler)
        logger.propagate = propagate
        messages += [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def reported(messages: list[str]) -> dict[str, set[str]]:
    """Keys by their status in transformers' report, which merges the indices of layers."""
    keys: dict[str, set[str]] = {}
    for key, status in re.findall(r"^(\S+) +\| (\w+) ", "\n".join(messages), re.M):
        if key != "Key":
            keys.setdefault(status, set()).add(key)
    return keys


@pytest.mark.parametrize(("family", "head"), long_unless(lambda family, head: family in SUITE, HEADS))
def test_class_of_export_loads_without_warning(transformers, tmp_path, caplog, family, head):
    model = family_model(tmp_path / "run", family)
    their_class = hf_classes(model.config.model)[head]
    folder = export_huggingface(model, tmp_path / "out", head)
    # Without a head for pairs, the family's pretraining class is its masked language model.
    loader = LOADERS["mlm" if their_class.name.endswith("ForMaskedLM") else "encoder" if their_class.bare else head]
    with logged_warnings(caplog) as messages:
        network, info = getattr(transformers, loader).from_pretrained(folder, output_loading_info=True)
    assert type(network).__name__ == their_class.name == network.config.architectures[0]
    assert not info["unexpected_keys"] and not info["mismatched_keys"] and not info["error_msgs"]
    definition = get_family(family)
    # Parts that bertjax lacks, which transformers initialises and reports on every load: ESM's contact regression.
    prefix = definition.huggingface.prefix if head == "encoder" else ""
    drawn = {
        name
        for name in info["missing_keys"]
        if (prefix + name).startswith(tuple(definition.huggingface.transformers_only))
    }
    assert bool(drawn) == bool(definition.huggingface.transformers_only)
    missing = info["missing_keys"] - drawn
    if head == "encoder" and definition.huggingface.pooler and "pooler" not in definition.heads:
        # These families have no trained pooler, and transformers' class has one by default.
        assert missing == {"pooler.dense.weight", "pooler.dense.bias"}
        assert reported(messages) == {"MISSING": missing | drawn}
        with logged_warnings(caplog) as messages:
            transformers.AutoModel.from_pretrained(folder, add_pooling_layer=False)
    else:
        assert not missing
    assert reported(messages) == ({"MISSING": drawn} if drawn else {})
    assert len(messages) == bool(drawn)


@pytest.mark.parametrize(("family", "head"), long_unless(lambda family, head: family in ("bert", "modernbert"), HEADS))
def test_export_with_one_head_round_trips(transformers, tmp_path, family, head):
    model = family_model(tmp_path / "run", family)
    form = load_format("huggingface").with_head(head)
    folder = form.export(model, tmp_path / "out", form.vectors(model, None, False))
    difference = form.compare(model, Path(folder), form.vectors(model, None, False))
    expected = {"hidden states"} | {
        f"{one.removesuffix('_head').upper()} logits" for one in hf_classes(model.config.model)[head].outputs
    }
    assert set(difference.values) == expected and difference.largest < 5e-6
    whole, part = (
        load_file(Path(one) / "model.safetensors") for one in (export_huggingface(model, tmp_path / "all"), folder)
    )
    # An encoder's names have no prefix; the whole export of DeBERTa 3 is an encoder, as transformers lacks its heads.
    prefix = "" if part.keys() <= whole.keys() else get_family(family).huggingface.prefix
    assert part and all(np.array_equal(array, whole[prefix + name]) for name, array in part.items())
    back = read_huggingface(folder)
    modules = back.params.keys() - {*get_family(family).heads}
    assert back.config == model.config.model
    jax.tree.map(
        np.testing.assert_array_equal,
        *({name: params[name] for name in modules} for params in (back.params, jax.device_get(model.params))),
    )


def test_report_of_another_class_is_not_silenced(transformers, tmp_path, caplog):
    """Patterns of ignored keys are attributes of transformers' classes, and BERT's classes have none."""
    model = family_model(tmp_path / "run", "bert")
    folder = export_huggingface(model, tmp_path / "out")
    for head in hf_classes(model.config.model):
        with logged_warnings(caplog) as messages:
            network = getattr(transformers, LOADERS[head]).from_pretrained(folder)
        assert not type(network)._keys_to_ignore_on_load_unexpected
        modules = {"pretraining": set(), "mlm": {"bert.pooler", "cls.seq_relationship"}, "nsp": {"cls.predictions"}}
        left = {".".join(key.split(".")[:2]) for key in reported(messages).get("UNEXPECTED", ())}
        assert left == modules.get(head, {"cls.predictions", "cls.seq_relationship"})
    # transformers does not read such patterns from `config.json`.
    config = folder / "config.json"
    config.write_text(config.read_text().replace("{", '{"_keys_to_ignore_on_load_unexpected": ["cls"],', 1))
    with logged_warnings(caplog) as messages:
        transformers.AutoModel.from_pretrained(folder)
    assert len(reported(messages)["UNEXPECTED"]) == 7


def test_export_head_option(tmp_path, monkeypatch, capsys):
    model = family_model(tmp_path / "run", "albert")
    monkeypatch.setattr("bertjax.convert.sources.load_run", lambda name: model)
    assert main(["export", "run", "--head", "mlm", "--output", str(tmp_path / "out")]) == 0
    output = capsys.readouterr().out
    assert "next: transformers.AlbertForMaskedLM.from_pretrained(" in output
    card = (tmp_path / "out" / "README.md").read_text()
    assert "AlbertForMaskedLM.from_pretrained(folder)" in card and "only this class's head" in card
    for options, message in (
        (["--head", "nsp"], "--head nsp: transformers has no class of the family 'albert' with only this head"),
        (["--head", "mlm", "--to", "tf1"], "--head mlm: --to tf1 writes all heads or none"),
    ):
        assert main(["export", "run", *options, "--output", str(tmp_path / "other")]) == 1
        assert message in capsys.readouterr().err
        assert not (tmp_path / "other").exists()
    task = fine_tuned_model(tmp_path / "task", "sequence", ("bad", "good"))
    with pytest.raises(ValueError, match="a fine-tuned model is exported with the head of its task"):
        export_huggingface(task, tmp_path / "other", "mlm")
