"use strict";
// Draws the part of Plotly's figures that the sections use: scatters, lines and upright categories of bars and violins,
// on linear, logarithmic and category axes. Every width is laid out anew, so that a phone reads the same sizes of text.
// Whatever comes from a figure becomes text or a number, and never markup.

const SVG = "http://www.w3.org/2000/svg";
const FONT = 12;
const DASHES = { dash: "7 4", dot: "2 3", dashdot: "7 3 2 3", longdash: "11 5", longdashdot: "11 4 2 4" };
const PLACES = { left: -1, center: 0, right: 1, top: -1, middle: 0, bottom: 1 };
const canvas = document.createElement("canvas").getContext("2d");

function node(name, attributes, parent, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  parent?.append(made);
  return made;
}

function textWidth(text, size = FONT) {
  canvas.font = `${size}px system-ui, "DejaVu Sans", sans-serif`;
  return canvas.measureText(text).width;
}

function shortened(text, room, size = FONT) {
  if (textWidth(text, size) <= room) return text;
  let kept = text;
  while (kept.length > 1 && textWidth(`${kept}…`, size) > room) kept = kept.slice(0, -1);
  return `${kept}…`;
}

function at(value, index) {
  return Array.isArray(value) ? value[index] : value;
}

const polygon = (corners, turn = -90, inner = 1) =>
  Array.from({ length: corners }, (_, k) => {
    const angle = ((turn + (360 / corners) * k) * Math.PI) / 180, far = k % 2 ? inner : 1;
    return [far * Math.cos(angle), far * Math.sin(angle)];
  });
const turned = (points, degrees) => {
  const [c, s] = [Math.cos((degrees * Math.PI) / 180), Math.sin((degrees * Math.PI) / 180)];
  return points.map(([x, y]) => [x * c - y * s, x * s + y * c]);
};
const CROSS = [[-0.35, -1], [0.35, -1], [0.35, -0.35], [1, -0.35], [1, 0.35], [0.35, 0.35], [0.35, 1], [-0.35, 1],
  [-0.35, 0.35], [-1, 0.35], [-1, -0.35], [-0.35, -0.35]];
const SYMBOLS = {
  square: polygon(4, 45).map(([x, y]) => [1.25 * x, 1.25 * y]),
  diamond: polygon(4).map(([x, y]) => [1.2 * x, 1.2 * y]),
  "triangle-up": polygon(3), "triangle-down": polygon(3, 90), "triangle-left": polygon(3, 180),
  "triangle-right": polygon(3, 0), cross: CROSS, x: turned(CROSS, 45), pentagon: polygon(5), hexagon: polygon(6, 0),
  octagon: polygon(8, 22.5), star: polygon(10, -90, 0.45), hexagram: polygon(12, -90, 0.58),
  "star-diamond": polygon(8, -90, 0.4), hourglass: [[-1, -1], [1, -1], [-1, 1], [1, 1]],
  bowtie: [[-1, -1], [1, 1], [1, -1], [-1, 1]],
};

function symbol(parent, name, x, y, size, colour) {
  const r = size / 2;
  if (!SYMBOLS[name]) {
    const open = name === "circle-open";
    return node("circle", { cx: x, cy: y, r, fill: open ? "none" : colour, stroke: open ? colour : "none" }, parent);
  }
  const points = SYMBOLS[name].map(([a, b]) => `${(x + r * a).toFixed(1)},${(y + r * b).toFixed(1)}`).join(" ");
  return node("polygon", { points, fill: colour }, parent);
}

function number(value) {
  const size = Math.abs(value);
  if (value !== 0 && (size >= 1e6 || size < 1e-3)) return value.toExponential(1).replace(".0e", "e").replace("e+", "e");
  return value.toLocaleString("en-US", { maximumSignificantDigits: 6 });
}

function niceTicks(low, high, most, step, first = 0) {
  if (!step) {
    const rough = (high - low) / Math.max(1, most), power = 10 ** Math.floor(Math.log10(rough));
    step = power * [1, 2, 5, 10].find((each) => each * power >= rough * 0.999);
  } else while ((high - low) / step > most) step *= 2;
  const ticks = [];
  for (let k = Math.ceil((low - first) / step - 1e-9); first + k * step <= high + step * 1e-9; k++) {
    ticks.push(Number((first + k * step).toPrecision(12)));
  }
  return ticks;
}

// An axis knows its categories, its range in its own coordinates (logarithms on a logarithmic one), and pixels.
class Axis {
  constructor(spec = {}, traces, letter) {
    Object.assign(this, { spec, log: spec.type === "log", letter });
    const values = traces.flatMap((trace) => (trace.type === "violin" && letter === "y" ? [trace.y0] : trace[letter] || []));
    const named = values.some((value) => typeof value === "string" && value !== "");
    this.names = spec.categoryarray || (named ? [...new Set(values.filter((value) => value !== null))] : null);
    this.range = this.#range(traces, values);
  }

  #range(traces, values) {
    const { spec } = this;
    let [low, high] = spec.range || [null, null];
    if (low === null && this.names) [low, high] = [-0.6, this.names.length - 0.4];
    if (low === null) {
      const found = values.filter((value) => Number.isFinite(value)).map((value) => this.inner(value)).filter(Number.isFinite);
      // Arguments of a call are limited in number, and the values of a figure are not.
      [low, high] = found.length ? [found.reduce((a, b) => Math.min(a, b)), found.reduce((a, b) => Math.max(a, b))] : [0, 1];
      const room = 0.06 * (high - low) || 0.05 * Math.abs(high) || 1, least = low;
      [low, high] = [low - room, high + room];
      if (spec.rangemode === "tozero" && least >= 0 && !this.log) low = 0;
    }
    return spec.autorange === "reversed" && !spec.range ? [high, low] : [low, high];
  }

  inner(value) {
    if (this.names && typeof value === "string") return this.names.indexOf(value);
    return this.log ? Math.log10(value) : value;
  }

  pixel(value) {
    const [low, high] = this.range;
    return this.from + ((this.inner(value) - low) / (high - low)) * (this.to - this.from);
  }

  ticks() {
    const { spec } = this, [low, high] = [Math.min(...this.range), Math.max(...this.range)];
    if (this.names) return this.names.map((name) => [name, name]);
    if (spec.tickvals) return spec.tickvals.map((value, k) => [value, spec.ticktext?.[k] ?? number(value)]);
    const room = Math.abs((this.to ?? 300) - (this.from ?? 0)), most = Math.max(2, room / (this.letter === "x" ? 80 : 42));
    if (!this.log) return niceTicks(low, high, most, spec.dtick, spec.tick0).map((value) => [value, number(value)]);
    return niceTicks(Math.ceil(low), Math.floor(high), most, 1).map((power) => [10 ** power, number(10 ** power)]);
  }
}

function density(values, count = 60) {
  const sorted = [...values].sort((a, b) => a - b), n = sorted.length;
  const mean = sorted.reduce((sum, each) => sum + each, 0) / n;
  const spread = Math.sqrt(sorted.reduce((sum, each) => sum + (each - mean) ** 2, 0) / Math.max(1, n - 1));
  const width = 1.06 * spread * n ** -0.2 || 1e-3 * Math.abs(mean) || 1e-9;
  const [low, high] = [sorted[0], sorted[n - 1]];
  const places = Array.from({ length: count + 1 }, (_, k) => low + ((high - low) * k) / count);
  const heights = places.map((x) => sorted.reduce((sum, each) => sum + Math.exp(-0.5 * ((x - each) / width) ** 2), 0));
  const most = Math.max(...heights);
  const quantile = (share) => {
    const where = share * (n - 1), below = Math.floor(where);
    return sorted[below] + (where - below) * ((sorted[below + 1] ?? sorted[below]) - sorted[below]);
  };
  return { places, heights: heights.map((each) => each / most), quartiles: [0.25, 0.5, 0.75].map(quantile) };
}

const MARKS = {
  violin(trace, parent, x, y, put) {
    const { places, heights, quartiles } = density(trace.x), middle = y.pixel(trace.y0);
    const half = (Math.abs(y.pixel(y.names[1] ?? y.names[0]) - y.pixel(y.names[0])) || 34) * 0.45;
    const edge = (sign) => places.map((value, k) => `${x.pixel(value).toFixed(1)},${(middle + sign * half * heights[k]).toFixed(1)}`);
    const { color } = trace.line, points = [...edge(-1), ...edge(1).reverse()].join(" ");
    node("polygon", { points, fill: color, "fill-opacity": 0.3, stroke: color }, parent);
    const [left, median, right] = quartiles.map((value) => x.pixel(value));
    node("rect", { x: left, y: middle - 4, width: Math.max(1, right - left), height: 8, fill: "none", stroke: color }, parent);
    node("path", { d: `M${median} ${middle - 4}v8`, stroke: color, "stroke-width": 2 }, parent);
    put(median, middle, `${trace.name}\nmedian ${number(Number(quartiles[1].toPrecision(3)))}`);
  },

  bar(trace, parent, x, y, put) {
    const tall = 0.8 * Math.abs(y.pixel(y.names[1] ?? y.names[0]) - y.pixel(y.names[0]) || 0.6 * Math.abs(y.to - y.from));
    trace.x.forEach((value, k) => {
      if (!Number.isFinite(value)) return;
      const from = x.pixel(0), to = x.pixel(value), middle = y.pixel(trace.y[k]), text = at(trace.text, k) ?? "";
      node("rect", { x: from, y: middle - tall / 2, width: Math.max(0, to - from), height: tall, fill: at(trace.marker.color, k) }, parent);
      const inside = textWidth(text, 11) + 8 < to - from;
      const place = { x: inside ? to - 4 : to + 4, y: middle + 4, "text-anchor": inside ? "end" : "start", "font-size": 11 };
      node("text", { ...place, fill: inside ? "#fff" : "currentColor" }, parent, text);
      put((from + to) / 2, middle, `${trace.y[k]}\n${text}`);
    });
  },

  scatter(trace, parent, x, y, put) {
    const mode = trace.mode || "lines", places = trace.x.map((value, k) => [value, trace.y[k]]);
    const good = ([a, b]) => a !== null && b !== null && Number.isFinite(x.pixel(a)) && Number.isFinite(y.pixel(b));
    if (mode.includes("lines")) {
      let path = "", before = null;
      for (const place of places) {
        if (!good(place)) { before = null; continue; }
        const [a, b] = [x.pixel(place[0]).toFixed(1), y.pixel(place[1]).toFixed(1)];
        path += before === null ? `M${a} ${b}` : trace.line?.shape === "hv" ? `H${a}V${b}` : `L${a} ${b}`;
        before = place;
      }
      const { color = "#7d8590", width = 2, dash } = trace.line || {};
      node("path", { d: path, fill: "none", stroke: color, "stroke-width": width, "stroke-dasharray": DASHES[dash] || "none" }, parent);
    }
    places.forEach((place, k) => {
      if (!good(place)) return;
      const [a, b] = [x.pixel(place[0]), y.pixel(place[1])], { marker = {} } = trace;
      errors(trace.error_x, k, (sign, far) => node("path", { d: `M${a} ${b}H${x.pixel(place[0] + sign * far)}` }, null), parent);
      errors(trace.error_y, k, (sign, far) => node("path", { d: `M${a} ${b}V${y.pixel(place[1] + sign * far)}` }, null), parent);
      const size = at(marker.size, k) ?? 6, colour = at(marker.color, k) ?? trace.line?.color ?? "#7d8590";
      if (mode.includes("markers") && size) symbol(parent, at(marker.symbol, k) ?? "circle", a, b, size, colour);
      if (trace.hoverinfo !== "skip") put(a, b, plain(at(trace.hovertext, k) ?? trace.name ?? ""));
    });
  },
};

function errors(bar, k, line, parent) {
  if (!bar || bar.visible === false) return;
  const far = at(bar.array, k), back = bar.arrayminus ? at(bar.arrayminus, k) : far;
  for (const [sign, length] of [[1, far], [-1, back]]) {
    const made = length ? line(sign, length) : null;
    if (!made || /NaN|Infinity/.test(made.getAttribute("d"))) continue;
    made.setAttribute("stroke", bar.color);
    parent.append(made);
  }
}

function plain(text) {
  return String(text).replaceAll("<br>", "\n").replaceAll(/<\/?(b|sub)>/g, "");
}

// Names beside dots: where the figure wants them, or elsewhere around the dot, or not at all; inside the picture, always.
function labels(traces, scales, parent, area) {
  const taken = [];
  for (const trace of traces.filter((each) => (each.mode || "").includes("text"))) {
    const { x, y } = scales(trace), size = trace.textfont?.size ?? FONT;
    trace.x.forEach((value, k) => {
      const text = at(trace.text, k), [px, py] = [x.pixel(value), y.pixel(trace.y[k])];
      if (!text || px < area.left || px > area.right || py < area.top || py > area.bottom) return;
      const wide = textWidth(text, size), gap = (at(trace.marker?.size, k) ?? 6) / 2 + 3;
      const wanted = at(trace.textposition, k) || "top center";
      const others = ["middle right", "middle left", "top center", "bottom center", "top right", "top left", "bottom right", "bottom left"];
      for (const where of [wanted, ...others]) {
        const [down, across] = where.split(" ").map((word) => PLACES[word]);
        const left = across ? (across > 0 ? px + gap : px - gap - wide) : px - wide / 2;
        const top = down ? (down > 0 ? py + gap : py - gap - size) : py - size / 2;
        const box = { left, right: left + wide, top, bottom: top + size };
        const inside = box.left >= area.left && box.right <= area.right && box.top >= area.top - 4 && box.bottom <= area.bottom;
        if (!inside || taken.some((o) => box.left < o.right && o.left < box.right && box.top < o.bottom && o.top < box.bottom)) continue;
        taken.push(box);
        node("text", { x: left, y: top + size - 2, "font-size": size, fill: at(trace.textfont?.color, k) || "currentColor", class: "label" }, parent, text);
        return;
      }
    });
  }
}

function legend(figure, hidden, redraw) {
  const box = document.createElement("div");
  box.className = "legend";
  const entries = figure.data.filter((trace) => trace.name !== undefined && trace.showlegend !== false && trace.type !== "bar");
  if (figure.layout.showlegend === false || (entries.length < 2 && !figure.layout.showlegend)) return box;
  for (const trace of entries) {
    const key = trace.legendgroup ?? trace.name, entry = document.createElement("button");
    entry.type = "button";
    entry.className = hidden.has(key) ? "off" : "";
    const swatch = node("svg", { width: 22, height: 12 }, entry), colour = trace.line?.color ?? at(trace.marker?.color, 0);
    const mode = trace.mode || "";
    if (mode.includes("lines")) {
      const style = { stroke: colour, "stroke-width": Math.min(trace.line?.width ?? 2, 6), "stroke-dasharray": DASHES[trace.line?.dash] || "none" };
      node("path", { d: "M1 6H21", ...style }, swatch);
    }
    const size = Math.min(9, at(trace.marker?.size, 0) ?? 6);
    if (mode.includes("markers")) symbol(swatch, at(trace.marker?.symbol, 0) ?? "circle", 11, 6, size, colour);
    entry.append(trace.name);
    entry.addEventListener("click", () => (hidden.delete(key) || hidden.add(key), redraw()));
    entry.addEventListener("dblclick", () => {
      const keys = entries.map((each) => each.legendgroup ?? each.name).filter((each) => each !== key);
      const alone = keys.every((each) => hidden.has(each));
      hidden.clear();
      if (!alone) keys.forEach((each) => hidden.add(each));
      redraw();
    });
    box.append(entry);
  }
  return box;
}

function buttons(figure, redraw) {
  const box = document.createElement("div");
  box.className = "views";
  for (const { buttons: views } of figure.layout.updatemenus || []) {
    for (const { label, args } of views) {
      const button = document.createElement("button");
      [button.type, button.textContent] = ["button", label];
      button.addEventListener("click", () => {
        const [changes, layout, which] = args;
        which.forEach((place, k) => Object.keys(changes).forEach((name) => (figure.data[place][name] = changes[name][k])));
        for (const [path, value] of Object.entries(layout)) figure.layout[path.split(".")[0]][path.split(".")[1]] = value;
        redraw();
      });
      box.append(button);
    }
  }
  return box;
}

// A pair of axes of a figure with its place: those that share a domain are drawn once.
function drawFigure(plot, figure, hidden = new Set()) {
  const redraw = () => drawFigure(plot, figure, hidden);
  const { layout } = figure, width = Math.max(240, plot.clientWidth), tall = Number(plot.dataset.height);
  const traces = figure.data.filter((trace) => !hidden.has(trace.legendgroup ?? trace.name));
  const axes = {};
  for (const key of Object.keys(layout).filter((name) => /^[xy]axis\d*$/.test(name))) {
    const letter = key[0], id = letter + key.slice(5);
    axes[id] = new Axis(layout[key], traces.filter((trace) => (trace[`${letter}axis`] ?? letter) === id), letter);
  }
  const partner = (id) => {
    const trace = figure.data.find((each) => (each[`${id[0]}axis`] ?? id[0]) === id);
    return trace?.[id[0] === "x" ? "yaxis" : "xaxis"] ?? (id[0] === "x" ? "y" : "x");
  };
  const box = { top: (layout.annotations ? 26 : 12), bottom: tall - 46, left: 8, right: width - 12 };
  const ys = Object.entries(axes).filter(([id]) => id[0] === "y");
  const paired = ys.length > 1 && Object.keys(axes).filter((id) => id[0] === "x").length > 1;
  const narrow = paired && width < 560;  // The right half goes below the left one.
  for (const [id, y] of ys) {
    const [low, high] = y.spec.domain || [0, 1], tallest = box.bottom - box.top;
    [y.from, y.to] = [box.bottom - low * tallest, box.bottom - high * tallest];
    if (paired) [y.from, y.to] = [y.from - 44 * low, y.to + 0];
    const x = axes[partner(id)], [start, end] = (!narrow && x.spec.domain) || [0, 1];
    if (narrow) {
      const middle = (y.from + y.to) / 2, first = (x.spec.domain?.[0] ?? 0) < 0.3;
      [y.from, y.to] = first ? [middle - 28, y.to] : [y.from, middle + 22];
    }
    const title = y.spec.title?.text ? 18 : 0, room = (end - start) * (box.right - box.left);
    const widest = Math.max(0, ...y.ticks().map(([, text]) => textWidth(text)));
    y.labels = Math.min(widest, 0.42 * room);
    [x.from, x.to] = [box.left + start * (box.right - box.left) + y.labels + title + 8, box.left + end * (box.right - box.left)];
    if (!paired) for (const other of ys.slice(1)) [x.from] = [Math.max(x.from, box.left + (other[1].labels ?? 0) + title + 8)];
  }
  plot.replaceChildren();
  const above = (layout.legend?.y ?? 0) >= 1, entries = legend(figure, hidden, redraw);
  const svg = node("svg", { width, height: tall, viewBox: `0 0 ${width} ${tall}`, "font-size": FONT, class: "figure", role: "img" });
  plot.append(...(above ? [buttons(figure, redraw), entries, svg] : [buttons(figure, redraw), svg, entries]));
  const points = [];
  ys.forEach(([id, y], place) => {
    const x = axes[partner(id)];
    frame(svg, x, y, place === 0 || paired || y.spec.domain?.[0] === 0);
    const clip = `clip-${plot.dataset.number}-${id}`, [top, bottom] = [Math.min(y.from, y.to), Math.max(y.from, y.to)];
    const cut = node("clipPath", { id: clip }, node("defs", {}, svg));
    node("rect", { x: x.from - 8, y: top - 8, width: x.to - x.from + 20, height: bottom - top + 16 }, cut);
    const inside = node("g", { "clip-path": `url(#${clip})` }, svg);
    for (const shape of layout.shapes || []) shapes(inside, shape, x, y);
    for (const trace of traces.filter((each) => (each.yaxis ?? "y") === id)) {
      const group = node("g", { opacity: trace.opacity ?? 1 }, inside);
      MARKS[trace.type || "scatter"](trace, group, x, y, (px, py, text) => points.push([px, py, text]));
    }
    const mine = traces.filter((each) => (each.yaxis ?? "y") === id);
    labels(mine, () => ({ x, y }), svg, { left: x.from, right: x.to + 8, top, bottom });
  });
  for (const note of layout.annotations || []) {
    const y = box.bottom - (note.y ?? 1) * (box.bottom - box.top) - 8;
    node("text", { x: box.left, y, "font-weight": 600, fill: "currentColor" }, svg, plain(note.text));
  }
  pointing(plot, svg, points);
  plot.dataset.drawn = "yes";
}

function frame(svg, x, y, lower) {
  const [bottom, top] = [Math.max(y.from, y.to), Math.min(y.from, y.to)];
  let end = -Infinity;
  for (const [value, text] of x.ticks()) {
    const px = x.pixel(value), wide = textWidth(text);
    if (px < x.from - 1 || px > x.to + 1) continue;
    node("path", { d: `M${px} ${top}V${bottom}`, class: "grid" }, svg);
    const left = Math.min(Math.max(px - wide / 2, 0), x.to + 12 - wide);
    if (!lower || left < end + 6) continue;
    node("text", { x: left, y: bottom + 16, fill: "currentColor" }, svg, text);
    end = left + wide;
  }
  if (lower && x.spec.title?.text) {
    const title = shortened(x.spec.title.text, x.to - x.from + 40);
    const middle = Math.min((x.from + x.to) / 2, x.to + 10 - textWidth(title) / 2);
    node("text", { x: middle, y: bottom + 34, "text-anchor": "middle", fill: "currentColor" }, svg, title);
  }
  for (const [value, text] of y.ticks()) {
    const py = y.pixel(value);
    if (py < top - 1 || py > bottom + 1) continue;
    if (!y.names) node("path", { d: `M${x.from} ${py}H${x.to}`, class: "grid" }, svg);
    const shown = shortened(text, y.labels + 1);
    const made = node("text", { x: x.from - 6, y: py + 4, "text-anchor": "end", fill: "currentColor" }, svg, shown);
    if (shown !== text) node("title", {}, made, text);
  }
  if (y.spec.title?.text) {
    const place = `translate(${x.from - y.labels - 14} ${(top + bottom) / 2}) rotate(-90)`;
    node("text", { transform: place, "text-anchor": "middle", fill: "currentColor" }, svg, shortened(y.spec.title.text, bottom - top));
  }
}

function shapes(parent, shape, x, y) {
  const place = (axis, ref, value) => (ref === "paper" ? axis.from + value * (axis.to - axis.from) : axis.pixel(value));
  const [x0, x1] = [shape.x0, shape.x1].map((value) => place(x, shape.xref, value));
  const [y0, y1] = [shape.y0, shape.y1].map((value) => place(y, shape.yref, value));
  if (shape.type === "line") {
    const style = { stroke: shape.line.color, "stroke-width": shape.line.width, "stroke-dasharray": DASHES[shape.line.dash] || "none" };
    node("path", { d: `M${x0} ${y0}L${x1} ${y1}`, ...style }, parent);
  } else {
    const size = { x: Math.min(x0, x1), y: Math.min(y0, y1), width: Math.abs(x1 - x0), height: Math.abs(y1 - y0) };
    node("rect", { ...size, fill: shape.fillcolor }, parent);
  }
}

function pointing(plot, svg, points) {
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  plot.append(tip);
  svg.addEventListener("pointermove", (event) => {
    const { left, top } = svg.getBoundingClientRect(), [px, py] = [event.clientX - left, event.clientY - top];
    const far = ([x, y]) => Math.hypot(x - px, y - py);
    const nearest = points.reduce((best, each) => (best === null || far(each) < far(best) ? each : best), null);
    tip.hidden = nearest === null || far(nearest) > 24;
    if (tip.hidden) return;
    tip.textContent = nearest[2];
    tip.style.left = `${Math.max(0, Math.min(nearest[0] + 10, svg.clientWidth - tip.offsetWidth - 4))}px`;
    tip.style.top = `${svg.offsetTop + Math.max(0, nearest[1] - tip.offsetHeight - 8)}px`;
  });
  svg.addEventListener("pointerleave", () => (tip.hidden = true));
}
