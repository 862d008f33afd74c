// One report, or two side by side, from the data in the page.
"use strict";

const FIRST_ROWS = 100;

// A table that sorts by any column and is filtered by text and by one choice.
// columns: [{title, number, value(row), show(row)}]; choice: {title, of(row)} or null.
function sortedTable(id, rows, columns, sortBy, choice) {
  let sort = {column: sortBy, descending: true}, shown = FIRST_ROWS;
  const search = element("input", {type: "search", placeholder: "Filter by name", "aria-label": "Filter by name"});
  const options = choice ? [...new Set(rows.map(choice.of))].sort() : [];
  const select = element("select", {"aria-label": choice ? choice.title : ""}, element("option", {value: ""}, choice ? `all ${choice.title}` : ""),
    ...options.map((option) => element("option", {value: option}, option)));
  const count = element("span", {class: "soft", role: "status"});
  const body = element("tbody", {});
  const more = element("button", {class: "more", type: "button"}, "Show more");
  const heads = columns.map((column, index) => {
    const button = element("button", {type: "button"}, column.title);
    button.addEventListener("click", () => {
      sort = {column: index, descending: sort.column === index ? !sort.descending : Boolean(column.number)};
      draw();
    });
    return element("th", {scope: "col", class: column.number ? "number" : undefined}, button);
  });
  const text = rows.map((row) => row.name.toLowerCase());
  function draw() {
    const wanted = search.value.toLowerCase();
    const key = columns[sort.column].value;
    const found = rows.filter((row, index) => text[index].includes(wanted) && (!select.value || choice.of(row) === select.value));
    const missing = (value) => value === null || value === undefined;
    found.sort((a, b) => {
      const x = key(a), y = key(b);
      if (missing(x) || missing(y)) return missing(x) - missing(y);
      const order = typeof x === "string" ? x.localeCompare(y, "en", {numeric: true}) : x - y;
      return sort.descending ? -order : order;
    });
    heads.forEach((head, index) => {
      head.setAttribute("aria-sort", index !== sort.column ? "none" : sort.descending ? "descending" : "ascending");
    });
    body.replaceChildren(...found.slice(0, shown).map((row) => element("tr", {}, ...columns.map((column, index) =>
      element("td", {class: column.number ? "number" : index === 0 ? "name" : undefined}, column.show(row))))));
    count.textContent = `${Math.min(shown, found.length)} of ${found.length}`;
    more.hidden = found.length <= shown;
  }
  const redraw = () => {
    shown = FIRST_ROWS;
    draw();
  };
  search.addEventListener("input", redraw);
  select.addEventListener("change", redraw);
  more.addEventListener("click", () => {
    shown += 10 * FIRST_ROWS;
    draw();
  });
  draw();
  return element("div", {id}, element("div", {class: "tools"}, search, options.length > 1 ? select : null, count),
    element("div", {class: "scroll"}, element("table", {}, element("thead", {}, element("tr", {}, ...heads)), body)), more);
}

// A dotted name that may be broken after its dots.
function dotted(name) {
  const node = document.createDocumentFragment();
  name.split(/(?<=[./])/).forEach((part, index) => node.append(...(index ? [element("wbr", {}), part] : [part])));
  return node;
}

function plainTable(heads, rows, numbers = []) {
  const of = (index) => ({class: numbers.includes(index) ? "number" : index === 0 ? "name" : undefined});
  return element("div", {class: "scroll"}, element("table", {},
    element("thead", {}, element("tr", {}, ...heads.map((head, index) => element("th", {scope: "col", ...of(index)}, head)))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((value, index) => element("td", of(index), index === 0 && typeof value === "string" ? dotted(value) : value)))))));
}

function section(id, title, ...children) {
  const shown = children.filter((child) => child !== null && child !== undefined);
  return shown.length === 0 ? null : element("section", {id}, element("h2", {}, title), ...shown);
}

function fact(title, value, note) {
  return element("div", {}, element("dt", {}, title), element("dd", {}, value), note ? element("dd", {class: "note"}, note) : null);
}

const worst = (report) => report.tensors.reduce((most, tensor) => (!most || tensor.relative_error > most.relative_error ? tensor : most), null);

function facts(report) {
  const s = report.summary, bad = worst(report);
  return element("dl", {class: "facts"},
    fact("Size", bytes(s.bytes_after), `from ${bytes(s.bytes_before)}, ${percent(s.bytes_after / s.bytes_before)}`),
    fact("Bits per weight", s.bits_per_weight === null ? "–" : s.bits_per_weight.toFixed(2),
      s.parameters ? `${percent(s.quantized_parameters / s.parameters)} of ${whole(s.parameters)} quantized` : ""),
    report.target === null ? null : fact("Target", report.target.bits === null ? bytes(report.target.bytes) : `${report.target.bits} bits`,
      `${report.target.bits_reached.toFixed(3)} bits per weight of linears reached`),
    fact("Tensors quantized", whole(s.quantized_tensors), [...new Set(report.tensors.map((tensor) => tensor.scheme))].join(", ")),
    fact("Median weight error", percent(s.median_error), bad ? dotted(`worst ${percent(bad.relative_error)}: ${bad.name}`) : ""),
    s.weighted_error === null ? null : fact("Activation-weighted error", percent(s.weighted_error), "of what it is without scaling"),
    report.run ? fact("Time", seconds(report.run.seconds), `most on ${report.run.limited_by}`) : null);
}

function sizes(reports) {
  const rows = [];
  const add = (label, by) => {
    if (Object.keys(by).length) rows.push({label, parts: Object.entries(by).map(([name, value]) => ({name, value}))});
  };
  add("before", reports[0].bytes_by_type.before);
  reports.forEach((report) => add(reports.length > 1 ? report.name : "after", report.bytes_by_type.after));
  if (rows.length === 0) return null;
  const names = [...new Set(rows.flatMap((row) => row.parts.map((part) => part.name)))];
  return section("sizes", "Size", stackedBars("Bytes by type", rows, names, bytes));
}

// The kinds with the most items first; what has no colour of its own is one kind.
function kindsOf(items) {
  const counts = new Map();
  for (const item of items) counts.set(item.kind, (counts.get(item.kind) || 0) + 1);
  const kinds = [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a));
  return kinds.length <= COLOURS ? kinds : [...kinds.slice(0, COLOURS - 1), "others"];
}

const kindIn = (kinds, item) => (kinds.includes(item.kind) ? item.kind : "others");

function errors(report) {
  if (report.tensors.length === 0) return null;
  const layered = report.tensors.filter((tensor) => tensor.layer !== null);
  const weighted = layered.filter((tensor) => tensor.activation_weighted_error !== null);
  const kinds = kindsOf(layered);
  const snr = report.tensors.filter((tensor) => tensor.snr_db !== null);
  const list = [...report.tensors].sort((a, b) => b.relative_error - a.relative_error).slice(0, 5);
  const most = largest(snr.map((tensor) => tensor.snr_db)), least = smallest(snr.map((tensor) => tensor.snr_db));
  const bins = 24, width = (most - least) / bins || 1, counts = new Array(bins).fill(0);
  for (const tensor of snr) ++counts[Math.min(bins - 1, Math.floor((tensor.snr_db - least) / width))];
  return section("errors", "Weight error",
    element("p", {class: "soft"}, "‖quantized − folded‖ / ‖folded‖ of every quantized tensor: what rounding did, without regard to the inputs."),
    layered.length === 0 ? null : dots("Relative error by layer", layered.map((tensor) => ({x: tensor.layer, y: tensor.relative_error, series: kindIn(kinds, tensor),
      title: `${tensor.name}: ${percent(tensor.relative_error, 2)}, ${number(tensor.snr_db)} dB`})), kinds, {show: (value) => percent(value, 1)}),
    weighted.length === 0 ? null : dots("Error weighted by activations, by layer", weighted.map((tensor) => ({x: tensor.layer, y: tensor.activation_weighted_error, series: kindIn(kinds, tensor),
      title: `${tensor.name}: ${percent(tensor.activation_weighted_error, 2)}, ${percent(tensor.relative_error, 2)} unweighted`})), kinds, {show: (value) => percent(value, 1),
      caption: "The same with each column weighted by the root mean square of what it is multiplied by: what reaches the output."}),
    element("div", {class: "columns"},
      snr.length === 0 ? null : columns("Signal to noise, tensors by dB", counts.map((value, index) => {
        const from = least + index * width;
        return {label: from.toFixed(1), value, title: `${from.toFixed(2)} to ${(from + width).toFixed(2)} dB: ${value} tensors`};
      }), whole),
      element("div", {}, element("h3", {}, "Largest error"), plainTable(["tensor", "error", "dB"],
        list.map((tensor) => [tensor.name, percent(tensor.relative_error, 2), tensor.snr_db === null ? "–" : tensor.snr_db.toFixed(2)]), [1, 2]))));
}

function scales(report) {
  const searched = report.groups.filter((group) => group.weighted_error !== null);
  const scaled = report.groups.filter((group) => group.not_scaled === null && group.channels > 0);
  const kinds = kindsOf(scaled), series = kinds;
  const reasons = new Map();
  for (const group of report.groups) {
    if (group.not_scaled !== null) reasons.set(group.not_scaled, [...(reasons.get(group.not_scaled) || []), group.name]);
  }
  const layered = searched.filter((group) => group.layer !== null);
  const {first, bin_width: width, counts} = report.scale_histogram;
  const used = counts.map((value, index) => (value ? index : -1)).filter((index) => index >= 0);
  const alphas = new Map();
  for (const group of searched) {
    if (group.alpha !== null) alphas.set(group.alpha, (alphas.get(group.alpha) || 0) + 1);
  }
  return section("scales", "Scales of input channels",
    element("p", {class: "soft"}, "Each fold group has a vector s: the weights that read it are multiplied by s before they are rounded, what produces it is divided by s."),
    layered.length === 0 ? null : dots("Activation-weighted error of fold groups, of what it is without scaling", layered.map((group) => ({x: group.layer, y: group.weighted_error,
      series: kindIn(kinds, group), title: `${group.name}: ${percent(group.weighted_error)}${group.alpha === null ? "" : `, alpha ${group.alpha}, beta ${group.beta}`}`})),
    series, {show: (value) => percent(value, 0), zero: true, line: 1, caption: "Lower is better; at the dashed line scaling gains nothing."}),
    scaled.length === 0 ? null : ranges("s by fold group", scaled.map((group) => ({...group, kind: kindIn(kinds, group)})), series,
      "Thin: smallest to largest; thick: 5 % to 95 % of the channels; ring: median."),
    used.length === 0 ? null : element("div", {class: "columns"},
      columns("All channels by s", counts.slice(used[0], used[used.length - 1] + 1).map((value, index) => {
        const from = 2 ** (first + (used[0] + index) * width);
        return {label: number(from, 2), value, title: `s from ${number(from)} to ${number(from * 2 ** width)}: ${whole(value)} channels`};
      }), whole),
      alphas.size === 0 ? null : columns("Fold groups by chosen alpha", [...alphas.keys()].sort((a, b) => a - b).map((alpha) =>
        ({label: String(alpha), value: alphas.get(alpha), title: `alpha ${alpha}: ${alphas.get(alpha)} groups`})), whole)),
    reasons.size === 0 ? null : element("h3", {}, "Not scaled"),
    reasons.size === 0 ? null : plainTable(["reason", "groups"], [...reasons].map(([reason, names]) => [`${reason}: ${names.slice(0, 3).join(", ")}${names.length > 3 ? " …" : ""}`, names.length]), [1]));
}

function codes(report) {
  const schemes = Object.entries(report.codes);
  if (schemes.length === 0) return report.no_codes ? section("codes", "Codes", element("p", {class: "soft"}, report.no_codes)) : null;
  return section("codes", "Codes",
    element("p", {class: "soft"}, "Counted from the weights as they are stored. Codes of the largest magnitude are those that were clipped, and those that just reach it."),
    ...schemes.flatMap(([scheme, counts]) => {
      const all = counts.scale_exponents.reduce((sum, [, count]) => sum + count, 0) || 1;
      return [
        element("h3", {}, `${scheme}: ${percent(counts.largest / counts.elements, 2)} at the largest magnitude, ${percent(counts.zeros / counts.elements, 2)} zero`),
        element("div", {class: "columns"},
          columns(`Magnitudes of codes (${scheme})`, counts.magnitudes.map(([magnitude, count]) =>
            ({label: number(magnitude, 2), value: count / counts.elements, title: `${magnitude}: ${percent(count / counts.elements, 2)}`})), (share) => percent(share, 0)),
          columns(`Exponents of scales (${scheme})`, counts.scale_exponents.map(([exponent, count]) =>
            ({label: String(exponent), value: count / all, title: `2^${exponent}: ${percent(count / all, 2)}`})), (share) => percent(share, 0)))];
    }));
}

function experts(report) {
  const layers = new Map();
  for (const group of report.groups) {
    if (!group.expert_of || group.tokens === null) continue;
    if (!layers.has(group.expert_of)) layers.set(group.expert_of, []);
    layers.get(group.expert_of).push(group);
  }
  const rows = [...layers].filter(([, groups]) => groups.length > 1).map(([name, groups]) => {
    const order = [...groups].sort((a, b) => a.name.localeCompare(b.name, "en", {numeric: true}));
    return {label: String(order[0].layer), name, values: order.map((group) => group.tokens), titles: order.map((group) => `${group.name}: ${whole(group.tokens)} tokens`)};
  });
  if (rows.length === 0) return null;
  const least = report.recipe.min_tokens || 0;
  const few = rows.flatMap((row) => row.values).filter((tokens) => tokens < least).length;
  return section("experts", "Experts",
    element("p", {class: "soft"}, few === 0 ? `Every expert was reached by at least ${least} tokens while statistics were recorded.`
      : `${whole(few)} experts were reached by fewer than ${least} tokens and were left unscaled; they are marked.`),
    heatMap("Tokens that reached each expert, by layer", rows, least, `The stronger the colour, the more tokens (logarithmic). Orange: fewer than ${least}.`));
}

function outliers(report) {
  if (report.outliers.length === 0) return null;
  return section("outliers", "Inputs with channels that stand out",
    plainTable(["input", "largest / median", "channel", "of", "measured as"], report.outliers.slice(0, 20).map((outlier) =>
      [outlier.input, outlier.largest_to_median === null ? "∞" : `${number(outlier.largest_to_median)}`, whole(outlier.largest_channel), whole(outlier.channels), outlier.measure]), [1, 2, 3]));
}

function kept(report) {
  if (report.kept.length === 0) return null;
  return section("kept", "Kept unquantized, and why", plainTable(["reason", "tensors", "size"], report.kept.map((entry) =>
    [element("details", {}, element("summary", {}, entry.why), element("pre", {}, entry.names.join("\n"))), whole(entry.names.length), bytes(entry.size_bytes)]), [1, 2]));
}

function timing(reports) {
  const timed = reports.filter((report) => report.run);
  if (timed.length === 0) return section("timing", "Time", element("p", {class: "soft"}, "There is no quantmill_run.json: how long it took is not known."));
  const label = (report, what) => (reports.length > 1 ? `${report.name}, ${what}` : what);
  const phases = [...new Set(timed.flatMap((report) => report.run.phases.map((phase) => phase.name)))];
  const works = [...new Set(timed.flatMap((report) => Object.keys(report.run.worker_seconds)))];
  return section("timing", "Time",
    stackedBars("Phases", timed.map((report) => ({label: label(report, "seconds"), parts: report.run.phases.map((phase) => ({name: phase.name, value: phase.seconds}))})), phases, seconds),
    stackedBars("What the threads did", timed.map((report) => ({label: label(report, "seconds of all threads"),
      parts: Object.entries(report.run.worker_seconds).map(([name, value]) => ({name, value}))})), works, seconds),
    ...timed.map((report) => element("p", {class: "soft"}, `${reports.length > 1 ? `${report.name}: ` : ""}${report.run.ranks} ranks on ${report.run.nodes} nodes, ` +
      `${report.run.threads_per_rank} threads each, ${report.run.backend}; read ${bytes(report.run.bytes_read)}, wrote ${bytes(report.run.bytes_written)}; ` +
      `peak memory of a rank ${bytes(largest(report.run.peak_memory_bytes))}${report.run.resumed ? "; resumed, so only the last part is counted" : ""}.`)));
}

function tensorTable(report) {
  const hasCodes = report.tensors.some((tensor) => tensor.largest_share !== undefined);
  const node = section("tensors", "All quantized tensors", sortedTable("tensor-table", report.tensors, [
    {title: "tensor", value: (row) => row.name, show: (row) => dotted(row.name)},
    {title: "error", number: true, value: (row) => row.relative_error, show: (row) => percent(row.relative_error, 2)},
    ...(report.tensors.some((tensor) => tensor.activation_weighted_error !== null) ? [
      {title: "weighted", number: true, value: (row) => row.activation_weighted_error, show: (row) => (row.activation_weighted_error === null ? "–" : percent(row.activation_weighted_error, 2))}] : []),
    {title: "dB", number: true, value: (row) => row.snr_db, show: (row) => (row.snr_db === null ? "–" : row.snr_db.toFixed(2))},
    {title: "scheme", value: (row) => row.scheme, show: (row) => row.scheme},
    {title: "shape", value: (row) => row.shape.reduce((product, size) => product * size, 1), show: (row) => row.shape.join(" × ")},
    ...(hasCodes ? [
      {title: "largest", number: true, value: (row) => row.largest_share, show: (row) => percent(row.largest_share, 2)},
      {title: "zero", number: true, value: (row) => row.zero_share, show: (row) => percent(row.zero_share, 1)}] : []),
  ], 1, {title: "schemes", of: (row) => row.scheme}));
  if (node) node.classList.add("long");
  return node;
}

function provenance(report, id = "provenance", title = "Provenance") {
  const node = section(id, title,
    element("p", {class: "soft"}, `${report.program}, architecture ${report.architecture}${report.run ? `, started ${report.run.started}` : ""}`),
    report.run ? element("pre", {}, report.run.command.join(" ")) : null,
    element("details", {}, element("summary", {}, "Recipe"), element("pre", {}, JSON.stringify(report.recipe, null, 1))),
    element("details", {}, element("summary", {}, "What the output depends on"), plainTable(["input", "value"], Object.entries(report.inputs).filter(([name]) => name !== "recipe").map(([name, value]) => [name, element("span", {style: "overflow-wrap:anywhere"}, value)]))),
    element("details", {}, element("summary", {}, `${report.files.length} files, with hashes (xxh128sum)`),
      plainTable(["file", "size", "xxh128"], report.files.map((file) => [file.name, bytes(file.size_bytes), element("code", {}, file.xxh128)]), [1])));
  node.classList.add("long");
  return node;
}

function comparison(a, b) {
  const line = (what, of, show, lowerIsBetter = true) => {
    const x = of(a), y = of(b);
    const change = typeof x === "number" && typeof y === "number" && x !== 0 ? `${y > x ? "+" : ""}${(100 * (y / x - 1)).toFixed(1)} %` : "–";
    return [what, show(x), show(y), `${change}${change !== "–" && y !== x ? (y < x === lowerIsBetter ? " better" : " worse") : ""}`];
  };
  const settings = Object.keys({...a.recipe, ...b.recipe}).filter((key) => JSON.stringify(a.recipe[key]) !== JSON.stringify(b.recipe[key]));
  return section("comparison", "Side by side",
    plainTable(["", a.name, b.name, "change"], [
      line("size", (report) => report.summary.bytes_after, bytes),
      line("bits per weight", (report) => report.summary.bits_per_weight, (value) => (value === null ? "–" : value.toFixed(3))),
      line("median weight error", (report) => report.summary.median_error, (value) => percent(value, 3)),
      line("worst weight error", (report) => report.summary.worst_error, (value) => percent(value, 3)),
      line("activation-weighted error, of unscaled", (report) => report.summary.weighted_error, (value) => percent(value, 2)),
      line("time", (report) => (report.run ? report.run.seconds : null), (value) => (value === null ? "–" : seconds(value))),
    ], [1, 2, 3]),
    element("h3", {}, "Settings that differ"),
    settings.length === 0 ? element("p", {class: "soft"}, "none") : plainTable(["setting", a.name, b.name], settings.map((key) => [key, JSON.stringify(a.recipe[key]) ?? "–", JSON.stringify(b.recipe[key]) ?? "–"])));
}

function pairs(a, b) {
  const before = new Map(a.tensors.map((tensor) => [tensor.name, tensor]));
  const rows = b.tensors.filter((tensor) => before.has(tensor.name)).map((tensor) => {
    const other = before.get(tensor.name);
    return {name: tensor.name, layer: tensor.layer, kind: tensor.kind, scheme: tensor.scheme === other.scheme ? tensor.scheme : `${other.scheme} → ${tensor.scheme}`,
      a: other.relative_error, b: tensor.relative_error, ratio: other.relative_error > 0 ? tensor.relative_error / other.relative_error : null};
  });
  if (rows.length === 0) return null;
  const layered = rows.filter((row) => row.layer !== null && row.ratio !== null), kinds = kindsOf(layered);
  const node = section("tensors", "Tensor by tensor",
    layered.length === 0 ? null : dots(`Weight error of ${b.name}, of that of ${a.name}`, layered.map((row) => ({x: row.layer, y: row.ratio, series: kindIn(kinds, row),
      title: `${row.name}: ${percent(row.a, 2)} → ${percent(row.b, 2)}`})), kinds, {show: (value) => percent(value, 0), line: 1, caption: `Below the dashed line ${b.name} is the more accurate.`}),
    sortedTable("tensor-table", rows, [
      {title: "tensor", value: (row) => row.name, show: (row) => dotted(row.name)},
      {title: a.name, number: true, value: (row) => row.a, show: (row) => percent(row.a, 2)},
      {title: b.name, number: true, value: (row) => row.b, show: (row) => percent(row.b, 2)},
      {title: "ratio", number: true, value: (row) => row.ratio, show: (row) => (row.ratio === null ? "–" : row.ratio.toFixed(3))},
      {title: "scheme", value: (row) => row.scheme, show: (row) => row.scheme},
    ], 3, {title: "schemes", of: (row) => row.scheme}));
  node.classList.add("long");
  return node;
}

function show(reports) {
  const [a, b] = reports;
  const root = document.getElementById("report");
  const parts = b
    ? [element("h1", {}, `${a.name} and ${b.name}`), comparison(a, b), sizes(reports), pairs(a, b), timing(reports), provenance(a, "provenance-a", `Provenance of ${a.name}`), provenance(b, "provenance-b", `Provenance of ${b.name}`)]
    : [element("h1", {}, a.name), element("div", {class: "soft"}, `${a.architecture}, quantized by ${a.program}`), facts(a), sizes(reports), errors(a), scales(a), codes(a), experts(a),
      outliers(a), kept(a), timing(reports), tensorTable(a), provenance(a)];
  root.replaceChildren(...parts.filter((part) => part !== null));
}

show(JSON.parse(document.getElementById("data").textContent));
