"""Invalid configs are refused before any text is prepared."""

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
    ("run_config", "message"),
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
def test_preflight_refuses_contradicting_settings(run_config: Config, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        preflight(run_config)


@pytest.mark.parametrize("objectives", [("mlm", "nsp"), ("nsp",), ("mlm",)])
def test_preflight_accepts_supported_objectives(objectives: tuple[str, ...]) -> None:
    assert preflight(config(objectives)) == config(objectives)


@pytest.mark.parametrize(
    ("steps", "rows", "warning"),
    [
        (900_000, 492, "Warning: 468,293 passes over 492 rows; add text or lower --training.steps"),
        (1_000_000, 6_400_000, ""),  # 40 epochs, like BERT
    ],
)
def test_epochs_warning_for_too_many_passes(steps: int, rows: int, warning: str) -> None:
    (stage,) = make_stages(Config(training=TrainingConfig(steps=steps, global_batch_size=256)))
    batches = SimpleNamespace(estimated_rows=rows)
    run = SimpleNamespace(
        stages=(RunStage(**vars(stage), train_step=None, batches=batches, evaluation=None, flops_per_token=0.0),)
    )
    assert epochs_warning(run) == warning
