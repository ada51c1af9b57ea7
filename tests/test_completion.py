"""Completion in a shell: the words that may follow, and what the scripts make of them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bertjax.__main__ import VERBS, load_verb, main, make_parser
from bertjax.cli import completion
from bertjax.cli.completion import SCRIPTS
from bertjax.cli.finetune import TASKS
from bertjax.config.recipes import recipe_names

pytestmark = pytest.mark.run


def candidates(words: list[str]) -> list[str]:
    return completion.candidates(words, VERBS, lambda name: (load_verb(name), make_parser(name)))


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["pretr"], ["pretrain"]),
        (["--v"], ["--version"]),
        (["--completion", ""], ["bash", "zsh", "fish"]),
        (["pretrain", "alb"], ["albert"]),
        (["plan", "bert_base", "--topol"], ["--topology"]),
        (["pretrain", "bert_base", "--optimizer.sch"], ["--optimizer.schedule"]),
        (["pretrain", "bert_base", "--optimizer.schedule", "l"], ["linear", "linear_after_warmup"]),
        (["export", "runs/mine", "--to", "o"], ["onnx"]),
        (["export", "runs/m"], []),
        (["finetune", "squ"], ["squad", "squad2"]),
        (["finetune", "squad", "--init-f"], ["--init-from"]),
        (["recipes", "c"], ["copy"]),
        (["recipes", "copy", "dom"], ["domain"]),
        (["pretrain", "bert_base", "--data.sources", "tex"], []),
        (["nothing", ""], []),
    ],
)
def test_the_words_that_may_follow(words: list[str], found: list[str]) -> None:
    assert candidates(words) == found


def test_every_verb_recipe_and_option_is_offered() -> None:
    assert set(VERBS) < set(candidates([""]))
    assert candidates(["bench", ""]) == list(recipe_names())
    for verb in VERBS:
        offered = candidates([verb, "--"])
        assert {name for name in make_parser(verb)._option_string_actions if name.startswith("--")} <= set(offered)


def test_the_tasks_offered_are_those_that_there_are() -> None:
    from bertjax.finetune.kinds import KINDS
    from bertjax.finetune.tasks import TASKS as KNOWN

    own = {kind.own_task for kind in KINDS.values() if kind.own_task}
    assert set(TASKS) == {"glue", *KNOWN, *own}


def test_completion_imports_no_jax_and_no_parser_of_keys() -> None:
    code = """
import sys
from bertjax.__main__ import main
main(["--complete", "pretrain", "bert_base", "--optimizer.lear"])
print({"jax", "numpy", "tyro", "tensorflow"} & set(sys.modules))
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["--optimizer.learning-rate", "set()"]


def test_the_script_of_a_shell_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    for shell in ("bash", "zsh", "fish"):
        assert main(["--completion", shell]) == 0
        assert capsys.readouterr().out.strip() == SCRIPTS[shell]
        if shutil.which(shell):
            checked = subprocess.run([shell, "-n"], input=SCRIPTS[shell], capture_output=True, text=True)
            assert checked.returncode == 0, checked.stderr


ASK = """
bertjax() {{ {python} -m bertjax "$@"; }}
{script}
COMP_LINE={line!r}
COMP_POINT=${{#COMP_LINE}}
_bertjax
printf '%s ' "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("bertjax pretr", "pretrain "),
        ("bertjax recipes copy rob", "roberta "),
        ("bertjax pretrain my.py --data.sources text:a --mesh.fs", "--mesh.fsdp "),
        ("bertjax recipes ", "list show copy "),
    ],
)
def test_bash_completes(line: str, found: str, tmp_path: Path) -> None:
    if not shutil.which("bash"):
        pytest.skip("needs bash")
    script = ASK.format(python=sys.executable, script=SCRIPTS["bash"], line=line)
    assert subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout == found


def test_fish_completes() -> None:
    if not shutil.which("fish"):
        pytest.skip("needs fish")
    asked = f"function bertjax; {sys.executable} -m bertjax $argv; end\n{SCRIPTS['fish']}\n"
    asked += "complete -C 'bertjax recipes copy rob'"
    said = subprocess.run(["fish", "--no-config", "-c", asked], capture_output=True, text=True, check=True).stdout
    assert "roberta" in said.split()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["export", "x", "--to", "onx"], "argument --to: 'onx' is unknown; did you mean onnx?"),
        (["export", "x", "--ouput", "y"], "export does not take --ouput y; did you mean --output?"),
        (["exprt"], "VERB 'exprt' is unknown; did you mean export?"),
        (["recipes", "copi"], "'copi' is unknown; did you mean copy?"),
        (["--completion", "fsh"], "argument --completion: 'fsh' is unknown; did you mean fish?"),
        (["scroe"], "VERB 'scroe' is unknown; choose from recipes,"),
    ],
)
def test_the_nearest_word_is_named(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert message in capsys.readouterr().err


def test_the_version_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    from bertjax import __version__

    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"bertjax {__version__}\n"
