"""`bertjax finetune`: fine-tune a model for a task, and write its figures and predictions."""

from __future__ import annotations

import argparse

from bertjax.cli.recipe import add_log, add_show_config, with_loggers, with_plugins
from bertjax.cli.verb import Verb
from bertjax.config import override

# Options of the verb that are keys of TaskConfig.
_TASK_KEYS = (
    "data",
    "train",
    "dev",
    "test",
    "text",
    "label",
    "id",
    "labels",
    "patience",
    "layer_decay",
    "distil",
    "from_text",
    "positives",
    "dims",
)
_SWITCHES = ("balanced", "strict_length")

# The names of bertjax.finetune.tasks and of its kinds of tasks, whose modules import jax.
_GLUE_TASKS = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")
_ENTITY_TASKS = ("ncbi-disease", "bc5cdr-disease", "bc5cdr-chem", "lener-br")
_DATA_SETS = (*_GLUE_TASKS, "swag", "codah", "squad", "squad2", "ner", "pos", "xnli", *_ENTITY_TASKS)
_TABLE_TASKS = {  # name -> what it is, for the help
    "classification": "",
    "regression": "",
    "token-classification": " (a tag for each word or letter)",
    "token-regression": " (a number for each word or letter)",
    "choice": "",
    "pairs": " (texts of like meaning)",
    "relevance": " (of a passage to a query)",
}
_TEXT_TASKS = ("vectors", "denoising")
TASKS = ("glue", *_DATA_SETS, *_TABLE_TASKS, *_TEXT_TASKS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "config",
        metavar="TASK",
        help=f"glue (all of it), {', '.join(_DATA_SETS)}; or your own table: "
        f"{', '.join(name + note for name, note in _TABLE_TASKS.items())}; or plain text: {', '.join(_TEXT_TASKS)} "
        "(--from-text). Any key of the config is an option too, as in --optimizer.beta2 0.98",
    )
    parser.add_argument("--init-from", metavar="RUN", required=True, help="a run, hf:DIR, hf:NAME or tf1:DIR")
    parser.add_argument("--teacher", metavar="RUN", help="a model fine-tuned for the same task, to learn from")
    parser.add_argument(
        "--distil", choices=("predictions", "layers"), help="what to learn from the teacher (predictions)"
    )
    parser.add_argument("--data", metavar="DIR", help="the folder of the task's files, or tfds:glue")
    for name, default in {"train": "", "dev": " (a tenth of the training set)", "test": ""}.items():
        help = f"the {name} set of your own table: CSV, TSV, JSON, JSON Lines or Parquet{default}"
        parser.add_argument(f"--{name}", metavar="FILE", help=help)
    _add_list(parser, "--from-text", "SOURCE", "plain text for `vectors` or `denoising`, as text:GLOB or a folder")
    _add_list(
        parser,
        "--positives",
        "RULE",
        "how pairs are made of text: dropout (SimCSE), repetition, deletion, crops, neighbors, title, noise (TSDAE); "
        "dropout, or deletion of a model without it; noise for `denoising`",
    )
    _add_list(parser, "--dims", "N", "also train vectors cut to their first N numbers (Matryoshka)", int)
    _add_list(
        parser,
        "--text",
        "COLUMN",
        "column of the text, of both texts (and negatives), or of the start and each ending",
    )
    parser.add_argument("--label", metavar="COLUMN", help="column of the label (label)")
    parser.add_argument("--id", metavar="COLUMN", help="column of the id that predictions are written with")
    _add_list(parser, "--labels", "LABEL", "all labels (the training set's)")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="runs of each setting (%(default)s)")
    _add_list(parser, "--learning-rate", "X", "learning rates to try", float)
    _add_list(parser, "--batch-size", "N", "numbers of examples per step to try", int)
    _add_list(parser, "--epochs", "X", "numbers of epochs to try", float)
    parser.add_argument("--grid", action="store_true", help="try the learning rates of the paper")
    parser.add_argument("--max-length", type=int, metavar="N", help="tokens per row, special tokens included")
    parser.add_argument("--strict-length", action="store_true", help="refuse longer inputs instead of truncating them")
    parser.add_argument(
        "--balanced", action="store_true", help="weight the loss so that every label counts the same in total"
    )
    parser.add_argument("--patience", type=int, metavar="N", help="stop after N evaluations without a better one")
    parser.add_argument(
        "--layer-decay", type=float, metavar="X", help="factor of the learning rate from each layer to the next below"
    )
    parser.add_argument("--run-dir", metavar="DIR", help="directory to write (runs/TASK)")
    add_log(parser)
    add_show_config(parser)


def _add_list(parser: argparse.ArgumentParser, name: str, metavar: str, help: str, kind: type = str) -> None:
    # The last occurrence counts, as for config keys, so that a command can be changed at its end.
    parser.add_argument(name, type=kind, nargs="+", metavar=metavar, help=help)


def run(arguments: argparse.Namespace) -> int:
    """Fine-tune for one task, or for every task of GLUE that has data; every process does this."""
    from bertjax.pipeline.finetuning import TaskRequest, finetune
    from bertjax.run.session import print_now
    from bertjax.runtime.processes import Stopped

    options = {key: getattr(arguments, key) for key in (*_TASK_KEYS, *_SWITCHES)}
    name = f"bertjax finetune {arguments.config}"
    request = TaskRequest(
        name=arguments.config,
        init_from=arguments.init_from,
        teacher=arguments.teacher or "",
        task={
            key: tuple(value) if isinstance(value, list) else value
            for key, value in options.items()
            if value is not None and value is not False
        },
        tried={key: values for key in ("learning_rate", "batch_size", "epochs") if (values := getattr(arguments, key))},
        grid=arguments.grid,
        seeds=arguments.seeds,
        max_length=arguments.max_length,
        run_dir=arguments.run_dir or "",
        change=lambda config: with_plugins(
            with_loggers(override(config, arguments.overrides, name), arguments.log), arguments
        ),
        show_config=arguments.show_config,
    )
    try:
        result = finetune(request, ends_process=True)
    except Stopped as stopped:
        print_now(f"\n{stopped}")
        return stopped.exit_code
    if result.exported:
        print_now(str(result))
    return 0


VERB = Verb(
    add_arguments,
    run,
    example="bertjax finetune sst2 --init-from runs/quickstart --data glue/SST-2 --seeds 3",
    takes_keys=True,
)
