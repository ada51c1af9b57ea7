"""Options that verbs with a trained model share: the model, its text, its vectors and the page to write."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bertjax.embed.encoder import EncodingOptions
    from bertjax.storage.remote import AnyPath
    from bertjax.storage.utf8 import ReadCounts


def add_source(parser: argparse.ArgumentParser) -> None:
    """Add the argument RUN, which may also be a model of another framework."""
    parser.add_argument(
        "run", metavar="RUN", help="a run's directory, one of its checkpoints/<step>, hf:DIR or hf:NAME"
    )


def add_text(parser: argparse.ArgumentParser) -> None:
    """Add the option `--text`."""
    parser.add_argument(
        "--text",
        metavar="FILE",
        help="plain text to measure on (the run's held-out text, or else built-in sentences)",
    )


def add_texts(parser: argparse.ArgumentParser, description: str) -> None:
    """Add the argument TEXT, with `description` as its help, and the options `--file` and `--field`."""
    parser.add_argument("text", nargs="*", metavar="TEXT", help=description)
    parser.add_argument(
        "--file",
        metavar="FILE",
        help="texts, one per line, or of .csv, .tsv, .jsonl or .parquet, compressed or not; - is standard input",
    )
    add_column(parser)


def add_column(parser: argparse.ArgumentParser) -> None:
    """Add the option `--column`, also called `--field`."""
    parser.add_argument(
        "--column",
        "--field",
        dest="field",
        metavar="NAME",
        help="column or field of a .csv, .tsv, .jsonl or .parquet with the text (text); standard input is then .jsonl",
    )


def require_texts(arguments: argparse.Namespace, instead: str, file: str = "FILE") -> None:
    """Raise ValueError unless exactly one of TEXT, `--file` and the option `instead` is given."""
    names = [name for name in ("text", "file", instead) if getattr(arguments, name)]
    if len(names) != 1:
        called = " and ".join({"text": "TEXT"}.get(name, f"--{name}") for name in names) or "nothing"
        raise ValueError(f"{called} given: give one of TEXT, --file FILE and --{instead} {file}")
    _require_file(arguments)


def require_text_or_file(arguments: argparse.Namespace, hint: str = "") -> None:
    """Raise ValueError unless exactly one of TEXT and `--file` is given; `hint` ends the message."""
    if bool(arguments.text) == bool(arguments.file):
        raise ValueError(f"give either TEXT or --file FILE{hint}")
    _require_file(arguments)


def _require_file(arguments: argparse.Namespace) -> None:
    """Raise ValueError for `--column` without `--file`."""
    if arguments.field and not arguments.file:
        raise ValueError(f"--column {arguments.field} without --file: it names the column or field of a file's text")


def input_texts(arguments: argparse.Namespace) -> Iterator[str]:
    """Yield the texts of the arguments that `add_texts` added, then report replaced characters."""
    from bertjax.embed.texts import read_texts
    from bertjax.storage.utf8 import ReadCounts

    counts = ReadCounts()
    yield from arguments.text or read_texts([arguments.file], arguments.field, counts)
    print_replaced(counts)


def print_replaced(counts: ReadCounts, what: str = "") -> None:
    """Print how many characters were not UTF-8, if any, after the prefix `what`."""
    if counts.replaced_characters:
        print(f"{what}{counts.replaced_characters:,} characters were not UTF-8 and became U+FFFD")


def one_or_two(sentences: Sequence[str]) -> tuple[str, ...]:
    """Return one sentence or a pair. Raises ValueError for more."""
    if len(sentences) > 2:
        raise ValueError(f"{len(sentences)} sentences: give one or two, each in quotes")
    return tuple(sentences)


POOLINGS = ("mean", "cls", "pooler", "max", "none")  # those of bertjax.model.pooling, which imports jax


def add_encoding(parser: argparse.ArgumentParser, poolings: Sequence[str], pooled: str) -> None:
    """Add the options of `bertjax.embed.encoder.Encoding`; an omitted option is None.

    Defaults come from `Encoding` or from a sentence-transformers folder.
    """
    parser.add_argument("--pooling", choices=poolings, help=pooled)
    parser.add_argument(
        "--layer",
        type=lambda text: int(text) if text.lstrip("-").isdecimal() else text,
        help="layer whose vectors are pooled: last, a number (0 is the embeddings), or the last four: sum4, concat4 "
        "(last)",
    )
    parser.add_argument(
        "--long",
        choices=("truncate", "split"),
        help="texts longer than --max-length: keep the beginning, or encode all of it in parts (truncate)",
    )
    parser.add_argument(
        "--max-length", type=int, metavar="N", help="tokens per row, special tokens included (as in training)"
    )
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="dtype of the computation (float32)")
    parser.add_argument(
        "--batch-tokens", type=int, metavar="N", help="tokens per batch on a device (2048 on a CPU, 8192 otherwise)"
    )
    parser.add_argument("--batch-size", type=int, metavar="N", help="texts per batch on a device, at most")
    parser.add_argument("--prompt", metavar="TEXT", help="text to put before every text (none)")


def encoding_options(arguments: argparse.Namespace) -> EncodingOptions:
    """Return the encoding options given on the command line."""
    from dataclasses import fields

    from bertjax.embed.encoder import Encoding, EncodingOptions

    values = {field.name: getattr(arguments, field.name) for field in fields(Encoding)}
    return EncodingOptions(**{name: value for name, value in values.items() if value is not None})


def add_page(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """Add the option `--html`."""
    help_text = (
        "write the page to FILE (%(default)s)" if default else "also write a self-contained page with plots to FILE"
    )
    parser.add_argument("--html", default=default, metavar="FILE", help=help_text)


def page_path(name: str) -> Path:
    """Return the path of `--html`. Raises ValueError, before the long work, if it cannot be written."""
    path = Path(name)
    if path.is_dir():
        raise ValueError(f"--html {name}: it is a directory; name a file in it")
    if not path.parent.is_dir():
        raise ValueError(f"--html {name}: there is no directory {path.parent}; make it, or name another file")
    return path


def add_overwrite(parser: argparse._ActionsContainer) -> None:
    """Add the option `--overwrite`."""
    parser.add_argument("--overwrite", action="store_true", help="replace existing output without a prompt")


def output_file(arguments: argparse.Namespace, suffixes: Sequence[str], what: str) -> Path | None:
    """The file of `--output` for `what`, or None. Raises ValueError for another suffix, and like `require_free`."""
    from bertjax.embed.outputs import output_path

    if not arguments.output:
        return None
    output = output_path(arguments.output, suffixes, what)
    require_free(output, arguments)
    return output


def require_free(output: AnyPath, arguments: argparse.Namespace) -> None:
    """Raise ValueError if the output exists and may not be replaced; prompts on a terminal."""
    exists = any(output.iterdir()) if output.is_dir() else output.exists()
    if not exists or arguments.overwrite:
        return
    if sys.stdin.isatty() and sys.stderr.isatty():
        print(f"{output} exists. Replace it? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() in ("y", "yes"):
            return
    raise ValueError(f"{output} exists; add --overwrite to replace it, or name another path with --output")
