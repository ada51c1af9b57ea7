"""The command line: `bertjax VERB ...`, its verbs, and how errors and interruptions are reported.

Only the chosen verb's file is imported, and its own imports wait until it runs, so that help is immediate. This file
imports the rest inside functions, where Ctrl-C is caught.
"""

from __future__ import annotations

import atexit
import gc
import sys
import warnings

TYPE_CHECKING = False  # as in `typing`, whose import takes milliseconds in which Ctrl-C is not caught
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from bertjax.cli.verb import Verb, VerbParser

# Group -> verb -> (module in bertjax.cli, description).
GROUPS = {
    "Start": {
        "recipes": ("recipes", "list the recipes of the package, show one, or copy one to change it"),
        "plan": ("plan", "estimate memory, time and cost on any GPU or TPU, without having one"),
        "bench": ("bench", "measure how fast this machine trains a recipe, and what limits it"),
    },
    "Data": {
        "vocab": ("vocab", "train a recipe's vocabulary on its sources, or add words to a vocabulary"),
        "tokenize": ("tokenize", "show the tokens of a text"),
        "prepare": ("prepare", "split a recipe's text into sentences and tokens, and write them as a token store"),
        "inspect": ("inspect", "show a token store: counts, lengths, duplicates, overlap with evaluation texts"),
    },
    "Train": {
        "pretrain": ("pretrain", "train a model from text; creates vocabulary and data, resumes a stopped run"),
        "finetune": ("finetune", "fine-tune a model for GLUE, questions, tags, choices or your own table"),
    },
    "Use": {
        "fill-mask": ("fill_mask", "predict the [MASK] tokens of a text, or correct unlikely words"),
        "predict": ("predict", "apply a fine-tuned model to one input"),
        "embed": ("embed", "write embeddings of texts or of their tokens"),
        "search": ("search", "search documents by vectors, words or both; builds the index if needed"),
    },
    "Understand": {
        "evaluate": ("evaluate", "evaluate a run on its held-out text, score texts, or judge minimal pairs"),
        "compare": ("compare", "compare runs with p-values, or measure how much seeds of a recipe differ"),
        "attention": ("attention", "show what each attention head attends to in one or two sentences, as a page"),
        "neighbors": ("neighbors", "show the nearest words to a word, or make a table of similar words"),
    },
    "Share": {
        "export": ("export", "export a model to another framework's format"),
        "import": ("import_model", "import a model from another framework's format as a run"),
    },
    "Maintain": {
        "run": ("run", "verify a run's files, replay one of its steps, or average its last checkpoints"),
    },
}
VERBS = {name: about for group in GROUPS.values() for name, about in group.items()}
# Verbs of earlier versions -> the command that replaces each.
RENAMED = {
    "checkpoints": "fill-mask RUN TEXT --checkpoints",
    "correct": "fill-mask RUN TEXT --correct",
    "score": "evaluate RUN TEXT",
    "reference": "compare RECIPE --seeds 0 1 2",
    "similar": "neighbors RUN --output FILE",
    "verify": "run verify PATH",
    "replay": "run replay RUN --step N",
    "average": "run average RUN",
}
_FAILED = 1  # exit code
_PIPE_CLOSED = 141  # exit code of a program that SIGPIPE ends
_COMPLETE = "--complete"  # the request of the completion scripts


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb and return its exit code. Expected errors and Ctrl-C become one message without a traceback.

    With BERTJAX_TRACEBACK=1 in the environment an error keeps its traceback.
    """
    # jax and TensorFlow create a million long-lived objects. Python would search them for cycles several times, a tenth
    # of a short run, in pauses of 0.2 s for which other hosts wait, and for two seconds at exit.
    gc.set_threshold(50_000, 10, 10)
    atexit.register(gc.freeze)
    words = list(sys.argv[1:] if arguments is None else arguments)
    show_source, warnings.formatwarning = warnings.formatwarning, _warning_line
    try:
        from bertjax.cli.interruption import interruptible
        from bertjax.storage.open_files import raise_open_file_limit

        with interruptible((__file__, __file__.replace("__main__.py", "cli")), lambda: _interrupted(words)):
            raise_open_file_limit()
            if words[:1] == [_COMPLETE]:
                from bertjax.cli.completion import candidates

                print(*candidates(words[1:], VERBS, lambda name: (load_verb(name), make_parser(name))), sep="\n")
                code = 0
            elif not words or words[0] not in VERBS:
                code = _help(words)
            else:
                try:
                    verb, parsed = _parse(words)
                    code = verb.run(parsed)
                except (ValueError, OSError, RuntimeError, MemoryError, ModuleNotFoundError) as error:
                    code = _report(error, words[0])
            sys.stdout.flush()
            return code
    except KeyboardInterrupt:
        print(f"\n{_interrupted(words)}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return _output_closed()
    finally:
        warnings.formatwarning = show_source


def _parse(words: list[str]) -> tuple[Verb, argparse.Namespace]:
    """Parse a verb's words. Ends the program for `--help` and for words that the verb does not take."""
    name = words[0]
    plugins, words = _take_plugins(words)
    if plugins:  # before the parser is made, because they may add choices
        from bertjax.config.plugins import use_plugins
        from bertjax.storage.lean_import import quiet_libtpu

        quiet_libtpu()
        use_plugins(plugins)
    verb, parser = load_verb(name), make_parser(name)
    behind: list[str] = []
    if verb.takes_dashes and "--" in words:
        dashes = words.index("--")
        words, behind = words[:dashes], words[dashes + 1 :]
    if verb.takes_keys and {"-h", "--help"} & set(words):
        _print_help_with_keys(parser, words)
        sys.exit()
    parsed, overrides = parser.parse_words(words[1:], takes_keys=verb.takes_keys)
    if overrides and not verb.takes_keys:
        parser.refuse(overrides)
    from bertjax.storage.lean_import import quiet_libtpu

    quiet_libtpu()
    parsed.verb, parsed.overrides, parsed.behind_dashes, parsed.plugin = name, overrides, behind, plugins
    return verb, parsed


def _take_plugins(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """(the values of `--plugin`, which may be repeated; the other words)."""
    plugins: list[str] = []
    others: list[str] = []
    left = list(words)
    while left and left[0] != "--":
        word = left.pop(0)
        if word.startswith("--plugin="):
            plugins.append(word.partition("=")[2])
        elif word == "--plugin" and left:
            plugins.append(left.pop(0))
        else:
            others.append(word)
    return plugins, [*others, *left]


def _report(error: Exception, name: str) -> int:
    """Print an expected error as one message. Raises it again if its traceback or the closed pipe matters."""
    import os

    if os.environ.get("BERTJAX_TRACEBACK") or (isinstance(error, BrokenPipeError) and _output_has_no_reader()):
        raise error
    from bertjax.cli.advice import error_message
    from bertjax.config.registry import plugin_frame

    place = plugin_frame(error)
    hint = f" ({place}; BERTJAX_TRACEBACK=1 prints the traceback)" if place else ""
    print(f"bertjax {name}: {error_message(error)}{hint}", file=sys.stderr)
    return getattr(error, "exit_code", _FAILED)


def _warning_line(message: Warning | str, *_: object, **__: object) -> str:
    """Format a warning for users, without the path and the line of code that Python adds."""
    return f"Warning: {message}\n"


def load_verb(name: str) -> Verb:
    """Import a verb."""
    import importlib

    return importlib.import_module(f"bertjax.cli.{VERBS[name][0]}").VERB


def make_parser(name: str) -> VerbParser:
    """Return the parser of a verb's arguments."""
    import argparse

    from bertjax.cli.verb import VerbParser

    verb, does = load_verb(name), VERBS[name][1]
    parser = VerbParser(
        prog=f"bertjax {name}",
        description=f"{does[0].upper()}{does[1:]}.",
        epilog=f"example: {verb.example}",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verb.add_arguments(parser)
    parser.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="FILE",
        help="import a file or a module (my_package.module) that registers objectives, sources, ...; may be repeated",
    )
    return parser


def _help(words: list[str]) -> int:
    """Print all verbs, the version or a completion script, or refuse words that do not begin with a verb."""
    from bertjax import __version__
    from bertjax.cli.verb import VerbParser
    from bertjax.config.suggestions import suggestion

    parser = VerbParser(prog="bertjax", usage="bertjax VERB ...", add_help=False, allow_abbrev=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--version", action="version", version=f"bertjax {__version__}")
    parser.add_argument("--completion", choices=("bash", "zsh", "fish"))
    if words and (renamed := RENAMED.get(words[0])):
        parser.error(f"VERB {words[0]!r} is now: bertjax {renamed}")
    if words and not words[0].startswith("-"):
        parser.error(f"VERB {words[0]!r} is unknown; {suggestion(words[0], VERBS)}")
    options = parser.parse_args(words)
    if options.completion is None:
        print(_overview())
        return 0
    from bertjax.cli.completion import SCRIPTS

    print(SCRIPTS[options.completion])
    return 0


def _overview() -> str:
    """The verbs in groups, with their descriptions."""
    from bertjax.storage.terminal import bold

    width = max(map(len, VERBS))
    lines = ["usage: bertjax VERB ...", "", "BERT pretraining in JAX: text goes in, a model that other frameworks load"]
    lines[-1] += " comes out."
    for group, verbs in GROUPS.items():
        lines += ["", bold(group), *(f"  {name:{width}}  {does}" for name, (_, does) in verbs.items())]
    return "\n".join(
        [
            *lines,
            "",
            bold("Options"),
            f"  {'--version':{width}}  print the version",
            '  --completion {bash,zsh,fish}  complete words in a shell: eval "$(bertjax --completion bash)"',
            "",
            "First run:       bertjax pretrain quickstart",
            "Your own text:   bertjax pretrain modern_mini --data.sources 'text:books/*.txt' --training.budget 2h",
            "Options of VERB: bertjax VERB --help",
        ]
    )


def _print_help_with_keys(parser: argparse.ArgumentParser, words: list[str]) -> None:
    """Print the help of a verb and, if the words name a recipe, of its keys."""
    from bertjax.config.recipes import load_recipe, names_recipe, override

    parser.print_help()
    recipe = next((word for word in words[1:] if names_recipe(word)), None)
    if recipe is not None:
        print("\nkeys of the recipe:", flush=True)
        override(load_recipe(recipe), ["--help"], f"{parser.prog} {recipe}")


def _interrupted(words: list[str]) -> str:
    """The message after Ctrl-C."""
    name = words[0] if words and words[0] in VERBS else ""
    module = sys.modules.get(f"bertjax.cli.{VERBS[name][0]}") if name else None
    verb = getattr(module, "VERB", None)  # missing while its file is being imported
    return f"bertjax {name}".rstrip() + f": interrupted; {verb.interrupted if verb else 'nothing was started'}"


def _output_has_no_reader() -> bool:
    """Return whether stdout is a pipe whose reader, such as `head`, has closed it; other connections break too."""
    import select

    output = select.poll()
    output.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in output.poll(0))


def _output_closed() -> int:
    """End silently, as other programs do, when the reader of stdout has closed it."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at exit
    return _PIPE_CLOSED


if __name__ == "__main__":
    sys.exit(main())
