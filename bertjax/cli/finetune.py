"""`bertjax finetune`: a model, a task and its data to fine-tuned models, their figures and predictions."""

from __future__ import annotations

import argparse

from bertjax.cli.verb import Verb
from bertjax.config import FinetuneConfig, override

# The names of bertjax.finetune.tasks and of its kinds of tasks, whose modules import jax.
GLUE_TASKS = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")
TASKS = ("glue", *GLUE_TASKS, "swag", "codah", "squad", "squad2", "ner", "pos")
TASKS += ("classification", "regression", "choice", "pairs", "relevance")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `finetune`; other options are keys of bertjax.config.FinetuneConfig."""
    parser.add_argument(
        "config",
        metavar="TASK",
        help="glue (all of it), cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli, swag, codah, squad, squad2, ner, "
        "pos; or your own table: classification, regression, choice, pairs (texts of like meaning), relevance (of a "
        "passage to a query). Any key of the config is an option too, as in --optimizer.beta2 0.98",
    )
    parser.add_argument("--init-from", metavar="RUN", required=True, help="a run, hf:DIR or tf1:DIR to start from")
    parser.add_argument("--data", metavar="DIR", help="the folder of the task's files, or tfds:glue")
    for name in ("train", "dev", "test"):
        parser.add_argument(f"--{name}", metavar="FILE", help=f"the {name} set of your own table")
    _add_list(parser, "--text", "COLUMN", "column of the text, of both texts, or of the start and each ending")
    parser.add_argument("--label", metavar="COLUMN", help="column of the label")
    parser.add_argument("--id", metavar="COLUMN", help="column of the id that predictions are written with")
    _add_list(parser, "--labels", "LABEL", "all labels (those of the training set)")
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


def _add_list(parser: argparse.ArgumentParser, name: str, metavar: str, help: str, kind: type = str) -> None:
    # Given again, the last one counts, as for the keys of a config, so that a command can be changed at its end.
    parser.add_argument(name, type=kind, nargs="+", metavar=metavar, help=help)


def run(arguments: argparse.Namespace) -> int:
    """Fine-tune for one task, or for every task of GLUE that has data; every process does this."""
    from bertjax.cli.recipe import print_now
    from bertjax.cli.task_runs import Interrupted, finetune_all
    from bertjax.convert.sources import require_source
    from bertjax.runtime.compilation import keep_compiled_programs
    from bertjax.runtime.processes import Stopped, join

    require_source(arguments.init_from)
    # Processes must join before the model is read, which uses devices; the rest of the config needs the model.
    early = override(FinetuneConfig(), arguments.overrides, "bertjax finetune")
    keep_compiled_programs(early.compilation_cache)
    try:
        with join(early.hosts) as processes:
            finetune_all(arguments, processes)
    except Stopped as stopped:
        print_now(f"\n{stopped}")
        return stopped.exit_code
    except Interrupted as interrupted:
        return interrupted.exit_code
    return 0


VERB = Verb(
    add_arguments,
    run,
    example="bertjax finetune sst2 --init-from runs/quickstart --data glue/SST-2 --seeds 3",
    takes_keys=True,
)
