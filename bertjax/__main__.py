"""The command line: `bertjax VERB ...`, the verbs, and what becomes of errors and interruptions.

Only the file of the verb at hand is imported, and what it works with only when it runs, so that help is immediate. This
file imports the rest inside functions, where Ctrl-C is caught.
"""

from __future__ import annotations

import atexit
import gc
import sys
import warnings

TYPE_CHECKING = False  # what `typing` has under this name; its import takes milliseconds in which Ctrl-C is not caught
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from bertjax.cli.verb import Verb, VerbParser

# Name -> the module in bertjax.cli, and what the verb does.
VERBS = {
    "recipes": ("recipes", "list the recipes of the package with their cost, or copy one to change it"),
    "pretrain": ("pretrain", "pretrain a BERT; makes the missing vocabulary and token store, resumes a stopped run"),
    "bench": ("bench", "measure how fast this machine trains a recipe, against its matmuls, and what limits it"),
    "vocab": ("vocab", "train the vocabulary of a recipe on its sources, or add the words of other sources to one"),
    "prepare": ("prepare", "split the text of a recipe's sources into sentences and tokens, once, as a token store"),
    "inspect": ("inspect", "show a token store: counts, lengths, packing, duplicates, overlap with evaluation texts"),
    "reference": (
        "reference",
        "train a recipe with several seeds, and store its curves as a reference for later runs",
    ),
    "plan": ("plan", "compile a recipe for a machine that need not be at hand: does it fit, how fast, at what cost"),
    "evaluate": ("evaluate", "measure a run's newest checkpoint on its held-out text"),
    "compare": ("compare", "compare runs: held-out loss on the same rows, predictions of a task, with p-values"),
    "fill-mask": ("fill_mask", "predict each [MASK] of a text with a run's model"),
    "score": ("score", "score sentences by pseudo-log-likelihood, and judge minimal pairs such as BLiMP's"),
    "correct": ("correct", "propose other words where a text's own are unlikely; measure that on pairs"),
    "finetune": ("finetune", "fine-tune a model: for GLUE, questions, tags, choices, or your own table"),
    "predict": ("predict", "apply a fine-tuned model to one input"),
    "embed": ("embed", "write the vectors of texts, or a vector for each of their tokens"),
    "search": ("search", "find the documents nearest to a query, by vectors, words or both; builds the index"),
    "attention": ("attention", "show what each head of a model attends to in one sentence or two, as a page"),
    "neighbors": ("neighbors", "show the nearest words of a word, in the embedding table and in its contexts"),
    "similar": ("similar", "make a table of similar words from a run's word vectors or a file of vectors"),
    "checkpoints": ("checkpoints", "show what every checkpoint of a run predicts for the [MASK]s of a text"),
    "verify": ("verify", "check every file of a run, checkpoint, token store, export or index against its digest"),
    "replay": ("replay", "take one step of a run again: the loss of each row, its text, the gradient by layer"),
    "average": ("average", "average the last checkpoints of a run, as a new run"),
    "export": ("export", "write a run's model in the format of another framework"),
    "import": ("import_model", "make a run from a model in the format of another framework"),
}
_FAILED = 1  # exit code
_PIPE_CLOSED = 141  # that of a program which SIGPIPE ends
_COMPLETE = "--complete"  # the request of the completion scripts


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb; returns the exit code. Expected errors and Ctrl-C become one message without a traceback.

    With BERTJAX_TRACEBACK=1 in the environment an error keeps its traceback.
    """
    # jax and TensorFlow make a million objects that live on. Python would look through all of them for cycles several
    # times, a tenth of a short run, in pauses of 0.2 s for which other hosts wait; and at exit, for two seconds.
    gc.set_threshold(50_000, 10, 10)
    atexit.register(gc.freeze)
    words = list(sys.argv[1:] if arguments is None else arguments)
    show_source, warnings.formatwarning = warnings.formatwarning, _warning_line
    try:
        from bertjax.cli.interruption import interruptible

        with interruptible((__file__, __file__.replace("__main__.py", "cli")), lambda: _interrupted(words)):
            code = _run(words)
            sys.stdout.flush()
            return code
    except KeyboardInterrupt:
        print(f"\n{_interrupted(words)}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return _output_closed()
    finally:
        warnings.formatwarning = show_source


def _warning_line(message: Warning | str, *_: object, **__: object) -> str:
    """A warning for users, who have no use for the path and the line of code that Python adds."""
    return f"Warning: {message}\n"


def _run(words: list[str]) -> int:
    if words[:1] == [_COMPLETE]:
        from bertjax.cli.completion import candidates

        print(*candidates(words[1:], VERBS, lambda name: (verb_of(name), parser_of(name))), sep="\n")
        return 0
    if not words or words[0] not in VERBS:
        return _help(words)
    name = words[0]
    verb, parser = verb_of(name), parser_of(name)
    behind: list[str] = []
    if verb.takes_dashes and "--" in words:
        dashes = words.index("--")
        words, behind = words[:dashes], words[dashes + 1 :]
    try:
        if verb.takes_keys and {"-h", "--help"} & set(words):
            return _help_with_keys(parser, words)
        parsed, overrides = parser.parse_known_args(words[1:])
        if overrides and not verb.takes_keys:
            parser.refuse(overrides)
        from bertjax.storage.lean_import import quiet_libtpu

        quiet_libtpu()
        parsed.verb, parsed.overrides, parsed.behind_dashes = name, overrides, behind
        return verb.run(parsed)
    except (ValueError, OSError, RuntimeError, MemoryError, ModuleNotFoundError) as error:
        import os

        if os.environ.get("BERTJAX_TRACEBACK") or (isinstance(error, BrokenPipeError) and _nobody_reads()):
            raise
        from bertjax.cli.advice import message_of

        print(f"bertjax {name}: {message_of(error)}", file=sys.stderr)
        return getattr(error, "exit_code", _FAILED)


def verb_of(name: str) -> Verb:
    """The verb of this name, from its file."""
    import importlib

    return importlib.import_module(f"bertjax.cli.{VERBS[name][0]}").VERB


def parser_of(name: str) -> VerbParser:
    """The parser of the words after a verb."""
    import argparse

    from bertjax.cli.verb import VerbParser

    verb, does = verb_of(name), VERBS[name][1]
    parser = VerbParser(
        prog=f"bertjax {name}",
        description=f"{does[0].upper()}{does[1:]}.",
        epilog=f"example: {verb.example}",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verb.add_arguments(parser)
    return parser


def _help(words: list[str]) -> int:
    """Print all verbs, the version or a completion script, or refuse words that begin with no verb."""
    from bertjax import __version__
    from bertjax.cli.verb import VerbParser, nearest

    parser = VerbParser(
        prog="bertjax",
        description="BERT pretraining in JAX: from raw text to a checkpoint that other frameworks load.",
        epilog="See bertjax VERB --help. First run: bertjax pretrain quickstart",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"bertjax {__version__}")
    parser.add_argument(
        "--completion",
        choices=("bash", "zsh", "fish"),
        help='print the completion script of a shell: eval "$(bertjax --completion bash)"',
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    for name, (_, does) in VERBS.items():
        verbs.add_parser(name, help=does, add_help=False)
    if words and not words[0].startswith("-"):
        parser.error(f"VERB {words[0]!r} is unknown; {nearest(words[0], VERBS)}")
    options = parser.parse_args(words)
    if options.completion is None:
        parser.error("VERB is missing; bertjax --help lists them")
    from bertjax.cli.completion import script_for

    print(script_for(options.completion))
    return 0


def _help_with_keys(parser: argparse.ArgumentParser, words: list[str]) -> int:
    """Print the help of a verb and, where the words name a recipe, that of its keys."""
    from bertjax.config.recipes import load_recipe, names_recipe, override

    parser.print_help()
    recipe = next((word for word in words[1:] if names_recipe(word)), None)
    if recipe is not None:
        print("\nkeys of the recipe:", flush=True)
        override(load_recipe(recipe), ["--help"], f"{parser.prog} {recipe}")
    return 0


def _interrupted(words: list[str]) -> str:
    """What Ctrl-C answers."""
    name = words[0] if words and words[0] in VERBS else ""
    module = sys.modules.get(f"bertjax.cli.{VERBS[name][0]}") if name else None
    verb = getattr(module, "VERB", None)  # not there while its file is being imported
    return f"bertjax {name}".rstrip() + f": interrupted; {verb.interrupted if verb else 'nothing was started'}"


def _nobody_reads() -> bool:
    """Whether the output goes into a pipe whose reader, such as `head`, has ended; connections break likewise."""
    import select

    output = select.poll()
    output.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in output.poll(0))


def _output_closed() -> int:
    """End in silence, as other programs do, when the reader has enough."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at exit
    return _PIPE_CLOSED


if __name__ == "__main__":
    sys.exit(main())
