"""What a run cannot do is refused before any text is prepared."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from bertjax.config import Config, DataConfig, ModelConfig, TrainingConfig
from bertjax.run.checks import preflight
from bertjax.run.describe import epochs_warning
from bertjax.run.job import RunStage
from bertjax.training.stages import make_stages


def config(objectives: tuple[str, ...], **parts: object) -> Config:
    training = TrainingConfig(steps=20_000, global_batch_size=8, objectives=objectives)
    return replace(Config(training=training), **parts)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (
            config(("mlm", "nsp"), model=ModelConfig(type_vocab_size=1)),
            r"two token types; set it to 2, or leave nsp",
        ),
        (config(("mlm", "nsp"), data=DataConfig(rows="full_sentences")), r"have no second segment; leave nsp out"),
        (
            config(("mlm", "nsp"), model=ModelConfig(causal=True), data=DataConfig(predict="next")),
            r"model.causal=True: \[CLS\] attends only to itself, so it cannot predict .* leave nsp out",
        ),
        (config(("mlm", "sop")), r"model.family='bert': its networks have no sop_head, which sop needs; they have"),
        (config(("mlm", "nps")), r"training.objectives=\('mlm', 'nps'\): choose one or more of mlm, nsp, sop"),
        (config(("mlm", "mlm")), r"each once"),
        (config(("mlm",), model=ModelConfig(family="brt")), r"model.family='brt' is unknown; did you mean bert"),
    ],
)
def test_what_does_not_go_together_is_refused(wanted: Config, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        preflight(wanted)


@pytest.mark.parametrize("objectives", [("mlm", "nsp"), ("nsp",), ("mlm",)])
def test_objectives_that_the_network_has_heads_for_pass(objectives: tuple[str, ...]) -> None:
    assert preflight(config(objectives)) == config(objectives)


@pytest.mark.parametrize(
    ("steps", "rows", "warning"),
    [
        (900_000, 492, "Warning: 468,293 passes over 492 rows; add text or lower --training.steps"),
        (1_000_000, 6_400_000, ""),  # 40 epochs, as BERT
    ],
)
def test_epochs_warning_of_a_run_that_reads_its_text_too_often(steps: int, rows: int, warning: str) -> None:
    (stage,) = make_stages(Config(training=TrainingConfig(steps=steps, global_batch_size=256)))
    batches = SimpleNamespace(estimated_rows=rows)
    run = SimpleNamespace(stages=(RunStage(stage, None, batches, None, 0.0),))
    assert epochs_warning(run) == warning
