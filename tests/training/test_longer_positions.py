"""A RoBERTa becomes a Longformer with a longer table of positions, by the recipe and the command of its users."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from family_models import family_model
from generated_corpus import write_corpus
from tiny_runs import command, finish

from bertjax.convert.sources import write_run
from bertjax.training.run_directory import load_run

LENGTH = 256
TINY = {
    **{"model.hidden-size": 12, "model.num-hidden-layers": 3, "model.num-attention-heads": 3},
    **{"model.intermediate-size": 20, "model.window": 8, "model.max-position-embeddings": LENGTH},
    **{"data.sequence-length": LENGTH, "data.max-predictions": 40, "data.held-out": 0.1, "data.workers": 1},
    **{"training.steps": 4, "training.global-batch-size": 4, "training.eval-rows": 4, "training.checkpoint-every": 2},
    "execution.dtype": "float32",
}


@pytest.mark.long
def test_longformer_starts_from_a_roberta_whose_positions_are_repeated(tmp_path: Path) -> None:
    start = family_model(tmp_path / "roberta", "roberta")
    roberta, source = write_run(start), write_corpus(tmp_path / "corpus.txt", 100)
    words = [word for key, value in TINY.items() for word in (f"--{key}", str(value))]
    words += ["--init-from", str(roberta), "--data.vocab", str(Path(str(roberta)) / "vocab.json")]
    arguments = command(Path("longformer"), source, tmp_path / "run", *words)
    arguments[arguments.index("--data.root") + 1] = str(tmp_path / "data")
    finish(arguments, tmp_path / "log")
    said = (tmp_path / "log").read_text()
    assert f"the position table has {LENGTH:,} rows: the 80 there, repeated from the start" in said
    before, after = start.params["encoder"], load_run(tmp_path / "run").params["encoder"]
    table = np.asarray(before["embeddings"]["position"])
    repeated = np.concatenate([table] * (-(-LENGTH // len(table))))[:LENGTH]
    # Four steps of the recipe's rate of 3e-5 away from there, at every position.
    moved = np.abs(np.asarray(after["embeddings"]["position"]) - repeated)
    assert moved.max() < 2e-4 and moved.max(axis=1).min() > 0
    was, attention = before["layers"]["attention"], after["layers"]["attention"]
    for name in ("query", "key", "value"):
        # No token is global in pretraining.
        np.testing.assert_allclose(attention[f"{name}_global"]["kernel"], was[name]["kernel"], rtol=0, atol=2e-4)
