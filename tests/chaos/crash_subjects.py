"""Actions to interrupt at each system call: saving a checkpoint, preparing a store, exporting, appending to a log.

Each subject has an old state, an action that leads to the new state, and a function that tells the two apart.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from exported_models import trained_model
from generated_corpus import write_corpus

from bertjax.config import Config, DataConfig, to_dict
from bertjax.convert.huggingface.exporter import export_huggingface
from bertjax.run.checkpoint import Checkpoints
from bertjax.run.telemetry import JsonlWriter, read_metrics
from bertjax.storage.sums import check_sums
from bertjax.text.prepare import prepare
from bertjax.text.store.format import TokenStore

OLD, NEW = "old", "new"


@dataclass(frozen=True)
class Subject:
    """An action under test: `begin` creates the old state in a folder, and `act` the new one; `act` can be repeated.

    `state` returns OLD, NEW or an error; `leftovers` lists files that should not exist after `act` ran again.
    """

    begin: Callable[[Path], object]
    act: Callable[[Path], object]
    state: Callable[[Path], str]
    leftovers: Callable[[Path], list[str]]


def _arrays(step: int) -> dict[str, Any]:
    import jax.numpy as jnp
    import numpy as np

    draw = np.random.default_rng(step)
    arrays = {"kernel": draw.normal(size=(33, 16)).astype(np.float32), "bias": draw.normal(size=7).astype(np.float32)}
    return {"step": jnp.int32(step), "params": {name: jnp.asarray(array) for name, array in arrays.items()}}


def _metadata() -> dict[str, Any]:
    return {"config": to_dict(Config()), "tokenizer_fingerprint": "aa", "data_fingerprint": "bb"}


def _save(folder: Path, *steps: int) -> None:
    with Checkpoints(folder / "checkpoints", keep_last=2) as checkpoints:
        for step in steps:
            checkpoints.save(step, _arrays(step), _metadata())


def _checkpoint_state(folder: Path) -> str:
    import jax
    import numpy as np

    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), _arrays(0))
    try:
        restored = Checkpoints(folder / "checkpoints", keep_last=2).restore(abstract, _metadata())
    except ValueError as error:
        return str(error)
    if restored is None or restored.step not in (2, 3, 4):
        return f"the latest step is {restored and restored.step}"
    if not jax.tree.all(jax.tree.map(np.array_equal, restored.state, _arrays(restored.step))):
        return f"step {restored.step} has other bits"
    return OLD if restored.step == 2 else NEW


def _checkpoint_leftovers(folder: Path) -> list[str]:
    _save(folder, 4)  # completes an interrupted removal
    return sorted({path.name for path in (folder / "checkpoints").iterdir()} ^ {"3", "4"})


def _export(folder: Path, offset: float) -> None:
    import jax

    model = trained_model(folder / "run", num_hidden_layers=1, hidden_size=16, intermediate_size=16)
    export_huggingface(replace(model, params=jax.tree.map(lambda x: x + offset, model.params)), folder / "export")


def _export_state(folder: Path) -> str:
    if findings := list(check_sums(folder / "export")):
        return findings[0]
    import numpy as np
    from safetensors.numpy import load_file

    (scale,) = np.unique(load_file(folder / "export" / "model.safetensors")["bert.embeddings.LayerNorm.weight"] > 5)
    return NEW if scale else OLD


def _export_leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name not in ("export", "run")]


def _data(folder: Path) -> DataConfig:
    source = folder / "corpus.txt"
    if not source.exists():
        write_corpus(source, 60)
    os.utime(source, (1_600_000_000, 1_600_000_000))
    keys = {"root": str(folder / "data"), "vocab_size": 200, "sequence_length": 32, "held_out": 0.2, "workers": 1}
    return DataConfig(sources=(f"lines:{source}",), **keys)


def _begin_prepare(folder: Path) -> None:
    _data(folder)
    (folder / "data").mkdir()


def _prepare_state(folder: Path) -> str:
    # Hidden folders are scratch space that is never read; a killed process may leave one.
    folders = [path for path in (folder / "data").iterdir() if path.is_dir() and not path.name.startswith(".")]
    whole = [path for path in folders if not path.name.endswith(".partial")]
    try:
        for path in whole:
            if path.name.startswith("store-"):
                TokenStore.open(path).verify()
    except ValueError as error:
        return str(error)
    # The bytes depend only on the text, so they must equal the first (undisturbed) run's.
    digests = {path.name.partition("-")[0]: folder_digest(path) for path in whole}
    if different := [name for name, digest in digests.items() if digest != UNDISTURBED.setdefault(name, digest)]:
        return f"{different[0]} differs from an undisturbed run's"
    return NEW if "store" in digests else OLD


UNDISTURBED: dict[str, str] = {}  # digests of each result of `prepare`, recorded when it first appears


def folder_digest(folder: Path) -> str:
    """SHA-256 (hex) over the names and bytes of all files."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest.update(f"{path.relative_to(folder)}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def _prepare_leftovers(folder: Path) -> list[str]:
    names = [path.name for path in (folder / "data").iterdir()]
    results = ("store-", "vocab-", "digests", ".lock")
    return [name for name in names if "partial" in name or not name.startswith(results)]


_OLD_LINES = [(step, {"train/mlm_loss": float(step)}) for step in (1, 2, 3)]
_NEW_LINES = [(step, {"train/mlm_loss": 10.0 * step}) for step in (3, 4, 5)]


def _append(folder: Path, resume_step: int, lines: list[tuple[int, dict[str, float]]]) -> None:
    writer = JsonlWriter(folder / "metrics.jsonl", resume_step)
    for step, figures in lines:
        writer.write(step, figures)
        writer.flush()
    writer.close()


def _log_state(folder: Path) -> str:
    try:
        records = read_metrics(folder / "metrics.jsonl")
    except (OSError, ValueError) as error:
        return str(error)
    lines = [(record["step"], {"train/mlm_loss": record["train/mlm_loss"]}) for record in records]
    if lines == _OLD_LINES[:2] + _NEW_LINES:
        return NEW
    prefixes = [_OLD_LINES, *(_OLD_LINES[:2] + _NEW_LINES[:count] for count in range(len(_NEW_LINES)))]
    return OLD if lines in prefixes else f"the log has {lines}"


SUBJECTS = {
    "save": Subject(
        lambda folder: _save(folder, 1, 2), lambda folder: _save(folder, 3), _checkpoint_state, _checkpoint_leftovers
    ),
    "prepare": Subject(_begin_prepare, lambda folder: prepare(_data(folder)), _prepare_state, _prepare_leftovers),
    "export": Subject(
        lambda folder: _export(folder, 0.0), lambda folder: _export(folder, 10.0), _export_state, _export_leftovers
    ),
    "append": Subject(
        lambda folder: _append(folder, 0, _OLD_LINES),
        lambda folder: _append(folder, 2, _NEW_LINES),
        _log_state,
        # A killed process may leave a hidden file.
        lambda folder: [
            path.name for path in folder.iterdir() if not path.name.lstrip(".").startswith("metrics.jsonl")
        ],
    ),
}
