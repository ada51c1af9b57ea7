"""What a user may get wrong on a command line: each a sentence with the name, the value and what to do.

No traceback, nothing half written, and no model is read or text prepared before the refusal. Damage inside of files is
shown in more ways in tests/text/test_bad_input.py, tests/convert and tests/finetune.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from exported_models import trained_model
from generated_corpus import write_corpus
from tiny_runs import write_recipe

from bertjax.__main__ import main
from bertjax.convert.sources import write_run

RECIPES = {
    "broken.py": "def config(:\n",
    "raises.py": "def config():\n    return 1 / 0\n",
    "empty_recipe.py": "x = 1\n",
    "returns.py": "def config():\n    return {}\n",
    "typed.py": "from bertjax.config import Config, TrainingConfig\n\n"
    "def config():\n    return Config(training=TrainingConfig(steps='many'))\n",
}
TABLE = "text,label\n" + "".join(f"number {n},{'good' if n % 2 else 'bad'}\n" for n in range(40))


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a user: a recipe, a corpus, files of many kinds of damage, a run, and what is written already."""
    folder = tmp_path_factory.mktemp("desk")
    write_recipe(folder).rename(folder / "tiny.py")
    write_corpus(folder / "corpus.txt", 60)
    for name, text in RECIPES.items():
        (folder / name).write_text(text)
    (folder / "empty.txt").touch()
    (folder / "latin1.txt").write_bytes("Größe über Länge. ".encode("latin-1") * 50)
    (folder / "random.txt").write_bytes(bytes(range(256)) * 64)
    (folder / "bad.jsonl").write_text('{"text": "a"}\n{"text": \n')
    (folder / "fields.jsonl").write_text('{"body": "a"}\n')
    (folder / "bad.parquet").write_bytes(b"PAR1 no table")
    (folder / "cut.txt.gz").write_bytes(b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03KLJ")
    (folder / "few.txt").write_text("[PAD]\nword\n")
    (folder / "reviews.csv").write_text(TABLE)
    (folder / "same.csv").write_text("text,label\n" + "a,good\n" * 20)
    (folder / "texts.txt").write_text("One text.\nAnother.\n")
    write_run(trained_model(folder / "run"))
    (folder / "vectors.npy").write_text("mine")
    (folder / "exported").mkdir()
    (folder / "exported" / "config.json").write_text("mine")
    (folder / "hub").mkdir()
    (folder / "hub" / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    return folder


PRETRAIN = ["pretrain", "tiny.py", "--data.sources", "lines:corpus.txt"]


def of(*sources: str) -> list[str]:
    return ["pretrain", "tiny.py", "--data.sources", *sources]


TUNE = ["finetune", "classification", "--init-from", "run", "--train", "reviews.csv"]

# The words of a command, and parts of what it answers.
ROWS: list[tuple[list[str], list[str]]] = [
    # recipes
    (["pretrain", "quikstart"], []),
    (["pretrain", "nowhere.py"], []),
    (["pretrain", "configs/quickstart.py"], []),
    (["pretrain", "."], []),
    (["pretrain", "./exported/"], []),
    (["pretrain", "broken.py"], []),
    (["pretrain", "raises.py"], []),
    (["pretrain", "empty_recipe.py"], []),
    (["pretrain", "returns.py"], []),
    (["pretrain", "typed.py"], []),
    (["pretrain", "tiny.py:big"], []),
    (["pretrain", "roberta:huge"], []),
    (["recipes", "show", "albret"], []),
    (["recipes", "copy", "bert_mini", "tiny.py"], []),
    (["recipes", "copy", "bert_mini", "nowhere/mine.py"], []),
    (["recipes", "copy", "bert_mini", "mine.txt"], []),
    # keys
    ([*PRETRAIN, "--optimizer.learnin-rate", "1"], []),
    ([*PRETRAIN, "--training.steps", "many"], []),
    ([*PRETRAIN, "--training.steps", "0"], []),
    ([*PRETRAIN, "--training.global-batch-size", "9", "--mesh.data", "1"], []),
    ([*PRETRAIN, "--mesh.data", "3"], []),
    ([*PRETRAIN, "--data.held-out", "1.5"], []),
    ([*PRETRAIN, "--data.weights", "1", "2"], []),
    ([*PRETRAIN, "--data.sequence-length", "64"], []),
    ([*PRETRAIN, "--data.masking", "wrds"], []),
    ([*PRETRAIN, "--model.num-attention-heads", "3"], []),
    ([*PRETRAIN, "--model.family", "brt"], []),
    ([*PRETRAIN, "--training.objectives", "mlm", "nps"], []),
    ([*PRETRAIN, "--optimizer.warmup-steps", "500"], []),
    ([*PRETRAIN, "--profile", "10-13"], []),
    ([*PRETRAIN, "--init-from", "nowhere"], []),
    ([*PRETRAIN, "--init-from", "hf:nowhere"], []),
    ([*PRETRAIN, "--run-dir", "corpus.txt"], []),
    ([*PRETRAIN, "--run-dir", "corpus.txt/run"], []),
    ([*PRETRAIN, "--data.root", "corpus.txt"], []),
    ([*PRETRAIN, "--data.vocab", "nowhere.txt"], []),
    ([*PRETRAIN, "--data.vocab", "few.txt"], []),
    ([*PRETRAIN, "--data.vocab", "exported"], []),
    # sources
    (of("txt:corpus.txt"), []),
    (of("corpus.txt"), []),
    (of("text:"), []),
    (of("text:nowhere/*.txt"), []),
    (of("text:empty.txt"), []),
    (of("text:exported"), []),
    (of("lines:latin1.txt"), []),
    (of("text:random.txt"), []),
    (of("jsonl:bad.jsonl"), []),
    (of("jsonl:fields.jsonl"), []),
    (of("lines:cut.txt.gz"), []),
    (of("parquet:bad.parquet"), []),
    (of("docs:nmpy"), []),
    (of("tfds:wikpedia"), []),
    (of("https://host/corpus.txt"), []),
    # text
    (["prepare", *PRETRAIN[1:], "--shard", "3"], []),
    (["prepare", *PRETRAIN[1:], "--shard", "5/4"], []),
    (["prepare", *PRETRAIN[1:], "--", "--runner=FlinkRunner"], []),
    (["prepare", *PRETRAIN[1:], "--runner", "bem"], []),
    (["vocab", *PRETRAIN[1:], "--extend", "lines:corpus.txt"], []),
    (["inspect", "nowhere"], []),
    (["inspect", "exported"], []),
    # plan and bench
    (["plan", "tiny.py", "--topology", "v5e:3x5"], []),
    (["plan", "tiny.py", "--topology", "v9"], []),
    (["plan", "tiny.py", "--topology", "v5e:4x4", "--slices", "0"], []),
    (["plan", "tiny.py", "--topology", "local", "--html", "nowhere/page.html"], []),
    (["plan", "tiny.py"], []),
    (["bench", "tiny.py", "--seconds", "0"], []),
    # runs
    (["evaluate", "nowhere"], []),
    (["evaluate", "rnu"], []),
    (["evaluate", "corpus.txt"], []),
    (["evaluate", "exported"], []),
    (["evaluate", "run/seed-0"], []),
    (["evaluate", "run"], []),
    (["evaluate", "run", "--fast"], []),
    (["fill-mask", "run", "no mask"], []),
    (["fill-mask", "run", "a [MASK]", "--top", "0"], []),
    (["fill-mask", "run", "a [MASK]" + " word" * 200], []),
    (["predict", "nowhere", "a text"], []),
    (["predict", "run", "a text"], []),
    (["attention", "run", "a", "b", "c"], []),
    (["attention", "nowhere", "a", "--html", "nowhere/page.html"], []),
    (["neighbors", "run", "zzzzzz"], []),
    (["checkpoints", "run", "no mask"], []),
    # vectors
    (["embed", "nowhere", "texts.txt", "--output", "out.npy"], []),
    (["embed", "run", "nowhere.txt", "--output", "out.npy"], []),
    (["embed", "run", "exported", "--output", "out.npy"], []),
    (["embed", "run", "texts.txt", "--output", "out.txt"], []),
    (["embed", "run", "texts.txt", "--output", "nowhere/out.npy"], []),
    (["embed", "run", "texts.txt", "--output", "vectors.npy"], []),
    (["embed", "run", "texts.txt", "--output", "out.npy", "--layer", "99"], []),
    (["embed", "run", "texts.txt", "--output", "out.npy", "--layer", "lst"], []),
    (["embed", "run", "texts.txt", "--output", "out.npy", "--max-length", "1"], []),
    (["embed", "run", "texts.txt", "--output", "out.npy", "--field", "body"], []),
    (["search", "run", "a", "--index", "nowhere"], []),
    (["search", "run", "a", "--index", "index", "--documents", "nowhere.txt"], []),
    (["search", "run", "a", "--index", "index", "--documents", "texts.txt", "--top", "0"], []),
    # formats
    (["export", "nowhere"], []),
    (["export", "run", "--to", "huggingfase"], []),
    (["export", "run", "--output", "exported"], []),
    (["export", "run", "--output", "exported", "--overwrite"], []),
    (["export", "run", "--output", "corpus.txt", "--overwrite"], []),
    (["export", "run", "--pooling", "mean", "--output", "out"], []),
    (["import", "nowhere", "--output", "out"], []),
    (["import", "hf:nowhere", "--output", "out"], []),
    (["import", "hf:hub", "--output", "out"], []),
    (["import", "tf1:hub", "--output", "out"], []),
    (["import", "pt:hub", "--output", "out"], []),
    # tasks
    (["finetune", "clasification", "--init-from", "run", "--train", "reviews.csv"], []),
    (["finetune", "classification", "--init-from", "run"], []),
    (["finetune", "classification", "--train", "reviews.csv"], []),
    (["finetune", "classification", "--init-from", "nowhere", "--train", "reviews.csv"], []),
    (["finetune", "classification", "--init-from", "run", "--train", "nowhere.csv"], []),
    (["finetune", "classification", "--init-from", "run", "--train", "same.csv"], []),
    (["finetune", "glue", "--init-from", "run"], []),
    (["finetune", "glue", "--init-from", "run", "--data", "exported"], []),
    (["finetune", "sst2", "--init-from", "run", "--data", "nowhere"], []),
    ([*TUNE, "--text", "txt"], []),
    ([*TUNE, "--label", "lable"], []),
    ([*TUNE, "--seeds", "0"], []),
    ([*TUNE, "--epochs", "-1"], []),
    ([*TUNE, "--learning-rate", "fast"], []),
    ([*TUNE, "--max-length", "4000"], []),
    ([*TUNE, "--labels", "good"], []),
    ([*TUNE, "--optimizer.beta3", "1"], []),
]


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file and folder below, with its size and time of change."""
    found = ((path, path.stat()) for path in folder.rglob("*") if "__pycache__" not in path.parts)
    return {str(path): (one.st_size, one.st_mtime_ns) for path, one in found if path.is_file()}


@pytest.mark.parametrize(("words", "parts"), ROWS, ids=[" ".join(words)[:80] for words, _ in ROWS])
def test_a_mistake_is_answered_in_a_sentence(
    words: list[str], parts: list[str], desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(desk)
    before = contents(desk)
    try:
        code = main(words)
    except SystemExit as ended:
        code = ended.code
    said = capsys.readouterr()
    if os.environ.get("LOOK"):
        new = set(contents(desk)) - set(before)
        with open(os.environ["LOOK"], "a") as f:
            f.write(
                f"### {' '.join(words)[:100]}  [{code}] {'STDOUT ' + str(len(said.out)) if said.out else ''} {sorted(new)[:4]}\n{said.err}\n"
            )
    assert code in (1, 2)
    assert all(part in said.err for part in parts), said.err
    assert "Traceback" not in said.err
    assert contents(desk) == before
