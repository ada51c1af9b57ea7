"""How texts become vectors, as the command line tells it."""

from __future__ import annotations

import argparse
from dataclasses import fields

from bertjax.embed.encoder import Encoding, EncodingOptions


def told_encoding(arguments: argparse.Namespace) -> EncodingOptions:
    """The fields of an encoding that were told; the others are None in the arguments."""
    given = {field.name: getattr(arguments, field.name) for field in fields(Encoding)}
    return EncodingOptions(**{name: value for name, value in given.items() if value is not None})
