"""Regression cases of tokenizer folders: a small input for each, with the right ids.

Ids are compared with transformers' `AutoTokenizer`; short expected tokens are written out too. `test_tokenizer_matrix`
lists the surprising rules of transformers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizer_vocabularies as vocabularies
from exported_models import trained_model
from family_models import family_model, tokenizer_of
from tokenizer_folders import MARKER, composed_texts, hard_texts, kinds, reference_ids, reference_tokenizer
from tokenizer_vocabularies import BERT_ROLES, LINES, UNUSED
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from bertjax.convert.huggingface.exporter import export_huggingface
from bertjax.convert.huggingface.tokenizer_files import read_tokenizer

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'bertjax[test]'")
KOREAN = (
    "서울은 대한민국의 수도이다.", "한국어를 배우고 있습니다.", "오늘은 날씨가 좋아서 공원에 갔다.",
    "박물관은 1877년에 열렸다.", "그는 학교에서 수학과 과학을 가르친다.", "우리는 김치와 밥을 먹고 차를 마셨다.",
)  # fmt: skip
_WORDS = (
    "że", "wysoką", "izbę", "ze", "wysoka", "izbe", "Że", "a", "ab", "abc", "##b", "##c", "##d", "museum", "##museum",
)  # fmt: skip
_ADDED = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False) | {"content": MARKER, "special": True}


def write(folder: Path, **files: Any) -> Path:
    """Write files into a folder by name, with `__` for the dot; objects as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = folder / name.replace("__", ".")
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content, ensure_ascii=False), "utf-8")
    return folder


def words_json(words: Sequence[str], normalizer: Any = None, **model: Any) -> dict[str, Any]:
    """A `tokenizer.json` of BERT's kind with its five special tokens, followed by these."""
    tokens = [*BERT_ROLES.values(), *words]
    tokenizer = Tokenizer(models.WordPiece({token: n for n, token in enumerate(tokens)}, unk_token="[UNK]", **model))
    tokenizer.normalizer = normalizer or normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return json.loads(tokenizer.to_str())


def vocab_txt(words: Sequence[str]) -> str:
    """The same tokens as a `vocab.txt`."""
    return "\n".join([*BERT_ROLES.values(), *words]) + "\n"


def tokenizer_config(class_name: str, roles: Mapping[str, str] = BERT_ROLES, **keys: Any) -> dict[str, Any]:
    """A `tokenizer_config.json`."""
    return {"tokenizer_class": class_name, **{f"{role}_token": token for role, token in roles.items()}, **keys}


def write_bert(folder: Path, **files: Any) -> Path:
    """Write a folder of BERT; its config names BERT's own tokenizer class unless `files` has another config."""
    defaults = {"config__json": {"model_type": "bert"}, "tokenizer_config__json": tokenizer_config("BertTokenizer")}
    return write(folder, **(defaults | files))


def check(folder: Path, family: str, texts: Sequence[str]) -> list[list[int]]:
    """Return our ids after checking that they equal transformers'."""
    tokenizer = read_tokenizer(folder, family)
    ours = [ids.tolist() for ids in tokenizer.encode_sentences(texts)]
    assert ours == reference_ids(reference_tokenizer(folder), texts, forged=True)
    assert ours == [tokenizer.encode_sentences([text])[0].tolist() for text in texts]
    return ours


def word_ids(*words: str) -> list[int]:
    """The ids of words in the vocabulary of this file."""
    return [len(BERT_ROLES) + _WORDS.index(word) for word in words]


# 1. Which file wins


def test_config_without_accents_stripped_wins(tmp_path: Path) -> None:
    """BERT's own class takes `strip_accents` from the config if `tokenizer.json` has null."""
    config = tokenizer_config("BertTokenizer", do_lower_case=True, strip_accents=False)
    whole = words_json(_WORDS, normalizers.BertNormalizer(lowercase=True, strip_accents=None))
    write_bert(tmp_path, tokenizer__json=whole, tokenizer_config__json=config)
    assert check(tmp_path, "bert", ["że wysoką izbę"]) == [word_ids("że", "wysoką", "izbę")]


def test_class_default_wins_over_kept_accents(tmp_path: Path) -> None:
    """Without the key, BERT's own class strips accents if it lower-cases, and ignores `tokenizer.json`."""
    whole = words_json(_WORDS, normalizers.BertNormalizer(lowercase=True, strip_accents=False))
    for name, words in {
        "BertTokenizer": ("ze", "wysoka", "izbe"),
        "TokenizersBackend": ("że", "wysoką", "izbę"),
    }.items():
        folder = write_bert(tmp_path / name, tokenizer__json=whole, tokenizer_config__json=tokenizer_config(name))
        assert check(folder, "bert", ["że wysoką izbę"]) == [word_ids(*words)]


# 2. The longest word


@pytest.mark.parametrize("length", [100, 101, 200, 201])
def test_longest_word_has_a_hundred_characters(length: int, tmp_path: Path) -> None:
    """BERT's own class ignores the limit of `tokenizer.json`; characters are counted after normalisation."""
    text = ("museum" * 40)[: length - 1] + "d"
    words = (*_WORDS, *(f"##{sign}" for sign in "mues"))
    whole = words_json(words, max_input_chars_per_word=3)
    files = {"vocab__txt": vocab_txt(words)}, {"tokenizer__json": whole}
    for n, some in enumerate(files):
        folder = write_bert(tmp_path / str(n), **some)
        (ids,) = check(folder, "bert", [text])
        assert (ids == [1]) == (length > 100)


# 3. Tokens that a folder adds


@pytest.mark.parametrize("where", ["added_tokens.json", "additional_special_tokens", "added_tokens_decoder"])
@pytest.mark.parametrize("file", ["vocab.txt", "tokenizer.json"])
def test_marker_in_place_of_unused_token_is_one_id(file: str, where: str, tmp_path: Path) -> None:
    """It has a row of the word table, which fine-tuning with entity markers trains."""
    words = (MARKER, *_WORDS)
    config, more = tokenizer_config("BertTokenizer"), {}
    if where == "added_tokens.json":
        more = {"added_tokens__json": {MARKER: 5}}
    elif where == "additional_special_tokens":
        config[where] = [MARKER]
    else:
        config[where] = {"5": _ADDED}
    more |= {"vocab__txt": vocab_txt(words)} if file == "vocab.txt" else {"tokenizer__json": words_json(words)}
    write_bert(tmp_path, tokenizer_config__json=config, **more)
    theirs = reference_ids(reference_tokenizer(tmp_path), [f"abc {MARKER} museum"])
    ours = read_tokenizer(tmp_path, "bert").encode_sentences([f"abc {MARKER} museum"])[0].tolist()
    ids = {word: 5 + n for n, word in enumerate(words)}
    assert [ours] == theirs == [[ids["abc"], ids[MARKER], ids["museum"]]]


def test_marker_behind_the_vocabulary_is_one_id_or_refused(tmp_path: Path) -> None:
    """A model whose word table was not enlarged has no row for it."""
    number = 5 + len(_WORDS)
    config = tokenizer_config("BertTokenizer", added_tokens_decoder={str(number): _ADDED})
    write_bert(tmp_path, tokenizer_config__json=config, vocab__txt=vocab_txt(_WORDS))
    assert reference_ids(reference_tokenizer(tmp_path), [f"abc {MARKER}"]) == [[*word_ids("abc"), number]]
    try:
        read = read_tokenizer(tmp_path, "bert")
    except ValueError as error:
        assert str(tmp_path) in str(error) and MARKER in str(error)
    else:
        assert read.encode_sentences([f"abc {MARKER}"])[0].tolist() == [*word_ids("abc"), number]


def test_text_cannot_forge_special_tokens(tmp_path: Path) -> None:
    """Special tokens are plain text in a corpus, while other added tokens are recognised."""
    write_bert(tmp_path, vocab__txt=vocab_txt((MARKER, *_WORDS)), added_tokens__json={MARKER: 5})
    ours = read_tokenizer(tmp_path, "bert").encode_sentences([f"[MASK] {MARKER} [SEP][CLS]"])[0].tolist()
    assert ours.count(5) == 1 and not {2, 3, 4} & {*ours}


# 4. Kinds


PIECES = ("albert", "xlm-roberta", "camembert", "deberta-v2", "bigbird")


def make_folder(kind_name: str, directory: Path, is_whole: bool, **keys: Any) -> tuple[Path, str]:
    """Write a folder of a kind with its main class, with only `tokenizer.json` or without; returns (folder, family)."""
    kind = next(kind for kind in kinds() if kind.name == kind_name)
    draft = kind.start()
    for choice in ("class", "roles"):
        next(iter(kind.choices[choice].values()))(draft)
    if is_whole:
        draft.legacy, draft.more = {}, {}
    else:
        draft.whole = None
    draft.config |= keys
    draft.write(directory)
    return directory, kind.family


@pytest.mark.parametrize("kind", [*PIECES, "deberta-v3"])
def test_unigram_in_tokenizer_json_is_read(kind: str, tmp_path: Path) -> None:
    """transformers 5 saves only this file for these classes."""
    folder, family = make_folder(kind, tmp_path / "saved", is_whole=True)
    check(folder, family, hard_texts())
    reference_tokenizer(folder).save_pretrained(tmp_path / "again")
    write(tmp_path / "again", config__json=json.loads((folder / "config.json").read_text()))
    check(tmp_path / "again", family, hard_texts())


def test_exported_unigram_is_read_after_saving_again(tmp_path: Path) -> None:
    """Our export, loaded and saved by transformers, which drops `spiece.model`."""
    folder = export_huggingface(family_model(tmp_path / "run", "albert"), tmp_path / "export")
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    theirs.save_pretrained(tmp_path / "again")
    write(tmp_path / "again", config__json=(folder / "config.json").read_text())
    before = read_tokenizer(folder, "albert").encode_sentences(hard_texts())
    after = read_tokenizer(tmp_path / "again", "albert").encode_sentences(hard_texts())
    expected = reference_ids(theirs, hard_texts(), forged=True)
    assert [ids.tolist() for ids in before] == expected
    assert [ids.tolist() for ids in after] == expected


@pytest.mark.parametrize("texts", [composed_texts(), hard_texts()], ids=["composed", "all"])
def test_pieces_with_byte_fallback_have_their_own_ids(texts: list[str], tmp_path: Path) -> None:
    """The ids equal sentencepiece's, which DeBERTa v3 was trained with.

    DebertaV2Tokenizer of transformers 5.24 makes an unknown character [UNK], and does not normalise it. `tokenizers`
    composes fewer marks than sentencepiece, and takes "<0x41>" in text for that byte.
    """
    from sentencepiece import SentencePieceProcessor

    folder, family = make_folder("deberta-v3", tmp_path, is_whole=False)
    model = SentencePieceProcessor(model_file=str(folder / "spm.model"))
    tokenizer = read_tokenizer(folder, family)
    ours = [ids.tolist() for ids in tokenizer.encode_sentences(texts)]
    assert ours == model.encode(texts)
    (ids,) = tokenizer.encode_sentences(["龘"])
    assert [tokenizer.tokens[number] for number in ids] == ["▁", "<0xE9>", "<0xBE>", "<0x98>"]


def test_unknown_characters_are_bytes_in_gemmas_kind(tmp_path: Path) -> None:
    folder, family = make_folder("gemma", tmp_path, is_whole=True)
    tokenizer = read_tokenizer(folder, family)
    (ids,) = check(folder, family, ["龘"])
    assert [tokenizer.tokens[number] for number in ids] == ["<0xE9>", "<0xBE>", "<0x98>"]
    assert tokenizer.unk_id not in ids


@pytest.mark.parametrize("kind", ["roberta", "deberta", "modernbert", "llama", "gemma"])
def test_nul_character_is_dropped(kind: str, tmp_path: Path) -> None:
    """Byte vocabularies drop it too, though they have a token for it: every tokenizer sees the same text."""
    folder, family = make_folder(kind, tmp_path, is_whole=True)
    encode = read_tokenizer(folder, family).encode_sentences
    dropped = [ids.tolist() for ids in encode(["a\0b", "\0", "a \0 b"])]
    assert dropped == [ids.tolist() for ids in encode(["ab", "", "a  b"])] == check(folder, family, ["ab", "", "a  b"])


@pytest.mark.parametrize(
    ("kind", "is_whole"),
    [(kind, is_whole) for kind in ("bert", "mpnet", "roberta", "deberta", *PIECES) for is_whole in (True, False)]
    + [(kind, True) for kind in ("modernbert", "llama", "gemma", "japanese")],
)
def test_roles_equal_the_reference(kind: str, is_whole: bool, tmp_path: Path) -> None:
    """A tokenizer without [CLS] and [SEP] uses its tokens of the beginning and the end instead."""
    folder, family = make_folder(kind, tmp_path, is_whole)
    theirs, ours = reference_tokenizer(folder), read_tokenizer(folder, family)
    first = theirs.bos_token_id if theirs.cls_token_id is None else theirs.cls_token_id
    last = theirs.eos_token_id if theirs.sep_token_id is None else theirs.sep_token_id
    expected = [theirs.pad_token_id, first, last, theirs.mask_token_id]
    assert [ours.pad_id, ours.cls_id, ours.sep_id, ours.mask_id] == expected
    assert theirs.unk_token_id in (None, ours.unk_id)
    assert ours.tokens == theirs.convert_ids_to_tokens([*range(len(theirs))])


# 5. Broken vocabularies


def test_vocab_txt_with_byte_order_mark_is_named(tmp_path: Path) -> None:
    """transformers treats the mark as a part of the first token, and adds another [PAD] at the end."""
    write_bert(tmp_path, vocab__txt="\ufeff" + vocab_txt(_WORDS))
    try:
        read = read_tokenizer(tmp_path, "bert")
    except ValueError as error:
        assert str(tmp_path) in str(error) and ("BOM" in str(error) or "byte order mark" in str(error))
    else:
        assert read.tokens[0] == "[PAD]" and read.vocab_size == 5 + len(_WORDS)
        assert read.encode_sentences(["abc museum"])[0].tolist() == word_ids("abc", "museum")


def test_repeated_token_is_refused_with_advice_to_rename(tmp_path: Path) -> None:
    """Removing one would shift every later id. transformers takes the second."""
    write_bert(tmp_path, vocab__txt=vocab_txt(("abc", "museum", "ab", "museum", "a")))
    with pytest.raises(ValueError, match=r"(?i)renam") as caught:
        read_tokenizer(tmp_path, "bert")
    assert str(tmp_path) in str(caught.value) and "remove" not in str(caught.value)


@pytest.mark.parametrize("words", [("abc", "", "ab", "museum"), ("abc", "", "ab", "museum", "")], ids=["one", "two"])
def test_empty_line_shifts_no_id(words: tuple[str, ...], tmp_path: Path) -> None:
    """It is a token that no text contains, as in transformers, or is refused with advice that shifts no id."""
    write_bert(tmp_path, vocab__txt=vocab_txt(words))
    try:
        ours = check(tmp_path, "bert", ["abc museum"])
    except ValueError as error:
        assert str(tmp_path) in str(error) and "renam" in str(error) and "remove" not in str(error)
    else:
        assert ours == [[5, 8]]


# 6. Normalisation


def _decomposed(texts: Sequence[str]) -> list[str]:
    return [normalizers.NFD().normalize_str(text) for text in texts]


def test_own_vocabulary_that_strips_accents_has_korean(tmp_path: Path) -> None:
    """Training and encoding normalise alike: text is recomposed after accents are stripped."""
    tokenizer = tokenizer_of("albert", [*KOREAN, *LINES])
    assert tokenizer.rules.strip_accents
    for texts in (KOREAN, _decomposed(KOREAN)):
        for text, ids in zip(texts, tokenizer.encode_sentences(texts), strict=True):
            assert len(ids) and tokenizer.unk_id not in ids, text
    folder = export_huggingface(trained_model(tmp_path / "run", tokenizer), tmp_path / "export")
    texts = [*KOREAN, *_decomposed(KOREAN)]
    ours = [ids.tolist() for ids in tokenizer.encode_sentences(texts)]
    assert ours == reference_ids(transformers.AutoTokenizer.from_pretrained(folder), texts)


@pytest.mark.parametrize("is_whole", [True, False])
def test_lower_case_of_deberta_keeps_accents(is_whole: bool, tmp_path: Path) -> None:
    folder, family = make_folder("deberta-v2", tmp_path, is_whole, do_lower_case=True)
    upper, lower, stripped = check(folder, family, ["NAÏVE CAFÉ", "naïve café", "naive cafe"])
    assert upper == lower != stripped
    check(folder, family, hard_texts())


@pytest.mark.parametrize("kind", ["roberta", "xlm-roberta", "camembert", "bigbird"])
def test_lower_case_key_of_cased_classes_is_ignored(kind: str, tmp_path: Path) -> None:
    """These classes have no such key in transformers. The folder has no `tokenizer.json`."""
    texts = [" The Museum", " the museum"]
    folder, family = make_folder(kind, tmp_path / "true", is_whole=False, do_lower_case=True)
    plain, _ = make_folder(kind, tmp_path / "plain", is_whole=False)
    upper, lower = check(folder, family, texts)
    assert upper != lower
    assert [upper, lower] == check(plain, family, texts)


def test_cases_name_tokens_of_the_vocabularies() -> None:
    """The unused token that a marker replaces is in the vocabularies of the matrix."""
    assert UNUSED[0] in vocabularies.wordpiece_vocabulary() and MARKER not in vocabularies.wordpiece_vocabulary()
