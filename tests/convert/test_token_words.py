"""Words, spans and offsets of tokenizers of every kind: derived from the artefact alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_tokenizer_cases import make_folder

from bertjax.convert.huggingface.tokenizer_files import read_tokenizer
from bertjax.tokenization.tokenizer import Tokenizer

KINDS = ("bert", "roberta", "modernbert", "llama", "gemma", "japanese", "deberta-v3", "xlm-roberta", "albert")
WORDS = ("The", "museum", "opened", "in", "1877", ",", "and", "it", "holds", "drawings", ".")
TEXT = "The museum opened in 1877, and it holds drawings."


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest, tmp_path: Path) -> Tokenizer:
    return read_tokenizer(*make_folder(request.param, tmp_path, is_whole=True))


def test_tokens_form_the_words_of_a_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_sentences([TEXT])[0]
    starts = np.flatnonzero(~tokenizer.is_continuation[ids])
    surfaces = [tokenizer.surfaces[number].decode() for number in ids]
    words = ["".join(part) for part in np.split(np.array(surfaces, object), starts[starts > 0])]
    expected = [word.lower() if tokenizer.rules.lowercase else word for word in WORDS]
    assert [word for word in words if word] == expected


def test_offsets_are_the_spans_of_tokens(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_sentences([TEXT])[0]
    spans = [TEXT[first:last].strip() for first, last in tokenizer.offsets(TEXT)]
    surfaces = [tokenizer.surfaces[number].decode() for number in ids]
    # A token that is only a space has no text; its span is the library's choice.
    pairs = [(span.lower(), surface.lower()) for span, surface in zip(spans, surfaces, strict=True) if surface]
    assert len(pairs) > len(WORDS) and all(span == surface for span, surface in pairs)


def test_bytes_of_a_character_are_one_word(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_sentences(["\u00df"])[0]
    if tokenizer.unk_id in ids:
        pytest.skip("the vocabulary has no bytes")
    surfaces = [tokenizer.surfaces[number] for number in ids]
    assert b"".join(surfaces).decode() == "\u00df"
    assert tokenizer.is_continuation[ids][[bool(surface) for surface in surfaces]][1:].all()
