"""Recipes load, overrides win, and what is wrong is named with what is near."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertjax.config import (
    Config,
    differences,
    from_dict,
    load_recipe,
    override,
    render,
    to_dict,
    validate,
)

CONFIGS = sorted((Path(__file__).resolve().parent.parent / "configs").glob("*.py"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_recipe_is_valid_and_says_what_it_is(path: Path) -> None:
    config = validate(load_recipe(path))
    assert path.read_text().startswith('"""')
    assert from_dict(to_dict(config)) == config


def test_defaults_are_bert_base() -> None:
    model = Config().model
    assert (model.num_hidden_layers, model.hidden_size, model.num_attention_heads) == (12, 768, 12)
    assert (model.intermediate_size, model.layer_norm_eps, model.initializer_range) == (3072, 1e-12, 0.02)
    assert Config().optimizer.learning_rate == 1e-4


def test_overrides_win_and_stand_first() -> None:
    recipe = Config()
    config = override(recipe, ["--optimizer.learning-rate", "3e-4", "--data.sources", "text:a/*", "docs"], "bertjax")
    assert config.optimizer.learning_rate == 3e-4
    assert config.data.sources == ("text:a/*", "docs")
    assert set(differences(config, recipe)) == {"optimizer.learning_rate", "data.sources"}
    shown = render(config, recipe).splitlines()
    assert shown[0] == "changed from the recipe:"
    assert "optimizer.learning_rate: 0.0003" in render(config, recipe).split("config:")[0]


def test_a_switch_takes_its_value_as_every_key_does() -> None:
    changed = override(Config(), ["--data.lowercase", "False", "--model.causal", "True"], "bertjax")
    assert (changed.data.lowercase, changed.model.causal) == (False, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--optimizer.learnin-rate", "1"], "--optimizer.learning-rate"),
        (["--training.steps", "many"], "many"),
        (["--execution.dtype", "float8"], "float8"),
    ],
)
def test_a_wrong_override_ends_with_the_nearest_name(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        override(Config(), arguments, "bertjax")
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_an_unknown_key_of_a_stored_config_is_named() -> None:
    with pytest.raises(ValueError, match=r"model\.hiden_size is unknown; did you mean model\.hidden_size"):
        from_dict({"model": {"hiden_size": 3}})


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, r"no such file; did you mean .*recipe\.py"),
        ("x = 1", "defines no `config`"),
        ("def config(): return 3", "returned int"),
    ],
)
def test_a_recipe_that_is_none_is_refused(source: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.py"
    path.write_text(source or "")
    with pytest.raises(ValueError, match=message):
        load_recipe(path if source else tmp_path / "recipes.py")
