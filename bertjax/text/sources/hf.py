"""The `hf` source: a data set on the Hugging Face Hub, whose files are read in place.

`hf:OWNER/NAME[@REVISION][:CONFIG][:SPLIT][:COLUMN]`, or `hf:OWNER/NAME[@REVISION]/GLOB[:COLUMN]` for the files that a
glob matches. Configs and splits come from the data set's card, or else from the names of its folders and files, as in
Hugging Face's `datasets`. The files are Parquet, JSON Lines, CSV or text; a data set's code is never run.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bertjax.storage.hub import HubDataSet, open_data_set
from bertjax.storage.remote import is_remote
from bertjax.storage.terminal import first_names
from bertjax.text.sources import csv_rows, jsonl, parquet
from bertjax.text.sources.globs import has_name
from bertjax.text.sources.source import DEFAULT_FIELD, Source, SourceFile, SourceKind

_WRITTEN = re.compile(
    r"(?P<name>[\w.-]+/[\w.-]+)(?:@(?P<revision>refs/(?:convert|pr)/[^/:]+|[^/:]+))?(?:/(?P<glob>[^:]+))?"
    r"(?P<parts>(?::[^:]+)*)"
)
_FORM = "hf:OWNER/NAME[@REVISION][:CONFIG][:SPLIT][:COLUMN], as in hf:wikimedia/wikipedia:20231101.en"
_DATA = (*parquet.KIND.folder_names, *jsonl.KIND.folder_names, *csv_rows.KIND.folder_names, "*.json", "*.txt")
_SPLIT = "train"
# Words in names of files and folders that denote splits.
_SPLITS = {
    "train": r"train(?:ing)?",
    "validation": r"validation|valid|dev|val",
    "test": r"test(?:ing)?|eval(?:uation)?",
}
_NAMED_SPLITS = {
    split: re.compile(rf"(?:^|[^a-z])(?:{words})(?:[^a-z]|$)", re.IGNORECASE) for split, words in _SPLITS.items()
}
_NUMBERED = re.compile(r"(.*?)-?\d+-of-(\d+)\b.*")


def find(source: Source) -> list[SourceFile]:
    """Find the files of the data set, a config and a split, with their digests from the Hub.

    Raises ValueError for a malformed source, an unknown or missing config or split, and like `open_data_set`.
    """
    written = _WRITTEN.fullmatch(source.pattern)
    if not written:
        raise ValueError(f"source {source}: write {_FORM}, or hf:OWNER/NAME/GLOB:COLUMN for some of its files")
    data_set = open_data_set(written["name"], written["revision"] or "")
    parts = written["parts"].split(":")[1:]
    if written["glob"]:
        names, columns = _matching(data_set.files, [written["glob"]]), parts
    else:
        names, columns = _files_of_split(source, data_set, parts)
    if len(columns) > 1:
        raise ValueError(f"source {source}: {columns[0]!r} is neither a config nor a split of it; write {_FORM}")
    names = [name for name in names if has_name(name, _DATA)]
    column = columns[0] if columns and columns[0] != DEFAULT_FIELD else ""
    if not names:
        raise ValueError(
            f"source {source}: no text files match; its files are {first_names(data_set.files, 10)}; for a data set "
            "that a script makes, read the Hub's Parquet copy: hf:OWNER/NAME@~parquet"
        )
    if data_set.is_cached and not written["glob"]:
        _require_all(source, names)
    files = [(name, data_set.files[name]) for name in names]
    return [
        SourceFile(
            jsonl.KIND.name if has_name(name, ("*.json",)) else "",
            file.path,
            feature=column,
            listed=file.size if is_remote(file.path) else None,
            digest=file.sha256,
        )
        for name, file in files
    ]


def _files_of_split(source: Source, data_set: HubDataSet, parts: list[str]) -> tuple[list[str], list[str]]:
    """The files of the config and split at the front of `parts`, and the remaining parts."""
    configs = {config["config_name"]: config for config in data_set.configs}
    folders = {name.partition("/")[0] for name in data_set.files if "/" in name}
    if configs:
        splits = _card_splits(data_set.files, _choose_config(source, configs, parts))
        names_config = bool(parts) and parts[0] in configs
    else:
        names_config = bool(parts) and parts[0] in folders
        below = f"{parts[0]}/" if names_config else ""
        splits = _named_splits([name for name in data_set.files if name.startswith(below)])
    rest = parts[1:] if names_config else parts
    if rest and rest[0] in splits:
        return splits[rest[0]], rest[1:]
    if _SPLIT in splits or len(splits) == 1:
        return splits.get(_SPLIT) or next(iter(splits.values())), rest
    if not splits:
        return [], rest
    raise ValueError(f"source {source}: no split {_SPLIT!r}; add one of its splits, {first_names(splits, 10)}: {_FORM}")


def _choose_config(source: Source, configs: Mapping[str, Mapping[str, Any]], parts: Sequence[str]) -> Mapping[str, Any]:
    if parts and parts[0] in configs:
        return configs[parts[0]]
    default = [config for name, config in configs.items() if config.get("default") is True or name == "default"]
    if len(configs) == 1 or default:
        return (default or [*configs.values()])[0]
    what = f"{parts[0]!r} is not one of its" if parts else "it has"
    raise ValueError(f"source {source}: {what} {len(configs)} configs; add one, {first_names(configs, 10)}: {_FORM}")


def _card_splits(names: Iterable[str], config: Mapping[str, Any]) -> dict[str, list[str]]:
    """Map each split to its files by `data_files` in a card: a glob, several, or a list of {split, path}."""
    entries = config.get("data_files")
    folder = f"{config['data_dir'].strip('/')}/" if isinstance(config.get("data_dir"), str) else ""
    if not entries:
        return _named_splits([name for name in names if name.startswith(folder)])
    entries = entries if isinstance(entries, list) else [entries]
    splits: dict[str, list[str]] = {}
    for entry in entries:
        split, path = (entry.get("split", _SPLIT), entry.get("path")) if isinstance(entry, Mapping) else (_SPLIT, entry)
        globs = [folder + str(glob).removeprefix("./") for glob in (path if isinstance(path, list) else [path])]
        splits.setdefault(str(split), []).extend(_matching(names, globs))
    return {split: files for split, files in splits.items() if files}


def _named_splits(names: Iterable[str]) -> dict[str, list[str]]:
    """Map splits to data files with the most frequent suffix, by words in their names; `train` if no name has one."""
    data = [name for name in names if has_name(name, _DATA)]
    common = Counter(os.path.splitext(name)[1] for name in data).most_common(1)
    data = sorted(name for name in data if common and name.endswith(common[0][0]))
    splits = {split: [name for name in data if word.search(name)] for split, word in _NAMED_SPLITS.items()}
    return {split: files for split, files in splits.items() if files} or ({_SPLIT: data} if data else {})


def _require_all(source: Source, names: Iterable[str]) -> None:
    """Raise ValueError if some of the files named NUMBER-of-COUNT are missing, as after a partial download."""
    counts = Counter((match[1], int(match[2])) for name in names if (match := _NUMBERED.fullmatch(name)))
    for (stem, expected), present in counts.items():
        if present != expected:
            raise ValueError(
                f"source {source}: only {present} of the {expected} files {stem}* are downloaded; download the others, "
                "or name some with hf:OWNER/NAME/GLOB"
            )


def _matching(names: Iterable[str], globs: Iterable[str]) -> list[str]:
    from fsspec.utils import glob_translate

    patterns = [re.compile(glob_translate(glob)) for glob in globs]
    return sorted(name for name in names if any(pattern.match(name) for pattern in patterns))


KIND = SourceKind(
    "hf",
    read=None,  # its files are of other kinds
    example="wikimedia/wikipedia:20231101.en",
    find=find,
    has_fields=True,
    takes_encoding=True,
    needs=("huggingface_hub", "'bertjax[hf,parquet]'"),
    of_hub=True,
)
