"""Style and script of the attention page."""

from __future__ import annotations

STYLE = """
:root { --shade: 45%; }
@media (prefers-color-scheme: dark) { :root { --shade: 62%; } }
p.about { max-width: 110ch; }
p.caption.after { margin-top: 12px; }
.side-by-side { display: grid; grid-template-columns: minmax(0, 11fr) minmax(0, 9fr); gap: 16px; align-items: start; }
@media (max-width: 900px) { .side-by-side { grid-template-columns: minmax(0, 1fr); } }
.view { padding: 14px 16px; }
.view h3 { margin: 0 0 8px; font-size: 14px; font-weight: 600; }
.view h3 + p, .view p.note { margin: -4px 0 10px; color: var(--soft); font-size: 13px; }
.stay { position: sticky; top: 16px; }
.chips { display: flex; flex-wrap: wrap; gap: 5px; align-items: center; margin-bottom: 8px; font-size: 13px; }
.chips span { width: 44px; color: var(--soft); }
button { font: inherit; color: inherit; background: none; border: 1px solid var(--line); cursor: pointer; padding: 0; }
button:focus-visible, rect:focus-visible { outline: 2px solid var(--blue); outline-offset: 1px; }
.chips button { min-width: 28px; padding: 1px 7px; border-radius: 7px; font-variant-numeric: tabular-nums; }
.chips button.on { border-color: var(--c, var(--blue)); box-shadow: inset 0 0 0 1px var(--c, var(--blue)); }
.columns { display: block; width: 100%; max-width: 640px; height: auto; margin: 0 auto; touch-action: pan-y; }
.columns text { fill: var(--text); }
.columns .special text { fill: var(--soft); }
.columns text.value { fill: var(--soft); font-variant-numeric: tabular-nums; }
.columns .lines path { fill: none; stroke: var(--c); stroke-linecap: round; }
.columns .bar { fill: var(--c); opacity: .26; }
.columns .token.faint text { opacity: .32; }
.columns .token.pointed .back { fill: var(--line); }
.columns .back, .columns .hit { fill: transparent; }
.columns .hit { cursor: pointer; }
.columns .rail.a { fill: var(--blue); } .columns .rail.b { fill: var(--orange); }
.columns .name { fill: var(--soft); font-size: 12px; }
.thumbs { display: grid; gap: 3px; justify-content: start; align-items: center; color: var(--soft); font-size: 11px; }
.thumbs span { text-align: center; font-variant-numeric: tabular-nums; }
.thumbs button { border-radius: 5px; overflow: hidden; line-height: 0; }
.thumbs button.on { border-color: var(--blue); box-shadow: 0 0 0 1px var(--blue); }
.thumbs canvas { width: 100%; aspect-ratio: 1; }
.does { margin-top: 14px; padding-top: 12px; border-top: 1px solid var(--line); font-size: 13px; }
.does .share { display: grid; grid-template-columns: 15em 1fr 3.2em; gap: 8px; align-items: center; padding: 2px 0; }
.does .share span { line-height: 1.25; }
.does .share b { text-align: right; font-weight: 600; font-variant-numeric: tabular-nums; }
.does .track { position: relative; height: 9px; border-radius: 3px; background: var(--page); }
.does .track i { position: absolute; inset: 0 auto 0 0; border-radius: 3px; background: var(--blue); }
.does .track u { position: absolute; top: -2px; bottom: -2px; width: 2px; background: var(--orange); }
.patterns { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(350px, 100%), 1fr)); gap: 16px; }
.heat { display: grid; gap: 2px; justify-content: start; margin: 10px 0; color: var(--soft); font-size: 11px; }
.heat span { display: grid; place-items: center; font-variant-numeric: tabular-nums; }
.heat .cell { aspect-ratio: 1; border-radius: 4px; background: var(--page); overflow: hidden; }
.heat .cell { border: 1px solid var(--line); }
.heat .cell.best { box-shadow: 0 0 0 2px var(--orange); }
.heat .cell.on { outline: 2px solid var(--text); outline-offset: 1px; }
.heat .cell i, .depends td i { display: block; width: 100%; height: 100%; background: var(--blue); }
.pattern p { margin: 0; font-size: 13px; color: var(--soft); }
.pattern p b { color: var(--text); font-weight: 600; }
.depends { width: auto; border-collapse: separate; border-spacing: 2px; font-size: 11px; color: var(--soft); }
.depends th, .depends td { padding: 0; border: 0; font-weight: 400; line-height: 1; text-align: center;
  vertical-align: middle; }
.depends tbody th { padding-right: 8px; text-align: right; font-size: 12px; color: var(--text); white-space: nowrap; }
.depends tbody tr.special th { color: var(--soft); }
.depends td { width: 30px; height: 14px; border-radius: 3px; background: var(--page); overflow: hidden; }
.depends.roomy td { height: 20px; width: 42px; } .depends.roomy tbody th { font-size: 13px; }
details td, details th { white-space: nowrap; }
"""

SCRIPT = """
const data = JSON.parse(document.getElementById('attention').textContent);
const {tokens, segments, special, layers, heads, patterns, gradient} = data, n = tokens.length;
const weights = new Uint16Array(Uint8Array.from(atob(data.weights), c => c.charCodeAt(0)).buffer);
const weight = (layer, head, from, to) => weights[((layer * heads + head) * n + from) * n + to] / 65535;
const ROW = n <= 20 ? 24 : n <= 40 ? 19 : 16, FONT = n <= 20 ? 14 : n <= 40 ? 13 : 12.5, HEAD = 26, GAP = 10;
const LONGEST = 18, short = token => token.length > LONGEST ? token.slice(0, LONGEST - 1) + '…' : token;
// Room for the longest token and its value, and for the titles of the columns.
const LEFT = Math.max(90, 50 + FONT * 0.62 * Math.max(...tokens.map(token => short(token).length)));
const LEAST = 0.02, LEVELS = 12, RIGHT = LEFT + 188, WIDTH = RIGHT + LEFT;
const centers = tokens.map((_, i) => HEAD + (i + 0.5) * ROW + segments[i] * GAP);
const html = (tag, attributes = {}, ...content) => {
  const made = Object.assign(document.createElement(tag), attributes);
  made.append(...content);
  return made;
};
const drawn = (tag, attributes = {}, ...content) => {
  const made = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [key, value] of Object.entries(attributes)) {
    // The page's policy forbids style attributes, but its own script may set styles.
    if (key === 'style') made.style.setProperty(...value);
    else made.setAttribute(key, value);
  }
  made.append(...content);
  return made;
};
const percent = share => share >= 0.0995 ? (100 * share).toFixed(0) + '%' : (100 * share).toFixed(1) + '%';
const hue = head => `hsl(${Math.round(head * 360 / heads)} 72% var(--shade))`;

// Two columns of tokens, with lines from the attending tokens (left) to the attended ones (right). `series` returns
// [{colour, weight(from, to)}]; pointing at a token shows only its lines, and values formatted by `say`.
function columns(svg, names, series, say) {
  svg.setAttribute('viewBox', `0 0 ${WIDTH} ${centers[n - 1] + ROW / 2 + 6}`);
  const lines = drawn('g', {class: 'lines'});
  svg.append(lines);
  let pointed = null, pinned = false;
  const sides = names.map((name, side) => {
    const edge = side ? RIGHT : LEFT, anchor = side ? 'start' : 'end', out = side ? 1 : -1;
    svg.append(drawn('text', {class: 'name', x: edge, y: 12, 'text-anchor': anchor}, name));
    for (const segment of new Set(segments)) {
      const first = segments.indexOf(segment), last = segments.lastIndexOf(segment), y = centers[first] - ROW / 2 + 2;
      svg.append(drawn('rect', {class: 'rail ' + 'ab'[segment], x: side ? edge - 5 : edge + 2, y, width: 3, rx: 1.5,
        height: centers[last] + ROW / 2 - 2 - y}));
    }
    return tokens.map((token, i) => {
      const y = centers[i] - ROW / 2, x = side ? edge : 0, box = {y, x, width: LEFT, height: ROW};
      const bar = drawn('rect', {class: 'bar', y: y + 1, height: ROW - 2, width: 0, rx: 3});
      const value = drawn('text', {class: 'value', x: side ? WIDTH - 4 : 4, y: centers[i] + FONT * 0.35,
        'text-anchor': side ? 'end' : 'start', 'font-size': FONT - 1});
      const text = drawn('text', {x: edge + 6 * out, y: centers[i] + FONT * 0.35, 'text-anchor': anchor,
        'font-size': FONT}, short(token));
      const hit = drawn('rect', {class: 'hit', ...box, tabindex: 0}, drawn('title', {}, token));
      const group = drawn('g', {class: 'token' + (special[i] ? ' special' : ''), 'data-side': side, 'data-token': i},
        drawn('rect', {class: 'back', ...box, rx: 4}), bar, text, value, hit);
      const here = other => other && other.side === side && other.i === i;
      const point = () => { if (!pinned) { pointed = {side, i}; draw(); } };
      hit.addEventListener('pointerenter', point);
      hit.addEventListener('focus', point);
      hit.addEventListener('click', () => { pinned = !(pinned && here(pointed)); pointed = {side, i}; draw(); });
      svg.append(group);
      return {group, bar, value, out, edge, here};
    });
  });
  const leave = () => { if (!pinned) { pointed = null; draw(); } };
  svg.addEventListener('pointerleave', leave);
  svg.addEventListener('focusout', leave);

  function curve(from, to) {
    const middle = (LEFT + RIGHT) / 2;
    const x0 = LEFT + 7, x1 = RIGHT - 7;
    return `M${x0} ${centers[from]}C${middle} ${centers[from]} ${middle} ${centers[to]} ${x1} ${centers[to]}`;
  }
  function drawLines(shown) {
    const paths = [];
    for (const one of shown) {
      const levels = Array.from({length: LEVELS + 1}, () => []);
      for (let from = 0; from < n; from++) for (let to = 0; to < n; to++) {
        if (pointed && (pointed.side ? to : from) !== pointed.i) continue;
        const w = one.weight(from, to);
        if (w >= LEAST) levels[Math.ceil(Math.min(w, 1) * LEVELS)].push(curve(from, to));
      }
      levels.forEach((curves, level) => {
        if (!curves.length) return;
        const share = level / LEVELS;
        paths.push(drawn('path', {d: curves.join(''), style: ['--c', one.colour],
          'stroke-opacity': (0.06 + 0.9 * share).toFixed(2), 'stroke-width': (0.8 + 1.7 * share).toFixed(2)}));
      });
    }
    lines.replaceChildren(...paths);
  }
  function drawValues(shown) {
    sides.forEach((side, number) => side.forEach((token, i) => {
      const other = pointed && pointed.side !== number;
      const of = other ? shown.map(s => number ? s.weight(pointed.i, i) : s.weight(i, pointed.i)) : [0];
      const mean = of.reduce((a, b) => a + b, 0) / of.length, length = Math.min(mean, 1) * (LEFT - 8);
      token.bar.setAttribute('width', length.toFixed(1));
      token.bar.setAttribute('x', token.out > 0 ? token.edge : token.edge - length);
      token.bar.style.setProperty('--c', shown.length === 1 ? shown[0].colour : 'var(--blue)');
      token.value.textContent = other && mean >= 0.005 ? say(mean, i) : '';
      token.group.classList.toggle('pointed', Boolean(token.here(pointed)));
      token.group.classList.toggle('faint', Boolean(pointed && (other ? mean < LEAST : !token.here(pointed))));
    }));
  }
  function draw() { const shown = series(); drawLines(shown); drawValues(shown); }
  return draw;
}

// The heads to show, chosen by chips and by the thumbnails of all heads.
const state = {layer: data.start[0], heads: new Set([data.start[1]])};
const seriesOf = head =>
  ({colour: state.heads.size === 1 ? 'var(--blue)' : hue(head), weight: (i, j) => weight(state.layer, head, i, j)});
const drawHeads = columns(document.getElementById('heads'), ['attends', 'attended to'],
  () => [...state.heads].map(seriesOf), percent);
const chips = (name, labels, onclick) => {
  const made = labels.map((textContent, i) =>
    html('button', {textContent, type: 'button', onclick: event => onclick(i, event)}));
  document.getElementById(name).append(...made);
  return made;
};
const numbers = count => Array.from({length: count}, (_, i) => i + 1);
const layerChips = chips('layer-chips', numbers(layers), layer => choose(layer, state.heads));
const headChips = chips('head-chips', [...numbers(heads), 'all'], (head, event) => {
  const all = new Set(numbers(heads).map(h => h - 1)), more = new Set(state.heads);
  if (!more.delete(head)) more.add(head);
  choose(state.layer, head === heads ? all : event.shiftKey && more.size ? more : new Set([head]));
});
const thumbs = [];
function thumb(layer, head) {
  const canvas = html('canvas', {width: 120, height: 120});
  const button = html('button', {type: 'button', title: `layer ${layer + 1}, head ${head + 1}`,
    onclick: () => choose(layer, new Set([head]))}, canvas);
  thumbs.push({layer, head, button, canvas});
  return button;
}
const overview = document.getElementById('overview');
overview.style.gridTemplateColumns = `16px repeat(${heads}, minmax(0, 84px))`;
overview.append('', ...[html('span'), ...numbers(heads).map(h => html('span', {textContent: h}))]);
for (let layer = 0; layer < layers; layer++) {
  overview.append(html('span', {textContent: layer + 1}), ...numbers(heads).map(head => thumb(layer, head - 1)));
}
function drawThumbs() {
  const colour = getComputedStyle(document.documentElement).getPropertyValue('--blue');
  for (const {layer, head, canvas} of thumbs) {
    const pen = canvas.getContext('2d'), y = i => 8 + (i + 0.5) / n * 104;
    pen.clearRect(0, 0, 120, 120);
    pen.strokeStyle = colour;
    pen.lineWidth = n > 32 ? 1.6 : 2.4;
    for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) {
      const w = weight(layer, head, i, j);
      if (w < 0.04) continue;
      pen.globalAlpha = Math.min(1, w * (n > 32 ? 0.8 : 1));
      pen.beginPath(); pen.moveTo(8, y(i)); pen.lineTo(112, y(j)); pen.stroke();
    }
  }
}
function choose(layer, chosen) {
  state.layer = layer; state.heads = chosen;
  const only = chosen.size === 1 ? [...chosen][0] : null;
  layerChips.forEach((chip, i) => chip.classList.toggle('on', i === layer));
  headChips.forEach((chip, i) => {
    chip.classList.toggle('on', i === heads ? chosen.size === heads : chosen.has(i));
    chip.style.setProperty('--c', only === null && i < heads ? hue(i) : 'var(--blue)');
  });
  thumbs.forEach(t => t.button.classList.toggle('on', t.layer === layer && chosen.has(t.head)));
  for (const cell of document.querySelectorAll('.cell')) {
    cell.classList.toggle('on', Number(cell.dataset.layer) === layer && chosen.has(Number(cell.dataset.head)));
  }
  const names = [...chosen].sort((a, b) => a - b).map(h => h + 1).join(', ');
  document.getElementById('chosen').textContent = `Layer ${layer + 1}, ` +
    (only !== null ? `head ${names}` : chosen.size === heads ? 'all heads' : `heads ${names}`);
  document.getElementById('about-chosen').textContent = only !== null
    ? 'Share of attention by pattern, over many sentences; the orange mark is uniform attention.'
    : 'Each head has its colour; percentages are means over the heads shown. Choose one head for its patterns.';
  document.getElementById('does').replaceChildren(...(only === null ? [] : patterns.map(pattern => {
    const share = pattern.shares && pattern.shares[layer][only], track = html('div', {className: 'track'});
    if (pattern.shares) {
      track.append(html('i'), html('u'));
      track.firstChild.style.width = 100 * share + '%';
      track.lastChild.style.left = 100 * pattern.chance + '%';
    }
    return html('div', {className: 'share', title: pattern.looksAt}, html('span', {textContent: pattern.name}), track,
      html('b', {textContent: pattern.shares ? percent(share) : '–'}));
  })));
  drawHeads();
}
for (const cell of document.querySelectorAll('.cell')) {
  cell.addEventListener('click', () => {
    choose(Number(cell.dataset.layer), new Set([Number(cell.dataset.head)]));
    document.getElementById('heads').scrollIntoView({block: 'nearest', behavior: 'smooth'});
  });
}
choose(state.layer, state.heads);
drawThumbs();
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', drawThumbs);

// The gradient of the loss at [CLS]: lines from [CLS] to the tokens of one layer.
if (gradient) {
  let layer = Math.min(1, layers);
  const largest = norms => Math.max(...norms.slice(1)) || norms[0];  // without [CLS], which would dwarf the others
  const drawGradient = columns(document.getElementById('gradient'), ['loss of [CLS]', 'depends on'], () => [{
    colour: 'var(--violet)',
    weight: (i, j) => i === 0 ? gradient[layer][j] / largest(gradient[layer]) : 0,
  }], mean => (mean * largest(gradient[layer])).toPrecision(2));
  const made = chips('gradient-chips', ['embeddings', ...numbers(layers)], chosen => pick(chosen));
  const pick = chosen => {
    layer = chosen;
    made.forEach((chip, i) => chip.classList.toggle('on', i === layer));
    drawGradient();
  };
  pick(0);
}
"""
