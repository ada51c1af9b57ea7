"""The page of an export: its files, and in a real browser the outputs that onnxruntime computes here."""

from __future__ import annotations

import functools
import http.server
import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from exported_models import fine_tuned_model, trained_model
from page_browser import NAMES, Browser, installed

from bertjax.convert.compare import pair_batch
from bertjax.convert.format import Vectors
from bertjax.convert.graph.export import inputs_of
from bertjax.convert.onnx.exporter import loaded
from bertjax.convert.web.format import FORMAT, PACKAGES_FILE, PAGE_FILE
from bertjax.convert.web.page import PACKAGES
from bertjax.training.run_directory import TrainedModel

TINY = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
TEXTS = (("The museum opened.", "of 1877"), ("naïve drawings", "and the museum"), ("The 北京", "a"))  # all are whole
LABELS = ("bad", "</script><b>", "good")
WAIT = "new Promise(done => setTimeout(done, 200))"


def exported(folder: Path, kind: str, precision: str = "float32") -> tuple[TrainedModel, Path]:
    pytest.importorskip("onnx", reason="needs onnx")
    pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    labels = LABELS if kind in ("sequence", "tokens") else ()
    model = fine_tuned_model(folder / "run", kind, labels, **TINY) if kind else trained_model(folder / "run", **TINY)
    form = FORMAT.precisions[precision]()
    vectors = form.vectors(model, None, False)
    return model, Path(form.export(model, folder / "page", vectors))


def test_the_folder_has_a_page_that_names_its_libraries_and_runs_no_label(tmp_path: Path) -> None:
    _, folder = exported(tmp_path, "sequence")
    page = (folder / PAGE_FILE).read_text()
    assert json.loads((folder / PACKAGES_FILE).read_text())["dependencies"] == PACKAGES
    assert "</script><b>" not in page and page.count("<script") == 2 and "/secret" not in page
    assert {"model.onnx", "tokenizer.json", "tokenizer_config.json"} <= {path.name for path in folder.iterdir()}


def test_an_encoder_shows_vectors_of_texts_by_default(tmp_path: Path) -> None:
    model = trained_model(tmp_path / "run", **TINY)
    assert FORMAT.vectors(model, None, False) == Vectors("mean", True)
    with pytest.raises(ValueError, match="--to web: a page shows vectors of texts or the logits of a head"):
        FORMAT.export(model, tmp_path / "page", Vectors())


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`node_modules` with the libraries of pages."""
    folder = tmp_path_factory.mktemp("libraries")
    if shutil.which("npm") is None:
        pytest.skip("needs npm, which brings the page's libraries")
    wanted = [f"{name}@{version}" for name, version in PACKAGES.items()]
    done = subprocess.run(["npm", "install", "--prefix", folder, *wanted], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"needs the registry of npm: {done.stderr.strip()[-200:]}")
    return folder / "node_modules"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = installed()
    if program is None:
        pytest.skip(f"needs a browser to open pages with: none of {', '.join(NAMES)} is installed")
    started = Browser(program, tmp_path_factory.mktemp("browser"))
    yield started
    started.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The address at which the test's folder is served."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *words: object) -> None:
            """Nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=tmp_path)) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{served.server_port}"
        served.shutdown()


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "precision", "limit"),
    [("sequence", "float32", 1e-5), ("sequence", "int8", 1e-2), ("span", "float32", 1e-5), ("", "float32", 1e-5)],
)
def test_a_browser_computes_what_onnxruntime_computes(
    kind: str, precision: str, limit: float, libraries: Path, browser: Browser, server: str, tmp_path: Path
) -> None:
    model, folder = exported(tmp_path, kind, precision)
    (folder / "node_modules").symlink_to(libraries)
    browser.open(f"{server}/page/index.html?local")
    said = "Loading"
    for _ in range(300):
        if not said.startswith(("Loading", "Ready")):
            break
        browser.ask(WAIT)
        said = browser.ask("document.getElementById('status').textContent")
    assert "here in the browser" in said, (said, browser.complaints)
    assert not browser.complaints
    assert all(url.startswith(("http://127.0.0.1", "blob:", "data:")) for url in browser.requests), browser.requests
    lines = json.dumps(["\t".join(pair) for pair in TEXTS])
    found = browser.ask(f"answer({lines})")["outputs"]
    batch = pair_batch(model, TEXTS)
    wanted = loaded(folder)({name: batch[name] for name in inputs_of(model.config.model)})
    for name, output in found.items():
        theirs = np.reshape(output["data"], output["dims"])
        assert theirs.shape == wanted[name].shape
        if theirs.ndim == 2 and theirs.shape == batch["attention_mask"].shape:
            theirs, wanted[name] = (x[batch["attention_mask"] == 1] for x in (theirs, wanted[name]))
        if name != "last_hidden_state":
            assert np.linalg.norm(theirs - wanted[name]) < limit * np.linalg.norm(wanted[name]), name
    rows = browser.ask("document.querySelectorAll('#result tbody tr').length")
    assert rows == 3, "three examples"
    if kind == "sequence":
        assert browser.ask("document.querySelectorAll('#result b').length") == 0, "a label is text"
        assert browser.ask("document.querySelectorAll('#result thead th').length") == 1 + len(LABELS)
