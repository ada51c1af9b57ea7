"""What a run cannot do is refused before any text is prepared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bertjax.config import Config, DataConfig, ModelConfig, TrainingConfig
from bertjax.training.job import preflight


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
            r"model.causal=True: \[CLS\] attends to itself alone, and cannot predict .* leave nsp out",
        ),
        (config(("mlm", "sop")), r"model.family='bert': its networks have no sop_head, which sop needs; they have"),
        (config(("mlm", "nps")), r"training.objectives=\('mlm', 'nps'\): choose one or more of mlm, nsp, sop"),
        (config(("mlm", "mlm")), r"each once"),
        (config(("mlm",), model=ModelConfig(family="brt")), r"model.family='brt' is unknown; did you mean 'bert'"),
    ],
)
def test_what_does_not_go_together_is_refused(wanted: Config, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        preflight(wanted)


@pytest.mark.parametrize("objectives", [("mlm", "nsp"), ("nsp",), ("mlm",)])
def test_objectives_that_the_network_has_heads_for_pass(objectives: tuple[str, ...]) -> None:
    assert preflight(config(objectives)) == config(objectives)
