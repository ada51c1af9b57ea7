"""The attention page: a self-contained HTML page with the attention of a sentence or pair in every head.

It shows lines between tokens, the strength of six patterns in each head, and the gradient of a prediction at [CLS].
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bertjax.families.registry import get_family
from bertjax.finetune.kinds import get_kind
from bertjax.interpret.attention_maps import LabelAtCls, likeliest_label, look_inside, next_sentence, untrained_heads
from bertjax.interpret.attention_patterns import (
    PATTERNS,
    PREDICTIVE,
    RELATED,
    SEPARATORS,
    SHOWN_FROM,
    PatternSums,
    WordTable,
    measure_patterns,
)
from bertjax.interpret.attention_script import SCRIPT, STYLE
from bertjax.interpret.sample_text import SampleText
from bertjax.interpret.token_rows import TokenRow, read_row
from bertjax.report.page import escaped, render_page
from bertjax.run.run_directory import TrainedModel
from bertjax.storage.progress import Progress

EXAMPLE = ("I went to the store.", "At the store, I bought fresh strawberries.")
MOST_TOKENS = 128  # on a page
_ROOMY = 32  # tokens up to which a table has high rows
_SHADES = 50  # of the fields of a table


@dataclass(frozen=True)
class AttentionView:
    """The content of the page."""

    model: str
    sentences: tuple[str, ...]
    row: TokenRow
    attention: np.ndarray  # float32 [layers, H, n, n]
    at_cls: LabelAtCls | None
    patterns: PatternSums
    sample: str
    pairs: int
    missing: tuple[str, ...]  # a sentence for each part that could not be measured

    @property
    def clearest(self) -> list[tuple[int, int] | None]:
        """For each pattern the (layer, head) that shows it most, counted from 0; None if it was not measured."""
        strengths = self.patterns.strengths
        heads = self.attention.shape[1]
        return [None if np.isnan(grid).any() else divmod(int(grid.argmax()), heads) for grid in strengths]


def view_attention(
    model: TrainedModel, name: str, sentences: Sequence[str], sample: SampleText, count: int, progress: Progress
) -> AttentionView:
    """Compute the attention of one or two sentences, and measure patterns on `count` sentences of a sample.

    Raises ValueError for sentences that are too long, and for a sample without short pairs of sentences.
    """
    template = get_family(model.config.model.family).template
    row = read_row(model.tokenizer, sentences, model.max_length, template)
    if len(row) > MOST_TOKENS:
        raise ValueError(f"the sentences have {len(row)} tokens; the page has room for {MOST_TOKENS}: shorten them")
    rows = sample.pairs(-(-count // 2), model.max_length)
    if not rows:
        raise ValueError(f"{sample.origin}: no two successive sentences that are short enough; give another --text")
    no_masks = ""  # the reason why the model cannot fill masks
    if model.config.model.causal:
        no_masks = "a causal model predicts the next token and cannot fill masks"
    elif "MLM head" in untrained_heads(model):
        no_masks = "the model has no trained MLM head"
    no_label = _no_label(model, len(sentences) == 2)
    read = likeliest_label if model.kind else next_sentence
    patterns = measure_patterns(model, rows, WordTable(model), not no_masks, progress)
    missing = []
    for number, pattern in enumerate(PATTERNS):
        if not patterns.tokens[number]:
            reason = f"no token may attend to {pattern.looks_at}"
            if number == PREDICTIVE:
                reason = no_masks or "no word predicts another"
            missing.append(f"“{pattern.name}” is not measured: {reason}.")
    if no_label:
        missing.append(f"The gradient of the loss at [CLS] is not shown: {no_label}.")
    return AttentionView(
        model=name,
        sentences=tuple(sentences),
        row=row,
        attention=next(look_inside(model, [row])).attention,
        at_cls=None if no_label else read(model, row),
        patterns=patterns,
        sample=sample.origin,
        pairs=len(rows),
        missing=tuple(missing),
    )


def _no_label(model: TrainedModel, is_pair: bool) -> str:
    """The reason why the model has no prediction at [CLS]; "" if it has one."""
    if model.config.model.causal:
        return "in a causal model [CLS] attends only to itself"
    if model.kind and get_kind(model.kind).classifies_texts:
        return ""
    if model.kind:
        return f"the model was fine-tuned for {model.kind}, which does not label texts"
    if "NSP head" in untrained_heads(model):
        return "the model has no trained NSP head; fine-tune it for classification to get a label"
    return "" if is_pair else "next-sentence prediction needs a second sentence"


def render_attention(view: AttentionView) -> str:
    """The page as HTML; all text is escaped."""
    layers, heads = view.attention.shape[:2]
    title = f"Attention of {view.model}"
    body = [
        f"<h1>{escaped(title)}</h1>",
        f'<p class="about">{layers} layers of {heads} heads. '
        + " / ".join(f"“{escaped(sentence)}”" for sentence in view.sentences)
        + "</p>",
        *(f'<p class="about">{escaped(note)}</p>' for note in view.missing),
        "<h2>From token to token</h2>",
        '<p class="caption">Each token attends to all tokens that its mask allows, and its weights add up to 100%. '
        "Point at a token to see its lines; click to keep them. Weights below 2% are not drawn.</p>",
        _heads(),
        "<h2>What each head does</h2>",
        f'<p class="caption">Measured on {view.pairs:,} pairs of sentences: {escaped(view.sample)}. The more colour a '
        "cell has, the more of a token’s attention goes to the pattern’s targets, compared with uniform attention "
        "(0: no more than uniform, 1: all of it). Rows are layers, columns are heads; the orange frame marks the "
        "clearest head, the other frame the head chosen above. Only tokens with targets are counted.</p>",
        f'<div class="patterns">{"".join(_pattern(view, number) for number in range(len(PATTERNS)))}</div>',
        f'<p class="caption after">Words are related if one is among the {RELATED} nearest of the '
        "other in the model’s own word embeddings (cosine, centred on the mean word). The patterns come from "
        "J. Vig, “Deconstructing BERT” (2019); predicting words are measured as in Wu et al., "
        "“Perturbed Masking” (2020).</p>",
        _all_figures(view),
        *_gradient(view),
        f'<script type="application/json" id="attention">{_data(view)}</script>',
    ]
    columns = f".heat {{ grid-template-columns: 16px repeat({heads}, minmax(0, {38 if heads <= 8 else 30}px)); }}\n"
    shades = "".join(f".s{n} {{ opacity: {n / _SHADES:.3f}; }}\n" for n in range(_SHADES + 1))
    return render_page(title, body, style=STYLE + columns + shades, script=SCRIPT)


def _heads() -> str:
    return (
        '<div class="side-by-side"><div class="view card scroll">'
        '<div class="chips" id="layer-chips"><span>layer</span></div>'
        '<div class="chips" id="head-chips" title="Shift and click: add a head"><span>head</span></div>'
        '<svg class="columns" id="heads" role="img" aria-label="Attention between the tokens"></svg></div>'
        '<div class="view card stay"><h3>Every head of every layer</h3>'
        '<p>Rows are layers, columns are heads; choose one.</p><div class="thumbs" id="overview"></div>'
        '<div class="does"><h3 id="chosen"></h3><p class="note" id="about-chosen"></p><div id="does"></div></div>'
        "</div></div>"
    )


def _pattern(view: AttentionView, number: int) -> str:
    """A pattern's strength in every head, as a grid."""
    pattern, best = PATTERNS[number], view.clearest[number]
    title = f"<h3>{number + 1}. {escaped(pattern.name[0].upper() + pattern.name[1:])}</h3>"
    subtitle = f"<p>Attends to {escaped(pattern.looks_at)}.</p>"
    if best is None:
        return f'<div class="view card pattern">{title}{subtitle}<p><b>Not measured.</b></p></div>'
    shares, strengths = view.patterns.shares[number], view.patterns.strengths[number]
    tokens, chance = view.patterns.tokens[number], view.patterns.chances[number]
    figures = f"{shares[best]:.0%} of the attention of {tokens:,} tokens, {chance:.0%} if it were uniform"
    clearest = f"<b>No head shows it.</b> The most is {figures}"
    if is_shown := strengths[best] >= SHOWN_FROM:
        clearest = f"Clearest: <b>layer {best[0] + 1}, head {best[1] + 1}</b>, {figures}: {strengths[best]:.2f}"
    layers, heads = view.attention.shape[:2]
    cells = ["<span></span>", *(f"<span>{head + 1}</span>" for head in range(heads))]
    for layer in range(layers):
        cells.append(f"<span>{layer + 1}</span>")
        for head in range(heads):
            share, strength = shares[layer, head], strengths[layer, head]
            tip = f"layer {layer + 1}, head {head + 1}: {share:.1%} of the attention, strength {strength:.2f}"
            kind = "cell best" if is_shown and best == (layer, head) else "cell"
            cells.append(
                f'<button type="button" class="{kind}" data-layer="{layer}" data-head="{head}" title="{tip}">'
                f"{_shade(strength)}</button>"
            )
    grid = f'<div class="heat">{"".join(cells)}</div>'
    return f'<div class="view card pattern">{title}{subtitle}{grid}<p>{clearest}</p></div>'


def _shade(share: float) -> str:
    """A cell whose class sets its opacity by the share, because the page's policy forbids style attributes."""
    return f'<i class="s{round(_SHADES * min(max(share, 0.0), 1.0))}"></i>'


def _all_figures(view: AttentionView) -> str:
    """The shares of all heads for all patterns, as a table to unfold."""
    layers, heads = view.attention.shape[:2]
    names = "".join(f'<th class="number">{escaped(pattern.name)}</th>' for pattern in PATTERNS)
    measured = view.patterns.tokens > 0

    def figures(values: np.ndarray) -> str:
        return "".join(
            f'<td class="number">{f"{value:.1%}" if is_there else "–"}</td>'
            for value, is_there in zip(values, measured, strict=True)
        )

    rows = [
        f"<tr><td>layer {layer + 1}, head {head + 1}</td>{figures(view.patterns.shares[:, layer, head])}</tr>"
        for layer in range(layers)
        for head in range(heads)
    ]
    rows.append(f"<tr><td>uniform attention</td>{figures(view.patterns.chances)}</tr>")
    return (
        '<details class="card"><summary>The shares of all heads as figures</summary><div class="scroll">'
        f"<table><thead><tr><th></th>{names}</tr></thead><tbody>{''.join(rows)}</tbody></table></div></details>"
    )


def _gradient(view: AttentionView) -> Iterator[str]:
    """The gradient of the loss at [CLS], if the model has one."""
    prediction = view.at_cls
    if prediction is None:
        return
    norms = prediction.gradient_norms
    others = norms[:, 1:].max(axis=1, keepdims=True)
    largest = np.where(others > 0, others, norms[:, :1])  # the norm at [CLS] itself would dwarf the others
    label = escaped(prediction.label)
    yield f"<h2>What “{label}” depends on</h2>"
    yield (
        f'<p class="caption">The model predicts “{label}” with {prediction.probability:.1%}; its loss at [CLS] is '
        f"{prediction.loss:.3g} nats. The figure shows the norm of the loss’s gradient with respect to each token’s "
        "vector after a layer: how fast the loss changes with that vector. After the last layer only [CLS] counts.</p>"
    )
    yield (
        '<div class="side-by-side"><div class="view card scroll">'
        '<div class="chips" id="gradient-chips"><span>after</span></div>'
        '<svg class="columns" id="gradient" role="img" aria-label="Gradient of the loss by token"></svg></div>'
        '<div class="view card stay scroll"><h3>Every token and layer</h3>'
        "<p>More colour means larger, relative to the largest of the layer except [CLS].</p>"
        f"{_tokens_by_layer(view, norms, np.minimum(norms / np.maximum(largest, 1e-30), 1))}</div></div>"
    )


def _tokens_by_layer(view: AttentionView, norms: np.ndarray, shades: np.ndarray) -> str:
    tokens = _tokens(view)
    names = ["emb.", *(str(layer + 1) for layer in range(len(norms) - 1))]
    rows = []
    for index, token in enumerate(tokens):
        cells = "".join(
            f'<td title="{escaped(token)}, {f"layer {layer}" if layer else "embeddings"}: {norms[layer, index]:.3g}">'
            f"{_shade(shades[layer, index])}</td>"
            for layer in range(len(norms))
        )
        kind = ' class="special"' if view.row.is_special[index] else ""
        rows.append(f"<tr{kind}><th>{escaped(token)}</th>{cells}</tr>")
    heads = "".join(f"<th>{name}</th>" for name in names)
    roomy = " roomy" if len(tokens) <= _ROOMY else ""
    return (
        f'<table class="depends{roomy}"><thead><tr><th></th>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    )


def _tokens(view: AttentionView) -> list[str]:
    return [view.row.tokenizer.display_texts[token] for token in view.row.ids.tolist()]


def _data(view: AttentionView) -> str:
    """The script's data, as JSON that is safe inside a script tag."""
    layers, heads = view.attention.shape[:2]
    weights = np.round(view.attention * 65535).astype("<u2")
    patterns, measured = view.patterns, view.patterns.tokens > 0
    # Show first the clearest head of all patterns except separators, which many heads show.
    strengths = np.nan_to_num(patterns.strengths, nan=-1.0)
    strengths[SEPARATORS] = -1.0
    _, layer, head = np.unravel_index(int(strengths.argmax()), strengths.shape)
    return json.dumps(
        {
            "tokens": _tokens(view),
            "segments": view.row.segments.tolist(),
            "special": view.row.is_special.tolist(),
            "layers": layers,
            "heads": heads,
            "weights": base64.b64encode(weights.tobytes()).decode(),
            "start": (int(layer), int(head)),
            "patterns": [
                {
                    "name": pattern.name,
                    "looksAt": pattern.looks_at,
                    "shares": patterns.shares[number].round(4).tolist() if measured[number] else None,
                    "chance": round(float(patterns.chances[number]), 4),
                }
                for number, pattern in enumerate(PATTERNS)
            ],
            "gradient": None
            if view.at_cls is None
            else [[float(f"{norm:.4g}") for norm in layer] for layer in view.at_cls.gradient_norms.tolist()],
        },
        separators=(",", ":"),
    ).replace("<", "\\u003c")
