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
    """Every dotted key of a config, read from its dataclasses."""
    names = []
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        names += keys(value, f"{where}{field.name}.") if dataclasses.is_dataclass(value) else [where + field.name]
    return names


def types(part: type, where: str = "") -> dict[str, Any]:
    """Dotted key -> type, read from the dataclasses."""
    hints, kinds = get_type_hints(part), {}
    for field in dataclasses.fields(part):
        kind = hints[field.name]
        nested = dataclasses.is_dataclass(kind)
        kinds |= types(kind, f"{where}{field.name}.") if nested else {where + field.name: kind}
    return kinds


TYPES = types(FinetuneConfig)


def another(was: Any, kind: Any) -> Any:
    """Another value of the same type."""
    if get_origin(kind) is Literal:
        return next(value for value in get_args(kind) if value != was)
    if was == "auto":  # in place of a number
        return 2
    if isinstance(was, list):
        item = get_args(kind)[0]
        return [*was, {int: 3, float: 0.5, str: "text:x"}.get(item, {"start": 5})]
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


def test_every_config_key_has_a_resume_rule():
    assert sorted(RULES) == sorted(keys(FinetuneConfig()))


def test_field_without_a_rule_identifies_the_run():
    @dataclasses.dataclass(frozen=True)
    class Extended(Config):
        added: int = 0

    assert resume_rules(Extended)["added"].allowed is False


@pytest.mark.parametrize("key", ["model.hidden_size", "optimizer.beta2", "training.seed", "data.lowercase", "stages"])
def test_model_data_and_seed_identify_the_run(key):
    assert not RULES[key].allowed


@pytest.mark.parametrize("key", ["name", "mesh.tensor", "hosts.processes", "training.log_every", "execution.remat"])
def test_places_and_periods_may_change_silently(key):
    assert RULES[key].allowed and not RULES[key].notice


@pytest.mark.parametrize("key", keys(FinetuneConfig()))
def test_check_compatible_applies_the_rule_of_each_key(key):
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


@pytest.mark.parametrize(("which", "name"), [("tokenizer", "vocabulary"), ("data", "data")])
def test_changed_data_are_refused_with_advice(which, name):
    with pytest.raises(ValueError, match=f"^the {name} changed since this run began. Use --run-dir NEW") as error:
        check_compatible(metadata(FinetuneConfig()), metadata(FinetuneConfig(), **{which: "cc"}))
    assert "fingerprint" not in str(error.value) and "Restore these settings" not in str(error.value)


def test_changed_data_are_refused_with_the_changed_sources():
    config = mutated("data.sources")
    with pytest.raises(ValueError, match=r"the data changed since this run began.*\n  data\.sources: checkpoint has"):
        check_compatible(metadata(FinetuneConfig()), metadata(config, data="cc"))


def test_check_compatible_lists_all_differences():
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


def test_key_missing_in_a_checkpoint_has_its_default():
    saved = to_dict(FinetuneConfig())
    del saved["training"]["max_skipped_updates"], saved["model"]["hidden_act"]
    assert check_compatible(metadata(saved), metadata(FinetuneConfig())) == []
    with pytest.raises(ValueError, match=r"model\.hidden_act: checkpoint has 'gelu', config has 'gelu_tanh'"):
        check_compatible(metadata(saved), metadata(mutated("model.hidden_act")))
