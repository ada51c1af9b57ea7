"""A single tokenizer.json, as ModernBERT's, gives the library's ids, except that special tokens in text are text."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.tokenization.byte_level import ByteLevelBPE
from bertjax.tokenization.loading import load_tokenizer, make_tokenizer
from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.training import count_for, train_tokenizer

RULES = TextRules(lowercase=False, strip_accents=False, prefix_space=False, special_tokens="[CLS]")
PLAIN = TextRules(lowercase=False, strip_accents=False)
ROLES = ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]")
TEXT = ["the cat sat on the mat; the dog didn't.", "naïve cafés 東京", "a (b) c-d 12,5 %", "x\u0301   y"] * 9


def published() -> bytes:
    """A file like ModernBERT's: NFC, runs of spaces as added tokens, special and unused tokens after the pieces."""
    trained = train_tokenizer("byte_bpe", count_for("byte_bpe", TEXT, RULES), 330, RULES)
    document = json.loads(trained.backend.to_str())
    document["normalizer"] = {"type": "NFC"}
    flags = {"single_word": False, "lstrip": False, "rstrip": False}
    first = trained.vocab_size
    for number, content in enumerate(("  ", "    ", "|||EMAIL|||")):
        document["added_tokens"].append(
            {"id": first + number, "content": content, "normalized": True, "special": False, **flags}
        )
    document["added_tokens"].append(
        {"id": first + 3, "content": "[unused0]", "normalized": False, "special": True, **flags}
    )
    return json.dumps(document).encode()


FILE = published()
TOKENIZER = make_tokenizer(FILE, {}, "tokenizer.json")


def make_library() -> tokenizers.Tokenizer:
    """The library's tokenizer of the same file, but with special tokens in text as text."""
    document = json.loads(FILE)
    document["added_tokens"] = [token for token in document["added_tokens"] if token["content"] not in ROLES]
    return tokenizers.Tokenizer.from_str(json.dumps(document | {"post_processor": None}))


LIBRARY = make_library()


LETTERS = st.one_of(
    st.sampled_from("the's  \t東é\u0301|EMAIL[CLS]"),
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"),  # NUL is always dropped
)


@settings(max_examples=200)
@given(st.lists(st.text(LETTERS)))
def test_ids_match_the_library(texts: list[str]) -> None:
    ours = [ids.tolist() for ids in TOKENIZER.encode_sentences(texts)]
    assert ours == [LIBRARY.encode(text, add_special_tokens=False).ids for text in texts]


PLAIN_TOKEN = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
CITIES = ["the cat in New York sat", "New York", "a New  York b", "the dog saw New York the cat the dog", " the cat"]


def with_tokens(document: dict, *tokens: dict) -> dict:
    """Append added tokens to a file."""
    first = tokenizers.Tokenizer.from_str(json.dumps(document)).get_vocab_size()
    added = [PLAIN_TOKEN | {"id": first + n} | token for n, token in enumerate(tokens)]
    return document | {"added_tokens": document["added_tokens"] + added}


def require_the_librarys_ids(document: dict, texts: list[str]) -> None:
    library = tokenizers.Tokenizer.from_str(json.dumps(document))
    ours = make_tokenizer(json.dumps(document).encode(), {}, "tokenizer.json").encode_sentences(texts)
    assert [ids.tolist() for ids in ours] == [library.encode(text, add_special_tokens=False).ids for text in texts]


def test_added_tokens_after_special_ones_keep_ids() -> None:
    """As in ModernBERT's file, whose unused tokens are not special."""
    unused = [{"content": f"[unused{n}]"} for n in range(1, 6)]
    document = with_tokens(json.loads(FILE), *unused)
    texts = ["the [unused4] sat", "[unused1][unused5] cat", "the  cat |||EMAIL|||", *TEXT[:4]]
    require_the_librarys_ids(document, texts)


def test_running_sentences_match_the_library() -> None:
    sentences = ["the cat", "the  dog |||EMAIL||| sat.", "|||EMAIL||| the cat", "\u0301x", "東京 the"]
    bare = [True, False, False, True, False]
    texts = [" ".join(sentences[:3]), " ".join(sentences[3:])]
    for document in (json.loads(FILE), with_tokens(json.loads(FILE), {"content": "dog"})):  # cut at spaces, and uncut
        library = tokenizers.Tokenizer.from_str(json.dumps(document))
        ids, _ = make_tokenizer(json.dumps(document).encode(), {}, "tokenizer.json").encode_running(sentences, bare)
        assert ids.tolist() == [n for text in texts for n in library.encode(text, add_special_tokens=False).ids]


def merged_across_spaces() -> dict:
    """A file with merges across spaces, because its training did not split text."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    names = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=330, special_tokens=names, initial_alphabet=letters, show_progress=False
    )
    tokenizer.train_from_iterator(CITIES * 4, trainer)
    return json.loads(tokenizer.to_str())


def test_context_dependent_files_are_not_cut() -> None:
    document = json.loads(FILE)
    strip = {"type": "Strip", "strip_left": True, "strip_right": True}
    require_the_librarys_ids(document | {"normalizer": strip}, CITIES)
    require_the_librarys_ids(merged_across_spaces(), CITIES)
    require_the_librarys_ids(with_tokens(document, {"content": "New York"}), CITIES)
    require_the_librarys_ids(with_tokens(document, {"content": "York", "rstrip": True}), CITIES)
    spaced = document | {"pre_tokenizer": document["pre_tokenizer"] | {"add_prefix_space": True}}
    require_the_librarys_ids(with_tokens(spaced, {"content": "New"}), CITIES)


def test_rules_and_roles_are_derived_from_the_file() -> None:
    trained = train_tokenizer("byte_bpe", count_for("byte_bpe", TEXT, RULES), 330, RULES)
    assert TOKENIZER.rules == replace(RULES, special_tokens="<s>") and TOKENIZER.vocab_size == trained.vocab_size + 4
    assert [TOKENIZER.tokens[TOKENIZER.special[role]] for role in ("cls", "sep", "pad", "mask", "unk")] == [
        "[CLS]", "[SEP]", "[PAD]", "[MASK]", "[UNK]",
    ]  # fmt: skip
    (ids,) = TOKENIZER.encode_sentences(["the  cat |||EMAIL||| [MASK] e\u0301"])
    tokens = [TOKENIZER.tokens[i] for i in ids]
    assert "  " in tokens and "|||EMAIL|||" in tokens and "[MASK]" not in tokens
    assert TOKENIZER.decode(ids) == "the  cat |||EMAIL||| [MASK] é"
    assert TOKENIZER.surfaces[ids[0]].startswith(b"t") and TOKENIZER.surfaces[TOKENIZER.mask_id] == b""


def test_exported_mask_includes_the_space_before_it() -> None:
    row = TOKENIZER.backend.encode("the [MASK] sat")
    assert row.tokens[0] == "[CLS]" and row.tokens[-1] == "[SEP]"
    place = row.ids.index(TOKENIZER.mask_id)
    assert "".join(row.tokens[1:place]) == "the" and row.tokens[place] == " [MASK]"


def test_file_is_stored_and_reloaded(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(FILE)
    assert load_tokenizer(tmp_path, RULES).fingerprint == TOKENIZER.fingerprint
    assert load_tokenizer(tmp_path / "tokenizer.json", PLAIN).fingerprint == TOKENIZER.fingerprint
    # The export can be imported again, with the same ids.
    again = make_tokenizer(TOKENIZER.backend.to_str().encode(), {}, "tokenizer.json")
    assert again.tokens == TOKENIZER.tokens and again.rules == TOKENIZER.rules


def test_trained_vocabulary_has_berts_names_last() -> None:
    trained = train_tokenizer("byte_bpe", count_for("byte_bpe", TEXT, RULES), 330, RULES)
    assert isinstance(trained, ByteLevelBPE)
    assert trained.tokens[-5:] == ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    with pytest.raises(ValueError, match=r"no <s>, <pad>, </s>, <unk>, <mask> in vocab.json; set data.special_tokens="):
        ByteLevelBPE(*trained.files.values(), PLAIN)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "cannot be read as a tokenizer.json"),
        (b'{"model": {"type": "BPE"}}', "cannot be read as a tokenizer.json"),
        (FILE.replace(b'"[MASK]"', b'"[mask]"'), "no mask token; bertjax needs one for each role"),
        (FILE.replace(b'"type": "BPE"', b'"type": "Best"'), "cannot be read as a tokenizer.json"),
    ],
)
def test_other_files_are_refused(content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_tokenizer(content, {}, "tokenizer.json")


def changed(**parts: object) -> dict:
    return json.loads(FILE) | parts


STRIPPED = {"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "StripAccents"}]}
BARE_DASH = {"type": "Replace", "pattern": {"String": "—"}, "content": ""}


@pytest.mark.parametrize("has_prefix", [False, True])
@pytest.mark.parametrize("normalizer", [STRIPPED, BARE_DASH, {"type": "NFKC"}, {"type": "NFKD"}], ids=str)
def test_normalizers_of_spaces_keep_the_librarys_ids(normalizer: dict, has_prefix: bool) -> None:
    """Deleted marks and punctuation leave runs of spaces, and compatibility characters add spaces."""
    cut = json.loads(FILE)["pre_tokenizer"] | {"add_prefix_space": has_prefix}
    document = changed(normalizer=normalizer, pre_tokenizer=cut)
    document["added_tokens"] = [token for token in document["added_tokens"] if token["content"] in ROLES]
    texts = ["\u0301 b", "a \u0301 \u0301 b", "\u0301", "a — — b", "\u00a8a", "\u00b4b a", "the cat  sat", "a\u0301 b"]
    require_the_librarys_ids(document, texts)


def test_unknown_token_is_the_one_of_the_model() -> None:
    document = changed()
    document["model"]["unk_token"] = "[UNK]"
    tokenizer = make_tokenizer(json.dumps(document).encode(), {"unk_token": "the"}, "tokenizer.json")
    assert tokenizer.tokens[tokenizer.unk_id] == "[UNK]"


def test_added_tokens_keep_their_ids_after_a_gap() -> None:
    """With an unused id in the model's vocabulary, and a special token whose id is not the next one."""
    document = changed()
    vocabulary = document["model"]["vocab"]
    first = max(vocabulary.values()) + 10
    vocabulary["<late>"] = first
    document["added_tokens"] = [token for token in document["added_tokens"] if token["content"] in ROLES]
    document["added_tokens"].append(PLAIN_TOKEN | {"id": first + 1, "content": "ZZ"})
    ours = make_tokenizer(json.dumps(document).encode(), {"pad_token": "<late>"}, "tokenizer.json")
    library = tokenizers.Tokenizer.from_str(json.dumps(document))
    assert ours.pad_id == first
    assert ours.encode_sentences(["the ZZ"])[0].tolist() == library.encode("the ZZ", add_special_tokens=False).ids
    assert ours.tokens[first - 1].startswith("[no token")


def test_fingerprint_matches_the_recorded_value() -> None:
    """It must not change, because checkpoints and stores with another fingerprint are refused."""
    document = json.loads(TOKENIZER.files["tokenizer.json"])
    document["model"]["ignore_merges"] = False  # an option that a later library might write
    later = make_tokenizer(json.dumps(document).encode(), {}, "tokenizer.json")
    assert TOKENIZER.fingerprint == later.fingerprint
    assert make_tokenizer(PINNED, {}, "tokenizer.json").fingerprint[:16] == "580ea776a9dc2a46"


PINNED = json.dumps(
    {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": {
            "type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": None,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100,
                  "vocab": {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "a": 5, "##b": 6}},
    }
).encode()  # fmt: skip


@pytest.mark.parametrize(
    ("roles", "flags", "text"),
    [
        ({}, {"normalized": True}, "[sep]"),
        ({"sep": "||"}, {}, "a | a"),
        ({"sep": "<s>"}, {"normalized": True}, "\u226es\u226f"),
        ({"sep": "[SEP]"}, {"single_word": True}, "a a"),
    ],
)
def test_special_tokens_are_not_recognised_in_text(roles: dict, flags: dict, text: str) -> None:
    document = json.loads(PINNED)
    names = {role: f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")} | roles
    pieces = [*names.values(), "a", "##b", "|", "<", ">", "s", "[", "]", "sep"]
    document["model"]["vocab"] = {token: number for number, token in enumerate(pieces)}
    document["added_tokens"] = [
        PLAIN_TOKEN | {"id": number, "content": name, "special": True} | flags
        for number, name in enumerate(names.values())
    ]
    role_tokens = {f"{role}_token": name for role, name in names.items()}
    tokenizer = make_tokenizer(json.dumps(document).encode(), role_tokens, "tokenizer.json")
    texts = [text, "a", "ab", text]
    ours = [ids.tolist() for ids in tokenizer.encode_sentences(texts)]
    assert not {*names.values()} & {tokenizer.tokens[number] for ids in ours for number in ids} - {"[UNK]"}
    document["added_tokens"] = []
    library = tokenizers.Tokenizer.from_str(json.dumps(document))
    assert ours == [library.encode(one, add_special_tokens=False).ids for one in texts]
