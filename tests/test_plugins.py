"""Plug-ins: a complete run with the files of bertjax/PLUGINS.md, the plug-ins that a run records and may import."""

from __future__ import annotations

import hashlib
import math
import re
import sys
from dataclasses import replace
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import transformers
from tiny_runs import SIX_STEPS, write_recipe

import bertjax
from bertjax.__main__ import main
from bertjax.config import Config, plugins, registry
from bertjax.config.recipes import load_recipe
from bertjax.convert.formats import ExportNames, load_format, source_kinds
from bertjax.families.registry import FAMILIES
from bertjax.input.masking.counts import COUNTS
from bertjax.input.masking.options import member
from bertjax.input.targets.registry import TARGETS
from bertjax.run.checkpoint import saved_steps
from bertjax.run.hooks import make_hooks
from bertjax.run.loggers import require_loggers
from bertjax.run.run_directory import describe_run
from bertjax.run.telemetry import curves, read_metrics
from bertjax.text.sources.registry import KINDS, parse_source
from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.wordpiece import SPECIAL_TOKENS, WordPiece

pytestmark = pytest.mark.usefixtures("one_device")

PAGE = Path(bertjax.__file__).with_name("PLUGINS.md").read_text(encoding="utf-8")
FILES = {code.partition(":")[0].removeprefix("# "): code for code in re.findall(r"```python\n(.*?)```", PAGE, re.S)}

# Optional parts of an objective: how its figure and baseline are displayed.
SHOWN = """
    figures=("loss", "accuracy", "tokens"),
    measures=(Measure(figure="accuracy", name="Length accuracy", unit="", baseline="length_majority",
        baseline_name="majority", meaning="always the more frequent length",
        clause="{value} of the lengths are correct"),),
    baselines=lambda facts: {"length_majority": facts.majority("length_labels", "length_weights")},
"""


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which no plug-in was used."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    forget(monkeypatch)
    return tmp_path / "state"


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put this process in the state of a new one, without plug-ins."""
    program = plugins.Plugin("this program", "", named=True)
    monkeypatch.setattr(registry, "PROGRAM", program)
    monkeypatch.setattr(registry, "loaded_plugins", {program.name: program})
    monkeypatch.setattr(registry, "used_points", {})


def write(folder: Path, name: str, code: str = "") -> str:
    (folder / name).write_text(code or FILES[name])
    return str(folder / name)


def registering(name: str, more: str = "") -> str:
    """The code of a plug-in that adds a loss target to the registry `targets`, which checks no types."""
    return f"import bertjax\n{more}\nbertjax.register('targets', {name!r}, {name!r})\n"


def subtitles(folder: Path) -> Path:
    folder.mkdir()
    words = [f"{a}{b}" for a in ("ba", "do", "ki", "lu") for b in ("me", "no", "pa", "ri")]
    for film in range(40):
        lines = [" ".join(words[(film * 7 + n * k) % 16] for k in range(5)).capitalize() + "." for n in range(1, 9)]
        shown = "".join(f"{n}\n00:00:0{n},000 --> 00:00:0{n},900\n{line}\n\n" for n, line in enumerate(lines, 1))
        (folder / f"{film}.srt").write_text(shown)
    return folder


@pytest.mark.run
def test_documented_plugins_work_from_text_to_transformers(tmp_path, monkeypatch, capfd):
    code = dict(FILES)
    code["target_loss.py"] = code["target_loss.py"].replace("TARGET = 4.0", "TARGET = 1e9")
    code["length.py"] = (
        code["length.py"]
        .replace("import Objective,", "import Measure, Objective,")
        .replace('"nsp_head"))', f'"nsp_head"), {SHOWN})')
        .replace("return classified(", "return {'tokens': batch['length_weights'].sum()} | classified(")
    )
    assert len(FILES) == 8 and [name for name in FILES if FILES[name] != code[name]] == ["length.py", "target_loss.py"]
    named = [word for name in FILES for word in ("--plugin", write(tmp_path, name, code[name]))]
    films, run = subtitles(tmp_path / "films"), tmp_path / "run"
    keys = SIX_STEPS | {"training.steps": 12, "data.packing": "pairs", "model.family": "clinical-bert"}
    keys |= {"data.root": tmp_path / "data", "run-dir": run, "data.vocab-size": 200}
    words = ["pretrain", str(write_recipe(tmp_path)), *named, "--data.sources", f"subtitles:{films}/*.srt"]
    words += [word for key, value in keys.items() for word in (f"--{key}", str(value))]
    words += ["--training.objectives", "mlm", "length", "even_mlm"]
    words += ["--data.filters", "short", "--data.masking", "evens", "--log", "lines"]

    assert main([*words, "--hooks", "target_loss"]) == 0
    assert saved_steps(run) == [6], "the hook stops the run at its first evaluation"
    assert main(words) == 0
    output = capfd.readouterr().out
    assert "resuming" in output and saved_steps(run)[-1] == 12
    logged = curves(read_metrics(run / "metrics.jsonl"))
    names = "loss", "mlm_loss", "length_loss", "even_mlm_loss"
    total, mlm, length, even = (np.array(logged[f"train/{name}"][1]) for name in names)
    np.testing.assert_allclose(total, mlm + length / 2 + even, rtol=1e-5)
    assert 0 < np.abs(even - mlm).max() < 0.2, "the same losses with other weights"
    assert length[0] == pytest.approx(math.log(2), abs=0.1)
    assert logged["eval/length_accuracy"][0] == [6, 12]
    assert {*logged["train/length_tokens"][1]} == {1.0}, "a figure of any name is logged"
    assert 0.5 <= logged["baseline/length_majority"][1][0] <= 1
    assert (run / "figures.jsonl").read_text().count("eval/mlm_loss") == 2
    assert "of the lengths are correct" in (run / "report.html").read_text(encoding="utf-8")

    forget(monkeypatch)  # each verb opens the run with its recorded plug-ins
    for name in FILES:
        (tmp_path / name).unlink()
    assert main(["evaluate", str(run)]) == 0
    assert "  Length accuracy " in capfd.readouterr().out
    forget(monkeypatch)
    assert main(["export", str(run), "--output", str(tmp_path / "hf")]) == 0
    assert main(["run", "verify", str(run)]) == 0
    if find_spec("torch"):
        assert "BertForPreTraining" in repr(transformers.AutoModelForPreTraining.from_pretrained(tmp_path / "hf"))

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another machine"))
    forget(monkeypatch)
    capfd.readouterr()
    assert main(["evaluate", str(run)]) == 1
    assert re.search(r"needs the plug-in length\.py .*not named on this machine.*--plugin \S+", capfd.readouterr().err)


def test_only_plugins_named_by_the_user_are_imported(tmp_path, monkeypatch):
    path = write(tmp_path, "one.py", registering("one"))
    (recorded,) = plugins.use_plugins([path])
    assert recorded == f"one.py@sha256:{hashlib.sha256(Path(path).read_bytes()).hexdigest()}"
    assert TARGETS["one"] == "one" and "one" in TARGETS.at_hand()
    copies = {"plugins/one.py": Path(path).read_bytes()}
    forget(monkeypatch)
    plugins.open_plugins([recorded], "run", copies.__getitem__)
    assert TARGETS["one"] == "one"

    forget(monkeypatch)
    with pytest.raises(ValueError, match=r"run/plugins/one\.py: no copy has the digest that the run records"):
        plugins.open_plugins([recorded], "run", lambda name: b"evil = True")
    forget(monkeypatch)  # a copy that another one of its name has replaced in the run
    copies = {plugins.earlier_copy("one.py", recorded.partition("@sha256:")[2]): Path(path).read_bytes()}
    plugins.open_plugins([recorded], "run", lambda name: copies.get(name, b"evil = True"))
    assert TARGETS["one"] == "one"

    forget(monkeypatch)
    read = []
    for untrusted in (f"one.py@sha256:{'0' * 64}", "one.py", "this", "antigravity@sha256:0"):
        with pytest.raises(ValueError, match=r"run needs the plug-in .* not named on this machine before"):
            plugins.open_plugins([untrusted], "run", read.append)
    assert not read and "one" not in TARGETS and "this" not in sys.modules


def test_changed_plugin_is_reported(tmp_path, monkeypatch):
    (recorded,) = plugins.use_plugins([write(tmp_path, "one.py", registering("one"))])
    forget(monkeypatch)
    plugins.use_plugins([write(tmp_path, "one.py", registering("one", "# other"))])
    with pytest.warns(UserWarning, match=r"run was trained with another one\.py \(\w{12}\.\.\.\) than the one that is"):
        plugins.open_plugins([recorded], "run", {}.__getitem__)
    with pytest.raises(ValueError, match=r"plug-in .*one\.py: its digest is \w{12}\.\.\., not 00"):
        plugins.use_plugins([f"{tmp_path}/one.py@sha256:{'0' * 64}"])


def test_modules_and_entry_points_are_imported(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "lab_tools"
    package.mkdir()
    write(package, "__init__.py", "# nothing\n")
    write(package, "target.py", registering("two"))
    write(package, "subtitles.py")
    (recorded,) = plugins.use_plugins(["lab_tools.target"])
    assert recorded.startswith("lab_tools.target@sha256:") and TARGETS["two"] == "two"

    points = {"sources": {"subtitles": "lab_tools.subtitles:KIND", "text": "lab_tools:x", "gone": "lab_tools.gone:X"}}
    scanned = []

    def entry_points(group: str) -> dict[str, EntryPoint]:
        scanned.append(group)
        return {name: EntryPoint(name, value, f"bertjax.{group}") for name, value in points.get(group, {}).items()}

    monkeypatch.setattr(registry, "_entry_points", entry_points)
    assert KINDS["text"] and not scanned, "the package has it"
    monkeypatch.setattr(KINDS, "_loaded", {})
    write(package, "subtitles.py", FILES["subtitles.py"].replace("bertjax.register", "print"))
    assert parse_source("subtitles:a.srt").kind == "subtitles" and scanned
    both = plugins.with_entry_points((recorded,))
    assert both[0] == recorded and re.fullmatch(r"lab_tools\.subtitles@sha256:[0-9a-f]{64}", both[1])
    assert plugins.with_entry_points(both) == both
    with pytest.raises(ValueError, match=r"gone = lab_tools\.gone:X cannot be imported .*repair or uninstall"):
        KINDS["gone"]
    with pytest.warns(UserWarning) as caught:
        assert "subtitles" in list(KINDS)
    assert [str(one.message).partition(":")[0] for one in caught] == ["an installed package"] * 2

    # Another process can open a run that records the package, but not without the package.
    forget(monkeypatch)
    assert not plugins.with_entry_points(()) and KINDS.values() and not plugins.with_entry_points(())
    plugins.open_plugins(both[1:], "run", {}.__getitem__)
    assert plugins.as_active(both[1:]) == both[1:]
    with pytest.warns(UserWarning, match="run was trained with another lab_tools.subtitles"):
        plugins.open_plugins([f"lab_tools.subtitles@sha256:{'0' * 64}"], "run", {}.__getitem__)
    forget(monkeypatch)
    points.clear()
    with pytest.raises(ValueError, match=r"run needs the plug-in lab_tools\.subtitles .*--plugin lab_tools\.subtitles"):
        plugins.open_plugins(both[1:], "run", {}.__getitem__)


def test_invalid_registrations_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"registry 'target' is unknown; did you mean targets\?"):
        bertjax.register("target", "x", None)
    with pytest.raises(ValueError, match=r"mine\.py, line 3: mine\.py registers 'mlm' in 'targets', which the package"):
        plugins.use_plugins([write(tmp_path, "mine.py", registering("mlm"))])
    plugins.use_plugins([write(tmp_path, "one.py", registering("one"))])
    with pytest.raises(ValueError, match=r"two\.py registers 'one' in 'targets', which one\.py has too"):
        plugins.use_plugins([write(tmp_path, "two.py", registering("one"))])
    with pytest.raises(ValueError, match=r"plug-in .*nowhere\.py: No such file"):
        plugins.use_plugins([f"{tmp_path}/nowhere.py"])
    with pytest.raises(ValueError, match=r"plug-in no_such_module: no such module is installed"):
        plugins.use_plugins(["no_such_module"])
    with pytest.raises(ValueError, match=r"three\.py, line 2: ZeroDivisionError: division by zero"):
        plugins.use_plugins([write(tmp_path, "three.py", registering("three", "1 / 0"))])
    plugins.use_plugins([write(tmp_path, "four.py", "import bertjax\nbertjax.register('families', 'four', 4)\n")])
    with pytest.raises(ValueError, match=r"four\.py: 'four' in 'families' is int; give Family"):
        FAMILIES["four"]


SHORT = """
import bertjax
from bertjax.text.filters.filter import Filter

bertjax.register("filters", "short", Filter("short", ("long",), lambda text: "long" if len(text) > LONGEST else ""))
"""


def test_edited_filter_makes_a_new_store(tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text("".join(f"{'Some words. ' * number}\n\n" for number in range(1, 41)))
    words = ["prepare", str(write_recipe(tmp_path)), "--plugin", str(tmp_path / "short.py"), "--data.filters", "short"]
    words += ["--data.sources", f"text:{tmp_path}/text.txt", "--data.root", str(tmp_path), "--data.vocab-size", "60"]
    documents = []
    for longest in (2_000, 2_000, 20_000):
        write(tmp_path, "short.py", SHORT.replace("LONGEST", str(longest)))
        assert main(words) == 0
        documents.append(len({*tmp_path.glob("store-*")}))
        forget(monkeypatch)
    assert documents == [1, 1, 2]


def test_run_keeps_the_plugin_that_an_edited_one_replaces(tmp_path):
    (tmp_path / "run").mkdir()
    config, tokenizer = Config(run_dir=str(tmp_path / "run")), WordPiece(SPECIAL_TOKENS, TextRules(True, True))
    for more in ("", "# edited"):
        recorded = plugins.use_plugins([write(tmp_path, "one.py", registering("one", more))])
        describe_run(replace(config, plugins=recorded), tokenizer)
    copies = sorted(path.name for path in (tmp_path / "run" / "plugins").iterdir())
    digest = hashlib.sha256(registering("one").encode()).hexdigest()
    assert copies == [f"one.{digest[:12]}.py", "one.py"]


BROKEN = """
import bertjax


def broken():
    return [][0]


bertjax.register("hooks", "broken", broken)
"""


def test_error_in_a_plugin_names_its_line(tmp_path):
    file = write(tmp_path, "broken.py", BROKEN)
    plugins.use_plugins([file])
    with pytest.raises(IndexError) as caught:
        make_hooks(Config(hooks=("broken",)))
    assert registry.plugin_frame(caught.value) == f"{file}, line 6, in broken"
    with pytest.raises(ValueError, match="there is no hook") as caught:
        make_hooks(Config(hooks=("missing",)))
    assert not registry.plugin_frame(caught.value)


def test_recipe_that_registers_is_recorded_as_plugin(tmp_path, monkeypatch):
    recipe = write_recipe(tmp_path)
    with recipe.open("a") as file:
        file.write("from bertjax.input.targets.registry import TARGETS\nTARGETS['one'] = 'one'\n")
    for _ in range(2):
        (recorded,) = load_recipe(recipe).plugins
        assert plugins.use_plugins([recorded]) == (recorded,) and "one" in TARGETS
    forget(monkeypatch)
    assert "one" not in TARGETS
    plugins.open_plugins([recorded], "run", lambda name: recipe.read_bytes())
    assert TARGETS["one"] == "one"


MANY = """
from pathlib import Path

import bertjax
from bertjax.convert.formats import Entry, Format
from bertjax.input.masking.counts import COUNTS
from bertjax.run.loggers.logger import Logger

FORMAT = Format("nobody", compare=lambda *arguments: None)
bertjax.register("formats", "dump", Entry(__name__, source="dump"))
bertjax.register("loggers", "lines", Logger("json", lambda run, folder, step: None))
bertjax.register("recipes", "mine", Path(__file__).with_name("tiny_recipe.py"))
COUNTS["all"] = COUNTS["round"]
"""


def test_plugins_extend_other_registries(tmp_path):
    write_recipe(tmp_path)
    plugins.use_plugins([write(tmp_path, "many.py", MANY)])
    assert load_format("dump").reference == "nobody" and "dump" in [*ExportNames()]
    assert source_kinds()["dump"] == "dump"
    require_loggers(["lines"])
    assert member(COUNTS, "mask_count", "all") is COUNTS["round"]
    assert load_recipe("mine").name == "tiny"


def test_worker_processes_import_the_plugins(tmp_path, monkeypatch):
    plugins.use_plugins([write(tmp_path, "one.py", registering("one"))])
    started = plugins.active()
    forget(monkeypatch)
    plugins.activate(started)
    assert TARGETS["one"] == "one"
