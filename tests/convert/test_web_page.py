"""The page of a web export: its files, its script in node, and its outputs in a browser against onnxruntime."""

from __future__ import annotations

import functools
import http.server
import itertools
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from exported_models import fine_tuned_model, trained_model
from page_browser import NAMES, Browser, find_browser

import bertjax
from bertjax.convert.compare import pair_batch
from bertjax.convert.executable.network import input_names
from bertjax.convert.executable.onnx_format import load
from bertjax.convert.executable.web_format import FORMAT, PACKAGES_FILE, PAGE_FILE
from bertjax.convert.executable.web_page import PACKAGES
from bertjax.convert.formats import Vectors
from bertjax.convert.sources import write_run
from bertjax.finetune.data.examples import Question
from bertjax.finetune.encoding.answers import find_answers
from bertjax.finetune.encoding.question_windows import QuestionCounts, QuestionWindows, WindowSizes, question_windows
from bertjax.run.run_directory import TrainedModel

TINY = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
TEXTS = (
    ("The museum opened.", "of 1877"),
    ("naïve drawings", "and the museum"),
    ("The 北京", "a"),
)  # none is truncated
LABELS = ("bad", "</script><b>", "good")
WAIT = "new Promise(done => setTimeout(done, 200))"
NO_ANSWER = "(the text does not answer it)"

# Runs a page's script without a browser, and prints the value of an expression that may read `given`.
IN_NODE = """
const request = JSON.parse(require("fs").readFileSync(0, "utf8"));
const element = { textContent: request.signature, addEventListener() {} };
Object.assign(globalThis, {
  document: { getElementById: () => element }, location: "http://here/", window: {}, given: request.given });
require("vm").runInThisContext(request.script);
console.log(JSON.stringify(require("vm").runInThisContext(request.expression)));
"""


def export_page(folder: Path, kind: str, precision: str = "float32", **task: Any) -> tuple[TrainedModel, Path]:
    """Export a model to a page; `task` overrides settings of its fine-tuning task."""
    pytest.importorskip("onnx", reason="needs onnx")
    pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    labels = LABELS if kind in ("sequence", "multi_label", "tokens") else ()
    model = fine_tuned_model(folder / "run", kind, labels, **TINY) if kind else trained_model(folder / "run", **TINY)
    if task:
        model = replace(model, config=replace(model.config, task=replace(model.config.task, **task)))
    form = FORMAT.precisions[precision]()
    vectors = form.vectors(model, None, False)
    return model, Path(form.export(model, folder / "page", vectors))


def test_page_names_libraries_and_escapes_labels(tmp_path: Path) -> None:
    _, folder = export_page(tmp_path, "sequence")
    page = (folder / PAGE_FILE).read_text()
    assert json.loads((folder / PACKAGES_FILE).read_text())["dependencies"] == PACKAGES
    assert "</script><b>" not in page and page.count("<script") == 2 and "/secret" not in page
    assert {"model.onnx", "tokenizer.json", "tokenizer_config.json"} <= {path.name for path in folder.iterdir()}


def test_web_format_exports_vectors_by_default(tmp_path: Path) -> None:
    model = trained_model(tmp_path / "run", **TINY)
    assert FORMAT.vectors(model, None, False) == Vectors("mean", True)
    with pytest.raises(ValueError, match="--to web: a page shows vectors of texts or the logits of a head"):
        FORMAT.export(model, tmp_path / "page", Vectors())


def in_node(page: Path, given: Any, expression: str) -> Any:
    """Evaluate an expression in the page's script."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node, which runs the page's script")
    signature, script = re.findall(r"<script[^>]*>(.*?)</script>", page.read_text(encoding="utf-8"), re.DOTALL)
    request = json.dumps({"script": script, "signature": signature, "given": given, "expression": expression})
    done = subprocess.run([node, "-e", IN_NODE], input=request, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def questions_and_texts(model: TrainedModel, draw: np.random.Generator) -> QuestionWindows:
    """Random texts of letters, each in its own window."""
    texts = [" ".join(draw.choice([*"abcdefghij"], draw.integers(1, 40))) for _ in range(60)]
    questions = [Question("", str(n), "k l m", text, (), False) for n, text in enumerate(texts)]
    return question_windows(questions, model.tokenizer, WindowSizes(model.max_length, 16, 8), QuestionCounts())


def page_outputs(windows: QuestionWindows, logits: np.ndarray, tokens: Sequence[str]) -> dict[str, Any]:
    """The rows and outputs that the page's `tables` take; `logits` are for start and end, [2, tokens]."""
    offsets, length = windows.rows.offsets, int(windows.rows.lengths.max())
    rows, padded = [], np.zeros((2, len(windows.rows), length), np.float32)
    for n, (first, end) in enumerate(itertools.pairwise(offsets)):
        ids = windows.rows.tokens["input_ids"][first:end].tolist()
        begins = int(np.argmax(windows.spans[first:end, 0] >= 0))
        rows.append({"ids": ids, "tokens": [tokens[i] for i in ids], "begins": begins, "left": 0})
        padded[:, n, : end - first] = logits[:, first:end]
    starts, ends = ({"dims": part.shape, "data": part.ravel().tolist()} for part in padded)
    return {"rows": rows, "outputs": {"start_logits": starts, "end_logits": ends}}


@pytest.mark.run
@pytest.mark.parametrize("scale", [1, 1000], ids=["equal sums", "different sums"])
def test_page_answers_equal_predict(scale: int, tmp_path: Path) -> None:
    model, folder = export_page(tmp_path, "span")
    draw = np.random.default_rng(0)
    windows = questions_and_texts(model, draw)
    assert len(windows.rows) == len(windows.questions), "one window each"
    logits = (np.round(draw.normal(0, 4 * scale, (2, len(windows.spans)))) / scale).astype(np.float32)
    settings = ((30, None), (3, None), (3, 0.0), (30, 2.5), (30, -1.0))
    given = {
        "lines": [question.context for question in windows.questions],
        "result": page_outputs(windows, logits, model.tokenizer.tokens),
        "settings": [{"max_answer": most, "null_threshold": threshold} for most, threshold in settings],
    }
    expression = """given.settings.map(values => {
        Object.assign(signature, values);
        return tables.spans(given.lines, given.result);
    })"""
    tables = in_node(folder / PAGE_FILE, given, expression)
    for (max_answer, threshold), (_, rows) in zip(settings, tables, strict=True):
        answers = find_answers(windows, *logits, threshold is not None, len(windows.spans), max_answer)
        expected = [text or NO_ANSWER for text in answers.predictions(threshold or 0.0).values()]
        assert (NO_ANSWER in expected) == (threshold is not None) and len({*expected}) > 15
        assert rows == [list(row) for row in zip(given["lines"], expected, strict=True)]


@pytest.mark.run
@pytest.mark.parametrize(("name", "threshold"), [("mytask", None), ("squad2", 1.5)])
def test_page_has_the_settings_of_the_task(name: str, threshold: float | None, tmp_path: Path) -> None:
    _, folder = export_page(tmp_path, "span", name=name, max_answer=7, null_threshold=1.5)
    signature = in_node(folder / PAGE_FILE, None, "signature")
    assert (signature["max_answer"], signature["null_threshold"]) == (7, threshold)


@pytest.mark.run
@pytest.mark.parametrize(("kind", "pairs"), [("choice", True), ("tokens", False)])
def test_lines_have_two_texts_if_the_task_does(kind: str, pairs: bool, tmp_path: Path) -> None:
    _, folder = export_page(tmp_path, kind)
    assert in_node(folder / PAGE_FILE, None, "signature.pairs") == pairs
    assert in_node(folder / PAGE_FILE, None, "parts('a b || c')") == (["a b", "c"] if pairs else ["a b || c"])
    assert ("|| between a start and an end" in (folder / PAGE_FILE).read_text()) == pairs


@pytest.mark.run
def test_multi_label_shares_are_independent(tmp_path: Path) -> None:
    _, folder = export_page(tmp_path, "multi_label")
    given = {"outputs": {"logits": {"data": [0.0, 2.0, -2.0]}}}
    _, rows = in_node(folder / PAGE_FILE, given, "tables.classes(['a'], given)")
    assert rows == [["a", "50.0 %", "88.1 %", "11.9 %"]]


@pytest.mark.run
def test_truncated_tokens_are_counted(tmp_path: Path) -> None:
    """Uses rows that the folder's tokenizer encodes."""
    model, folder = export_page(tmp_path, "span")
    assert model.max_length == 64
    theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    theirs.no_truncation()
    pairs = [("a b", "c d e"), ("a " * 70, "c d e"), ("a b c", "d " * 100)]
    encodings = {"\t".join(pair): theirs.encode(*pair) for pair in pairs}
    encodings |= {first: theirs.encode(first, add_special_tokens=False) for first, _ in pairs}
    given = {
        name: {"ids": encoding.ids, "token_type_ids": encoding.type_ids, "tokens": encoding.tokens}
        for name, encoding in encodings.items()
    }
    tokenizer = "{ encode: (text, { text_pair }) => given[text_pair ? `${text}\\t${text_pair}` : text] }"
    lines = json.dumps(["\t".join(pair) for pair in pairs])
    rows = in_node(folder / PAGE_FILE, given, f"encoded({tokenizer}, {lines})")
    assert [(len(row["ids"]), row["left"]) for row in rows] == [(8, 0), (64, 12), (64, 42)]
    assert [{len(row[part]) for part in ("types", "tokens")} for row in rows] == [{8}, {64}, {64}]
    assert all(row["tokens"][-1] == "[SEP]" for row in rows)
    assert [row["tokens"][row["begins"]] for row in (rows[0], rows[2])] == ["c", "d"]
    note = in_node(folder / PAGE_FILE, rows, "leftOut(given)")
    assert note == "; left out, beyond the 64 tokens of a row: 12 of text 2, 42 of text 3"
    # The second question leaves no room for its text.
    zeros = {"dims": [3, 64], "data": [0] * 3 * 64}
    answer = {"rows": rows, "outputs": {"start_logits": zeros, "end_logits": zeros}}
    _, cells = in_node(folder / PAGE_FILE, answer, "tables.spans(['1', '2', '3'], given)")
    assert cells == [["1", "c"], ["2", "(no word of the text fits into the row)"], ["3", "d"]]


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`node_modules` with the libraries of the page."""
    folder = tmp_path_factory.mktemp("libraries")
    if shutil.which("npm") is None:
        pytest.skip("needs npm, which brings the page's libraries")
    expected = [f"{name}@{version}" for name, version in PACKAGES.items()]
    done = subprocess.run(
        ["npm", "install", "--prefix", folder, *expected], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"needs the registry of npm: {done.stderr.strip()[-200:]}")
    return folder / "node_modules"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        pytest.skip(f"needs a browser to open pages with: none of {', '.join(NAMES)} is installed")
    started = Browser(program, tmp_path_factory.mktemp("browser"))
    yield started
    started.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """Serve the test's folder and return its address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *words: object) -> None:
            """Log nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=tmp_path)) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{served.server_port}"
        served.shutdown()


def status_after(browser: Browser, *words: str) -> str:
    """Wait until the page's status no longer starts with one of these words, and return it."""
    for _ in range(300):
        status = browser.ask("document.getElementById('status').textContent")
        if not status.startswith(words):
            break
        browser.ask(WAIT)
    return status


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "precision", "limit"),
    [("sequence", "float32", 1e-5), ("sequence", "int8", 1e-2), ("span", "float32", 1e-5), ("", "float32", 1e-5)],
)
def test_browser_outputs_equal_onnxruntime(
    kind: str, precision: str, limit: float, libraries: Path, browser: Browser, server: str, tmp_path: Path
) -> None:
    model, folder = export_page(tmp_path, kind, precision)
    (folder / "node_modules").symlink_to(libraries)
    browser.open(f"{server}/page/index.html?local")
    status = status_after(browser, "Loading", "Ready")
    assert "here in the browser" in status, (status, browser.complaints)
    assert not browser.complaints
    assert all(url.startswith(("http://127.0.0.1", "blob:", "data:")) for url in browser.requests), browser.requests
    lines = json.dumps(["\t".join(pair) for pair in TEXTS])
    outputs = browser.ask(f"answer({lines})")["outputs"]
    batch = pair_batch(model, TEXTS)
    expected = load(folder)({name: batch[name] for name in input_names(model.config.model)})
    for name, output in outputs.items():
        theirs = np.reshape(output["data"], output["dims"])
        assert theirs.shape == expected[name].shape
        if theirs.ndim == 2 and theirs.shape == batch["attention_mask"].shape:
            theirs, expected[name] = (x[batch["attention_mask"] == 1] for x in (theirs, expected[name]))
        if name != "last_hidden_state":
            assert np.linalg.norm(theirs - expected[name]) < limit * np.linalg.norm(expected[name]), name
    rows = browser.ask("document.querySelectorAll('#result tbody tr').length")
    assert rows == 3, "three examples"
    if kind == "sequence":
        assert browser.ask("document.querySelectorAll('#result b').length") == 0, "a label is text"
        assert browser.ask("document.querySelectorAll('#result thead th').length") == 1 + len(LABELS)


@pytest.mark.long
@pytest.mark.parametrize("task", [{"name": "mytask"}, {"name": "squad2", "null_threshold": -1e9}])
def test_browser_shows_answers_and_truncation(
    task: dict[str, Any], libraries: Path, browser: Browser, server: str, tmp_path: Path
) -> None:
    model, folder = export_page(tmp_path, "span", **task)
    (folder / "node_modules").symlink_to(libraries)
    browser.open(f"{server}/page/index.html?local")
    assert "here in the browser" in status_after(browser, "Loading", "Ready"), browser.complaints
    pairs = [("museum opened ?", "the museum opened in 1877"), ("what ?", "drawings of a naive museum"), ("b", "c d e")]
    expected = [answer.text for answer in bertjax.load(write_run(model)).predict(pairs)]
    lines = ["\t".join(pair) for pair in [*pairs, ("a", "b " * 80)]]
    begin = "document.getElementById('status').textContent = 'waiting', document.getElementById('run').click()"
    browser.ask(f"document.getElementById('texts').value = {json.dumps(chr(10).join(lines))}, {begin}")
    status = status_after(browser, "waiting")
    assert status.endswith(", here in the browser; left out, beyond the 64 tokens of a row: 20 of text 4")
    cells = browser.ask("Array.from(document.querySelectorAll('#result tbody tr td:last-child'), td => td.textContent)")
    shown = ["" if cell == NO_ANSWER else re.sub(" |##", "", cell) for cell in cells[:3]]
    assert shown == [text.replace(" ", "") for text in expected] and any(expected) == (task["name"] == "mytask")
