"""Search results as a self-contained HTML page."""

from __future__ import annotations

import re
from collections.abc import Sequence

from bertjax.report.page import escaped, render_page
from bertjax.search.rankings import Hits
from bertjax.search.records import Record, StoredDocuments

_LONGEST = 1200  # characters of a document
_QUERIES = 1000  # on a page
_STYLE = """
ol.hits { list-style: none; margin: 0; padding: 0; }
.hit-card { display: grid; grid-template-columns: 3ch 1fr; gap: 2px 12px; padding: 12px 18px; margin-top: 10px; }
.hit-card .rank { color: var(--soft); font-weight: 600; text-align: right; }
.hit-card p { margin: 2px 0 0; overflow-wrap: anywhere; }
.hit-card b { overflow-wrap: anywhere; }
.hit-card small { color: var(--soft); font-size: 13px; overflow-wrap: anywhere; }
"""


def render_results(about: str, queries: Sequence[Record], results: Sequence[Hits], documents: StoredDocuments) -> str:
    """Render the documents of each query, best first, and mark the words of the query in them.

    Only the beginnings of long documents and the first 1,000 queries are shown. All text is escaped.
    """
    title = queries[0].whole if len(queries) == 1 else f"Results of {len(queries):,} queries"
    parts = [f"<h1>{escaped(title)}</h1>", f'<p class="about">{escaped(about)}</p>']
    for query, hits in list(zip(queries, results, strict=True))[:_QUERIES]:
        if len(queries) > 1:
            parts.append(f"<h2>{escaped(query.whole)}</h2>")
        words = {word.casefold() for word in re.findall(r"\w+", query.whole)}
        cards = [
            _card(rank, float(score), documents[int(number)], words)
            for rank, (number, score) in enumerate(zip(*hits, strict=True), 1)
        ]
        parts.append(f'<ol class="hits">{"".join(cards)}</ol>' if cards else "<p>No document was found.</p>")
    if len(queries) > _QUERIES:
        parts.append(f'<p class="caption">The first {_QUERIES:,} of {len(queries):,} queries.</p>')
    return render_page(title, parts, style=_STYLE)


def _card(rank: int, score: float, record: Record, words: set[str]) -> str:
    title, text = record.lines()
    excerpt = text if len(text) <= _LONGEST else f"{text[:_LONGEST].rsplit(' ', 1)[0]} …"
    head = f"<b>{_mark_words(title, words)}</b> " if title else ""
    return (
        f'<li class="hit-card card"><span class="rank">{rank}</span><div>{head}'
        f"<small>{score:.4f}, {escaped(record.id)}</small><p>{_mark_words(excerpt, words)}</p></div></li>"
    )


def _mark_words(text: str, words: set[str]) -> str:
    """Escape text, and mark the words of the query."""
    pieces = re.split(r"(\w+)", text)
    return "".join(
        f"<mark>{escaped(piece)}</mark>" if number % 2 and piece.casefold() in words else escaped(piece)
        for number, piece in enumerate(pieces)
    )
