"""Complete runs from Python: the same bits as the verbs, readable results, and signals that do not end the program."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from generated_corpus import write_corpus
from tiny_runs import SIX_STEPS, digests, tiny_config, write_recipe

import bertjax
from bertjax.__main__ import main
from bertjax.config import Config, StageConfig, with_values
from bertjax.run import job
from bertjax.run.checkpoint import saved_steps
from bertjax.run.telemetry import curves, read_metrics

pytestmark = pytest.mark.usefixtures("one_device")

PACKAGE = str(Path(bertjax.__file__).parent)
STEPS = SIX_STEPS | {"training.grad_accum_steps": 1}  # otherwise the choice of microbatches is traced first


class Signals(bertjax.Callback):
    """Sends this process a signal at the start, or after a step."""

    def __init__(self, at: int) -> None:
        self.at, self.steps = at, 0

    def on_start(self) -> None:
        if self.at == 0:
            os.kill(os.getpid(), signal.SIGINT)

    def after_step(self, step) -> None:
        self.steps += 1
        if step == self.at:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("python")
    write_corpus(folder / "corpus.txt", 60)
    write_recipe(folder)
    return folder


def make_config(folder: Path, run: str) -> Config:
    return tiny_config(folder, run, STEPS)


@pytest.fixture(scope="module")
def pretrained(folder: Path):
    return bertjax.pretrain(make_config(folder, "python"))


def test_prepare_makes_the_store_that_pretrain_uses(folder, pretrained):
    prepared = bertjax.prepare(make_config(folder, "python"))
    assert [path for path in (folder / "data").iterdir() if path.name.startswith("store-")] == [prepared.path]
    assert prepared.sizes.keys() == {"train", "held_out"} and f"token store: {prepared.path}" in str(prepared)


@pytest.fixture(scope="module")
def by_verb(folder: Path, pretrained) -> tuple[str, list[list[str]]]:
    """(output of the same run by the verb, frames of the package at each trace of the optimizer update)."""
    stacks: list[list[str]] = []

    def record_frames(update: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            frame, names = sys._getframe(1), []
            while frame is not None:
                if frame.f_code.co_filename.startswith(PACKAGE):
                    names.append(f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}")
                frame = frame.f_back
            stacks.append(names[::-1])
            return update(*arguments, **options)

        return call

    words = [word for key, value in STEPS.items() for word in (f"--{key}", str(value))]
    words += ["--data.sources", f"lines:{folder / 'corpus.txt'}", "--data.root", str(folder / "data")]
    make, printed = job.make_optimizer, io.StringIO()

    def make_traced(config: Any) -> Any:
        optimizer = make(config)
        return optimizer._replace(update=record_frames(optimizer.update))

    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(job, "make_optimizer", make_traced)
        assert main(["pretrain", str(folder / "tiny_recipe.py"), *words, "--run-dir", str(folder / "verb")]) == 0
    return printed.getvalue(), stacks


def test_python_run_has_the_same_bits_as_the_verb(folder, pretrained, by_verb):
    assert digests(folder / "verb") == digests(folder / "python")
    about = str(pretrained).replace(str(folder / "python"), str(folder / "verb"))
    assert about.strip().splitlines()[0] in by_verb[0] and "Next:" in about


def test_main_reaches_the_update_in_eight_frames(by_verb):
    stacks = by_verb[1]
    assert stacks and len(stacks[0]) <= 8, " > ".join(stacks[0])


def test_pretrain_result_has_figures_and_curves(pretrained):
    assert (pretrained.step, saved_steps(pretrained.directory)) == (6, [6])
    names = curves(read_metrics(pretrained.directory / "metrics.jsonl"))
    assert pretrained.figures["eval/mlm_loss"] == pytest.approx(names["eval/mlm_loss"][1][-1], rel=1e-8)
    assert pretrained.baselines.keys() == {name for name in names if name.startswith("baseline/")} != set()
    assert (pretrained.exported / "model.safetensors").is_file()
    assert bertjax.load(pretrained.directory).encode(["the"], batch_size=1).shape == (1, 32)
    shown = pretrained._repr_html_()
    assert shown.startswith("<iframe") and 'sandbox="allow-scripts"' in shown
    inside = re.search(r'srcdoc="([^"]*)"', shown)[1]
    assert inside.count("&lt;svg") >= 3 and "<" not in inside, "all curves are escaped"


def test_other_functions_match_their_verbs(folder, pretrained, capfd):
    run, texts = pretrained.directory, folder / "texts.txt"
    texts.write_text("the ba\nthe do\nthe ki\n")
    measured = bertjax.evaluate(run)
    assert measured.figures["eval/mlm_loss"] == pytest.approx(pretrained.figures["eval/mlm_loss"], rel=1e-5)
    assert main(["evaluate", str(run)]) == 0 and str(measured) in capfd.readouterr().out
    exported = bertjax.export(run, bertjax.ExportOptions(output=str(folder / "hf")))
    assert (exported.difference is not None) == bool(find_spec("torch"))
    assert (exported.directory / "model.safetensors").is_file()
    with pytest.raises(ValueError, match="hf exists; give overwrite=True"):
        bertjax.export(run, bertjax.ExportOptions(output=str(folder / "hf")))
    (tokens,) = bertjax.tokenize(run, ["the ba"])
    assert tokens == bertjax.tokenize(f"hf:{folder / 'hf'}", ["the ba"])[0] and tokens.tokens[0] == "the"
    done = bertjax.embed(run, [texts], folder / "vectors.npy", normalize=True)
    vectors = np.load(folder / "vectors.npy")
    assert vectors.shape == (3, done.width) and np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    with pytest.raises(ValueError, match=r"vectors\.npy exists; give overwrite=True"):
        bertjax.embed(run, [texts], folder / "vectors.npy")
    ((best, *others),) = bertjax.search(run, ["the do"], index=folder / "index", documents=[texts], by="both", top=2)
    assert (best.id, best.text, len(others)) == ("2", "the do", 1) and best.score > others[0].score
    view = bertjax.attention(run, ["the ba", "the do"], sample=4)
    assert view.view.attention.shape[:2] == (2, 2) and "<svg" in view.page and "measured on" in str(view)


def test_network_without_a_class_is_named_before_training(folder, capfd):
    electra = {"model.family": "electra", "model.generator_width": 0.5, "training.objectives": ("mlm", "rtd")}
    data = {"data.rows": "doc_sentences", "data.packing": "pairs"}
    result = bertjax.pretrain(tiny_config(folder, "electra", STEPS | electra | data))
    before, _, _ = capfd.readouterr().out.partition("pretraining")
    assert "note: no export to Hugging Face: model.pooler='tanh': transformers has no" in before
    assert "note: no export to Hugging Face of the generator: model.pooler='tanh': transformers has no" in before
    assert result.exported is None and not [*(folder / "electra").glob("huggingface*")]


def test_function_and_package_of_one_name_coexist(pretrained):
    """Importing the subpackage replaces the function of the same name."""
    program = (
        "import bertjax, sys\n"
        "assert 'numpy' not in sys.modules\n"
        "import bertjax.finetune.recipes\n"
        "assert callable(bertjax.finetune) and bertjax.finetune.recipes.TRIED\n"
        "try: bertjax.finetune('sst2', 'nowhere')\n"
        "except ValueError as error: print(error)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "nowhere: no such directory" in ended.stdout


def test_signal_saves_and_the_same_call_resumes(folder, pretrained):
    config, before = make_config(folder, "stopped"), signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match=r"stopped before the first step; prepared text is kept"):
        bertjax.pretrain(config, callbacks=[Signals(at=0)])
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(KeyboardInterrupt, match=r"stopped after step \d; checkpoint saved in"):
        bertjax.pretrain(config, callbacks=[Signals(at=3)])
    (step,) = saved_steps(folder / "stopped")
    assert 3 <= step < 6
    resumed = bertjax.pretrain(config)
    assert resumed.step == 6 and digests(folder / "stopped") == digests(folder / "python")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"training.step": 3}, r"training\.step is unknown; did you mean training\.steps\?"),
        ({"trainign.steps": 3}, r"trainign is unknown; did you mean training\?"),
        ({"training.steps": "3"}, r"training\.steps='3' is str; give int"),
        ({"training.steps.more": 3}, r"training\.steps\.more is unknown; steps is a single value"),
    ],
)
def test_unknown_or_mistyped_key_is_named(keys, message):
    with pytest.raises(ValueError, match=message):
        with_values(Config(), keys)


def test_with_values_accepts_lists_and_dataclasses():
    stages = [StageConfig(start=5, sequence_length=64)]
    config = with_values(Config(), {"data.sources": ["docs"], "stages": stages, "training.seed": 7})
    assert config.data.sources == ("docs",) and config.stages == tuple(stages) and config.training.seed == 7
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        bertjax.nothing  # noqa: B018
