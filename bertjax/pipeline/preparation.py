"""Preparing text, whole: from a config to a token store and what is in it."""

from __future__ import annotations

from dataclasses import dataclass

from bertjax.config import Config, validate
from bertjax.input.masking.marked import require_marked
from bertjax.pipeline.vocabulary import with_vocabulary
from bertjax.storage.progress import SIGNS, ProgressLine
from bertjax.storage.remote import AnyPath
from bertjax.text import prepare as store_maker
from bertjax.text.pool import Runner
from bertjax.text.store.manifest import SPLITS, read_manifest, size_of


@dataclass(frozen=True, repr=False)
class PrepareResult:
    """A token store that is there."""

    path: AnyPath
    sizes: dict[str, str]  # split -> its sentences, documents and tokens, for people
    notes: tuple[str, ...]  # about what was read

    def __repr__(self) -> str:
        """The sizes, the notes and the path, a line each."""
        lines = [f"{split}: {size}" for split, size in self.sizes.items()]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes), f"token store: {self.path}"])


def maskings_of(config: Config) -> list[str]:
    """The `data.masking` of each stage."""
    return [config.data.masking, *(stage.masking for stage in config.stages if stage.masking)]


def prepare(config: Config, *, runner: Runner | None = None) -> PrepareResult:
    """Make the token store of a config's sources, with their vocabulary, or find the one made before.

    The runner does the work; without one, `data.workers` processes of this machine do. Raises as
    `require_marked` and `bertjax.text.prepare.prepare` do.
    """
    config = with_vocabulary(validate(config))
    require_marked(config.data, maskings_of(config))
    with SIGNS.speaking("preparing the token store"):
        path = store_maker.prepare(config.data, ProgressLine(), runner)
    manifest = read_manifest(path)
    sizes = {split: size_of(manifest, split) for split in SPLITS}
    return PrepareResult(path, sizes, tuple(store_maker.reading_notes(manifest)))
