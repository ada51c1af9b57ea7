"""How a run starts: refused before it prints, and with a line for every stretch of work.

How often a long stretch prints is tested on a clock of its own, in tests/storage/test_text_progress.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from generated_corpus import write_corpus
from tiny_runs import command, finish, news_of, write_recipe

pytestmark = pytest.mark.usefixtures("one_device")


def position(lines: list[str], pattern: str) -> int:
    """The number of the first line that a pattern is in."""
    found = [number for number, line in enumerate(lines) if re.search(pattern, line)]
    assert found, f"{pattern} is not in\n" + "\n".join(lines)
    return found[0]


@dataclass(frozen=True)
class Begun:
    """A folder with a recipe and a short run, its text, and what the run printed."""

    folder: Path
    source: Path
    lines: list[str]


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Begun:
    folder = tmp_path_factory.mktemp("begun")
    recipe, source = write_recipe(folder), write_corpus(folder / "corpus.txt", 60)
    few = ("--training.steps", "4", "--training.eval-rows", "8", "--data.workers", "1")
    finish(command(recipe, source, folder / "run", *few), folder / "log")
    return Begun(folder, source, (folder / "log").read_text().splitlines())


def test_run_prints_each_stretch_of_work_in_order(begun: Begun) -> None:
    lines = begun.lines
    order = [
        "Settings changed from the recipe:",
        r"  training\.steps: 4   \(recipe: \d+\)",
        r"  scaled with it: .*optimizer\.warmup_steps=",
        r"Device    1 × cpu; peak ",
        r"Model     [\d,]+ parameters; attention: xla",
        "Data      token store ",
        "          held_out: ",
        r"Schedule  steps 0 to 4: \d+ × \d+ tokens; [\d.]+ epochs of [\d,]+ rows",
        r"Cost      .* FLOP, at least ",
        r"compiling \(about 20 s the first time\)",
        "pretraining  .* / 4 steps",
        "step 4  held out",
        "Output:",
    ]
    places = [position(lines, pattern) for pattern in order]
    assert places == sorted(places)
    assert places[0] == 0 or lines[0].startswith("Starting… ("), "something is said before the config"
    assert not any(line.startswith(("config:", "  model.hidden_size")) for line in lines)


REFUSED = {
    "another run": (["--model.hidden-act", "gelu_tanh"], r"checkpoint is of another run:.*\n  model\.hidden_act"),
    "no such file": (["--data.sources", "text:/nowhere/*.txt"], r"source text:/nowhere/\*\.txt: the glob matches"),
    "no such vocabulary": (["--data.vocab", "none.txt"], r"vocabulary none\.txt: no such file"),
    "unknown objective": (["--training.objectives", "mlm", "nsq"], r"nsq"),
    "no such weights": (["--init-from", "runs/nowhere"], r"runs/nowhere: no such"),
    "a segmenter of words": (
        ["--data.segmenter", "jieba", "--data.masking", "words", "--data.tokenizer", "bpe"],
        r"data\.segmenter='jieba' requires data\.tokenizer='wordpiece'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_run_is_refused_before_text_is_read(
    name: str, begun: Begun, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch
) -> None:
    from bertjax.__main__ import main
    from bertjax.text.corpus import Corpus

    folder, source = begun.folder, begun.source
    monkeypatch.setattr(Corpus, "of", lambda data: pytest.fail("text was read"))
    changes, message = REFUSED[name]
    run_dir = folder / "run" if name == "another run" else tmp_path / "run"
    words = command(folder / "tiny_recipe.py", source, run_dir, "--training.steps", "4", *changes)
    before = sorted(path.name for path in run_dir.parent.iterdir())
    assert main(words[3:]) == 1
    printed = capsys.readouterr()
    assert re.search(message, printed.err, re.S), printed.err
    assert news_of(printed.out) == []
    assert sorted(path.name for path in run_dir.parent.iterdir()) == before


def test_weights_of_another_shape_are_refused_early(
    begun: Begun, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch
) -> None:
    from bertjax.__main__ import main
    from bertjax.text.corpus import Corpus

    folder, source = begun.folder, begun.source
    monkeypatch.setattr(Corpus, "of", lambda data: pytest.fail("text was read"))
    changes = ("--init-from", str(folder / "run"), "--model.num-hidden-layers", "1")
    assert main(command(folder / "tiny_recipe.py", source, tmp_path / "run", *changes)[3:]) == 1
    printed = capsys.readouterr()
    assert re.search(r"is another model:\n  model\.num_hidden_layers: there \d, here 1", printed.err)
    assert news_of(printed.out) == []


def test_a_vocabulary_without_an_export_is_refused_early(
    begun: Begun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from bertjax.__main__ import main

    mpnet = ("--model.family", "mpnet", "--model.type-vocab-size", "0", "--model.pooler", "none")
    changes = (
        *mpnet,
        "--model.score-bias-buckets",
        "32",
        "--training.objectives",
        "mlm",
        "--data.rows",
        "doc_sentences",
    )
    assert main(command(begun.folder / "tiny_recipe.py", begun.source, tmp_path / "run", *changes)[3:]) == 1
    printed = capsys.readouterr()
    assert "pad_token_id is 0; transformers' MPNet takes 1 for padding" in printed.err
    assert "pretraining" not in printed.out
