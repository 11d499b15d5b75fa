"use strict";
// Draws what Python has worked out. Nothing is computed here but what is shown and where.

const C = JSON.parse(document.getElementById("content").textContent);
// Okabe and Ito's colours, lighter on a dark page; the dashes and marks tell methods apart without them.
const COLOURS = {
  light: ["#0072B2", "#D55E00", "#009E73", "#B8860B", "#CC79A7", "#56B4E9", "#000000"],
  dark: ["#5AB0F0", "#F58B4C", "#2FC79C", "#F0C04A", "#E5A3C8", "#A5DBFF", "#EDEDED"],
};
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
const STROKES = ["", "6 4", "2 3", "6 3 2 3", "10 4", "10 3 2 3"];
const MARKS = ["circle", "square", "diamond", "triangle-up", "x", "star", "pentagon", "triangle-down"];
const NARROW = matchMedia("(max-width: 46rem)");
const COARSE = matchMedia("(pointer: coarse)");
const state = { axis: null, setting: 0, hidden: new Set(), knob: "", way: 0, target: "both" };

const $ = (id) => document.getElementById(id);
const theme = () => document.documentElement.dataset.theme;
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const group = () => C.settings[state.setting];
const axis = () => C.axes.find((a) => a.key === state.axis);
const shown = () => group().ways.map((way, at) => ({ ...way, at })).filter((way) => !state.hidden.has(way.family));
const curves = () => shown().filter((way) => !state.knob || !way.knob || way.knob === state.knob);
const colour = (family) => COLOURS[theme()][family % COLOURS.light.length];
const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== false && value != null) made.setAttribute(name, value === true ? "" : value);
  made.append(...children.filter((child) => child != null));
  return made;
}

// --- numbers as they are read ---

function si(value, unit = "") {
  if (value == null) return "–";
  const size = Math.abs(value);
  const [scale, letter] = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""], [1e-3, "m"], [1e-6, "µ"], [1e-9, "n"]].find(([s]) => size >= s) || [1, ""];
  return `${(value / scale).toPrecision(3)} ${letter}${unit}`.trim();
}
const money = (value) => (axis().unit === "units" ? `${si(value)}` : si(value, axis().unit));
const percent = (share, digits = 1) => (share == null ? "–" : `${Math.min(Math.max(100 * share, 0), 100).toFixed(digits)} %`);
const points = (share) => `${share >= 0 ? "+" : "−"}${Math.min(Math.abs(100 * share), 100).toFixed(1)}`;
const apart = (share) => `${Math.abs(100 * share).toFixed(1)} points ${share >= 0 ? "ahead" : "behind"}`;
const took = (s) => (s < 100 ? `${s.toFixed(1)} s` : s < 6000 ? `${(s / 60).toFixed(0)} min` : `${(s / 3600).toFixed(1)} h`);
const times = (ratio) => (ratio >= 9.95 ? ratio.toFixed(0) : ratio.toFixed(2));

function between(interval, write) {
  const [, low, high, n] = interval;
  return low == null ? (n === 1 ? "one seed" : "") : `${write(low)} to ${write(high)}`;
}

// --- figures ---

function frame(extra = {}) {
  const grid = css("--rule");
  const line = { gridcolor: grid, zerolinecolor: grid, linecolor: grid, tickcolor: grid, automargin: true, title: { standoff: 8 } };
  const { xaxis = {}, yaxis = {}, ...rest } = extra;
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, height: 400,
    font: { color: css("--ink"), family: getComputedStyle(document.body).fontFamily, size: NARROW.matches ? 12 : 13 },
    margin: { l: 8, r: 12, t: 40, b: 8 }, dragmode: COARSE.matches ? false : "zoom", hovermode: "closest",
    hoverlabel: { bgcolor: css("--card"), bordercolor: css("--soft"), font: { color: css("--ink") }, align: "left" },
    xaxis: { ...line, ...xaxis }, yaxis: { ...line, ...yaxis }, ...rest,
  };
}

function draw(id, traces, layout, absent) {
  const box = $(id);
  if (absent) {
    if (box.data) Plotly.purge(box);
    box.replaceChildren(element("p", { class: "absent" }, absent));
    return;
  }
  if (!box.data) box.replaceChildren();
  Plotly.react(box, traces, layout, {
    responsive: true, displaylogo: false, displayModeBar: false, doubleClick: "reset", scrollZoom: false,
  });
  box.whole = ends(box).map((range) => [...range]);
  if (!box.querySelector(".zoom")) zooming(box);
}

/** Buttons and keys that zoom: for those without a mouse, and for fingers, which scroll the page. */
function zooming(box) {
  const bar = element("div", { class: "zoom" });
  const name = box.closest("section").querySelector("h2").textContent;
  for (const [sign, label, act] of [["+", "zoom in", () => zoom(box, 0.6)], ["−", "zoom out", () => zoom(box, 1 / 0.6)], ["⟲", "show all", () => reset(box)], ["⤓", "save as picture", () => save(box, name)]]) {
    const button = element("button", { type: "button", title: label, "aria-label": `${name}: ${label}` }, sign);
    button.addEventListener("click", act);
    bar.append(button);
  }
  box.append(bar);
  box.tabIndex = 0;
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", `${name}, figure. Plus and minus zoom, arrows move, 0 shows all.`);
  box.addEventListener("keydown", (event) => {
    if (event.target !== box) return;
    const moves = { ArrowLeft: [-0.15, 0], ArrowRight: [0.15, 0], ArrowUp: [0, 0.15], ArrowDown: [0, -0.15] };
    if (event.key === "+" || event.key === "=") zoom(box, 0.6);
    else if (event.key === "-") zoom(box, 1 / 0.6);
    else if (event.key === "0") reset(box);
    else if (moves[event.key]) move(box, ...moves[event.key]);
    else return;
    event.preventDefault();
  });
}
const ends = (box) => ["xaxis", "yaxis"].map((name) => box._fullLayout[name].range.map(Number));
function ranged(box, ranges) {
  Plotly.relayout(box, { "xaxis.range": ranges[0], "yaxis.range": ranges[1] });
}
const zoom = (box, by) => ranged(box, ends(box).map(([a, b]) => [(a + b) / 2 - ((b - a) / 2) * by, (a + b) / 2 + ((b - a) / 2) * by]));
const move = (box, x, y) => ranged(box, ends(box).map(([a, b], i) => [a + (b - a) * [x, y][i], b + (b - a) * [x, y][i]]));
const reset = (box) => ranged(box, box.whole);
const save = (box, name) => Plotly.downloadImage(box, { format: "png", scale: 2, filename: name.toLowerCase().replaceAll(" ", "-") });

/** A logarithmic axis, with as many numbers as there is room for. */
function money_axis(totals, wide) {
  const a = axis();
  const unit = a.unit === "units" ? "" : a.unit;
  const known = totals.filter((total) => total > 0);
  const decades = known.length ? Math.log10(Math.max(...known) / Math.min(...known)) : 1;
  const dtick = decades > (wide && !NARROW.matches ? 3.2 : 1.3) ? 1 : decades > 0.5 ? "D2" : undefined;
  return { type: "log", title: { text: `${a.label} (${a.source})`, standoff: 10 }, tickformat: "~s", ticksuffix: unit, exponentformat: "SI", dtick, minor: { showgrid: false } };
}
const accuracy_axis = { title: { text: "accuracy" }, tickformat: ".0%" };

function pareto() {
  const key = state.axis;
  const traces = [];
  const front = group().fronts[key].map((at) => group().ways[at]);
  if (front.length) {
    traces.push({
      x: front.map((w) => w.end[key].mean), y: front.map((w) => w.end.accuracy.mean), mode: "lines+markers", hoverinfo: "skip",
      line: { shape: "hv", color: css("--soft"), width: 1.5, dash: "dot" },
      marker: { symbol: "circle-open", size: 21, color: css("--soft"), line: { width: 1.5 } },
    });
  }
  group().families.forEach((name, family) => {
    const ways = shown().filter((w) => w.family === family && w.end[key] && w.end.accuracy).sort((a, b) => a.end[key].mean - b.end[key].mean);
    if (!ways.length) return;
    const error = (of) => ({
      type: "data", symmetric: false, thickness: 1, width: 3, color: colour(family),
      array: ways.map((w) => of(w).high - of(w).mean), arrayminus: ways.map((w) => of(w).mean - of(w).low),
    });
    traces.push({
      name, x: ways.map((w) => w.end[key].mean), y: ways.map((w) => w.end.accuracy.mean), mode: "lines+markers",
      line: { color: colour(family), dash: DASHES[family % DASHES.length], width: 2 },
      marker: { symbol: ways.map((w) => MARKS[family % MARKS.length] + (w.finished ? "" : "-open")), size: 10, color: colour(family), line: { width: 1.5, color: colour(family) } },
      error_x: error((w) => w.end[key]), error_y: error((w) => w.end.accuracy),
      text: ways.map((w) => hover(w, key)), hovertemplate: "%{text}<extra></extra>",
    });
  });
  draw("pareto", traces, frame({ height: NARROW.matches ? 380 : 480, xaxis: money_axis(shown().map((w) => w.end[key]?.mean), true), yaxis: accuracy_axis }),
    traces.length ? null : "No method is chosen that has this figure.");
}

function hover(way, key) {
  const lines = [`<b>${plain(way.name)}</b>`, `accuracy ${percent(way.end.accuracy.mean)} (${percent(way.end.accuracy.low)} to ${percent(way.end.accuracy.high)})`];
  for (const a of C.axes) {
    const total = way.end[a.key];
    if (!total) continue;
    const each = way.clients ? `; ${si(total.mean / way.clients, a.unit === "units" ? "" : a.unit)} a client-round` : "";
    lines.push(`${a.key === key ? "▸ " : ""}${si(total.mean, a.unit === "units" ? " units" : a.unit)} (${a.source})${each}`);
  }
  lines.push(`${way.end.accuracy.n} seed${way.end.accuracy.n > 1 ? "s" : ""}, ${way.finished ? way.rounds_asked : `${Math.min(...way.rounds_played)} of ${way.rounds_asked}`} rounds`);
  return lines.join("<br>");
}

function faded(hex, share) {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  return `rgba(${r},${g},${b},${share})`;
}

function banded(id, xs, layout, x_text) {
  const traces = [];
  for (const way of curves()) {
    const x = xs(way);
    if (!x || !x.length) continue;
    const { mean, low, high } = way.accuracy;
    const shade = colour(way.family);
    if (way.seeds.length > 1) {
      traces.push({ x: [...x, ...[...x].reverse()], y: [...high, ...[...low].reverse()], fill: "toself", fillcolor: faded(shade, 0.16), line: { width: 0 }, mode: "lines", hoverinfo: "skip" });
    }
    traces.push({
      name: way.name, x, y: mean, mode: x.length > 1 ? "lines" : "markers", line: { color: shade, dash: DASHES[way.family % DASHES.length], width: 2 },
      marker: { color: shade, symbol: MARKS[way.family % MARKS.length], size: 9 },
      text: mean.map((m, i) => `<b>${plain(way.name)}</b><br>round ${way.rounds[i]}: ${percent(m)} (${percent(low[i])} to ${percent(high[i])})${x_text(way, i)}`),
      hovertemplate: "%{text}<extra></extra>",
    });
  }
  draw(id, traces, frame({ ...layout, yaxis: accuracy_axis }), traces.length ? null : "No method is chosen that has this figure.");
}

function bits() {
  const ways = shown().filter((w) => w.bits);
  const names = ways.map((w) => label(w.name));
  const rows = ways.map((_, i) => i);
  const most = Math.max(...ways.map((w) => w.bits.index + w.bits.value + w.bits.rest));
  const parts = [["index", "index", 0], ["value", "value", 1], ["rest", "header, scales, buffers", 2]];
  const traces = parts.map(([key, name, at]) => ({
    type: "bar", orientation: "h", name, y: rows, x: ways.map((w) => w.bits[key]), marker: hatched(["#0072B2", "#9CCBEB", "#E3B5CF"][at], parts.findIndex((p) => p[0] === key)),
    text: ways.map((w) => (w.bits[key] >= 0.06 * most ? w.bits[key].toPrecision(3) : "")), textposition: "inside", insidetextanchor: key === "index" ? "start" : "middle", textangle: 0, insidetextfont: { color: key === "index" ? "#ffffff" : "#000000" },
    customdata: ways.map((w) => plain(w.name)), hovertemplate: `<b>%{customdata}</b><br>${name}: %{x:.3g} bits an entry<extra></extra>`,
  }));
  traces.push({
    mode: "markers", name: "entropy bound of the indices", y: rows, x: ways.map((w) => w.bits.bound), marker: { symbol: "diamond", size: 12, color: css("--ink"), line: { color: css("--paper"), width: 2 } },
    customdata: ways.map((w) => plain(w.name)), hovertemplate: "<b>%{customdata}</b><br>indices drawn at random: %{x:.3g} bits<extra></extra>",
  });
  draw("bits", traces, bars(names, "bits an entry", { range: [0, 1.03 * most] }), ways.length ? null : "These runs do not say what indices and values took: they are of an earlier version.");
}

/** A colour, and a pattern for those who do not see it. */
const hatched = (color, at) => ({ color, line: { color: css("--paper"), width: 1 }, pattern: { shape: ["", "/", ".", "x", "-", "\\", "+"][at % 7], fillmode: "overlay", fgcolor: css("--paper"), fgopacity: 0.55, solidity: 0.15, size: 7 } });

/** Rows of bars, named on the left; on a phone above each. */
function bars(names, title, extra = {}) {
  const narrow = NARROW.matches;
  const above = names.map((text, i) => ({ text, x: 0, y: i - 0.5, xanchor: "left", yanchor: "middle", showarrow: false, font: { size: 11 } }));
  return frame({
    barmode: "stack", bargap: narrow ? 0.55 : 0.35, height: (narrow ? 166 : 176) + (narrow ? 46 : 30) * names.length, showlegend: true, margin: { l: 8, r: 16, t: narrow ? 112 : 84, b: 8 },
    legend: { orientation: "h", x: 0, xanchor: "left", y: 1.0, yanchor: "bottom", traceorder: "normal" },
    annotations: narrow ? above : [],
    xaxis: { title: { text: title }, ...extra },
    yaxis: { range: [names.length - 0.5, narrow ? -0.8 : -0.5], tickvals: names.map((_, i) => i), ticktext: names, showticklabels: !narrow, zeroline: false, showgrid: false },
  });
}

/** A name as an axis has room for it. */
function label(name) {
  const room = NARROW.matches ? 52 : 46;
  return plain(name.length > room ? `${name.slice(0, room - 12)}…${name.slice(-11)}` : name);
}

function ledger() {
  const ways = shown().filter((w) => w.ledger);
  const lines = [...new Map(ways.flatMap((w) => w.ledger).map((line) => [`${line.phase} (${line.source})`, line])).keys()];
  const joules = (way, line) => way.ledger.find((l) => `${l.phase} (${l.source})` === line)?.joules;
  const known = lines.filter((line) => ways.some((w) => joules(w, line) != null));
  const unknown = lines.filter((line) => !known.includes(line));
  const names = ways.map((w) => label(w.name));
  const rows = ways.map((_, i) => i);
  $("ledger-lead").textContent = ways.length
    ? `What a run cost, all clients and all rounds, as the mean over seeds; each part says whether it was measured, coded from real bytes, or modelled. ${ways.length < shown().length ? "Ways without a ledger are left out. " : ""}${unknown.length ? `Not known, which is not zero: ${unknown.join(", ")}.` : ""}`
    : "";
  const shares = ways.filter((w) => w.sending != null).map((w) => `${percent(w.sending, w.sending < 0.01 ? 2 : 1)} with ${w.name}`);
  if (shares.length) $("ledger-lead").append(` Of all that, coded and modelled, the uplink is ${shares.join("; ")}: sending less cannot save more.`);
  const traces = known.map((line, at) => ({
    type: "bar", orientation: "h", name: plain(line), y: rows, x: ways.map((w) => joules(w, line) ?? null), marker: hatched(COLOURS[theme()][at % 7], at),
    customdata: ways.map((w) => [plain(w.name), si(joules(w, line), "J")]), hovertemplate: `<b>%{customdata[0]}</b><br>${plain(line)}: %{customdata[1]}<extra></extra>`,
  }));
  draw("ledger", traces, bars(names, "joules", { tickformat: "~s", ticksuffix: "J" }),
    known.length ? null : "Not measured or configured: these runs have no energy ledger. An experiment with a ledger names a device and a link.");
}

function layers() {
  const way = group().ways[state.way];
  const found = way.layers;
  $("never").textContent = found && found.never.length ? `Never sent: ${found.never.join(", ")}.` : "";
  if (!found) return draw("layers", [], {}, "These runs do not say what was sent of each layer.");
  const room = NARROW.matches ? 15 : 34;
  const cut = (name) => (name.length > room ? `…${name.slice(1 - room)}` : name);
  const log = (share) => (share ? Math.log10(share) : null);
  const ramp = theme() === "dark"
    ? [[0, "#22303f"], [0.35, "#1f5f8f"], [0.7, "#56B4E9"], [1, "#fdf3c4"]]
    : [[0, "#eaf3fa"], [0.35, "#8fc3e6"], [0.7, "#1b75b5"], [1, "#08254a"]];
  const y = found.names.map((name, i) => i);
  const text = found.names.map((name, i) => found.density[i].map((share, j) => {
    const [a, b] = found.rounds[j];
    return `<b>${plain(name)}</b> (${found.sizes[i].toLocaleString("en")} entries)<br>round${a === b ? ` ${a}` : `s ${a} to ${b}`}: ${share ? percent(share, share < 0.01 ? 3 : 1) : "nothing"} sent`;
  }));
  draw("layers", [{
    type: "heatmap", x: found.rounds.map(([, b]) => b), y, z: found.density.map((row) => row.map(log)), text, hovertemplate: "%{text}<extra></extra>",
    zmin: -4, zmax: 0, colorscale: ramp, xgap: 1, ygap: 1, hoverongaps: true,
    colorbar: { title: { text: "sent", side: "right" }, tickvals: [-4, -3, -2, -1, 0], ticktext: ["≤ 0.01 %", "0.1 %", "1 %", "10 %", "100 %"], thickness: 12, outlinewidth: 0, len: 1 },
  }], frame({
    height: Math.max(280, 120 + (found.names.length > 24 ? 15 : 24) * found.names.length), xaxis: { title: { text: "round" }, showgrid: false, zeroline: false },
    yaxis: { autorange: "reversed", tickvals: y, ticktext: found.names.map((n) => plain(cut(n))), showgrid: false, zeroline: false, tickfont: { size: found.names.length > 24 ? 10 : 12 } },
  }));
}

function starved() {
  const ways = curves().filter((w) => w.layers);
  draw("starved", ways.map((way) => ({
    x: way.layers.rounds.map(([, b]) => b), y: way.layers.starved, mode: way.layers.rounds.length > 1 ? "lines" : "markers",
    line: { color: colour(way.family), dash: DASHES[way.family % DASHES.length], width: 2, shape: "hvh" }, marker: { color: colour(way.family) },
    text: way.layers.starved.map((n) => `<b>${plain(way.name)}</b><br>${n} of ${way.layers.names.length} layers`), hovertemplate: "%{text}, round %{x}<extra></extra>",
  })), frame({ height: 260, xaxis: { title: { text: "round" } }, yaxis: { title: { text: "layers" }, rangemode: "tozero" } }),
  ways.length ? null : "These runs do not say what was sent of each layer.");
}

function data() {
  const { counts, clients, seed } = group().data;
  if (!counts) return draw("data", [], {}, clients ? `${clients.toLocaleString("en")} clients; who has which classes is not recorded in these runs.` : "Not recorded in these runs.");
  const classes = counts[0].length;
  const sizes = counts.map((row) => row.reduce((a, b) => a + b, 0));
  $("data-lead").textContent = `Training examples of each class on each of ${counts.length} clients, drawn with seed ${seed}; clients have ${Math.min(...sizes).toLocaleString("en")} to ${Math.max(...sizes).toLocaleString("en")}.`;
  const ramp = theme() === "dark" ? [[0, "#1d2126"], [0.5, "#2b6ea3"], [1, "#bfe3ff"]] : [[0, "#ffffff"], [0.5, "#7db7de"], [1, "#08306b"]];
  draw("data", [{
    type: "heatmap", z: Array.from({ length: classes }, (_, c) => counts.map((row) => row[c])), colorscale: ramp, zmin: 0, xgap: 1, ygap: 1,
    text: Array.from({ length: classes }, (_, c) => counts.map((row, k) => `client ${k} (${sizes[k].toLocaleString("en")} examples)<br>class ${c}: ${row[c]}`)),
    hovertemplate: "%{text}<extra></extra>", colorbar: { title: { text: "examples", side: "right" }, thickness: 12, outlinewidth: 0, len: 1 },
  }], frame({ height: Math.min(600, 240 + 16 * classes), xaxis: { title: { text: "client" }, showgrid: false, zeroline: false }, yaxis: { title: { text: "class" }, showgrid: false, zeroline: false } }));
}

// --- words and tables ---

/** A name that may be broken after a bracket or a comma. */
const breakable = (name) => name.split(/(?<=[(,/])/).flatMap((part, at) => (at ? [element("wbr"), part] : [part]));

function filled(id, heads, rows) {
  const head = element("thead", {}, element("tr", {}, ...heads.map(([text, small, kind]) => element("th", { scope: "col", class: kind }, text, small ? element("small", {}, small) : null))));
  const body = element("tbody", {}, ...rows.map(([attributes, first, ...cells]) => element("tr", attributes, element("th", { scope: "row" }, ...breakable(first)),
    ...cells.map((cell) => (Array.isArray(cell) ? element("td", { class: cell[2] }, cell[0], cell[1] ? element("small", {}, cell[1]) : null) : element("td", {}, cell))))));
  $(id).replaceChildren(head, body);
}

function tables() {
  const a = axis();
  const rows = group().table[state.axis];
  const both = state.target === "both";
  const what = { units: "energy (paper's units)", bytes_up: "bytes", bytes_both: "bytes, both ways", uplink_joules: "joules of the uplink" }[a.key] || "joules of all that the ledger has";
  $("table-lead").textContent = `Each method against ${group().baseline} at the same density, in ${what} (${a.source}), seed by seed. `
    + "In small print: 95 % confidence intervals over seeds (Student's t). A cost at an accuracy is what had been spent at the first evaluation "
    + `that reached it${both ? ", here the highest that every run of the two reached" : ""}; accuracy at equal cost is the last one evaluated within what the cheaper run spent in all. `
    + "With many comparisons, one in twenty intervals misses by chance.";
  filled("table", [["method"], ["accuracy", "at the end"], ["cost", "of the run"], ["cost", both ? "at the accuracy both reach" : `at ${percent(Number(state.target), 0)}`], ["times the baseline's", "at that accuracy"], ["accuracy gained", "points, at equal cost"], ["verdict", "", "text"]],
    rows.map((row, at) => [at, row]).filter(([at]) => !state.hidden.has(group().ways[at].family)).map(([, row]) => {
      const accuracy = row.accuracy ? [percent(row.accuracy[0]), between(row.accuracy, (v) => percent(v))] : "–";
      const spent = row.spent ? [money(row.spent[0]), between(row.spent, money)] : "–";
      if (row.same) return [{ class: "baseline" }, row.way, accuracy, spent, "", "", "", ["the baseline", "", "text"]];
      const at = row.at_accuracy[state.target];
      if (!at) return [{}, row.way, accuracy, spent, "–", "–", "–", ["cannot be compared", "", "text"]];
      const missed = at.reached[0] < at.reached[1] ? `reached by ${at.reached[0]} of ${at.reached[1]}` : at.reached[2] < at.reached[3] ? `baseline: ${at.reached[2]} of ${at.reached[3]}` : null;
      const gained = row.at_cost.interval;
      return [{}, row.way,
        accuracy, spent,
        [at.ours == null ? "–" : money(at.ours), missed || (both ? percent(at.target) : "")],
        at.interval ? [`× ${times(at.interval[0])}`, between(at.interval, times)] : ["–", missed],
        gained ? [points(gained[0]), between(gained, points)] : ["–", "no round fits"],
        [row.verdict, row.baseline === row.way ? "" : `than ${row.baseline}`, "text"]];
    }));
  filled("volumes", [["method"], ["points"], ["hypervolume"], [`lead over ${group().baseline}`, "seed by seed"]],
    group().volumes[state.axis].filter((v) => !state.hidden.has(group().families.indexOf(v.family))).map((v) => [
      { class: v.family === group().baseline ? "baseline" : null }, v.family, String(v.ways),
      v.volume ? [v.volume[0].toFixed(3), between(v.volume, (x) => x.toFixed(3))] : "–",
      v.lead ? [`${v.lead[0] >= 0 ? "+" : "−"}${Math.abs(v.lead[0]).toFixed(3)}`, between(v.lead, (x) => `${x >= 0 ? "+" : "−"}${Math.abs(x).toFixed(3)}`)] : ""]));
}

function short() {
  const said = [];
  const rows = group().table[state.axis];
  const what = { units: "energy, modelled in the paper's units", bytes_up: "bytes sent, coded", bytes_both: "bytes both ways, coded", uplink_joules: "joules of the uplink, coded" }[state.axis] || `all joules of the ledger, ${axis().source}`;
  $("short-lead").textContent = `Against ${group().baseline}${state.knob ? `, at ${state.knob}` : ""}; the cost is ${what}. In brackets: 95 % confidence intervals over seeds${group().ways.every((w) => w.seeds.length < 2) ? "; there is but one seed, so none" : ""}.`;
  for (const way of curves()) {
    const row = rows[way.at];
    const at = row.at_accuracy && row.at_accuracy.both;
    if (!at || !at.interval) continue;
    const [ratio, low, high] = at.interval;
    const gain = row.at_cost && row.at_cost.interval;
    const other = row.baseline.startsWith(group().baseline) && row.baseline !== group().baseline && !row.baseline.endsWith(way.knob || state.knob) ? ` of ${row.baseline}` : "";
    said.push(`${way.knob === state.knob ? group().families[way.family] : row.way} reaches ${percent(at.target)} with ${times(ratio)} times the cost${other}${low == null ? "" : ` (${times(low)} to ${times(high)})`}`
      + (gain ? `; at equal cost it is ${apart(gain[0])}${gain[1] == null ? "" : ` (${points(gain[1])} to ${points(gain[2])})`}.` : ".")
      + (way.finished ? "" : " Its runs are not finished."));
  }
  if (!said.length) {
    for (const way of curves()) if (way.end.accuracy) said.push(`${way.name}: accuracy ${percent(way.end.accuracy.mean)} after ${Math.min(...way.rounds_played)} rounds${way.end[state.axis] ? `, for ${si(way.end[state.axis].mean, axis().unit === "units" ? " units" : axis().unit)} (${axis().source})` : ""}.`);
  }
  if (!group().ways.some((w) => w.family !== group().families.indexOf(group().baseline))) $("short-lead").textContent = "";
  $("short").replaceChildren(...said.map((text) => element("li", {}, text)));
}

function once() {
  const count = (n, one, many = `${one}s`) => `${n} ${n === 1 ? one : many}`;
  const done = C.runs.filter((run) => run.state === "finished").length;
  $("about").textContent = [count(C.runs.length, "run"), `${done} finished`, ...["model", "data.name", "partition"].map((key) => C.common[key]).filter(Boolean), C.common.rounds ? count(Number(C.common.rounds), "round") : null].filter(Boolean).join(" · ");
  const lists = [
    ["Not finished: figures are of the rounds so far", C.runs.filter((r) => r.state !== "finished").map((r) => `${r.folder}: ${r.rounds} of ${r.asked} rounds${r.state === "running" ? ", being played" : ""}`)],
    ["Not begun", C.missing],
    ["Without a round", C.begun.map(([folder, said]) => `${folder}: ${said}`)],
    ["Cannot be read, and left out", C.broken.map(([folder, why]) => `${folder}: ${why}`)],
    ["Damaged in part", C.runs.flatMap((r) => r.notes.map((note) => `${r.folder}: ${note}`))],
    ["Left out, as another run played the same", C.doubles],
  ].filter(([, items]) => items.length);
  if (lists.length) {
    const box = element("details", { class: "note" }, element("summary", {}, lists.map(([title, items]) => `${title.split(/[:,]/)[0].toLowerCase()}: ${items.length}`).join(" · ")));
    for (const [title, items] of lists) box.append(element("strong", {}, `${title}:`), element("ul", {}, ...items.map((item) => element("li", {}, item))));
    $("notes").append(box);
  }
  filled("runs", [["run"], ["sends", "", "text"], ["seed"], ["rounds"], ["accuracy"], ["Σc", "modelled"], ["sent", "coded"], ["took"]],
    C.runs.map((r) => [{}, r.folder, [r.compress, "", "text"], String(r.seed), [`${r.rounds}/${r.asked}`, r.state === "finished" ? "" : r.state], percent(r.accuracy), si(r.cost), si(r.bytes_up, "B"), r.seconds == null ? "–" : took(r.seconds)]));
  $("all-runs").open = C.runs.length <= 12;
  $("all-runs").firstElementChild.textContent = `All ${count(C.runs.length, "run")}`;
  for (const id of ["common", "provenance"]) {
    $(id).replaceChildren(element("tbody", {}, ...Object.entries(C[id]).map(([key, value]) => element("tr", {}, element("th", { scope: "row" }, key), element("td", {}, value)))));
  }
  $("made").textContent = `Made ${C.made} by joulegrad ${C.version} from the runs' own files. This page loads nothing and sends nothing.`;
}

// --- controls ---

function controls() {
  const fieldset = $("axes");
  for (const a of C.axes) {
    const input = element("input", { type: "radio", name: "axis", value: a.key, disabled: a.absent != null, checked: a.key === state.axis });
    input.addEventListener("change", () => { state.axis = a.key; render(); });
    fieldset.append(element("label", { title: a.absent || `${a.label} (${a.source})` }, input, a.title));
  }
  if (C.settings.length > 1) {
    $("settings").hidden = false;
    options($("settings").querySelector("select"), C.settings.map((s, i) => [i, s.name]), 0, (value) => { state.setting = Number(value); enter(); });
  }
  $("theme").addEventListener("click", () => themed(theme() === "dark" ? "light" : "dark"));
}

function options(select, pairs, chosen, act) {
  select.replaceChildren(...pairs.map(([value, text]) => element("option", { value, selected: value === chosen }, text)));
  select.onchange = () => act(select.value);
}

function sample(family) {
  const shade = colour(family);
  const ns = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(ns, "svg");
  svg.setAttribute("width", "34"); svg.setAttribute("height", "12"); svg.setAttribute("aria-hidden", "true");
  const line = document.createElementNS(ns, "line");
  for (const [k, v] of Object.entries({ x1: 0, y1: 6, x2: 34, y2: 6, stroke: shade, "stroke-width": 2.5, "stroke-dasharray": STROKES[family % STROKES.length] })) line.setAttribute(k, v);
  const mark = document.createElementNS(ns, "path");
  const shapes = ["M17 2a4 4 0 1 0 .01 0z", "M13 2h8v8h-8z", "M17 1l5 5-5 5-5-5z", "M17 1l5 9H12z", "M13 2l8 8M21 2l-8 8", "M17 0l2 4 4 .5-3 3 1 4.5-4-2-4 2 1-4.5-3-3 4-.5z", "M17 1l5 4-2 6h-6l-2-6z", "M12 2h10l-5 9z"];
  mark.setAttribute("d", shapes[family % MARKS.length]); mark.setAttribute("fill", shade); mark.setAttribute("stroke", shade);
  svg.append(line, mark);
  return svg;
}

/** Buttons and choices of one experiment. */
function enter() {
  state.hidden.clear();
  const g = group();
  const knobs = [...new Set(g.ways.map((w) => w.knob).filter(Boolean))];
  const shares = knobs.map((knob) => new Set(g.ways.filter((w) => w.knob === knob).map((w) => w.family)).size);
  const common = knobs.filter((_, i) => shares[i] === Math.max(...shares));
  state.knob = knobs.length > 1 ? common[Math.floor((common.length - 1) / 2)] : "";
  $("knobs").hidden = knobs.length < 2;
  options($("knobs").querySelector("select"), [...knobs.map((knob) => [knob, knob]), ["", "all"]], state.knob, (value) => { state.knob = value; render(); });
  state.way = Math.max(g.ways.findIndex((w) => w.layers && w.knob && (!state.knob || w.knob === state.knob) && w.family !== g.families.indexOf(g.baseline)), 0);
  options($("way"), g.ways.map((w, i) => [i, w.name]), state.way, (value) => { state.way = Number(value); layers(); });
  state.target = "both";
  options($("target"), [["both", "both reach"], ...g.targets.map((t) => [`${t}`, percent(t, 0)])], "both", (value) => { state.target = value; tables(); });
  chips();
  render();
}

function chips() {
  const fieldset = $("methods");
  fieldset.querySelectorAll("button").forEach((button) => button.remove());
  group().families.forEach((name, family) => {
    const button = element("button", { type: "button", "aria-pressed": String(!state.hidden.has(family)) }, sample(family), name);
    button.addEventListener("click", () => {
      if (!state.hidden.delete(family)) state.hidden.add(family);
      button.setAttribute("aria-pressed", String(!state.hidden.has(family)));
      render();
    });
    fieldset.append(button);
  });
}

function themed(name) {
  document.documentElement.dataset.theme = name;
  $("theme").textContent = name === "dark" ? "Light" : "Dark";
  if (C.settings.length) { chips(); render(); }
}

function render() {
  short();
  pareto();
  banded("rounds", (way) => way.rounds, { xaxis: { title: { text: "round" } } }, () => "");
  banded("spent", (way) => way.spent[state.axis], { xaxis: money_axis(curves().flatMap((w) => w.spent[state.axis] || [])) }, (way, i) => `<br>for ${money(way.spent[state.axis][i])}`);
  tables();
  layers();
  starved();
  bits();
  ledger();
  data();
}

state.axis = (C.axes.find((a) => a.absent == null) || C.axes[0]).key;
document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
once();
controls();
themed(theme());
if (C.settings.length) enter();
else { $("controls").remove(); $("main").replaceChildren(element("p", { class: "absent" }, "No run has played a round yet.")); }
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => themed(event.matches ? "dark" : "light"));
NARROW.addEventListener("change", () => C.settings.length && render());
document.documentElement.dataset.ready = "yes";
