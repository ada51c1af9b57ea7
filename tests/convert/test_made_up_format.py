"""A format is one module and one line of the registry: a user's format exports, compares and imports."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from exported_models import trained_model

from bertjax.__main__ import main
from bertjax.convert.formats import FORMATS, Entry
from bertjax.convert.sources import as_run, open_source, read_source, require_source, write_run
from bertjax.run.run_directory import load_run

MODULE = '''
"""Parameters in one .npz file, under our own names."""

import json
from dataclasses import asdict
from pathlib import Path

import jax
import numpy as np

from bertjax.config import ModelConfig
from bertjax.convert.compare import Difference
from bertjax.convert.folder import resolve_folder, written_whole
from bertjax.convert.foreign import ForeignModel
from bertjax.convert.formats import Format
from bertjax.families.networks import abstract_network
from bertjax.tokenization.loading import load_tokenizer
from bertjax.model.parameters import named_arrays


def _export(model, directory, vectors, prove=None):
    with written_whole(resolve_folder(directory), "model.json", prove) as folder:
        np.savez(folder / "weights.npz", **{name: np.asarray(x) for name, x in named_arrays(model.params).items()})
        (folder / "model.json").write_text(json.dumps(asdict(model.config.model)))
        for name, content in model.tokenizer.files.items():
            (folder / name).write_bytes(content)
    return Path(directory)


def _read(directory):
    folder = Path(directory)
    config = ModelConfig(**json.loads((folder / "model.json").read_text()) | {"features": ()})
    from bertjax.tokenization.tokenizer import TextRules
    shapes = abstract_network(config)[1]
    with np.load(folder / "weights.npz") as file:
        arrays = [file[name] for name in named_arrays(shapes)]
    params = jax.tree.unflatten(jax.tree.structure(shapes), arrays)
    return ForeignModel(f"npz:{folder}", config, load_tokenizer(folder, TextRules(True, True)), params, (), ())


def _compare(model, folder, vectors, untrained=()):
    theirs = jax.tree.leaves(_read(folder).params)
    pairs = zip(jax.tree.leaves(model.params), theirs, strict=True)
    return Difference({"parameters": max(float(np.abs(ours - x).max()) for ours, x in pairs)})


FORMAT = Format(reference="the file itself", compare=_compare, export=_export, read=_read)
'''


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "formats").mkdir()
    (tmp_path / "formats" / "numpy_archive_format.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path / "formats")
    monkeypatch.setitem(FORMATS, "numpy-archive", Entry("numpy_archive_format", source="npz"))
    yield
    sys.modules.pop("numpy_archive_format", None)


def test_user_format_exports_compares_and_imports(
    made_up: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = trained_model(tmp_path / "source")
    source = read_source(f"npz:{_exported(model, tmp_path / 'first')}")
    write_run(as_run(source, "run"))
    assert main(["export", "run", "--to", "numpy-archive", "--output", "out"]) == 0
    assert "compared with the file itself on real text: parameters 0.0e+00" in capsys.readouterr().out
    assert json.loads(Path("out/model.json").read_text())["hidden_size"] == 32
    assert main(["import", "npz:out", "--output", "again"]) == 0
    output = capsys.readouterr().out
    assert "npz:out" in output and "compared with the file itself" in output
    jax.tree.map(np.testing.assert_array_equal, load_run("again").params, model.params)
    assert open_source("npz:out")[1] == ()
    with pytest.raises(ValueError, match=r"give a run, hf:DIR, tf1:DIR or npz:DIR"):
        require_source("npz:nowhere")


def test_user_format_refuses_unsupported_options(
    made_up: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = trained_model(tmp_path / "source")
    write_run(as_run(read_source(f"npz:{_exported(model, tmp_path / 'first')}"), "run"))
    assert main(["export", "run", "--to", "numpy-archive", "--pooling", "mean"]) == 1
    assert "--to numpy-archive: this format has no vectors of texts" in capsys.readouterr().err


def _exported(model, folder: Path) -> Path:
    from bertjax.convert.formats import Vectors, load_format

    return load_format("numpy-archive").export(model, folder, Vectors())
