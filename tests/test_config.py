"""Recipes load, overrides win, and errors name the nearest valid key."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections import Counter
from pathlib import Path

import pytest
import tyro

from bertjax.config import (
    Config,
    FinetuneConfig,
    StageConfig,
    differences,
    flatten,
    from_dict,
    load_recipe,
    override,
    render,
    to_dict,
)
from bertjax.config.recipes import names_recipe, recipe_file

CONFIGS = sorted((Path(__file__).resolve().parent.parent / "configs").glob("*.py"))


def test_defaults_are_bert_base() -> None:
    model = Config().model
    assert (model.num_hidden_layers, model.hidden_size, model.num_attention_heads) == (12, 768, 12)
    assert (model.intermediate_size, model.layer_norm_eps, model.initializer_range) == (3072, 1e-12, 0.02)
    assert Config().optimizer.learning_rate == 1e-4


def test_overrides_win_and_are_listed_first() -> None:
    recipe = Config()
    config = override(recipe, ["--optimizer.learning-rate", "3e-4", "--data.sources", "text:a/*", "docs"], "bertjax")
    assert config.optimizer.learning_rate == 3e-4
    assert config.data.sources == ("text:a/*", "docs")
    assert set(differences(config, recipe)) == {"optimizer.learning_rate", "data.sources"}
    lines = render(config, recipe).splitlines()
    assert lines[0] == "Settings changed from the recipe:"
    assert "optimizer.learning_rate: 0.0003" in render(config, recipe).split("config:")[0]


def test_boolean_override_takes_a_value() -> None:
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
def test_wrong_override_exits_with_the_nearest_name(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        override(Config(), arguments, "bertjax")
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_from_dict_names_an_unknown_key() -> None:
    with pytest.raises(ValueError, match=r"model\.hiden_size is unknown; did you mean model\.hidden_size"):
        from_dict({"model": {"hiden_size": 3}})


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "from bertjax.config import Config\ndef config(:\n    pass\n",
            r"recipe \S+r.py, line 2: it is not valid Python",
        ),
        ("def config():\n    return {}['a']\n", r"recipe \S+r.py, line 2: KeyError: 'a'"),
        ("import nowhere\n", r"recipe \S+r.py, line 1: ModuleNotFoundError: No module named 'nowhere'"),
        ("\nimport sys\nsys.exit(3)\n", r"recipe \S+r.py, line 3: SystemExit: 3"),
        # Python before 3.11.4 does not call this a SyntaxError.
        ("\0", r"recipe \S+r.py: (it is not valid Python: )?source code string cannot contain null bytes"),
        ("config = 3\n", r"recipe \S+r.py: it defines no function `config`"),
        ("def config(a):\n    pass\n", r"recipe \S+r.py: TypeError: config\(\) missing 1 required"),
    ],
)
def test_recipe_error_has_its_file_and_line(code: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "r.py").write_text(code)
    with pytest.raises(ValueError, match=message):
        load_recipe(tmp_path / "r.py")


def test_error_in_a_recipes_import_is_located_there(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("def make():\n\n    return 1 / 0\n")
    (tmp_path / "r.py").write_text("from beside import make\n\n\ndef config():\n    return make()\n")
    with pytest.raises(ValueError, match=r"beside.py, line 3: ZeroDivisionError"):
        load_recipe(tmp_path / "r.py")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model": []}, "config key model is list; give a mapping of its keys"),
        ({"stages": {}}, "config key stages is dict; give a list"),
        ({"stages": [3]}, "config key stages.0 is int; give a mapping of its keys"),
        ({"stages": [{"start": "x"}]}, "stages.0.start='x' is str; give int"),
        ({"data": {"sources": "a"}}, "data.sources='a' is str; give tuple[str, ...]"),
        ({"data": {"sources": [1]}}, "data.sources=(1,) is tuple; give tuple[str, ...]"),
        ({"training": {"steps": True}}, "training.steps=True is bool; give int"),
        (
            {"model": {"hidden_act": "sofa"}},
            "model.hidden_act='sofa' is unknown; choose from 'gelu', 'gelu_tanh', 'relu', 'silu'",
        ),
        ({"run_dir": None}, "run_dir=None is NoneType; give str"),
    ],
)
def test_from_dict_refuses_values_of_the_wrong_type(values: dict, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        from_dict(values)


def test_from_dict_accepts_an_int_as_float() -> None:
    assert from_dict({"optimizer": {"learning_rate": 1}}).optimizer.learning_rate == 1


WRONG = [None, 0.5, [[1]], {"a": 1}, 10**40]


def test_from_dict_reads_or_refuses_any_value():
    """Tries every key of a fine-tuning config, which has all keys of a pretraining config too."""
    whole = to_dict(FinetuneConfig()) | {"stages": [to_dict(StageConfig(start=0))]}
    refused = 0

    def change(holder, key):
        nonlocal refused
        before = holder.pop(key)
        for value in [*WRONG, "left out"]:
            if value != "left out":
                holder[key] = value
            try:
                from_dict(whole)
            except ValueError:
                refused += 1
            holder.pop(key, None)
        holder[key] = before
        if key != "stages":
            for inner in list(before) if isinstance(before, dict) else []:
                change(before, inner)

    for key in list(whole):
        change(whole, key)
    for key in list(whole["stages"][0]):
        change(whole["stages"][0], key)
    for value in WRONG:
        with pytest.raises(ValueError, match=r"the config is \w+; give a mapping|config key a is unknown"):
            from_dict(value)
    assert refused > 500


def _help_texts() -> dict[str, str]:
    """The help text that tyro shows for each option of a config with a task and a stage, without its default."""
    default = FinetuneConfig(stages=(StageConfig(start=1),))
    options = (tyro.conf.AvoidSubcommands, tyro.conf.FlagConversionOff)
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        parser = tyro.extras.get_parser(FinetuneConfig, default=default, config=options)
    return {
        action.option_strings[0]: re.sub(r"\s*\(default: .*\)$", "", action.help or "", flags=re.DOTALL)
        for action in parser._actions
        if action.dest != "help"
    }


def test_every_key_has_its_own_help_text() -> None:
    texts = _help_texts()
    keys = flatten(to_dict(FinetuneConfig())).keys() - {"stages"} | {
        f"stages.0.{field.name}" for field in dataclasses.fields(StageConfig)
    }
    assert {option[2:].replace("-", "_") for option in texts} == keys
    assert not [option for option, text in texts.items() if len(text) < 8]
    shared = [text for text, count in Counter(texts.values()).items() if count > 1]
    assert not shared


def test_help_texts_begin_with_a_noun() -> None:
    """They do not begin with a lower-case fragment, a value such as `0:`, or a function word."""
    wrong = r"[^A-Z\[]|(Of|In|On|At|By|For|From|With|To|That|What|Which|Whether|How|When|If|The|A|An|Also)\b"
    assert not {option: text for option, text in _help_texts().items() if re.match(wrong, text)}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--steps", "100"], "--training.steps?"),
        (["--learning_rate=1"], "--optimizer.learning-rate?"),
        (["--batch-size", "8"], "--training.global-batch-size?"),
        (["--lowercase", "False"], "--data.lowercase?"),
        (["--temperature", "2"], "--data.temperature or --distillation.temperature?"),
    ],
)
def test_override_suggests_the_whole_key_for_a_short_one(arguments, named, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        override(Config(), arguments, "bertjax pretrain quickstart")
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error == f"bertjax pretrain quickstart: {arguments[0]} is unknown; did you mean {named}\n"


@pytest.mark.parametrize(
    ("word", "name"), [("ModernBERT", "modernbert"), ("BERT-Mini", "bert_mini"), ("bertbase", "bert_base")]
)
def test_recipe_names_ignore_case_and_separators(word: str, name: str) -> None:
    assert recipe_file(word) == recipe_file(name)
    assert names_recipe(word)


@pytest.mark.parametrize("word", ["bert", "BERT:large"])
def test_family_name_suggests_its_recipes(word: str) -> None:
    family = "bert_base or bert_large or bert_mini or bert_one_gpu"
    with pytest.raises(ValueError, match=rf"recipe '{word}' is unknown; did you mean {family}\?"):
        recipe_file(word)
