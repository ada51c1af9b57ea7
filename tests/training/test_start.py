"""How a run starts: refused before it speaks, quick, with a line for every stretch of work, and never silent for long.

Times are those of a loaded machine too: a stretch counts by the clock or by the processor time of the run, whichever is
less.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from generated_corpus import write_corpus
from tiny_runs import command, news_of, surroundings, write_recipe

REPOSITORY = Path(__file__).resolve().parents[2]
SILENCE = 5.0  # seconds


@dataclass(frozen=True)
class Line:
    """A line that a run printed, with the seconds and the processor seconds since it was started."""

    text: str
    clock: float
    processor: float


def lines_of(arguments: list[str], cwd: Path, environment: dict[str, str]) -> list[Line]:
    """The lines of a command as they come; it must end well."""
    if not Path("/proc/self/stat").exists():
        pytest.skip("needs /proc to tell the processor time of another process")
    began = time.monotonic()
    process = subprocess.Popen(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=cwd,
        env=environment | {"PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    lines = [Line("", 0.0, 0.0)]
    for text in process.stdout:
        lines.append(Line(text.rstrip("\n"), time.monotonic() - began, _processor_seconds(process.pid)))
    assert process.wait() == 0, "\n".join(line.text for line in lines)
    return lines


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def longest_silence(lines: list[Line]) -> tuple[float, str]:
    """The longest stretch without a line, in seconds, and the line that ended it."""
    gaps = ((min(b.clock - a.clock, b.processor - a.processor), b.text) for a, b in itertools.pairwise(lines))
    return max(gaps)


def position(lines: list[Line], pattern: str) -> int:
    """The number of the first line that a pattern is in."""
    found = [number for number, line in enumerate(lines) if re.search(pattern, line.text)]
    assert found, f"{pattern} is not in\n" + "\n".join(line.text for line in lines)
    return found[0]


@dataclass(frozen=True)
class Begun:
    """A folder with a recipe and a short run, its text, and what the run printed."""

    folder: Path
    source: Path
    lines: list[Line]


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Begun:
    folder = tmp_path_factory.mktemp("begun")
    recipe, source = write_recipe(folder), write_corpus(folder / "corpus.txt", 60)
    few = ("--training.steps", "4", "--training.eval-rows", "8", "--data.workers", "1")
    return Begun(
        folder, source, lines_of(command(recipe, source, folder / "run", *few), folder, surroundings(devices=1))
    )


def test_a_run_says_each_stretch_of_work_and_is_never_silent_for_long(begun: Begun) -> None:
    lines = begun.lines
    order = [
        "changed from the recipe:",
        r"  training\.steps: 4   \(recipe: \d+\)",
        r"  scaled with it: .*optimizer\.warmup_steps=",
        "preparing text: 100%",
        "token store ",
        "model: .* parameters",
        "compiling the step, about 20 s the first time",
        "pretraining  .* / 4 steps",
        "step 4  held out",
        "where everything is:",
    ]
    places = [position(lines, pattern) for pattern in order]
    assert places == sorted(places)
    assert places[0] == 1 or lines[1].text.startswith("importing jax ("), "something is said before the config"
    assert not any(line.text.startswith(("config:", "  model.hidden_size")) for line in lines)
    silence, line = longest_silence(lines)
    assert silence <= SILENCE, f"{silence:.1f} s before {line!r}"


@pytest.mark.long
def test_the_quickstart_takes_its_first_step_in_time(tmp_path: Path) -> None:
    """On a prepared store: 45 s with nothing compiled yet, 20 s with everything compiled."""
    recipe, source = str(REPOSITORY / "configs" / "quickstart.py"), write_corpus(tmp_path / "corpus.txt", 400)
    fixed = ["--data.sources", f"lines:{source}", "--data.vocab-size", "500"]
    words = [sys.executable, "-m", "bertjax"]
    # Not what tests set: the compiler does all its work, and keeps it where it does for everyone.
    users = {key: value for key, value in os.environ.items() if not key.startswith(("JAX_", "XLA_"))}
    lines_of([*words, "prepare", recipe, *fixed], tmp_path, users)
    seconds = {}
    for state in ("cold", "warm"):
        few = ["--training.steps", "60", "--training.eval-rows", "64", "--run-dir", state]
        lines = lines_of([*words, "pretrain", recipe, *fixed, *few], tmp_path, users)
        first = lines[position(lines, r"pretraining  .* / 60 steps")]
        seconds[state] = min(first.clock, first.processor)
        print(f"{state}: {first.clock:.1f} s by the clock, {first.processor:.1f} s of the processor")
        assert longest_silence(lines)[0] <= SILENCE
    assert seconds["cold"] <= 45 and seconds["warm"] <= 20, seconds


REFUSED = {
    "another run": (["--model.hidden-act", "gelu_tanh"], r"checkpoint is of another run:.*\n  model\.hidden_act"),
    "no such file": (["--data.sources", "text:/nowhere/*.txt"], r"source text:/nowhere/\*\.txt: the glob matches"),
    "no such vocabulary": (["--data.vocab", "none.txt"], r"vocabulary none\.txt: no such file"),
    "unknown objective": (["--training.objectives", "mlm", "nsq"], r"nsq"),
    "no such weights": (["--init-from", "runs/nowhere"], r"runs/nowhere: no such"),
    "a segmenter of words": (
        ["--data.segmenter", "jieba", "--data.masking", "words", "--data.tokenizer", "bpe"],
        r"data\.segmenter='jieba' with data\.tokenizer='bpe'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_work_is_refused_before_a_word_and_before_text_is_read(
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


def test_weights_of_another_shape_are_refused_before_text_is_read(
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
