"""The frame of every page, its tables, and the script that shows a chart's values under the pointer."""

from __future__ import annotations

import html
from collections.abc import Collection, Iterable
from dataclasses import dataclass

_STYLE = """
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --line: #e3e6ea; --text: #1b2330; --soft: #667085;
  --blue: #2563eb; --orange: #e8590c; --green: #12945a; --violet: #8b5cf6; --grey: #9aa4b2; --good: #0f8a52;
  --mark: #fff1c9; --mark-text: #7a4d00;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #0f1318; --card: #171c23; --line: #2a323d; --text: #e6eaf0; --soft: #93a0b2;
    --blue: #6ea0ff; --orange: #ff9457; --green: #4cc38a; --violet: #b197fc; --grey: #6b7686; --good: #57d39b;
    --mark: #4a3a10; --mark-text: #ffdf8a;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--text);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
main { max-width: 1180px; margin: 0 auto; padding: 40px 24px 64px; }
h1 { margin: 0; font-size: 28px; letter-spacing: -.015em; }
h2 { margin: 40px 0 12px; font-size: 17px; }
p.about { margin: 2px 0 0; color: var(--soft); }
p.verdict { margin: 18px 0 0; font-size: 17px; max-width: 76ch; }
p.caption { margin: -6px 0 12px; color: var(--soft); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 12px; }
.scroll { overflow-x: auto; }
table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 10px 18px; text-align: left; vertical-align: top; border-top: 1px solid var(--line); }
thead th, tbody:first-child tr:first-child > * { border-top: 0; }
thead th { color: var(--soft); font-size: 13px; font-weight: 500; }
tbody th { font-weight: 500; }
td.number, th.number { text-align: right; white-space: nowrap; }
td small { margin-right: 12px; color: var(--soft); }
td.main { font-weight: 650; }
.better { color: var(--good); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 14px; margin-top: 14px; }
.tile { padding: 14px 18px; }
.tile span { display: block; color: var(--soft); font-size: 13px; }
.tile b { font-size: 22px; font-weight: 650; letter-spacing: -.01em; font-variant-numeric: tabular-nums; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(440px, 100%), 1fr)); gap: 16px; }
.chart { position: relative; margin: 0; padding: 14px 16px 12px; }
.chart figcaption { font-weight: 600; margin-bottom: 6px; }
.chart svg { display: block; width: 100%; height: auto; }
.chart svg svg { overflow: hidden; }
.chart text { fill: var(--soft); font-size: 11.5px; font-variant-numeric: tabular-nums; }
.chart .grid { stroke: var(--line); }
.chart .level { stroke: var(--grey); stroke-width: 1.5; stroke-dasharray: 5 4; }
.chart .cursor { stroke: var(--soft); stroke-width: 1; }
.chart path { fill: none; stroke: var(--c); stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.chart path.noise { stroke-width: 1; opacity: .32; }
.chart path.area { fill: var(--c); stroke: none; opacity: .82; }
.chart circle { fill: var(--card); stroke: var(--c); stroke-width: 1.8; }
.blue { --c: var(--blue); } .orange { --c: var(--orange); } .green { --c: var(--green); }
.violet { --c: var(--violet); } .grey { --c: var(--grey); }
.legend { display: flex; flex-wrap: wrap; gap: 2px 16px; margin-top: 4px; color: var(--soft); font-size: 13px; }
.key i { display: inline-block; width: 14px; height: 3px; border-radius: 2px; margin-right: 6px; vertical-align: 4px; }
.key i, .readout i { background: var(--c); }
.key i.level { background: repeating-linear-gradient(90deg, var(--grey) 0 4px, transparent 4px 7px); }
.readout {
  position: absolute; top: 44px; padding: 7px 11px; pointer-events: none; white-space: nowrap; font-size: 13px;
  background: var(--card); border: 1px solid var(--line); border-radius: 8px; box-shadow: 0 4px 16px #0002;
  font-variant-numeric: tabular-nums;
}
.readout i { display: inline-block; width: 8px; height: 8px; border-radius: 50%; margin-right: 6px; }
.readout b { font-weight: 600; }
mark { background: var(--mark); color: var(--mark-text); border-radius: 4px; padding: 1px 5px; }
.guess { display: inline-flex; gap: 6px; margin: 0 6px 6px 0; padding: 1px 9px; border: 1px solid var(--line);
  border-radius: 999px; white-space: nowrap; }
.guess small { margin: 0; color: var(--soft); line-height: 23px; }
.guess.right { border-color: var(--good); color: var(--good); font-weight: 600; }
details { margin-top: 14px; }
summary { padding: 13px 18px; cursor: pointer; font-weight: 600; }
details table { border-top: 1px solid var(--line); font-size: 14px; }
details th, details td { padding: 5px 18px; }
code, .mono { font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; font-size: 13px; }
details td { overflow-wrap: anywhere; }
@media print { body { background: none; } .card { break-inside: avoid; } }
"""

_SCRIPT = """
for (const chart of document.querySelectorAll('.chart')) {
  const {left, right, width, x, form, series} = JSON.parse(chart.querySelector('script').textContent);
  const [svg, cursor, box] = ['svg', '.cursor', '.readout'].map(what => chart.querySelector(what));
  const text = value => value === null ? 'not finite' : form === 'percent' ? (100 * value).toFixed(1) + '%'
    : form === 'count' ? Math.round(value).toLocaleString('en') : value.toPrecision(4);
  const nearest = (points, step) => points.reduce((a, b) => Math.abs(b[0] - step) < Math.abs(a[0] - step) ? b : a);
  const element = (tag, content) => Object.assign(document.createElement(tag), {textContent: content});
  svg.addEventListener('pointermove', event => {
    const bounds = svg.getBoundingClientRect(), at = (event.clientX - bounds.left) / bounds.width * width;
    const step = x[0] + (Math.min(Math.max(at, left), right) - left) / (right - left) * (x[1] - x[0]);
    const closest = series.map(s => nearest(s.points, step));
    const shown = closest.reduce((a, b) => Math.abs(b[0] - step) < Math.abs(a[0] - step) ? b : a)[0];
    const px = left + (shown - x[0]) / (x[1] - x[0]) * (right - left);
    cursor.setAttribute('x1', px); cursor.setAttribute('x2', px); cursor.setAttribute('visibility', 'visible');
    box.replaceChildren(element('b', 'step ' + shown.toLocaleString('en')));
    series.forEach((s, i) => {
      const row = element('div', ''), dot = element('i', '');
      dot.className = s.colour;
      row.append(dot, s.label + '  ', element('b', text(closest[i][1])));
      box.append(row);
    });
    box.hidden = false;
    const middle = bounds.left - chart.getBoundingClientRect().left + px / width * bounds.width;
    box.style.left = (px > (left + right) / 2 ? middle - box.offsetWidth - 10 : middle + 10) + 'px';
  });
  svg.addEventListener('pointerleave', () => { box.hidden = true; cursor.setAttribute('visibility', 'hidden'); });
}
"""


def render_page(
    title: str, parts: Iterable[str], *, style: str = "", reads_charts: bool = False, script: str = ""
) -> str:
    """A page of HTML parts, without the empty ones; its policy forbids the network.

    `style` and `script` are CSS and JavaScript of its own.
    """
    scripts = [text for text in (_SCRIPT if reads_charts else "", script) if text]
    policy = "default-src 'none'; style-src 'unsafe-inline'" + ("; script-src 'unsafe-inline'" if scripts else "")
    run = "".join(f"<script>{text}</script>\n" for text in scripts)
    body = "\n".join(part for part in parts if part)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escaped(title)}</title>\n<style>{_STYLE}{style}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n{run}</body>\n</html>\n"
    )


def escaped(value: object) -> str:
    """A value as escaped HTML text."""
    return html.escape(str(value))


@dataclass(frozen=True)
class Table:
    """A title, a note about the figures, and rows under column names; the first column is text."""

    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def text_lines(table: Table, left: Collection[int] = (0,)) -> list[str]:
    """Column names and rows for a terminal; the columns `left` are aligned left, the others right."""
    rows = (table.columns, *table.rows)
    widths = [max(len(row[place]) for row in rows) for place in range(len(table.columns))]
    return [
        "  "
        + "  ".join(
            cell.ljust(width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def table_html(table: Table) -> str:
    """The table with its title and note, for `page.render_page`; all text is escaped."""
    kinds = ["", *(' class="number"' for _ in table.columns[1:])]
    heads = "".join(f"<th{kind}>{escaped(name)}</th>" for kind, name in zip(kinds, table.columns, strict=True))
    rows = "".join(
        "<tr>" + "".join(f"<td{kind}>{escaped(cell)}</td>" for kind, cell in zip(kinds, row, strict=True)) + "</tr>"
        for row in table.rows
    )
    return (
        f'<h2>{escaped(table.title)}</h2>\n<p class="caption">{escaped(table.note)}</p>\n'
        f'<div class="card scroll"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'
    )
