"""Messages about errors of the operating system, missing packages and existing outputs."""

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
    ("number", "problem", "remedy"),
    [
        (errno.ENOSPC, "no space is left on its disk", "free some space"),
        (errno.EACCES, "permission denied", "chmod"),
        (errno.EMFILE, "too many files are open", "ulimit -n"),
        (errno.EISDIR, "it is a folder", "name a file"),
        (errno.EROFS, "its disk is read-only", "name a folder that can be written"),
        (errno.ENOENT, "no such file or folder", "correct the path"),
    ],
)
def test_system_error_names_its_remedy(number: int, problem: str, remedy: str) -> None:
    message = error_message(OSError(number, os.strerror(number), "folder/file"))
    assert message.startswith(f"folder/file: {problem}") and remedy in message and "Errno" not in message


def test_other_errors_keep_their_message() -> None:
    assert error_message(OSError("gs://bucket: cannot be read")) == "gs://bucket: cannot be read"
    assert error_message(ValueError("data.root='': name one")) == "data.root='': name one"
    assert "smaller batches" in error_message(MemoryError())
    assert "a -> b: it exists already" in error_message(FileExistsError(errno.EEXIST, "File exists", "a", None, "b"))


def test_message_escapes_control_characters_and_is_shortened() -> None:
    assert error_message(ValueError("a.txt: \x1b[2J\r'\u202e\ud800' é")) == "a.txt: \\x1b[2J\\r'\\u202e\\ud800' é"
    long = error_message(ValueError(f"a.txt: {'x' * 100_000}; correct it"))
    assert len(long) < 5000 and long.startswith("a.txt: x") and long.endswith("x; correct it")


def run_limited(limit: str, value: int, folder: Path, *words: str) -> str:
    call = [sys.executable, "-c", LIMITED.format(limit=limit, value=value), *words]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
    result = subprocess.run(call, cwd=folder, env=environment, capture_output=True, text=True)
    assert result.returncode == 1, result.stderr
    assert "Traceback" not in result.stderr and result.stderr.count("\n") == 1
    assert not list(folder.iterdir()), "nothing half written"
    return result.stderr


def test_file_that_cannot_be_written_completely_is_removed(tmp_path: Path) -> None:
    message = run_limited("RLIMIT_FSIZE", 1_000, tmp_path, "recipes", "copy", "roberta")
    assert (
        "roberta.py: the file would be larger than its file system allows" in message and "free some space" in message
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_message_names_a_read_only_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tmp_path.chmod(0o500)
    assert main(["recipes", "copy", "roberta", str(tmp_path / "mine.py")]) == 1
    assert f"{tmp_path}" in (message := capsys.readouterr().err) and "permission denied" in message


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
def test_missing_package_is_reported_before_any_work(
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
    message = capsys.readouterr().err
    assert all(part in message for part in [*parts, "is not installed; pip install"]), message
    assert [path.name for path in tmp_path.iterdir() if path.name != "__pycache__"] == [recipe.name]


class Terminal(io.StringIO):
    """Standard input that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(trained_model(tmp_path_factory.mktemp("advice") / "run"))


@pytest.mark.parametrize(("answer", "replaced"), [("y\n", True), ("\n", False), ("no\n", False), ("", False)])
def test_existing_output_prompts_on_a_terminal(
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


def test_overwrite_replaces_an_existing_output(run: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("One text.\n")
    words = ["embed", str(run), str(tmp_path / "texts.txt"), "--output", str(tmp_path / "out.jsonl")]
    assert [main(words), main(words), main([*words, "--overwrite"])] == [0, 1, 0]


def test_next_commands_use_the_users_text() -> None:
    novels = Config(name="novels", run_dir="my runs/novels", data=DataConfig(sources=("text:novels/*.txt",)))
    completions = (
        Completion("Die alte Frau ging langsam [MASK] Hause.", "nach", (("zu", 0.5),)),
        Completion("Er kam [MASK] Hause.", "nach", (("zu", 0.5),)),
    )
    summary = Summary("novels", "", 10, 100, 1.0, 100.0, None, "", (), completions)
    message = final_lines(novels, summary, Path("report.html"), Path("huggingface"))
    commands = [line.strip() for line in message.partition("Next:")[2].splitlines() if line]
    steps = [shlex.split(command, comments=True) for command in commands]
    assert steps[0] == ["bertjax", "fill-mask", "my runs/novels", "Er kam [MASK] Hause."]
    assert [step[1] for step in steps] == ["fill-mask", "attention", "finetune", "export"]
    assert steps[1][2:] == ["my runs/novels", "Er kam nach Hause."]
    assert "array" not in message and "configs/" not in message
    message = final_lines(Config(data=DataConfig(sources=("docs:numpy",))), summary, Path("r"), Path("h"))
    assert "bertjax pretrain modern_mini --data.sources 'text:my_texts/**/*.txt'" in message


@pytest.mark.parametrize("vendor", ["0x8086", "0x1ae0"])
def test_quiet_libtpu_needs_a_machine_without_tpu(vendor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bertjax.storage import lean_import

    (tmp_path / "0000").mkdir()
    (tmp_path / "0000" / "vendor").write_text(f"{vendor}\n")
    monkeypatch.setattr(lean_import, "PCI_DEVICES", tmp_path)
    for name in lean_import.WITHOUT_TPU:
        monkeypatch.delenv(name, raising=False)
    lean_import.quiet_libtpu()
    set_values = {name: os.environ[name] for name in lean_import.WITHOUT_TPU if name in os.environ}
    assert set_values == ({} if vendor == "0x1ae0" else lean_import.WITHOUT_TPU)
    monkeypatch.setenv("TPU_MIN_LOG_LEVEL", "0")
    lean_import.quiet_libtpu()
    assert os.environ["TPU_MIN_LOG_LEVEL"] == "0", "the user's setting is unchanged"
