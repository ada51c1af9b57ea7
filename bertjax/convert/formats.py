"""Registry of other systems' formats. A format's module is imported when the format is used."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from bertjax.config.registry import Registry
from bertjax.storage.lean_import import require_package

if TYPE_CHECKING:
    from bertjax.convert.compare import Difference
    from bertjax.convert.folder import Prove
    from bertjax.convert.foreign import ForeignModel
    from bertjax.model.pooling import Pooling
    from bertjax.run.run_directory import TrainedModel
    from bertjax.storage.remote import AnyPath


class Vectors(NamedTuple):
    """How the token vectors of a text become one vector."""

    pooling: Pooling = "none"
    normalize: bool = False  # to length 1


class Compare(Protocol):
    """Compares our float32 outputs with the format's own system; None if that system is not installed."""

    def __call__(
        self, model: TrainedModel, folder: Path, vectors: Vectors, untrained: Collection[str] = ()
    ) -> Difference | None:
        """`untrained` names the modules that the folder lacks. Raises RuntimeError for different outputs."""
        ...


class Export(Protocol):
    """Writes a folder and returns its path."""

    def __call__(
        self, model: TrainedModel, directory: str | AnyPath, vectors: Vectors, prove: Prove | None = None
    ) -> AnyPath:
        """`prove` is called with the new folder before it replaces an earlier one, as in `written_whole`."""
        ...


@dataclass(frozen=True)
class Format:
    """A format: one object in one module."""

    reference: str  # readable name of the system whose outputs are compared
    compare: Compare
    export: Export | None = None
    read: Callable[[str], ForeignModel] | None = None  # reads a folder
    # Downloads a name that is not a local folder; returns (folder, name pinned to the downloaded content).
    fetch: Callable[[str], tuple[Path, str]] | None = None
    # DataConfig fields for a source's vocabulary, given the source (kind:DIR or kind:NAME) and its folder.
    vocabulary: Callable[[str, Path], Mapping[str, Any]] | None = None
    needs_pooling: bool = False  # a model without a head exports text vectors even without --pooling
    pooling: Pooling | None = None  # the default of --pooling; None: the format has no vectors of texts
    describe: Callable[[TrainedModel, AnyPath], list[str]] = lambda model, target: []  # lines about an export
    with_head: Callable[[str], Format] | None = None  # the format for one head of pretraining
    precisions: Mapping[str, Callable[[], Format]] = field(default_factory=dict)  # of the weights -> format
    gives: Callable[[TrainedModel, Vectors], str] = lambda model, vectors: ""  # describes the outputs of an export

    def vectors(self, model: TrainedModel, pooling: Pooling | None, normalize: bool) -> Vectors:
        """Choose the vectors to export; a model trained for vectors defaults to the vectors of its training.

        Raises ValueError for options that the format does not have.
        """
        if self.pooling is None:
            if pooling or normalize:
                raise ValueError("this format has no vectors of texts; leave --pooling and --normalize out")
            return Vectors()
        from bertjax.model.network import network_class

        head = network_class(model.config.model)
        if (head.of_task or self.needs_pooling) and not head.outputs and pooling is None:
            return Vectors("mean", True)
        return Vectors(pooling or self.pooling, normalize)


class Entry(NamedTuple):
    """A line of the registry."""

    module: str  # defines the format as `FORMAT`
    source: str = ""  # prefix of a source, as in hf:DIR; "" if the format cannot be read
    exports: bool = True
    needs: tuple[tuple[str, str], ...] = ()  # modules that an export imports, each with its argument to pip install


_ONNX, _RUNTIME = ("onnx", "'bertjax[onnx]'"), ("onnxruntime", "'bertjax[onnx]'")
_TENSORFLOW, _LITERT = ("tensorflow", "tensorflow"), ("ai_edge_litert", "'bertjax[litert]'")

_ALL = {
    "huggingface": Entry("bertjax.convert.huggingface.huggingface_format", source="hf"),
    "tf1": Entry("bertjax.convert.tf1.tf1_format", source="tf1"),
    "sentence-transformers": Entry("bertjax.convert.sentence_transformers.sentence_format"),
    "onnx": Entry("bertjax.convert.executable.onnx_format", needs=(_ONNX,)),
    "web": Entry("bertjax.convert.executable.web_format", needs=(_ONNX, _RUNTIME)),
    "stablehlo": Entry("bertjax.convert.executable.stablehlo_format"),
    "savedmodel": Entry("bertjax.convert.executable.savedmodel_format", needs=(_TENSORFLOW,)),
    "litert": Entry("bertjax.convert.executable.litert_format", needs=(_TENSORFLOW, _LITERT)),
}
FORMATS = Registry("formats", _ALL, Entry)


def load_format(name: str) -> Format:
    """Import a format by its name in `FORMATS`."""
    return importlib.import_module(FORMATS[name].module).FORMAT


def require_extra(name: str) -> None:
    """Raise ModuleNotFoundError, with what to install, if a format cannot be written here."""
    for module, install in FORMATS[name].needs:
        require_package(module, install, f"--to {name}")


class ExportNames:
    """Names of the formats that models can be exported to; entry points are scanned only for an unknown name."""

    def __iter__(self) -> Iterator[str]:
        return (name for name in FORMATS.at_hand() if FORMATS[name].exports)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in FORMATS and FORMATS[name].exports


def source_kinds(names: Iterable[str] = FORMATS) -> dict[str, str]:
    """Prefix of a source, such as "hf" -> name of the format."""
    return {FORMATS[name].source: name for name in names if FORMATS[name].source}
