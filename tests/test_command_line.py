"""The command line: fast help, errors in one line, and every verb on a real run."""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from generated_corpus import write_corpus
from tiny_runs import command, essential_lines, finish, write_recipe

import bertjax as bertjax_package
from bertjax.__main__ import GROUPS, RENAMED, VERBS, load_verb, main, make_parser
from bertjax.cli.recipe import shell_command
from bertjax.input.masking.similar import SimilarTable
from bertjax.interpret.checkpoint_predictions import checkpoint_predictions
from bertjax.interpret.fill_mask import fill_mask
from bertjax.run.run_directory import load_run
from bertjax.run.telemetry import read_metrics
from bertjax.text.corpus import Corpus

pytestmark = pytest.mark.run


def bertjax(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in this process, which is faster because modules and programs are loaded."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            code = main([*arguments])
        except SystemExit as result:
            code = result.code
    assert isinstance(code, int)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), errors.getvalue())


def run_in_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "bertjax", *arguments], capture_output=True, text=True, timeout=300)


HEAVY = {"jax", "jaxlib", "flax", "optax", "orbax", "numpy", "tensorflow", "tokenizers", "sentencepiece", "tyro"}
HELP = """
import sys
from bertjax.__main__ import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print("loaded:", *sys.modules)
"""


@pytest.mark.parametrize("words", [["--help"], *([verb, "--help"] for verb in VERBS)], ids=" ".join)
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    printed = subprocess.run([sys.executable, "-c", HELP, *words], capture_output=True, text=True, check=True).stdout
    loaded = printed.partition("loaded:")[2].split()
    assert "bertjax.__main__" in loaded and "usage: bertjax" in printed
    assert not HEAVY & set(loaded)
    verbs = [f"bertjax.cli.{module}" for module, _ in VERBS.values()]
    assert len(set(verbs) & set(loaded)) == len(words) - 1, "help imports its own verb and no other"


def test_help_of_a_recipe_imports_no_jax(tmp_path: Path) -> None:
    words = ["pretrain", str(write_recipe(tmp_path)), "--help"]
    printed = subprocess.run([sys.executable, "-c", HELP, *words], capture_output=True, text=True, check=True).stdout
    assert HEAVY & set(printed.partition("loaded:")[2].split()) == {"tyro"}


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_every_verb_has_a_summary_and_an_example(verb: str) -> None:
    printed = make_parser(verb).format_help()
    assert VERBS[verb][1][1:] in re.sub(r"\s+", " ", printed)
    assert f"example: bertjax {verb} " in printed


def test_every_verb_file_is_registered() -> None:
    """VERBS contains every file that defines a verb."""
    folder = Path(bertjax_package.__file__).parent / "cli"
    files = {path.stem for path in folder.glob("*.py") if re.search(r"^VERB = ", path.read_text(), re.M)}
    assert files == {module for module, _ in VERBS.values()}


def test_closed_pipe_ends_without_an_error_message() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        command = [sys.executable, "-m", "bertjax", "recipes"]
        result = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, timeout=300)
    assert result.returncode == 141 and result.stderr == b""


def test_repeated_options_combine_their_values() -> None:
    """The values of all occurrences are used."""
    for verb in VERBS:
        lists = [action for action in make_parser(verb)._actions if action.option_strings and action.nargs == "+"]
        # The options of finetune are settings of its config, of which the last one applies.
        assert verb == "finetune" or all(isinstance(action, argparse._ExtendAction) for action in lists), verb
    parsed = make_parser("inspect").parse_args(["store", "--length", "128", "--length", "256", "512"])
    assert parsed.length == [128, 256, 512]


def test_help_of_a_recipe_lists_its_keys(tmp_path: Path) -> None:
    printed = bertjax("pretrain", str(write_recipe(tmp_path)), "--help").stdout
    assert "--optimizer.learning-rate" in printed
    assert "0.002" in printed
    printed = bertjax("plan", str(write_recipe(tmp_path)), "--help").stdout
    assert "--topology" in printed and "--optimizer.learning-rate" in printed, "the verb's own options come first"


def test_new_process_prints_the_same(tmp_path: Path) -> None:
    words = ["pretrain", str(write_recipe(tmp_path)), "--training.budget", "soon", "--data.root", str(tmp_path)]
    result, here = run_in_process(*words), bertjax(*words)
    assert (result.returncode, result.stderr) == (here.returncode, here.stderr)
    assert essential_lines(result.stdout) == essential_lines(here.stdout)
    assert result.returncode == 1 and result.stderr.startswith("bertjax pretrain: training.budget='soon' is not")


@pytest.mark.long  # imports everything again
def test_imports_run_without_garbage_collection(tmp_path: Path) -> None:
    program = """
import gc, sys
passes = []
gc.callbacks.append(lambda phase, about: passes.append((phase, about["generation"])))
from bertjax.__main__ import main
from bertjax.storage.lean_import import import_tensorflow
main(sys.argv[1:])
import_tensorflow()
print({"jax", "tensorflow"} <= sys.modules.keys(), ("start", 0) in passes, ("start", 2) in passes)
"""
    words = ["pretrain", str(write_recipe(tmp_path)), "--training.budget", "soon", "--data.root", str(tmp_path)]
    result = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "True True False", result.stderr


def test_unknown_words_are_refused() -> None:
    assert bertjax("evaluate", "somewhere", "--fast").returncode == 2
    unknown = run_in_process("pretran")
    assert unknown.returncode == 2 and "VERB 'pretran' is unknown; did you mean pretrain?" in unknown.stderr
    alone, with_help = bertjax(), bertjax("--help")
    assert alone.returncode == with_help.returncode == 0 and alone.stdout == with_help.stdout
    assert [line for line in alone.stdout.splitlines() if line in GROUPS] == [*GROUPS] and len(VERBS) <= 20


@pytest.mark.parametrize("old", RENAMED)
def test_old_verb_is_refused_with_the_new_name(old: str) -> None:
    refused = bertjax(old, "runs/mine")
    assert refused.returncode == 2 and f"VERB {old!r} is now: bertjax {RENAMED[old]}" in refused.stderr
    verb = RENAMED[old].split()[0]
    assert old not in VERBS and verb in VERBS
    _, keys = make_parser(verb).parse_words(
        RENAMED[old].replace(" N", " 9").split()[1:], takes_keys=load_verb(verb).takes_keys
    )
    assert not keys


def test_options_may_stand_before_texts() -> None:
    words = ["runs/mine", "--top", "3", "a [MASK]", "--correct", "b"]
    parsed, unknown = make_parser("fill-mask").parse_words(words, takes_keys=False)
    assert parsed.text == ["a [MASK]", "b"] and parsed.top == 3 and not unknown
    for words, message in (
        (["fill-mask", "r", "a", "--threshold", "1"], "--threshold requires --correct"),
        (["evaluate", "r", "--variant", "whole-word"], "--variant requires TEXT, --file or --pairs"),
        (["compare", "r", "s", "--output", "x.json"], "--output requires --seeds"),
        (["compare", "r", "s", "--training.steps", "9"], "only --seeds takes settings of a recipe"),
        (["neighbors", "r", "word", "--nearest", "3"], "--nearest requires --output"),
        (["neighbors", "r"], "give either a WORD to look up, or --output"),
        (["tokenize", "r"], "give either TEXT or --file"),
    ):
        result = bertjax(*words)
        assert result.returncode == 1 and message in result.stderr, words


def next_command(result: subprocess.CompletedProcess[str]) -> list[str]:
    """The words after `bertjax` of the next command that a verb suggests."""
    name, *words = shlex.split(re.search(r"^next.*?: (bertjax .*)$", result.stdout, re.M)[1])
    assert name == "bertjax"
    return words


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[str]]:
    """Recipe, run directory and command of a short run, made step by step with the single verbs."""
    folder = tmp_path_factory.mktemp("verbs")
    recipe, source = write_recipe(folder), write_corpus(folder / "corpus.txt", 200)
    fixed = [str(recipe), "--data.sources", f"lines:{source}", "--data.root", str(folder / "data")]
    vocab = bertjax("vocab", *fixed)
    assert vocab.returncode == 0, vocab.stderr
    prepared = bertjax(*next_command(vocab))
    assert prepared.returncode == 0, prepared.stderr
    path = re.search(r"vocabulary: (\S+)", vocab.stdout)[1]
    assert next_command(prepared) == ["pretrain", *fixed, "--data.vocab", path]
    assert "held_out: " in prepared.stdout
    arguments = command(
        recipe,
        source,
        folder / "run",
        "--training.steps",
        "40",
        "--training.checkpoint-every",
        "10",
        "--profile",
        "10:13",
    )
    finish(arguments, folder / "log")
    assert str(re.search(r"token store: (\S+)", prepared.stdout)[1]) in (folder / "log").read_text()
    return folder, folder / "run", arguments


def test_pretrain_ends_with_the_next_commands(run: tuple[Path, Path, list[str]]) -> None:
    output = (run[0] / "log").read_text()
    for line in ("Held-out text, after 40 steps", "no context", "majority", "report.html", "Next:", "ETA"):
        assert line in output, output


def position(lines: list[str], pattern: str) -> int:
    """The index of the first line that matches a pattern."""
    matches = [number for number, line in enumerate(lines) if re.search(pattern, line)]
    assert matches, f"{pattern} is not in\n" + "\n".join(lines)
    return matches[0]


def test_run_prints_each_phase_in_order(run: tuple[Path, Path, list[str]]) -> None:
    """tests/storage/test_text_progress.py tests the interval of progress lines."""
    lines = (run[0] / "log").read_text().splitlines()
    order = [
        "Settings changed from the recipe:",
        r"  training\.steps: 40   \(recipe: \d+\)",
        r"  scaled with it: .*optimizer\.warmup_steps=",
        r"Device    1 × cpu; peak ",
        r"Model     [\d,]+ parameters; attention: xla",
        "Data      token store ",
        "          held_out: ",
        r"Schedule  steps 0 to 40: \d+ × \d+ tokens; [\d.]+ epochs of [\d,]+ rows",
        r"Cost      .* FLOP, at least ",
        r"compiling \(about 20 s the first time\)",
        "pretraining  .* / 40 steps",
        "step 40  held out",
        "Output:",
    ]
    places = [position(lines, pattern) for pattern in order]
    assert places == sorted(places)
    assert places[0] == 0 or lines[0].startswith("Starting… ("), "the output begins with the config"
    assert not any(line.startswith(("config:", "  model.hidden_size")) for line in lines)


REFUSED = {
    "another run": (["--model.hidden-act", "gelu_tanh"], r"checkpoint belongs to another run:.*\n  model\.hidden_act"),
    "no such file": (["--data.sources", "text:/nowhere/*.txt"], r"source text:/nowhere/\*\.txt: the glob matches"),
    "no such vocabulary": (["--data.vocab", "none.txt"], r"vocabulary none\.txt: no such file"),
    "unknown objective": (["--training.objectives", "mlm", "nsq"], r"nsq"),
    "no such weights": (["--init-from", "runs/nowhere"], r"runs/nowhere: no such"),
    "a segmenter of words": (
        ["--data.segmenter", "jieba", "--data.masking", "words", "--data.tokenizer", "bpe"],
        r"data\.segmenter='jieba' requires data\.tokenizer='wordpiece'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_run_is_refused_before_text_is_read(
    name: str, run: tuple[Path, Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, run_dir, _ = run
    monkeypatch.setattr(Corpus, "of", lambda data: pytest.fail("text was read"))
    changes, message = REFUSED[name]
    if name != "another run":
        run_dir = tmp_path / "run"
    words = command(folder / "tiny_recipe.py", folder / "corpus.txt", run_dir, "--training.steps", "40", *changes)
    before = sorted(path.name for path in run_dir.parent.iterdir())
    refused = bertjax(*words[3:])
    assert refused.returncode == 1 and re.search(message, refused.stderr, re.S), refused.stderr
    assert essential_lines(refused.stdout) == []
    assert sorted(path.name for path in run_dir.parent.iterdir()) == before


def test_init_from_another_shape_is_refused_early(
    run: tuple[Path, Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, run_dir, _ = run
    monkeypatch.setattr(Corpus, "of", lambda data: pytest.fail("text was read"))
    changes = ("--init-from", str(run_dir), "--model.num-hidden-layers", "1")
    refused = bertjax(*command(folder / "tiny_recipe.py", folder / "corpus.txt", tmp_path / "run", *changes)[3:])
    assert refused.returncode == 1
    assert re.search(r"has another architecture:\n  model\.num_hidden_layers: \d there, 1 here", refused.stderr)
    assert essential_lines(refused.stdout) == []


def test_vocabulary_that_cannot_be_exported_is_refused_early(run: tuple[Path, Path, list[str]], tmp_path: Path) -> None:
    mpnet = ("--model.family", "mpnet", "--model.type-vocab-size", "0", "--model.pooler", "none")
    mpnet += ("--model.score-bias-buckets", "32", "--training.objectives", "mlm", "--data.rows", "doc_sentences")
    refused = bertjax(*command(run[0] / "tiny_recipe.py", run[0] / "corpus.txt", tmp_path / "run", *mpnet)[3:])
    assert refused.returncode == 1
    assert "pad_token_id is 0; transformers' MPNet always pads with 1" in refused.stderr
    assert "pretraining" not in refused.stdout


def test_pretrain_traces_the_requested_steps(run: tuple[Path, Path, list[str]]) -> None:
    (folder,) = (run[1] / "profile" / "plugins" / "profile").iterdir()
    assert folder.name == "steps_10_to_12"
    trace = next(folder.glob("process_0.*.trace.json.gz"))
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    numbers = [event["args"]["step_num"] for event in events if event.get("name") == "train"]
    assert numbers == ["10", "11", "12"]
    ran = [event for event in events if event.get("args", {}).get("hlo_module") == "jit_train_step"]
    assert len({event["args"]["run_id"] for event in ran}) == 3
    assert f"xprof --logdir {run[1] / 'profile'}" in (run[0] / "log").read_text()


def test_evaluate_repeats_the_figures_of_the_run(run: tuple[Path, Path, list[str]]) -> None:
    result = bertjax("evaluate", str(run[1]))
    assert result.returncode == 0, result.stderr
    *_, last = (record for record in read_metrics(run[1] / "metrics.jsonl") if "eval/mlm_loss" in record)
    measured = bertjax_package.evaluate(str(run[1]))
    assert repr(measured) in result.stdout
    for name in ("mlm_loss", "mlm_accuracy", "nsp_accuracy"):
        assert measured.figures[f"eval/{name}"] == pytest.approx(last[f"eval/{name}"], abs=1e-4)
    for line in (
        f"MLM loss {last['eval/mlm_loss']:11.3f}    no context {last['baseline/no_context_loss']:.3f}",
        f"MLM accuracy {last['eval/mlm_accuracy']:7.1%}    no context {last['baseline/no_context_accuracy']:.1%}",
        f"NSP accuracy {last['eval/nsp_accuracy']:7.1%}    majority {last['baseline/majority_accuracy']:.1%}",
    ):
        assert line in result.stdout


def test_fill_mask_fills_each_mask(run: tuple[Path, Path, list[str]]) -> None:
    result = bertjax("fill-mask", str(run[1]), "the [MASK] ba [MASK] .", "--top", "3")
    assert result.returncode == 0, result.stderr
    assert len(re.findall(r"%", result.stdout)) == 6
    refused = bertjax("fill-mask", str(run[1]), "the end")
    assert refused.returncode == 1
    assert "[MASK]" in refused.stderr


def test_attention_page_samples_the_held_out_text_of_the_run(run: tuple[Path, Path, list[str]], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = bertjax("attention", str(run[1]), "the ba .", "ba the .", "--html", str(page), "--sample", "8")
    assert result.returncode == 0, result.stderr
    assert "4 pairs of sentences: the run's held-out text" in result.stdout
    assert re.search(r"previous word +(layer [12], head [12]: \d+% of|no head shows it)", result.stdout)
    assert re.search(r"B follows A with probability \d+\.\d%", result.stdout)
    text = page.read_text()
    assert "2 layers of 2 heads" in text and "What “B follows A” depends on" in text


def test_neighbors_use_the_held_out_text_of_the_run(run: tuple[Path, Path, list[str]]) -> None:
    words = Counter(word for word in (run[0] / "corpus.txt").read_text().split() if len(word) > 3)
    ((frequent, _),) = words.most_common(1)
    result = bertjax("neighbors", str(run[1]), frequent, "--contexts", "3")
    assert result.returncode == 0, result.stderr
    assert f"'{frequent}': one vector in the embedding table" in result.stdout
    assert "of the run's held-out text; vectors after layer 2" in result.stdout
    printed = re.search(r"cosines between its vectors: (\S+) to (\S+), mean \S+; in the table", result.stdout)
    assert float(printed[1]) < 1 and float(printed[1]) <= float(printed[2])


def test_table_of_similar_words_can_be_used_in_training(run: tuple[Path, Path, list[str]], tmp_path: Path) -> None:
    words = sorted(set((run[0] / "corpus.txt").read_text().replace(".", "").split()))
    (tmp_path / "words.txt").write_text("\n".join(words) + "\n")
    table, listed = tmp_path / "similar.tsv", tmp_path / "listed.tsv"
    result = bertjax("neighbors", str(run[1]), "--output", str(table), "--nearest", "2")
    assert result.returncode == 0, result.stderr
    assert {len(line.split("\t")) for line in table.read_text().splitlines()} == {3}
    result = bertjax("neighbors", str(run[1]), "--output", str(listed), "--words", str(tmp_path / "words.txt"))
    assert result.returncode == 0, result.stderr
    assert {line.partition("\t")[0] for line in listed.read_text().splitlines()} <= set(words)
    tokenizer = load_run(run[1]).tokenizer
    for path in (table, listed):
        assert len(SimilarTable.read(str(path), tokenizer).sizes) == path.read_text().count("\n")
    for wrong in (("--vocab", "v.txt"), ("--words", str(tmp_path / "no.txt")), ("--nearest", "0")):
        refused = bertjax("neighbors", str(run[1]), "--output", str(tmp_path / "other.tsv"), *wrong)
        assert refused.returncode == 1 and wrong[0] in refused.stderr and "Traceback" not in refused.stderr


def test_fill_mask_checkpoints_are_in_order(run: tuple[Path, Path, list[str]]) -> None:
    result = bertjax("fill-mask", str(run[1]), "--checkpoints", "the [MASK] ba .", "ba [MASK]")
    assert result.returncode == 0, result.stderr
    lines = re.findall(r"^step +(\d+)  B follows A +([\d.]+)%  \|  (.*)  \|  (.*)$", result.stdout, re.M)
    assert [int(line[0]) for line in lines] == [20, 30, 40]
    assert len({line[1:] for line in lines}) == 3, "the answers change during training"
    (newest,) = checkpoint_predictions(run[1] / "checkpoints" / "40", ["the [MASK] ba .", "ba [MASK]"], top=3)
    assert (newest.step, f"{newest.follows:.1%}") == (40, f"{lines[-1][1]}%")
    (guesses,) = fill_mask(load_run(run[1]), [("the [MASK] ba .", "ba [MASK]")], top=3)
    assert list(map(tuple, guesses)) == list(newest.guesses)
    with pytest.raises(ValueError, match="nothing to predict in 'the end'"):
        next(checkpoint_predictions(run[1], ["the end"], top=3))


def test_tokenize_shows_the_tokens_that_a_run_encodes(run: tuple[Path, Path, list[str]]) -> None:
    tokenizer = load_run(run[1]).tokenizer
    ids = tokenizer.encode(["the ba \u4e00 ."])[0].tolist()
    assert tokenizer.unk_id in ids
    vocabulary = str(run[1] / "vocab.txt")
    for source in (str(run[1]), vocabulary):
        result = bertjax("tokenize", source, "the ba \u4e00 .")
        assert result.returncode == 0, result.stderr
        _, tokens, numbers, figures = result.stdout.splitlines()
        assert tokens.split() == [tokenizer.tokens[number] for number in ids] and [*map(int, numbers.split())] == ids
        assert figures.split(",")[0].strip() == f"{len(ids)} tokens" and figures.endswith("1 of them [UNK]")
    assert bertjax("tokenize", str(run[1]), "a", "--cased").returncode == 1


def test_export_writes_to_the_output_folder(run: tuple[Path, Path, list[str]], tmp_path: Path) -> None:
    result = bertjax("export", str(run[1]), "--output", str(tmp_path / "out"))
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "out" / "config.json").is_file()
    assert str(tmp_path / "out") in result.stdout


def test_resuming_with_other_text_is_refused(run: tuple[Path, Path, list[str]]) -> None:
    folder, run_dir, arguments = run
    before = [(run_dir / name).read_bytes() for name in ("config.json", "vocab.txt")]
    other = write_corpus(folder / "other.txt", 200, seed=5)
    refused = bertjax(*arguments[3:], "--data.sources", f"lines:{other}")
    assert refused.returncode == 1 and "changed since this run began" in refused.stderr
    assert [(run_dir / name).read_bytes() for name in ("config.json", "vocab.txt")] == before


def test_init_from_starts_a_new_run_from_weights(run: tuple[Path, Path, list[str]]) -> None:
    folder, run_dir, arguments = run
    again = [
        str(folder / "again") if word == str(run_dir) else word for word in arguments[: arguments.index("--profile")]
    ]
    finish([*again, "--training.steps", "10", "--init-from", str(run_dir)], folder / "again.log")
    output = (folder / "again.log").read_text()
    assert f"starting from the weights of {run_dir}" in output
    assert "ETA" in output


def test_suggested_command_repeats_the_options() -> None:
    overrides = ["--data.sources", "text:a b/*.txt", "lines:c", "--data.vocab=old.txt", "--name", "x"]
    parsed = argparse.Namespace(config="my recipe.py:small", overrides=overrides, plugin=[])
    sources = "bertjax prepare 'my recipe.py:small' --data.sources 'text:a b/*.txt' lines:c"
    assert shell_command("prepare", parsed) == f"{sources} --data.vocab=old.txt --name x"
    assert shell_command("prepare", parsed, {"data.vocab": "new.txt"}) == f"{sources} --name x --data.vocab new.txt"
    parsed.overrides = ["--data.vocab_size", "9", "--data.sources", "docs:"]
    assert shell_command("plan", parsed, {"data.vocab-size": "8"}).endswith("--data.sources docs: --data.vocab-size 8")
    parsed.plugin, parsed.overrides = ["a.py", "my.module"], []
    assert shell_command("plan", parsed) == "bertjax plan 'my recipe.py:small' --plugin a.py --plugin my.module"


@pytest.mark.long  # test_checkpoint.py tests the same message with damaged files
def test_damaged_checkpoint_is_reported_once(run: tuple[Path, Path, list[str]], tmp_path: Path) -> None:
    """Every array is damaged, so that further reads are running when the first fails."""
    _, run_dir, arguments = run
    damaged = tmp_path / "run"
    shutil.copytree(run_dir, damaged)
    for path in (damaged / "checkpoints" / "40" / "state").rglob("d/*"):
        content = bytearray(path.read_bytes())
        middle = slice(len(content) // 2, len(content) // 2 + 64)
        content[middle] = bytes(byte ^ 0xFF for byte in content[middle])
        path.write_bytes(content)
    result = subprocess.run(
        [str(damaged) if word == str(run_dir) else word for word in arguments], capture_output=True, text=True
    )
    assert result.returncode == 1
    first, second = result.stderr.splitlines()
    assert first.startswith(f"bertjax pretrain: checkpoint {damaged}/checkpoints/40 is damaged: ")
    assert second.startswith("replace it with an intact copy, or add --restore previous")


# Modules in the order of import, at which Ctrl-C arrives, each with a command that imports it.
EARLY = [
    ("bertjax.cli.interruption", ["--help"]),
    ("argparse", ["pretrain", "RECIPE"]),
    ("bertjax.config", ["pretrain", "RECIPE"]),
    ("jax", ["pretrain", "RECIPE"]),
    ("tyro", ["pretrain", "RECIPE"]),
    ("jax._src.api", ["evaluate", "nowhere"]),
]
INTERRUPTED_AT = """
import os, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it

class Interrupting:
    def find_spec(self, name, path, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from bertjax.__main__ import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize(("module", "words"), EARLY, ids=[module for module, _ in EARLY])
def test_interruption_during_imports_prints_one_line(module: str, words: list[str], tmp_path: Path) -> None:
    arguments = [str(write_recipe(tmp_path)) if word == "RECIPE" else word for word in words]
    process = [sys.executable, "-c", INTERRUPTED_AT, module, *arguments]
    result = subprocess.run(process, capture_output=True, text=True, timeout=120)
    verb = "" if words[0] == "--help" else f" {words[0]}"
    assert re.fullmatch(rf"\n?bertjax{verb}: interrupted; [^\n]+\n", result.stderr), result.stderr
    assert result.returncode == 130


def test_main_keeps_another_interrupt_handler(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert main(["evaluate", "nowhere"]) == 1
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert main(["evaluate", "nowhere"]) == 1
    assert signal.getsignal(signal.SIGINT) is before


def test_main_formats_warnings_without_path_and_code(monkeypatch: pytest.MonkeyPatch) -> None:
    before, formatted = warnings.formatwarning, []

    def run(arguments: argparse.Namespace) -> int:
        formatted.append(warnings.formatwarning(UserWarning("accents are lost"), UserWarning, "a.py", 3, "code()"))
        return 0

    monkeypatch.setattr("bertjax.cli.recipes.VERB", replace(load_verb("recipes"), run=run))
    assert main(["recipes"]) == 0
    assert formatted == ["Warning: accents are lost\n"] and warnings.formatwarning is before
