"""What a format is: how a model is written in it and read from it, and the comparison that proves both."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from bertjax.model.network import head_of
from bertjax.model.pooling import Pooling

if TYPE_CHECKING:
    from bertjax.convert.compare import Difference
    from bertjax.convert.folder import Prove
    from bertjax.convert.foreign import ForeignModel
    from bertjax.run.run_directory import TrainedModel
    from bertjax.storage.remote import AnyPath


@dataclass(frozen=True)
class Vectors:
    """How the token vectors of a text become one vector."""

    pooling: Pooling = "none"
    normalize: bool = False  # to length 1


class Compare(Protocol):
    """Compares our float32 outputs with those of the format's own system; None if it cannot be run."""

    def __call__(
        self, model: TrainedModel, folder: Path, vectors: Vectors, drawn: Collection[str] = ...
    ) -> Difference | None:
        """`drawn` names the modules that the folder lacks. Raises RuntimeError for different outputs."""


class Export(Protocol):
    """Writes a folder and returns its path."""

    def __call__(
        self, model: TrainedModel, directory: str | AnyPath, vectors: Vectors, prove: Prove | None = None
    ) -> AnyPath:
        """`prove` is called with the folder before it replaces what is there, as `written_whole` does."""


@dataclass(frozen=True)
class Format:
    """A format: one object in one module, one line in `bertjax.convert.formats`."""

    reference: str  # what the outputs are compared with, for people
    compare: Compare
    export: Export | None = None
    read: Callable[[str], ForeignModel] | None = None  # of a folder
    # Downloads what has a name that is no folder here: (the folder, the name of exactly that content).
    fetch: Callable[[str], tuple[Path, str]] | None = None
    # Fields of DataConfig by which a run uses the vocabulary of a source, kind:DIR or kind:NAME, and its folder.
    vocabulary: Callable[[str, Path], Mapping[str, Any]] | None = None
    of_texts: bool = False  # without a head an export has vectors of texts, also where no pooling is named
    pooling: Pooling | None = None  # of an export unless the user names one; None: the format has no vectors of texts
    describe: Callable[[TrainedModel, AnyPath], list[str]] = lambda model, target: []  # lines about an export
    with_head: Callable[[str], Format] | None = None  # the format for a model with this head of pretraining alone
    precisions: Mapping[str, Callable[[], Format]] = field(default_factory=dict)  # of weights -> the format with them
    gives: Callable[[TrainedModel, Vectors], str] = lambda model, vectors: ""  # outputs of an export, where it chose

    def vectors(self, model: TrainedModel, pooling: Pooling | None, normalize: bool) -> Vectors:
        """The vectors to export, where the user may have named a pooling.

        A model trained to give vectors is exported with those of its training. Raises ValueError for options that the
        format does not have.
        """
        if self.pooling is None:
            if pooling or normalize:
                raise ValueError("this format has no vectors of texts; leave --pooling and --normalize out")
            return Vectors()
        head = head_of(model.config.model)
        if (head.of_task or self.of_texts) and not head.outputs and pooling is None:
            return Vectors("mean", True)
        return Vectors(pooling or self.pooling, normalize)
