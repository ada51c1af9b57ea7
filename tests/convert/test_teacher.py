"""A teacher is read from a run or a folder, padded like the student, and refused if it does not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from exported_models import fine_tuned_model, trained_model, wordpiece
from family_models import family_model
from their_families import SMALL, small

from bertjax.config import Config, DataConfig, DistillationConfig, TrainingConfig
from bertjax.convert.adapt import adapt, require_same_shape
from bertjax.convert.foreign import ForeignModel
from bertjax.convert.huggingface.exporter import export_huggingface
from bertjax.convert.sources import read_source
from bertjax.convert.teacher import fit_teacher, read_teacher
from bertjax.convert.tf1.tf1_format import export_tensorflow
from bertjax.families.networks import abstract_network
from bertjax.families.registry import FAMILIES
from bertjax.model.parameters import named_arrays
from bertjax.run.run_directory import TrainedModel

NAMES = ("distil_mlm", "mlm", "distil_cosine")
MULTIPLE = 5  # of the padded vocabulary's rows


def student_config(teacher: Path | str, objectives: tuple[str, ...] = NAMES, **model) -> Config:
    """The config of a student with two layers."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    preset = replace(FAMILIES["distilbert"].presets["base"], vocab_pad_multiple=MULTIPLE, **(sizes | model))
    return Config(
        model=preset,
        data=DataConfig(sequence_length=64),
        training=TrainingConfig(objectives=objectives),
        distillation=DistillationConfig(teacher=f"hf:{teacher}"),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainedModel]:
    """A BERT of four layers, in transformers' layout."""
    directory = tmp_path_factory.mktemp("teacher")
    model = trained_model(directory / "run", num_hidden_layers=4)
    export_huggingface(model, directory / "export")
    return directory / "export", model


def test_teacher_is_padded_and_has_one_digest(folder, tmp_path: Path) -> None:
    folder_path, model = folder
    config = student_config(folder_path)
    teacher = fit_teacher(read_teacher(config), config, model.tokenizer)
    arrays, shapes = named_arrays(teacher.params), named_arrays(abstract_network(teacher.model)[1])
    assert {name: x.shape for name, x in arrays.items()} == {name: x.shape for name, x in shapes.items()}
    size = model.tokenizer.vocab_size
    word = arrays["encoder/embeddings/word"]
    assert len(word) % MULTIPLE == 0 and len(word) - size < MULTIPLE
    np.testing.assert_array_equal(word[:size], np.asarray(model.params["encoder"]["embeddings"]["word"])[:size])
    copy = export_huggingface(model, tmp_path / "copy")
    assert fit_teacher(read_teacher(student_config(copy)), config, model.tokenizer).digest == teacher.digest
    other = export_huggingface(trained_model(tmp_path / "run", num_hidden_layers=3), tmp_path / "other")
    assert fit_teacher(read_teacher(student_config(other)), config, model.tokenizer).digest != teacher.digest
    assert read_teacher(replace(config, training=TrainingConfig())) is None


@pytest.mark.run
def test_tf1_checkpoint_gives_the_same_teacher(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    model = trained_model(tmp_path / "run", num_hidden_layers=4, hidden_act="gelu_tanh")
    config = student_config(export_huggingface(model, tmp_path / "huggingface"))
    folder_path = export_tensorflow(model, tmp_path / "tf1")
    tf1_config = replace(config, distillation=DistillationConfig(teacher=f"tf1:{folder_path}"))
    ours, expected = (fit_teacher(read_teacher(one), one, model.tokenizer) for one in (tf1_config, config))
    assert ours.digest == expected.digest and ours.model == expected.model
    for name, array in named_arrays(expected.params).items():
        np.testing.assert_array_equal(named_arrays(ours.params)[name], array, name)


def test_read_teacher_refuses_unsuitable_teachers(folder, tmp_path: Path) -> None:
    folder_path, model = folder
    with pytest.raises(ValueError, match=r"vectors are 32 wide and the model's 16, so distil_cosine cannot"):
        read_teacher(student_config(folder_path, hidden_size=16))
    assert read_teacher(student_config(folder_path, NAMES[:2], hidden_size=16)) is not None, (
        "probabilities do not depend on the width"
    )
    long = replace(student_config(folder_path), data=DataConfig(sequence_length=96))
    with pytest.raises(ValueError, match=r"it has 80 positions, and rows have 96 tokens; lower data.sequence_length"):
        read_teacher(long)
    with pytest.raises(ValueError, match=r"its family 'bert' has other special tokens in rows than model.fam"):
        read_teacher(student_config(folder_path, family="roberta", type_vocab_size=1))
    tuned = export_huggingface(fine_tuned_model(tmp_path / "tuned", "sequence", ("a", "b")), tmp_path / "t")
    with pytest.raises(ValueError, match="it was fine-tuned for sequence; name a model that was only pretrained"):
        read_teacher(student_config(tuned))
    headless = export_huggingface(model, tmp_path / "headless", "encoder")
    with pytest.raises(
        ValueError, match="it has no trained MLM head, which distil_mlm needs; name another teacher, or"
    ):
        read_teacher(student_config(headless))
    discriminator = export_huggingface(family_model(tmp_path / "electra", "electra"), tmp_path / "e")
    with pytest.raises(ValueError, match="it has no trained MLM head"):
        read_teacher(student_config(discriminator))
    with pytest.raises(ValueError, match="there is no folder"):
        read_teacher(student_config(tmp_path / "nowhere"))
    shuffled = wordpiece()
    shuffled.tokens = [*shuffled.tokens[:-2], *shuffled.tokens[:-3:-1]]
    with pytest.raises(ValueError, match=r"is not the run's of .* \(id \d+\), .*; give its vocabulary as data.vocab"):
        fit_teacher(read_teacher(student_config(folder_path)), student_config(folder_path), shuffled)


def foreign(folder) -> ForeignModel:
    return read_source(f"hf:{folder[0]}")


def test_adapt_takes_selected_layers(folder) -> None:
    folder_path, model = folder
    config = replace(
        student_config(folder_path).model, vocab_size=model.tokenizer.vocab_size, max_position_embeddings=80
    )
    params, notes = adapt(foreign(folder), config, model.tokenizer, (3, 1))
    assert "layers 3, 1 of its 4 were taken" in notes and any("segment rows were left out" in n for n in notes)
    ours, expected = named_arrays(params), named_arrays(abstract_network(config)[1])
    assert {name: x.shape for name, x in ours.items()} == {name: x.shape for name, x in expected.items()}
    for name, array in named_arrays(model.params).items():
        if name.startswith("encoder/layers/"):
            np.testing.assert_array_equal(ours[name], np.asarray(array)[[3, 1]], name)
    np.testing.assert_array_equal(ours["mlm_head/transform/kernel"], model.params["mlm_head"]["transform"]["kernel"])


def test_init_layers_requires_layers_of_one_kind(folder) -> None:
    model = replace(foreign(folder), config=small("modernbert"))
    with pytest.raises(
        ValueError, match=r"init_layers=\(0, 2\): the first layer of hf:.* differs from the rest; leave"
    ):
        require_same_shape(model, small("modernbert", num_hidden_layers=2), (0, 2))
    convolved = SMALL["deberta-v2 with a convolution"]
    with pytest.raises(ValueError, match=r"the first layer of hf:.* differs from the rest"):
        require_same_shape(replace(model, config=convolved), replace(convolved, num_hidden_layers=1), (0,))


def test_init_layers_refuses_missing_layers(folder) -> None:
    config = replace(
        student_config(folder[0]).model, vocab_size=folder[1].tokenizer.vocab_size, max_position_embeddings=80
    )
    with pytest.raises(ValueError, match=r"init_layers=\(0, 4\): hf:.* has no layer 4; give numbers from 0 to 3"):
        adapt(foreign(folder), config, folder[1].tokenizer, (0, 4))
    with pytest.raises(ValueError, match=r"model.num_hidden_layers: 4 there, 2 here"):
        adapt(foreign(folder), config, folder[1].tokenizer)
