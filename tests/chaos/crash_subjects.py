"""What is interrupted at each of its system calls: a save, a store being prepared, an export, and lines of a log.

Each subject has an old state, an action that leads to the new state, and a test of which of the two is there.
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
    """`begin` makes the old state in a folder and `act` the new one, which it may run again.

    `found` returns OLD, NEW, or what is wrong; `left`, after `act` ran again, what should not be there.
    """

    begin: Callable[[Path], object]
    act: Callable[[Path], object]
    found: Callable[[Path], str]
    left: Callable[[Path], list[str]]


def _state(step: int) -> dict[str, Any]:
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
            checkpoints.save(step, _state(step), _metadata())


def _saved(folder: Path) -> str:
    import jax
    import numpy as np

    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), _state(0))
    try:
        restored = Checkpoints(folder / "checkpoints", keep_last=2).restore(abstract, _metadata())
    except ValueError as error:
        return str(error)
    if restored is None or restored.step not in (2, 3, 4):
        return f"the newest is {restored and restored.step}"
    if not jax.tree.all(jax.tree.map(np.array_equal, restored.state, _state(restored.step))):
        return f"step {restored.step} has other bits"
    return OLD if restored.step == 2 else NEW


def _left_of_saves(folder: Path) -> list[str]:
    _save(folder, 4)  # what a removal left is removed with the next save
    return sorted({path.name for path in (folder / "checkpoints").iterdir()} ^ {"3", "4"})


def _export(folder: Path, offset: float) -> None:
    import jax

    model = trained_model(folder / "run", num_hidden_layers=1, hidden_size=16, intermediate_size=16)
    export_huggingface(replace(model, params=jax.tree.map(lambda x: x + offset, model.params)), folder / "export")


def _exported(folder: Path) -> str:
    if findings := list(check_sums(folder / "export")):
        return findings[0]
    import numpy as np
    from safetensors.numpy import load_file

    (scale,) = np.unique(load_file(folder / "export" / "model.safetensors")["bert.embeddings.LayerNorm.weight"] > 5)
    return NEW if scale else OLD


def _left_of_exports(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name not in ("export", "run")]


def _data(folder: Path) -> DataConfig:
    source = folder / "corpus.txt"
    if not source.exists():
        write_corpus(source, 60)
    os.utime(source, (1_600_000_000, 1_600_000_000))
    keys = {"root": str(folder / "data"), "vocab_size": 200, "sequence_length": 32, "held_out": 0.2, "workers": 1}
    return DataConfig(sources=(f"lines:{source}",), **keys)


def _begin_to_prepare(folder: Path) -> None:
    _data(folder)
    (folder / "data").mkdir()


def _prepared(folder: Path) -> str:
    # Hidden folders are scratch, which nothing reads; a killed process may leave one.
    folders = [path for path in (folder / "data").iterdir() if path.is_dir() and not path.name.startswith(".")]
    whole = [path for path in folders if not path.name.endswith(".partial")]
    try:
        for path in whole:
            if path.name.startswith("store-"):
                TokenStore.open(path).verify()
    except ValueError as error:
        return str(error)
    # Bytes depend on the text alone: those of an undisturbed run, made by this code, are known by their digest.
    names = {path.name.partition("-")[0]: digest_of(path) for path in whole}
    if unlike := [name for name, digest in names.items() if digest != UNDISTURBED.setdefault(name, digest)]:
        return f"{unlike[0]} has other bytes than an undisturbed run's"
    return NEW if "store" in names else OLD


UNDISTURBED: dict[str, str] = {}  # of each result of `prepare`, from the first time that it is seen


def digest_of(folder: Path) -> str:
    """SHA-256 (hex) of the names and bytes of all files."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest.update(f"{path.relative_to(folder)}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def _left_of_preparing(folder: Path) -> list[str]:
    names = [path.name for path in (folder / "data").iterdir()]
    results = ("store-", "vocab-", "digests", ".lock")
    return [name for name in names if "partial" in name or not name.startswith(results)]


_LOGGED = [(step, {"train/mlm_loss": float(step)}) for step in (1, 2, 3)]
_THEN = [(step, {"train/mlm_loss": 10.0 * step}) for step in (3, 4, 5)]


def _append(folder: Path, resume_step: int, lines: list[tuple[int, dict[str, float]]]) -> None:
    writer = JsonlWriter(folder / "metrics.jsonl", resume_step)
    for step, figures in lines:
        writer.write(step, figures)
        writer.flush()
    writer.close()


def _logged(folder: Path) -> str:
    try:
        records = read_metrics(folder / "metrics.jsonl")
    except (OSError, ValueError) as error:
        return str(error)
    found = [(record["step"], {"train/mlm_loss": record["train/mlm_loss"]}) for record in records]
    if found == _LOGGED[:2] + _THEN:
        return NEW
    prefixes = [_LOGGED, *(_LOGGED[:2] + _THEN[:count] for count in range(len(_THEN)))]
    return OLD if found in prefixes else f"it has {found}"


SUBJECTS = {
    "save": Subject(lambda folder: _save(folder, 1, 2), lambda folder: _save(folder, 3), _saved, _left_of_saves),
    "prepare": Subject(_begin_to_prepare, lambda folder: prepare(_data(folder)), _prepared, _left_of_preparing),
    "export": Subject(
        lambda folder: _export(folder, 0.0), lambda folder: _export(folder, 10.0), _exported, _left_of_exports
    ),
    "append": Subject(
        lambda folder: _append(folder, 0, _LOGGED),
        lambda folder: _append(folder, 2, _THEN),
        _logged,
        # A hidden file of a killed process may stay.
        lambda folder: [
            path.name for path in folder.iterdir() if not path.name.lstrip(".").startswith("metrics.jsonl")
        ],
    ),
}
