"""The package outside the repository: contents of the wheel, recipes by name, and Python started beside the clone."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from bertjax.__main__ import main
from bertjax.config.recipes import describe_recipe, load_recipe, recipe_file, recipe_names

pytestmark = pytest.mark.run

REPOSITORY = Path(__file__).resolve().parent.parent
IGNORED = shutil.ignore_patterns("build", "runs", "tests", "*.egg-info", "__pycache__", ".*")
BUILD = "from setuptools.build_meta import {0}; print({0}({1!r}))"


def build_wheel(source: Path, hook: str, folder: Path) -> Path:
    """Build a wheel with the back end that pip calls, without network access."""
    folder.mkdir()
    call = [sys.executable, "-c", BUILD.format(hook, str(folder))]
    done = subprocess.run(call, cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


def copy_repository(folder: Path) -> Path:
    """Copy the repository, because builds write to it."""
    shutil.copytree(REPOSITORY, folder, symlinks=True, ignore=IGNORED)
    return folder


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("setuptools", reason="needs setuptools to build a wheel")
    return copy_repository(tmp_path_factory.mktemp("beside") / "bertjax")


def run_outside(folder: Path, code: str, *path: Path) -> str:
    """The output of Python in a folder, with these folders on its path instead of this repository."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))}
    result = subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_wheel_contains_only_the_package_and_all_recipes(clone: Path, tmp_path: Path) -> None:
    wheel = build_wheel(clone, "build_wheel", tmp_path / "wheel")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "installed")
    assert {name.partition("/")[0] for name in names} == {"bertjax", re.sub(r"-py3.*", ".dist-info", wheel.name)}
    recipes = {path.name for folder, kind in (("configs", "*.py"), ("configs/references", "*.json"))
               for path in (REPOSITORY / folder).glob(kind)}  # fmt: skip
    assert {Path(name).name for name in names if name.startswith("bertjax/recipes/")} == recipes
    code = "import bertjax.config as c; print(c.__file__, c.load_recipe('lamb:paper').name)"
    code += "; import bertjax.text.sources.registry as r; print(len(r.source_files(r.parse_source('novels:'))))"
    place, name, novels = run_outside(tmp_path, code, tmp_path / "installed").split()
    assert Path(place).is_relative_to(tmp_path) and name == "bert_large_lamb_paper" and novels == "8"


def test_python_beside_the_clone_imports_the_package(clone: Path, tmp_path: Path) -> None:
    """An editable install adds a path, because the clone's folder `bertjax` would precede an import hook."""
    wheel = build_wheel(clone, "build_editable", tmp_path / "wheel")
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name).decode() for name in archive.namelist() if ".dist-info/" not in name}
    assert [text.strip() for text in files.values()] == [str(clone)], "one .pth file, which names the clone"
    code = "import bertjax; print(bertjax.__version__, bertjax.__file__)"
    assert run_outside(clone.parent, code, clone).split()[1] == str(clone / "bertjax" / "__init__.py")


def test_recipe_names_mean_the_package_and_paths_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quickstart.py").write_text("raise SystemExit('the file beside was run')\n")
    assert load_recipe("quickstart").name == "quickstart"
    assert recipe_file("roberta:large") == (recipe_file("roberta")[0], "large")
    with pytest.raises(ValueError, match="the file beside was run"):
        load_recipe("quickstart.py")
    (tmp_path / "mine.py").write_text("from bertjax.recipes.bert_base import config\n")
    assert load_recipe("./mine.py:cased") == load_recipe("bert_base:cased")


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("bert-larg:wwm", r"recipe 'bert-larg:wwm' is unknown; did you mean bert_large\?"),
        ("zzz", r"recipe 'zzz' is unknown; choose from quickstart, .*; to use your own recipe, give its file"),
        ("mine", r"recipe 'mine' is unknown; for the file of that name, write \./mine\.py"),
        ("roberta:larg", r"variant 'larg' is unknown; this recipe has base, .*; did you mean 'large'\?"),
    ],
)
def test_unknown_recipe_suggests_the_nearest(
    recipe: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").touch()
    with pytest.raises(ValueError, match=message):
        load_recipe(recipe)


def test_recipes_list_is_short_and_show_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes"]) == 0
    head, *lines = capsys.readouterr().out.partition("\n\n")[0].splitlines()
    assert head.split() == ["recipe", "network", "tokens", "machine", "and", "time"]
    assert [line.split()[0] for line in lines] == [*recipe_names()] and next(iter(recipe_names())) == "quickstart"
    assert max(map(len, lines)) < 100
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in lines}
    assert rows["quickstart"] == "2 x 128 4.92 M five minutes on two CPU cores"
    assert rows["bert_base"] == "12 x 768 42.6 B 4.3 hours or more on 8 H100"
    # The cost of the default variant, although the docstring also has the cost of a larger one.
    assert rows["modern_one_gpu"] == "22 x 768 2.82 B 22.6 hours at 30 TFLOP/s"
    assert rows["protein_esm2"] == "6 x 320 1.05 T see bertjax plan"
    assert rows["chinese_mini"] == "4 x 256 6.14 M half an hour on two free cores"
    assert rows["lamb"] == "24 x 1024 85.3 B 76 minutes on the paper's 1,024 TPU v3 chips"
    for name in recipe_names():
        assert "Command" in describe_recipe(name).sections, name
    assert main(["recipes", "show", "lamb"]) == 0
    output = capsys.readouterr().out
    assert all(f"    {key}:" in output for key in ("size", "cost", "reproduces", "variants"))
    assert "lamb:nvidia, lamb:paper; without one: nvidia" in output
    assert output.endswith(recipe_file("lamb")[0].read_text(encoding="utf-8"))


def test_recipes_list_does_not_import_jax() -> None:
    code = "import sys; from bertjax.__main__ import main; main(['recipes']); print('jax' in sys.modules)"
    assert run_outside(REPOSITORY, code, REPOSITORY).splitlines()[-1] == "False"


def test_copied_recipe_equals_the_original(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["recipes", "copy", "bert_large:wwm"]) == 0
    assert "next: bertjax pretrain ./bert_large.py:wwm\n" in capsys.readouterr().out
    assert load_recipe("./bert_large.py:wwm") == load_recipe("bert_large:wwm")
    (tmp_path / "bert_large.py").write_text("mine\n")
    assert main(["recipes", "copy", "bert_large"]) == 1
    assert "bert_large.py exists; add --overwrite to replace it" in capsys.readouterr().err
    assert (tmp_path / "bert_large.py").read_text() == "mine\n"
    assert main(["recipes", "copy", "bert_large", "bert_large.py", "--overwrite"]) == 0
    assert (tmp_path / "bert_large.py").read_bytes() == recipe_file("bert_large")[0].read_bytes()


def test_documented_install_lacks_only_tensorflow() -> None:
    setup = configparser.ConfigParser()
    setup.read(REPOSITORY / "setup.cfg")
    required = setup["options"]["install_requires"].split("\n")
    expected = {line for line in required if line and not line.startswith(("#", "tensorflow"))}
    page = (REPOSITORY / "launch" / "README.md").read_text().replace("\\\n", " ")
    (command,) = re.findall(r"^pip install ('jax.*)$", page, re.M)
    assert set(shlex.split(command)) == expected
