"""The vocabulary of a run: the named one, or one trained on the training documents of the sources."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from bertjax.config import DataConfig
from bertjax.storage import hub
from bertjax.storage.atomic_directories import exclusive_lock, is_complete, removed_on_error, require_inputs
from bertjax.storage.files import read_whole, write_durably
from bertjax.storage.json_documents import Sha256, read_json
from bertjax.storage.progress import Progress, no_progress
from bertjax.storage.remote import AnyPath, is_remote, to_path
from bertjax.text.corpus import Corpus, Unit, with_draws
from bertjax.text.division import Division, divide
from bertjax.text.groups import read_groups
from bertjax.text.marks import warn_of_stripped_accents
from bertjax.text.pool import Runner, processes
from bertjax.text.readable import readable_corpus, reporting_unreadable
from bertjax.text.sources.registry import parse_sources, read_documents, require_text
from bertjax.text.store.manifest import json_sha256
from bertjax.tokenization import huggingface
from bertjax.tokenization.loading import COMPANIONS, VOCABULARY_FILES, files_with, load_tokenizer
from bertjax.tokenization.tokenizer import TextRules, Tokenizer
from bertjax.tokenization.training import TRAINER_VERSION, count_for, parse_kind, smoothed, train_tokenizer

KEEPING_VERSION = 2  # of vocabularies stored beside trained ones
READING_VERSION = 3  # of reading, sentence splitting and units; a change makes new stores


def prepare_vocabulary(data: DataConfig, progress: Progress = no_progress, runner: Runner | None = None) -> AnyPath:
    """Return the vocabulary of a run: `data.vocab`, or one trained on the training documents of the sources.

    A trained one is stored in `<root>/vocab-<fingerprint>/`, with a record of how it was made. Raises ValueError for
    text or a vocabulary that does not fit, OSError if the disk is full.
    """
    require_text(parse_sources(data.sources))
    runner = runner or processes(data.workers)
    if data.vocab:
        return resolve_vocabulary(data, None, None, progress, runner)
    corpus = readable_corpus(data, progress, runner)
    with reporting_unreadable(corpus, progress, runner):
        return resolve_vocabulary(data, corpus, divide(corpus, data), progress, runner)


def resolve_vocabulary(
    data: DataConfig, corpus: Corpus | None, division: Division | None, progress: Progress, runner: Runner
) -> AnyPath:
    """Like `prepare_vocabulary`, with the corpus and its division, which are needed only without `data.vocab`."""
    vocab = _without_entities(data, corpus, division, progress, runner)
    if not data.entity_map:
        return vocab
    tokenizer, added = vocabulary_with_entities(data, vocab), added_words(vocab)
    record = {"entity_map": data.entity_map} | ({} if added is None else {"added_words": added})
    return _store_named(data, tokenizer, record)


def _without_entities(
    data: DataConfig, corpus: Corpus | None, division: Division | None, progress: Progress, runner: Runner
) -> AnyPath:
    """The named vocabulary, or a trained one, before `data.entity_map` is applied."""
    if data.vocab.startswith(hub.PREFIX):
        return _store_named(data, load_vocabulary(data.vocab, TextRules.of(data)), {"vocab": data.vocab})
    if data.vocab:
        load_vocabulary(data.vocab, TextRules.of(data))
        return to_path(data.vocab)
    kind, argument = parse_kind(data.tokenizer)
    if (tokenizer := kind.build(argument)) is not None:
        return _store_named(data, tokenizer, {"tokenizer": data.tokenizer})
    assert corpus is not None and division is not None
    inputs_json = {
        "sources": corpus.description(),
        **division.inputs(),
        "lowercase": data.lowercase,
        "strip_accents": data.strip_accents,
        "vocab_size": data.vocab_size,
        "versions": [TRAINER_VERSION, READING_VERSION],
    }
    if data.tokenizer != "wordpiece":
        inputs_json["tokenizer"] = data.tokenizer
    if data.tokenizer == "byte_bpe" and data.special_tokens != "<s>":
        inputs_json["special_tokens"] = data.special_tokens
    if data.tokenizer in ("unigram", "bpe"):
        inputs_json["sentencepiece"] = importlib.metadata.version("sentencepiece")
    if data.vocab_temperature != 1:
        inputs_json["vocab_temperature"] = data.vocab_temperature
    return find_or_make(
        data, json_sha256(inputs_json), lambda: _train_vocabulary(corpus, division, data, progress, runner)
    )


def _store_named(data: DataConfig, tokenizer: Tokenizer, record: Mapping[str, Any]) -> AnyPath:
    """Store a vocabulary that was not trained here in the form of a trained one; `record` describes how it was made."""
    inputs = json_sha256({"tokenizer": tokenizer.fingerprint, "version": KEEPING_VERSION})
    return find_or_make(data, inputs, lambda: (tokenizer, {"sources": list(data.sources), **record}))


def find_or_make(data: DataConfig, inputs: str, make: Callable[[], tuple[Tokenizer, Mapping[str, Any]]]) -> AnyPath:
    """Return the main file of the vocabulary with these inputs under `data.root`; makes it if it does not exist.

    `make` returns the tokenizer and a record of how it was made. Raises ValueError if files of an existing vocabulary
    have changed.
    """
    folder = to_path(data.root) / f"vocab-{inputs[:12]}"
    with exclusive_lock(to_path(data.root), folder.name):
        if is_complete(folder, "made.json"):
            _require_vocabulary(folder, inputs)
        else:
            _write_vocabulary(folder, inputs, *make())
    return folder / next(iter(_read_record(folder)["files"]))


def vocabulary_with_entities(data: DataConfig, vocab: str | AnyPath) -> Tokenizer:
    """Load the tokenizer of a vocabulary and add the map of `data.entity_map`.

    Raises ValueError for a vocabulary other than WordPiece, a missing file, or a map that does not fit.
    """
    tokenizer, path = load_vocabulary(vocab, TextRules.of(data)), to_path(data.entity_map)
    setting = f"data.entity_map={data.entity_map!r}"
    if not path.is_file():
        raise ValueError(f"{setting}: no such file; a map has on each line a surface form, a tab and a token")
    return tokenizer.with_entities(read_whole(path) or b"\n", setting)


def load_vocabulary(vocabulary: str | AnyPath, rules: TextRules) -> Tokenizer:
    """Like `load_tokenizer`, also for remote files, and for `hf:DIR` and `hf:NAME`, which define their own rules."""
    if isinstance(vocabulary, str) and vocabulary.startswith(hub.PREFIX):
        folder = Path(vocabulary.removeprefix(hub.PREFIX)).expanduser()
        return _load_cached(vocabulary, rules, _stamps(folder, huggingface.FILES))
    path = to_path(vocabulary) if isinstance(vocabulary, str) else vocabulary
    if isinstance(path, Path):
        return _load_cached(path, rules, _stamps(path, (*VOCABULARY_FILES, *COMPANIONS)))
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        try:
            companions = [name for name in COMPANIONS if path.with_name(name).is_file()]
            for name in {*files_with(path.name), *companions}:
                copy.with_name(name).write_bytes(path.with_name(name).read_bytes())
            return load_tokenizer(copy, rules)
        except FileNotFoundError as error:
            raise ValueError(f"vocabulary {error}") from None
        except ValueError as error:
            raise ValueError(str(error).replace(str(copy), str(path))) from None


# A command loads its vocabulary several times, but must request a Hub repository only once.
@functools.lru_cache(maxsize=4)
def _load_cached(vocabulary: str | Path, rules: TextRules, stamps: tuple[tuple[int, ...], ...]) -> Tokenizer:
    return huggingface.read_vocabulary(vocabulary) if isinstance(vocabulary, str) else load_tokenizer(vocabulary, rules)


def _stamps(path: Path, names: Iterable[str]) -> tuple[tuple[int, ...], ...]:
    """Stamps that change when `path`, or a file with one of these names in its folder, changes."""
    folder = path if path.is_dir() else path.parent
    files = [path, *(folder / name for name in names)]
    stats = [file.stat() for file in files if file.exists()]
    return tuple((stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for stat in stats)


def _train_vocabulary(
    corpus: Corpus, division: Division, data: DataConfig, progress: Progress, runner: Runner
) -> tuple[Tokenizer, dict[str, Any]]:
    if data.strip_accents:
        warn_of_stripped_accents(corpus.files, parse_kind(data.tokenizer)[0].recomposes)
    counts, share = count_corpus(corpus, data, progress, runner, division)
    words = smoothed(counts, data.vocab_temperature)
    report = partial(progress, "training the vocabulary, entries")
    tokenizer = train_tokenizer(data.tokenizer, words, data.vocab_size, TextRules.of(data), report)
    return tokenizer, {
        "sources": [str(source) for source in corpus.sources],
        "asked_vocab_size": data.vocab_size,
        "words": words.total(),
        "distinct_words": len(words),
        "share_of_documents": share,
    }


def count_corpus(
    corpus: Corpus, data: DataConfig, progress: Progress, runner: Runner, division: Division | None = None
) -> tuple[list[Counter[str]], float]:
    """Count the words of each source's training documents. Returns the counts and the share of documents read.

    Without a division, documents stay whole and a share of `data.held_out` of them is not counted.
    """
    share = min(1.0, parse_kind(data.tokenizer)[0].text_bytes / max(corpus.text_bytes, 1))
    count = partial(_count_unit, data=data, share=share, division=division)
    counts: list[Counter[str]] = [Counter() for _ in corpus.sources]
    total, done = sum(unit.size for unit in corpus.units), 0
    for unit, unit_counts in runner(count, corpus.units, "counting words"):
        counts[unit.source].update(unit_counts)
        done += unit.size
        progress("counting words, bytes", done, total)
    corpus.require_unchanged()
    return counts, share


def _write_vocabulary(folder: AnyPath, inputs: str, tokenizer: Tokenizer, record: Mapping[str, Any]) -> None:
    """Write a vocabulary and its record; the folder appears atomically."""
    document = {
        "inputs": inputs,
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in tokenizer.files.items()},
        "vocab_size": tokenizer.vocab_size,
        **tokenizer.rules.described(),
        **record,
    }
    unfinished = folder if is_remote(folder) else folder.with_name(f"{folder.name}.partial")
    with removed_on_error(unfinished, lambda: sum(map(len, tokenizer.files.values()))):
        unfinished.mkdir(exist_ok=True)
        for name, content in tokenizer.files.items():
            write_durably(unfinished / name, content)
        write_durably(unfinished / "made.json", json.dumps(document, indent=1).encode())
        if isinstance(unfinished, Path):
            unfinished.rename(str(folder))


def _count_unit(unit: Unit, data: DataConfig, share: float, division: Division | None = None) -> Counter[str]:
    """Count the words of a unit's training documents, or of a share of them."""
    division = division or Division(data.held_out)
    groups = read_groups(division.groups) if division.groups else None

    def texts() -> Iterator[str]:
        for file in unit.files:
            for document, (held, sampled) in with_draws(read_documents(file, longest=division.longest), groups):
                if held >= division.held_out and sampled < share:
                    yield document.text

    return count_for(data.tokenizer, texts(), TextRules.of(data))


def added_words(vocab: AnyPath) -> list[str] | None:
    """The words that `extend_vocabulary` added to a vocabulary; None if it was not extended."""
    record = vocab / "made.json" if isinstance(vocab, Path) and vocab.is_dir() else vocab.with_name("made.json")
    return read_json(record, _Extended).get("added_words") if record.is_file() else None


class _Extended(TypedDict):
    added_words: NotRequired[list[str]]


class _Record(_Extended):
    """The record in `made.json`, with the SHA-256 of each file, the main one first."""

    inputs: str
    files: dict[str, Sha256]


def _read_record(folder: AnyPath) -> _Record:
    return read_json(folder / "made.json", _Record, remedy="delete the folder")


def _require_vocabulary(folder: AnyPath, inputs: str) -> None:
    """Raise ValueError unless the folder holds the unchanged vocabulary for these inputs."""
    try:
        record = _read_record(folder)
        digests = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in record["files"]}
    except (FileNotFoundError, ValueError):
        raise ValueError(f"vocabulary {folder}: a file is missing or damaged; delete the folder") from None
    require_inputs(record["inputs"], inputs, folder)
    for name, digest in record["files"].items():
        if digests[name] != digest:
            raise ValueError(
                f"vocabulary {folder / name} was changed after it was made; delete the folder, or name the file in "
                "data.vocab to use it as it is"
            )


def vocabulary_size(data: DataConfig) -> tuple[int, str]:
    """The number of entries, and a phrase on where it comes from.

    Taken from the file of `data.vocab` if it can be read, else from a vocabulary that `data.tokenizer` names, else
    `data.vocab_size`.
    """
    reason = ""
    if data.vocab:
        try:
            size = load_vocabulary(data.vocab, TextRules.of(data)).vocab_size
            return size, f"vocabulary of {size:,} entries, from {data.vocab}"
        except (ValueError, OSError, ImportError) as error:
            reason = f" ({str(error).splitlines()[0]})"
    else:
        kind, argument = parse_kind(data.tokenizer)
        if (tokenizer := kind.build(argument)) is not None:
            return tokenizer.vocab_size, f"vocabulary of {tokenizer.vocab_size:,} entries, from {data.tokenizer}"
    return data.vocab_size, f"vocabulary of {data.vocab_size:,} entries, from data.vocab_size{reason}"
