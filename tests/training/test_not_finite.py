"""Non-finite updates are reported at the next log line, long before a save, and stop a run that has only them."""

from __future__ import annotations

from pathlib import Path

import pytest
from generated_corpus import write_corpus
from tiny_runs import checkpoints, command, start, write_recipe


@pytest.mark.run
def test_diverging_run_ends_at_the_next_log_line(tmp_path: Path) -> None:
    corpus, log = write_corpus(tmp_path / "corpus.txt", 200), tmp_path / "log"
    run = tmp_path / "run"
    periods = ("--training.log-every", "4", "--training.checkpoint-every", "100", "--training.eval-every", "100")
    diverging = ("--optimizer.learning-rate", "1e38", "--training.max-skipped-updates", "9")
    assert start(command(write_recipe(tmp_path), corpus, run, *periods, *diverging), log).wait() == 1
    output = log.read_text()
    warning, error = output.index("Warning: step"), output.index("updates had a gradient that is not finite and were")
    assert warning < error and "lower optimizer.learning_rate" in output.lower()
    assert "Traceback" not in output
    assert checkpoints(run) == []
