"""Tables of similar words, made from word vectors by functions and by `bertjax neighbors --output`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_models import WORDS, small_model, wordpiece

from bertjax.__main__ import main
from bertjax.interpret.neighbors import static_vectors
from bertjax.text.similar_words import nearest_words, parse, read_vectors, to_text, usable_ids

TOKENIZER = wordpiece()


def brute_force(words: list[str], ids: list[tuple[int, ...]], vectors: np.ndarray, count: int) -> dict[str, tuple]:
    """Compute the table from its definition, word by word."""
    usable = [n for n in range(len(words)) if ids[n] and vectors[n].any() and ids[n] not in ids[:n]]
    table = {}
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    for n in usable:
        others = [m for m in usable if m != n and len(ids[m]) == len(ids[n])]
        cosine = (unit @ unit[n]).tolist()
        near = sorted(others, key=lambda m: -cosine[m])[:count]
        if near:
            table[words[n]] = tuple(words[m] for m in near)
    return table


def test_nearest_words_match_the_definition() -> None:
    rng = np.random.default_rng(0)
    count = 2_200  # words of three tokens fill more than a block
    ids = [tuple(rng.integers(0, 60, rng.choice([0, 1, 3, 3, 3])).tolist()) for _ in range(count)] + [(1, 2, 3, 4)]
    vectors = rng.normal(size=(count + 1, 12))
    vectors[17] = 0
    words = [f"w{n}" for n in range(count + 1)]
    table = nearest_words(words, ids, vectors, 3)
    assert table == brute_force(words, ids, vectors, 3)
    assert len(table) > 1_200 and f"w{count}" not in table
    assert parse(to_text(table).encode(), "") == table


def test_words_outside_the_vocabulary_have_no_tokens() -> None:
    assert usable_ids(TOKENIZER, ["Bank", "北", "strawberries"]) == [
        (TOKENIZER.tokens.index("bank"),),
        (),
        (TOKENIZER.tokens.index("straw"), TOKENIZER.tokens.index("##berries")),
    ]


@pytest.mark.parametrize("head", ["", "4 2\n"])
def test_vectors_are_read_with_and_without_counts(head: str, tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text(
        f"{head}bank 1 2.5\nnew york -1 1e-3\nbank 7 7\nriver 0 1 \n" if head else "bank 1 2.5\nriver 0 1\n"
    )
    words, vectors = read_vectors(str(path), 10)
    assert words == (["bank", "new york", "river"] if head else ["bank", "river"])
    assert vectors[0].tolist() == [1, 2.5] and vectors.dtype == np.float32
    assert read_vectors(str(path), 1)[0] == ["bank"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no vectors in it"),
        (b"bank 1 2\nriver 1\n", "line 2: expected a word and 2 numbers"),
        (b"bank 1 2\nriver 1 nan\n", "line 2: expected a word and 2 numbers"),
        (b"bank 1 2\nriver 1 x\n", "line 2: expected a word and 2 numbers"),
        (b"bank\n", "line 1: expected a word and 1 numbers"),
        (b"2 3\nbank 1 2\n", "line 2: expected a word and 3 numbers"),
        (b"bank 1 2\n\x80\x03 1 2\n", "line 2: not UTF-8 at byte 0; give vectors in text format"),
    ],
)
def test_bad_vectors_are_refused_by_line(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "vectors.txt").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_vectors(str(tmp_path / "vectors.txt"), 10)


def test_command_makes_a_table_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for word in WORDS if word.isalpha()] + ["Bank", "北", "strawberries", "sweetberries"]
    vectors = np.random.default_rng(1).normal(size=(len(words), 8)).round(3)
    lines = (" ".join([word, *map(str, vector)]) for word, vector in zip(words, vectors.tolist(), strict=True))
    (tmp_path / "vectors.txt").write_text(f"{len(words)} 8\n" + "\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "vocab.txt").write_bytes(TOKENIZER.files["vocab.txt"])
    output = tmp_path / "similar.tsv"
    command = ["neighbors", f"{tmp_path}/vectors.txt", "--output", str(output)]
    assert main(command) == 1
    assert "name with --vocab the vocabulary" in capsys.readouterr().err
    command += ["--vocab", f"{tmp_path}/vocab.txt"]
    assert main([*command, "--nearest", "3"]) == 0
    table = parse(output.read_bytes(), "")
    assert table == brute_force(words, usable_ids(TOKENIZER, words), vectors.astype(np.float32), 3)
    assert table["strawberries"] == ("sweetberries",) and "北" not in table and "Bank" not in table
    assert (
        f"{len(table)} of {len(words)} words have similar words with the same number of tokens: {output}"
        in capsys.readouterr().out
    )
    assert main(command) == 1
    assert "add --overwrite to replace it" in capsys.readouterr().err


def test_static_vectors_are_centred_embeddings(tmp_path: Path) -> None:
    model = small_model(tmp_path)
    words, vectors = static_vectors(model)
    assert "bank" in words and "##berries" not in words and "berries" not in words and "," not in words
    table = np.asarray(model.params["encoder"]["embeddings"]["word"])[: TOKENIZER.vocab_size]
    centred = table - table[[TOKENIZER.tokens.index(word) for word in words if len(word) > 1]].mean(axis=0)
    unit = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors, unit[[TOKENIZER.tokens.index(word) for word in words]], atol=1e-6)
    found_words, word_vectors = static_vectors(model, ["Bank", "北", "strawberries"])
    assert found_words == ["Bank", "strawberries"]
    pieces = [TOKENIZER.tokens.index(piece) for piece in ("straw", "##berries")]
    np.testing.assert_allclose(word_vectors[1], unit[pieces].mean(axis=0), atol=1e-6)


@pytest.mark.parametrize("head", ["", "3 2\n"])
def test_byte_order_mark_is_not_part_of_the_first_word(head: str, tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text(f"\ufeff{head}array 0.1 0.2\nlist 0.2 0.2\nnumber 1 0\n", encoding="utf-8")
    words, vectors = read_vectors(str(path), 10)
    assert words == ["array", "list", "number"] and vectors.shape == (3, 2)
