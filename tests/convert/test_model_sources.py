"""Sources of models: folders below the home directory, names on the Hub, runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest
import safetensors.numpy
from exported_models import trained_model

from bertjax.__main__ import main
from bertjax.config import Config, to_dict
from bertjax.convert.adapt import untrained_modules
from bertjax.convert.foreign import ForeignModel
from bertjax.convert.huggingface.exporter import export_huggingface
from bertjax.convert.sources import foreign_folder, load_own_run, open_source, read_source, require_source
from bertjax.interpret.checkpoint_predictions import checkpoint_predictions
from bertjax.parallel.mesh import make_mesh
from bertjax.run.checkpoint import DIRECTORY, Checkpoints, Restored
from bertjax.run.checkpoint_metadata import DRAWN, run_metadata
from bertjax.run.run_directory import describe_run, load_run
from bertjax.run.train_job import starting_state

pytestmark = pytest.mark.run


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
def test_sources_suggest_no_hub_for_paths(home: Path, path: str) -> None:
    Path("runs").mkdir()
    with pytest.raises(ValueError) as refusal:
        require_source(path)
    assert "for the Hub" not in str(refusal.value)


def test_load_own_run_names_the_import_command(home: Path) -> None:
    with pytest.raises(ValueError, match=r"hf:bert-base-uncased is not a run; .* bertjax import hf:bert-base-uncased"):
        load_own_run("hf:bert-base-uncased")


# -- untrained heads


@pytest.fixture
def bare(home: Path) -> Path:
    """A folder with only BERT's encoder."""
    return export_huggingface(trained_model(home / "run"), home / "bare", "encoder")


def without_pooler(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    rest = {name: array for name, array in tensors.items() if not name.startswith("pooler.")}
    safetensors.numpy.save_file(rest, path, metadata={"format": "pt"})


USES = (
    ("fill-mask", ["the [MASK]"], "it has no MLM head and cannot fill masks"),
    ("evaluate", ["the museum"], "it has no MLM head and cannot score texts"),
    ("fill-mask", ["the museum", "--correct"], "it has no MLM head and cannot correct texts"),
    (
        "embed",
        ["texts.txt", "--output", "out.npy", "--pooling", "pooler"],
        "pooling=pooler: the model has no trained pooler",
    ),
)


def test_import_remembers_heads_that_the_source_lacks(bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    without_pooler(bare)
    Path("texts.txt").write_text("the museum\n")
    assert main(["import", f"hf:{bare}", "--output", "run"]) == 0
    assert {*load_run("run").untrained} == {"mlm_head", "nsp_head", "pooler"}
    labels = {"MLM head", "NSP head", "pooler"}
    assert {*open_source("run")[1]} == {*open_source(f"hf:{bare}")[1]} == {*read_source("run").untrained} == labels
    for verb, words, message in USES:
        for source in ("run", f"hf:{bare}"):
            capsys.readouterr()
            assert main([verb, source, *words]) == 1, verb
            assert message in capsys.readouterr().err, verb
    with pytest.raises(ValueError, match="its MLM head is untrained"):
        next(checkpoint_predictions("run", ["the [MASK]"], 3))
    assert main(["export", "run", "--output", "again"]) == 0
    assert "never trained, so random: " in capsys.readouterr().out
    words = ["--to", "sentence-transformers", "--pooling", "pooler", "--output", "vectors"]
    assert main(["export", "run", *words]) == 1
    assert "pooling=pooler: the model has no trained pooler" in capsys.readouterr().err


def test_import_of_a_whole_model_has_no_untrained_heads(home: Path) -> None:
    export_huggingface(trained_model(home / "run"), home / "whole")
    assert main(["import", f"hf:{home}/whole", "--output", "run"]) == 0
    assert load_run("run").untrained == ()


@pytest.mark.parametrize(
    ("origin", "drawn", "objectives", "weights", "untrained"),
    [
        ("", {}, ("mlm",), (), {"pooler", "nsp_head"}),
        ("", {}, ("mlm", "nsp"), (), set()),
        ("", {}, ("mlm", "nsp"), (1.0, 0.0), {"pooler", "nsp_head"}),
        ("hf:bare", {DRAWN: ["pooler", "mlm_head", "nsp_head"]}, ("mlm",), (), {"pooler", "nsp_head"}),
        ("hf:whole", {DRAWN: []}, ("mlm",), (), set()),
    ],
)
def test_load_run_names_heads_without_an_objective(
    tmp_path: Path, origin: str, drawn: dict, objectives: tuple, weights: tuple, untrained: set
) -> None:
    model = trained_model(tmp_path / "run")
    training = replace(model.config.training, objectives=objectives, objective_weights=weights)
    config = replace(model.config, init_from=origin, training=training)
    metadata = run_metadata(
        to_dict(config),
        tokenizer_fingerprint=model.tokenizer.fingerprint,
        data_fingerprint="text",
        mesh=make_mesh(config.mesh, jax.local_devices()[:1]),
    )
    model.directory.mkdir()
    describe_run(config, model.tokenizer)
    with Checkpoints(model.directory / DIRECTORY, keep_last=1) as checkpoints:
        checkpoints.save(5, {"params": model.params}, metadata | drawn)
    assert {*load_run(model.directory).untrained} == untrained


def test_starting_state_keeps_untrained_heads_on_resume() -> None:
    restored = Restored(5, "state", {DRAWN: ["pooler"]}, ())
    checkpoints = SimpleNamespace(restore=lambda *args: restored)
    job = SimpleNamespace(config=Config(), blueprint=SimpleNamespace(state=None), metadata={"step": 5})
    assert starting_state(job, checkpoints, lambda line: None, None) == "state"
    assert job.metadata == {"step": 5, DRAWN: ["pooler"]}


def test_untrained_modules_lists_missing_and_random_modules() -> None:
    model = trained_model(Path("run"))
    params = {name: part for name, part in model.params.items() if name != "nsp_head"}
    start = ForeignModel("here", model.config.model, model.tokenizer, params, ("pooler",), ())
    assert {*untrained_modules(start, model.config.model)} == {"nsp_head", "pooler"}
