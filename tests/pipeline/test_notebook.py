"""The notebook of first steps calls what there is, and runs from its first cell to its last in a kernel."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest
from several_processes import surroundings

import bertjax

NOTEBOOK = Path(__file__).resolve().parents[2] / "configs" / "first_steps.ipynb"
nbformat = pytest.importorskip("nbformat", reason="needs nbformat: pip install 'bertjax[test]'")
SECONDS = 600  # for a cell


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_it_is_stored_without_outputs():
    cells = code_cells(nbformat.read(NOTEBOOK, as_version=4))
    assert all(not cell.outputs and cell.execution_count is None for cell in cells)


def test_it_calls_what_there_is_with_parameters_that_there_are():
    cells = code_cells(nbformat.read(NOTEBOOK, as_version=4))
    nodes = [node for cell in cells for node in ast.walk(ast.parse(cell.source))]
    called = [(ast.unparse(node.func).split("."), node) for node in nodes if isinstance(node, ast.Call)]
    calls = [(words[1], call) for words, call in called if words[0] == "bertjax" and len(words) == 2]
    assert {name for name, _ in calls} >= {"recipe", "prepare", "pretrain", "finetune", "load"}
    for name, call in calls:
        parameters = inspect.signature(getattr(bertjax, name))
        parameters.bind(*call.args, **{keyword.arg: keyword.value for keyword in call.keywords})


@pytest.mark.long  # the suite does the same steps by functions, in test_python_api.py
def test_it_runs_in_a_kernel(tmp_path, monkeypatch):
    """It shows bars, curves and answers."""
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient: pip install 'bertjax[test]'")
    pytest.importorskip("ipykernel", reason="needs ipykernel: pip install 'bertjax[test]'")
    pytest.importorskip("ipywidgets", reason="needs ipywidgets, for bars: pip install 'bertjax[test]'")
    for name, value in surroundings(devices=1).items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    shown = [output.data for output in outputs if output.output_type in ("execute_result", "display_data")]
    pages = [data["text/html"] for data in shown if "text/html" in data]
    assert len(pages) == 2 and all(page.count("&lt;svg") >= 2 for page in pages)
    bars = [data["text/plain"] for data in shown if "application/vnd.jupyter.widget-view+json" in data]
    assert [bar.partition(":")[0] for bar in bars] == ["pretraining", "classification"]
    assert "label='returned'" in shown[-2]["text/plain"] and "label='raised'" in shown[-2]["text/plain"]
    assert "model.safetensors" in shown[-1]["text/plain"]
    told = "".join(output.text for output in outputs if output.output_type == "stream")
    assert "Warning" not in told and "token store: " in told
