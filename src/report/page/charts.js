// Small parts of a page: elements, numbers as text, charts in SVG. Everything is drawn from plain data; nothing is loaded.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const WIDE = Math.min(document.documentElement.clientWidth, 1160) >= 700;

// element("p", {class: "soft"}, "text", child …); attributes that are undefined are left out.
function element(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function shape(tag, attributes, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// A mark that tells its value when it is pointed at, or read by a screen reader.
function mark(tag, attributes, title) {
  const told = shape("title", {});
  told.textContent = title;
  return shape(tag, {class: "mark", ...attributes}, told);
}

function text(x, y, content, attributes = {}) {
  const node = shape("text", {x, y, ...attributes});
  node.textContent = content;
  return node;
}

// Of any number of values: a call with each as an argument has a limit.
const largest = (values) => values.reduce((most, value) => Math.max(most, value), -Infinity);
const smallest = (values) => values.reduce((least, value) => Math.min(least, value), Infinity);

const COLOURS = 8;
const MANY = 600;  // marks in a chart, from which on some are left out or drawn as one
const colour = (index) => `var(--c${index % COLOURS})`;

function bytes(count) {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) {
    count /= 1024;
    ++unit;
  }
  return `${unit === 0 ? count : count.toFixed(1)} ${units[unit]}`;
}

function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  return Math.abs(value) >= 1e6 || Math.abs(value) < 1e-4 ? value.toExponential(digits - 1) : String(Number(value.toPrecision(digits)));
}

const whole = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en-US"));
const percent = (share, digits = 1) => (share === null || share === undefined ? "–" : `${(100 * share).toFixed(digits)} %`);
const seconds = (value) => (value >= 3600 ? `${(value / 3600).toFixed(2)} h` : value >= 120 ? `${(value / 60).toFixed(1)} min` : `${value.toFixed(1)} s`);

function legend(names) {
  return element("ul", {class: "legend"}, ...names.map((name, index) =>
    element("li", {}, element("i", {style: `background:${colour(index)}`}), name)));
}

// Round steps between two numbers.
function ticks(low, high, count) {
  const raw = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= raw);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(Number(at.toPrecision(12)));
  return found;
}

function frame(title, width, height) {
  return shape("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title});
}

function figure(title, svg, caption, names) {
  return element("figure", {}, element("h3", {}, title), names && names.length > 1 ? legend(names) : null, svg,
    caption ? element("figcaption", {}, caption) : null);
}

const chartWidth = (part = 1) => (WIDE ? (part === 1 ? 1100 : 530) : 340);

// Horizontal bars of stacked parts. rows: [{label, parts: [{name, value}]}]; names: order of the colours.
function stackedBars(title, rows, names, show, caption) {
  const width = chartWidth();
  const svg = frame(title, width, rows.length * 54);
  const most = largest(rows.map((row) => row.parts.reduce((sum, part) => sum + part.value, 0))) || 1;
  rows.forEach((row, index) => {
    const total = row.parts.reduce((sum, part) => sum + part.value, 0);
    let x = 0;
    svg.append(text(0, index * 54 + 14, `${row.label}: ${show(total)}`, {class: "strong"}));
    for (const part of row.parts) {
      const w = (part.value / most) * width;
      svg.append(mark("rect", {x, y: index * 54 + 20, width: Math.max(w, part.value > 0 ? 0.5 : 0), height: 22, fill: colour(names.indexOf(part.name))},
        `${row.label}, ${part.name}: ${show(part.value)} (${percent(part.value / (total || 1))})`));
      x += w;
    }
  });
  return figure(title, svg, caption, names);
}

// Vertical bars. bars: [{label, value, title}].
function columns(title, bars, show, caption, part = 2) {
  const width = chartWidth(part), height = 190, left = 46, bottom = 24, top = 8;
  const svg = frame(title, width, height);
  const most = largest(bars.map((bar) => bar.value)) || 1;
  const y = (value) => height - bottom - (value / most) * (height - bottom - top);
  for (const at of ticks(0, most, 4)) {
    svg.append(shape("line", {class: "grid", x1: left, x2: width, y1: y(at), y2: y(at)}), text(left - 6, y(at) + 4, show(at), {"text-anchor": "end"}));
  }
  const step = (width - left) / bars.length;
  const every = Math.max(1, Math.ceil(46 / step));
  bars.forEach((bar, index) => {
    svg.append(mark("rect", {x: left + index * step + step * 0.1, y: y(bar.value), width: step * 0.8, height: height - bottom - y(bar.value), fill: colour(0)}, bar.title));
    if (index % every === 0) svg.append(text(left + (index + 0.5) * step, height - 8, bar.label, {"text-anchor": "middle"}));
  });
  return figure(title, svg, caption);
}

// Points over layers. points: [{x, y, series, title}]; log: of the y axis.
function dots(title, points, series, {show, log = false, zero = false, caption, xLabel = "layer", line = null}) {
  const width = chartWidth(), height = WIDE ? 300 : 240, left = 52, bottom = 38, top = 10;
  const svg = frame(title, width, height);
  const scale = (value) => (log ? Math.log10(Math.max(value, 1e-12)) : value);
  const values = points.map((point) => scale(point.y)).concat(line === null ? [] : [scale(line)]);
  let low = zero ? 0 : smallest(values), high = largest(values);
  const margin = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  low = zero ? 0 : low - margin;
  high += margin;
  const xs = points.map((point) => point.x);
  const first = smallest(xs), last = largest(xs);
  const x = (value) => (last === first ? (left + width) / 2 : left + 34 + ((value - first) / (last - first)) * (width - left - 68));
  const y = (value) => top + (1 - (scale(value) - low) / (high - low)) * (height - bottom - top);
  const marks = log ? ticks(low, high, 4).map((at) => 10 ** at) : ticks(low, high, 5);
  for (const at of marks) {
    svg.append(shape("line", {class: "grid", x1: left, x2: width, y1: y(at), y2: y(at)}), text(left - 6, y(at) + 4, show(at), {"text-anchor": "end"}));
  }
  for (const at of ticks(first, last, WIDE ? 16 : 6).filter(Number.isInteger)) svg.append(text(x(at), height - bottom + 16, at, {"text-anchor": "middle"}));
  svg.append(text((left + width) / 2, height - 4, xLabel, {"text-anchor": "middle"}));
  if (line !== null) svg.append(shape("line", {x1: left, x2: width, y1: y(line), y2: y(line), stroke: "var(--soft)", "stroke-dasharray": "4 4"}));
  // Series stand side by side, so that they do not hide each other.
  const room = last === first ? 60 : ((width - left - 68) / (last - first)) * 0.6;
  const aside = (point) => (series.length < 2 ? 0 : (series.indexOf(point.series) / (series.length - 1) - 0.5) * Math.min(room, 60));
  const drawn = new Set();
  for (const point of points) {
    // Of many points at one place the first is drawn: the others could not be told apart.
    const place = `${point.x} ${point.series} ${Math.round(y(point.y))}`;
    if (points.length > MANY && drawn.has(place)) continue;
    drawn.add(place);
    svg.append(mark("circle", {cx: x(point.x) + aside(point), cy: y(point.y), r: points.length > MANY ? 2.2 : 3.5, fill: colour(series.indexOf(point.series)), "fill-opacity": 0.85}, point.title));
  }
  return figure(title, svg, caption, series);
}

// One item for all of a kind in a layer.
function joined(items) {
  const groups = new Map();
  for (const item of items) {
    const key = `${item.layer} ${item.kind}`;
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(item);
  }
  return [...groups.values()].map((group) => {
    const of = (index) => group.map((item) => item.s[index]);
    const medians = of(2).sort((a, b) => a - b);
    return {...group[0], name: group.length === 1 ? group[0].name : `${group.length} groups ${group[0].kind} of layer ${group[0].layer}`,
      s: [smallest(of(0)), smallest(of(1)), medians[Math.floor(medians.length / 2)], largest(of(3)), largest(of(4))]};
  });
}

// Ranges over layers on a log axis: thin line smallest to largest, thick line the middle nine tenths, dot the median.
function ranges(title, all, series, caption) {
  const items = all.length > MANY ? joined(all) : all;
  const width = chartWidth(), height = WIDE ? 280 : 240, left = 52, bottom = 38, top = 10;
  const svg = frame(title, width, height);
  const logs = items.flatMap((item) => [Math.log2(item.s[0]), Math.log2(item.s[4])]);
  const low = Math.min(smallest(logs), -1) - 0.2, high = Math.max(largest(logs), 1) + 0.2;
  const step = (width - left - 8) / items.length;
  const y = (value) => top + (1 - (Math.log2(value) - low) / (high - low)) * (height - bottom - top);
  for (const at of ticks(low, high, 6).filter(Number.isInteger)) {
    svg.append(shape("line", {class: "grid", x1: left, x2: width, y1: y(2 ** at), y2: y(2 ** at)}), text(left - 6, y(2 ** at) + 4, number(2 ** at), {"text-anchor": "end"}));
  }
  let layer = null, next = -100;
  items.forEach((item, index) => {
    const x = left + 8 + (index + 0.5) * step, paint = colour(series.indexOf(item.kind));
    const told = `${item.name}: s ${item.s.map((value) => number(value)).join(", ")} (smallest, 5 %, median, 95 %, largest)`;
    svg.append(mark("line", {x1: x, x2: x, y1: y(item.s[0]), y2: y(item.s[4]), stroke: paint, "stroke-width": 1.2}, told));
    svg.append(mark("line", {x1: x, x2: x, y1: y(item.s[1]), y2: y(item.s[3]), stroke: paint, "stroke-width": Math.min(7, Math.max(1.5, step * 0.5))}, told));
    svg.append(mark("circle", {cx: x, cy: y(item.s[2]), r: Math.min(3, Math.max(1, step * 0.25)), fill: "var(--back)", stroke: paint}, told));
    if (item.layer !== layer && item.layer !== null && x - next > 24) {
      svg.append(text(x, height - bottom + 16, item.layer, {"text-anchor": "middle"}));
      next = x;
    }
    layer = item.layer;
  });
  svg.append(text((left + width) / 2, height - 4, "layer", {"text-anchor": "middle"}));
  return figure(title, svg, caption, series);
}

// A map of cells. rows: [{label, values, titles}]; shades by log of the value, values below `least` are crossed out.
function heatMap(title, rows, least, caption) {
  const width = chartWidth(), left = WIDE ? 64 : 34, count = largest(rows.map((row) => row.values.length));
  const cell = (width - left) / count, high = Math.min(Math.max(cell, 8), 22);
  const svg = frame(title, width, rows.length * high + 30);
  const most = Math.log1p(largest(rows.flatMap((row) => row.values))) || 1;
  rows.forEach((row, index) => {
    if (index % Math.max(1, Math.ceil(12 / high)) === 0) svg.append(text(left - 6, index * high + high / 2 + 4, row.label, {"text-anchor": "end"}));
    row.values.forEach((value, place) => {
      const share = Math.log1p(value) / most;
      svg.append(mark("rect", {x: left + place * cell, y: index * high, width: Math.max(cell - (cell > 4 ? 1 : 0), 0.5), height: high - 1,
        style: `fill:${value < least ? "var(--c1)" : `color-mix(in srgb, rgb(var(--heat-high)) ${Math.round(100 * share)}%, rgb(var(--heat-low)))`}`}, row.titles[place]));
    });
  });
  for (const at of ticks(0, count - 1, WIDE ? 16 : 6).filter(Number.isInteger)) {
    svg.append(text(left + (at + 0.5) * cell, rows.length * high + 16, at, {"text-anchor": "middle"}));
  }
  return figure(title, svg, caption);
}
