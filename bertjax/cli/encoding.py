"""The options of how texts become vectors, which `embed`, `search` and `export` share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bertjax.embed.encoder import EncodingOptions

POOLINGS = ("mean", "cls", "pooler", "max", "none")  # those of bertjax.model.pooling, which imports jax


def add_encoding(parser: argparse.ArgumentParser, poolings: Sequence[str], pooled: str) -> None:
    """Add the options of `bertjax.embed.encoder.Encoding`, which has their defaults; an option not given is None."""
    parser.add_argument("--pooling", choices=poolings, help=pooled)
    parser.add_argument(
        "--layer",
        type=_number_or_name,
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


def given_encoding(arguments: argparse.Namespace) -> EncodingOptions:
    """The encoding options that the command line gives."""
    from dataclasses import fields

    from bertjax.embed.encoder import Encoding, EncodingOptions

    given = {field.name: getattr(arguments, field.name) for field in fields(Encoding)}
    return EncodingOptions(**{name: value for name, value in given.items() if value is not None})


def _number_or_name(text: str) -> int | str:
    return int(text) if text.lstrip("-").isdecimal() else text
