"""Prepare the token store of a config, and describe it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertjax.config import Config, validate
from bertjax.config.plugins import use_plugins
from bertjax.input.data_notes import masking_notes, pair_notes
from bertjax.input.masking.options import require_marked
from bertjax.pipeline.vocabulary import with_vocabulary
from bertjax.storage.progress import SIGNS, ProgressLine
from bertjax.storage.remote import AnyPath
from bertjax.text import prepare as store_maker
from bertjax.text.pool import Runner
from bertjax.text.store.format import TokenStore
from bertjax.text.store.manifest import SPLITS, describe_split, read_manifest


@dataclass(frozen=True, repr=False)
class PrepareResult:
    """A finished token store."""

    path: AnyPath
    sizes: dict[str, str]  # split -> its documents, sentences and tokens, to print
    notes: tuple[str, ...]  # on changes to the text

    def __repr__(self) -> str:
        """Lines with the sizes, the notes and the path."""
        lines = [f"{split}: {size}" for split, size in self.sizes.items()]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes), f"token store: {self.path}"])


def prepare(config: Config, *, runner: Runner | None = None) -> PrepareResult:
    """Prepare the token store of a config's sources, with their vocabulary, unless it exists.

    The runner does the work; by default `data.workers` processes of this machine. Raises like `require_marked` and
    `bertjax.text.prepare.prepare`.
    """
    if config.data.store:
        raise ValueError(f"data.store={config.data.store} is a finished token store; leave it out to prepare sources")
    use_plugins(config.plugins)
    config = with_vocabulary(validate(config))
    require_marked(config.stage_data)
    with SIGNS.speaking("preparing the token store"):
        path = store_maker.prepare(config.data, ProgressLine(), runner)
    manifest = read_manifest(path)
    sizes = {split: describe_split(manifest, split) for split in SPLITS}
    notes = [*store_maker.reading_notes(manifest), *_notes_on_rows(path, manifest, config)]
    return PrepareResult(path, sizes, tuple(notes))


def _notes_on_rows(path: AnyPath, manifest: Mapping[str, Any], config: Config) -> list[str]:
    """Notes on pairs and masks that a store cannot provide; masks are checked only for a local store."""
    stages = config.stage_data
    objectives = zip(stages, config.stage_objectives, strict=True)
    notes = list(dict.fromkeys(note for data, names in objectives for note in pair_notes(manifest, [data], names)))
    if isinstance(path, Path):
        store = TokenStore.open(path)
        notes += masking_notes(store.split("train"), store.tokenizer(), stages)
    return notes
