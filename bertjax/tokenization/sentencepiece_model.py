"""The parts of a SentencePiece model file that matter here, as a protocol buffer.

Fields and defaults are those of sentencepiece_model.proto; any other field is kept as it is. The library's own Python
classes for it work with one version of protobuf, which is not the one of every package that may be installed beside it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

_PACKAGE = "bertjax.sentencepiece"
_FIELDS = {
    "Piece": (("piece", 1, "STRING", ""), ("score", 2, "FLOAT", "0"), ("type", 3, "INT32", "1")),
    "TrainerSpec": (
        ("model_type", 3, "INT32", "1"),
        ("treat_whitespace_as_suffix", 24, "BOOL", "false"),
        ("byte_fallback", 35, "BOOL", "false"),
    ),
    "NormalizerSpec": (
        ("precompiled_charsmap", 2, "BYTES", ""),
        ("add_dummy_prefix", 3, "BOOL", "true"),
        ("remove_extra_whitespaces", 4, "BOOL", "true"),
        ("escape_whitespaces", 5, "BOOL", "true"),
    ),
}
_PARTS = (("pieces", 1, "Piece"), ("trainer_spec", 2, "TrainerSpec"), ("normalizer_spec", 3, "NormalizerSpec"))


def read_model(content: bytes, origin: str) -> Any:
    """The message that a model file is. Raises ValueError if it is none; `origin` names it."""
    from google.protobuf.message import DecodeError

    message = _message_class()()
    try:
        message.ParseFromString(content)
    except DecodeError as error:
        raise ValueError(f"{origin} cannot be read: {error}; is it a .model file of sentencepiece?") from None
    return message


@cache
def _message_class() -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="bertjax_sentencepiece.proto", package=_PACKAGE, syntax="proto2")
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field, number, kind, default in fields:
            message.field.add(
                name=field,
                number=number,
                type=getattr(kinds, f"TYPE_{kind}"),
                label=kinds.LABEL_OPTIONAL,
                default_value=default,
            )
    model = file.message_type.add(name="Model")
    for field, number, name in _PARTS:
        label = kinds.LABEL_REPEATED if field == "pieces" else kinds.LABEL_OPTIONAL
        model.field.add(
            name=field, number=number, type=kinds.TYPE_MESSAGE, label=label, type_name=f".{_PACKAGE}.{name}"
        )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Model"))
