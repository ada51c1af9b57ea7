"""The `tfds` source: the examples of a data set that TensorFlow Datasets prepared, file by file.

The prepared files are read in place; nothing is downloaded or built, and no code of the data set is imported.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from bertjax.storage.lean_import import import_tensorflow
from bertjax.storage.utf8 import ReadCounts, Utf8
from bertjax.text.documents import split_paragraphs
from bertjax.text.sources.source import DEFAULT_FIELD, Paragraphs, Source, SourceFile, SourceKind

PUBLIC_COPY = "gs://tfds-data/datasets"
SPLIT = "train"
_VERSION = re.compile(r"\d+\.\d+\.\d+")


def data_dir() -> Path:
    """The directory of prepared data sets: $TFDS_DATA_DIR, else the default of TensorFlow Datasets."""
    return Path(os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")).expanduser()


def find(source: Source) -> list[SourceFile]:
    """Find the files of the train split of `NAME[/CONFIG][:VERSION][:FEATURE]`, in order.

    Raises ValueError if the data set is not prepared, with where to get it, or has no such text feature.
    """
    name, feature = _parse(source.pattern)
    builder = _builder(_directory(name))
    texts = sorted(key for key, kind in builder.info.features.items() if _is_text(kind))
    feature = feature or (DEFAULT_FIELD if DEFAULT_FIELD in texts or len(texts) != 1 else texts[0])
    if feature not in texts:
        raise ValueError(
            f"source {source}: no text feature {feature!r}; it has {', '.join(texts) or 'none'}. Write "
            f"tfds:{name}:FEATURE"
        )
    if SPLIT not in builder.info.splits:
        raise ValueError(f"source {source}: no split {SPLIT!r}; it has {', '.join(builder.info.splits)}")
    paths = sorted(str(path) for path in builder.info.splits[SPLIT].filepaths)
    return [SourceFile(source.kind, path, feature=feature) for path in paths]


def read(file: SourceFile, counts: ReadCounts) -> Paragraphs:
    """Read each example as a document, in order; its lines are paragraphs.

    Raises ValueError naming the file if it is damaged, and the first example whose text is not UTF-8.
    """
    path, feature = file.path, file.feature
    features = _builder(Path(path).parent).info.features
    utf8 = Utf8(path, f"is {feature} really text? Prepare the data set again, or name another feature", counts)
    for number, record in enumerate(_records(path)):
        text = features.deserialize_example_np(record)[feature]
        yield from split_paragraphs(text if isinstance(text, str) else utf8.decode(text, record=f"example {number}, "))
    utf8.finish()


def is_prepared(name: str) -> bool:
    """Whether any version of a data set, NAME[/CONFIG][:VERSION], is prepared in `data_dir`."""
    root = data_dir() / name.partition(":")[0]
    return root.is_dir() and any(_is_prepared(entry) for entry in root.iterdir())


def examples(name: str, split: str) -> Iterator[dict[str, Any]] | None:
    """Yield the examples of a split of NAME[/CONFIG][:VERSION] in order; returns None if there is no such split.

    Texts and class names are str, a missing label is None, other features are NumPy's. Raises ValueError if the data
    set is missing, with where to get it, is damaged, or has text that is not UTF-8.
    """
    info = _builder(_directory(name)).info
    if split not in info.splits:
        return None
    paths = sorted(str(path) for path in info.splits[split].filepaths)
    return (_as_python(path, record, info.features) for path in paths for record in _records(path))


def _as_python(path: str, record: bytes, features: Any) -> dict[str, Any]:
    import tensorflow_datasets

    values = features.deserialize_example_np(record)
    for key, kind in features.items():
        if _is_text(kind) and isinstance(values[key], bytes):
            try:
                values[key] = values[key].decode()
            except UnicodeDecodeError as error:
                raise ValueError(f"{path}: {key} is not UTF-8: {error.reason}; prepare the data set again") from None
        elif isinstance(kind, tensorflow_datasets.features.ClassLabel):
            values[key] = kind.int2str(int(values[key])) if values[key] >= 0 else None
    return values


def _parse(pattern: str) -> tuple[str, str]:
    """Split a pattern into the name with config and version, and the feature or ''."""
    name, *rest = pattern.split(":")
    if rest and _VERSION.fullmatch(rest[0]):
        name = f"{name}:{rest.pop(0)}"
    if len(rest) > 1 or not name:
        raise ValueError(f"source tfds:{pattern}: write tfds:NAME[/CONFIG][:VERSION][:FEATURE]")
    return name, rest[0] if rest else ""


def _directory(name: str) -> Path:
    """The folder of the newest or requested version of a data set."""
    path, _, version = name.partition(":")
    root = data_dir() / path
    versions = [entry for entry in root.iterdir() if _is_prepared(entry)] if root.is_dir() else []
    if version:
        versions = [entry for entry in versions if entry.name == version]
    if not versions:
        raise ValueError(
            f"source tfds:{name}: not prepared in data_dir {data_dir()} (set TFDS_DATA_DIR to look elsewhere). Copy it "
            f"there from the public bucket: `mkdir -p {root.parent} && gcloud storage cp -r {PUBLIC_COPY}/{path} "
            f"{root.parent}/`; "
            "or use text that you have: wikiextractor:GLOB for Wikipedia, text:GLOB for books"
        )
    return max(versions, key=lambda entry: tuple(map(int, entry.name.split("."))))


def _is_prepared(folder: Path) -> bool:
    return bool(_VERSION.fullmatch(folder.name)) and (folder / "dataset_info.json").is_file()


@lru_cache(maxsize=8)
def _builder(folder: Path) -> Any:
    import tensorflow_datasets

    return tensorflow_datasets.builder_from_directory(str(folder))


def _is_text(feature: object) -> bool:
    import tensorflow_datasets

    return isinstance(feature, tensorflow_datasets.features.Text)


def _records(path: str) -> Iterator[bytes]:
    """Yield the serialized examples of a TFRecord or ArrayRecord file, in order."""
    if ".array_record" in Path(path).name:
        from array_record.python.array_record_module import ArrayRecordReader

        try:
            reader = ArrayRecordReader(path)
            for number in range(reader.num_records()):
                yield reader.read([number])[0]
            reader.close()
        except (RuntimeError, ValueError, IndexError) as error:
            raise ValueError(f"{path}: damaged ArrayRecord file: {str(error).splitlines()[0]}") from None
        return
    tf = import_tensorflow(required=True)
    try:
        yield from tf.data.TFRecordDataset(path).as_numpy_iterator()
    except tf.errors.OpError as error:
        raise ValueError(f"{path}: damaged TFRecord file: {str(error).splitlines()[0]}") from None


KIND = SourceKind(
    "tfds",
    read,
    example="wikipedia/20230601.en",
    find=find,
    needs=("tensorflow_datasets", "tensorflow tensorflow-datasets"),
)
