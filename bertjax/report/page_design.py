"""The style of all pages, and the script that makes line charts interactive."""

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --line: #e3e6ea; --text: #1b2330; --soft: #5b6577;
  --blue: #2563eb; --orange: #e8590c; --green: #12945a; --violet: #8b5cf6; --grey: #9aa4b2; --good: #0b7a48;
  --bad: #b93815; --mark: #fff1c9; --mark-text: #7a4d00;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #0f1318; --card: #171c23; --line: #2a323d; --text: #e6eaf0; --soft: #93a0b2;
    --blue: #6ea0ff; --orange: #ff9457; --green: #4cc38a; --violet: #b197fc; --grey: #6b7686; --good: #57d39b;
    --bad: #ff9457; --mark: #4a3a10; --mark-text: #ffdf8a;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--text);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
main { max-width: 1180px; margin: 0 auto; padding: 40px 24px 64px; }
h1 { margin: 0; font-size: 28px; line-height: 1.25; letter-spacing: -.015em; overflow-wrap: anywhere; }
h2 { margin: 40px 0 12px; font-size: 17px; }
p.about { margin: 2px 0 0; color: var(--soft); overflow-wrap: anywhere; }
p.verdict { margin: 18px 0 0; font-size: 17px; max-width: 76ch; overflow-wrap: anywhere; }
.bad { color: var(--bad); }
p.verdict + p.caption { margin-top: 12px; }
p.caption { margin: -6px 0 12px; max-width: 96ch; color: var(--soft); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 12px; }
.scroll { overflow-x: auto; }
dl.terms { display: grid; grid-template-columns: max-content 1fr; gap: 2px 14px; margin: 14px 0 0; font-size: 13px; }
dl.terms { color: var(--soft); max-width: 110ch; }
dl.terms dt { font-weight: 600; }
dl.terms dd { margin: 0; }
table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 10px 18px; text-align: left; vertical-align: top; border-top: 1px solid var(--line); }
thead th, tbody:first-child tr:first-child > * { border-top: 0; }
thead th { color: var(--soft); font-size: 13px; font-weight: 500; line-height: 1.3; vertical-align: bottom; }
tbody th { font-weight: 500; }
th, td { overflow-wrap: anywhere; }
th:first-child, td:first-child { min-width: 9ch; }
tbody td:first-child { white-space: pre-wrap; }
td.number, th.number { text-align: right; white-space: nowrap; overflow-wrap: normal; }
td small { margin-right: 12px; color: var(--soft); }
td b { font-weight: 650; }
.answer { display: inline-block; min-width: 13ch; }
.better { color: var(--good); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 14px; margin-top: 14px; }
.tile { padding: 14px 18px; }
.tile span { display: block; color: var(--soft); font-size: 13px; }
.tile b { font-size: 20px; font-weight: 650; letter-spacing: -.01em; white-space: nowrap; }
.tile b { font-variant-numeric: tabular-nums; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(340px, 100%), 1fr)); gap: 16px; }
.charts { margin-top: 14px; }
.charts + .card { margin-top: 14px; }
/* 2, 4 or 8 charts fill rows of two, and would leave a hole in rows of three. */
@media (min-width: 1000px) {
  .charts:has(> :nth-child(2):last-child, > :nth-child(4):last-child, > :nth-child(8):last-child) {
    grid-template-columns: repeat(2, 1fr);
  }
}
/* Plots without legends end at the same height, even if the caption of one has more lines. */
.charts:not(:has(.legend > *)) > .chart { display: flex; flex-direction: column; }
.charts:not(:has(.legend > *)) > .chart > svg { margin-top: auto; }
.chart { position: relative; margin: 0; padding: 14px 14px 12px; container-type: inline-size; }
.chart figcaption { font-weight: 600; margin-bottom: 8px; line-height: 1.35; }
.chart figcaption small { display: block; color: var(--soft); font-size: 13px; font-weight: 400; }
.chart svg { display: block; width: 100%; height: auto; touch-action: pan-y; border-radius: 4px; }
.chart svg:focus-visible { outline: 2px solid var(--blue); outline-offset: 2px; }
.chart svg svg { overflow: hidden; }
.chart text { fill: var(--soft); font-size: 13px; font-variant-numeric: tabular-nums; }
@container (min-width: 450px) { .chart text { font-size: 11px; } }
@container (min-width: 580px) { .chart text { font-size: 9.5px; } }
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
.chart .shade { fill: var(--c); stroke: var(--line); }
.chart text.over { paint-order: stroke; stroke: var(--card); stroke-width: 6px; }
.chart text.strong { fill: var(--text); }
.chart .rest { fill: var(--line); }
.chart .hit { fill: transparent; outline: none; }
.chart .hit:hover, .chart .hit:focus { fill: var(--text); fill-opacity: .06; }
.chart .tip { visibility: hidden; pointer-events: none; }
.chart .hit:hover + .tip, .chart .hit:focus-visible + .tip { visibility: visible; }
.chart .tip rect { fill: var(--text); }
.chart .tip text { fill: var(--card); font-size: 13px; }
.key i.level { background: repeating-linear-gradient(90deg, var(--grey) 0 4px, transparent 4px 7px); }
.readout {
  position: absolute; top: 44px; z-index: 1; padding: 7px 11px; pointer-events: none; white-space: nowrap;
  font-size: 13px;
  background: var(--card); border: 1px solid var(--line); border-radius: 8px; box-shadow: 0 4px 16px #0002;
  font-variant-numeric: tabular-nums;
}
.readout i { display: inline-block; width: 8px; height: 8px; border-radius: 50%; margin-right: 6px; }
.readout b { font-weight: 600; }
mark { background: var(--mark); color: var(--mark-text); border-radius: 4px; padding: 1px 5px; }
.guess { display: inline-flex; gap: 6px; margin: 0 6px 6px 0; padding: 1px 9px; border: 1px solid var(--line);
  border-radius: 14px; }
.guess small { flex: none; margin: 0; color: var(--soft); line-height: 23px; }
.guess.right { border-color: var(--good); color: var(--good); font-weight: 600; }
details { margin-top: 14px; }
summary { padding: 13px 18px; cursor: pointer; font-weight: 600; }
details table { border-top: 1px solid var(--line); font-size: 14px; }
details th, details td { padding: 5px 18px; }
@media (max-width: 1000px) { th, td { padding: 9px 8px; } }
@media (max-width: 640px) {
  main { padding: 24px 14px 48px; }
  h1 { font-size: 23px; }
  th, td, details th, details td { padding: 6px 14px; }
  table.rows thead { display: none; }
  table.rows tr { display: block; padding: 9px 0; border-top: 1px solid var(--line); }
  table.rows tr:first-child { border-top: 0; }
  table.rows th, table.rows td { display: flex; justify-content: space-between; gap: 4px 16px; flex-wrap: wrap;
    padding: 2px 14px; border: 0; }
  table.rows tr > :first-child { min-width: 0; font-weight: 600; white-space: normal; }
  table.rows th, table.rows td { overflow-wrap: anywhere; }
  table.rows td.number { text-align: left; white-space: normal; }
  table.rows td:not(:first-child):empty { display: none; }
  table.rows [data-name]::before { content: attr(data-name); color: var(--soft); font-weight: 400; }
  details tr { display: block; padding: 5px 0; }
  details th, details td { display: block; padding: 0 14px; border: 0; }
}
code, .mono { font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; font-size: 13px; }
details th, details td { overflow-wrap: anywhere; }
@media print { body { background: none; } .card { break-inside: avoid; } }
"""

SCRIPT = """
for (const chart of document.querySelectorAll('.chart:has(.readout)')) {
  const {left, right, width, x, form, series} = JSON.parse(chart.querySelector('script').textContent);
  const [svg, cursor, box] = ['svg', '.cursor', '.readout'].map(what => chart.querySelector(what));
  const text = value => value === null ? 'not finite' : form === 'percent' ? (100 * value).toFixed(1) + '%'
    : form === 'count' ? Math.round(value).toLocaleString('en') : value.toPrecision(4);
  const nearest = (points, step) => points.reduce((a, b) => Math.abs(b[0] - step) < Math.abs(a[0] - step) ? b : a);
  const element = (tag, content) => Object.assign(document.createElement(tag), {textContent: content});
  const steps = [...new Set(series.flatMap(one => one.points.map(point => point[0])))].sort((a, b) => a - b);
  let shown = null;
  function show(step) {
    shown = nearest(steps.map(one => [one]), step)[0];
    const px = left + (shown - x[0]) / (x[1] - x[0]) * (right - left);
    cursor.setAttribute('x1', px); cursor.setAttribute('x2', px); cursor.setAttribute('visibility', 'visible');
    box.replaceChildren(element('b', 'step ' + shown.toLocaleString('en')));
    for (const one of series) {
      const row = element('div', ''), dot = element('i', ''), [at, value] = nearest(one.points, shown);
      dot.className = one.colour;
      row.append(dot, one.label + '  ', element('b', text(value)));
      if (at !== shown) row.append(' at ' + at.toLocaleString('en'));
      box.append(row);
    }
    box.hidden = false;
    const frame = svg.getBoundingClientRect(), outer = chart.getBoundingClientRect();
    const middle = frame.left - outer.left + px / width * frame.width;
    const wanted = px > (left + right) / 2 ? middle - box.offsetWidth - 10 : middle + 10;
    box.style.left = Math.max(2, Math.min(wanted, outer.width - box.offsetWidth - 6)) + 'px';
    box.style.top = frame.top - outer.top + 8 + 'px';
  }
  function hide() { box.hidden = true; shown = null; cursor.setAttribute('visibility', 'hidden'); }
  function point(event) {
    const frame = svg.getBoundingClientRect(), at = (event.clientX - frame.left) / frame.width * width;
    show(x[0] + (Math.min(Math.max(at, left), right) - left) / (right - left) * (x[1] - x[0]));
  }
  svg.tabIndex = 0;
  for (const what of ['pointermove', 'pointerdown']) svg.addEventListener(what, point);
  svg.addEventListener('pointerleave', event => { if (event.pointerType === 'mouse') hide(); });
  svg.addEventListener('blur', hide);
  svg.addEventListener('keydown', event => {
    const last = steps.length - 1, at = steps.indexOf(shown), far = event.shiftKey ? Math.ceil(last / 20) : 1;
    const to = {ArrowLeft: at < 0 ? last : at - far, ArrowRight: at < 0 ? 0 : at + far, Home: 0, End: last}[event.key];
    if (event.key === 'Escape') hide();
    if (to === undefined) return;
    event.preventDefault();
    show(steps[Math.min(Math.max(to, 0), last)]);
  });
}
"""
