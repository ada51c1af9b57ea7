"""`bertjax inspect` on a store and on a recipe, as text and as a page, and with invalid arguments."""

from __future__ import annotations

import json
import lzma
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from stored_documents import write_store

from bertjax.__main__ import main
from bertjax.config import DataConfig
from bertjax.text.prepare import prepare
from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.wordpiece import SPECIAL_TOKENS, WordPiece

WORDS = [f"{a}{b}{c}" for a in "bdfgklm" for b in "aeiou" for c in "nrst"]
TOKENIZER = WordPiece([*SPECIAL_TOKENS, "<b>", "&amp", "##ing", *WORDS], TextRules(True, True))
VOID = {"meta", "br", "i"}

RECIPE = """
from bertjax.config import Config, DataConfig, ModelConfig, StageConfig, TrainingConfig

def config():
    return Config(
        model=ModelConfig(max_position_embeddings=96),
        data=DataConfig(vocab_size=120, sequence_length=32, max_predictions=5, held_out=0.2, workers=1),
        training=TrainingConfig(steps=20_000),
        stages=STAGES,
    )
"""


def documents(number, seed):
    draw = np.random.default_rng(seed)
    lengths = draw.integers(3, 9, number)
    return [[draw.integers(5, len(TOKENIZER.tokens), draw.integers(4, 30)).tolist() for _ in range(n)] for n in lengths]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    train = documents(40, 0)
    splits = {"train": [*train, train[2], train[2], train[4][:-1]], "held_out": [*documents(4, 1), train[6]]}
    return write_store(tmp_path_factory.mktemp("verb") / "store", splits, TOKENIZER)


def words(ids):
    return " ".join(TOKENIZER.tokens[n] for n in ids)


class Page(HTMLParser):
    """Checks that tags are closed in order, and collects tags, attributes and text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.seen, self.texts = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID - {"i"}:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_store_is_reported_in_text_and_as_a_page(store, tmp_path, capsys):
    against = tmp_path / "test set.txt"
    against.write_text(f"{words(documents(40, 0)[9][0])}\n")
    page = tmp_path / "page.html"
    arguments = ["inspect", str(store), "--length", "32", "64", "--against", str(against), "--html", str(page)]
    assert main(arguments) == 0
    output = capsys.readouterr().out
    for part in ("Contents", "Lengths", "Words and the vocabulary", "Rows", "Duplicates", "[MASK:", "IsNext"):
        assert part in output
    assert re.search(r"exact +43 +1 +2 ", output)
    assert re.search(r"near +41 +1 +1 ", output)
    assert re.search(r"held-out documents \(5\) +GPT-3, 13 tokens +5 +1 +20\.0%", output)
    assert re.search(r"test set\.txt \(1\) ", output)
    assert max(map(len, output.splitlines())) <= 200
    assert output.splitlines()[-1].startswith(f"page: {page}; next: ")
    html = page.read_text(encoding="utf-8")
    parsed = Page(html)
    assert parsed.open == []
    assert [tag for tag, _ in parsed.seen].count("svg") == 7
    assert not [tag for tag, _ in parsed.seen if tag in ("script", "link", "img", "iframe", "b>")]
    assert "default-src 'none'" in html and "http" not in re.sub(r"http-equiv", "", html)
    text = " ".join(parsed.texts)
    assert "<b>" in text and "&amp" in text, "tokens that look like markup are text"
    for word in output.split("Rows\n----")[0].split():
        assert word in text or not re.fullmatch(r"[\d,]{5,}", word), word
    assert main(arguments) == 0
    assert page.read_text(encoding="utf-8") == html, "the same every time"


def test_store_has_the_usual_lengths_by_default(store, capsys):
    assert main(["inspect", str(store)]) == 0
    output = capsys.readouterr().out
    rows = re.findall(r"^  (\d+) +none ", output, re.M)
    assert rows == ["128", "512"]
    assert "--html inspect.html" in output.splitlines()[-1]


@pytest.mark.parametrize(
    ("stages", "options", "lengths"),
    [
        ("()", [], ["32"]),
        ("(StageConfig(start=15_000, sequence_length=64, max_predictions=9),)", [], ["32 (stage 1)", "64 (stage 2)"]),
        ("(StageConfig(start=15_000, sequence_length=64),)", ["--length", "16"], ["16"]),
        ("()", ["--length", "16", "--length", "24", "32"], ["16", "24", "32"]),
    ],
)
def test_recipe_is_prepared_and_shows_its_stages(tmp_path, capsys, stages, options, lengths):
    recipe = tmp_path / "recipe.py"
    recipe.write_text(RECIPE.replace("STAGES", stages))
    texts = ["\n".join(words(sentence).replace("[", "(") for sentence in d) for d in documents(60, 3)]
    (tmp_path / "corpus.txt").write_text("\n\n".join(texts))
    overrides = ["--data.root", str(tmp_path / "data"), "--data.sources", f"lines:{tmp_path}/corpus.txt"]
    assert main(["inspect", str(recipe), *options, *overrides]) == 0
    output = capsys.readouterr().out
    assert re.findall(r"^  (\d+(?: \(stage \d\))?) +none ", output, re.M) == lengths
    assert "lines: corpus.txt" in output
    assert output.splitlines()[-1].endswith(f"next: {shlex.join(['bertjax', 'pretrain', str(recipe), *overrides])}")


def test_rows_of_running_text(tmp_path, capsys):
    texts = [" ".join(TOKENIZER.tokens[n] for s in d for n in s if n > 8) + "." for d in documents(40, 5)]
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (tmp_path / "recipe.py").write_text(RECIPE.replace("STAGES", "()"))
    command = ["inspect", str(tmp_path / "recipe.py"), "--html", str(tmp_path / "page.html")]
    command += ["--data.sources", f"jsonl:{tmp_path}/text.jsonl", "--data.root", str(tmp_path / "data")]
    assert main([*command, "--data.rows", "doc_sentences", "--training.objectives", "mlm"]) == 0
    shown = capsys.readouterr().out
    (line,) = [line for line in shown.splitlines() if "doc_sentences  " in line]
    assert line.split()[-2:] == ["-", "-"] and "row 0, running text" in shown and "    B  " not in shown
    Page((tmp_path / "page.html").read_text()).close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: neither the directory of a token store nor a recipe"),
        (["STORE", "--training.seed", "3"], "takes no overrides"),
        (["STORE", "--length", "7"], "--length 7: rows have 8 to"),
        (["STORE", "--length", "70000"], "--length 70000: rows have 8 to"),
        (["STORE", "--against", "nowhere.tsv"], "nowhere.tsv: cannot be read"),
        (["STORE", "--html", "EMPTY"], "it is a directory"),
        (["STORE", "--html", "EMPTY/there/page.html"], "there is no directory"),
    ],
)
def test_bad_arguments_are_named_in_one_line(store, tmp_path, capsys, arguments, message):
    places = {"STORE": str(store), "EMPTY": str(tmp_path)}
    arguments = [re.sub("STORE|EMPTY", lambda found: places[found[0]], one) for one in arguments]
    assert main(["inspect", *arguments]) == 1
    output = capsys.readouterr().err
    assert output.startswith("bertjax inspect: ") and message in output
    assert output.count("\n") == 1


def test_damaged_store_is_named(tmp_path, capsys):
    path = write_store(tmp_path / "store", {"train": documents(4, 0), "held_out": documents(2, 1)}, TOKENIZER)
    tokens = path / "train-00000.tokens"
    content = bytearray(tokens.read_bytes())
    content[9] ^= 1
    tokens.write_bytes(content)
    assert main(["inspect", str(path)]) == 1
    assert "train-00000.tokens: the block at byte 0 is damaged" in capsys.readouterr().err


def test_inspecting_a_store_imports_no_jax(store):
    code = (
        "import sys\nfrom bertjax.__main__ import main\n"
        f"assert main(['inspect', {str(store)!r}, '--length', '32']) == 0\n"
        "sys.exit('jax' in sys.modules or 'tensorflow' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr


def test_real_text_overlaps_only_itself(real_data, tmp_path, capsys):
    articles = (
        lzma.decompress((real_data / "wikipedia_en" / "AA_00.txt.xz").read_bytes()).decode().split("</doc>")[:300]
    )
    source = tmp_path / "articles"
    source.write_text("</doc>".join([*articles, *articles[:7]]) + "</doc>\n", encoding="utf-8")
    vocab = str(real_data / "vocab" / "bert-base-uncased" / "vocab.txt")
    prepared = prepare(
        DataConfig(sources=(f"wikiextractor:{source}",), root=str(tmp_path), vocab=vocab, held_out=0.2, workers=1)
    )
    lines = [
        line for article in articles for line in article.splitlines() if len(line.split()) > 25 and "<" not in line
    ]
    own, other = tmp_path / "own.txt", tmp_path / "other.tsv"
    own.write_text("\n".join(lines), encoding="utf-8")
    other.write_text("1\tThe committee will publish the minutes of its meeting on the web site of the city by noon.\n")
    assert main(["inspect", str(prepared), "--against", str(own), str(other)]) == 0
    output = capsys.readouterr().out
    assert re.search(r"other\.tsv \(1\) +GPT-3, 13 tokens +1 +0 +0\.0% +0\.00%", output)
    (texts, flagged) = re.findall(r"own\.txt \(\d+\) +GPT-3, 13 tokens +([\d,]+) +([\d,]+)", output)[0]
    texts, flagged = (int(number.replace(",", "")) for number in (texts, flagged))
    # Four in five articles are trained on, and paragraphs differ in number from one to the next.
    assert texts == len(lines) > 200 and 0.6 < flagged / texts < 0.95
    (copies,) = re.findall(r"exact +[\d,]+ +\d+ +(\d+)", output)
    assert 0 < int(copies) <= 10
