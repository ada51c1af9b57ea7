"""The formats of other systems: one line each. A format's module is imported when the format is used."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bertjax.storage.lean_import import require_package

if TYPE_CHECKING:
    from bertjax.convert.format import Format


@dataclass(frozen=True)
class Entry:
    """A line of the registry."""

    module: str  # has the format as `FORMAT`
    source: str = ""  # the prefix of DIR in a source to read: hf:DIR; "" if nothing is read
    exports: bool = True
    needs: tuple[tuple[str, str], ...] = ()  # modules that an export takes, each with what pip is to be given


_ONNX, _RUNTIME = ("onnx", "'bertjax[onnx]'"), ("onnxruntime", "'bertjax[onnx]'")
_TENSORFLOW, _LITERT = ("tensorflow", "tensorflow"), ("ai_edge_litert", "'bertjax[litert]'")

FORMATS: dict[str, Entry] = {
    "huggingface": Entry("bertjax.convert.huggingface.format", source="hf"),
    "tf1": Entry("bertjax.convert.tf1.format", source="tf1"),
    "sentence-transformers": Entry("bertjax.convert.sentence_transformers.format"),
    "onnx": Entry("bertjax.convert.executable.onnx_format", needs=(_ONNX,)),
    "web": Entry("bertjax.convert.executable.web_format", needs=(_ONNX, _RUNTIME)),
    "stablehlo": Entry("bertjax.convert.executable.stablehlo_format"),
    "savedmodel": Entry("bertjax.convert.executable.savedmodel_format", needs=(_TENSORFLOW,)),
    "litert": Entry("bertjax.convert.executable.litert_format", needs=(_TENSORFLOW, _LITERT)),
}


def format_of(name: str) -> Format:
    """The format of that name, one of `FORMATS`."""
    return importlib.import_module(FORMATS[name].module).FORMAT


def require_extra(name: str) -> None:
    """Raise ModuleNotFoundError, with what to install, if a format cannot be written here."""
    for module, install in FORMATS[name].needs:
        require_package(module, install, f"--to {name}")


def exported() -> tuple[str, ...]:
    """The names of the formats that a model can be written in."""
    return tuple(name for name, entry in FORMATS.items() if entry.exports)


def source_kinds() -> dict[str, str]:
    """The prefix of DIR in a source -> name of the format."""
    return {entry.source: name for name, entry in FORMATS.items() if entry.source}
