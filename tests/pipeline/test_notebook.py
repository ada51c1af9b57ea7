"""The notebook of first steps: its stored outputs, its calls, and a run of its cells in a kernel."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest
from several_processes import child_environment

import bertjax

NOTEBOOK = Path(__file__).resolve().parents[2] / "configs" / "first_steps.ipynb"
LARGEST = 300_000  # bytes, with outputs
nbformat = pytest.importorskip("nbformat", reason="needs nbformat: pip install 'bertjax[test]'")
BAR = "application/vnd.jupyter.widget-view+json"


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def shown_values(notebook):
    """The results of the cells, without progress bars."""
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    values = [output.data for output in outputs if output.output_type in ("execute_result", "display_data")]
    return [value for value in values if BAR not in value]


def check_outputs(notebook):
    """Check for text, a masked row, a model better than its baseline, tokens, the attention page, a classifier."""
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    printed = "".join(output.text for output in outputs if output.get("name") == "stdout")
    assert "[MASK:" in printed and "Warning" not in printed and "so far" not in printed
    values = shown_values(notebook)
    texts = [value["text/plain"] for value in values]
    assert "token store: " in texts[0] and "'hatter'" in texts[2]
    pages = [value["text/html"] for value in values if "text/html" in value]
    assert len(pages) == 3 and all(page.count("&lt;svg") >= 2 for page in (pages[0], pages[2]))
    assert "<iframe" in pages[1] and "rabbit" in pages[1], "the attention page"
    ((loss, baseline),) = re.findall(r"MLM loss +([\d.]+) +no context ([\d.]+)", texts[1])
    assert float(loss) < float(baseline) - 0.6
    predictions = {label: ast.literal_eval(shown) for label, shown in re.findall(r"^(\w+) (\[.*\])$", printed, re.M)}
    assert predictions.keys() == {"alice", "hound"}
    assert all(shown.count(label) >= 8 and len(shown) == 10 for label, shown in predictions.items())
    assert "model.safetensors" in texts[-1]


def test_stored_outputs_come_from_a_good_run():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert NOTEBOOK.stat().st_size < LARGEST
    assert not [o for cell in code_cells(notebook) for o in cell.outputs if o.get("name") == "stderr"]
    check_outputs(notebook)


def test_notebook_calls_match_function_signatures():
    cells = code_cells(nbformat.read(NOTEBOOK, as_version=4))
    nodes = [node for cell in cells for node in ast.walk(ast.parse(cell.source))]
    named_calls = [(ast.unparse(node.func).split("."), node) for node in nodes if isinstance(node, ast.Call)]
    calls = [(words[1], call) for words, call in named_calls if words[0] == "bertjax" and len(words) == 2]
    assert {name for name, _ in calls} >= {"recipe", "prepare", "pretrain", "finetune", "load", "tokenize", "attention"}
    for name, call in calls:
        parameters = inspect.signature(getattr(bertjax, name))
        parameters.bind(*call.args, **{keyword.arg: keyword.value for keyword in call.keywords})


@pytest.mark.long  # takes minutes; test_python_api.py covers the same functions
def test_notebook_runs_in_a_kernel(tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient: pip install 'bertjax[test]'")
    pytest.importorskip("ipykernel", reason="needs ipykernel: pip install 'bertjax[test]'")
    pytest.importorskip("ipywidgets", reason="needs ipywidgets, for bars: pip install 'bertjax[test]'")
    for name, value in child_environment(devices=1).items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=None, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    check_outputs(notebook)
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs if BAR in output.get("data", {})]
    assert [bar.data["text/plain"].partition(":")[0] for bar in outputs] == ["pretraining", "classification"]
