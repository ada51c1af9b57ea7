"""SentencePiece models whose ids a tokenizer renumbers, as fairseq's dictionaries do (XLM-R, CamemBERT); DeBERTa's;
and ALBERT's, of which its tokenizer leaves some pieces unused.

The tokenizer has entries in front of the model's pieces and after them, and leaves out the model's first ones. A
model in the tokenizer's own order is an ordinary one, whose ids are indices, so that no other module depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass

from bertjax.tokenization.sentencepiece import read_model

NUMBERED_FILE = "sentencepiece.bpe.model"  # whatever its algorithm

_FIRST = ("<unk>", "<s>", "</s>")  # of every model that sentencepiece trains by default
_UNKNOWN, _CONTROL = 2, 3  # types of pieces, as numbered in sentencepiece_model.proto


@dataclass(frozen=True)
class PieceOrder:
    """How a tokenizer numbers the pieces of a model."""

    first: tuple[str, ...]  # entries in front
    dropped: int  # of what the model begins with, how many are left out
    last: tuple[str, ...]  # entries after
    begins: tuple[str, ...] = _FIRST  # what the model begins with
    file: str = NUMBERED_FILE  # name of the model in a folder

    def numbered(self, model: bytes, origin: str) -> bytes:
        """A model whose ids are the tokenizer's, from one in the library's order.

        Raises ValueError if it is none, or does not begin as it must.
        """
        proto = read_model(model, origin)
        begins = tuple(piece.piece for piece in proto.pieces[: len(self.begins)])
        if begins != self.begins:
            raise ValueError(f"{origin}: it begins with {', '.join(begins)}, not with {', '.join(self.begins)}")
        pieces = list(proto.pieces[self.dropped :])
        del proto.pieces[:]
        for name in self.first:
            proto.pieces.add(piece=name, score=0.0, type=_UNKNOWN if name == _FIRST[0] else _CONTROL)
        proto.pieces.extend(pieces)
        for name in self.last:
            proto.pieces.add(piece=name, score=0.0, type=_CONTROL)
        return proto.SerializeToString(deterministic=True)

    def original(self, model: bytes, origin: str) -> bytes | None:
        """The library's model from one whose ids are the tokenizer's; None from a model of another order."""
        proto = read_model(model, origin)
        names = tuple(piece.piece for piece in proto.pieces)
        behind = len(names) - len(self.last)
        if names[: len(self.first)] != self.first or names[behind:] != self.last:
            return None
        if names[len(self.first) :][: len(self.begins) - self.dropped] != self.begins[self.dropped :]:
            return None
        pieces = list(proto.pieces[len(self.first) : behind])
        del proto.pieces[:]
        for name in self.begins[: self.dropped]:
            proto.pieces.add(piece=name, score=0.0, type=_UNKNOWN if name == _FIRST[0] else _CONTROL)
        proto.pieces.extend(pieces)
        return proto.SerializeToString(deterministic=True)

    def lacks_ends(self, model: bytes, origin: str) -> bool:
        """Whether a model begins as it must and has none of the entries after. Raises ValueError if it is none."""
        names = [piece.piece for piece in read_model(model, origin).pieces]
        return tuple(names[: len(self.begins)]) == self.begins and not {*self.last} & {*names}


# DeBERTa's models from version 2 on have no [MASK], which their tokenizer puts after the pieces.
DEBERTA = PieceOrder(
    first=(), dropped=0, last=("[MASK]",), begins=("[PAD]", "[CLS]", "[SEP]", "[UNK]"), file="spm.model"
)


_NEVER = 100.0  # by which the score of a piece falls that no text may have, as in transformers


def ends_in_number_and_comma(piece: str) -> bool:
    """Whether ALBERT cuts such a piece in two, "2012," into "2012" and ","."""
    return len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit()


def with_commas_apart(model: bytes, origin: str) -> bytes:
    """A model that cuts commas off numbers, as `encode_pieces` of google-research/albert does.

    A piece that ends in a digit and a comma has so low a score that other pieces are taken. Raises ValueError if it is
    no model.
    """
    proto = read_model(model, origin)
    for piece in proto.pieces:
        if ends_in_number_and_comma(piece.piece):
            piece.score -= _NEVER
    return proto.SerializeToString(deterministic=True)
