"""Official files of multiple choice data sets: SWAG's CSV and CODAH's TSV.

SWAG has a sentence and the beginning of the next one, which is put before each ending, as in the paper's experiment.
CODAH is one file without splits, or the folder of a fold with train.tsv, dev.tsv and test.tsv. The one file is split by
question: of every five distinct beginnings, three are for training, one for development and one for testing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bertjax.finetune.data.examples import TextExample, missing, split_file
from bertjax.finetune.data.tables import Columns, Notify, Row, Selection, parse_examples, read_rows

_SWAG_NAMES = {"train": ("train",), "dev": ("val", "dev"), "test": ("test",)}
_FIRST, _SECOND = "sent1", "sent2"
_ENDINGS = tuple(f"ending{number}" for number in range(4))
_CODAH_NAMES = ("codah", "full_data")
_CODAH = ("category", "start", "end0", "end1", "end2", "end3", "label")
_FIFTHS = {"train": (0, 1, 2), "dev": (3,), "test": (4,)}


def read_swag(data: Path, split: str, notify: Notify) -> list[TextExample]:
    """Read `train`, `dev` or `test` from a folder of SWAG's CSV files, or its subfolder swag.

    Raises MissingSplitError for a missing file, and ValueError as `read_table` does.
    """
    folder = data / "swag" if (data / "swag").is_dir() else data
    path = split_file(folder, _SWAG_NAMES[split], (".csv",))
    if path is None:
        raise missing(folder, split, [f"{name}.csv" for name in _SWAG_NAMES[split]])
    columns = Columns(_FIRST, ends=_ENDINGS)
    labelled = split != "test"
    label = (columns.label,)
    selection = Selection((*columns.texts, _SECOND, *(label if labelled else ())), () if labelled else label)

    def rows() -> Iterator[Row]:
        for row in read_rows(path, selection, notify):
            endings = {name: row.values[name] for name in _ENDINGS}
            full = {name: f"{row.values[_SECOND]} {end}" if end.strip() else "" for name, end in endings.items()}
            yield row._replace(values=row.values | full)

    return list(parse_examples(rows(), columns, labelled=labelled))


def read_codah(data: Path, split: str, notify: Notify) -> list[TextExample]:
    """Read `train`, `dev` or `test` of CODAH from its one file, or from a folder with it or with a fold's three files.

    Raises MissingSplitError for a missing file, and ValueError as `read_table` does.
    """
    path = data if data.is_file() else split_file(data, (split,), (".tsv",))
    whole = data.is_file() or path is None
    path = path or split_file(data, _CODAH_NAMES, (".tsv",))
    if path is None:
        raise missing(data, split, [f"{name}.tsv" for name in (split, *_CODAH_NAMES)])
    columns = Columns(_CODAH[1], ends=_CODAH[2:6])
    rows = read_rows(path, Selection((*columns.texts, columns.label), header=_CODAH), notify)
    examples = list(parse_examples(rows, columns))
    if not whole:
        return examples
    if split == "train":
        notify(
            f"{path}: one file for all splits: three fifths of its questions for training, one for dev, one for test"
        )
    starts: dict[str, int] = {}
    fifths = _FIFTHS[split]
    return [example for example in examples if starts.setdefault(example.texts[0], len(starts)) % 5 in fifths]
