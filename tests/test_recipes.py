"""Every recipe and variant resolves to its golden values, and its train step can be lowered."""

from __future__ import annotations

import functools
import math
import os
import re
from dataclasses import replace
from pathlib import Path

import jax
import pytest

from bertjax.config import Config, differences, from_dict, load_recipe, to_dict, validate
from bertjax.config.recipes import describe_recipe, recipe_names
from bertjax.families.networks import abstract_network
from bertjax.parallel.mesh import make_abstract_mesh
from bertjax.plan.compiling import lower_train_step
from bertjax.text.trained_vocabulary import vocabulary_size
from bertjax.training.stages import make_stages
from bertjax.training.teacher import assumed_teacher, stage_flops

REPOSITORY = Path(__file__).resolve().parent.parent
GOLDEN = REPOSITORY / "tests" / "recipes.golden.txt"


def recipes() -> list[str]:
    """All recipes, as `FILE.py` or `FILE.py:VARIANT`."""
    names = []
    for path in sorted((REPOSITORY / "configs").glob("*.py")):
        try:
            load_recipe(f"{path}:?")
        except ValueError as error:
            variants = re.search(r"this recipe has (.*)$", str(error))
            names += [f"{path.name}:{name}" for name in variants[1].split(", ")] if variants else [path.name]
    return names


RECIPES = recipes()


@functools.cache
def recipe(name: str) -> Config:
    return load_recipe(REPOSITORY / "configs" / name)


def golden() -> str:
    """The defaults, then the values of each recipe that differ from them."""
    sections = []
    for name in RECIPES:
        changed = {key: value for key, (_, value) in sorted(differences(recipe(name), Config()).items())}
        if "stages" in changed:
            changed["stages"] = [{k: v for k, v in stage.items() if v is not None} for stage in changed["stages"]]
        sections.append("\n".join([name, *(f"  {key} = {value!r}" for key, value in changed.items())]))
    defaults = to_dict(Config())
    lines = [
        f"  {name}.{key} = {value!r}"
        for name, part in defaults.items()
        if isinstance(part, dict)
        for key, value in part.items()
    ]
    return "\n\n".join(["defaults\n" + "\n".join(lines), *sections]) + "\n"


def test_every_recipe_resolves_to_its_golden_values() -> None:
    text = golden()
    if os.environ.get("BERTJAX_UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text(), (
        "if you meant this change, run this test with BERTJAX_UPDATE_GOLDEN=1 and review the diff"
    )


def test_byte_level_recipes_begin_texts_without_a_space() -> None:
    """Like the published vocabularies of RoBERTa, DeBERTa and ModernBERT."""
    published = {name: config for name in RECIPES if (config := recipe(name)).data.vocab_size > 50_000}
    byte_level = {name: config for name, config in published.items() if config.data.tokenizer == "byte_bpe"}
    assert len({config.model.family for config in byte_level.values()}) > 3
    assert [name for name, config in byte_level.items() if config.data.prefix_space] == []


def test_recipes_of_the_paper_and_its_followers_exist() -> None:
    assert sum(name.startswith("miniatures.py") for name in RECIPES) == 24
    assert {"bert_base.py:uncased", "bert_base.py:cased", "bert_large.py:uncased", "bert_large.py:cased"} <= set(
        RECIPES
    )
    assert {
        "bert_large.py:wwm",
        "multilingual.py:cased",
        "multilingual.py:chinese",
        "lamb.py:nvidia",
        "lamb.py:paper",
    } <= set(RECIPES)
    assert {"ablations.py:no-nsp", "ablations.py:80-10-10", "ablations.py:0-0-100"} <= set(RECIPES)


def test_mbert_reads_the_wikipedias_of_104_languages() -> None:
    cased, uncased = recipe("multilingual.py:cased").data, recipe("multilingual.py:uncased").data
    codes = [
        re.fullmatch(r"wikipedia:(\w+)wiki-latest-pages-articles\.xml\.bz2", source)[1] for source in cased.sources
    ]
    # Simplified and traditional Chinese are two of the languages but share a Wikipedia.
    assert len(codes) == len({*codes}) == 104 - 1 and "zh" in codes
    assert {*cased.sources} - {*uncased.sources} == {
        source for source in cased.sources if source[10:12] in ("mn", "th")
    }
    assert len(uncased.sources) == 102 - 1
    assert (
        {data.temperature for data in (cased, uncased)}
        == {data.vocab_temperature for data in (cased, uncased)}
        == {0.7}
    )


def test_domain_models_have_the_published_sizes() -> None:
    """Compare with the parameters of transformers' BertForPreTraining in these sizes."""
    for variant, count in (("legal", 110_106_428), ("legal-small", 35_363_644), ("biobert-1.1", 108_932_934)):
        net = replace(recipe(f"domain.py:{variant}").model, vocab_pad_multiple=1)
        assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(abstract_network(net)[1])) == count


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_is_valid_and_survives_a_round_trip(name: str) -> None:
    config = validate(recipe(name))
    assert make_stages(config)[-1].stop == config.training.steps
    assert config.training.keep_every % config.training.checkpoint_every == 0
    assert from_dict(to_dict(config)) == config
    text = (REPOSITORY / "configs" / name.partition(":")[0]).read_text()
    for part in ("Reproduces:", "Expected:", "Cost:", f"Command: bertjax pretrain {name[: name.index('.py')]}"):
        assert part in text or name == "quickstart.py"


def costs() -> dict[str, float]:
    """The first FLOPs in each recipe's docstring, which belong to its first variant."""
    costs_by_name = {}
    for path in sorted((REPOSITORY / "configs").glob("*.py")):
        text = path.read_text().partition("\nCommand:")[0]
        if flops := re.search(r"^Cost:.*?([\d.]+e\d+) FLOP(?! a token|/)", text, re.M | re.S):
            costs_by_name[next(name for name in RECIPES if name.partition(":")[0] == path.name)] = float(flops[1])
    return costs_by_name


@pytest.mark.parametrize("name", recipe_names())
def test_recipe_time_is_part_of_its_cost(name: str) -> None:
    """`bertjax recipes` prints the line `Time:`, whose figures and machine match `Cost:`."""
    sections = describe_recipe(REPOSITORY / "configs" / f"{name}.py").sections
    words = set(re.findall(r"[\w/.]+", sections.get("Time", "")))
    assert words - {"or", "more", "on"} <= set(re.findall(r"[\w/.]*[\w/]", sections["Cost"]))


@pytest.mark.parametrize(("name", "flops"), costs().items())
def test_recipe_cost_equals_the_flops_of_its_steps(name: str, flops: float) -> None:
    config = recipe(name)
    config = replace(config, model=replace(config.model, vocab_size=vocabulary_size(config.data)[0]))
    teacher, total = assumed_teacher(config), 0.0
    for stage in make_stages(config):
        tokens = stage.training.global_batch_size * stage.data.sequence_length
        total += (stage.stop - stage.start) * tokens * stage_flops(config, stage, teacher)
    assert flops == pytest.approx(total, rel=0.05)


# Three structurally different networks; the other recipes are `long`.
DIFFERENT = {"electra.py:small", "modernbert.py:base", "longformer.py:base"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in DIFFERENT else pytest.mark.long) for name in RECIPES]
)
def test_every_recipe_lowers_for_an_abstract_mesh(name: str) -> None:
    config = recipe(name)
    stages = make_stages(config)
    at_once = [replace(stage, training=replace(stage.training, grad_accum_steps=1)) for stage in stages]
    mesh = make_abstract_mesh(config.mesh, min(16, *(stage.training.global_batch_size for stage in stages)))
    # Of several stages, the first and the last: those between only grow the batch.
    for number in dict.fromkeys((0, len(stages) - 1)):
        stage = at_once[number]
        lowered = lower_train_step(config, stage, mesh, "tpu")
        rows, length = stage.training.global_batch_size, stage.data.sequence_length
        assert f"tensor<{rows}x{length}xi32>" in lowered.as_text()


@pytest.mark.parametrize("name", ["bert_large.py", "bert_base.py"])
def test_recipe_trains_on_the_papers_number_of_tokens(name: str) -> None:
    tokens = sum(
        (s.stop - s.start) * s.training.global_batch_size * s.data.sequence_length for s in make_stages(recipe(name))
    )
    assert tokens == 0.9e6 * 256 * 128 + 0.1e6 * 256 * 512
