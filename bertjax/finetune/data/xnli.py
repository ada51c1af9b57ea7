"""XNLI: pairs of sentences in 15 languages (Conneau et al. 2018), from the files of its two archives.

`multinli/multinli.train.LANG.tsv` (XNLI-MT-1.0) has a premise, a hypothesis and a label per line below a header, and
`contradictory` for contradiction; English is the original, the others are machine translations. `xnli.dev.tsv` and
`xnli.test.tsv` (XNLI-1.0) hold all languages, with a column `language`. Both archives may be unpacked into one folder,
with or without their own names.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from bertjax.finetune.data.examples import TextExample, missing, split_file
from bertjax.finetune.data.tables import Columns, Notify, Selection, parse_examples, read_rows

LANGUAGES = ("en", "ar", "bg", "de", "el", "es", "fr", "hi", "ru", "sw", "th", "tr", "ur", "vi", "zh")
LABELS = ("contradiction", "entailment", "neutral")

_FOLDERS = ("", "XNLI-1.0", "XNLI-MT-1.0", "XNLI-MT-1.0/multinli", "multinli")
_TRAIN = ("premise", "hypo", "label")
_COLUMNS = Columns("sentence1", "sentence2", label="gold_label", id="pairID")


def read_xnli(data: Path, split: str, notify: Notify) -> list[TextExample]:
    """Read `train`, which is English, or a set such as `dev_de`; if `data` is a file, all its languages are read.

    Raises MissingSplitError for a missing file or language, and ValueError as `read_table` does, and for a development
    set without English, which decides which run is best.
    """
    if split == "train":
        name = f"multinli.train.{LANGUAGES[0]}"
        path = data if data.is_file() else _find_file(data, name)
        if path is None:
            raise missing(data, "train", [f"{name}.tsv"])
        rows = read_rows(path, Selection(_TRAIN, header=_TRAIN), notify, suffix=".tsv")
        next(rows)  # the header; its names are ignored, as in google-research/bert
        renamed = (
            row._replace(values=row.values | {"label": row.values["label"].replace("contradictory", LABELS[0])})
            for row in rows
        )
        return list(parse_examples(renamed, Columns(_TRAIN[0], _TRAIN[1], label=_TRAIN[2])))
    kind, _, language = split.partition("_")
    name = f"xnli.{kind}"
    path = data if data.is_file() else _find_file(data, name)
    if path is None or not (data.is_file() or language):
        raise missing(data, split, [f"{name}.tsv"])
    by_language, notes = _by_language(path, path.stat().st_mtime_ns)
    if data.is_file() or language == next(iter(by_language), ""):  # once for all languages
        for note in notes:
            notify(note)
    if data.is_file():
        return [example for examples in by_language.values() for example in examples]
    if kind == "dev" and LANGUAGES[0] not in by_language:
        raise ValueError(
            f"{path}: no rows in the language {LANGUAGES[0]}, which decides which run is best; name the file as --dev "
            "to decide by all of its rows"
        )
    if language not in by_language:
        raise missing(data, split, [f"{name}.tsv with rows of the language {language}"])
    return list(by_language[language])


def _find_file(data: Path, name: str) -> Path | None:
    paths = (split_file(data / folder, (name,), (".tsv",)) for folder in _FOLDERS)
    return next(filter(None, paths), None)


@lru_cache(maxsize=2)
def _by_language(path: Path, changed: int) -> tuple[dict[str, tuple[TextExample, ...]], tuple[str, ...]]:
    """Read a file: (examples by language, notes). `changed`, its modification time, only serves as a cache key."""
    notes: list[str] = []
    selection = Selection(("language", *_COLUMNS.texts, _COLUMNS.label, _COLUMNS.id))
    rows = list(read_rows(path, selection, notes.append, suffix=".tsv"))
    by_language: dict[str, list[TextExample]] = {}
    for row, example in zip(rows, parse_examples(iter(rows), _COLUMNS), strict=True):
        by_language.setdefault(row.values["language"], []).append(example)
    return {language: tuple(examples) for language, examples in by_language.items()}, tuple(notes)
