"""Kill runs at uniformly random moments, restart them, and compare them with undisturbed runs."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import object_storage
from crash_subjects import folder_digest
from exported_models import trained_model
from generated_corpus import write_corpus
from outcomes import Share, Table, require_known
from several_processes import child_environment, zygote
from small_tasks import write_classes
from tiny_runs import checkpoints, command, digests, write_recipe

from bertjax.cli.verify import find_parts
from bertjax.convert.sources import write_run
from bertjax.run.telemetry import METRICS_FILE, read_metrics
from bertjax.storage.remote import RemotePath, to_path

FEW_STEPS = (
    *("--training.steps", "24", "--optimizer.warmup-steps", "5", "--training.log-every", "2"),
    *("--training.eval-every", "8", "--training.checkpoint-every", "4", "--data.vocab-size", "260"),
)
_CHANCE = 0.8  # probability of killing a process that is still running at the drawn moment
_RETAINED = 2  # the number of checkpoints that every run here retains at least
_LONGEST = 1200  # seconds of an undisturbed run on a shared machine
# Maps the last output of a process to its phase.
_PHASES = (
    ("training is complete", "report and export"),
    ("data pipeline: ", "compilation"),
    ("Schedule  steps ", "restore"),
    ("Settings", "prepare"),
)
_REPRODUCIBLE = ("step", "train/", "eval/", "baseline/")  # log keys that do not depend on the clock


@dataclass(frozen=True)
class Scenario:
    """A command to kill: its command line in a trial's folder, and the result that must be reproduced."""

    name: str
    words: Callable[[Path], list[str]]
    result: Callable[[Path], Any]
    share: int  # weight among the chains of kills
    phase: Callable[[Path, str], str]
    fresh: bool = False  # start a new interpreter, so that imports are interrupted too
    compiles: bool = False  # use its own compilation cache, initially empty
    environment: Mapping[str, str] = field(default_factory=dict)


class Campaign:
    """The scenarios, which share a corpus, a model and a task, in a folder."""

    def __init__(self, folder: Path, names: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self._recipe, self._source = write_recipe(folder), write_corpus(folder / "corpus.txt", 100)
        self._server: object_storage.Server | None = None
        scenarios = list(self._scenarios())
        require_known("scenarios of kills", names, (one.name for one in scenarios))
        self.scenarios = [one for one in scenarios if one.name in names or not names]

    def turns(self) -> list[Scenario]:
        """The cycle of scenarios for chains of kills: each scenario once, then more according to the shares."""
        turns = list(self.scenarios)
        while len(turns) < sum(one.share for one in self.scenarios):
            turns.append(min(self.scenarios, key=lambda one: turns.count(one) / one.share))
        return turns

    @functools.cached_property
    def _model(self) -> str:
        """A run directory with random weights."""
        return str(write_run(trained_model(self.folder / "model")))

    @functools.cached_property
    def _task(self) -> str:
        """A folder with classification examples."""
        return str(write_classes(self.folder / "task", 64, 32))

    def close(self) -> None:
        """Stop the object storage."""
        if self._server is not None:
            self._server.stop()

    def _pretrain(self, run_dir: Path | str) -> list[str]:
        return command(self._recipe, self._source, run_dir, *FEW_STEPS)

    def _scenarios(self) -> Iterator[Scenario]:
        bertjax = [sys.executable, "-m", "bertjax"]

        def pretrain(trial: Path) -> list[str]:
            return self._pretrain(trial / "run")

        def finetune(trial: Path) -> list[str]:
            words = ["finetune", "classification", "--init-from", self._model, "--data", self._task, "--epochs", "4"]
            words += ["--learning-rate", "1e-3", "--batch-size", "16", "--max-length", "32"]
            return [*bertjax, *words, "--run-dir", str(trial / "run"), "--training.checkpoint-every", "4"]

        def prepare(trial: Path) -> list[str]:
            return prepare_command(self._recipe, str(self._source), trial / "data")

        def export(trial: Path) -> list[str]:
            return [
                *bertjax,
                "export",
                self._model,
                "--to",
                "huggingface",
                "--output",
                str(trial / "export"),
                "--overwrite",
            ]

        yield Scenario("pretrain", pretrain, run_result, 8, _run_phase)
        yield Scenario("pretrain, nothing compiled", pretrain, run_result, 3, _run_phase, compiles=True)
        yield Scenario("pretrain, a new interpreter", pretrain, run_result, 1, _run_phase, fresh=True)
        yield Scenario("fine-tuning", finetune, run_result, 4, _run_phase)
        yield Scenario("prepare", prepare, lambda trial: store_digests(trial / "data"), 2, lambda trial, log: "prepare")
        yield Scenario("export", export, _export, 1, lambda trial, log: "export")
        if not object_storage.MISSING:
            yield Scenario("pretrain into object storage", self._upload, _uploaded, 1, lambda trial, log: "upload")

    def _upload(self, trial: Path) -> list[str]:
        if self._server is None:
            self._server = object_storage.Server(self.folder / "server.log")
            os.environ.update(self._server.environment())
        place = trial / "bucket"
        if not place.exists():
            trial.mkdir(exist_ok=True)
            place.write_text(self._server.bucket())
        words = command(self._recipe, self._source, f"{place.read_text()}/run", *FEW_STEPS)
        return [*words, "--data.cache-dir", str(trial / "cache")]


def prepare_command(recipe: Path, lines: str, root: Path, *more: str) -> list[str]:
    """The command line that prepares the files matching a pattern."""
    words = ["prepare", str(recipe), "--data.sources", f"lines:{lines}", "--data.root", str(root)]
    return [sys.executable, "-m", "bertjax", *words, "--data.vocab-size", "260", *more]


def run_result(trial: Path) -> dict[str, Any]:
    """The reproducible results of a run: arrays, log, checkpoints, exports, and no leftovers or damage."""
    run = next(trial.rglob("metrics.jsonl")).parent
    steps = sorted(checkpoints(run), key=lambda name: int(name) if name.isdecimal() else 0)
    # A process killed while removing an old checkpoint leaves a part of it until the next save.
    older = {f"{run.name}/checkpoints/{name}" for name in steps[:-_RETAINED]}
    parts = [part for part in find_parts(str(run)) if not part.name.endswith(tuple(older))]
    findings = [finding for part in parts for finding in part.check(lambda more: None)]
    exports = [path.parent for path in sorted(run.glob("*/model.safetensors"))]
    return {
        "arrays": digests(run),
        "log": _figures(run),
        "checkpoints": steps[-_RETAINED:],
        "exports": [_export_files(path) for path in exports],
        "predictions": [folder_digest(path) for path in run.glob("predictions")],
        "findings": findings,
        "left over": _left_over(trial),
    }


def _figures(run: Path | RemotePath) -> list[dict[str, float]]:
    """The lines of the log, without values that depend on the clock."""
    return [
        {name: value for name, value in record.items() if name.startswith(_REPRODUCIBLE)}
        for record in read_metrics(run / METRICS_FILE)
    ]


def _export_files(folder: Path) -> dict[str, str]:
    """Digests of an export's files, without the card and the digest list, which name the run."""
    files = [path for path in sorted(folder.iterdir()) if path.name not in ("README.md", "SHA256SUMS")]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _export(trial: Path) -> Any:
    findings = [finding for part in find_parts(str(trial / "export")) for finding in part.check(lambda more: None)]
    return _export_files(trial / "export"), findings, _left_over(trial)


def store_digests(root: Path) -> Any:
    """Digests of the stores and vocabularies below a root, and leftovers of interrupted work."""
    return {path.name: folder_digest(path) for path in root.glob("*-*") if path.is_dir()}, _left_over(root)


def _uploaded(trial: Path) -> Any:
    run = to_path((trial / "bucket").read_text() + "/run")
    assert isinstance(run, RemotePath)
    steps = sorted({name.split("/")[1] for name in run.sizes() if name.startswith("checkpoints/")})
    weights = hashlib.sha256((run / "huggingface" / "model.safetensors").read_bytes()).hexdigest()
    return {"arrays": digests(run), "log": _figures(run), "checkpoints": steps, "weights": weights}


def _left_over(folder: Path) -> list[str]:
    """Partial files and folders; empty lock files may remain."""
    names = [path.name for path in folder.rglob("*") if "compiled" not in path.parts]
    return [name for name in names if any(mark in name for mark in ("partial", "tmp", ".earlier", ".export.lock"))]


def _run_phase(trial: Path, log: str) -> str:
    """The phase in which a run was killed, inferred from its files and the process's output."""
    if any(trial.rglob("*.orbax-checkpoint-tmp*")):
        return "save"
    if "held out" in log or "pretraining  " in log or "classification  " in log:
        try:
            last = _figures(next(trial.rglob(METRICS_FILE)).parent)[-1]
        except (StopIteration, IndexError, ValueError):
            last = {}
        due = last.get("step", 1) % 8 == 0
        if last.get("step") == 24 and "eval/mlm_loss" in last:
            return "report and export"
        return "evaluation" if due and not any(name.startswith("eval/") for name in last) else "step"
    return next((phase for text, phase in _PHASES if text in log), "start-up")


class Process:
    """A process of a scenario, forked from one that has imported everything, or a new interpreter."""

    def __init__(self, scenario: Scenario, trial: Path, log: Path) -> None:
        words = scenario.words(trial)  # first, because it may start the object storage and set os.environ
        environment = child_environment(devices=1) | dict(scenario.environment)
        if scenario.compiles:
            environment["JAX_COMPILATION_CACHE_DIR"] = str(trial / "compiled")
        self._fresh: subprocess.Popen[bytes] | None = None
        if scenario.fresh:
            with log.open("ab") as output:
                self._fresh = subprocess.Popen(words, stdout=output, stderr=output, env=os.environ | environment)
            self.number = self._fresh.pid
        else:
            self.number = zygote().start(words, log, environment, Path.cwd(), append=True)

    def wait(self, seconds: float) -> int | None:
        """Wait and return the exit code; None after a timeout."""
        if self._fresh is None:
            return zygote().wait(self.number, seconds)
        try:
            return self._fresh.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> int:
        """Kill the process; returns its exit code, which differs from SIGKILL's if it had already ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.number, signal.SIGKILL)
        code = self.wait(600)
        assert code is not None, "the process survived SIGKILL"
        return code


class Trial:
    """Chains of kills of one scenario."""

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self.scenario, self._folder, self._attempts = scenario, folder, 0
        undisturbed, log = self._folder / "undisturbed", self._folder / "undisturbed.log"
        undisturbed.mkdir(parents=True)
        begun = time.monotonic()
        code = Process(self.scenario, undisturbed, log).wait(_LONGEST)
        assert code == 0, f"{self.scenario.name}: exit code {code}: {log.read_text()[-3000:]}"
        # The duration of an undisturbed run bounds the kill moments. This run fills caches; a faster one replaces it.
        self.seconds = time.monotonic() - begun
        self.expected = scenario.result(undisturbed)

    def chain(self, draw: random.Random, most: int) -> tuple[list[str], str]:
        """Kill a run at least once and up to `most` times, and let it end.

        Returns the phase of each kill, and an error or "".
        """
        phases, wrong = [], ""
        while not phases and not wrong:  # a run may end before the drawn moment
            self._attempts += 1
            trial = self._folder / f"chain-{self._attempts}"
            trial.mkdir()
            try:
                phases, wrong = self._kill_and_restart(trial, draw, most)
                wrong = wrong or describe_difference(self.scenario.result(trial), self.expected)
            except Exception as error:
                wrong = f"{type(error).__name__} instead of a result: {error}"
            if not wrong:
                shutil.rmtree(trial)
        return phases or ["not killed"], wrong

    def _kill_and_restart(self, trial: Path, draw: random.Random, most: int) -> tuple[list[str], str]:
        log, phases = trial.with_suffix(".log"), []
        while True:
            log_size = log.stat().st_size if log.exists() else 0
            begun, process = time.monotonic(), Process(self.scenario, trial, log)
            will_kill = len(phases) < most and (not phases or draw.random() < _CHANCE)
            code = process.wait(draw.uniform(0, self.seconds) if will_kill else _LONGEST)
            if code is None and (late_code := process.kill()) != -signal.SIGKILL:
                code = late_code
            if code is not None:
                if code == 0 and not phases:
                    self.seconds = min(self.seconds, time.monotonic() - begun)
                return phases, f"exit code {code}: {log.read_text()[-2000:]}" if code else ""
            if not will_kill:
                return phases, f"still running after {_LONGEST} s"
            phases.append(self.scenario.phase(trial, log.read_bytes()[log_size:].decode("utf-8", "replace")))


def describe_difference(actual: Any, expected: Any) -> str:
    """Where two results differ, or ""."""
    if actual == expected:
        return ""
    if isinstance(actual, dict) and isinstance(expected, dict):
        names = [name for name in expected | actual if actual.get(name) != expected.get(name)]
        return "; ".join(f"{name}: {describe_difference(actual.get(name), expected.get(name))}" for name in names)
    return f"{json.dumps(actual)[:300]}, undisturbed {json.dumps(expected)[:300]}"


def try_kills(table: Table, folder: Path, tries: int, share: Share, names: Collection[str] = ()) -> None:
    """Kill all or the named scenarios `tries` times in total, and each at least once.

    Kills come in chains, distributed by the scenarios' shares; adds a row for each scenario and phase. Raises
    ValueError for an unknown name.
    """
    campaign = Campaign(folder, names)
    turns, trials = campaign.turns(), {}
    enough = -(-tries // share.parts)
    try:
        for number in share.take(itertools.count()):
            if table.tried >= enough and share.done >= len(campaign.scenarios):
                break
            scenario = turns[number % len(turns)]
            with table.failing(f"{scenario.name}: undisturbed", f"chain {number}"):
                if scenario.name not in trials:
                    trials[scenario.name] = Trial(scenario, folder / f"trials-{number}")
            if scenario.name not in trials:
                continue
            most = max(1, min(4, enough - table.tried))
            phases, wrong = trials[scenario.name].chain(random.Random(f"{share.seed} {number}"), most)
            # A chain has one result: its error counts for the last kill.
            for place, phase in enumerate(phases, 1):
                failed = wrong and place == len(phases)
                name = scenario.name if phase == scenario.name else f"{scenario.name}: {phase}"
                table.add(name, wrong if failed else "the same bits", not failed, f"killed in {', '.join(phases)}")
    finally:
        campaign.close()
