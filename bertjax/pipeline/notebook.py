"""Results in a notebook: a page inside the output cell."""

from __future__ import annotations

import html
from collections.abc import Sequence

from bertjax.finetune.task_report import curve_charts
from bertjax.report.page import Table, render_page, table_html
from bertjax.run.telemetry import METRICS_FILE, curves, read_metrics
from bertjax.storage.remote import AnyPath

_HEIGHT = 960  # pixels; longer pages scroll


def in_cell(page: str) -> str:
    """Wrap a self-contained HTML page as the output of a cell.

    A sandboxed iframe isolates its style and script from the notebook.
    """
    return (
        f'<iframe sandbox="allow-scripts" srcdoc="{html.escape(page)}" width="100%" height="{_HEIGHT}" '
        'style="border: 0" loading="lazy"></iframe>'
    )


def tables_and_curves(title: str, tables: Sequence[Table], run: AnyPath) -> str:
    """A page of tables, and below them the curves of a run: training losses, held-out figures, the learning rate."""
    series = curves(read_metrics(run / METRICS_FILE))
    parts = [
        *map(table_html, tables),
        f"<h2>Curves of {html.escape(str(run))}</h2>",
        f'<div class="charts">{"".join(curve_charts(series))}</div>',
    ]
    return render_page(title, parts, reads_charts=True)
