// Lines over time and evidence over values, as SVG.

import { drawn, element, fill, say } from "./dom.js";
import { formatCount, formatNumber, formatShare, formatTime } from "./format.js";

const LEFT = 52, RIGHT = 6, TOP = 8, BOTTOM = 18;
const GAP_SECONDS = 5; // without a point; a line does not cross it

function plot() {
  return drawn("svg", { class: "plot", role: "img" });
}

function frame(svg) {
  const { width, height } = svg.getBoundingClientRect();
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  return { right: width - RIGHT, bottom: height - BOTTOM };
}

// From 0 to a round number, with three ticks; or over whole powers of ten.
function linear(highest) {
  const power = 10 ** Math.floor(Math.log10(highest || 1));
  const top = [1, 2, 5, 10].map((step) => step * power).find((step) => step >= highest);
  return { ticks: [0, top / 2, top], share: (value) => value / top };
}

function logarithmic(values) {
  const low = Math.floor(Math.log10(Math.min(...values)));
  const high = Math.max(low + 1, Math.ceil(Math.log10(Math.max(...values))));
  const ticks = Array.from({ length: high - low + 1 }, (_, index) => 10 ** (low + index));
  return { ticks, share: (value) => (Math.log10(value) - low) / (high - low) };
}

function path(points) {
  return points.map(([x, y, begins]) => `${begins ? "M" : "L"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
}

// Values of every second of the last minutes: `draw(times, [{ name, values }])`; null is no value.
export class LineChart {
  #options;
  #svg = plot();
  #legend = element("ul", { className: "legend" });
  #times = [];
  #lines = [];
  #shown = null; // the index a person points at; null: the newest

  constructor(title, options) {
    this.#options = options;
    this.figure = element("figure", {}, element("figcaption", {}, title), this.#svg, this.#legend);
    this.title = title;
    this.#svg.addEventListener("pointermove", (event) => this.#pointAt(event));
    this.#svg.addEventListener("pointerleave", () => this.#pointAt(null));
  }

  draw(times, lines) {
    [this.#times, this.#lines] = [times, lines];
    const { right, bottom } = frame(this.#svg);
    const values = lines.flatMap((line) => line.values).filter((value) => value !== null && value > 0);
    const { top = Math.max(0, ...values), logarithmic: isLogarithmic } = this.#options;
    const scale = isLogarithmic && values.length ? logarithmic(values) : linear(top);
    const end = times.at(-1) ?? 0;
    const minutes = Math.max(1, Math.ceil((end - (times[0] ?? end)) / 60)); // as far as the server's history goes
    const x = (time) => LEFT + (1 - (end - time) / (60 * minutes)) * (right - LEFT);
    const y = (value) => bottom - scale.share(value) * (bottom - TOP);
    this.x = x;
    this.#svg.replaceChildren(
      ...scale.ticks.flatMap((tick) => this.#tick(tick, y(tick), right)),
      drawn("text", { x: LEFT, y: bottom + 14 }, `${minutes} min ago`),
      drawn("text", { x: right, y: bottom + 14, "text-anchor": "end" }, "now"),
      ...lines.map((line, index) =>
        drawn("path", { class: `trace trace-${index}`, d: path(this.#points(line, x, y)) })),
      ...(this.#shown === null ? [] : [this.#cursor(x(times[this.#shown]), bottom)]),
    );
    this.#tell();
  }

  #tick(value, y, right) {
    return [
      drawn("line", { class: "grid", x1: LEFT, x2: right, y1: y, y2: y }),
      drawn("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, this.#options.format(value)),
    ];
  }

  #cursor(x, bottom) {
    return drawn("line", { class: "cursor", x1: x, x2: x, y1: TOP, y2: bottom });
  }

  #points({ values }, x, y) {
    let before = -Infinity;
    const found = [];
    values.forEach((value, index) => {
      if (value === null || (this.#options.logarithmic && value <= 0)) return;
      found.push([x(this.#times[index]), y(value), this.#times[index] - before > GAP_SECONDS]);
      before = this.#times[index];
    });
    return found;
  }

  #pointAt(event) {
    this.#shown = null;
    if (event !== null && this.#times.length) {
      const away = this.#times.map((time) => Math.abs(this.x(time) - event.offsetX));
      this.#shown = away.indexOf(Math.min(...away));
    }
    this.draw(this.#times, this.#lines);
  }

  // The values of one moment, in the legend; and in words for those who do not see the lines.
  #tell() {
    const moment = this.#shown ?? this.#times.length - 1;
    const told = this.#lines.map(({ name, values }, index) => {
      const value = values[moment] ?? null;
      return { name, index, text: `${name} ${value === null ? "–" : this.#options.format(value)}` };
    });
    const when = this.#shown === null ? "" : ` at ${formatTime(this.#times[this.#shown])}`;
    say(this.figure.querySelector("figcaption"), this.title + when);
    fill(this.#legend, told, (line) => line.name, legendEntry, (entry, line) => say(entry.lastChild, line.text));
    this.#svg.setAttribute("aria-label", `${this.title}: now ${told.map((line) => line.text).join(", ") || "nothing"}`);
  }
}

function legendEntry({ index }) {
  const mark = drawn("svg", { "aria-hidden": "true" });
  mark.append(drawn("line", { class: `trace trace-${index}`, x1: 0, x2: 22, y1: 4, y2: 4 }));
  return element("li", {}, mark, element("span"));
}

// How the evidence of one monitor went, against its threshold, 1/alpha; both on a logarithmic scale.
export class EvidenceChart {
  #svg = plot();
  #evidence = element("small");
  #mean = element("small");

  constructor(name) {
    this.name = name;
    const caption = element("figcaption", {}, name.replaceAll("_", " ").replace("violations.", "limit: "));
    this.figure = element("figure", {}, caption, this.#evidence, this.#svg, this.#mean);
  }

  draw({ trace, threshold, e_value, num_values, mean, limit }) {
    const { right, bottom } = frame(this.#svg);
    const low = Math.min(0.1, ...trace.map(([, evidence]) => Math.max(evidence, 1e-3)));
    const within = (value) => Math.min(Math.max(value ?? threshold, low), threshold); // infinity comes as null
    const share = (value) => Math.log(within(value) / low) / Math.log(threshold / low);
    const y = (value) => bottom - share(value) * (bottom - TOP);
    const last = trace.at(-1)[0];
    const x = (number) => LEFT + (number / Math.max(last, 1)) * (right - LEFT);
    const line = [[0, 1], ...trace].map(([number, evidence], index) => [x(number), y(evidence), index === 0]);
    this.#svg.replaceChildren(
      ...[1, threshold].map((value) =>
        drawn("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, formatNumber(value))),
      drawn("line", { class: "grid", x1: LEFT, x2: right, y1: y(1), y2: y(1) }),
      drawn("line", { class: "threshold", x1: LEFT, x2: right, y1: y(threshold), y2: y(threshold) }),
      drawn("text", { x: LEFT, y: bottom + 14 }, "0"),
      drawn("text", { x: right, y: bottom + 14, "text-anchor": "end" }, `${formatCount(last)} values`),
      drawn("path", { class: "trace trace-0", d: path(line) }),
      drawn("circle", { class: "end", r: 3, cx: line.at(-1)[0], cy: line.at(-1)[1] }),
    );
    this.#tell(e_value, threshold, mean, limit, num_values);
  }

  #tell(evidence, threshold, mean, limit, numValues) {
    const found = evidence === null ? "beyond measure" : formatNumber(evidence);
    const told = `evidence ${found} of 1/α = ${formatNumber(threshold)}`;
    say(this.#evidence, told);
    say(this.#mean, numValues ? this.#meanText(mean, limit) : "nothing to judge by yet");
    this.#svg.setAttribute("aria-label", told);
    const isOver = evidence === null || evidence >= threshold;
    this.figure.className = isOver ? "bad" : evidence ** 2 >= threshold ? "warn" : "";
  }
  #meanText(mean, limit) {
    if (this.name !== "reward") return `${formatShare(mean)}; ${formatShare(limit)} allowed`;
    return `${formatShare(2 * mean - 1)} of the range below its control; ${formatShare(2 * limit - 1)} allowed`;
  }
}
