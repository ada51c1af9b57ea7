"""Verify every file of a token store against its manifest, reporting all findings."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bertjax.storage.sums import Done
from bertjax.storage.terminal import first_names
from bertjax.text.store.manifest import (
    BLOCK_BYTES,
    DIGEST_BYTES,
    MANIFEST_FILE,
    ORIGIN_FILE,
    DigestsRecord,
    FileRecord,
    file_records,
    num_blocks,
    read_manifest,
)
from bertjax.tokenization.loading import COMPANIONS, VOCABULARY_FILES, load_tokenizer
from bertjax.tokenization.tokenizer import TextRules

_SHOWN = 3  # damaged blocks of a file


def check_store(folder: Path, done: Done = lambda more: None) -> Iterator[str]:
    """Yield a sentence for each file that differs from the manifest.

    `done` is called with the number of bytes after each block. Files are compared in blocks of 1 MiB; the sentence
    names the blocks that differ, except the holes of a copy.
    """
    try:
        manifest = read_manifest(folder)
    except ValueError as error:
        yield str(error)
        return
    files, is_copy = file_records(manifest), (folder / ORIGIN_FILE).is_file()
    for record in files:
        if finding := _check_file(folder / record["name"], record, done, is_copy):
            yield finding
    tokenizer_record = manifest["tokenizer"]
    try:
        with tempfile.TemporaryDirectory(prefix="bertjax-verify-") as copy:
            names = [name for name in (*VOCABULARY_FILES, *COMPANIONS) if (folder / name).is_file()]
            for name in names:
                shutil.copy(folder / name, copy)
            tokenizer = load_tokenizer(copy, TextRules.from_dict(tokenizer_record))
    except ValueError as error:
        yield f"{folder}: its vocabulary cannot be read: {error}"
        names = [*VOCABULARY_FILES, *COMPANIONS]
    else:
        if tokenizer.fingerprint != tokenizer_record["fingerprint"]:
            yield f"{folder / tokenizer.main_file}: not the vocabulary in the manifest"
    expected = {record["name"] for record in files} | {*names, MANIFEST_FILE, *([ORIGIN_FILE] if is_copy else [])}
    for path in sorted(folder.iterdir()):
        if path.name not in expected:
            yield f"{path}: not in the manifest; it belongs to something else, or is a leftover"


def _check_file(path: Path, record: FileRecord | DigestsRecord, done: Done, is_copy: bool) -> str:
    """Describe the damage of a file; '' if it is intact."""
    if not path.is_file():
        return "" if is_copy else f"{path}: missing"  # a copy lacks files that were not read yet
    if (size := path.stat().st_size) != record["bytes"]:
        return f"{path}: {size:,} bytes instead of {record['bytes']:,}"
    bad, digests = [], b""
    if "blocks" in record:
        digests = bytes.fromhex("".join(record["blocks"]))
    elif "digests" in record and (file := path.with_name(record["digests"]["name"])).is_file():
        digests = file.read_bytes()  # this file has its own record
    with path.open("rb") as stream:
        for number in range(num_blocks(record)):
            block, digest = stream.read(BLOCK_BYTES), digests[DIGEST_BYTES * number :][:DIGEST_BYTES]
            if hashlib.sha256(block).digest() != digest and not (is_copy and not any(block)):
                bad.append(number * BLOCK_BYTES)
            done(len(block))
    if not bad:
        return ""
    places = first_names([f"{at:,}" for at in bad], _SHOWN)
    return f"{path}: the block at byte {places} differs from the one that was written"
