"""RoBERTa becomes a Longformer with a longer position table, with the published recipe and command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from family_models import tokenizer_of
from generated_corpus import write_corpus
from their_families import our_params, small, their_model
from tiny_runs import command, finish

from bertjax.run.run_directory import load_run

TINY = {
    "model.hidden-size": 12,
    "model.num-hidden-layers": 3,
    "model.num-attention-heads": 3,
    "model.intermediate-size": 20,
    "data.held-out": 0.1,
    "data.workers": 1,
    "training.steps": 4,
    "training.global-batch-size": 4,
    "training.eval-rows": 4,
    "training.checkpoint-every": 2,
    "execution.dtype": "float32",
}


@pytest.mark.long
def test_longformer_starts_from_roberta_with_4096_positions(tmp_path: Path) -> None:
    """RoBERTa's 512 positions, the recipe's rows and windows, and a folder saved by transformers."""
    tokenizer = tokenizer_of("roberta")
    config = small("roberta", max_position_embeddings=512, vocab_size=tokenizer.vocab_size)
    network, folder = their_model(config, std=0.02), tmp_path / "roberta"
    network.save_pretrained(folder)
    for name, content in tokenizer.files.items():
        (folder / name).write_bytes(content)
    source = write_corpus(tmp_path / "corpus.txt", 800)
    words = [word for key, value in TINY.items() for word in (f"--{key}", str(value))]
    words += ["--init-from", f"hf:{folder}", "--data.vocab", str(folder / "vocab.json")]
    arguments = command(Path("longformer"), source, tmp_path / "run", *words)
    arguments[arguments.index("--data.root") + 1] = str(tmp_path / "data")
    finish(arguments, tmp_path / "log")
    assert_repeated(tmp_path, our_params(network, config)["encoder"], 4_096)


def assert_repeated(folder: Path, before: dict, length: int) -> None:
    """Check that every position is within four steps at a rate of 3e-5 of the repeated table."""
    table = np.asarray(before["embeddings"]["position"])
    note = f"the position table has {length:,} rows: the source's {len(table)}, repeated from the start"
    assert note in (folder / "log").read_text()
    after = load_run(folder / "run").params["encoder"]
    repeated = np.concatenate([table] * (-(-length // len(table))))[:length]
    moved = np.abs(np.asarray(after["embeddings"]["position"]) - repeated)
    assert moved.max() < 2e-4 and moved.max(axis=1).min() > 0
    was, attention = before["layers"]["attention"], after["layers"]["attention"]
    for name in ("query", "key", "value"):
        # No token is global in pretraining.
        np.testing.assert_allclose(attention[f"{name}_global"]["kernel"], was[name]["kernel"], rtol=0, atol=2e-4)
