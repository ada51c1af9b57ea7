"""What the README says is so: its commands parse, its recipes exist, and its table of facts names tests that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from bertjax.__main__ import VERBS, parser_of
from bertjax.config import FinetuneConfig, load_recipe, override
from bertjax.training.stages import stages_of

REPOSITORY = Path(__file__).resolve().parent.parent
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
FENCES = re.findall(r"^```\n(.*?)^```", README, re.M | re.S)
OUTSIDE = re.sub(r"^```\n.*?^```", "", README, flags=re.M | re.S)
PARSERS = {name: parser_of(name) for name in VERBS}
OF_A_MODEL = ("attention", "embed", "export", "finetune", "import", "predict", "search")
NO_KEYS = {"--long", *(name for verb in PARSERS.values() for name in verb._option_string_actions)}


def commands() -> list[str]:
    """Every whole `bertjax` command, in fences and in tables."""
    lines = "\n".join(FENCES).replace("\\\n", " ").splitlines()
    inline = re.findall(r"`(bertjax [^`]*)`", OUTSIDE)
    found = [line.partition("  #")[0].rpartition(" | ")[2] for line in lines] + inline
    return sorted({" ".join(c.split()) for c in found if c.startswith("bertjax ") and "…" not in c})


def options() -> list[str]:
    """Every key of a run that the text names: `--key value`; of several values with | between them, the first."""
    found = [" ".join(text.split()) for text in re.findall(r"`(--[^`]*)`", OUTSIDE)]
    return sorted({re.sub(r"\|\S+", "", o) for o in found if o.split()[0] not in NO_KEYS and " " in o})


@pytest.mark.parametrize("command", [c for c in commands() if c.split()[1] == "pretrain" and "RECIPE" not in c])
def test_a_pretraining_command_is_understood(command: str) -> None:
    recipe, *changes = shlex.split(command)[2:]
    config = override(load_recipe(REPOSITORY / recipe), changes, "bertjax")
    assert stages_of(config)[-1].stop == config.training.steps


@pytest.mark.parametrize("command", [c for c in commands() if c.split()[1] in OF_A_MODEL])
def test_a_command_for_a_trained_model_is_understood(command: str) -> None:
    _, verb, *arguments = shlex.split(command)
    _, keys = PARSERS[verb].parse_known_args(arguments)
    assert override(FinetuneConfig(), keys, "bertjax") is not None


@pytest.mark.parametrize("option", options())
def test_an_option_in_the_text_is_understood(option: str) -> None:
    assert override(FinetuneConfig(), shlex.split(option), "bertjax") is not None


def test_there_are_commands_and_options() -> None:
    assert len(commands()) > 10 and len(options()) > 5


FACTS = re.findall(r"^\|(.*)\| `(tests/\S+?)::(\w+)` \|$", README, re.M)


@pytest.mark.parametrize(("fact", "path", "name"), FACTS, ids=[name for _, _, name in FACTS])
def test_a_fact_has_its_test(fact: str, path: str, name: str) -> None:
    assert re.search(rf"^def {name}\(", (REPOSITORY / path).read_text(), re.M), fact


def test_every_row_of_the_table_of_facts_names_a_test() -> None:
    table = README.partition("## Where descriptions of BERT differ")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("|")]
    assert len(FACTS) == len(rows) - 2 >= 10
