"""Advice for a step that does not fit: it is compiled, fits, and is given as command-line flags."""

from __future__ import annotations

from dataclasses import replace

import jax
import pytest

from bertjax.__main__ import main
from bertjax.config import (
    Config,
    DataConfig,
    ExecutionConfig,
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    StageConfig,
    TrainingConfig,
    load_recipe,
    override,
)
from bertjax.model.attention.backends import WHOLE_ROWS
from bertjax.parallel.mesh import make_mesh
from bertjax.plan import answer
from bertjax.plan.advice import _kinds, advise, flags_for, meshes
from bertjax.plan.answer import Answer
from bertjax.plan.compiling import argument_sizes, compiler_flops
from bertjax.plan.estimates import Plan, _with_rows_for_all, make_plan, mesh_on
from bertjax.plan.figures import cost_table, describe_stage, headline
from bertjax.plan.suggest import Suggestion, _candidate_meshes, _last_resorts, _starts, pick_microbatches
from bertjax.plan.topologies import CHIPS, open_topology
from bertjax.training.memory_fit import USABLE
from bertjax.training.stages import make_stages

RECIPE = Config(
    model=ModelConfig(
        vocab_size=300, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128
    ),
    data=DataConfig(sequence_length=128, max_predictions=8),
    optimizer=OptimizerConfig(warmup_steps=2),
    training=TrainingConfig(steps=100, global_batch_size=64, grad_accum_steps=1),
    mesh=MeshConfig(data=2),  # so that another size of fsdp requires another size of data
)


def silent(line: str) -> None:
    """Print nothing about compilations."""


@pytest.fixture(scope="module")
def too_large() -> Plan:
    """A plan for two CPU devices with seven tenths of the memory that it needs."""
    topology = replace(open_topology("local"), devices=tuple(jax.devices()[:2]), slices=(0, 0))
    whole = make_plan(RECIPE, topology, say=silent)
    assert whole.fits, "without a known limit, everything fits"
    capacity = 0.7 * whole.stages[0].needed
    stages = (replace(whole.stages[0], capacity=capacity),)
    return replace(whole, topology=replace(topology, capacity=capacity), stages=stages)


def test_headline_reports_a_plan_that_does_not_fit(too_large: Plan) -> None:
    assert not too_large.fits
    assert too_large.is_whole and headline(too_large).startswith(RECIPE.name)
    one_of_two = replace(too_large, recipe=replace(RECIPE, stages=(StageConfig(start=50),)))
    assert headline(one_of_two).startswith(f"stage 1 of {RECIPE.name} does not fit")
    assert cost_table(one_of_two).title == "Stage 1 of the recipe"


@pytest.mark.long
def test_advice_makes_a_plan_fit(too_large: Plan) -> None:
    ((stage, remedies),) = advise(too_large, silent).remedies
    assert {remedy.flags.split()[0] for remedy in remedies} >= {"--training.grad-accum-steps", "--execution.remat"}
    for remedy in remedies:
        assert remedy.planned.fits
        assert remedy.planned.needed < stage.needed
        changed = override(RECIPE, remedy.flags.split(), "test")
        assert make_stages(changed)[0].training == remedy.planned.stage.training
        assert changed.model == remedy.planned.config.model
        assert make_mesh(changed.mesh, jax.devices()[:2]) == remedy.planned.mesh


@pytest.mark.long  # the suite has the order of the tries, in tests/run/test_memory_fit.py
def test_auto_fits_where_one_microbatch_does_not(too_large: Plan) -> None:
    """By recomputation, since two microbatches would leave a device less than 4,096 tokens at a time."""
    messages: list[str] = []
    auto = replace(RECIPE, training=replace(RECIPE.training, grad_accum_steps="auto"))
    roomy = replace(too_large.topology, capacity=too_large.topology.capacity / USABLE["cpu"])
    plan = make_plan(auto, roomy, say=messages.append)
    assert plan.fits and plan.config.training.grad_accum_steps == 1 and plan.config.execution.remat != "none"
    assert plan.stages[0].needed <= USABLE["cpu"] * roomy.capacity
    assert "gradient accumulation steps (auto): 1 with execution.remat" in Answer(plan, None, None, "").text
    assert len(messages) == len({*messages}), "no step is compiled twice"


def test_search_starts_from_the_current_settings(too_large: Plan) -> None:
    (stage,) = too_large.stages
    current, *others = _starts(too_large, stage)
    assert flags_for(too_large, stage, current) == ""
    assert len(others) == 3
    for change in others:
        flags = flags_for(too_large, stage, change)
        changed = override(RECIPE, flags.split(), "test")
        assert changed.execution.remat == change.remat
        assert make_mesh(changed.mesh, jax.devices()[:2]) == make_mesh(change.mesh, jax.devices()[:2]), flags


def test_search_skips_meshes_too_small_for_the_weights(too_large: Plan) -> None:
    (stage,) = too_large.stages
    assert [mesh.fsdp for mesh in _candidate_meshes(too_large, stage)] == [1, 2]
    one, two = (
        sum(
            argument_sizes(
                replace(stage.config, mesh=MeshConfig(-1, n)),
                stage.stage,
                make_mesh(MeshConfig(-1, n), jax.devices()[:2]),
            )
        )
        for n in (1, 2)
    )
    tight = replace(too_large, topology=replace(too_large.topology, capacity=(one + two) / 2))
    assert [mesh.fsdp for mesh in _candidate_meshes(tight, stage)] == [2]
    none = replace(too_large, topology=replace(too_large.topology, capacity=two / 2))
    assert not _candidate_meshes(none, stage)


def test_last_resort_gathers_weights_by_layer(too_large: Plan) -> None:
    (stage,) = too_large.stages
    (change,) = _last_resorts(too_large, stage)
    flags = flags_for(too_large, stage, change)
    assert flags == "--mesh.data -1 --mesh.fsdp 2 --execution.remat full --execution.gather layer"
    changed = override(RECIPE, flags.split(), "test")
    assert change.applied(RECIPE, stage.stage)[0].execution == changed.execution


def test_advice_does_not_retry_current_settings(too_large: Plan) -> None:
    (stage,) = too_large.stages
    change = _last_resorts(too_large, stage)[0]
    config, changed = change.applied(RECIPE, stage.stage)
    kinds = [*_kinds(replace(too_large, config=config), replace(stage, config=config, stage=changed))]
    tried = [other for kind in kinds for other in kind]
    assert tried and change not in tried and {other.gather for other in tried} == {"layer"}


def test_candidate_meshes_share_heads_or_tokens(too_large: Plan) -> None:
    (stage,) = too_large.stages

    def candidates(recipe: Config) -> list[MeshConfig]:
        shared = replace(recipe, mesh=MeshConfig(1, 1, 2))
        return _candidate_meshes(replace(too_large, recipe=shared), replace(stage, config=shared))

    heads, tokens = MeshConfig(fsdp=1, tensor=2), MeshConfig(fsdp=1, length=2)
    assert candidates(RECIPE) == [heads, tokens]
    assert candidates(replace(RECIPE, model=replace(RECIPE.model, attention_block=16))) == [heads]


def test_stage_description_names_shared_rows(too_large: Plan) -> None:
    (stage,) = too_large.stages
    shared = replace(stage, mesh=make_mesh(MeshConfig(length=2, tensor=2), jax.devices()))
    assert f", {stage.stage.training.rows_at_a_time // 2} on 4 devices at a time" in describe_stage(shared)


@pytest.mark.parametrize(("recipe", "widest"), [("electra:small", 64), ("albert:base", 128), ("bert_base", 256)])
def test_meshes_divide_every_network(recipe: str, widest: int) -> None:
    """ELECTRA's generator is 64 wide, ALBERT's word vectors 128."""
    assert [mesh.fsdp for mesh in meshes(load_recipe(recipe), 256, 1)] == [1 << n for n in range(widest.bit_length())]


def test_too_few_rows_are_reported_before_compiling() -> None:
    messages: list[str] = []
    stages = (StageConfig(start=50, grad_accum_steps=48, global_batch_size=96),)
    later = replace(RECIPE, mesh=MeshConfig(), stages=stages)
    four = replace(open_topology("local"), devices=tuple(jax.devices()[:4]), slices=(0,) * 4)
    with pytest.raises(ValueError, match=r"stage 2: .* or at most 24 microbatches: --stages.0.grad-accum-steps 24"):
        make_plan(later, four, say=messages.append)
    assert not messages
    adapted = _with_rows_for_all(make_stages(later)[1], mesh_on(later, four), messages.append)
    assert adapted.training.grad_accum_steps == 24
    assert messages[0] == "stage 2: 48 microbatches cannot be shared evenly by 4 shards; starting from 24"


@pytest.mark.parametrize("attention", ["mosaic", pytest.param("cudnn", marks=pytest.mark.long)])
def test_compiler_flops_do_not_depend_on_the_attention_backend(attention: str) -> None:
    model = replace(RECIPE.model, attention_probs_dropout_prob=0.0, num_hidden_layers=1)
    wished = replace(RECIPE, model=model, execution=ExecutionConfig(attention=attention, dtype="bfloat16"))
    plain = replace(RECIPE, model=model, execution=ExecutionConfig(attention="xla", dtype="bfloat16"))
    assert compiler_flops(wished, make_stages(wished)[0]) == compiler_flops(plain, make_stages(plain)[0]) > 0


@pytest.mark.long
def test_bound_counts_every_block_of_long_rows() -> None:
    """The compiler counts one block of queries of a long row; by that count a step would exceed the peak."""
    model = replace(RECIPE.model, num_hidden_layers=1, max_position_embeddings=4 * WHOLE_ROWS)
    data = DataConfig(sequence_length=4 * WHOLE_ROWS, max_predictions=8)
    training = replace(RECIPE.training, global_batch_size=2)
    config = replace(RECIPE, model=model, data=data, training=training)
    chip = replace(CHIPS["h100"], memory_bandwidth=1e30)  # so that only arithmetic takes time
    topology = replace(open_topology("local"), devices=tuple(jax.devices()[:2]), slices=(0, 0), chip=chip)
    (stage,) = make_plan(config, topology, say=silent).stages
    assert stage.counted_flops < stage.flops / 2
    assert stage.bound.compute == pytest.approx(stage.flops / 2 / chip.flops)
    assert stage.mfu_bound <= 1


def test_pick_microbatches_takes_the_largest_that_fits(too_large: Plan) -> None:
    (choice,) = pick_microbatches(too_large, silent).choices
    assert choice.planned is not None
    assert choice.planned.fits
    assert choice.flags == "--training.grad-accum-steps 2"
    assert choice.flags in choice.text
    nothing = replace(choice, planned=None)
    assert Suggestion((choice,)).is_whole and not Suggestion((choice, nothing)).is_whole


def test_plan_that_does_not_fit_exits_with_code_3(
    too_large: Plan, monkeypatch: pytest.MonkeyPatch, tmp_path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "recipe.py"
    recipe.write_text("from bertjax.config import Config\n\ndef config():\n    return Config()\n")
    result = answer.Answer(too_large, None, None, "vocabulary of 300 entries")
    monkeypatch.setattr(answer, "answer", lambda *_, **__: result)
    assert main(["plan", str(recipe), "--topology", "local"]) == 3
    output = capsys.readouterr().out
    assert "does not fit" in output and "vocabulary of 300 entries" in output
