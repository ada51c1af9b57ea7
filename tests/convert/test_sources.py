"""Where a model may come from: folders below the home directory, names of the Hub, runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from exported_models import trained_model

from bertjax.__main__ import main
from bertjax.convert.huggingface.exporter import export_huggingface
from bertjax.convert.sources import foreign_folder, load_own_run, open_source, require_source


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def test_foreign_folder_expands_the_home_directory(home: Path) -> None:
    (home / "model").mkdir(parents=True)
    for kind in ("hf", "tf1"):
        folder = foreign_folder(f"{kind}:~/model")
        assert folder is not None and folder.path == home / "model"


def test_foreign_folder_names_the_expanded_folder(home: Path) -> None:
    with pytest.raises(ValueError, match=rf"there is no folder {home}/nowhere"):
        foreign_folder("hf:~/nowhere")


def test_import_expands_the_home_directory(home: Path) -> None:
    export_huggingface(trained_model(home / "run"), home / "exported")
    assert main(["import", "hf:~/exported"]) == 0
    assert Path("runs/exported/config.json").is_file()


@pytest.mark.parametrize("name", ["bert-base-uncased", "google/electra-small-discriminator"])
@pytest.mark.parametrize("use", [require_source, open_source, load_own_run])
def test_sources_suggest_the_prefix_of_the_hub(home: Path, name: str, use) -> None:
    with pytest.raises(ValueError, match=rf"; for the Hub: hf:{name}$"):
        use(name)


@pytest.mark.parametrize("path", ["runs/other", "./model", "/model", "a/b/c"])
def test_sources_take_paths_for_paths(home: Path, path: str) -> None:
    Path("runs").mkdir()
    with pytest.raises(ValueError) as refusal:
        require_source(path)
    assert "for the Hub" not in str(refusal.value)


def test_load_own_run_names_the_verb_that_imports(home: Path) -> None:
    with pytest.raises(ValueError, match=r"hf:bert-base-uncased is not a run; .* bertjax import hf:bert-base-uncased"):
        load_own_run("hf:bert-base-uncased")
