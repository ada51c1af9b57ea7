"""A page with a model's attention in one or two sentences, and the patterns of its heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bertjax.convert.sources import open_source
from bertjax.interpret.attention_page import EXAMPLE, AttentionView, render_attention, view_attention
from bertjax.interpret.attention_patterns import PATTERNS, SHOWN_FROM
from bertjax.interpret.sample_text import sample_text
from bertjax.pipeline.notebook import in_cell
from bertjax.storage.progress import ProgressLine


@dataclass(frozen=True, repr=False)
class Attention:
    """What the heads of a model attend to. A notebook shows the page."""

    view: AttentionView  # `view.attention` is float32 [layers, heads, tokens, tokens]

    @property
    def page(self) -> str:
        """A self-contained HTML page."""
        return render_attention(self.view)

    def __repr__(self) -> str:
        """Lines with the head that shows each pattern most clearly."""
        view, lines = self.view, [f"measured on {self.view.pairs:,} pairs of sentences: {self.view.sample}"]
        width = max(len(pattern.name) for pattern in PATTERNS)
        patterns = zip(PATTERNS, view.clearest, view.patterns.shares, view.patterns.strengths, strict=True)
        for number, (pattern, best, shares, strengths) in enumerate(patterns):
            if best is None:
                line = "not measured"
            elif strengths[best] < SHOWN_FROM:
                line = "no head shows it"
            else:
                line = f"layer {best[0] + 1}, head {best[1] + 1}: {shares[best]:.0%} of the attention"
                line += f" ({view.patterns.chances[number]:.0%} if uniform)"
            lines.append(f"  {pattern.name:{width}}  {line}")
        if view.at_cls is not None:
            lines.append(f"{view.at_cls.label} with probability {view.at_cls.probability:.1%}")
        return "\n".join([*lines, *view.missing])

    def _repr_html_(self) -> str:
        return in_cell(self.page)


def attention(source: str, sentences: Sequence[str] = (), text: str = "", sample: int = 200) -> Attention:
    """Compute the attention of one or two sentences, and measure patterns on `sample` sentences.

    Without sentences it shows an example. The sample is the file `text`, or else the run's held-out text, or else
    built-in sentences. Raises ValueError for more than two sentences or longer ones than the page has room for.
    """
    if len(sentences) > 2:
        raise ValueError(f"{len(sentences)} sentences: give one or two")
    if sample < 2:
        raise ValueError(f"--sample {sample}: patterns are measured on pairs of sentences; give 2 or more")
    model, _ = open_source(source)
    sampled = sample_text(model, text or None, ProgressLine())
    sentences = tuple(sentences) or EXAMPLE
    return Attention(view_attention(model, source.rstrip("/"), sentences, sampled, sample, ProgressLine()))
