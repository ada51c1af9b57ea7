"""Export a run's model to the format of another framework, compared with that framework on real text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bertjax.convert.compare import Difference, comparison_line
from bertjax.convert.folder import Prove, near
from bertjax.convert.foreign import module_label
from bertjax.convert.formats import Format, Vectors, load_format, require_extra
from bertjax.convert.sources import load_own_run
from bertjax.embed.encoder import require_trained
from bertjax.model.pooling import Pooling
from bertjax.run.run_directory import TrainedModel
from bertjax.storage.hub import push, require_pushable
from bertjax.storage.remote import AnyPath, to_path


@dataclass(frozen=True)
class ExportOptions:
    """The format, content and destination of an export. `None` means the format's default."""

    to: str = "huggingface"  # a format: sentence-transformers, onnx, ... (`bertjax export --help`)
    output: str = ""  # the folder to write; empty: RUN/<format>, with -<precision> and -generator
    pooling: Pooling | None = None  # how token vectors become one vector
    normalize: bool = False  # scale that vector to length 1
    head: str = ""  # huggingface: the pretraining head to write, `pretraining` (all) or `encoder` (none)
    precision: str = ""  # of weights, for onnx, litert and web: float32, float16, int8
    generator: bool = False  # the generator that an ELECTRA was trained with
    push: str = ""  # also upload it to this repository of the Hugging Face Hub
    private: bool = False  # create that repository as a private one


@dataclass(frozen=True, repr=False)
class Exported:
    """A finished export."""

    directory: AnyPath
    step: int
    difference: Difference | None  # from the outputs of the format's own system; None if it is not installed
    notes: tuple[str, ...]  # lines about it, to print

    def __repr__(self) -> str:
        """The notes, a line each."""
        return "\n".join(self.notes)


def export(run: str, options: ExportOptions, require_free: Callable[[AnyPath], None]) -> Exported:
    """Write the model in a format, and compare the two on real text before an earlier export is replaced.

    `require_free` raises if a folder that exists must not be replaced. Raises ValueError for options that the format
    does not have, RuntimeError for outputs that differ, ModuleNotFoundError for a missing package.
    """
    require_extra(options.to)
    if options.push:
        require_pushable(options.push)
    elif options.private:
        raise ValueError("--private needs the repository of --push; name one, or leave --private out")
    model, form = load_own_run(run), load_format(options.to)
    if options.head:
        if form.with_head is None:
            raise ValueError(f"--head {options.head}: --to {options.to} writes all heads or none; leave --head out")
        form = form.with_head(options.head)
    name = options.to
    if options.precision:
        if options.precision not in form.precisions:
            raise ValueError(f"--precision {options.precision}: --to {name} has one precision; leave --precision out")
        form, name = form.precisions[options.precision](), f"{name}-{options.precision}"
    if form.export is None:
        raise ValueError(f"--to {name}: models are read from this format, but not written in it")
    if options.generator:
        if model.generator is None:
            raise ValueError(f"--generator: {run} was trained without one; leave it out")
        model, name = model.generator, f"{name}-generator"
    try:
        vectors = form.vectors(model, options.pooling, options.normalize)
    except ValueError as error:
        raise ValueError(f"--to {options.to}: {error}") from None
    require_trained(vectors.pooling, model.untrained, f"--to {options.to}")
    output = to_path(options.output) if options.output else model.directory / name
    require_free(output)
    prove, differences = _comparison(form, model, vectors, output)
    directory = form.export(model, output, vectors, prove)
    notes = [comparison_line(form.reference, difference) for difference in differences]
    if model.untrained:
        notes.append(f"never trained, so random: {', '.join(map(module_label, model.untrained))}")
    gives = form.gives(model, vectors)
    notes.append(f"exported step {model.step:,} to {directory}{gives and f': {gives}'}")
    if options.push:
        with near(directory) as folder:
            message = f"step {model.step:,} of {model.config.name}, exported by bertjax"
            notes.append(f"pushed to {push(folder, options.push, private=options.private, message=message)}")
    notes += form.describe(model, directory)  # ends with what to do next
    return Exported(directory, model.step, next(iter(differences), None), tuple(notes))


def _comparison(
    form: Format, model: TrainedModel, vectors: Vectors, output: AnyPath
) -> tuple[Prove, list[Difference | None]]:
    """(a function that compares a folder with the model before it becomes `output`, its results)."""
    differences: list[Difference | None] = []

    def prove(folder: Path) -> None:
        try:
            difference = form.compare(model, folder, vectors)
            if difference is not None and difference.not_compared:
                raise RuntimeError(f"{folder}: not compared: {'; '.join(difference.not_compared)}; correct the export")
            differences.append(difference)
        except RuntimeError as error:
            wrong = str(error).removeprefix(f"{folder}: ")
            raise RuntimeError(f"export to {output}: {wrong}; nothing there was changed") from error

    return prove, differences
