"""The HTML page that runs the tokenizer and the graph in the browser and shows the outputs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from bertjax.report.page import escaped, render_page

# npm packages by exact version; jsDelivr serves the same files.
PACKAGES = {"onnxruntime-web": "1.30.0", "@huggingface/tokenizers": "0.2.0"}


def page(title: str, description: str, signature: dict[str, Any], examples: Sequence[str], second: str = "") -> str:
    """Build a model's HTML page; `signature` holds the values that the script reads: inputs, outputs, labels, sizes.

    `second` is a phrase that explains the second part of a line, or empty.
    """
    # "<" could end the script element.
    signature_text = json.dumps(signature | {"packages": PACKAGES}, sort_keys=True).replace("<", "\\u003c")
    body = _BODY.format(
        title=escaped(title),
        about=escaped(description),
        second=escaped(second),
        examples=escaped("\n".join(examples)),
        signature=signature_text,
    )
    return render_page(title, [body], style=_STYLE, script=_SCRIPT, loads="'self' https://cdn.jsdelivr.net")


_BODY = """\
<h1>{title}</h1>
<p class="about">{about}</p>
<h2><label for="texts">Texts, one per line{second}</label></h2>
<textarea id="texts" rows="5">{examples}</textarea>
<p><button id="run" disabled>Run</button> <span id="status" role="status">Loading the model …</span></p>
<div class="card scroll"><table class="rows" id="result"></table></div>
<script type="application/json" id="signature">{signature}</script>"""

_STYLE = """
textarea { width: 100%; padding: 10px 14px; font: inherit; color: inherit; background: var(--card);
  border: 1px solid var(--line); border-radius: 12px; }
textarea:focus-visible, button:focus-visible { outline: 2px solid var(--blue); outline-offset: 2px; }
button { padding: 8px 22px; margin-right: 10px; font: inherit; font-weight: 600; color: var(--page); cursor: pointer;
  background: var(--text); border: 0; border-radius: 8px; }
button:hover { background: var(--soft); }
button:disabled { background: var(--soft); cursor: default; }
table.rows td:not(:first-child) { white-space: nowrap; }
"""

# Everything stays on the machine that shows the page: only the libraries and the files next to the page are loaded.
_SCRIPT = """
const signature = JSON.parse(document.getElementById("signature").textContent);
const setStatus = text => { document.getElementById("status").textContent = text; };
const local = new URLSearchParams(location.search).has("local");
const packageUrl = (name, path) => local
  ? new URL(`node_modules/${name}/${path}`, location).href
  : `https://cdn.jsdelivr.net/npm/${name}@${signature.packages[name]}/${path}`;
const file = async name => {
  const response = await fetch(name);
  if (!response.ok) throw new Error(`${name}: ${response.status} ${response.statusText}`);
  return response;
};

async function load() {
  const ort = await import(packageUrl("onnxruntime-web", "dist/ort.wasm.min.mjs"));
  const { Tokenizer } = await import(packageUrl("@huggingface/tokenizers", "dist/tokenizers.min.mjs"));
  ort.env.wasm.wasmPaths = packageUrl("onnxruntime-web", "dist/");
  ort.env.wasm.numThreads = 1;  // more threads need server headers that isolate the page
  const tokenizer = new Tokenizer(...await Promise.all(
    ["tokenizer.json", "tokenizer_config.json"].map(async name => (await file(name)).json())));
  const graph = await (await file("model.onnx")).arrayBuffer();
  return { ort, tokenizer, session: await ort.InferenceSession.create(graph, { executionProviders: ["wasm"] }) };
}

// The texts of a line: a pair is separated by || or by a tab, which cannot be typed.
const parts = line => line.split(signature.pairs ? / *\\|\\| *|\\t/ : "\\t", 2);

// Rows of ids, truncated to the training length but for the last special token. `begins` is the position of the second
// text; `left` is the number of tokens left out.
function encoded(tokenizer, lines) {
  return lines.map(line => {
    const [text, pair] = parts(line);
    const row = tokenizer.encode(text, { text_pair: pair ?? null, return_token_type_ids: true });
    const first = tokenizer.encode(text, { add_special_tokens: false }).ids.length;
    const left = Math.max(row.ids.length - signature.longest, 0);
    const cut = part => left ? [...part.slice(0, signature.longest - 1), part[part.length - 1]] : part;
    return { ids: cut(row.ids), types: cut(row.token_type_ids), tokens: cut(row.tokens),
      begins: 1 + first + signature.separators, left };
  });
}

// A phrase on the tokens left out of rows.
function leftOut(rows) {
  const parts = rows.flatMap(({ left }, n) => left ? [`${left} of text ${n + 1}`] : []);
  return parts.length ? `; left out, beyond the ${signature.longest} tokens of a row: ${parts.join(", ")}` : "";
}

// The rows of lines, and their outputs by name, each {dims, data}.
async function answer(lines) {
  const { ort, tokenizer, session } = await loaded;
  const rows = encoded(tokenizer, lines), length = Math.max(...rows.map(row => row.ids.length));
  const filled = (part, filler) => {
    const data = rows.flatMap(row => [...part(row), ...Array(length - row.ids.length).fill(filler)]);
    return new ort.Tensor("int64", BigInt64Array.from(data, BigInt), [rows.length, length]);
  };
  const inputs = {
    input_ids: filled(row => row.ids, signature.padding),
    attention_mask: filled(row => row.ids.map(() => 1), 0),
    token_type_ids: filled(row => row.types, 0),
  };
  const results = await session.run(Object.fromEntries(signature.inputs.map(name => [name, inputs[name]])));
  const outputs = Object.fromEntries(signature.outputs.map(
    name => [name, { dims: results[name].dims, data: Array.from(results[name].data) }]));
  return { rows, outputs };
}

const softmax = values => {
  const most = Math.max(...values), powers = values.map(value => Math.exp(value - most));
  const sum = powers.reduce((a, b) => a + b);
  return powers.map(power => power / sum);
};
const best = values => values.indexOf(Math.max(...values));
const percent = value => `${(100 * value).toFixed(1)} %`;
const slices = (data, size) =>
  Array.from({ length: data.length / size }, (_, n) => data.slice(n * size, (n + 1) * size));

// The answer to a row's question: the best span of the text by logits, unless [CLS] beats it by more than the threshold
// of a model that may give no answer. As in `bertjax predict`, sums are float32, and the likelier start breaks ties.
function answerIn({ ids, tokens, begins }, starts, ends) {
  const closing = ids.length - 1;
  let span = null, most = -Infinity;
  for (let start = begins; start < closing; start++) {
    for (let end = start; end < Math.min(start + signature.max_answer, closing); end++) {
      const score = Math.fround(starts[start] + ends[end]);
      if (score > most || (score === most && starts[start] > starts[span.start])) {
        [span, most] = [{ start, end }, score];
      }
    }
  }
  if (!span) return "(no word of the text fits into the row)";
  const none = Math.fround(starts[0] + ends[0]);
  const odds = Math.fround(Math.fround(none - starts[span.start]) - ends[span.end]);
  if (signature.null_threshold !== null && odds > signature.null_threshold) return "(the text does not answer it)";
  return tokens.slice(span.start, span.end + 1).join(" ");
}

// [column heads, rows of cells] for the result of `answer`, by `signature.shows`.
const tables = {
  classes(lines, { outputs }) {
    const labels = signature.labels, rows = slices(outputs.logits.data, labels.length || 1);
    const shares = signature.several_hold ? row => row.map(value => 1 / (1 + Math.exp(-value))) : softmax;
    return labels.length
      ? [["text", ...labels], rows.map((row, n) => [lines[n], ...shares(row).map(percent)])]
      : [["text", "output"], rows.map((row, n) => [lines[n], ...row.map(value => value.toFixed(4))])];
  },
  tokens(lines, { rows, outputs }) {
    const labels = signature.labels, length = outputs.logits.dims[1];
    const logits = slices(slices(outputs.logits.data, labels.length || 1), length);
    return [["token", labels.length ? "label" : "output"], rows.flatMap((row, n) => row.tokens.map((token, k) => {
      if (!labels.length) return [token, logits[n][k][0].toFixed(4)];
      const shares = softmax(logits[n][k]);
      return [token, `${labels[best(shares)]} ${percent(Math.max(...shares))}`];
    }))];
  },
  spans(lines, { rows, outputs }) {
    const length = outputs.start_logits.dims[1];
    const starts = slices(outputs.start_logits.data, length), ends = slices(outputs.end_logits.data, length);
    return [["question and text", "answer"], rows.map((row, n) => [lines[n], answerIn(row, starts[n], ends[n])])];
  },
  vectors(lines, { outputs }) {
    const rows = slices(outputs.sentence_embedding.data, outputs.sentence_embedding.dims[1]);
    const dot = (a, b) => a.reduce((sum, value, k) => sum + value * b[k], 0);
    const cosine = (a, b) => dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b));
    return [["cosine with text", ...lines.map((_, n) => `${n + 1}`)],
      rows.map((row, n) => [`${n + 1}: ${lines[n]}`, ...rows.map(other => cosine(row, other).toFixed(3))])];
  },
};

function showTable([heads, rows]) {
  const table = document.getElementById("result");
  table.replaceChildren();
  // In a narrow window, a row becomes a list of its cells with their column names.
  const fill = (part, kind, cells) => {
    const row = part.insertRow();
    cells.forEach((cell, n) => {
      const element = row.appendChild(document.createElement(kind));
      element.textContent = cell;
      if (n) element.dataset.name = heads[n];
    });
  };
  fill(table.createTHead(), "th", heads);
  const body = table.createTBody();
  for (const cells of rows) fill(body, "td", cells);
}

async function run() {
  const lines = document.getElementById("texts").value.split("\\n").filter(line => line.trim());
  if (!lines.length) return setStatus("Write a text first.");
  const start = performance.now();
  const result = await answer(lines);
  showTable(tables[signature.shows](lines, result));
  const elapsed = Math.round(performance.now() - start), plural = lines.length > 1 ? "s" : "";
  setStatus(`${lines.length} text${plural} in ${elapsed} ms, here in the browser${leftOut(result.rows)}`);
}

const loaded = load();
window.answer = answer;
loaded.then(() => { setStatus("Ready."); document.getElementById("run").disabled = false; return run(); })
  .catch(error => setStatus(`The model cannot be loaded: ${error.message}`));
document.getElementById("run").addEventListener("click", () => run().catch(error => setStatus(error.message)));
"""
