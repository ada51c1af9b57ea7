"""GLUE's tasks: the official TSV files, JSON subsets, or TensorFlow Datasets.

In the official layout a split is a file named after it (train.tsv, dev_matched.tsv, ...), compressed or not, in the
data folder or in a subfolder named after the task. MRPC may also be Microsoft's files; then GLUE's dev_ids.tsv lists
the training pairs of the development set. The diagnostics (AX), which MNLI's model predicts, are diagnostic.tsv or
AX.tsv in the data folder, in its subfolder diagnostic or AX, or in MNLI's. A JSON subset has the columns `text_a`,
`text_b` and `label`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bertjax.finetune.data.examples import TextExample, missing, split_file
from bertjax.finetune.data.tables import (
    ROW_KEY,
    Columns,
    Notify,
    Row,
    Selection,
    parse_examples,
    read_rows,
    table_suffix,
)
from bertjax.text.sources import tfds

TFDS = "tfds:"
DIAGNOSTICS = "test_diagnostics"  # GLUE's AX, a test split of MNLI

_MICROSOFT = {"train": "msr_paraphrase_train", "dev": "msr_paraphrase_train", "test": "msr_paraphrase_test"}
_DEV_IDS = ("dev_ids", "mrpc_dev_ids")
_PAIR_ID = ("#1 ID", "#2 ID")
_DIAGNOSTIC_FOLDERS, _DIAGNOSTIC_FILES = ("diagnostic", "AX"), ("diagnostic", "AX", DIAGNOSTICS)


@dataclass(frozen=True)
class GlueLayout:
    """The files and columns of a task's texts and labels."""

    folder: str  # within GLUE's folder
    config: str  # of `glue` in TensorFlow Datasets
    texts: tuple[str, ...]  # columns of the TSV
    label: str = "label"
    test_id: str = "index"  # the column of the test set
    header: tuple[str, ...] = ()  # the columns of train and dev, if their files do not name them
    features: tuple[str, ...] = ()  # TensorFlow Datasets' names of the texts, if they differ
    classes: tuple[str, ...] = ()  # TensorFlow Datasets' names of the labels 0 and 1
    regression: bool = False
    skips_short: bool = False  # leave out the few broken rows of the official files, like other implementations
    microsoft: bool = False  # accept Microsoft's original files


def read_glue(layout: GlueLayout, data: Path, split: str, notify: Notify) -> list[TextExample]:
    """Read a split: `train`, `dev` or `test`, for MNLI also `dev_matched`, `test_mismatched` or `DIAGNOSTICS`.

    `data` is a folder, tfds:glue or tfds:glue/CONFIG. Raises MissingSplitError naming the folder without the split, and
    ValueError as `read_table` does.
    """
    if str(data).startswith(TFDS):
        return _read_tfds(layout, str(data), split)
    path = _find_file(layout, data, split)
    if path is None:
        raise missing(_task_folder(layout, data), split, [f"{split}.tsv", f"{split}.json"])
    if table_suffix(path) == ".json":
        columns = Columns("text_a", "text_b" if len(layout.texts) == 2 else "")
        rows = read_rows(path, Selection((*columns.texts, columns.label), (ROW_KEY,)), notify)
        return list(parse_examples(rows, columns, regression=layout.regression))
    if table_suffix(path) == ".txt":
        return _read_microsoft(layout, path, split, notify)
    return _read_tsv(layout, path, split, notify)


def has_split(layout: GlueLayout, data: Path, split: str) -> bool:
    """Check whether a split exists; for TensorFlow Datasets, whether the task is prepared."""
    if str(data).startswith(TFDS):
        return tfds.is_prepared(_tfds_name(layout, str(data)))
    return _find_file(layout, data, split) is not None


def _task_folder(layout: GlueLayout, data: Path) -> Path:
    return data / layout.folder if (data / layout.folder).is_dir() else data


def _find_file(layout: GlueLayout, data: Path, split: str) -> Path | None:
    folder = _task_folder(layout, data)
    if split == DIAGNOSTICS:
        folders = dict.fromkeys((*(data / name for name in _DIAGNOSTIC_FOLDERS), data, folder))
        return next(filter(None, (split_file(one, _DIAGNOSTIC_FILES, (".tsv",)) for one in folders)), None)
    path = split_file(folder, (split,), (".tsv", ".json"))
    if path is None and layout.microsoft:
        path = split_file(folder, (_MICROSOFT[split],), (".txt",))
    return path


def _read_tsv(layout: GlueLayout, path: Path, split: str, notify: Notify) -> list[TextExample]:
    is_test = split.startswith("test")
    columns = Columns(*layout.texts, label=layout.label, id=layout.test_id if is_test else "")
    if is_test:
        selection = Selection((*columns.texts, columns.id), (columns.label,))
    else:
        selection = Selection((*columns.texts, columns.label), (), layout.header, layout.skips_short)
    rows = read_rows(path, selection, notify)
    return list(parse_examples(rows, columns, regression=layout.regression, labelled=not is_test))


def _read_microsoft(layout: GlueLayout, path: Path, split: str, notify: Notify) -> list[TextExample]:
    columns = Columns(*layout.texts, label=layout.label)
    rows = read_rows(path, Selection((*columns.texts, columns.label, *_PAIR_ID)), notify, suffix=".tsv")
    if split == "test":
        return list(parse_examples(rows, columns))
    ids_path = split_file(path.parent, _DEV_IDS, (".tsv",))
    if ids_path is None:
        raise missing(path.parent, split, [f"{name}.tsv" for name in _DEV_IDS])
    listed = read_rows(ids_path, Selection(_PAIR_ID, header=_PAIR_ID), notify)
    in_dev = {tuple(row.values[name] for name in _PAIR_ID) for row in listed}
    split_rows = (row for row in rows if (tuple(row.values[name] for name in _PAIR_ID) in in_dev) == (split == "dev"))
    return list(parse_examples(split_rows, columns))


def _read_tfds(layout: GlueLayout, data: str, split: str) -> list[TextExample]:
    name, tfds_split = _tfds_name(layout, data), split.replace("dev", "validation")
    if split == DIAGNOSTICS:
        name, tfds_split = name.replace(f"glue/{layout.config}", "glue/ax"), "test"
    examples = tfds.examples(name, tfds_split) if split != DIAGNOSTICS or tfds.is_prepared(name) else None
    if examples is None:
        raise missing(Path(f"{TFDS}{name}"), split, [f"the split {tfds_split}"])
    columns = Columns(*(layout.features or layout.texts), id="idx")

    def rows() -> Iterator[Row]:
        for number, example in enumerate(examples, 1):
            label = example[columns.label]
            if split.startswith("test"):
                label = None  # a missing label is -1
            elif layout.regression:
                label = float(label)
            elif layout.classes and label is not None:
                label = str(layout.classes.index(label))
            values = example | {columns.label: label, columns.id: int(example[columns.id])}
            yield Row(f"{TFDS}{name}/{tfds_split}: record {number}", values)

    labelled = not split.startswith("test")
    return list(parse_examples(rows(), columns, regression=layout.regression, labelled=labelled))


def _tfds_name(layout: GlueLayout, data: str) -> str:
    """Return `glue/sst2` for tfds:glue and tfds:glue/sst2. Raises ValueError for any other name."""
    name, _, version = data.removeprefix(TFDS).partition(":")
    if name not in ("glue", f"glue/{layout.config}"):
        raise ValueError(f"{data}: not this task's data set; name {TFDS}glue/{layout.config}, or a folder")
    return f"glue/{layout.config}" + (f":{version}" if version else "")
