"""MacBERT's masks follow every published rule over a million tokens; tables of similar words are read correctly."""

from __future__ import annotations

import lzma
import random
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import reference_masks
from pair_corpora import MemorySplit, random_documents
from scipy import stats

from bertjax.config import DataConfig, load_recipe
from bertjax.input.batches import RowBatches
from bertjax.input.masking.similar import ReplacedBySimilar, SimilarTable
from bertjax.input.training_data import open_training_data
from bertjax.storage.progress import no_progress
from bertjax.tokenization.segmentation import load_segmenter
from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.wordpiece import SPECIAL_TOKENS, WordPiece

FIRST, SIZE = len(SPECIAL_TOKENS), 300
LETTERS = "abcdefgh"
ROWS = 2_200
NEAR = 4  # similar words per word of the table


def spelled(number: int) -> str:
    """Three letters per token, so that a word has only one tokenization."""
    return LETTERS[number // 64] + LETTERS[number // 8 % 8] + LETTERS[number % 8]


TOKENS = [*SPECIAL_TOKENS, *(("##" if n % 3 == 0 else "") + spelled(n) for n in range(FIRST, SIZE))]
WORDPIECE = WordPiece(TOKENS, TextRules(True, True))
SPLIT = MemorySplit(random_documents(900, seed=6, sentences=60), vocab_size=SIZE)
STARTS = [n for n in range(FIRST, SIZE) if n % 3]
REST = [n for n in range(FIRST, SIZE) if n % 3 == 0]
# Words of one token, except every fifth one, and of two tokens; longer words have no similar ones.
WORDS = [(n,) for n in STARTS if n % 5] + [(a, b) for a in STARTS for b in REST]


def similar_words() -> dict[tuple[int, ...], list[tuple[int, ...]]]:
    rng, by_size = random.Random(3), {size: [word for word in WORDS if len(word) == size] for size in (1, 2)}
    return {word: rng.sample([w for w in rng.sample(by_size[len(word)], 9) if w != word], NEAR) for word in WORDS}


SIMILAR = similar_words()


def write_table(path: Path, table: dict[tuple[int, ...], list[tuple[int, ...]]]) -> str:
    texts = ("\t".join("".join(map(spelled, w)) for w in (word, *near)) for word, near in table.items())
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> DataConfig:
    path = write_table(tmp_path_factory.mktemp("table") / "similar.tsv", SIMILAR)
    return replace(load_recipe("configs/macbert.py").data, sources=(), segmenter="none", similar_words=path)


def close(count: int, total: int, share: float) -> bool:
    """Whether a count is within 4.5 standard deviations of a share, plus 1 % for chance hits."""
    return abs(count / total - share) < 4.5 * (share * (1 - share) / total) ** 0.5 + 0.01


def broken(data: DataConfig, rows: int) -> list[str]:
    """The names of the rules that the masks of some rows violate."""
    every = np.arange(rows)
    batch = RowBatches(SPLIT, WORDPIECE, data, 1, objectives=("mlm", "sop")).rows(every)
    unmasked = replace(data, keep_share=1.0, random_share=0.0)
    texts = RowBatches(SPLIT, WORDPIECE, unmasked, 1, objectives=("mlm", "sop")).rows(every)["input_ids"]
    rng, violations = random.Random(5), set()
    runs = {"ours": np.zeros(60), "reference": np.zeros(60)}
    kinds: dict[bool, list[str]] = {True: [], False: []}  # whether the table has the word
    chosen = np.zeros(NEAR)
    in_part, several, drawn = 0, 0, []
    for ids, inputs, positions, weights in zip(
        texts, batch["input_ids"], batch["mlm_positions"], batch["mlm_weights"], strict=True
    ):
        text = np.flatnonzero(ids >= FIRST)
        words = reference_masks.split_words(text.tolist(), (ids[text] % 3 == 0).tolist())
        hidden = positions[weights > 0].tolist()
        budget = min(data.max_predictions, max(1, round(0.15 * np.count_nonzero(ids != WORDPIECE.pad_id))))
        for side, places in (
            ("ours", hidden),
            ("reference", reference_masks.ngrams(words, (0.4, 0.3, 0.2, 0.1), budget, rng)),
        ):
            for length in reference_masks.runs(places):
                runs[side][min(length, 59)] += 1
        if (np.delete(inputs, hidden) != np.delete(ids, hidden)).any():
            violations.add("other tokens do not change")
        if (inputs[hidden] == WORDPIECE.mask_id).any():
            violations.add("no [MASK]")
        left = set(hidden)
        for word in words:
            if left.isdisjoint(word):
                continue
            if not left.issuperset(word):
                violations.add("whole words")
            was, now = tuple(ids[word].tolist()), tuple(inputs[word].tolist())
            near = SIMILAR.get(was, [])
            kind = "same" if now == was else "similar" if now in near else "random"
            kinds[bool(near)].append(kind)
            if kind == "similar":
                chosen[near.index(now)] += 1
            if kind == "random":
                drawn += now
            if len(word) > 2:
                several += 1
                in_part += kind == "random" and any(a == b for a, b in zip(was, now, strict=True))
    if in_part > 0.03 * several:
        violations.add("one draw for a word")
    known, unknown = kinds[True], kinds[False]
    shares = (("similar", 0.8), ("same", 0.1), ("random", 0.1))
    if not all(close(known.count(kind), len(known), share) for kind, share in shares):
        violations.add("80/10/10")
    if not all(close(unknown.count(kind), len(unknown), share) for kind, share in (("same", 0.1), ("random", 0.9))):
        violations.add("random where none is similar")
    if chosen.sum() and stats.chisquare(chosen).pvalue < 1e-4:
        violations.add("each similar word as often")
    seen = np.bincount(drawn, minlength=SIZE)
    if seen[:FIRST].any() or stats.chisquare(seen[FIRST:]).pvalue < 1e-4:
        violations.add("random tokens are ordinary ones")
    ours, theirs = runs["ours"], runs["reference"]
    # The difference of two Poisson numbers has their sum as its variance.
    if (np.abs(ours - theirs) > 4.5 * np.sqrt(ours + theirs + 4)).any():
        violations.add("lengths")
    return sorted(violations)


def test_macbert_masks_follow_every_published_rule(recipe: DataConfig) -> None:
    assert ROWS * recipe.sequence_length > 10**6
    assert broken(recipe, ROWS) == []


@pytest.mark.parametrize(
    ("left_out", "rule"),
    [
        pytest.param({"masking": "words", "ngram_shares": ()}, "lengths", marks=pytest.mark.long),
        pytest.param({"ngram_shares": (0.5, 0.3, 0.1, 0.1)}, "lengths", marks=pytest.mark.long),
        ({"ngram_shares": (0.5, 0.5)}, "lengths"),
        ({"similar_words": ""}, "no [MASK]"),
        ({"masking": "tokens", "ngram_shares": (), "similar_words": ""}, "whole words"),
        ({"random_share": 0.15}, "80/10/10"),
        pytest.param({"keep_share": 0.0}, "80/10/10", marks=pytest.mark.long),
        ({"random_ids": "vocabulary"}, "random tokens are ordinary ones"),
    ],
    ids=str,
)
def test_missing_rule_in_the_config_is_detected(recipe: DataConfig, left_out: dict, rule: str) -> None:
    assert rule in broken(replace(recipe, **left_out), 400)


def test_missing_rule_in_the_code_is_detected(recipe: DataConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    draw, choose = ReplacedBySimilar.draw, SimilarTable.choose

    def per_token(self, labels, positions, is_used, keys, continues):
        return draw(self, labels, positions, is_used, keys, np.zeros_like(continues))

    def all_known(self, tokens, sizes, bits):
        similar, is_known = choose(self, tokens, sizes, bits)
        return similar, np.ones_like(is_known)

    for owner, name, changed, rule in (
        (ReplacedBySimilar, "draw", per_token, "one draw for a word"),
        (SimilarTable, "choose", all_known, "random tokens are ordinary ones"),
        (SimilarTable, "choose", lambda *a: choose(*a[:3], np.zeros_like(a[3])), "each similar word as often"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, changed)
            assert rule in broken(recipe, 200)


def test_rows_do_not_depend_on_order_of_table_or_batch(recipe: DataConfig, tmp_path: Path) -> None:
    backwards = write_table(tmp_path / "other.tsv", dict(reversed(SIMILAR.items())))
    batches = RowBatches(SPLIT, WORDPIECE, recipe, 4, objectives=("mlm", "sop"))
    other = RowBatches(SPLIT, WORDPIECE, replace(recipe, similar_words=backwards), 4, objectives=("mlm", "sop"))
    every, some = batches.rows(np.arange(40)), other.rows(np.array([31, 3, 17]))
    assert all((some[key] == every[key][[31, 3, 17]]).all() for key in every)


def test_table_of_similar_words_by_hand(tmp_path: Path) -> None:
    one, two, three = spelled(7), spelled(8), spelled(10)
    rest = spelled(9)
    path = tmp_path / "table.tsv"
    lines = [f"{one}\t{two}\t{one}{rest}\t?\t{three}", f"{one.upper()}\t{three}", f"{two}{rest}\t{three}", "?\tabc"]
    path.write_bytes("\r\n".join(lines).encode())
    table = SimilarTable.read(str(path), WORDPIECE)
    assert table.tokens.tolist() == [8, 10] and table.sizes.tolist() == [1] and table.counts.tolist() == [2]
    bits = np.array([0, 2**64 - 1, 0, 0], np.uint64)
    similar, is_known = table.choose(np.array([7, 7, 8, 7, 9]), np.array([1, 1, 1, 2]), bits)
    assert similar[:2].tolist() == [8, 10] and is_known.tolist() == [True, True, False, False]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file; make one from word vectors with `bertjax neighbors --output`"),
        (b"abc\tabd\nabe\n", "line 2: 'abe'; a line has a word and similar ones, with tabs between"),
        (b"abc\tabd\n\nabe\tabf\n", "line 2: ''; a line has"),
        (b"abc\tabd\t\n", "line 1: .* a line has"),
        (b"abc\tabd\nabc\tabe\n", "line 2: 'abc' already has a line; remove one of them"),
        (b"abc\tab\xff\n", "line 1: not UTF-8 at byte 6"),
        (b"\xd9\x86\tabc\n", "no word has a similar word with the same number of tokens"),
        (b"", "line 1: ''; a line has"),
    ],
)
def test_bad_table_is_refused(content: bytes | None, message: str, recipe: DataConfig, tmp_path: Path) -> None:
    path = tmp_path / "bad.tsv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"data\.similar_words='.*bad\.tsv'.*{message}"):
        RowBatches(SPLIT, WORDPIECE, replace(recipe, similar_words=str(path)), 0, objectives=("mlm", "sop"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"masking": "tokens", "ngram_shares": ()},
            "only whole words have similar ones; set data.masking to one of wo",
        ),
        ({"masking": "spans", "ngram_shares": ()}, "with data.masking='spans': only whole words"),
        ({"replace_by": "span"}, r"data\.replace_by='span' with data\.similar_words has no effect"),
        ({"predict": "next", "masking": "tokens", "ngram_shares": (), "random_ids": "vocabulary"}, "has no effect"),
    ],
)
def test_invalid_options_are_refused(changes: dict, message: str, recipe: DataConfig) -> None:
    with pytest.raises(ValueError, match=message):
        RowBatches(SPLIT, WORDPIECE, replace(recipe, **changes), 0, objectives=("mlm", "sop"))


def test_fingerprint_depends_on_the_table(recipe: DataConfig, tmp_path: Path) -> None:
    rng, few = random.Random(1), dict(random.Random(2).sample(list(SIMILAR.items()), 500))
    sentences = ("".join(map(spelled, rng.choice(list(few)))) + " " for _ in range(4_000))
    text = "".join(word + ("\n\n" if n % 40 == 39 else ".\n" if n % 8 == 7 else "") for n, word in enumerate(sentences))
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    (tmp_path / "vocab.txt").write_bytes(WORDPIECE.files["vocab.txt"])
    tables = {"here": few, "moved": few, "other": {word: near[:1] for word, near in few.items()}}
    paths = [write_table(tmp_path / f"{name}.tsv", table) for name, table in tables.items()]
    runs = []
    for path in (*paths, ""):
        data = replace(
            recipe,
            sources=(f"text:{tmp_path}/text.txt",),
            vocab=str(tmp_path / "vocab.txt"),
            root=str(tmp_path / "data"),
            held_out=0.2,
            workers=1,
            sequence_length=64,
            similar_words=path,
        )
        content = open_training_data([data], no_progress, ("mlm", "sop"))
        runs.append((content.fingerprint, content.train(data, 0).rows(np.arange(4))["input_ids"].tobytes()))
    assert runs[0] == runs[1]
    assert len(set(runs)) == len({fingerprint for fingerprint, _ in runs}) == len({rows for _, rows in runs}) == 3


@pytest.mark.long  # tests above check the rules on generated text; tests/tokenization/test_segmentation.py uses jieba
def test_real_chinese_words_become_similar_words(real_data: Path, tmp_path: Path) -> None:
    """jieba's words of one to three characters, from Wikipedia, are looked up as a whole."""
    pytest.importorskip("jieba", reason="needs jieba; pip install 'bertjax[chinese]'")
    cut = load_segmenter("jieba")
    with lzma.open(real_data / "wikipedia_zh" / "zh_00.txt.xz", "rt", encoding="utf-8") as stream:
        text = stream.read(150_000).rpartition("</doc>")[0] + "</doc>\n"
    (tmp_path / "zh.txt").write_text(text, encoding="utf-8")
    words = sorted({word for word in cut(text) if re.fullmatch("[\u4e00-\u9fff]{1,3}", word)})
    by_length = {n: [word for word in words if len(word) == n] for n in (1, 2, 3)}
    table = {word: others[place - 1] for others in by_length.values() for place, word in enumerate(others)}
    (tmp_path / "similar.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in table.items()), encoding="utf-8")
    data = replace(
        load_recipe("configs/macbert.py").data,
        sources=(f"wikiextractor:{tmp_path}/zh.txt",),
        root=str(tmp_path / "data"),
        vocab=str(real_data / "vocab" / "bert-base-chinese" / "vocab.txt"),
        held_out=0.2,
        workers=1,
        sequence_length=128,
        max_predictions=20,
        similar_words=str(tmp_path / "similar.tsv"),
    )
    content = open_training_data([data], no_progress, ("mlm", "sop"))
    batch = content.train(data, 0).rows(np.arange(900))
    assert content.tokenizer.vocab_size == 21_128 and not (batch["input_ids"] == content.tokenizer.mask_id).any()
    tokens, kinds = content.tokenizer.tokens, []
    for inputs, positions, labels, weights in zip(
        *(batch[key] for key in ("input_ids", "mlm_positions", "mlm_labels", "mlm_weights")), strict=True
    ):
        used = weights > 0
        runs = np.split(np.flatnonzero(used), np.flatnonzero(np.diff(positions[used]) != 1) + 1)
        for run in runs:
            was, now = ("".join(tokens[n] for n in ids) for ids in (labels[run], inputs[positions[run]]))
            if was in table and len(was) == len(run) == 2 and list(cut(was)) == [was]:
                kinds.append("same" if now == was else "similar" if now == table[was] else "other")
    assert len(kinds) > 300
    assert abs(kinds.count("similar") / len(kinds) - 0.8) < 0.07, "two words of one character may look like one of two"
    assert abs(kinds.count("same") / len(kinds) - 0.1) < 0.05
