"""Small models of every family, with its published kind of tokenizer trained on a few sentences."""

from __future__ import annotations

import functools
import io
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from exported_models import trained_model, wordpiece
from their_families import SIZES, small
from tokenizers import pre_tokenizers, processors

from bertjax.config import ModelConfig
from bertjax.convert.compare import PAIRS
from bertjax.convert.huggingface.tokenizer_files import with_template
from bertjax.families.registry import FAMILIES, get_family
from bertjax.run.run_directory import TrainedModel
from bertjax.tokenization.byte_level import MERGES_FILE, ByteLevelBPE
from bertjax.tokenization.sentencepiece import SentencePiece, read_model
from bertjax.tokenization.tokenizer import TextRules, Tokenizer
from bertjax.tokenization.training import count_for, train_tokenizer
from bertjax.tokenization.wordpiece import WordPiece

TEXTS = [text for pair in PAIRS for text in pair]
TEXTS += ["東京は日本の首都である。  सत्य naïve ☃?", "don't\t12,5 % ÉTÉ", "ﬁne ① ｶﾞ x\u0301 \u200b."]
CASED = TextRules(lowercase=False, strip_accents=False)
# SentencePiece families with their own order of ids: first entries, how many of the model's first pieces they replace,
# last entries, and the model's first pieces.
_LIBRARY = ("<unk>", "<s>", "</s>")
PIECES = {
    "xlm-roberta": (("<s>", "<pad>", "</s>", "<unk>"), 3, ("<mask>",), _LIBRARY),
    "xlm-roberta-xl": (("<s>", "<pad>", "</s>", "<unk>"), 3, ("<mask>",), _LIBRARY),
    "camembert": (("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"), 1, ("<mask>",), _LIBRARY),
    "deberta-v2": ((), 0, ("[MASK]",), ("[PAD]", "[CLS]", "[SEP]", "[UNK]")),
}
# Byte-level BPE families, and the style of their special tokens.
BYTES = {"roberta": "<s>", "longformer": "<s>", "deberta": "[CLS]", "modernbert": "[CLS]"}
BYTES |= {"eurobert": "[CLS]", "ultrabert": "[CLS]"}


def piece_model(texts: Sequence[str] = TEXTS, size: int = 220, begins: Sequence[str] = ()) -> bytes:
    """Train a SentencePiece model with the library's own <unk>, <s>, </s>, like XLM-R's and CamemBERT's.

    With `begins` [PAD], [CLS], [SEP], [UNK] it has these instead, like DeBERTa's.
    """
    from sentencepiece import SentencePieceTrainer

    file, options = io.BytesIO(), {}
    if begins and begins[0] == "[PAD]":
        options = {f"{role}_id": number for number, role in enumerate(("pad", "bos", "eos", "unk"))}
        options |= {f"{role}_piece": name for role, name in zip(("pad", "bos", "eos", "unk"), begins, strict=True)}
    SentencePieceTrainer.train(
        sentence_iterator=iter([*texts] * 5), model_writer=file, vocab_size=size, hard_vocab_limit=False,
        model_type="unigram", character_coverage=1.0, minloglevel=2, **options,
    )  # fmt: skip
    return file.getvalue()


def reorder_pieces(model: bytes, family: str) -> bytes:
    """Convert a model from the library's order of ids to a family's."""
    first, dropped, last, _ = PIECES[family]
    proto = read_model(model, "test model")
    pieces = list(proto.pieces[dropped:])
    del proto.pieces[:]
    for name in first:
        proto.pieces.add(piece=name, score=0.0, type=2 if name == "<unk>" else 3)
    proto.pieces.extend(pieces)
    for name in last:
        proto.pieces.add(piece=name, score=0.0, type=3)
    return proto.SerializeToString(deterministic=True)


def tokenizer_of(family: str, texts: Sequence[str] = TEXTS) -> Tokenizer:
    """A tokenizer of the family's published kind; BERT's kind has a fixed vocabulary and ignores `texts`."""
    return _trained_tokenizer(family, tuple(texts))


@functools.cache
def _trained_tokenizer(family: str, texts: tuple[str, ...]) -> Tokenizer:
    hf = get_family(family).huggingface
    if hf is None:
        return wordpiece()
    if family in PIECES:
        return SentencePiece(reorder_pieces(piece_model(texts, begins=PIECES[family][3]), family), CASED)
    if family in BYTES:
        rules = replace(CASED, special_tokens=BYTES[family])
        tokenizer = train_tokenizer("byte_bpe", count_for("byte_bpe", [*texts] * 5, rules), 400, rules)
        return ByteLevelBPE(*tokenizer.files.values(), replace(rules, prefix_space=False))
    if FAMILIES[family].presets["base"].layer_groups:  # ALBERT
        rules = TextRules(lowercase=True, strip_accents=True)
        return train_tokenizer("unigram", count_for("unigram", [*texts] * 5, rules), 300, rules)
    tokenizer = wordpiece()
    if hf.fixed_pad_id:
        tokens = [token for token in tokenizer.tokens if token != "[PAD]"]
        tokens.insert(hf.pad_token_id, "[PAD]")
        return WordPiece(tokens, tokenizer.rules)
    return tokenizer


def their_tokenizer(family: str, **options: Any) -> Any:
    """transformers' own class for a family over the vocabulary of `tokenizer_of`, with its own template."""
    transformers = pytest.importorskip("transformers")
    ours, definition = tokenizer_of(family), get_family(family)
    class_name = f"{definition.huggingface.beginning.removesuffix('XL')}Tokenizer"
    kind = getattr(transformers, class_name, transformers.BertTokenizer)  # ERNIE has BERT's
    if isinstance(ours, ByteLevelBPE) and not hasattr(transformers, class_name):
        # ModernBERT has only a tokenizer.json, with this template.
        backend = tokenizers.Tokenizer.from_str(ours.backend.to_str())
        if options.pop("add_prefix_space", False):
            backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        first, last = ours.tokens[ours.cls_id], ours.tokens[ours.sep_id]
        backend.post_processor = processors.TemplateProcessing(
            single=f"{first} $A {last}",
            pair=f"{first} $A {last} $B {last}",
            special_tokens=[(first, ours.cls_id), (last, ours.sep_id)],
        )
        roles = {f"{role}_token": ours.tokens[number] for role, number in ours.special.items()}
        inputs = {"model_input_names": ["input_ids", "attention_mask"]}
        return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **roles, **inputs, **options)
    if isinstance(ours, SentencePiece):
        proto = read_model(ours.files[ours.main_file], "test model")
        pieces = [(piece.piece, piece.score) for piece in proto.pieces]
        return kind(vocab=pieces, _spm_precompiled_charsmap=proto.normalizer_spec.precompiled_charsmap, **options)
    vocabulary = {token: number for number, token in enumerate(ours.tokens)}
    if isinstance(ours, ByteLevelBPE):
        merges = ours.files[MERGES_FILE].decode().splitlines()[1:]
        theirs = kind(vocab=vocabulary, merges=[tuple(line.split(" ")) for line in merges], **options)
        if definition.template.separators == 1:
            # DebertaTokenizer of transformers 5 puts two separators into a pair, microsoft/DeBERTa one.
            theirs.backend_tokenizer.post_processor = with_template(ours, definition.template).post_processor
        return theirs
    if getattr(kind, "model", None) is not tokenizers.models.WordPiece:
        # BigBird's class uses SentencePiece, and ESM's splits at spaces in Python; both have BERT's template.
        kind = transformers.BertTokenizer
    # MPNet's class expects RoBERTa's special tokens, which this vocabulary lacks.
    roles = {f"{role}_token": ours.tokens[number] for role, number in ours.special.items()}
    return kind(vocab=vocabulary, do_lower_case=ours.rules.lowercase, **roles, **options)


def traits(family: str) -> dict[str, Any]:
    """A family's fields of `ModelConfig` that do not depend on the size."""
    sizes = {*SIZES, "head", "num_labels"}
    config = small(family)
    return {field.name: getattr(config, field.name) for field in fields(config) if field.name not in sizes}


def family_model(directory: Path, family: str, **options) -> TrainedModel:
    """A small model of a family with random parameters."""
    config = small(family)
    sizes = {field.name: getattr(config, field.name) for field in fields(ModelConfig) if field.name != "vocab_size"}
    return trained_model(directory, tokenizer_of(family), **(sizes | {"max_position_embeddings": 80} | options))
