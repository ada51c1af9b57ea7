"""Files damaged in every way: each damage is named by a reader or by `bertjax run verify`, or changes no bit."""

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
from crash_subjects import digest_of
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
_FLIPS_AND_ONE = 5  # of so many damages all but one are flipped bits
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
    return [finding for part in find_parts(str(folder)) for finding in part.check(lambda more: None)]


def _own_files(folder: Path) -> list[str]:
    """Of a run without its checkpoints, which are a kind of their own; a run without its list of digests is another."""
    part = find_parts(str(folder))[0]
    return list(part.check(lambda more: None)) or [f"no {SUMS_FILE}: {part.name}"] * ("not finished" in part.name)


def _state(checkpoint: Path) -> Any:
    return jax.device_get(load_run(checkpoint).params), read_metadata(checkpoint)


def _row_counts(folder: Path, seed: int = 0, windows: int = 9) -> list[int]:
    """The rows of the windows of a run, from their file or counted again."""
    counts = RowCounts(folder, f"seed {seed}")
    for window in range(len(counts), windows):
        counts.append(500 + 7 * window + seed)
    return counts.ends.tolist()


def _said_of_counts(folder: Path) -> list[str]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        RowCounts(folder, "seed 0")
    return [str(warning.message) for warning in said]


KINDS = {
    "checkpoint": Kind("run/checkpoints/0", _verified, _state, 2, names_files=False),
    "run": Kind("run", _own_files, digest_of, 5),
    "store": Kind("store", _verified, digest_of, 5),
    "export": Kind("export", _verified, digest_of, 5),
    "sentence encoder": Kind("vectors", _verified, digest_of, 2),
    "search index": Kind("index", _verified, digest_of, 5),
    "row counts": Kind("rows", _said_of_counts, _row_counts, 5, names_files=False),
}


def make_everything(folder: Path, seed: int, earlier: bool = False) -> Path:
    """A folder of each kind; those of two seeds differ in their values alone, an earlier one is of the same run."""
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


# A damage gets a file and its counterpart, in the same state of another run or an earlier state of this one, and
# returns whether it changed a byte.


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
    """A folder of each kind, to damage one file at a time, and its counterparts of another run and of earlier."""

    def __init__(self, folder: Path) -> None:
        self._whole, self._other = make_everything(folder / "whole", 0), make_everything(folder / "other", 1)
        self._earlier = make_everything(folder / "earlier", 0, earlier=True)
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
        folder, other = self._copy / one.within, (self._earlier if damage == STALE else self._other) / one.within
        try:
            if not DAMAGES[damage](folder / file, other / file, draw):
                return None
            try:
                found = one.findings(folder)
            except Exception as error:
                return f"{type(error).__name__} instead of a finding: {error}"
            # A list of digests from elsewhere is whole: what can be named is what differs from it.
            is_a_list = file.name == "manifest.json" and damage in (SWAPPED, STALE)
            if found and one.names_files and not is_a_list and not any(file.name in finding for finding in found):
                return f"it is not named in {found}"
            if found and kind != "row counts":
                return NAMED
            # Damaged counts are named and made again.
            if _same(one.read(folder), self.expected(kind)):
                return NAMED if found else HARMLESS
            return "what is read has other bits, and nothing was said"
        finally:
            self._restore(kind, file)

    def _restore(self, kind: str, file: Path) -> None:
        whole, folder = self._whole / KINDS[kind].within, self._copy / KINDS[kind].within
        if kind == "row counts":
            shutil.rmtree(folder)
            shutil.copytree(whole, folder)
        else:
            shutil.copy2(whole / file, folder / file)


def _same(one: Any, other: Any) -> bool:
    leaves, structure = jax.tree.flatten(one)
    others, structure_of_other = jax.tree.flatten(other)
    equal = (np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in zip(leaves, others, strict=False))
    return structure == structure_of_other and all(equal)


def damage_of(number: int, kinds: Sequence[str], seed: int) -> tuple[str, str, int, random.Random]:
    """Damage so many of a campaign: kind, damage, which of the kind's files (to be wrapped), and draws for the rest.

    Four of five flip a bit, of every file of a kind in turn. The others take every kind with every damage.
    """
    draw = random.Random(f"{seed} {number}")
    place, is_flip = divmod(number, _FLIPS_AND_ONE)
    if not is_flip:
        others = [damage for damage in DAMAGES if damage != FLIP]
        return kinds[place % len(kinds)], others[place % len(others)], draw.randrange(1 << 30), draw
    flips = place * (_FLIPS_AND_ONE - 1) + is_flip - 1
    rounds, place = divmod(flips, len(kinds))
    kind = kinds[place]
    return kind, FLIP, rounds * kinds.count(kind) + kinds[:place].count(kind), draw


def try_bit_rot(table: Table, folder: Path, tries: int, share: Share, names: Collection[str] = ()) -> None:
    """So many damages of every kind (of these names); a row for each kind and damage.

    Raises ValueError for an unknown name.
    """
    require_known("kinds of damaged files", names, KINDS)
    rot = Rot(folder)
    kinds = [name for name, kind in KINDS.items() if name in names or not names for _ in range(kind.share)]
    for number in share.of(range(tries)):
        kind, damage, turn, draw = damage_of(number, kinds, share.seed)
        file = rot.files(kind)[turn % len(rot.files(kind))]
        with table.failing(f"{kind}: {damage}", str(file)):
            if found := rot.tried(kind, damage, file, draw):
                table.add(f"{kind}: {damage}", found, found in (NAMED, HARMLESS), str(file))
