"""Damage files in many ways: a reader or `bertjax run verify` must name each damage, unless it changes no result."""

from __future__ import annotations

import functools
import random
import shutil
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from crash_subjects import folder_digest
from exported_models import trained_model, wordpiece
from outcomes import Share, Table, require_known
from stored_documents import write_store

from bertjax.__main__ import main
from bertjax.cli.verify import find_parts
from bertjax.convert.huggingface.exporter import export_huggingface
from bertjax.convert.sentence_transformers.sentence_format import export_sentence_transformers
from bertjax.convert.sources import write_run
from bertjax.input.epochs import RowCounts
from bertjax.run.checkpoint import read_metadata
from bertjax.run.run_directory import load_run, seal
from bertjax.run.telemetry import METRICS_FILE, JsonlWriter
from bertjax.storage.sums import SUMS_FILE

NAMED, HARMLESS = "named", "without effect"
FLIP, SWAPPED, STALE = "a flipped bit", "from another run's same step", "from an earlier state"
_FLIP_PERIOD = 5  # every fifth damage is of another kind than a flipped bit
_STRETCH = 4096  # bytes that are zeroed


@dataclass(frozen=True)
class Kind:
    """A folder whose files are damaged, with its checker and its reader.

    `within` is its path inside the copied folder.
    """

    within: str
    findings: Callable[[Path], list[str]]
    read: Callable[[Path], Any]
    share: int  # of the trials
    names_files: bool = True  # a finding contains the name of the damaged file


def _verified(folder: Path) -> list[str]:
    return [finding for part in find_parts(str(folder)) for finding in part.check(lambda more: None)]


def _own_files(folder: Path) -> list[str]:
    """Check a run without its checkpoints, which are another kind. A missing list of digests is a finding."""
    part = find_parts(str(folder))[0]
    return list(part.check(lambda more: None)) or [f"no {SUMS_FILE}: {part.name}"] * ("not finished" in part.name)


def _state(checkpoint: Path) -> Any:
    return jax.device_get(load_run(checkpoint).params), read_metadata(checkpoint)


def _row_counts(folder: Path, seed: int = 0, windows: int = 9) -> list[int]:
    """The number of rows in each window, from the file or counted again."""
    counts = RowCounts(folder, f"seed {seed}")
    for window in range(len(counts), windows):
        counts.append(500 + 7 * window + seed)
    return counts.ends.tolist()


def _row_count_warnings(folder: Path) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        RowCounts(folder, "seed 0")
    return [str(warning.message) for warning in caught]


KINDS = {
    "checkpoint": Kind("run/checkpoints/0", _verified, _state, 2, names_files=False),
    "run": Kind("run", _own_files, folder_digest, 5),
    "store": Kind("store", _verified, folder_digest, 5),
    "export": Kind("export", _verified, folder_digest, 5),
    "sentence encoder": Kind("vectors", _verified, folder_digest, 2),
    "search index": Kind("index", _verified, folder_digest, 5),
    "row counts": Kind("rows", _row_count_warnings, _row_counts, 5, names_files=False),
}


def make_everything(folder: Path, seed: int, earlier: bool = False) -> Path:
    """Write a folder of each kind. A seed changes only the values; `earlier` writes a previous state of the run."""
    folder.mkdir(parents=True)
    draw = np.random.default_rng(seed)
    documents = [[draw.integers(5, 100, 9).tolist() for _ in range(5)] for _ in range(30)]
    grown = documents[:25] if earlier else documents
    write_store(folder / "store", {"train": grown, "held_out": documents[:2]}, wordpiece(), documents_per_shard=20)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 16, "num_attention_heads": 2}
    model = trained_model(folder / "run", **sizes)
    model = replace(model, params=jax.tree.map(lambda x: x * (1 + seed + 0.5 * earlier), model.params))
    write_run(model)
    log = JsonlWriter(folder / "run" / METRICS_FILE, 0)
    for step in range(1 if earlier else 2):
        log.write(step, {"eval/mlm_loss": 1.0 + seed + step})
    log.close()
    seal(folder / "run")
    export_huggingface(model, folder / "export")
    export_sentence_transformers(model, folder / "vectors", "pooler", True)
    (folder / "texts.txt").write_text("the museum\n" + f"of drawings {seed}\n" * (not earlier))
    words = ["search", folder / "run", "--index", folder / "index", "--documents", folder / "texts.txt"]
    assert main([*map(str, words)]) == 0
    _row_counts(folder / "rows", seed, 5 if earlier else 9)
    return folder


# A damage takes a file and its counterpart (from another run, or from an earlier state of this run). It returns whether
# it changed a byte.


def _flip(path: Path, other: Path, draw: random.Random) -> bool:
    content = bytearray(path.read_bytes())
    if content:
        bit = draw.randrange(8 * len(content))
        content[bit // 8] ^= 1 << bit % 8
    return _rewrite(path, bytes(content))


def _cut(path: Path, other: Path, draw: random.Random) -> bool:
    content = path.read_bytes()
    return _rewrite(path, content[: draw.randrange(len(content))] if content else content)


def _zero(path: Path, other: Path, draw: random.Random) -> bool:
    content = path.read_bytes()
    start = draw.randrange(0, max(len(content), 1), _STRETCH)
    return _rewrite(path, content[:start] + bytes(len(content[start : start + _STRETCH])) + content[start + _STRETCH :])


def _lengthen(path: Path, other: Path, draw: random.Random) -> bool:
    return _rewrite(path, path.read_bytes() + draw.randbytes(draw.randint(1, 64)))


def _remove(path: Path, other: Path, draw: random.Random) -> bool:
    path.unlink()
    return True


def _swap(path: Path, other: Path, draw: random.Random) -> bool:
    return other.is_file() and _rewrite(path, other.read_bytes())


def _mistake(path: Path, other: Path, draw: random.Random) -> bool:
    """Write the content of another file in the same folder."""
    siblings = [one for one in sorted(path.parent.iterdir()) if one.is_file() and one != path]
    return bool(siblings) and _rewrite(path, draw.choice(siblings).read_bytes())


def _rewrite(path: Path, content: bytes) -> bool:
    changes = content != path.read_bytes()
    path.write_bytes(content)
    return changes


DAMAGES = {
    FLIP: _flip,
    "cut off": _cut,
    "zeroed": _zero,
    "longer": _lengthen,
    "missing": _remove,
    SWAPPED: _swap,
    STALE: _swap,
    "another file's content": _mistake,
}


class Rot:
    """Damages one file at a time in a folder of each kind; holds counterparts from another run and an earlier state."""

    def __init__(self, folder: Path) -> None:
        self._whole, self._other = make_everything(folder / "whole", 0), make_everything(folder / "other", 1)
        self._earlier = make_everything(folder / "earlier", 0, earlier=True)
        self._copy = folder / "copy"
        shutil.copytree(self._whole, self._copy)

    @functools.cache  # noqa: B019 (as long as the campaign)
    def files(self, kind: str) -> list[Path]:
        """The nonempty files of a kind, relative to its folder."""
        folder = self._whole / KINDS[kind].within
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size]
        if kind == "run":
            paths = [path for path in paths if "checkpoints" not in path.relative_to(folder).parts]
        return [path.relative_to(folder) for path in paths]

    @functools.cache  # noqa: B019
    def expected(self, kind: str) -> Any:
        """The result of reading the undamaged folder."""
        return KINDS[kind].read(self._whole / KINDS[kind].within)

    def try_damage(self, kind: str, damage: str, file: Path, draw: random.Random) -> str | None:
        """Damage a file and restore it. Returns NAMED, HARMLESS or an error; None if the damage changed no byte."""
        one = KINDS[kind]
        folder, other = self._copy / one.within, (self._earlier if damage == STALE else self._other) / one.within
        try:
            if not DAMAGES[damage](folder / file, other / file, draw):
                return None
            try:
                findings = one.findings(folder)
            except Exception as error:
                return f"{type(error).__name__} instead of a finding: {error}"
            # A list of digests from elsewhere is intact: the checker names the files that differ from it.
            is_digest_list = file.name == "manifest.json" and damage in (SWAPPED, STALE)
            names_file = any(file.name in finding for finding in findings)
            if findings and one.names_files and not is_digest_list and not names_file:
                return f"the damaged file is not named in {findings}"
            if findings and kind != "row counts":
                return NAMED
            # Damaged counts are reported and counted again.
            if _equal_bits(one.read(folder), self.expected(kind)):
                return NAMED if findings else HARMLESS
            return "the reader returns different bits without a finding"
        finally:
            self._restore(kind, file)

    def _restore(self, kind: str, file: Path) -> None:
        whole, folder = self._whole / KINDS[kind].within, self._copy / KINDS[kind].within
        if kind == "row counts":
            shutil.rmtree(folder)
            shutil.copytree(whole, folder)
        else:
            shutil.copy2(whole / file, folder / file)


def _equal_bits(one: Any, other: Any) -> bool:
    leaves, structure = jax.tree.flatten(one)
    other_leaves, other_structure = jax.tree.flatten(other)
    equal = (np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in zip(leaves, other_leaves, strict=False))
    return structure == other_structure and all(equal)


def draw_damage(number: int, kinds: Sequence[str], seed: int) -> tuple[str, str, int, random.Random]:
    """(kind, damage, file index modulo the kind's files, random generator) of the campaign's damage `number`.

    Four of five damages flip a bit, in every file of a kind in turn. The others combine every kind with every damage.
    """
    draw = random.Random(f"{seed} {number}")
    place, is_flip = divmod(number, _FLIP_PERIOD)
    if not is_flip:
        others = [damage for damage in DAMAGES if damage != FLIP]
        return kinds[place % len(kinds)], others[place % len(others)], draw.randrange(1 << 30), draw
    flips = place * (_FLIP_PERIOD - 1) + is_flip - 1
    rounds, place = divmod(flips, len(kinds))
    kind = kinds[place]
    return kind, FLIP, rounds * kinds.count(kind) + kinds[:place].count(kind), draw


def try_bit_rot(table: Table, folder: Path, tries: int, share: Share, names: Collection[str] = ()) -> None:
    """Try damages of every kind, or of the named kinds; adds a row for each kind and damage.

    Raises ValueError for an unknown name.
    """
    require_known("kinds of damaged files", names, KINDS)
    rot = Rot(folder)
    kinds = [name for name, kind in KINDS.items() if name in names or not names for _ in range(kind.share)]
    for number in share.take(range(tries)):
        kind, damage, turn, draw = draw_damage(number, kinds, share.seed)
        file = rot.files(kind)[turn % len(rot.files(kind))]
        with table.failing(f"{kind}: {damage}", str(file)):
            if outcome := rot.try_damage(kind, damage, file, draw):
                table.add(f"{kind}: {damage}", outcome, outcome in (NAMED, HARMLESS), str(file))
