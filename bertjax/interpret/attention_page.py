"""The attention of a model as a self-contained HTML page: lines between tokens, all heads, six patterns, a gradient."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import numpy as np

from bertjax.interpret.attention_patterns import PATTERNS, RELATED, SEPARATORS, SHOWN_FROM
from bertjax.interpret.attention_script import SCRIPT, STYLE
from bertjax.interpret.attention_view import AttentionView
from bertjax.report.page import escaped, render_page

_ROOMY = 32  # tokens up to which a table has high rows
_SHADES = 50  # of the fields of a table


def render_attention(view: AttentionView) -> str:
    """The page as HTML; all text is escaped."""
    layers, heads = view.attention.shape[:2]
    title = f"What {view.model} looks at"
    body = [
        f"<h1>{escaped(title)}</h1>",
        f'<p class="about">{layers} layers of {heads} heads. '
        + " / ".join(f"“{escaped(sentence)}”" for sentence in view.sentences)
        + "</p>",
        *(f'<p class="about">{escaped(note)}</p>' for note in view.missing),
        "<h2>From token to token</h2>",
        '<p class="caption">Each token looks at all that it may see, and what it looks at adds up to 100%. Point at a '
        "token for its own lines; click to keep them. Weights below 2% are not drawn.</p>",
        _heads(),
        "<h2>What each head does</h2>",
        f'<p class="caption">Measured on {view.pairs:,} pairs of sentences: {escaped(view.sample)}. The darker, the '
        "more of a token’s attention goes where the pattern says, beyond what even attention would give there "
        "(0: no more than that, 1: all of it). Framed is the clearest head of each pattern. Only tokens that have such "
        "a word to look at are counted.</p>",
        f'<div class="patterns">{"".join(_pattern(view, number) for number in range(len(PATTERNS)))}</div>',
        f'<p class="caption after">Words are related if one is among the {RELATED} nearest of the '
        "other in the model’s own table of word vectors (cosine, about the mean word). The patterns are those of "
        "J. Vig, “Deconstructing BERT” (2019); which word predicts another is measured as in Wu et al., "
        "“Perturbed Masking” (2020).</p>",
        _all_figures(view),
        *_gradient(view),
        f'<script type="application/json" id="attention">{_data(view)}</script>',
    ]
    return render_page(title, body, style=_style_of(heads), script=SCRIPT)


def _heads() -> str:
    return (
        '<div class="side-by-side"><div class="view card scroll">'
        '<div class="chips" id="layer-chips"><span>layer</span></div>'
        '<div class="chips" id="head-chips" title="Shift and click: add a head"><span>head</span></div>'
        '<svg class="columns" id="heads" role="img" aria-label="Attention between the tokens"></svg></div>'
        '<div class="view card stay"><h3>Every head of every layer</h3>'
        '<p>Layers downwards, heads to the right; choose one.</p><div class="thumbs" id="overview"></div>'
        '<div class="does"><h3 id="chosen"></h3><p class="note" id="about-chosen"></p><div id="does"></div></div>'
        "</div></div>"
    )


def _pattern(view: AttentionView, number: int) -> str:
    """A pattern's strength in every head, as a grid."""
    pattern, best = PATTERNS[number], view.clearest[number]
    title = f"<h3>{number + 1}. {escaped(pattern.name[0].upper() + pattern.name[1:])}</h3>"
    about = f"<p>Looks at {escaped(pattern.looks_at)}.</p>"
    if best is None:
        return f'<div class="view card pattern">{title}{about}<p><b>Not measured.</b></p></div>'
    return (
        f'<div class="view card pattern">{title}{about}{_grid(view, number, best)}'
        f"<p>{_clearest(view, number, best)}</p></div>"
    )


def _clearest(view: AttentionView, number: int, best: tuple[int, int]) -> str:
    """A sentence about the head that shows a pattern most."""
    share, strength = view.patterns.shares[number][best], view.patterns.strengths[number][best]
    tokens, chance = view.patterns.tokens[number], view.patterns.chances[number]
    figures = f"{share:.0%} of the attention of {tokens:,} tokens, {chance:.0%} if it were even"
    if strength < SHOWN_FROM:
        return f"<b>No head shows it.</b> The most is {figures}"
    return f"Clearest: <b>layer {best[0] + 1}, head {best[1] + 1}</b>, {figures}: {strength:.2f}"


def _grid(view: AttentionView, number: int, best: tuple[int, int]) -> str:
    layers, heads = view.attention.shape[:2]
    cells = ["<span></span>", *(f"<span>{head + 1}</span>" for head in range(heads))]
    for layer in range(layers):
        cells.append(f"<span>{layer + 1}</span>")
        cells += [
            _cell(
                view, number, layer, head, best == (layer, head) and view.patterns.strengths[number][best] >= SHOWN_FROM
            )
            for head in range(heads)
        ]
    return f'<div class="heat">{"".join(cells)}</div>'


def _cell(view: AttentionView, number: int, layer: int, head: int, is_best: bool) -> str:
    share, strength = view.patterns.shares[number][layer, head], view.patterns.strengths[number][layer, head]
    said = f"layer {layer + 1}, head {head + 1}: {share:.1%} of the attention, {strength:.2f} beyond even attention"
    return (
        f'<button type="button" class="cell{" best" if is_best else ""}" data-layer="{layer}" data-head="{head}" '
        f'title="{said}">{_shade(strength)}</button>'
    )


def _shade(share: float) -> str:
    """A field that is darker for a larger share. A class says how dark: no page has style attributes."""
    return f'<i class="s{round(_SHADES * min(max(share, 0.0), 1.0))}"></i>'


def _style_of(heads: int) -> str:
    """The style of a page about a model of so many heads."""
    columns = f".heat {{ grid-template-columns: 16px repeat({heads}, minmax(0, {38 if heads <= 8 else 30}px)); }}\n"
    return STYLE + columns + "".join(f".s{n} {{ opacity: {n / _SHADES:.3f}; }}\n" for n in range(_SHADES + 1))


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
    rows.append(f"<tr><td>even attention</td>{figures(view.patterns.chances)}</tr>")
    return (
        '<details class="card"><summary>The shares of all heads as figures</summary><div class="scroll">'
        f"<table><thead><tr><th></th>{names}</tr></thead><tbody>{''.join(rows)}</tbody></table></div></details>"
    )


def _gradient(view: AttentionView) -> Iterator[str]:
    """The gradient of the loss at [CLS], if the model has one."""
    found = view.at_cls
    if found is None:
        return
    norms = found.gradient_norms
    others = norms[:, 1:].max(axis=1, keepdims=True)
    largest = np.where(others > 0, others, norms[:, :1])  # the norm at [CLS] itself would dwarf the others
    label = escaped(found.label)
    yield f"<h2>What “{label}” depends on</h2>"
    yield (
        f'<p class="caption">The model says “{label}” with {found.probability:.1%}; the loss at [CLS] for that is '
        f"{found.loss:.3g} nats. Drawn is the length of its gradient by each token’s vector after a layer: how fast "
        "the loss would change if that vector moved. After the last layer only [CLS] is read.</p>"
    )
    yield (
        '<div class="side-by-side"><div class="view card scroll">'
        '<div class="chips" id="gradient-chips"><span>after</span></div>'
        '<svg class="columns" id="gradient" role="img" aria-label="Gradient of the loss by token"></svg></div>'
        '<div class="view card stay scroll"><h3>Every token and layer</h3>'
        "<p>The darker, the longer, relative to the longest of its layer without [CLS] itself.</p>"
        f"{_tokens_by_layer(view, norms, np.minimum(norms / np.maximum(largest, 1e-30), 1))}</div></div>"
    )


def _tokens_by_layer(view: AttentionView, norms: np.ndarray, shown: np.ndarray) -> str:
    tokens = _tokens(view)
    names = ["emb.", *(str(layer + 1) for layer in range(len(norms) - 1))]
    rows = []
    for index, token in enumerate(tokens):
        cells = "".join(
            f'<td title="{escaped(token)}, {f"layer {layer}" if layer else "embeddings"}: {norms[layer, index]:.3g}">'
            f"{_shade(shown[layer, index])}</td>"
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
    return [view.row.tokenizer.shown[token] for token in view.row.ids.tolist()]


def _data(view: AttentionView) -> str:
    """The data of the script, as JSON that is safe inside a script tag."""
    layers, heads = view.attention.shape[:2]
    weights = np.round(view.attention * 65535).astype("<u2")
    found, measured = view.patterns, view.patterns.tokens > 0
    return json.dumps(
        {
            "tokens": _tokens(view),
            "segments": view.row.segments.tolist(),
            "special": view.row.is_special.tolist(),
            "layers": layers,
            "heads": heads,
            "weights": base64.b64encode(weights.tobytes()).decode(),
            "start": _first_shown(view),
            "patterns": [
                {
                    "name": pattern.name,
                    "looksAt": pattern.looks_at,
                    "shares": found.shares[number].round(4).tolist() if measured[number] else None,
                    "chance": round(float(found.chances[number]), 4),
                }
                for number, pattern in enumerate(PATTERNS)
            ],
            "gradient": None
            if view.at_cls is None
            else [[float(f"{norm:.4g}") for norm in layer] for layer in view.at_cls.gradient_norms.tolist()],
        },
        separators=(",", ":"),
    ).replace("<", "\\u003c")


def _first_shown(view: AttentionView) -> tuple[int, int]:
    """The clearest head over all patterns except that of separators, which many heads show."""
    strengths = np.nan_to_num(view.patterns.strengths, nan=-1.0)
    strengths[SEPARATORS] = -1.0
    _, layer, head = np.unravel_index(int(strengths.argmax()), strengths.shape)
    return int(layer), int(head)
