"""The command line: one verb per job.

Nothing heavy is imported before a verb runs, so that help is immediate.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

CONFIGURED = "takes any key of the config as an override, as in --training.steps 1000; CONFIG --help lists them all"
POOLINGS = ("mean", "cls", "pooler", "max", "none")  # those of bertjax.model.pooling, which takes long to import
_FAILED = 1
_OF_A_RECIPE = ("pretrain", "bench", "plan", "vocab", "prepare")  # the verbs that take a recipe and its keys


@dataclass(frozen=True)
class Verb:
    """A job: where its function is, what it does in one line, one example, and what comes after an interruption."""

    function: str  # module:function below bertjax.cli
    does: str
    example: str
    interrupted: str = "the same command goes on from what is finished"


VERBS = {
    "pretrain": Verb(
        "pretrain:pretrain",
        "pretrain a BERT; makes what is missing (vocabulary, token store), resumes where the run stopped",
        "bertjax pretrain configs/bert_mini.py --data.sources 'text:books/*.txt'",
    ),
    "bench": Verb(
        "bench:run_bench",
        "measure how fast this machine trains a recipe, against its matmuls, and whether its input keeps up",
        "bertjax bench configs/bert_one_gpu.py",
    ),
    "vocab": Verb(
        "prepare:vocab",
        "train the vocabulary of a recipe on its sources, or extend one by the words of others",
        "bertjax vocab configs/bert_mini.py --data.sources 'text:books/*.txt' --data.vocab-size 16000",
    ),
    "prepare": Verb(
        "prepare:prepare",
        "split the text of a recipe's sources into sentences and tokens, once, as a token store",
        "bertjax prepare configs/bert_mini.py --data.sources 'wikiextractor:wiki/*.xz' --data.vocab vocab.txt",
    ),
    "inspect": Verb(
        "inspect:inspect",
        "show what a token store holds: counts, lengths, rows and packing, duplicates, overlap with evaluation text",
        "bertjax inspect configs/quickstart.py --html inspect.html --against my_test_set.tsv",
    ),
    "plan": Verb(
        "plan:plan",
        "compile a recipe for a machine that need not be here: does it fit, how fast can it be, what will it cost",
        "bertjax plan configs/bert_large.py --topology v5e:16x16 --price 1.2",
    ),
    "evaluate": Verb(
        "use:evaluate",
        "measure a run's newest checkpoint on what is held out of its sources",
        "bertjax evaluate runs/quickstart",
    ),
    "fill-mask": Verb(
        "use:fill_mask",
        "let a run's model fill each [MASK] of a text",
        "bertjax fill-mask runs/quickstart 'This function returns the [MASK] of the array.'",
    ),
    "finetune": Verb(
        "finetune:run_finetune",
        "train a model for a task: GLUE's, questions, tags, choices, or one of your own in a table",
        "bertjax finetune sst2 --init-from runs/quickstart --data glue/SST-2 --seeds 3",
    ),
    "predict": Verb(
        "use:predict",
        "ask a fine-tuned model",
        "bertjax predict runs/squad 'Who wrote it?' 'The letters were written by Ada.'",
    ),
    "embed": Verb(
        "embed:embed",
        "turn texts into vectors, or each text into a vector per token",
        "bertjax embed runs/quickstart texts.txt --output vectors.npy --normalize",
        interrupted="nothing was written; the same command starts over",
    ),
    "search": Verb(
        "search:search",
        "find the documents nearest to a query, by vectors, by words or by both; makes the index if it is not there",
        "bertjax search runs/quickstart 'sort an array' --index runs/quickstart/index --documents docs.jsonl",
        interrupted="no index was left half made; the same command starts over",
    ),
    "attention": Verb(
        "look:attention",
        "show what each head of a model looks at in one sentence or two, as a page",
        "bertjax attention runs/quickstart 'I went to the store.' 'At the store, I bought fresh strawberries.'",
    ),
    "neighbors": Verb(
        "look:neighbors",
        "show what is near a word, in the table of word vectors and in each of its contexts",
        "bertjax neighbors runs/quickstart array",
    ),
    "checkpoints": Verb(
        "look:checkpoints",
        "ask every checkpoint of a run for the [MASK]s of a text, and whether a second sentence follows the first",
        "bertjax checkpoints runs/quickstart 'Return the [MASK] of the array.' 'The array must not be empty.'",
    ),
    "export": Verb(
        "use:export",
        "write a run's model in another framework's format",
        "bertjax export runs/quickstart --to huggingface",
    ),
    "import": Verb(
        "use:import_model",
        "make a run of a model in another framework's format",
        "bertjax import hf:bert-base-uncased --output runs/bert-base-uncased",
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb; returns the exit code. Expected errors become one message, with no traceback."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    arguments, beam_options = _parted(arguments)
    parsed, overrides = _parser().parse_known_args(arguments)
    parsed.beam_options = beam_options
    module, function = VERBS[parsed.verb].function.split(":")
    if "config" not in parsed and overrides:
        _parser().error(f"{parsed.verb} does not take {' '.join(overrides)}")
    try:
        run = getattr(importlib.import_module(f"bertjax.cli.{module}"), function)
        return run(parsed, overrides) if "config" in parsed else run(parsed)
    except (ValueError, OSError, RuntimeError, ModuleNotFoundError) as error:
        if os.environ.get("BERTJAX_TRACEBACK"):
            raise
        print(f"bertjax {parsed.verb}: {error}", file=sys.stderr)
        return getattr(error, "exit_code", _FAILED)
    except KeyboardInterrupt:
        print(f"\nbertjax {parsed.verb}: interrupted; {VERBS[parsed.verb].interrupted}", file=sys.stderr)
        return 130


def _parted(arguments: list[str]) -> tuple[list[str], list[str]]:
    """What stands before and behind `--`, of a verb that can run on a cluster."""
    if arguments[:1] not in (["vocab"], ["prepare"]) or "--" not in arguments:
        return arguments, []
    place = arguments.index("--")
    return arguments[:place], arguments[place + 1 :]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bertjax",
        description="BERT pretraining in JAX: from raw text to a checkpoint that other frameworks load.",
        epilog="bertjax VERB --help tells more. First run: bertjax pretrain configs/quickstart.py",
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    made = {name: _add_verb(verbs, name) for name in VERBS}
    for name in _OF_A_RECIPE:
        made[name].add_argument("config", metavar="CONFIG", help=f"a recipe, a file in configs/; {CONFIGURED}")
    made["bench"].add_argument(
        "--seconds", type=float, default=20, help="to step in each stage, after compiling (%(default)s)"
    )
    made["bench"].add_argument(
        "--made-up", action="store_true", help="random tokens, as where the recipe's text is not there"
    )
    made["bench"].add_argument("--json", metavar="FILE", help="also write the figures there")
    made["vocab"].add_argument(
        "--extend", nargs="+", metavar="SOURCE", help="add words of these sources to the vocabulary of --data.vocab"
    )
    made["vocab"].add_argument("--max-new", type=int, default=1000, help="words to add at most (%(default)s)")
    made["prepare"].add_argument(
        "--shard", metavar="I/N", help="do every N-th part of the work from part I on; for several machines at once"
    )
    for name in ("vocab", "prepare"):
        made[name].add_argument(
            "--runner",
            choices=("processes", "beam"),
            default="processes",
            help="who does the work: processes of this machine, or Apache Beam, whose options stand behind --, as in "
            "--runner beam -- --runner=FlinkRunner --flink_master=HOST:8081",
        )
    made["inspect"].add_argument(
        "config", metavar="STORE|RECIPE", help=f"a token store's directory, or a recipe, which {CONFIGURED}"
    )
    made["inspect"].add_argument("--html", metavar="FILE", help="also write it as one self-contained page with plots")
    made["inspect"].add_argument(
        "--length",
        type=int,
        nargs="+",
        default=[],
        metavar="L",
        help="row lengths (128 and 512, or the recipe's stages)",
    )
    made["inspect"].add_argument(
        "--against",
        nargs="+",
        default=[],
        metavar="FILE",
        help="evaluation texts to look for in the training text: plain text, TSV or JSON Lines, a text a line",
    )
    _add_plan_options(made["plan"])
    _add_finetuning(made["finetune"])
    for name in ("evaluate", "fill-mask", "export"):
        made[name].add_argument("run", metavar="RUN", help="a run's directory, or one of its checkpoints/<step>")
    made["fill-mask"].add_argument("text", nargs="+", metavar="TEXT", help="a text with [MASK] in it")
    made["fill-mask"].add_argument("--top", type=int, default=5, help="guesses per [MASK] (%(default)s)")
    made["predict"].add_argument("run", metavar="RUN", help="a fine-tuned run, or hf:DIR of one")
    made["predict"].add_argument(
        "text",
        nargs="+",
        metavar="TEXT",
        help="what the task is about: a text; a pair of them, as a question and its text; or a start and its ends",
    )
    made["predict"].add_argument(
        "--null-threshold",
        type=float,
        metavar="X",
        help="of questions that a text may not answer: how much better no answer has to score than the best one "
        "(as the model was fine-tuned; one for squad always answers)",
    )
    _add_embedding(made["embed"])
    _add_search(made["search"])
    _add_looking(made)
    made["export"].add_argument(
        "--to",
        choices=("huggingface", "tf1", "sentence-transformers", "onnx"),
        default="huggingface",
        help="format (%(default)s)",
    )
    made["export"].add_argument(
        "--pooling",
        choices=POOLINGS,
        help="to sentence-transformers (mean) and onnx (none; of a fine-tuned model then its logits): how the tokens' "
        "vectors become a text's",
    )
    made["export"].add_argument("--normalize", action="store_true", help="and scale it to length 1")
    made["export"].add_argument("--output", metavar="DIR", help="where to; by default RUN/<format>")
    made["import"].add_argument(
        "source",
        metavar="SOURCE",
        help="hf:DIR (Hugging Face's layout) or tf1:DIR (google-research/bert's checkpoints)",
    )
    made["import"].add_argument("--output", metavar="RUN", help="the run to make; by default runs/<name of DIR>")
    return parser


def _add_finetuning(parser: argparse.ArgumentParser) -> None:
    """What `finetune` takes; further keys are those of bertjax.config.FinetuneConfig."""
    parser.add_argument(
        "config",
        metavar="TASK",
        help="glue (all of it), cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli, swag, codah, squad, squad2, ner, "
        "pos; or your own table: classification, regression, choice, pairs (texts of like meaning), relevance (of a "
        "passage to a query). Any key of the config may be set too, as in --optimizer.beta2 0.98",
    )
    parser.add_argument("--init-from", metavar="RUN", required=True, help="a run, hf:DIR or tf1:DIR to start from")
    parser.add_argument("--data", metavar="DIR", help="the folder of the task's files, or tfds:glue")
    for name in ("train", "dev", "test"):
        parser.add_argument(f"--{name}", metavar="FILE", help=f"the {name} set of a task of your own")
    parser.add_argument("--text", nargs="+", metavar="COLUMN", help="of one text, of two, or of a start and its ends")
    parser.add_argument("--label", metavar="COLUMN", help="of the label")
    parser.add_argument("--id", metavar="COLUMN", help="of the id that predictions are written with")
    parser.add_argument("--labels", nargs="+", metavar="LABEL", help="all that there are (those of the training set)")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="runs of each setting (%(default)s)")
    parser.add_argument("--learning-rate", type=float, nargs="+", metavar="X", help="several values are all tried")
    parser.add_argument("--batch-size", type=int, nargs="+", metavar="N", help="examples a step; several are all tried")
    parser.add_argument("--epochs", type=float, nargs="+", metavar="X", help="several values are all tried")
    parser.add_argument("--grid", action="store_true", help="try the learning rates that the paper tried")
    parser.add_argument("--max-length", type=int, metavar="N", help="tokens of a row")
    parser.add_argument("--strict-length", action="store_true", help="refuse what is longer, instead of cutting it")
    parser.add_argument("--balanced", action="store_true", help="let every label count the same in the loss")
    parser.add_argument("--patience", type=int, metavar="N", help="stop after so many evaluations without a better one")
    parser.add_argument(
        "--layer-decay", type=float, metavar="X", help="of the learning rate, from each layer to the next below"
    )
    parser.add_argument("--run-dir", metavar="DIR", help="where to; by default runs/TASK")


def _add_embedding(parser: argparse.ArgumentParser) -> None:
    """What `embed` takes; the choices and the defaults that help names are those of bertjax.embed.encoder.Encoding."""
    parser.add_argument("model", metavar="RUN", help="a run, one of its checkpoints/<step>, hf:DIR or tf1:DIR")
    parser.add_argument(
        "texts",
        nargs="*",
        default=["-"],
        metavar="FILE",
        help="a text a line, .jsonl or .parquet, compressed or not; - is standard input (the default)",
    )
    parser.add_argument("--output", required=True, metavar="FILE", help="vectors.npy, .jsonl or .parquet")
    parser.add_argument(
        "--field", help="of a .jsonl or .parquet, where the text is (text); standard input is then .jsonl"
    )
    parser.add_argument("--normalize", action="store_true", help="scale every vector to length 1")
    _add_encoding(parser, POOLINGS, "how the tokens' vectors become one; none: they do not, a text is a matrix (mean)")


def _add_encoding(parser: argparse.ArgumentParser, poolings: Sequence[str], pooled: str) -> None:
    """How texts become vectors; what is not told is None."""
    parser.add_argument("--pooling", choices=poolings, help=pooled)
    parser.add_argument(
        "--layer",
        type=_number_or_name,
        help="last, a number (0 is the embeddings), or the last four: sum4, concat4 (last)",
    )
    parser.add_argument(
        "--long",
        choices=("truncate", "split"),
        help="of texts longer than a row take the beginning, or all in parts (truncate)",
    )
    parser.add_argument("--max-length", type=int, metavar="N", help="tokens of a row; by default as it was trained")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="of the computation (float32)")
    parser.add_argument(
        "--batch-tokens", type=int, metavar="N", help="on a device at once (2048 on a CPU, 8192 otherwise)"
    )


def _add_search(parser: argparse.ArgumentParser) -> None:
    """What `search` takes; how texts become vectors is told once, when the index is made."""
    parser.add_argument("model", metavar="RUN", help="a run, one of its checkpoints/<step>, hf:DIR or tf1:DIR")
    parser.add_argument("query", nargs="*", metavar="QUERY", help="what to look for; several are looked for one by one")
    parser.add_argument("--index", required=True, metavar="FOLDER", help="the index, which is made if it is not there")
    parser.add_argument(
        "--documents",
        nargs="+",
        metavar="FILE",
        help="what to make it of: a text a line, .parquet, or .jsonl with _id, title and text, as BEIR's corpus.jsonl",
    )
    parser.add_argument("--field", help="of the documents, where the text is (text)")
    parser.add_argument("--queries", metavar="FILE", help="queries, in the same formats; - is standard input")
    parser.add_argument("--query-field", metavar="FIELD", help="of the queries, where the text is (text)")
    parser.add_argument(
        "--by",
        choices=("vectors", "bm25", "both"),
        default="vectors",
        help="vectors, the words in common (BM25), or both rankings fused (%(default)s)",
    )
    parser.add_argument(
        "--rerank", metavar="RUN2", help="reorder the candidates by a model of bertjax finetune relevance"
    )
    parser.add_argument(
        "--rerank-by",
        choices=("model", "both"),
        default="model",
        help="its order, or that fused with the one in which they were found (%(default)s)",
    )
    parser.add_argument("--top", type=int, default=10, metavar="K", help="documents for each query (%(default)s)")
    parser.add_argument(
        "--candidates",
        type=int,
        default=100,
        metavar="N",
        help="documents of a ranking that are fused, reranked and measured (%(default)s)",
    )
    parser.add_argument("--output", metavar="FILE", help="write what was found: results.jsonl, or .trec, a TREC run")
    parser.add_argument(
        "--qrels",
        metavar="FILE",
        help="judgements of the queries (BEIR's .tsv or TREC's qrels): print nDCG@10, recall@100 and MRR@10",
    )
    parser.add_argument(
        "--training-pairs",
        metavar="FOLDER",
        help="write what finetune trains vectors (pairs/) and rerankers (relevance/) on, made of --qrels",
    )
    parser.add_argument(
        "--negatives",
        type=int,
        default=4,
        metavar="N",
        help="passages that were found but are no answer, for each that is one (%(default)s)",
    )
    parser.add_argument(
        "--no-normalize",
        dest="normalize",
        action="store_const",
        const=False,
        help="compare inner products, and not cosines",
    )
    _add_encoding(parser, POOLINGS[:-1], "how the tokens' vectors become one (mean)")


def _number_or_name(text: str) -> int | str:
    return int(text) if text.lstrip("-").isdecimal() else text


def _add_looking(made: dict[str, argparse.ArgumentParser]) -> None:
    """The arguments of the verbs that look inside a model."""
    for name in ("attention", "neighbors"):
        made[name].add_argument(
            "run", metavar="RUN", help="a run's directory, one of its checkpoints/<step>, or hf:DIR of another model"
        )
    made["attention"].add_argument(
        "sentences", nargs="*", metavar="SENTENCE", help="one or two; by default a pair about a store"
    )
    made["attention"].add_argument(
        "--html", default="attention.html", metavar="FILE", help="the page to write (%(default)s)"
    )
    made["attention"].add_argument(
        "--sample", type=int, default=200, metavar="N", help="sentences that patterns are measured on (%(default)s)"
    )
    made["neighbors"].add_argument("word", metavar="WORD", help="a word")
    made["neighbors"].add_argument(
        "--layer", type=int, metavar="N", help="whose vectors stand for the contexts (the last one)"
    )
    made["neighbors"].add_argument("--contexts", type=int, default=8, help="sentences shown at most (%(default)s)")
    for name in ("attention", "neighbors"):
        made[name].add_argument(
            "--text",
            metavar="FILE",
            help="plain text to measure on, instead of the run's held-out text or the sentences that are built in",
        )
    made["checkpoints"].add_argument("run", metavar="RUN", help="a run's directory")
    made["checkpoints"].add_argument("sentences", nargs="+", metavar="SENTENCE", help="one or two")
    made["checkpoints"].add_argument("--top", type=int, default=3, help="guesses per [MASK] (%(default)s)")


def _add_plan_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--topology",
        metavar="NAME",
        required=True,
        help="v4:8x8x8, v5e:16x16, v5p:8x8x8, v6e:16x16, tpu7x:4x4x4; GPUs h100:8 or h100:8x8 (hosts x GPUs of each), "
        "h200:…, b200:…; or local, the devices of this machine",
    )
    verb.add_argument("--slices", type=int, default=1, help="TPU slices of that shape (%(default)s)")
    verb.add_argument("--price", type=float, metavar="P", help="of one chip for one hour, in any currency")
    verb.add_argument("--stage", type=int, metavar="N", help="plan this stage only, from 1")
    verb.add_argument(
        "--suggest",
        action="store_true",
        help="search meshes, rematerialisation and microbatches for the best that fits",
    )
    verb.add_argument("--html", metavar="FILE", help="also write it as one self-contained page")


def _add_verb(verbs: argparse._SubParsersAction, name: str) -> argparse.ArgumentParser:
    verb = VERBS[name]
    # Where a recipe is named, --help belongs to the recipe's keys.
    configured = name in (*_OF_A_RECIPE, "inspect") and any(".py" in word for word in sys.argv[1:])
    return verbs.add_parser(
        name,
        help=verb.does,
        description=f"{verb.does[0].upper()}{verb.does[1:]}.",
        epilog=f"example: {verb.example}",
        add_help=not configured,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


if __name__ == "__main__":
    sys.exit(main())
