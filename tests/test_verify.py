"""`bertjax run verify` detects flipped bits and truncated, missing, stale and foreign files."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from exported_models import trained_model, wordpiece
from stored_documents import write_store

from bertjax.__main__ import main
from bertjax.cli.verify import DAMAGED, find_parts
from bertjax.convert.huggingface.exporter import export_huggingface
from bertjax.convert.sentence_transformers.sentence_format import export_sentence_transformers
from bertjax.convert.sources import write_run
from bertjax.run.checkpoint import read_metadata
from bertjax.run.run_directory import load_run, seal
from bertjax.run.telemetry import METRICS_FILE, JsonlWriter
from bertjax.storage.sums import SUMS_FILE

pytestmark = pytest.mark.run

KINDS = ("store", "run", "checkpoint", "export", "vectors", "index")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder of each kind."""
    folder = tmp_path_factory.mktemp("verify")
    draw = np.random.default_rng(0)
    documents = [[draw.integers(5, 100, 9).tolist() for _ in range(5)] for _ in range(30)]
    split = {"train": documents, "held_out": documents[:2]}
    model = trained_model(folder / "run")
    store = write_store(folder / "store", split, wordpiece(), documents_per_shard=20)
    write_run(model)
    log = JsonlWriter(folder / "run" / METRICS_FILE, 0)
    log.write(0, {"eval/mlm_loss": 1.0})
    log.close()
    for name in ("test.tsv", "dev/predictions.json"):
        path = folder / "run" / "predictions" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("an answer\n")
    seal(folder / "run")
    export_huggingface(model, folder / "export")
    export_sentence_transformers(model, folder / "vectors", "pooler", True)
    (folder / "texts.txt").write_text("the museum\nof drawings\n")
    words = ["search", folder / "run", "--index", folder / "index", "--documents", folder / "texts.txt"]
    assert main([*map(str, words)]) == 0
    checkpoint = folder / "run" / "checkpoints" / "0"
    names = {name: folder / name for name in ("run", "export", "vectors", "index")}
    return names | {"store": store, "checkpoint": checkpoint}


@pytest.fixture
def copy(folders: dict[str, Path], tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A copy of a folder of each kind, to damage; a checkpoint is inside its run."""
    if request.param == "checkpoint":
        shutil.copytree(folders["run"], tmp_path / "run")
        return tmp_path / "run" / "checkpoints" / "0"
    return shutil.copytree(folders[request.param], tmp_path / request.param)


each_kind = pytest.mark.parametrize("copy", KINDS, indirect=True)


def findings(folder: Path) -> list[str]:
    return [finding for part in find_parts(str(folder)) for finding in part.check(lambda more: None)]


def files_of(folder: Path) -> Iterator[Path]:
    """The checked files: without a run's lock and its checkpoints, which are a separate kind here."""
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder).parts
        if path.is_file() and path.stat().st_size and "checkpoints" not in inside and path.name != ".lock":
            yield path


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def same_state(checkpoint: Path, other: Path) -> bool:
    """Whether two checkpoints have the same bits and metadata when read."""
    states = [jax.device_get(load_run(place).params) for place in (checkpoint, other)]
    equal = jax.tree.map(np.array_equal, *states)
    return jax.tree.all(equal) and read_metadata(checkpoint) == read_metadata(other)


def test_undamaged_folders_pass(folders: dict[str, Path], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "verify", *(str(folders[kind]) for kind in KINDS)]) == 0
    output = capfd.readouterr()
    assert output.out.count(": OK") == len(KINDS) + 1, "a run has a checkpoint"
    assert output.err == "", "progress was printed off a terminal about work under ten seconds"
    assert main(["run", "verify", str(folders["run"] / "checkpoints")]) == 0


@each_kind
def test_flipped_bits_are_reported_or_harmless(copy: Path, folders: dict[str, Path]) -> None:
    rng, harmless = random.Random(0), 0
    for path in files_of(copy):
        bit = rng.randrange(8 * path.stat().st_size)
        flip(path, bit)
        found = findings(copy)
        if not found:
            # Digests already matched when the arrays were read; comparing the arrays takes longer, so it is done once.
            assert copy.name == "0" and (harmless or same_state(copy, folders["checkpoint"])), f"bit {bit} of {path}"
            harmless += 1
        elif copy.name != "0":
            assert any(path.name in one for one in found), found
        flip(path, bit)
    assert findings(copy) == []
    assert harmless < len(list(files_of(copy)))


@each_kind
def test_truncated_missing_and_foreign_files_are_reported(copy: Path, folders: dict[str, Path]) -> None:
    for path in list(files_of(copy))[:: 1 if copy.name != "0" else 6]:
        whole = path.read_bytes()
        for damage in ("cut", "missing"):
            path.unlink() if damage == "missing" else path.write_bytes(whole[: len(whole) // 2])
            if copy.name == "run" and path.name == SUMS_FILE and damage == "missing":
                (part, *_) = find_parts(str(copy))
                assert "not finished" in part.name
            elif copy.name == "0":
                assert findings(copy) or same_state(copy, folders["checkpoint"]), (damage, path)
            else:
                assert any(path.name in one for one in findings(copy)), (damage, path)
            path.write_bytes(whole)
    if copy.name not in ("0", "run"):
        (copy / "left.behind").write_bytes(b"x")
        (found,) = findings(copy)
        assert "left.behind: not in" in found


def test_files_of_another_store_or_checkpoint_are_reported(folders: dict[str, Path], tmp_path: Path) -> None:
    store = shutil.copytree(folders["store"], tmp_path / "store")
    first, second = store / "train-00000.tokens", store / "train-00001.tokens"
    first.rename(store / "swap"), second.rename(first), (store / "swap").rename(second)
    assert [Path(one.partition(": ")[0]).name for one in findings(store)] == [first.name, second.name]
    run = shutil.copytree(folders["run"], tmp_path / "run")
    other = trained_model(tmp_path / "other")
    write_run(other.__class__(**{**vars(other), "params": jax.tree.map(lambda x: x + 1, other.params)}))
    state = run / "checkpoints" / "0" / "state"
    shutil.rmtree(state)
    shutil.copytree(tmp_path / "other" / "checkpoints" / "0" / "state", state)
    assert any("digest mismatch in" in one for one in findings(run))
    (run / "checkpoints" / "0").rename(run / "checkpoints" / "7")
    assert any("holds step 0; it was renamed or copied there" in one for one in findings(run))


def test_complete_checkpoint_of_another_run_is_reported(folders: dict[str, Path], tmp_path: Path) -> None:
    run, model = shutil.copytree(folders["run"], tmp_path / "run"), trained_model(tmp_path / "other")
    seeded = replace(model.config, training=replace(model.config.training, seed=7))
    write_run(replace(model, config=seeded, params=jax.tree.map(lambda x: x + 1, model.params)))
    shutil.rmtree(run / "checkpoints" / "0")
    shutil.copytree(tmp_path / "other" / "checkpoints" / "0", run / "checkpoints" / "0")
    (found,) = findings(run)
    assert "checkpoints/0: does not belong to the run described by config.json" in found and "training.seed" in found


def test_exit_codes_and_sha256sum_agree(
    folders: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    export = shutil.copytree(folders["export"], tmp_path / "export")
    checked = subprocess.run(["sha256sum", "-c", "--strict", SUMS_FILE], cwd=export, capture_output=True, text=True)
    assert checked.returncode == 0 and "model.safetensors: OK" in checked.stdout, checked.stderr
    flip(export / "model.safetensors", 12_345)
    assert main(["run", "verify", str(export), str(folders["store"])]) == DAMAGED
    output = capfd.readouterr().out
    assert f"DAMAGED {export / 'model.safetensors'}: its SHA-256 differs from the one in SHA256SUMS" in output
    assert f"export {export}: 1 finding\n" in output and ": OK" in output
    (tmp_path / "nothing").mkdir()
    for path, message in ((tmp_path / "nothing", "nothing there that bertjax wrote"), ("nowhere", "no such folder")):
        assert main(["run", "verify", str(path)]) == 1
        assert f"{message}; give a run, one of its checkpoints/<step>" in capfd.readouterr().err


def test_unfinished_run_reports_damage_without_file_list(folders: dict[str, Path], tmp_path: Path) -> None:
    run = shutil.copytree(folders["run"], tmp_path / "run")
    (run / SUMS_FILE).unlink()
    assert findings(run) == []
    (run / "config.json").write_text(json.dumps({"modle": {}}))
    (run / METRICS_FILE).write_text("{}\n")
    assert [Path(one.partition(": ")[0]).name for one in findings(run)] == ["config.json", "metrics.jsonl:1"]
