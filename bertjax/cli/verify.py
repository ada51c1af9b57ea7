"""`bertjax run verify`: check a run, a checkpoint, a token store, an export or a search index against its checksums."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from bertjax.cli.advice import printable
from bertjax.cli.verb import Verb

DAMAGED = 3  # exit code

_EXIT_CODES = (
    f"Exit code 0: every file is intact; {DAMAGED}: some are not, each on a line that begins with DAMAGED; "
    "1: PATH is none of these."
)

Done = Callable[[int], object]


class Part(NamedTuple):
    """One thing to check: its display name, its bytes, and the check, which takes a progress callback."""

    name: str
    size: int
    check: Callable[[Done], Iterator[str]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="a folder of this machine: a run, one of its checkpoints/<step>, a token store, an export, a search "
        f"index. {_EXIT_CODES}",
    )


def run(arguments: argparse.Namespace) -> int:
    """Check every file of every path against its checksum, and print the damaged ones."""
    parts = [part for path in arguments.paths for part in find_parts(path)]
    from bertjax.storage.progress import ProgressLine

    progress, total, checked = ProgressLine(), sum(part.size for part in parts), 0

    def done(more: int) -> None:
        nonlocal checked
        checked += more
        progress("verifying, bytes", min(checked, total - 1), total)

    findings = 0
    for part in parts:
        messages = [printable(str(finding)) for finding in part.check(done)]
        findings += len(messages)
        verdict = f"{len(messages)} finding{'s' * (len(messages) > 1)}" if messages else "OK"
        print(*(f"DAMAGED {finding}" for finding in messages), f"{part.name}: {verdict}", sep="\n", flush=True)
    progress("verifying, bytes", total, total)
    return DAMAGED if findings else 0


def find_parts(name: str) -> list[Part]:
    """Return the parts to check at a path. Raises ValueError if bertjax did not write it."""
    from bertjax.storage.remote import is_remote

    folder = Path(name)
    if is_remote(name):
        raise ValueError(f"{name}: verify reads folders of this machine; copy it here first")
    if not folder.is_dir():
        raise ValueError(f"{name}: no such folder; {_KINDS}")
    for is_kind, parts in _BY_KIND:
        if is_kind(folder):
            return parts(folder)
    raise ValueError(f"{name}: nothing there that bertjax wrote; {_KINDS}")


_KINDS = "give a run, one of its checkpoints/<step>, a token store, an export or a search index"


def _store(folder: Path) -> list[Part]:
    from bertjax.storage.sums import folder_size
    from bertjax.text.store.verify import check_store

    return [Part(f"token store {folder}", folder_size(folder), lambda done: check_store(folder, done))]


def _sums_parts(kind: str) -> Callable[[Path], list[Part]]:
    """Return a function that makes the part of a folder with SHA256SUMS."""

    def parts(folder: Path) -> list[Part]:
        from bertjax.storage.sums import check_sums, folder_size

        return [Part(f"{kind} {folder}", folder_size(folder), lambda done: check_sums(folder, done))]

    return parts


def _checkpoint(folder: Path) -> list[Part]:
    from bertjax.run.verify import bytes_of_checkpoint, check_checkpoint

    directory = folder.absolute()
    size = bytes_of_checkpoint(directory)
    return [Part(f"checkpoint {folder}", size, lambda done: check_checkpoint(directory, done))]


def _run(folder: Path) -> list[Part]:
    """Return the parts of a run: its own files, its checkpoints and its exports."""
    from bertjax.run.verify import check_run, checkpoints_in
    from bertjax.storage.sums import SUMS_FILE

    finished = (folder / SUMS_FILE).exists()
    kind = "run" if finished else "run (not finished: config and log were read, not compared)"
    size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    own = Part(f"{kind} {folder}", size, lambda done: check_run(folder.absolute(), done))
    exports = [path for path in sorted(folder.iterdir()) if _is_export(path)]
    return [
        own,
        *(part for path in checkpoints_in(folder) for part in _checkpoint(path)),
        *(part for path in exports for part in _sums_parts("export")(path)),
    ]


def _all_checkpoints(folder: Path) -> list[Part]:
    return [part for path in sorted(folder.iterdir()) if path.name.isdecimal() for part in _checkpoint(path)]


def _has(*names: str) -> Callable[[Path], bool]:
    """Return a check for any of these names in a folder; damage may have removed the others."""
    return lambda folder: any(next(folder.glob(name), None) for name in names)


# Files that identify an export; damage may have removed some of them.
_is_export = _has(
    "SHA256SUMS", "model.safetensors", "model.onnx", "model.tflite", "1/saved_model.pb", "bert_model.ckpt.*"
)
_BY_KIND: tuple[tuple[Callable[[Path], bool], Callable[[Path], list[Part]]], ...] = (
    (_has("checkpoints"), _run),
    (lambda folder: folder.absolute().name.isdecimal() and _has("state", "metadata")(folder), _checkpoint),
    (lambda folder: folder.absolute().name in ("checkpoints", "best") and _has("[0-9]*")(folder), _all_checkpoints),
    (_has("vectors.npy", "bm25", "documents.jsonl"), _sums_parts("search index")),
    (_has("*.tokens", "*.sentences", "*.documents", "manifest.json"), _store),
    (_is_export, _sums_parts("export")),
)

VERIFY = Verb(
    add_arguments,
    run,
    example="bertjax run verify runs/quickstart",
    interrupted="nothing was changed; run the same command again to start over",
)
