import dataclasses
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from bertjax.config import Config, FinetuneConfig, differences, from_dict, to_dict
from bertjax.config.resume import resume_rules
from bertjax.run.compatibility import check_compatible

RULES = resume_rules(FinetuneConfig)


def metadata(config: dict[str, Any] | Config, tokenizer: str = "aa", data: str = "bb") -> dict[str, Any]:
    as_dict = to_dict(config) if isinstance(config, Config) else config
    return {"config": as_dict, "tokenizer_fingerprint": tokenizer, "data_fingerprint": data}


def keys(part: Any, where: str = "") -> list[str]:
    """Every dotted key of a config, read from the dataclasses themselves."""
    found = []
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        found += keys(value, f"{where}{field.name}.") if dataclasses.is_dataclass(value) else [where + field.name]
    return found


def types(part: type, where: str = "") -> dict[str, Any]:
    """Dotted key -> type, read from the dataclasses themselves."""
    hints, found = get_type_hints(part), {}
    for field in dataclasses.fields(part):
        kind = hints[field.name]
        nested = dataclasses.is_dataclass(kind)
        found |= types(kind, f"{where}{field.name}.") if nested else {where + field.name: kind}
    return found


TYPES = types(FinetuneConfig)


def another(was: Any, kind: Any) -> Any:
    """A value of the same type."""
    if get_origin(kind) is Literal:
        return next(value for value in get_args(kind) if value != was)
    if was == "auto":  # in place of a number
        return 2
    if isinstance(was, list):
        of = get_args(kind)[0]
        return [*was, {int: 3, float: 0.5, str: "text:x"}.get(of, {"start": 5})]
    return not was if isinstance(was, bool) else f"{was}x" if isinstance(was, str) else was + 1


def mutated(key: str) -> Config:
    """The default config with another value at one key."""
    *parents, last = key.split(".")
    values = to_dict(FinetuneConfig())
    part = values
    for parent in parents:
        part = part[parent]
    part[last] = another(part[last], TYPES[key])
    config = from_dict(values)
    assert list(differences(config, FinetuneConfig())) == [key]
    return config


def test_every_key_of_the_config_has_a_rule():
    assert sorted(RULES) == sorted(keys(FinetuneConfig()))


def test_a_field_without_a_rule_is_part_of_the_runs_identity():
    @dataclasses.dataclass(frozen=True)
    class Extended(Config):
        added: int = 0

    assert resume_rules(Extended)["added"].allowed is False


@pytest.mark.parametrize("key", ["model.hidden_size", "optimizer.beta2", "training.seed", "data.lowercase", "stages"])
def test_what_makes_a_run_is_its_identity(key):
    assert not RULES[key].allowed


@pytest.mark.parametrize("key", ["name", "mesh.tensor", "hosts.processes", "training.log_every", "execution.remat"])
def test_where_and_how_often_may_change_without_a_word(key):
    assert RULES[key].allowed and not RULES[key].notice


@pytest.mark.parametrize("key", keys(FinetuneConfig()))
def test_a_changed_key_is_treated_by_its_rule(key):
    config = mutated(key)
    ((was, now),) = differences(config, FinetuneConfig()).values()
    if not RULES[key].allowed:
        with pytest.raises(ValueError, match="the checkpoint belongs to another run") as error:
            check_compatible(metadata(FinetuneConfig()), metadata(config))
        assert f"  {key}: checkpoint has {was!r}, config has {now!r}" in str(error.value).splitlines()
        assert "--run-dir" in str(error.value) and "--init-from" in str(error.value)
    else:
        lines = check_compatible(metadata(FinetuneConfig()), metadata(config))
        notice = RULES[key].notice
        assert lines == ([f"{key}: checkpoint has {was!r}, config has {now!r}; {notice}"] if notice else [])


@pytest.mark.parametrize(("which", "named"), [("tokenizer", "vocabulary"), ("data", "data")])
def test_changed_data_are_refused_with_how_to_go_on(which, named):
    with pytest.raises(ValueError, match=f"^the {named} changed since this run began. Use --run-dir NEW") as error:
        check_compatible(metadata(FinetuneConfig()), metadata(FinetuneConfig(), **{which: "cc"}))
    assert "fingerprint" not in str(error.value) and "Restore these settings" not in str(error.value)


def test_changed_data_are_refused_with_the_changed_sources():
    config = mutated("data.sources")
    with pytest.raises(ValueError, match=r"the data changed since this run began.*\n  data\.sources: checkpoint has"):
        check_compatible(metadata(FinetuneConfig()), metadata(config, data="cc"))


def test_all_differences_are_listed_at_once():
    config = dataclasses.replace(
        Config(),
        model=dataclasses.replace(Config().model, hidden_size=96),
        data=dataclasses.replace(Config().data, sources=("text:other",)),
        training=dataclasses.replace(Config().training, seed=3),
    )
    with pytest.raises(ValueError, match="another run") as error:
        check_compatible(metadata(FinetuneConfig()), metadata(config, data="cc"))
    for key in ("model.hidden_size", "data.sources", "training.seed"):
        assert f"  {key}: " in str(error.value)
    assert "\n  the data changed since this run began\n" in str(error.value)


def test_a_checkpoint_older_than_a_key_has_its_default():
    saved = to_dict(FinetuneConfig())
    del saved["training"]["max_skipped_updates"], saved["model"]["hidden_act"]
    assert check_compatible(metadata(saved), metadata(FinetuneConfig())) == []
    with pytest.raises(ValueError, match=r"model\.hidden_act: checkpoint has 'gelu', config has 'gelu_tanh'"):
        check_compatible(metadata(saved), metadata(mutated("model.hidden_act")))
