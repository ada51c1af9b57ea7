"""Files that are damaged in every way: each damage is named by a reader or by `bertjax verify`, or changes no bit."""

from __future__ import annotations

import functools
import random
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from crash_subjects import digest_of
from exported_models import trained_model, wordpiece
from outcomes import Table

from bertjax.__main__ import main
from bertjax.cli.verify import parts_of
from bertjax.convert.huggingface.exporter import export_huggingface
from bertjax.convert.sentence_transformers.exporter import export_sentence_transformers
from bertjax.convert.sources import write_run
from bertjax.input import plan_files as plans
from bertjax.storage.sums import SUMS_FILE
from bertjax.text.store.writer import write_store
from bertjax.training.checkpoint import read_metadata
from bertjax.training.run_directory import load_run, seal
from bertjax.training.telemetry import METRICS_FILE, JsonlWriter

NAMED, HARMLESS = "named", "without effect"
_STRETCH = 4096  # bytes that are zeroed


@dataclass(frozen=True)
class Kind:
    """Something whose files are damaged: which files, what is said of damage, and what is read of it.

    `within` is the folder that is damaged, as a path within the one that is copied.
    """

    within: str
    findings: Callable[[Path], list[str]]
    read: Callable[[Path], Any]
    share: int  # of the trials
    names_files: bool = True  # what is said has the name of the damaged file in it


def _verified(folder: Path) -> list[str]:
    return [finding for part in parts_of(str(folder)) for finding in part.check(lambda more: None)]


def _own_files(folder: Path) -> list[str]:
    """Of a run without its checkpoints, which are a kind of their own. Without its list of digests it is told apart."""
    part = parts_of(str(folder))[0]
    return list(part.check(lambda more: None)) or [f"no {SUMS_FILE}: {part.name}"] * ("not finished" in part.name)


def _state(checkpoint: Path) -> Any:
    return jax.device_get(load_run(checkpoint).params), read_metadata(checkpoint)


_PLAN_INPUTS = {"seed": 1}


def _plan(folder: Path, offset: int = 0) -> dict[str, np.ndarray]:
    """The plan of those inputs, from its files or made again."""
    made = {name: np.arange(500, dtype=np.int32) * 7 + offset for name in ("a_start", "b_start")}
    files = plans.PlanFiles(folder)
    least, plans.LEAST_KEPT_BYTES = plans.LEAST_KEPT_BYTES, 0
    try:
        return {name: np.array(array) for name, array in files.load_or_make(_PLAN_INPUTS, lambda: made).items()}
    finally:
        plans.LEAST_KEPT_BYTES = least


def _said_of_plan(folder: Path) -> list[str]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        _plan(folder)
    return [str(warning.message) for warning in said]


KINDS = {
    "checkpoint": Kind("run/checkpoints/0", _verified, _state, 2, names_files=False),
    "run": Kind("run", _own_files, digest_of, 5),
    "store": Kind("store", _verified, digest_of, 5),
    "export": Kind("export", _verified, digest_of, 5),
    "sentence encoder": Kind("vectors", _verified, digest_of, 2),
    "search index": Kind("index", _verified, digest_of, 5),
    "plan": Kind("plans", _said_of_plan, _plan, 5, names_files=False),
}


def make_everything(folder: Path, seed: int) -> Path:
    """A folder of each kind; those of two seeds differ in their values alone."""
    folder.mkdir(parents=True)
    draw = np.random.default_rng(seed)
    documents = [[draw.integers(5, 100, 9).tolist() for _ in range(5)] for _ in range(30)]
    write_store(folder / "store", {"train": documents, "held_out": documents[:2]}, wordpiece(), documents_per_shard=20)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 16, "num_attention_heads": 2}
    model = trained_model(folder / "run", **sizes)
    model = replace(model, params=jax.tree.map(lambda x: x * (1 + seed), model.params))
    write_run(model)
    log = JsonlWriter(folder / "run" / METRICS_FILE, 0)
    log.write(0, {"eval/mlm_loss": 1.0 + seed})
    log.close()
    seal(folder / "run")
    export_huggingface(model, folder / "export")
    export_sentence_transformers(model, folder / "vectors", "pooler", True)
    (folder / "texts.txt").write_text(f"the museum\nof drawings {seed}\n")
    words = ["search", folder / "run", "--index", folder / "index", "--documents", folder / "texts.txt"]
    assert main([*map(str, words)]) == 0
    _plan(folder / "plans", seed)
    return folder


# A damage gets a file and its counterpart in the same state of another run, and returns whether it changed a byte.


def _flip(path: Path, other: Path, draw: random.Random) -> bool:
    content = bytearray(path.read_bytes())
    if content:
        bit = draw.randrange(8 * len(content))
        content[bit // 8] ^= 1 << bit % 8
    return _rewritten(path, bytes(content))


def _cut(path: Path, other: Path, draw: random.Random) -> bool:
    content = path.read_bytes()
    return _rewritten(path, content[: draw.randrange(len(content))] if content else content)


def _zero(path: Path, other: Path, draw: random.Random) -> bool:
    content = path.read_bytes()
    start = draw.randrange(0, max(len(content), 1), _STRETCH)
    return _rewritten(
        path, content[:start] + bytes(len(content[start : start + _STRETCH])) + content[start + _STRETCH :]
    )


def _lengthen(path: Path, other: Path, draw: random.Random) -> bool:
    return _rewritten(path, path.read_bytes() + draw.randbytes(draw.randint(1, 64)))


def _remove(path: Path, other: Path, draw: random.Random) -> bool:
    path.unlink()
    return True


def _swap(path: Path, other: Path, draw: random.Random) -> bool:
    return other.is_file() and _rewritten(path, other.read_bytes())


def _mistake(path: Path, other: Path, draw: random.Random) -> bool:
    """The content of another file of the same folder."""
    beside = [one for one in sorted(path.parent.iterdir()) if one.is_file() and one != path]
    return bool(beside) and _rewritten(path, draw.choice(beside).read_bytes())


def _rewritten(path: Path, content: bytes) -> bool:
    changes = content != path.read_bytes()
    path.write_bytes(content)
    return changes


DAMAGES = {
    "a flipped bit": _flip,
    "cut off": _cut,
    "zeroed": _zero,
    "longer": _lengthen,
    "missing": _remove,
    "from another run's same step": _swap,
    "another file's content": _mistake,
}


class Rot:
    """A folder of each kind, to damage one file at a time, and its counterpart of another run."""

    def __init__(self, folder: Path) -> None:
        self._whole, self._other = make_everything(folder / "whole", 0), make_everything(folder / "other", 1)
        self._copy = folder / "copy"
        shutil.copytree(self._whole, self._copy)

    @functools.cache  # noqa: B019 (as long as the campaign)
    def files(self, kind: str) -> list[Path]:
        """Paths within the folder of a kind, of files with content."""
        folder = self._whole / KINDS[kind].within
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size]
        if kind == "run":
            paths = [path for path in paths if "checkpoints" not in path.relative_to(folder).parts]
        return [path.relative_to(folder) for path in paths]

    @functools.cache  # noqa: B019
    def expected(self, kind: str) -> Any:
        """What is read of the undamaged folder."""
        return KINDS[kind].read(self._whole / KINDS[kind].within)

    def tried(self, kind: str, damage: str, file: Path, draw: random.Random) -> str | None:
        """NAMED, HARMLESS or what is wrong; None if the damage changed nothing."""
        one = KINDS[kind]
        folder, other = self._copy / one.within, self._other / one.within
        try:
            if not DAMAGES[damage](folder / file, other / file, draw):
                return None
            try:
                found = one.findings(folder)
            except Exception as error:
                return f"{type(error).__name__} instead of a finding: {error}"
            if found and one.names_files and not any(file.name in finding for finding in found):
                return f"it is not named in {found}"
            if found and kind != "plan":
                return NAMED
            # A damaged plan is named and made again.
            if _same(one.read(folder), self.expected(kind)):
                return NAMED if found else HARMLESS
            return "what is read has other bits, and nothing was said"
        finally:
            self._restore(kind, file)

    def _restore(self, kind: str, file: Path) -> None:
        whole, folder = self._whole / KINDS[kind].within, self._copy / KINDS[kind].within
        if kind == "plan":
            shutil.rmtree(folder)
            shutil.copytree(whole, folder)
        else:
            shutil.copy2(whole / file, folder / file)


def _same(one: Any, other: Any) -> bool:
    leaves, structure = jax.tree.flatten(one)
    others, structure_of_other = jax.tree.flatten(other)
    equal = (np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in zip(leaves, others, strict=False))
    return structure == structure_of_other and all(equal)


def try_bit_rot(table: Table, folder: Path, tries: int, seed: int) -> None:
    """So many damages, four of five a flipped bit, over every file in turn; a row for each kind and damage."""
    draw, rot = random.Random(seed), Rot(folder)
    kinds = [name for name, kind in KINDS.items() for _ in range(kind.share)]
    turns = dict.fromkeys(KINDS, 0)
    for number in range(tries):
        kind = kinds[number % len(kinds)]
        files = rot.files(kind)
        file = files[turns[kind] % len(files)]
        turns[kind] += 1
        damage = "a flipped bit" if draw.random() < 0.8 else draw.choice(list(DAMAGES))
        found = rot.tried(kind, damage, file, draw)
        if found is not None:
            table.add(f"{kind}: {damage}", found, found in (NAMED, HARMLESS), str(file))
