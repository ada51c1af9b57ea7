"""Shell completion: the candidates, and the scripts for each shell."""

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
    ("words", "expected"),
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
def test_candidates_match_the_position(words: list[str], expected: list[str]) -> None:
    assert candidates(words) == expected


def test_candidates_contain_every_verb_recipe_and_option() -> None:
    assert set(VERBS) < set(candidates([""]))
    assert candidates(["bench", ""]) == list(recipe_names())
    for verb in VERBS:
        offered = candidates([verb, "--"])
        assert {name for name in make_parser(verb)._option_string_actions if name.startswith("--")} <= set(offered)


def test_completed_tasks_are_the_existing_tasks() -> None:
    from bertjax.finetune.kinds import KINDS
    from bertjax.finetune.tasks import TASKS as PUBLIC

    own = {kind.own_task for kind in KINDS.values() if kind.own_task}
    assert set(TASKS) == {"glue", *PUBLIC, *own}


def test_completion_does_not_import_jax_numpy_or_tyro() -> None:
    code = """
import sys
from bertjax.__main__ import main
main(["--complete", "pretrain", "bert_base", "--optimizer.lear"])
print({"jax", "numpy", "tyro", "tensorflow"} & set(sys.modules))
"""
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.split() == ["--optimizer.learning-rate", "set()"]


def test_completion_prints_a_valid_script(capsys: pytest.CaptureFixture[str]) -> None:
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
    ("line", "expected"),
    [
        ("bertjax pretr", "pretrain "),
        ("bertjax recipes copy rob", "roberta "),
        ("bertjax pretrain my.py --data.sources text:a --mesh.fs", "--mesh.fsdp "),
        ("bertjax recipes ", "list show copy "),
    ],
)
def test_bash_completes(line: str, expected: str, tmp_path: Path) -> None:
    if not shutil.which("bash"):
        pytest.skip("needs bash")
    script = ASK.format(python=sys.executable, script=SCRIPTS["bash"], line=line)
    assert subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout == expected


def test_fish_completes() -> None:
    if not shutil.which("fish"):
        pytest.skip("needs fish")
    asked = f"function bertjax; {sys.executable} -m bertjax $argv; end\n{SCRIPTS['fish']}\n"
    asked += "complete -C 'bertjax recipes copy rob'"
    output = subprocess.run(["fish", "--no-config", "-c", asked], capture_output=True, text=True, check=True).stdout
    assert "roberta" in output.split()


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
def test_unknown_words_suggest_the_nearest(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert message in capsys.readouterr().err


def test_version_prints_the_package_version(capsys: pytest.CaptureFixture[str]) -> None:
    from bertjax import __version__

    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"bertjax {__version__}\n"
