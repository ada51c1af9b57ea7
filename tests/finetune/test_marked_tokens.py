"""Global tokens of kinds of tasks, and their effect in single and packed rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exported_models import fine_tuned_model
from family_models import tokenizer_of
from small_tasks import load_content, random_params, small_config, small_start, write_choices, write_classes
from test_task_encoding import CLS, SEP, TOKENIZER, encode_rows, example, ids

from bertjax.config import FinetuneConfig, ModelConfig, TaskConfig
from bertjax.families.networks import abstract_network, init_params
from bertjax.finetune.batches import lay_out, pack_examples, padded
from bertjax.finetune.data.examples import Question
from bertjax.finetune.encoding.global_tokens import FIRST_TOKEN, with_global_tokens
from bertjax.finetune.encoding.question_windows import QuestionCounts, WindowSizes, question_windows
from bertjax.finetune.job import assemble_task, resolved
from bertjax.finetune.kinds import KINDS
from bertjax.finetune.predict import TaskModel
from bertjax.finetune.run import Start, initial_params
from bertjax.input.layout import BERT, Template
from bertjax.model.network import bind
from bertjax.parallel.sharding import to_global
from bertjax.run.job import Job
from bertjax.training.objectives.objective import GLOBAL_POSITIONS, MODEL, Forward
from bertjax.training.state import new_state
from bertjax.training.teacher import Teacher

MODEL_CONFIG = ModelConfig(
    vocab_size=TOKENIZER.vocab_size, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
    max_position_embeddings=64, window=2, global_every=0, global_tokens="marked", global_projections=True,
    initializer_range=0.3,
)  # fmt: skip
TWO = Template(separators=2, token_types=False)


def marked_positions(kind: str, rows, template: Template = BERT, model: ModelConfig = MODEL_CONFIG):
    """List the positions of global tokens by row, without unused slots; None if none are marked."""
    marked_rows = with_global_tokens(rows, KINDS[kind].global_tokens, model, SEP, template)
    if GLOBAL_POSITIONS not in marked_rows.rows:
        return None
    return [[place for place in row if place >= 0] for row in marked_rows.rows[GLOBAL_POSITIONS].tolist()]


def test_global_tokens_match_transformers() -> None:
    pairs = [example("a b", "c d e"), example("f", "g")]
    assert marked_positions("sequence", encode_rows(pairs)) == [[0], [0]]
    # The end and its [SEP] in each of two choices: [CLS] a [SEP] [SEP] b c [SEP] [CLS] a [SEP] [SEP] d [SEP]
    choices = encode_rows([example("a", "b c", "d", label="0")], "choice", ("0", "1"), template=TWO)
    assert choices.tokens["input_ids"].tolist() == [
        *[CLS, *ids("a"), SEP, SEP, *ids("b c"), SEP], *[CLS, *ids("a"), SEP, SEP, *ids("d"), SEP],
    ]  # fmt: skip
    assert marked_positions("choice", choices, TWO) == [[4, 5, 6, 11, 12]]
    questions = [Question("here:1", "1", "a b", "c d", (), True), Question("here:2", "2", "e", "f", (), True)]
    windows = question_windows(questions, TOKENIZER, WindowSizes(16, 4, 4), QuestionCounts())
    assert marked_positions("span", windows.rows) == [[0, 1, 2], [0, 1]]
    assert KINDS["tokens"].global_tokens is KINDS["vector"].global_tokens is None
    assert marked_positions("tokens", encode_rows(pairs)) is None


@pytest.mark.parametrize(("tokens", "expected"), [("none", None), ("first", [[0], [0]])])
def test_global_tokens_follow_the_model(tokens: str, expected) -> None:
    rows = encode_rows([example("a b", "c"), example("f", "g")])
    assert marked_positions("tokens", rows, model=replace(MODEL_CONFIG, global_tokens=tokens)) == expected


def test_packed_examples_have_their_own_global_tokens() -> None:
    words = ["a b c d e f g h", "b", "c d e f", "i j k l m n o p q"]
    rows = with_global_tokens(encode_rows([example(text) for text in words]), FIRST_TOKEN, MODEL_CONFIG, SEP, BERT)
    params = random_params(MODEL_CONFIG, 0)

    def vectors(batch, packed: bool) -> np.ndarray:
        @jax.jit
        def compute(batch):
            return Forward({MODEL: bind(abstract_network(MODEL_CONFIG)[0], params)}, None, packed=packed)(batch)

        return np.asarray(compute({key: jnp.asarray(x) for key, x in batch.items()}))

    alone = padded(rows, np.arange(4), 16, TOKENIZER.pad_id)
    layout = pack_examples(rows.lengths, 3)
    shared = lay_out(rows, np.arange(4), layout, TOKENIZER.pad_id)
    assert len(shared["input_ids"]) == layout.rows and layout.slot.max() > 0
    single, packed = vectors(alone, False), vectors(shared, True)
    for example_, row, start in zip(layout.example, layout.row, layout.start, strict=True):
        n = rows.lengths[example_]
        # Two programs with normalised outputs of two layers; the largest measured difference is 9e-7.
        np.testing.assert_allclose(packed[row, start : start + n], single[example_, :n], atol=4e-6)
    # [CLS] attends to the last word, beyond two windows; without global tokens the result differs.
    without = {key: x for key, x in alone.items() if key != GLOBAL_POSITIONS}
    assert np.abs(vectors(without, False)[3] - single[3]).max() > 1e-3


def longformer(folder: Path) -> tuple[Start, FinetuneConfig]:
    """Make a Longformer with projections of global tokens, and the config of a task with such tokens."""
    start = small_start(folder, tokenizer_of("bert"), family="longformer", window=4, global_every=0, pooler="none",
                        type_vocab_size=1, global_tokens="marked", global_projections=True)  # fmt: skip
    task = TaskConfig(labels=("no", "yes"))
    return start, FinetuneConfig(model=KINDS["sequence"].headed(start.model, 2), task=task)


def test_unused_projections_start_as_copies(tmp_path) -> None:
    start, config = longformer(tmp_path)
    lines: list[str] = []
    attention = initial_params(config, start, lines.append)["encoder"]["layers"]["attention"]
    assert "start as copies of the ordinary ones" in lines[0]
    jax.tree.map(np.testing.assert_array_equal, attention["query_global"], attention["query"])


@pytest.mark.long  # the suite starts from the same task in test_run.py
def test_projections_of_the_same_task_are_kept(tmp_path) -> None:
    start, config = longformer(tmp_path)
    tuned = replace(start, kind="sequence")
    attention = initial_params(config, tuned, print)["encoder"]["layers"]["attention"]
    assert np.abs(np.asarray(attention["query_global"]["kernel"] - attention["query"]["kernel"])).max() > 0


BLOCKS = {"family": "bigbird", "attention_block": 2, "random_blocks": 1, "max_position_embeddings": 64}
FULL = {**BLOCKS, "attention_block": 0, "random_blocks": 0}
LONGEST_FULL = 14  # tokens


def assemble(folder: Path, kind: str, length: int, network: dict[str, Any], taught: bool = False) -> Job:
    """Assemble a job; `taught`: with a teacher whose attention is block-sparse."""
    start = small_start(folder / "start", **network)
    data = (write_choices if kind == "choice" else write_classes)(folder / kind)
    config = small_config(kind, start, data, folder / "run")
    config = replace(config, data=replace(config.data, sequence_length=length))
    content = load_content(config, start)
    config = resolved(config, content)
    model = replace(config.model, **BLOCKS)
    teacher = Teacher(model, jax.jit(lambda key: init_params(model, key))(jax.random.key(2))) if taught else None
    return assemble_task(config, content, start.tokenizer, teacher)


@pytest.mark.long  # compiles three networks
def test_block_sparse_rows_pack_only_with_full_attention(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"sequence_length=64 with model.attention_block=2: choice has several .* 14 "):
        assemble(tmp_path, "choice", 64, BLOCKS)
    for length, packed in ((LONGEST_FULL, True), (64, False)):
        for network, taught in ((BLOCKS, False), (FULL, True)):
            (stage,) = assemble(tmp_path, "classification", length, network, taught).stages
            rows = len(stage.batches.batch(0, 16)["input_ids"])
            assert (rows < 16) == packed


@pytest.mark.long
@pytest.mark.parametrize("kind", ["classification", "choice"])
def test_full_attention_sequences_share_rows(kind: str, tmp_path) -> None:
    taught = kind == "classification"
    full, job = (assemble(tmp_path, kind, LONGEST_FULL, network, taught) for network in (FULL, BLOCKS))
    assert job.blueprint.model == full.blueprint.model != job.config.model
    assert all(frozen.model == full.blueprint.model for frozen in job.blueprint.frozen.values())
    assert job.config.model.attention_block == job.metadata["config"]["model"]["attention_block"] == 2
    (stage,) = job.stages
    batch = stage.batches.batch(0, 16)
    assert batch["input_ids"].shape[1] > LONGEST_FULL and batch["sequence_ids"].max() > 1
    with jax.set_mesh(job.mesh):
        make = jax.jit(lambda key: new_state(init_params(job.config.model, key), job.optimizer),
                       out_shardings=job.blueprint.shardings)  # fmt: skip
        state = make(jax.random.key(1))
        if kind == "choice":
            figures = stage.evaluation(state.params)
        else:
            _, figures = stage.train_step(state, to_global(job.mesh, batch))
    assert np.isfinite([float(value) for value in figures.values()]).all()


def test_choices_with_full_attention_are_predicted(tmp_path) -> None:
    blocks, full = (TaskModel(fine_tuned_model(tmp_path, "choice", **network)) for network in (BLOCKS, FULL))
    inputs = [("The museum", ["opened", "of the drawings", "and opened the", "the", "drawings"])]
    assert blocks.predict(inputs)[0].probabilities == pytest.approx(full.predict(inputs)[0].probabilities, rel=1e-6)
    with pytest.raises(ValueError, match=r"a text has 20 tokens.* 5 sequences: .*attention_block=2 .* 14 tokens; sh"):
        blocks.predict([("the museum of the " * 4, inputs[0][1][:1] * 5)])
