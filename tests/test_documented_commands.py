"""Every command in the documentation and the recipes runs: pretraining with each recipe at a tiny size, and all verbs.

test_use_it.py runs the commands for using a model; this file runs the others. New documented commands that pretrain or
plan are run automatically; add other commands to the scripts below.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import re
import shlex
import zlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hub_stand_in import TOKEN, Hub
from page_files import (
    CHAPTERS,
    REPOSITORY,
    json_lines,
    write_dumps,
    write_google_records,
    write_protein_tables,
    write_task_files,
    write_text_files,
)
from test_hf import data_set, hub, parquet  # noqa: F401
from test_readme import ABBREVIATED, COMMANDS, PARSERS, recipe_of
from test_tpu import NO_COMPILER, run_plan
from test_use_it import DETAILS, README, commands, write_collection

from bertjax.__main__ import load_verb, main
from bertjax.config import Config, load_recipe, override
from bertjax.run.checkpoint import saved_steps

# Documented commands that the tests find by themselves.
BY_THEMSELVES = re.compile(r"bertjax (pretrain (?!RECIPE)|plan .*--topology v)")
LONG = pytest.mark.long
# Replacements for words of the documentation: times, later steps, and the reader's own names.
SUBSTITUTES = {
    "2h": "40s", "1200": "2", "--step N": "--step 2", "10:13": "0:2", "--dims 32 64": "--dims 8 12",
    "RECIPE …": "bert_mini --data.sources 'text:books/*.txt'", "RECIPE": "quickstart", "PATH ...": "runs/quickstart",
    "average RUN": "average runs/modernbert_base", "RUN": "runs/quickstart", "hf:NAME": "hf:my_bert",
    "DIR": "SST-2", "FILE": "nearest.tsv", "VECTORS": "vectors.txt",
    "SOURCE": "'text:papers/*.txt'", "TEXT": "'It was long.'", "data/vocab-FINGERPRINT/vocab.txt": "extended/vocab.txt",
    "gs://BUCKET": "{bucket}", "gs://bucket": "{bucket}", "s3://bucket": "{bucket}", "/mnt/disk": "cache",
    "STORE": "data/{store}", "store-*": "{store}", "store-…": "{store}", "store-0123456789ab": "{store}",
}  # fmt: skip
# Sizes for options that are off by default, used where a recipe turns them on.
WHERE_SET = {"embedding_size": 8, "num_key_value_heads": 1, "window": 8, "mlm_inner_size": 8, "relative_max": 9,
             "relative_buckets": 6, "attention_block": 8, "generator_layers": 1, "teacher_width": 16}  # fmt: skip


def pretrain_commands() -> list[str]:
    """The commands without their first two words; each recipe once, by its name."""
    rests = (command.removeprefix("bertjax pretrain ") for command in COMMANDS if " pretrain " in command)
    return sorted({rest.removeprefix("configs/").replace(".py", "", 1) for rest in rests})


def rows_in_small(length: int) -> int:
    """48 tokens for rows of 128, and 48 more for each doubling, so that longer rows stay longer."""
    return min(length, 48 * max(1, round(math.log2(length / 64))))


def predictions_in_small(predictions: int, length: int) -> int:
    """A larger share than in the original row, because the number of masked tokens varies more in short rows."""
    share = predictions * rows_in_small(length) / length
    return math.ceil(share + 4 * math.sqrt(share))


def sizes_in_small(config: Config) -> dict[str, Any]:
    """Settings that make a recipe tiny and change nothing else."""
    model, data = config.model, config.data
    stages = {f"stages.{number}": stage for number, stage in enumerate(config.stages)}
    sizes = {
        "model.hidden_size": 16,
        "model.intermediate_size": 32,
        "model.num_attention_heads": 2,
        "model.num_hidden_layers": 1 if config.distillation.teacher else max(2, model.global_every + 1),
        "model.max_position_embeddings": rows_in_small(model.max_position_embeddings),
        "execution.scan_unroll": 1,
        "data.vocab_size": min(data.vocab_size, 900),
        "data.held_out": 0.3,
        "data.workers": 1,
        "training.steps": min(config.training.steps, max(6, 2 * (len(stages) + 1))),
        "training.eval_rows": 8,
        "training.log_every": 1,
        **{f"model.{name}": size for name, size in WHERE_SET.items() if getattr(model, name)},
        **({"init_layers": 0} if config.init_layers else {}),
    }
    if config.training.budget:
        del sizes["training.steps"]
    batches = {room: part.global_batch_size for room, part in {"training": config.training, **stages}.items()}
    ranks = sorted({*batches.values()} - {None})
    sizes |= {f"{room}.global_batch_size": 2 + 2 * ranks.index(rows) for room, rows in batches.items() if rows}
    length = 0
    for room, part in {"data": data, **stages}.items():
        length = part.sequence_length or length
        sizes[f"{room}.sequence_length"] = rows_in_small(length)
        if part.max_predictions:
            sizes[f"{room}.max_predictions"] = predictions_in_small(part.max_predictions, length)
    return sizes


def in_small(command: str, **names: str) -> list[str]:
    """The words of a command after `bertjax`, with replacements, and with tiny sizes if it trains."""
    for word, substitute in SUBSTITUTES.items():
        command = re.sub(rf"(?<![\w-]){re.escape(word)}(?!\w)", substitute, command)
    verb, *words = shlex.split(command.format(**names))
    if verb == "finetune":
        return [verb, *words, "--epochs", "1", "--batch-size", "8", "--max-length", "16"]
    trains = load_verb(verb).takes_keys and verb not in ("inspect", "run") and (verb != "compare" or "--seeds" in words)
    if not trains:
        return [verb, *words]
    dashes = words.index("--") if "--" in words else len(words)
    parsed, keys = PARSERS[verb].parse_words(words[:dashes], takes_keys=True)
    sizes = sizes_in_small(override(recipe_of(parsed), keys, "bertjax"))
    if verb == "plan":  # one row per device, and heads that the kernels support
        sizes = {key: size for key, size in sizes.items() if not key.endswith("batch_size")}
        sizes |= {"model.hidden_size": 128, "model.intermediate_size": 128}
    if verb == "pretrain" and "--run-dir" not in words:
        sizes["run_dir"] = f"runs/{zlib.crc32(command.encode())}"
    appended = [word for key, size in sizes.items() for word in (f"--{key.replace('_', '-')}", str(size))]
    return [verb, *words[:dashes], *appended, *words[dashes:]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A user's folder with the files and published models that the commands name."""
    folder = tmp_path_factory.mktemp("user")
    recipes = load_recipe("multilingual:cased"), load_recipe("albert")
    sources = " ".join([*COMMANDS, *(source for recipe in recipes for source in recipe.data.sources)])
    write_text_files(folder)
    write_dumps(folder, {*re.findall(r"wikipedia:(\S+\.bz2)", sources)})
    for length, predictions in ((128, 20), (512, 77)):
        write_google_records(folder / str(length), rows_in_small(length), predictions_in_small(predictions, length))
    for name in ("configs", "tests"):
        (folder / name).symlink_to(REPOSITORY / name)
    with pytest.MonkeyPatch.context() as machine:
        machine.chdir(folder)
        for name, value in {
            "TFDS_DATA_DIR": str(folder / "tensorflow_datasets"),
            "WANDB_MODE": "offline",
            "MLFLOW_TRACKING_URI": f"file://{folder}/mlruns",
            "MLFLOW_ALLOW_FILE_STORE": "true",
            "MLFLOW_DISABLE_TELEMETRY": "true",
        }.items():
            machine.setenv(name, value)
        for name, command in {
            "bert-base-cased": "bert_base:cased --data.vocab cased_vocab.txt --model.hidden-act gelu",
            "bert-base-uncased": "bert_base --data.vocab vocab.txt --model.hidden-act gelu",
            "roberta-base": "roberta --data.vocab vocab.json",
        }.items():
            assert main(in_small(f"pretrain {command} --run-dir runs/{name}")) == 0
            assert main(["export", f"runs/{name}", "--to", "huggingface", "--output", name]) == 0
        yield folder


@LONG
@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize("command", pretrain_commands())
def test_documented_pretraining_runs(command: str, folder: Path, request: pytest.FixtureRequest) -> None:
    if "hf:HuggingFaceFW" in command or "hf:wikimedia" in command:
        fake_hub = request.getfixturevalue("hub")
        for name, config in {"HuggingFaceFW/fineweb-edu": "sample-10BT", "wikimedia/wikipedia": "20231101.eo"}.items():
            card = {"configs": [{"config_name": config, "data_files": [{"split": "train", "path": f"{config}/*"}]}]}
            data_set(fake_hub, {f"{config}/0.parquet": parquet(CHAPTERS)}, name, card=card)
    if "vocab-FINGERPRINT" in command:
        extend = next(line for line in COMMANDS if line.startswith("bertjax vocab configs/domain.py"))
        assert main([*in_small(extend.removeprefix("bertjax ")), "--data.root", "extending"]) == 0
        (vocabulary,) = folder.glob("extending/vocab-*")
        vocabulary.rename(folder / "extended")
    words = in_small(f"pretrain {command}")
    assert main(words) == 0
    run = folder / words[-1]
    steps = json.loads((run / "config.json").read_text())["training"]["steps"]
    assert saved_steps(run)[-1] == steps and (run / "report.html").is_file()


# Models for the commands below; other documented commands train them.
MODELS = """
bertjax pretrain quickstart --run-dir runs/quickstart
bertjax pretrain quickstart --training.seed 1 --run-dir runs/longer
bertjax pretrain protein_mini --run-dir runs/protein_mini
bertjax pretrain modern_mini --data.sources 'text:books/*.txt' --run-dir runs/modern_mini
bertjax pretrain electra:small --data.vocab vocab.txt --run-dir runs/electra
bertjax pretrain domain --init-from hf:bert-base-cased --data.sources 'text:papers/*.txt' --run-dir runs/domain_cased
bertjax pretrain tinybert --data.vocab bert-base-uncased/vocab.txt --run-dir runs/tinybert_4x312
bertjax pretrain bert_mini --data.sources 'text:books/*.txt' --training.keep-last 5 --training.checkpoint-every 1 \
    --training.steps 6 --optimizer.average-decay 0.9 --run-dir runs/modernbert_base
bertjax finetune classification --init-from runs/quickstart --train reviews.csv --run-dir runs/reviews
bertjax finetune sst2 --init-from hf:bert-base-uncased --data DIR --run-dir runs/sst2
bertjax search runs/quickstart --index runs/docs --documents corpus.jsonl
bertjax search runs/quickstart --index runs/docs --queries queries.jsonl --qrels train.tsv --training-pairs made
"""
# The other verbs, ordered by the files that they need. A comment replaces a word: old=new.
VERBS = """
bertjax recipes copy modern_mini
bertjax recipes copy bert_mini
bertjax tokenize runs/quickstart 'strawberries and cream'
bertjax export runs/quickstart --to huggingface --output my_bert
bertjax export RUN --to huggingface --output my_bert    # my_bert=another_bert
bertjax export RUN --generator --output generator                   # RUN=runs/electra
bertjax export runs/quickstart --to huggingface --overwrite --push ada/quickstart --private
bertjax export runs/quickstart --to litert --pooling mean --normalize
bertjax export runs/quickstart --to onnx --pooling mean --normalize
bertjax export runs/quickstart --to sentence-transformers --pooling mean --normalize --output my_encoder
bertjax export RUN --to sentence-transformers --normalize --output my_encoder    # my_encoder=another_encoder
bertjax export runs/reviews --to onnx
bertjax export runs/reviews --to onnx --precision int8
bertjax export runs/reviews --to savedmodel --output models/reviews
bertjax export runs/reviews --to stablehlo
bertjax export runs/reviews --to web --output page
bertjax import hf:my_bert --output runs/again
bertjax import hf:NAME --output runs/mine
bertjax import hf:bert-base-cased --output runs/base
bertjax run verify PATH ...
bertjax run replay RUN --step 1200
bertjax run replay RUN --step N
bertjax run average RUN --last 4                                    # --last 4=--last 4 --output runs/last4
bertjax run average RUN --last 5                                    # --last 5=--last 5 --output runs/last5
bertjax run average runs/modernbert_base --last 5
bertjax run average RUN --moving                                    # --moving=--moving --output runs/moving
bertjax fill-mask runs/quickstart --checkpoints 'She opened the [MASK] and went out.'
bertjax fill-mask runs/quickstart --correct 'He sat done in the chair.' --top 3
bertjax fill-mask hf:my_bert --correct --evaluate sighan15_test.tsv
bertjax fill-mask hf:my_bert --correct --file lines.txt --masked --output corrected.txt
bertjax fill-mask runs/modern_mini 'He opened the [MASK] and went out.'
bertjax fill-mask runs/protein_mini 'VYWLFACF[MASK]NNCGQQSGGEDKTINMRTYHDQ'
bertjax evaluate RUN
bertjax evaluate runs/modern_mini
bertjax evaluate runs/quickstart 'She was looking at him.' 'She were looking at him.'
bertjax evaluate hf:my_bert --pairs blimp/data --variant word-l2r
bertjax evaluate runs/protein_mini VYWLFACFINNCGQQSGGEDKTINMRTYHDQ --substitutions I9V C12W I9V:C12W
bertjax evaluate runs/protein_mini --substitutions variants.csv --output scores.jsonl
bertjax evaluate runs/protein_mini VYWLFACFINNCGQQSGGEDKTINMRTYHDQ --contacts known.csv
bertjax compare runs/quickstart runs/longer
bertjax compare runs/first runs/second --html comparison.html       # first runs/second=quickstart runs/longer
bertjax compare RECIPE --seeds 0 1 2 --output NAME.json
bertjax neighbors runs/quickstart garden                            # garden=alice
bertjax neighbors runs/quickstart king
bertjax neighbors RUN --output FILE
bertjax neighbors vectors.txt --vocab vocab.txt --output similar.tsv         # similar=near
bertjax neighbors VECTORS --vocab vocab.txt --output similar.tsv             # similar=nearer
bertjax embed runs/quickstart 'parquet:crawl/*.parquet' --output vectors/
bertjax embed runs/quickstart papers.jsonl.gz --field abstract --long split --output vectors.parquet
bertjax embed runs/protein_mini proteins.fasta --output vectors.npy
bertjax embed runs/protein_mini proteins.fasta --pooling none --output letters.jsonl
bertjax embed hf:my_bert --pooling none --layer 1 --output tokens.jsonl
bertjax predict RUN TEXT                                            # RUN=runs/reviews
bertjax predict runs/reviews --files 'parquet:crawl/*.parquet' --column text --output labels/
bertjax finetune classification --init-from runs/modern_mini --train reviews.csv \
    --run-dir runs/reviews  # runs/reviews=runs/modern
bertjax finetune classification --init-from runs/base --train reviews.csv --seeds 3 --run-dir runs/before
bertjax finetune classification --init-from runs/domain_cased --train reviews.csv --seeds 3 --run-dir runs/after
bertjax compare runs/before/seed-0 runs/after/seed-0
bertjax finetune vectors --init-from runs/quickstart --from-text 'text:books/*.txt' --run-dir runs/encoder \
    --positives deletion --learning-rate 1e-4
bertjax finetune vectors --init-from runs/quickstart --from-text notes/ --positives neighbors title --dims 32 64
bertjax finetune pairs --init-from runs/encoder --data made/pairs --text text text_b negatives --dims 32 64
bertjax finetune denoising --init-from runs/quickstart --from-text 'text:books/*.txt' --run-dir runs/denoised
bertjax finetune sst2 --init-from runs/tinybert_4x312 --teacher runs/sst2 --distil layers --data DIR --epochs 10 \
    --run-dir runs/sst2_layers
bertjax finetune sst2 --init-from runs/sst2_layers --teacher runs/sst2 --distil predictions --data DIR --epochs 3 \
    --run-dir runs/sst2_small
bertjax finetune classification --init-from runs/protein_mini --train train.csv --dev dev.csv --text sequence \
    --label family --run-dir runs/families
bertjax finetune regression --init-from runs/protein_mini --train train.csv --dev dev.csv --text sequence \
    --label stability --run-dir runs/stability
bertjax finetune token-classification --init-from runs/protein_mini --train train.jsonl --dev dev.jsonl \
    --text sequence --label structure --run-dir runs/structure
bertjax finetune token-regression --init-from runs/protein_mini --train train.jsonl --dev dev.jsonl \
    --text sequence --label flexibility --run-dir runs/flexibility
bertjax predict runs/flexibility VYWLFACFINNCGQQSGGEDKTINMRTYHDQ
bertjax vocab RECIPE …
bertjax vocab RECIPE --extend SOURCE      # RECIPE=domain --data.vocab bert-base-cased/vocab.txt
bertjax vocab configs/domain.py --data.vocab bert-base-cased/vocab.txt --extend 'text:papers/**/*.txt' --max-new 1000
bertjax prepare RECIPE …
bertjax prepare RECIPE … --data.filters gopher_quality exact_duplicates near_duplicates
bertjax prepare modern_mini --data.sources 'text:books/*.txt'
bertjax prepare modern_mini --data.sources 'fasta:proteins/*.fasta.gz' --data.tokenizer characters:esm2
bertjax prepare configs/quickstart.py --runner beam -- --runner=DirectRunner --direct_num_workers=2
bertjax pretrain RECIPE …
bertjax inspect STORE
bertjax inspect data/store-*
bertjax bench RECIPE
bertjax plan RECIPE --tokens 2T --hosts 100 --cores 64
"""
# Commands with a bucket, run on a local S3 server.
IN_BUCKET = """
bertjax prepare bert_base --data.root gs://BUCKET/data --data.vocab gs://BUCKET/vocab.txt \
    --data.sources 'text:gs://BUCKET/text/*.txt.zst' --data.workers 8
bertjax prepare RECIPE … --data.sources 'jsonl:s3://bucket/text/*.jsonl.gz' --data.root s3://bucket/data
bertjax pretrain RECIPE … --data.sources 'jsonl:s3://bucket/text/*.jsonl.gz' --data.root s3://bucket/data \
    --data.cache-dir /mnt/disk
bertjax pretrain RECIPE … --data.root gs://bucket/data --run-dir gs://bucket/runs/bert --data.cache-dir /mnt/disk
bertjax fill-mask gs://bucket/runs/bert 'The [MASK] returns an array.'
bertjax export gs://BUCKET/runs/bert --to huggingface --output bert
bertjax inspect s3://bucket/data/store-…
bertjax pretrain RECIPE … --data.store gs://bucket/data/store-0123456789ab
bertjax run verify runs/bert
"""
# Documented commands that no test runs unchanged.
NOT_RUN = {
    "--runner=DaskRunner": "needs a Dask cluster; tests/text/test_beam.py starts one of two workers",
    "--runner=FlinkRunner": "needs a Flink cluster",
    "--hosts.processes 4": "needs four hosts; tests/run/test_hosts.py starts processes in place of them",
    "--topology h100:1": "needs XLA for CUDA, some gigabytes, which the tests do not install",
}


def lines(script: str) -> list[tuple[str, dict[str, str]]]:
    """The commands of a script, with the word that each replaces."""
    split = (line.partition("  # ") for line in script.splitlines() if line)
    return [(" ".join(command.split()), dict([more.split("=")] if more else [])) for command, _, more in split]


def run_all(script: str, capsys: pytest.CaptureFixture[str], bucket: str = "") -> None:
    """Run the commands of a script, and report all failures."""
    failures = []
    for command, replaced in lines(script):
        if "near_duplicates" in command and find_spec("datasketch") is None:
            continue
        for word, other in replaced.items():
            command = command.replace(word, other)
        capsys.readouterr()
        try:
            code = main(in_small(command.removeprefix("bertjax "), bucket=bucket, store=first_store(bucket)))
        except BaseException as error:  # including SystemExit of a parser
            code = repr(error)
        if code != 0:
            failures.append(f"{command}\n{code} {capsys.readouterr().err[-1500:]}")
    assert not failures, "\n".join(failures)


def first_store(bucket: str) -> str:
    """The name of a store in `data`, in a bucket or the current folder; empty if there is none."""
    filesystem, path = fsspec.core.url_to_fs(f"{bucket}/data/store-*" if bucket else "data/store-*")
    return next((name.rpartition("/")[2] for name in sorted(filesystem.glob(path))), "")


@LONG
@pytest.mark.usefixtures("one_device")
def test_documented_verbs_run(
    folder: Path,
    hub: Hub,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr("sys.stdin", io.StringIO("She looked at him.\n"))
    write_task_files(folder)
    write_protein_tables(folder)
    write_collection(folder)
    run_all(MODELS, capsys)
    run_all(VERBS, capsys)
    assert hub.repositories["ada/quickstart"].private


@LONG
@pytest.mark.usefixtures("one_device")
def test_documented_commands_run_in_a_bucket(folder: Path, s3: str, capsys: pytest.CaptureFixture[str]) -> None:
    filesystem, path = fsspec.core.url_to_fs(s3)
    texts = gzip.compress(json_lines({"text": text} for text in CHAPTERS))
    for name, content in {
        "vocab.txt": (folder / "vocab.txt").read_bytes(),
        "text/a.txt.zst": (folder / "corpus" / "part" / "all.txt.zst").read_bytes(),
        "text/a.jsonl.gz": texts,
    }.items():
        filesystem.pipe_file(f"{path}/{name}", content)
    *script, verify = IN_BUCKET.strip().splitlines()
    run_all("\n".join(script), capsys, bucket=s3)
    filesystem.get(f"{path}/runs/bert", "runs/bert", recursive=True)
    run_all(verify, capsys)


@LONG
@pytest.mark.skipif(NO_COMPILER, reason="libtpu, the TPU compiler, is not installed; pip install 'bertjax[tpu]'")
@pytest.mark.parametrize("command", [line for line in COMMANDS if " plan " in line and BY_THEMSELVES.match(line)])
def test_documented_plans_are_made(command: str) -> None:
    _, *words = in_small(command.removeprefix("bertjax "))
    result = run_plan(*words)
    assert result.returncode == 0 and "A step at best" in result.stdout, result.stderr


def test_every_documented_command_has_a_test() -> None:
    """Commands that pretrain or plan are tests of their own."""
    blocks = ((README, "Try it"), (README, "Use the model"), (DETAILS, "Fine-tune and predict"), (DETAILS, "Search"))
    run = {("bertjax", *words) for page, heading in blocks for words in commands(page, heading)}
    run |= {tuple(shlex.split(command)) for command, _ in lines(VERBS + IN_BUCKET)}
    documented = {command: tuple(shlex.split(command)) for command in (*COMMANDS, *ABBREVIATED)}
    untested = [command for command, words in documented.items() if words not in run]
    untested = [command for command in untested if not BY_THEMSELVES.match(command)]
    assert not [command for command in untested if not any(words in command for words in NOT_RUN)], "add it to VERBS"
    assert not [words for words in NOT_RUN if not any(words in command for command in untested)], "no page has it"
    assert run <= {*documented.values()}, "no page has it"
