// Draw metrics over steps by uPlot: each number's mean with the band of its lowest and highest, hover, and new steps
// as they come. What is drawn is also there as a table.

import uPlot from "./vendor/uplot/uPlot.esm.js";

const NAMES_AT_ONCE = 16;
const POINTS = 400;
const APPENDED = 200;
const HEIGHT = matchMedia("(max-width: 40rem)").matches ? 140 : 210;
const TABLE_ROWS = 60;
const SYNC = "steps";

let charts = [];
let appended = 0;

export async function startCharts() {
  const place = document.querySelector(".charts[data-series]");
  if (!place) return;
  await load(place);
  document.addEventListener("muster:change", event => append(place, event.detail));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach(chart => chart.draw()));
  new ResizeObserver(() => charts.forEach(chart => chart.resize())).observe(place);
}

async function load(place) {
  const figures = [...place.querySelectorAll(".chart")];
  const names = [...new Set(figures.flatMap(figure => figure.dataset.names.split(" ")))];
  const series = new Map();
  try {
    const parts = [];
    for (let at = 0; at < names.length; at += NAMES_AT_ONCE) parts.push(names.slice(at, at + NAMES_AT_ONCE));
    for (const page of await Promise.all(parts.map(part => fetchSeries(place.dataset.series, part)))) {
      for (const one of page.series) series.set(one.name, one);
    }
  } catch (error) {
    for (const figure of figures) showFailure(figure);
    return;
  }
  charts.forEach(chart => chart.remove());
  charts = figures.map(figure => new Chart(figure, series));
  appended = 0;
  performance.mark("muster-drawn");
}

async function fetchSeries(url, names) {
  const query = new URLSearchParams(names.map(name => ["name", name]));
  query.set("points", POINTS);
  const reply = await fetch(`${url}?${query}`);
  if (!reply.ok) throw new Error(`HTTP ${reply.status}`);
  return reply.json();
}

// Add the numbers of a step that was just reported; read everything again once that has made the curves too dense.
function append(place, state) {
  if (state.metrics_step === null) return;
  const grown = charts.filter(chart => chart.append(state.metrics_step, state.metrics)).length;
  appended += grown > 0;
  if (appended > APPENDED) load(place);
}

function showFailure(figure) {
  const note = document.createElement("div");
  note.className = "empty";
  note.textContent = "The numbers cannot be read now.";
  figure.querySelector(".plot").replaceChildren(note);
}

// Return the ends of an axis on which there is a single value: uPlot's own reach to 100.
function around(low, high, least) {
  return low === high ? [low - least, high + least] : null;
}

class Chart {
  constructor(figure, series) {
    this.figure = figure;
    this.plot = figure.querySelector(".plot");
    this.names = figure.dataset.names.split(" ");
    this.labels = figure.dataset.labels.split("|");
    this.points = new Map(); // step → per name [mean, low, high]
    this.names.forEach((name, place) => {
      const one = series.get(name);
      one?.steps.forEach((step, at) => this.set(step, place, [one.mean[at], one.low[at], one.high[at]]));
    });
    this.figure.querySelector(".values").addEventListener("toggle", () => this.list());
    this.draw();
  }

  set(step, place, values) {
    if (!this.points.has(step)) this.points.set(step, []);
    this.points.get(step)[place] = values;
  }

  // Take the numbers of a step; return whether there were any that are new.
  append(step, metrics) {
    let grown = false;
    this.names.forEach((name, place) => {
      const value = metrics[name];
      const known = this.points.get(step)?.[place];
      if (typeof value !== "number" || (known && known[0] === value)) return;
      this.set(step, place, [value, value, value]);
      grown = true;
    });
    if (grown && this.drawn) this.drawn.setData(this.columns());
    else if (grown) this.draw();
    if (grown) { this.tellNewest(this.drawn); this.describe(); this.list(); }
    return grown;
  }

  // Return what uPlot draws: steps, then the means of each metric, then low and high of the only one.
  columns() {
    const steps = [...this.points.keys()].sort((a, b) => a - b);
    const column = (place, part) => steps.map(step => this.points.get(step)[place]?.[part] ?? null);
    const columns = [steps, ...this.names.map((_, place) => column(place, 0))];
    return this.hasBand() ? [...columns, column(0, 1), column(0, 2)] : columns;
  }

  hasBand() {
    return this.names.length === 1;
  }

  draw() {
    this.remove();
    this.figure.classList.toggle("is-empty", !this.points.size); // which the sheet folds to a line
    if (!this.points.size) return this.plot.replaceChildren();
    const style = getComputedStyle(document.documentElement);
    const colour = name => style.getPropertyValue(name).trim();
    const axis = {
      stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") },
      font: "12px system-ui, sans-serif",
    };
    const curves = this.names.map((_, place) => ({
      label: this.labels[place], stroke: colour(`--curve-${1 + place % 4}`), width: 2, spanGaps: true,
      dash: place >= 4 ? [6, 4] : undefined, points: { show: this.points.size < 25, size: 5 }, value: (drawn, value, _, at) => this.legendText(drawn, value, at),
    }));
    const hidden = { stroke: "transparent", width: 0, points: { show: false }, spanGaps: true };
    const band = this.hasBand() ? [{ ...hidden, label: "lowest" }, { ...hidden, label: "highest" }] : [];
    const options = {
      width: Math.max(200, this.plot.clientWidth), height: HEIGHT,
      cursor: { sync: { key: SYNC }, y: false, focus: { prox: 24 } },
      scales: {
        x: { time: false, range: (drawn, low, high) => drawn.data[0].length === 1 ? [drawn.data[0][0], drawn.data[0][0] + 1] : [low, high] },
        y: { range: (_, low, high) => around(low, high, Math.abs(low) / 10 || 0.1) ?? uPlot.rangeNum(low, high, 0.1, true) },
      },
      axes: [{ ...axis, size: 34, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6] }, { ...axis, size: 56, values: (_, ticks) => ticks.map(shown) }],
      series: [{ label: "step", value: (_, step) => step === null ? "–" : step.toLocaleString("en") }, ...curves, ...band],
      bands: this.hasBand() ? [{ series: [3, 2], fill: `${colour("--curve-1")}26` }] : [],
      legend: { live: true },
      hooks: { setLegend: [drawn => this.tellNewest(drawn)] },
    };
    this.plot.replaceChildren();
    this.plot.classList.toggle("has-band", this.hasBand());
    this.drawn = new uPlot(options, this.columns(), this.plot);
    this.tellNewest(this.drawn);
    this.describe();
  }

  // Let the legend say each curve's newest value while nothing is pointed at.
  tellNewest(drawn) {
    if (drawn.cursor.idx !== null && drawn.cursor.idx !== undefined) return;
    const idxs = drawn.data.map((column, place) => place ? column.findLastIndex(value => value !== null) : column.length - 1);
    drawn.setLegend({ idxs: idxs.map(at => at < 0 ? null : at) }, false);
  }

  // Return a value as the legend shows it: with the band that it is the mean of, where there is one.
  legendText(drawn, value, at) {
    if (value === null || value === undefined || at === null || !this.hasBand()) return shown(value);
    const [low, high] = [drawn.data[2][at], drawn.data[3][at]];
    return low === high ? shown(value) : `${shown(value)} (${shown(low)} to ${shown(high)})`;
  }

  remove() {
    this.drawn?.destroy();
    this.drawn = null;
  }

  resize() {
    const width = Math.max(200, this.plot.clientWidth);
    if (this.drawn && this.drawn.width !== width) this.drawn.setSize({ width, height: HEIGHT });
  }

  // Say in words what is drawn.
  describe() {
    const title = this.figure.querySelector("h3").textContent;
    const curves = this.names.map((_, place) => {
      const steps = [...this.points.keys()].filter(step => this.points.get(step)[place]).sort((a, b) => a - b);
      if (!steps.length) return `${this.labels[place]} is not reported`;
      const first = this.points.get(steps[0])[place][0], last = this.points.get(steps.at(-1))[place][0];
      return `${this.labels[place]} from ${shown(first)} at step ${steps[0]} to ${shown(last)} at step ${steps.at(-1)}`;
    });
    this.plot.setAttribute("aria-label", `${title} by step: ${curves.join("; ")}`);
  }

  // Fill the table of numbers while it is open: the newest points, newest first.
  list() {
    const details = this.figure.querySelector(".values");
    if (!details.open) return;
    const table = document.createElement("table");
    const head = table.createTHead().insertRow();
    for (const label of ["step", ...this.labels]) {
      const cell = head.appendChild(document.createElement("th"));
      cell.scope = "col";
      cell.textContent = label;
    }
    const body = table.createTBody();
    const steps = [...this.points.keys()].sort((a, b) => b - a).slice(0, TABLE_ROWS);
    for (const step of steps) {
      const row = body.insertRow();
      row.insertCell().textContent = step.toLocaleString("en");
      this.names.forEach((_, place) => { row.insertCell().textContent = shown(this.points.get(step)[place]?.[0] ?? null); });
    }
    details.querySelector(".wide").replaceChildren(table);
  }
}

// Return a number as the server writes it: four significant digits, whole ones with separators.
function shown(value) {
  if (value === null || value === undefined) return "–";
  if (Math.abs(value) < 1e15 && (Number.isInteger(value) || Math.abs(value) >= 1000)) return Math.round(value).toLocaleString("en");
  return Number(value.toPrecision(4)).toString();
}
