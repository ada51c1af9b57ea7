"""A Hugging Face folder gives transformers' ids on hard text, or is refused by name: no third outcome.

`AutoTokenizer` of transformers 5.24 is the reference. Some of its rules are surprising:
- The classes of models (BertTokenizer, RobertaTokenizer, ...) build their text rules from `tokenizer_config.json` and
  their own defaults, and take only the vocabulary, the template and the added tokens from `tokenizer.json`:
  normalizer, pre-tokenizer, and `max_input_chars_per_word` of that file are ignored. PreTrainedTokenizerFast and
  TokenizersBackend take all of it and ignore the keys.
- `max_input_chars_per_word` is therefore 100 for every WordPiece of a model's class.
- `tokenizer.json` wins over `vocab.txt`, `vocab.json` with `merges.txt`, and SentencePiece models.
- A class that no longer exists (LongformerTokenizer, ElectraTokenizerFast) is looked up by name, then by
  `model_type`; for `modernbert` the class is ignored and `tokenizer.json` taken as it is.
- DebertaV2Tokenizer leaves out the normalisation and the bytes of its SentencePiece model; AlbertTokenizer does not
  cut commas off numbers when it is built from `spiece.model` (older versions did, and wrote that to `tokenizer.json`).
- If protobuf is older than the version that sentencepiece was built with, transformers cannot read SentencePiece models
  at all; the reference here gets its own copy of their messages.
- `split_special_tokens=True` is the reference for text that spells special tokens, which is plain text in a corpus.
  Tokens that a folder adds are found in text, special or not.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizer_folders import (
    FolderSpec,
    added_texts,
    folder_specs,
    forged_texts,
    hard_texts,
    reference_ids,
    reference_pieces,
    reference_tokenizer,
)

from bertjax.convert.huggingface.tokenizer_files import read_tokenizer

pytest.importorskip("transformers", reason="needs transformers: pip install 'bertjax[test]'")
SPECS = folder_specs()


def specs_by_tier() -> Iterator[Any]:
    """The suite runs each choice of each kind once, the long tests run their combinations."""
    seen = set()
    for spec in SPECS:
        choices = {(spec.kind.name, *choice) for choice in spec.row}
        yield pytest.param(spec, marks=[pytest.mark.long] if choices <= seen else [])
        seen |= choices


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that is deleted after its test: the matrix has hundreds."""
    with tempfile.TemporaryDirectory(prefix="tokenizer-") as directory:
        yield Path(directory)


@pytest.mark.parametrize("spec", [*specs_by_tier()], ids=str)
def test_folder_gives_the_reference_ids_or_is_refused(spec: FolderSpec, folder: Path) -> None:
    draft = spec.draft()
    draft.write(folder)
    try:
        tokenizer = read_tokenizer(folder, spec.kind.family)
    except ValueError as error:
        assert str(folder) in str(error), f"the message does not name the folder: {error}"
        assert draft.refusals, f"refused, though transformers reads it: {error}"
        return
    try:
        theirs = reference_tokenizer(folder)
    except Exception as error:  # of many classes, as each reader raises its own
        pytest.fail(f"read, though transformers does not read it: {error}")
    groups = (hard_texts(), added_texts(), forged_texts(draft.roles))
    ours = [[ids.tolist() for ids in tokenizer.encode_sentences(texts)] for texts in groups]
    expected = [reference_ids(theirs, texts, forged=texts is groups[-1]) for texts in groups]
    pieces = reference_pieces(draft)
    if pieces is not None and ours == [pieces(texts) for texts in groups]:
        return
    differences = [
        f"{text!r}: {a}, not {b}"
        for texts, our_ids, their_ids in zip(groups, ours, expected, strict=True)
        for text, a, b in zip(texts, our_ids, their_ids, strict=True)
        if a != b
    ]
    assert not differences, _summary(differences)


def _summary(differences: Sequence[str]) -> str:
    first = "\n".join(difference[:300] for difference in differences[:5])
    return f"{len(differences)} texts have other ids:\n{first}"


@pytest.mark.long  # reads the whole matrix, as the next one
def test_hard_texts_spell_no_special_token(folder: Path) -> None:
    """Both readings of the reference agree on hard texts."""
    for spec in {spec.kind.name: spec for spec in SPECS if not spec.draft().refusals}.values():
        draft = spec.draft()
        draft.write(folder / spec.kind.name)
        theirs = reference_tokenizer(folder / spec.kind.name)
        assert reference_ids(theirs, hard_texts()) == reference_ids(theirs, hard_texts(), forged=True)


@pytest.mark.long
def test_matrix_is_large_and_allows_few_refusals() -> None:
    """A package that refuses every folder fails: only these may be refused, and the rest must give the ids."""
    assert len(SPECS) >= 300 and len({*map(str, SPECS)}) == len(SPECS)
    reasons = Counter(reason for spec in SPECS for reason in spec.draft().refusals)
    assert reasons == {
        "it adds tokens after its vocabulary": 41,
        "no file names its special tokens": 3,
        "its class reads only tokenizer.json, which it lacks": 2,
        "it splits by punctuation what sentencepiece cuts": 1,
        "BertJapaneseTokenizer cuts words by Python code": 3,
    }
    assert reasons.total() < len(SPECS) / 10
