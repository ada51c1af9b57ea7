"""Mistakes on a command line: one message with the name, the value and the remedy, and no traceback.

The command is refused before it reads a model, prepares text or writes a file. tests/text/test_bad_input.py,
tests/convert and tests/finetune have more kinds of damaged files.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from exported_models import trained_model
from generated_corpus import write_corpus
from tiny_runs import write_recipe

from bertjax.__main__ import main
from bertjax.convert.sources import write_run

pytestmark = pytest.mark.run

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
def user_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder with a recipe, a corpus, damaged files of many kinds, a run, and existing outputs."""
    folder = tmp_path_factory.mktemp("user_folder")
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
    (folder / "stars.csv").write_text("Review;Stars\nNever again, really;1\nGood;5\n")
    (folder / "same.csv").write_text("text,label\n" + "a,good\n" * 20)
    (folder / "texts.txt").write_text("One text.\nAnother.\n")
    write_run(trained_model(folder / "run"))
    shutil.copytree(folder / "run", folder / "seeds" / "seed-0")
    (folder / "vectors.npy").write_text("mine")
    (folder / "exported").mkdir()
    (folder / "exported" / "config.json").write_text("mine")
    (folder / "docs").mkdir()
    (folder / "hub").mkdir()
    (folder / "hub" / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    return folder


PRETRAIN = ["pretrain", "tiny.py", "--data.sources", "lines:corpus.txt"]


TUNE = ["finetune", "classification", "--init-from", "run", "--train", "reviews.csv"]


def pretrain_words(*sources: str) -> list[str]:
    return ["pretrain", "tiny.py", "--data.sources", *sources]


# The words of a command, and parts of its error message.
ROWS: list[tuple[list[str], list[str]]] = [
    # recipes
    (["pretrain", "quikstart"], ["recipe 'quikstart'", "did you mean quickstart?"]),
    (
        ["pretrain", "bert"],
        ["recipe 'bert' is unknown", "did you mean bert_base or bert_large or bert_mini or bert_one_gpu?"],
    ),
    (["pretrain", "nowhere.py"], ["recipe nowhere.py: no such file", "recipes next to it: broken.py"]),
    (["pretrain", "tinny.py"], ["recipe tinny.py: no such file", "did you mean", "tiny.py?"]),
    (
        ["pretrain", "configs/quickstart.py"],
        ["configs/quickstart.py: no such file", "the package has this recipe as quickstart"],
    ),
    (["pretrain", "."], ["recipe .: it is a folder", "name a file in it"]),
    (["pretrain", "./exported/"], ["recipe exported: it is a folder", "name a file in it"]),
    (["pretrain", "broken.py"], ["recipe broken.py, line 1: it is not valid Python"]),
    (["pretrain", "raises.py"], ["recipe raises.py, line 2: ZeroDivisionError"]),
    (["pretrain", "empty_recipe.py"], ["recipe empty_recipe.py", "write `def config() -> Config: ...`"]),
    (["pretrain", "returns.py"], ["recipe returns.py: config() returned dict, not bertjax.config.Config"]),
    (["pretrain", "typed.py"], ["recipe typed.py: training.steps='many' is str; give int"]),
    (["pretrain", "tiny.py:big"], ["recipe tiny.py: it has no variants; leave out 'big'"]),
    (["pretrain", "roberta:huge"], ["recipe roberta: variant 'huge' is unknown", "base, large"]),
    (["recipes", "show", "albret"], ["'albret' is unknown", "did you mean albert?"]),
    (["recipes", "copy", "bert_mini", "tiny.py"], ["tiny.py exists; add --overwrite"]),
    (["recipes", "copy", "bert_mini:large", "new.py"], ["bert_mini.py: it has no variants; leave out 'large'"]),
    (["recipes", "copy", "roberta:huge", "new.py"], ["variant 'huge' is unknown"]),
    (["recipes", "list", "albert"], ["list albert: it lists all", "bertjax recipes show albert"]),
    (["recipes", "show", "albert", "new.py"], ["show: it writes no file; leave new.py out"]),
    (["plan", "bert_mini", "--tokens", "1G", "--price", "2"], ["--price requires --topology"]),
    (["plan", "bert_mini", "--topology", "h100:8", "--cores", "4"], ["--cores requires --tokens"]),
    (["run", "average", "run", "--moving", "--last", "2"], ["--last 2 with --moving", "leave one out"]),
    (["recipes", "copy", "bert_mini", "nowhere/mine.py"], ["there is no folder nowhere; make it"]),
    (["recipes", "copy", "bert_mini", "mine.txt"], ["mine.txt: a recipe is a Python file; write mine.txt.py"]),
    # keys
    (
        [*PRETRAIN, "--optimizer.learnin-rate", "1"],
        ["--optimizer.learnin-rate", "Perhaps you meant", "--optimizer.learning-rate"],
    ),
    ([*PRETRAIN, "--steps", "100"], ["--steps is unknown; did you mean --training.steps?"]),
    (
        [*PRETRAIN, "--training.learning-rate", "1e-4"],
        ["--training.learning-rate is unknown; did you mean --optimizer.learning-rate?"],
    ),
    ([*PRETRAIN, "--training.steps", "many"], ["--training.steps", "'many'"]),
    ([*PRETRAIN, "--training.steps", "0"], ["training.steps=0"]),
    (
        [*PRETRAIN, "--training.global-batch-size", "9", "--mesh.data", "1"],
        ["mesh data=1", "make the product of the axes 8"],
    ),
    ([*PRETRAIN, "--training.global-batch-size", "9"], ["training.global_batch_size=9"]),
    ([*PRETRAIN, "--training.budget", "9m", "--training.steps", "9"], ["budget='9m' with training.steps"]),
    ([*PRETRAIN, "--mesh.data", "3"], ["mesh data=3", "make the product of the axes 8"]),
    ([*PRETRAIN, "--data.held-out", "1.5"], ["data.held_out=1.5 must be in [0, 1)"]),
    ([*PRETRAIN, "--data.weights", "1", "2"], ["data.weights=(1.0, 2.0)", "give one for each of the 1 data.sources"]),
    ([*PRETRAIN, "--data.sequence-length", "64"], ["data.sequence_length=64", "shorten the rows or raise it"]),
    ([*PRETRAIN, "--data.masking", "wrds"], ["data.masking='wrds'", "choose from tokens, words"]),
    ([*PRETRAIN, "--model.num-attention-heads", "3"], ["model.num_attention_heads=3; change one of them"]),
    ([*PRETRAIN, "--model.family", "brt"], ["model.family='brt'", "did you mean bert?"]),
    ([*PRETRAIN, "--training.objectives", "mlm", "nps"], ["training.objectives=('mlm', 'nps')", "mlm, nsp"]),
    (
        [*PRETRAIN, "--optimizer.warmup-steps", "500"],
        ["optimizer.warmup_steps=500", "training.steps=120", "shorten the warm-up"],
    ),
    ([*PRETRAIN, "--profile", "10-13"], ["profile='10-13'", "FIRST:LAST"]),
    ([*PRETRAIN, "--init-from", "nowhere"], ["nowhere: no such directory; give a run, hf:DIR"]),
    ([*PRETRAIN, "--init-from", "nowhere"], ["for the Hub: hf:nowhere"]),
    ([*PRETRAIN, "--init-from", "hf:nowhere"], ["hf:nowhere"]),
    ([*PRETRAIN, "--run-dir", "corpus.txt"], ["--run-dir corpus.txt", "is a file, not a folder; name another"]),
    (
        [*PRETRAIN, "--run-dir", "corpus.txt/run"],
        ["--run-dir corpus.txt/run", "is a file, not a folder; name another"],
    ),
    (
        [*PRETRAIN, "--data.root", "corpus.txt"],
        ["--data.root corpus.txt", "is a file, not a folder; name another"],
    ),
    (
        [*PRETRAIN, "--data.vocab", "nowhere.txt"],
        ["vocabulary nowhere.txt: no such file", "leave it empty to train one"],
    ),
    ([*PRETRAIN, "--data.vocab", "few.txt"], ["vocabulary few.txt", "[UNK], [CLS], [SEP], [MASK] missing"]),
    ([*PRETRAIN, "--data.vocab", "exported"], ["vocabulary exported", "name one file"]),
    # sources
    (pretrain_words("txt:corpus.txt"), ["unknown kind 'txt'", "did you mean text:corpus.txt?"]),
    (pretrain_words("corpus.txt"), ["source 'corpus.txt'", "write kind:glob, e.g. text:corpus.txt"]),
    (pretrain_words("text:"), ["source 'text:'", "write text:glob"]),
    (pretrain_words("text:nowhere/*.txt"), ["text:nowhere/*.txt", "matches nothing"]),
    (pretrain_words("text:empty.txt"), ["text:empty.txt", "every file is empty"]),
    (pretrain_words("text:*ported"), ["text:*ported", "only directories", "add /* or /**"]),
    (
        pretrain_words("text:exported"),
        ["text:exported", "the folder has no *.txt", "it has 1 .json", "write text:exported/**/*.json"],
    ),
    (pretrain_words("docs"), ["source 'docs'", "also a folder here", "folder:docs", "docs: for"]),
    (pretrain_words("./texts.txt", "./few.txt"), ["2 files without a kind", "put it in quotes", "'text:*.txt'"]),
    (pretrain_words("text:folder[v1]/*.txt"), ["matches nothing", "[..] is a set of characters", "folder[[]v1]/*.txt"]),
    (pretrain_words("csv:reviews.csv:txt"), ["reviews.csv: no column 'txt'; it has text, label", "csv:GLOB:COLUMN"]),
    (pretrain_words("hf:wikipedia"), ["source hf:wikipedia", "write hf:OWNER/NAME"]),
    (
        pretrain_words("hf:org/name"),
        ["hf:org/name: the Hub cannot be reached", "run `hf download org/name --repo-type dataset`"],
    ),
    (
        pretrain_words("text:*.txt", "lines:corpus.txt"),
        [
            "2 of 6 files cannot be read",
            "latin1.txt: not UTF-8",
            "likely cp1252",
            "random.txt: not UTF-8",
            "--data.exclude",
        ],
    ),
    ([*PRETRAIN, "--data.encoding", "latin-9000"], ["data.encoding='latin-9000' is unknown"]),
    (
        pretrain_words("lines:latin1.txt"),
        ["latin1.txt: not UTF-8", "at offset 2", "iconv -f cp1252 -t utf-8", "--data.encoding cp1252"],
    ),
    (pretrain_words("text:random.txt"), ["random.txt: not UTF-8", "at offset 128"]),
    (pretrain_words("jsonl:bad.jsonl"), ["bad.jsonl, line 2: bad JSON", "every line must be one JSON object"]),
    (pretrain_words("jsonl:fields.jsonl"), ["fields.jsonl, line 1: no field `text`; it has body"]),
    (pretrain_words("lines:cut.txt.gz"), ["cut.txt.gz", "damaged or cut off", "get the file again"]),
    (pretrain_words("parquet:bad.parquet"), ["bad.parquet: damaged or cut off", "get the file again"]),
    (pretrain_words("docs:nmpy"), ["no package 'nmpy'", "did you mean numpy?"]),
    (pretrain_words("tfds:wikpedia"), ["source tfds:wikpedia: not prepared", "set TFDS_DATA_DIR"]),
    (pretrain_words("https://host/corpus.txt"), ["unknown kind 'https'", "text:https://host/corpus.txt"]),
    # text
    (["prepare", *PRETRAIN[1:], "--shard", "3"], ["--shard 3: write it as I/N"]),
    (["prepare", *PRETRAIN[1:], "--shard", "5/4"], ["--shard 5/4", "from 0 to 3"]),
    (["prepare", *PRETRAIN[1:], "--", "--runner=FlinkRunner"], ["--runner=FlinkRunner", "add --runner beam"]),
    (["prepare", *PRETRAIN[1:], "--runner", "bem"], ["--runner: 'bem' is unknown; did you mean beam?"]),
    (["vocab", *PRETRAIN[1:], "--extend", "lines:corpus.txt"], ["data.vocab=''", "name the vocabulary to extend"]),
    (["inspect", "nowhere"], ["nowhere: ", "`bertjax prepare RECIPE` makes a store"]),
    (["inspect", "exported"], ["exported: no manifest.json in it", "`bertjax prepare`"]),
    # plan and bench
    (["plan", "tiny.py", "--topology", "v5e:3x5"], ["--topology v5e:3x5", "v5e:"]),
    (["plan", "tiny.py", "--topology", "v9"], ["--topology v9: unknown", "v5e:16x16"]),
    (["plan", "tiny.py", "--topology", "v5e:4x4", "--slices", "0"], ["--slices 0", "1 or more"]),
    (
        ["plan", "tiny.py", "--topology", "local", "--html", "nowhere/page.html"],
        ["--html nowhere/page.html: there is no directory nowhere; make it"],
    ),
    (["plan", "tiny.py"], ["--topology", "example: bertjax plan"]),
    (["bench", "tiny.py", "--seconds", "0"], ["--seconds 0.0: give a time above 0"]),
    # runs
    (["evaluate", "nowhere"], ["nowhere: no checkpoint there", "there is no such folder", "give a run's directory"]),
    (["evaluate", "rnu"], ["rnu: no checkpoint there", "did you mean ", "/run?"]),
    (["evaluate", "corpus.txt"], ["corpus.txt", "this is a file"]),
    (["evaluate", "exported"], ["exported: no checkpoint there", "give a run's directory"]),
    (["evaluate", "run/seed-0"], ["run/seed-0", "there is no such folder; did you mean ", "/run?"]),
    (["evaluate", "seeds"], ["seeds: no checkpoint there; its runs are in folders below it, such as ", "seeds/seed-0"]),
    (["evaluate", "run", "--fast"], ["evaluate does not take --fast"]),
    (["fill-mask", "run", "no mask"], ["'no mask' has no [MASK]; write [MASK] in place of a word"]),
    (["fill-mask", "run", "a [MASK]", "--top", "0"], ["top=0: give 1 to"]),
    (["fill-mask", "run", "a [MASK]", "--column", "text"], ["--column text without --file"]),
    (
        ["fill-mask", "run", "--checkpoints", "--file", "x.txt"],
        ["--checkpoints with --file x.txt", "sentences as TEXT"],
    ),
    (["tokenize", "run", "a text", "--column", "text"], ["--column text without --file"]),
    (["fill-mask", "run", "a [MASK]" + " word" * 200], ["the model was trained on rows of 64", "shorten it"]),
    (
        ["fill-mask", "run", "--correct", "--evaluate", "x.tsv", "--top", "2"],
        ["--top 2: --evaluate measures the first"],
    ),
    (["neighbors", "run", "--output", "table.tsv", "--layer", "1"], ["--layer requires WORD"]),
    (["fill-mask", "nowhere", "a text", "--correct"], ["nowhere: no checkpoint there", "there is no such folder"]),
    (
        ["fill-mask", "run", "a [MASK]", "--correct"],
        ["text 1, 'a [MASK]', contains the special token [MASK]; leave it out"],
    ),
    (["evaluate", "nowhere", "a text"], ["nowhere: no checkpoint there", "there is no such folder"]),
    (["evaluate", "run", "a" + " word" * 200], ["the model was trained on rows of 64", "shorten it"]),
    (["evaluate", "run", "--pairs", "nowhere.jsonl"], ["nowhere.jsonl: no such file"]),
    (["compare", "run", "nowhere"], ["nowhere: no checkpoint there", "there is no such folder"]),
    (["compare", "run"], ["give two runs or more"]),
    (["compare", "run", "hf:other"], ["hf:other is not a run", "bertjax import hf:other --output runs/NAME"]),
    (["compare", "tiny.py", "--seeds", "1"], ["--seeds 1: give two seeds or more, each once"]),
    (["predict", "run", "a text", "--column", "x"], ["--column requires --files"]),
    (["predict", "nowhere", "a text"], ["nowhere: no checkpoint there", "there is no such folder"]),
    (["predict", "run", "a text"], ["run: this is a pretrained model without a task head; fine-tune it first"]),
    (["attention", "run", "a", "b", "c"], ["3 sentences: give one or two"]),
    (["attention", "nowhere", "a", "--html", "nowhere/page.html"], ["--html nowhere/page.html", "make it"]),
    (["fill-mask", "run", "no mask", "--checkpoints"], ["'no mask'", "write [MASK] in it"]),
    # vectors
    (["embed", "nowhere", "texts.txt", "--output", "out.npy"], ["nowhere: no checkpoint there", "no such folder"]),
    (["embed", "run", "nowhere.txt", "--output", "out.npy"], ["nowhere.txt: no such file; correct the path"]),
    (["embed", "run", "exported", "--output", "out.npy"], ["exported: a folder; name files in it"]),
    (["embed", "run", "texts.txt", "--output", "out.txt"], ["--output out.txt", "npy, .jsonl, .parquet"]),
    (["embed", "run", "texts.txt", "--output", "nowhere/out.npy"], ["there is no directory nowhere; make it"]),
    (["embed", "run", "texts.txt", "--output", "vectors.npy"], ["vectors.npy exists; add --overwrite"]),
    (["embed", "run", "texts.txt", "--output", "out.npy", "--layer", "99"], ["layer=99: the model has layers 1 to 2"]),
    (["embed", "run", "texts.txt", "--output", "out.npy", "--layer", "lst"], ["layer='lst': choose last"]),
    (["embed", "run", "texts.txt", "--output", "out.npy", "--max-length", "1"], ["max_length=1", "choose 8 to 64"]),
    (
        ["embed", "run", "texts.txt", "--output", "out.npy", "--field", "body"],
        ["texts.txt: --field body is for .jsonl"],
    ),
    (["search", "run", "a", "--index", "nowhere"], ["--index nowhere: no index there", "--documents FILE"]),
    (
        ["search", "run", "a", "--index", "index", "--documents", "nowhere.txt"],
        ["nowhere.txt", "--documents nowhere.txt: no such file"],
    ),
    (["search", "run", "a", "--index", "index", "--documents", "texts.txt", "--top", "0"], ["--top 0: give 1 or more"]),
    # formats
    (["export", "nowhere"], ["nowhere: no checkpoint there", "no such folder"]),
    (["export", "run", "--to", "huggingfase"], ["'huggingfase' is unknown; did you mean huggingface?"]),
    (["export", "run", "--output", "exported"], ["exported exists; add --overwrite"]),
    (
        ["export", "run", "--output", "exported", "--overwrite"],
        ["export to ", "exported", "choose another folder (--output)"],
    ),
    (
        ["export", "run", "--output", "corpus.txt", "--overwrite"],
        ["corpus.txt: there is a file of that name", "--output"],
    ),
    (
        ["export", "run", "--pooling", "mean", "--output", "out"],
        ["--to huggingface", "leave --pooling and --normalize out"],
    ),
    (["import", "nowhere", "--output", "out"], ["nowhere: no checkpoint there", "no such folder"]),
    (["import", "hf:nowhere", "--output", "out"], ["hf:nowhere"]),
    (["export", "hf:nowhere"], ["hf:nowhere is not a run", "bertjax import hf:nowhere --output runs/"]),
    (["fill-mask", "org/nowhere", "a [MASK]"], ["for the Hub: hf:org/nowhere"]),
    (["import", "hf:hub", "--output", "out"], ["hub/config.json: model_type is 'gpt2'; bertjax imports bert"]),
    (["import", "tf1:hub", "--output", "out"], ["hub/bert_config.json: no such file"]),
    (["import", "pt:hub", "--output", "out"], ["pt:hub: unknown kind 'pt'; did you mean hf:hub or tf1:hub?"]),
    # tasks
    (
        ["finetune", "clasification", "--init-from", "run", "--train", "reviews.csv"],
        ["task 'clasification'", "did you mean classification or token-classification?"],
    ),
    (["finetune", "classification", "--init-from", "run"], ["classification: no data", "(--train)"]),
    (["finetune", "classification", "--train", "reviews.csv"], ["--init-from", "example: bertjax finetune"]),
    (
        ["finetune", "classification", "--init-from", "nowhere", "--train", "reviews.csv"],
        ["nowhere: no such directory; give a run", "for the Hub: hf:nowhere"],
    ),
    (
        ["finetune", "classification", "--init-from", "run", "--train", "nowhere.csv"],
        ["nowhere.csv: no train set: no such file"],
    ),
    (["finetune", "classification", "--init-from", "run", "--train", "same.csv"], ["same.csv:2", "pass --dev FILE"]),
    (["finetune", "glue", "--init-from", "run"], ["--data is missing"]),
    (
        ["finetune", "sentiment", "--init-from", "run", "--train", "reviews.csv"],
        ["task 'sentiment' is not known; for your own table give classification"],
    ),
    (
        [*TUNE[:-1], "stars.csv"],
        ["stars.csv:1: no column 'text'; there are 'Review', 'Stars'; give --text Review --label Stars"],
    ),
    (["embed", "run", "stars.csv", "--output", "new.npy"], ["stars.csv:1: no column 'text'", "give --column Review"]),
    (
        ["search", "run", "--index", "index", "--documents", "reviews.csv", "array"],
        ["--documents array: no such file; a query must come before --documents"],
    ),
    (
        ["finetune", "glue", "--init-from", "run", "--data", "exported"],
        ["exported has no task of GLUE"],
    ),
    (
        ["finetune", "sst2", "--init-from", "run", "--data", "nowhere"],
        ["nowhere: no train set: no such file or folder; correct the path"],
    ),
    ([*TUNE, "--text", "txt"], ["reviews.csv:1: no column 'txt'; there are 'text', 'label'"]),
    ([*TUNE, "--label", "lable"], ["reviews.csv:1: no column 'lable'; there are 'text', 'label'"]),
    ([*TUNE, "--seeds", "0"], ["--seeds 0: give 1 or more"]),
    ([*TUNE, "--epochs", "-1"], ["--epochs", "-1.0; give a number above 0"]),
    ([*TUNE, "--learning-rate", "fast"], ["--learning-rate: 'fast' is not a number"]),
    ([*TUNE, "--mesh.length", "2"], ["mesh.length=2: fine-tuning does not split rows; set it to 1"]),
    ([*TUNE, "--max-length", "4000"], ["data.sequence_length=4000", "shorten the rows"]),
    ([*TUNE, "--labels", "good", "fair"], ["reviews.csv:2: label 'bad' is not one of good, fair"]),
    ([*TUNE, "--optimizer.beta3", "1"], ["--optimizer.beta3", "Perhaps you meant", "--optimizer.beta1"]),
]


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    """All files of a folder with size and modification time, except bytecode, cached digests and locks."""
    files = (path for path in folder.rglob("*") if path.is_file() and not {"__pycache__", "digests"} & {*path.parts})
    checked = (path for path in files if not path.name.startswith(".lock"))
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in checked}


@pytest.mark.parametrize(("words", "parts"), ROWS, ids=[" ".join(words)[:80] for words, _ in ROWS])
def test_mistake_is_refused_with_its_remedy(
    words: list[str],
    parts: list[str],
    user_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(user_folder)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    before = contents(user_folder)
    try:
        code = main(words)
    except SystemExit as error:
        code = error.code
    message = capsys.readouterr().err
    assert code in (1, 2)
    # Messages in a box have line breaks.
    assert not [part for part in parts if part not in message and part not in " ".join(message.split())], message
    assert "Traceback" not in message
    assert contents(user_folder) == before
