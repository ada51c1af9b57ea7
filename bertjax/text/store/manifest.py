"""The manifest of a token store: its fields, its fingerprint, and its validation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import numpy as np

from bertjax.storage.json_documents import Between, Count, Sha256, checked, read_json
from bertjax.storage.remote import AnyPath

MANIFEST_FILE = "manifest.json"
ORIGIN_FILE = "origin"
FORMAT_VERSIONS = (1, 2)  # 2: digests of a large file's blocks are in a separate file
ARRAYS_VERSION = 1  # of the array files
BLOCK_BYTES = 1 << 20
DIGEST_BYTES = 32  # of a block, in a file of digests
PARTS = ("tokens", "sentences", "documents")
# Optional arrays of one value per token.
PLANES = {"continues": "|b1", "phrases": "|b1", "entities": "|b1"}
OFFSET_DTYPE = "<i8"
GROUPS, GROUP_DTYPE = "groups", "<u8"  # an array of one value per document, for stores that have groups
WINDOW_TOKENS = 1 << 29  # tokens that a run reads at a time (`bertjax.input.windows`)

SplitName = Literal["train", "held_out"]
SPLITS: tuple[SplitName, ...] = ("train", "held_out")

_MOST_BYTES = 1 << 30  # of a manifest: about 1 kB for each shard of a split
_NOT_CONTENT = ("fingerprint", "provenance", "provenance_sha256")
_AGAIN = "delete the store and prepare it again"


class DigestsRecord(TypedDict):
    """A file with the SHA-256 of each block of another file, 32 bytes each; `blocks` are its own."""

    name: Annotated[str, Between(1, 255)]
    bytes: Count
    sha256: Sha256
    blocks: list[Sha256]


class FileRecord(TypedDict):
    """A file of a shard, with the SHA-256 of its blocks, or with the file that holds them."""

    name: Annotated[str, Between(1, 255)]
    bytes: Count
    sha256: Sha256
    blocks: NotRequired[list[Sha256]]
    digests: NotRequired[DigestsRecord]


class ShardRecord(TypedDict):
    """A shard; `files` is keyed by part or plane."""

    documents: Count
    sentences: Count
    tokens: Count
    works: NotRequired[list[Count]]
    files: dict[str, FileRecord]


class SplitRecord(TypedDict):
    """A split and its shards in order."""

    documents: Count
    sentences: Count
    tokens: Count
    shards: list[ShardRecord]


class _Splits(TypedDict):
    train: SplitRecord
    held_out: SplitRecord


class TokenizerRecord(TypedDict):
    """The tokenizer, with the rules that `TextRules.from_dict` reads."""

    fingerprint: str
    vocab_size: Annotated[int, Between(1, 1 << 32)]
    special: dict[str, Count]
    lowercase: bool
    strip_accents: bool
    unknown: NotRequired[Literal["words", "characters"]]
    prefix_space: NotRequired[bool]
    special_tokens: NotRequired[Literal["<s>", "[CLS]"]]


class _Provenance(TypedDict):
    shard_sources: NotRequired[dict[str, list[Count]]]
    sources: NotRequired[list[Any]]
    source_names: NotRequired[list[str]]
    units: NotRequired[list[str] | dict[str, Any] | None]
    token_counts: NotRequired[dict[str, FileRecord]]


class Manifest(TypedDict):
    """The keys of a manifest; `provenance` describes where the text came from."""

    format_version: Literal[1, 2]
    fingerprint: str
    tokenizer: TokenizerRecord
    token_dtype: Literal["<u2", "<u4"]
    block_bytes: Literal[1_048_576]
    splits: _Splits
    planes: NotRequired[dict[str, str]]
    provenance: _Provenance
    provenance_sha256: NotRequired[Sha256]


def token_dtype(vocab_size: int) -> str:
    """The smallest unsigned dtype that holds every id."""
    return "<u2" if vocab_size <= 1 << 16 else "<u4"


def content_fingerprint(manifest: Mapping[str, Any]) -> str:
    """SHA-256 (hex) of a store's content: its manifest without the provenance."""
    return json_sha256({key: value for key, value in manifest.items() if key not in _NOT_CONTENT})


def json_sha256(value: Any) -> str:
    """SHA-256 (hex) of a JSON value, independent of its formatting."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read_manifest(path: AnyPath) -> dict[str, Any]:
    """Read and validate the manifest of a store, of type `Manifest`.

    Raises ValueError if it is missing, changed or in another format version, and for a value with a wrong type or that
    contradicts another, which is named.
    """
    remedy = f"manifest.json is damaged; {_AGAIN}"
    try:
        document: dict[str, Any] = read_json(path / MANIFEST_FILE, remedy=remedy, most_bytes=_MOST_BYTES)
        if (version := document.get("format_version")) not in FORMAT_VERSIONS and isinstance(version, int):
            raise ValueError(
                f"token store {path}: format version {version!r}; this program reads up to {FORMAT_VERSIONS[-1]}; "
                "prepare it again"
            )
        manifest: dict[str, Any] = checked(document, Manifest, f"token store {path}", remedy=remedy)
    except FileNotFoundError:
        raise ValueError(f"token store {path}: no manifest.json in it; make a store with `bertjax prepare`") from None
    if unknown := manifest.keys() - Manifest.__annotations__:
        raise ValueError(f"token store {path}: {min(unknown)} is not a key of a manifest; {remedy}")
    if content_fingerprint(manifest) != manifest["fingerprint"]:
        raise ValueError(f"token store {path}: its fingerprint does not match its content; {remedy}")
    if manifest.get("provenance_sha256", digest := json_sha256(manifest["provenance"])) != digest:
        raise ValueError(f"token store {path}: provenance does not match provenance_sha256; {remedy}")
    if contradiction := next(_contradictions(manifest), ""):
        raise ValueError(f"token store {path}: {contradiction}; {remedy}")
    return manifest


def file_records(manifest: Mapping[str, Any]) -> list[FileRecord | DigestsRecord]:
    """The records of all array files and digest files."""
    files = [file for _, shard in _shards(manifest) for file in shard_files(shard)]
    return [*files, *manifest["provenance"].get("token_counts", {}).values()]


def shard_files(shard: Mapping[str, Any]) -> Iterator[FileRecord | DigestsRecord]:
    """The records of the files of a shard."""
    for file in shard["files"].values():
        yield file
        if "digests" in file:
            yield file["digests"]


def num_blocks(file: FileRecord | DigestsRecord) -> int:
    """The number of blocks of a file."""
    return -(-file["bytes"] // BLOCK_BYTES)


def describe_split(manifest: Mapping[str, Any], split: SplitName) -> str:
    """Describe the size of a split: documents, sentences, tokens."""
    record = manifest["splits"][split]
    return f"{record['documents']:,} documents, {record['sentences']:,} sentences, {record['tokens']:,} tokens"


def _shards(manifest: Mapping[str, Any]) -> Iterator[tuple[str, ShardRecord]]:
    for split in SPLITS:
        for number, shard in enumerate(manifest["splits"][split]["shards"]):
            yield f"splits.{split}.shards[{number}]", shard


def _block_contradictions(at: str, file: FileRecord | DigestsRecord) -> Iterator[str]:
    if ("blocks" in file) == ("digests" in file):
        yield f"{at} needs either blocks or digests"
    elif "blocks" in file:
        if len(file["blocks"]) != num_blocks(file):
            yield f"{at}.blocks has {len(file['blocks']):,} digests for {file['bytes']:,} bytes"
    elif "digests" in file and file["digests"]["bytes"] != DIGEST_BYTES * num_blocks(file):
        yield f"{at}.digests has {file['digests']['bytes']:,} bytes for the digests of {num_blocks(file):,} blocks"
    elif "digests" in file:
        yield from _block_contradictions(f"{at}.digests", file["digests"])


def _contradictions(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each contradiction between values of a manifest, whose types are right."""
    sizes = {
        "tokens": np.dtype(manifest["token_dtype"]).itemsize,
        "sentences": 8,
        "documents": 8,
        GROUPS: 8,
    } | dict.fromkeys(PLANES, 1)
    counted = {"sentences": "sentences", "documents": "documents", GROUPS: "documents"}
    seen = {"..", ".", MANIFEST_FILE, ORIGIN_FILE}
    for where, shard in _shards(manifest):
        if lacks := [part for part in PARTS if part not in shard["files"]]:
            yield f"{where}.files has no {lacks[0]}"
        for part, file in shard["files"].items():
            at = f"{where}.files.{part}"
            if part not in sizes:
                yield f"{at} is not an array of a store"
                continue
            elements = shard[counted.get(part, "tokens")]
            if file["bytes"] != (elements + (part in ("sentences", "documents"))) * sizes[part]:
                yield f"{at}.bytes is {file['bytes']:,}, which is not the size of {elements:,} {part}"
            yield from _block_contradictions(at, file)
            for name in (file["name"], *([file["digests"]["name"]] if "digests" in file else [])):
                if _leaves_folder(name) or name in seen:
                    yield f"{at}.name is {name!r}, which is outside the folder or names another file too"
                seen.add(name)
        if "works" in shard and sum(shard["works"]) != shard["documents"]:
            yield f"{where}.works count {sum(shard['works']):,} documents, but there are {shard['documents']:,}"
    for split, file in manifest["provenance"].get("token_counts", {}).items():
        is_own = not _leaves_folder(file["name"]) and file["name"] not in seen
        if split not in SPLITS or file["bytes"] != 8 * manifest["tokenizer"]["vocab_size"] or not is_own:
            yield f"provenance.token_counts.{split} is not a file with a count for each token"
        yield from _block_contradictions(f"provenance.token_counts.{split}", file)
        seen.add(file["name"])
    for split in SPLITS:
        record = manifest["splits"][split]
        for key in ("documents", "sentences", "tokens"):
            if record[key] != sum(shard[key] for shard in record["shards"]):
                yield f"splits.{split}.{key} is {record[key]:,}, which is not the sum of its shards"
        homes = manifest["provenance"].get("shard_sources", {}).get(split)
        if homes is not None and len(homes) != len(record["shards"]):
            yield f"provenance.shard_sources.{split} does not have {len(record['shards'])} shards"
    special, vocab_size = manifest["tokenizer"]["special"], manifest["tokenizer"]["vocab_size"]
    if bad := [role for role, number in special.items() if number >= vocab_size]:
        yield f"tokenizer.special.{bad[0]} is {special[bad[0]]:,}, but there are only {vocab_size:,} tokens"


def _leaves_folder(name: str) -> bool:
    return "/" in name or "\0" in name
