"""A folder of an export: on the disk whole, or not there."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from bertjax.convert.model_card import CARD_FILE, digest_in_card, sha256_of_file
from bertjax.text.store_writer import sync


@contextlib.contextmanager
def written_whole(target: Path) -> Iterator[Path]:
    """An empty folder beside `target` to write files into, which takes the place of `target` at the end.

    What was there makes way only then, and comes back if that fails. After an error inside, nothing has changed.
    """
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        for path in partial.rglob("*"):
            sync(path)
        _put_in_place(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def refuse_to_lose(target: Path, known: Collection[str], weights: str) -> None:
    """Raise ValueError unless `target` is free, empty, or an export whose weights are those that its card speaks of.

    `known` are the files of such an export, as paths within it, and `weights` is one of them.
    """
    if not target.exists():
        return
    advice = "choose another folder (--output), or move it away"
    if not target.is_dir():
        raise ValueError(f"export to {target}: there is a file of that name; {advice}")
    found = sorted(path.relative_to(target).as_posix() for path in target.rglob("*") if not path.is_dir())
    foreign = [name for name in found if name not in known]
    if foreign:
        raise ValueError(f"export to {target}: it holds {foreign[0]}, which is not of an export; {advice}")
    if not found:
        return
    card, file = target / CARD_FILE, target / weights
    if not (card.is_file() and file.is_file()) or digest_in_card(card, weights) != sha256_of_file(file):
        raise ValueError(f"export to {target}: {weights} there is not the one its {CARD_FILE} speaks of; {advice}")


def _put_in_place(partial: Path, target: Path) -> None:
    """Rename `partial` to `target`; an earlier export makes way first and comes back if that fails."""
    earlier = target.with_name(f".{target.name}.earlier")
    shutil.rmtree(earlier, ignore_errors=True)
    if target.exists():
        target.rename(earlier)
    try:
        partial.rename(target)
    except OSError:
        if earlier.exists():
            earlier.rename(target)
        raise
    sync(target.parent)
    shutil.rmtree(earlier, ignore_errors=True)
