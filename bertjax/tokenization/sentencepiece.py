"""SentencePiece: a unigram or BPE model (Kudo and Richardson 2018), such as ALBERT's `spiece.model`.

The ids are the library's, after the two rules on case and accents. One exception: if the scores of two segmentations of
a word differ only in the last bits, the library, which sums 32-bit numbers over a whole text, may choose a different
one than `tokenizers`. (The scores of models that we train have exact sums, so this cannot happen.) Three rules of
AlbertTokenizer do not apply: `` and '' are not replaced, a space before a user-defined symbol is kept, as in the
library, and "2012," may be one piece.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from bertjax.storage.files import read_whole
from bertjax.tokenization.artefact import WORD, is_valid_charsmap
from bertjax.tokenization.tokenizer import ROLES, TextRules, Tokenizer, refuse_bare_start, with_roles

VOCABULARY_FILE = "spiece.model"

# ALBERT's names, then RoBERTa's
_NAMES = {
    "pad": ("<pad>", "[PAD]"),
    "unk": ("<unk>", "[UNK]"),
    "cls": ("[CLS]", "<cls>", "<s>"),
    "sep": ("[SEP]", "<sep>", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}
_UNIGRAM, _BPE = 1, 2  # types of models
_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4  # types of pieces, as numbered in sentencepiece_model.proto
_NEVER_IN_TEXT = (2, 3, 5)  # types of unknown, control and unused pieces
_LONGEST_PIECE = 512  # characters; sentencepiece's default limit in training is 16


class SentencePiece(Tokenizer):
    """The tokenizer of a SentencePiece model, in which a word includes the space before it."""

    def __init__(self, model: bytes, rules: TextRules, origin: str = "SentencePiece model") -> None:
        """Parse a serialised model; `origin` names it in messages.

        A model without a mask token, such as DeBERTa's, gets [MASK] after its pieces. Raises ValueError if it is not a
        model, lacks another special token, or has unsupported options.
        """
        proto = _parse(model, origin)
        names = [piece.piece for piece in proto.pieces]
        if not {*_NAMES["mask"]} & {*names}:
            proto.pieces.add(piece="[MASK]", score=0.0, type=_CONTROL)
            names.append("[MASK]")
            model = proto.SerializeToString(deterministic=True)
        special = _special_ids(names, origin)
        if rules.unknown != "words":
            raise ValueError(
                f"data.unknown={rules.unknown!r}: {origin} has no words to split; the option is for WordPiece"
            )
        refuse_bare_start(rules, origin)
        for number, piece in enumerate(proto.pieces):
            if piece.type in _NEVER_IN_TEXT and number not in special.values():
                piece.piece = f"[control {piece.piece}]"  # words never contain a space
        try:
            backend = with_roles(_backend(proto, special["unk"], rules), special)
        except Exception as error:  # the library raises its own class for every error
            raise ValueError(f"{origin} cannot be read: {error}; get the file again") from None
        super().__init__(backend, special, {VOCABULARY_FILE: model}, rules, origin=origin)

    @classmethod
    def load(cls, path: Path, rules: TextRules) -> SentencePiece:
        """Read a `.model` file. Raises ValueError like the constructor."""
        return cls(read_whole(path), rules, origin=f"SentencePiece model {path}")


def _backend(proto: Any, unk_id: int, rules: TextRules) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(_model(proto, unk_id))
    tokenizer.normalizer = normalizer(rules, proto.normalizer_spec.precompiled_charsmap)
    splits = [
        pre_tokenizers.Split(" ", behavior="removed"),
        pre_tokenizers.Metaspace(replacement=WORD, prepend_scheme="always"),
    ]
    tokenizer.decoder = decoders.Metaspace(replacement=WORD, prepend_scheme="always")
    if proto.trainer_spec.byte_fallback:
        # A piece such as <0x41> is a byte; split text that looks like one.
        splits.append(pre_tokenizers.Split(tokenizers.Regex("(?<=<)0x[0-9A-F]{2}>"), behavior="isolated"))
        tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), tokenizer.decoder])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    return tokenizer


def _parse(model: bytes, origin: str) -> Any:
    """Parse a model. Raises ValueError if it is invalid or of an unsupported kind."""
    proto = read_model(model, origin)
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    if not proto.pieces or trainer.model_type not in (_UNIGRAM, _BPE):
        raise ValueError(
            f"{origin}: model type {trainer.model_type} with {len(proto.pieces)} pieces is unsupported; give a unigram "
            "or BPE model"
        )
    switches = (normalizer.add_dummy_prefix, normalizer.remove_extra_whitespaces, normalizer.escape_whitespaces)
    if not all(switches) or trainer.treat_whitespace_as_suffix:
        raise ValueError(
            f"{origin}: models that keep spaces, or have them after words, are unsupported; train with sentencepiece's "
            "defaults for white space"
        )
    special = {name for names in _NAMES.values() for name in names}
    if trainer.model_type == _BPE and any(p.type == _USER_DEFINED and p.piece not in special for p in proto.pieces):
        raise ValueError(f"{origin}: a BPE model with user-defined symbols is unsupported; train without")
    if any(WORD in piece.piece[1:] for piece in proto.pieces):
        raise ValueError(f"{origin}: pieces across spaces (split_by_whitespace=false) are unsupported")
    if not is_valid_charsmap(normalizer.precompiled_charsmap):
        raise ValueError(f"{origin}: the character table (precompiled_charsmap) is damaged; get the file again")
    return proto


def _special_ids(tokens: list[str], origin: str) -> dict[str, int]:
    ids = {token: number for number, token in enumerate(tokens)}
    special = {role: next((ids[name] for name in _NAMES[role] if name in ids), None) for role in ROLES}
    missing = [f"{' or '.join(_NAMES[role])}" for role, number in special.items() if number is None]
    if missing:
        raise ValueError(
            f"{origin}: no {', no '.join(missing)}; train it with --pad_id=0 --unk_id=1 --bos_id=-1 --eos_id=-1 "
            "--control_symbols=[CLS],[SEP],[MASK], as ALBERT's was"
        )
    return {role: number for role, number in special.items() if number is not None}


def _model(proto: Any, unk_id: int) -> models.Model:
    pieces = [(piece.piece, piece.score) for piece in proto.pieces]
    falls_back = proto.trainer_spec.byte_fallback
    if proto.trainer_spec.model_type == _UNIGRAM:
        return models.Unigram(pieces, unk_id=unk_id, byte_fallback=falls_back)
    vocabulary = {name: number for number, (name, _) in enumerate(pieces)}
    merges = []
    for (name, score), piece in zip(pieces, proto.pieces, strict=True):
        for cut in range(1, len(name) if piece.type == _NORMAL else 0):
            left, right = name[:cut], name[cut:]
            if left in vocabulary and right in vocabulary:
                merges.append((-score, vocabulary[left], vocabulary[right], (left, right)))
    merges.sort()
    pairs = [pair for *_, pair in merges]
    return models.BPE(vocabulary, pairs, unk_token=pieces[unk_id][0], fuse_unk=True, byte_fallback=falls_back)


def normalizer(rules: TextRules, table: bytes = b"") -> normalizers.Normalizer:
    """Make the normaliser: our rules as in AlbertTokenizer, then the model's own character table.

    Text is composed before and after the table: pieces have composed characters, and `tokenizers` looks up single
    characters in the table where sentencepiece looks up sequences, such as the letters of a Korean syllable.
    """
    steps: list[normalizers.Normalizer] = []
    if rules.strip_accents:
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if rules.strip_accents or table:
        steps.append(normalizers.NFC())
    if rules.lowercase:
        steps.append(normalizers.Lowercase())
    if table:
        steps += [normalizers.Precompiled(table), normalizers.NFC()]
    return normalizers.Sequence(steps)


# The parts of sentencepiece_model.proto that we read: name, number, type and default of each field
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
    """Parse a model file into its protobuf message. Raises ValueError if it is invalid; `origin` names it."""
    from google.protobuf.message import DecodeError

    message = _message_class()()
    try:
        message.ParseFromString(content)
    except DecodeError as error:
        raise ValueError(f"{origin} cannot be read: {error}; is it a .model file of sentencepiece?") from None
    for number, piece in enumerate(message.pieces):
        # Invalid UTF-8 is parsed as bytes. The length is bounded because `_model` tries every split of a piece.
        if not isinstance(piece.piece, str) or len(piece.piece) > _LONGEST_PIECE or not math.isfinite(piece.score):
            raise ValueError(
                f"{origin}: piece {number} is {piece.piece[:40]!r} with score {piece.score}; a piece must be UTF-8 of "
                f"at most {_LONGEST_PIECE} characters with a finite score; get the file again"
            )
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
