"""Errors of the operating system, missing packages and existing outputs, as a user of the command line meets them."""

from __future__ import annotations

import errno
import importlib.util
import io
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from exported_models import trained_model
from tiny_runs import write_recipe

from bertjax.__main__ import main
from bertjax.cli.advice import error_message
from bertjax.config import Config, DataConfig
from bertjax.convert.sources import write_run
from bertjax.report.run_summary import Completion, Summary, final_lines

pytestmark = pytest.mark.run

LIMITED = """
import resource, sys
from bertjax.__main__ import main
resource.setrlimit(resource.{limit}, ({value}, {value}))
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("number", "what", "remedy"),
    [
        (errno.ENOSPC, "no space is left on its disk", "free some space"),
        (errno.EACCES, "permission denied", "chmod"),
        (errno.EMFILE, "too many files are open", "ulimit -n"),
        (errno.EISDIR, "it is a folder", "name a file"),
        (errno.EROFS, "its disk is read-only", "name a folder that can be written"),
        (errno.ENOENT, "no such file or folder", "correct the path"),
    ],
)
def test_an_error_of_the_system_says_what_helps(number: int, what: str, remedy: str) -> None:
    said = error_message(OSError(number, os.strerror(number), "folder/file"))
    assert said.startswith(f"folder/file: {what}") and remedy in said and "Errno" not in said


def test_other_errors_stay_as_they_are() -> None:
    assert error_message(OSError("gs://bucket: cannot be read")) == "gs://bucket: cannot be read"
    assert error_message(ValueError("data.root='': name one")) == "data.root='': name one"
    assert "smaller batches" in error_message(MemoryError())
    assert "a -> b: it exists already" in error_message(FileExistsError(errno.EEXIST, "File exists", "a", None, "b"))


def test_what_a_hostile_file_says_gives_a_terminal_no_orders() -> None:
    assert error_message(ValueError("a.txt: \x1b[2J\r'\u202e\ud800' é")) == "a.txt: \\x1b[2J\\r'\\u202e\\ud800' é"
    long = error_message(ValueError(f"a.txt: {'x' * 100_000}; correct it"))
    assert len(long) < 5000 and long.startswith("a.txt: x") and long.endswith("x; correct it")


def limited(limit: str, value: int, folder: Path, *words: str) -> str:
    call = [sys.executable, "-c", LIMITED.format(limit=limit, value=value), *words]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
    ended = subprocess.run(call, cwd=folder, env=environment, capture_output=True, text=True)
    assert ended.returncode == 1, ended.stderr
    assert "Traceback" not in ended.stderr and ended.stderr.count("\n") == 1
    assert not list(folder.iterdir()), "nothing half written"
    return ended.stderr


def test_a_file_that_cannot_be_written_whole_is_not_there(tmp_path: Path) -> None:
    said = limited("RLIMIT_FSIZE", 1_000, tmp_path, "recipes", "copy", "roberta")
    assert "roberta.py: the file would be larger than its file system allows" in said and "free some space" in said


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_rights_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tmp_path.chmod(0o500)
    assert main(["recipes", "copy", "roberta", str(tmp_path / "mine.py")]) == 1
    assert f"{tmp_path}" in (said := capsys.readouterr().err) and "permission denied" in said


PREPARE = ["prepare", "RECIPE", "--data.root", "data"]


@pytest.mark.parametrize(
    ("package", "words", "parts"),
    [
        ("pyarrow", [*PREPARE, "--data.sources", "parquet:a.parquet"], ["data.sources parquet:", "bertjax[parquet]"]),
        ("jieba", [*PREPARE, "--data.sources", "docs", "--data.segmenter", "jieba"], ["segmenter", "bertjax[chinese]"]),
        (
            "rdkit",
            ["pretrain", "molecules_mini", "--data.sources", "docs", "--data.augment", "randomised_smiles"],
            ["data.augment='randomised_smiles'", "bertjax[molecules]"],
        ),
        (
            "datasketch",
            [*PREPARE, "--data.sources", "docs", "--data.filters", "near_duplicates"],
            ["data.filters='near_duplicates'", "bertjax[duplicates]"],
        ),
        ("s3fs", [*PREPARE, "--data.sources", "text:s3://bucket/a.txt"], ["text:s3://bucket", "bertjax[s3]"]),
        ("gcsfs", ["pretrain", "RECIPE", "--run-dir", "gs://bucket/run"], ["run_dir=gs://bucket", "bertjax[gcs]"]),
        ("apache_beam", [*PREPARE, "--data.sources", "docs", "--runner", "beam"], ["--runner beam", "bertjax[beam]"]),
        ("tensorflow_datasets", [*PREPARE, "--data.sources", "tfds:pg19"], ["tfds:pg19", "tensorflow-datasets"]),
        ("tensorflow", [*PREPARE, "--data.sources", "tfrecord:a"], ["tfrecord:a", "pip install tensorflow"]),
        ("onnx", ["export", "nowhere", "--to", "onnx"], ["--to onnx", "bertjax[onnx]"]),
        ("onnxruntime", ["export", "nowhere", "--to", "web"], ["--to web", "bertjax[onnx]"]),
        ("ai_edge_litert", ["export", "nowhere", "--to", "litert"], ["--to litert", "bertjax[litert]"]),
        ("tensorflow", ["export", "nowhere", "--to", "savedmodel"], ["--to savedmodel", "pip install tensorflow"]),
        ("pyarrow", ["embed", "nowhere", "--output", "a.parquet"], ["--output a.parquet", "bertjax[parquet]"]),
    ],
)
def test_a_missing_package_is_named_before_anything_is_done(
    package: str,
    words: list[str],
    parts: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = write_recipe(tmp_path)
    find = importlib.util.find_spec
    monkeypatch.delitem(sys.modules, package, raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == package else find(name, *more))
    assert main([str(recipe) if word == "RECIPE" else word for word in words]) == 1
    said = capsys.readouterr().err
    assert all(part in said for part in [*parts, "is not installed; pip install"]), said
    assert [path.name for path in tmp_path.iterdir() if path.name != "__pycache__"] == [recipe.name]


class Terminal(io.StringIO):
    """Standard input on which a user types."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(trained_model(tmp_path_factory.mktemp("advice") / "run"))


@pytest.mark.parametrize(("answer", "replaced"), [("y\n", True), ("\n", False), ("no\n", False), ("", False)])
def test_on_a_terminal_the_user_is_prompted(
    answer: str,
    replaced: bool,
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    texts, output = tmp_path / "texts.txt", tmp_path / "out.jsonl"
    texts.write_text("One text.\n")
    output.write_text("mine")
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert main(["embed", str(run), str(texts), "--output", str(output)]) == (0 if replaced else 1)
    assert f"{output} exists. Replace it? [y/N]" in capsys.readouterr().err
    assert (output.read_text() == "mine") == (not replaced)


def test_an_output_is_replaced_if_requested(run: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("One text.\n")
    words = ["embed", str(run), str(tmp_path / "texts.txt"), "--output", str(tmp_path / "out.jsonl")]
    assert [main(words), main(words), main([*words, "--overwrite"])] == [0, 1, 0]


def test_the_next_steps_are_about_the_users_own_text() -> None:
    novels = Config(name="novels", run_dir="my runs/novels", data=DataConfig(sources=("text:novels/*.txt",)))
    asked = (
        Completion("Die alte Frau ging langsam [MASK] Hause.", "nach", (("zu", 0.5),)),
        Completion("Er kam [MASK] Hause.", "nach", (("zu", 0.5),)),
    )
    summary = Summary("novels", "", 10, 100, 1.0, 100.0, None, "", (), asked)
    said = final_lines(novels, summary, Path("report.html"), Path("huggingface"))
    commands = [line.strip() for line in said.partition("Next:")[2].splitlines() if line]
    steps = [shlex.split(command, comments=True) for command in commands]
    assert steps[0] == ["bertjax", "fill-mask", "my runs/novels", "Er kam [MASK] Hause."]
    assert [step[1] for step in steps] == ["fill-mask", "attention", "finetune", "export"]
    assert steps[1][2:] == ["my runs/novels", "Er kam nach Hause."]
    assert "array" not in said and "configs/" not in said
    said = final_lines(Config(data=DataConfig(sources=("docs:numpy",))), summary, Path("r"), Path("h"))
    assert "bertjax pretrain modern_mini --data.sources 'text:my_texts/**/*.txt'" in said


@pytest.mark.parametrize("vendor", ["0x8086", "0x1ae0"])
def test_libtpu_is_silenced_only_where_no_tpu_is(vendor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bertjax.storage import lean_import

    (tmp_path / "0000").mkdir()
    (tmp_path / "0000" / "vendor").write_text(f"{vendor}\n")
    monkeypatch.setattr(lean_import, "PCI_DEVICES", tmp_path)
    monkeypatch.delenv("TPU_MIN_LOG_LEVEL", raising=False)
    lean_import.quiet_libtpu()
    assert os.environ.get("TPU_MIN_LOG_LEVEL") == (None if vendor == "0x1ae0" else "3")
    monkeypatch.setenv("TPU_MIN_LOG_LEVEL", "0")
    lean_import.quiet_libtpu()
    assert os.environ["TPU_MIN_LOG_LEVEL"] == "0", "what the user has set stays"
