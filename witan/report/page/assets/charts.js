// Draws every <figure data-chart> with dygraphs. Axes, zoom, cursor and smoothing are shared by all plots through
// `view`; places on the x axis are in its units (steps, tokens or seconds; their logarithm on a logarithmic axis).
"use strict";

let data = JSON.parse(document.getElementById("data").textContent);

function themeColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function element(tag, className, text) {
  const e = document.createElement(tag);
  e.className = className;
  if (text !== undefined) e.textContent = text;
  return e;
}

// Four significant digits; large numbers with the usual prefixes.
function formatNumber(value) {
  const size = Math.abs(value);
  if (size >= 1e12) return +(value / 1e12).toPrecision(4) + " T";
  if (size >= 1e9) return +(value / 1e9).toPrecision(4) + " G";
  if (size >= 1e6) return +(value / 1e6).toPrecision(4) + " M";
  if (size >= 1e4) return +(value / 1e3).toPrecision(4) + " K";
  const text = size > 0 && size < 1e-2 ? (+value.toPrecision(3)).toExponential() : String(+value.toPrecision(4));
  return text.replaceAll("-", "\u2212");
}

function formatTime(seconds) {
  for (const [unit, name] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= unit) return +(seconds / unit).toPrecision(3) + " " + name;
  }
  return +seconds.toPrecision(3) + " s";
}

// The seconds of training at a step, between those that were recorded.
function secondsAt(clock, step) {
  if (clock.length === 0) return NaN;
  let low = 0, high = clock.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (clock[middle][0] <= step) low = middle + 1; else high = middle;
  }
  if (low === clock.length) return clock[low - 1][1];
  const [x0, y0] = low > 0 ? clock[low - 1] : [0, 0];
  const [x1, y1] = clock[low];
  return y0 + (y1 - y0) * (step - x0) / (x1 - x0);
}

const kAxes = {
  step: {name: "step", of: (run, step) => step, format: (x) => x.toLocaleString("en", {maximumFractionDigits: 0})},
  tokens: {name: "tokens", of: (run, step) => step * run.tokens_per_step, format: formatNumber},
  time: {name: "training time", of: (run, step) => secondsAt(run.clock, step), format: formatTime},
};

// State that all plots share: the axes, the visible range of x and the x under the cursor.
const view = {
  axis: "step",
  logX: false,
  logY: false,
  smoothing: "auto",  // or "none", or a number of steps
  hidden: new Set(),  // curves, by curveKey()
  hiddenRuns: new Set(),
  full: [0, 1],
  range: [0, 1],
  cursor: null,
  changing: false,  // the plots are being changed: not a zoom by the user
  listeners: [],
  isZoomed() { return this.range[0] !== this.full[0] || this.range[1] !== this.full[1]; },
  setRange(low, high) {
    if (low === this.range[0] && high === this.range[1]) return;
    this.range = [low, high];
    this.tell((listener) => listener.range());
    this.setCursor(this.cursor);
  },
  setCursor(x) {
    this.cursor = x;
    this.tell((listener) => listener.cursor(x));
  },
  redraw() { this.tell((listener) => listener.redraw()); },
  tell(what) {
    for (const listener of this.listeners) what(listener);
  },
};

// The place of a run's step on the x axis; NaN if it has none.
function xOf(run, step) {
  const x = kAxes[view.axis].of(data.runs[run] || data.runs[0], step);
  if (!view.logX) return x;
  return x > 0 ? Math.log10(x) : NaN;
}

function formatX(x) {
  return kAxes[view.axis].format(view.logX ? Math.pow(10, x) : x);
}

// The range from the first to the last place of all runs.
function fullRange() {
  let low = Infinity, high = -Infinity;
  data.runs.forEach((run, i) => {
    for (const step of [view.logX ? Math.max(run.steps[0], 1) : run.steps[0], run.steps[1]]) {
      const x = xOf(i, step);
      if (Number.isFinite(x)) [low, high] = [Math.min(low, x), Math.max(high, x)];
    }
  });
  if (!(low <= high)) return [0, 1];
  return low < high ? [low, high] : [low - 0.5, high + 0.5];
}

// The last point at or before x, or null.
function pointAt(points, x) {
  let low = 0, high = points.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][0] <= x) low = middle + 1; else high = middle;
  }
  return low > 0 ? points[low - 1] : null;
}

// An exponential moving average over about `span` steps, corrected for its start at zero. Points may lie apart. Where
// they have been equal for 10 spans it is their value, as in the report's own (curve.h).
function movingAverage(points, span) {
  const keep = 1 - 1 / span;
  let average = 0, weight = 0, last = null, equalSince = 0;
  let before = points.length > 0 ? points[0][0] - 1 : 0;
  return points.map(([step, y]) => {
    const kept = Math.pow(keep, step - before);
    average = kept * average + (1 - kept) * y;
    weight = kept * weight + (1 - kept);
    if (y !== last) equalSince = before;
    [before, last] = [step, y];
    if (step - equalSince < 10 * span) return [step, average / weight];
    average = weight * y;
    return [step, y];
  });
}

// The spans that smoothing offers: up to a tenth of the longest run, since an average that reaches further back has the
// losses of another stage of training in it, and lies far above the last ones.
function smoothingSpans() {
  const steps = Math.max(0, ...data.runs.map((run) => run.steps[1] - run.steps[0] + 1));
  return [10, 30, 100, 300, 1000, 3000, 10000].filter((span) => span === 10 || 10 * span <= steps);
}

// The points that a smoothed series averages: its own raw points, or the faint series before it; null: not smoothed.
function rawPoints(chart, i) {
  const before = chart.series[i - 1];
  return chart.series[i].raw || (before && before.style === "faint" ? before.points : null);
}

function smoothedPoints(chart, i) {
  const raw = rawPoints(chart, i);
  if (!raw || view.smoothing === "auto") return chart.series[i].points;
  return view.smoothing === "none" ? raw : movingAverage(raw, view.smoothing);
}

function curveKey(chart, series) {
  return chart.title + "\n" + series.name;
}

function isShown(chart, series) {
  return !view.hidden.has(curveKey(chart, series)) && !view.hiddenRuns.has(series.run || 0);
}

// Why the chart's y axis cannot be logarithmic in the visible range: no value there is above 0. "" where there are no
// values, null where it can be.
function whyNoLog(chart) {
  const [low, high] = view.range;
  let zeros = 0, below = 0;
  for (const [i, s] of chart.series.entries()) {
    if (!isShown(chart, s)) continue;
    for (const [step, y] of smoothedPoints(chart, i)) {
      const x = xOf(s.run || 0, step);
      if (!(x >= low && x <= high)) continue;
      if (y > 0) return null;
      if (y < 0) ++below; else ++zeros;
    }
  }
  if (below > 0) return "no value shown is above 0: no log axis";
  return zeros > 0 ? "all values shown are 0: no log axis" : "";
}

// The points of each series as they are drawn, on a logarithmic y axis or a linear one.
function plottedPoints(chart, log) {
  return chart.series.map((s, i) => {
    const points = [];
    for (const [step, y] of smoothedPoints(chart, i)) {
      const x = xOf(s.run || 0, step);
      if (Number.isFinite(x) && (!log || y > 0)) points.push([x, y]);
    }
    return points;
  });
}

// The range of a logarithmic y axis: the values in the visible range of x, with as much room below and above on paper
// (dygraphs' own padding turns the axis round where they span less than 1). null: there are none.
function logRange(chart, plotted) {
  const [left, right] = view.range;
  let low = Infinity, high = 0;
  plotted.forEach((points, i) => {
    if (!isShown(chart, chart.series[i])) return;
    for (const [x, y] of points) {
      if (x >= left && x <= right) [low, high] = [Math.min(low, y), Math.max(high, y)];
    }
  });
  if (!(low <= high)) return null;
  const pad = Math.max(Math.pow(high / low, 0.05), 1.0001);
  return [low / pad, high * pad];
}

// dygraphs wants one table: a row per x, null where a series has no point.
function toRows(plotted) {
  const rows = new Map();
  plotted.forEach((points, i) => {
    for (const [x, y] of points) {
      if (!rows.has(x)) rows.set(x, [x, ...plotted.map(() => null)]);
      rows.get(x)[i + 1] = y;
    }
  });
  if (rows.size === 0) return [[view.full[0], ...plotted.map(() => null)]];
  return [...rows.values()].sort((a, b) => a[0] - b[0]);
}

// The marks of the runs that are shown, as they stand on the x axis.
function marksOf(chart) {
  const marks = [];
  data.runs.forEach((run, i) => {
    if (view.hiddenRuns.has(i) || !chart.series.some((s) => (s.run || 0) === i)) return;
    for (const {step, text} of run.marks || []) {
      const x = xOf(i, step);
      if (Number.isFinite(x)) marks.push({x, text});
    }
  });
  return marks;
}

const styles = {
  faint: {strokeWidth: 1, highlightCircleSize: 0},
  line: {strokeWidth: 2},
  dots: {strokeWidth: 2, drawPoints: true, pointSize: 2.5},
  dashed: {strokeWidth: 1.5, strokePattern: [6, 4], highlightCircleSize: 0},
};

// Dashes of the first and further curves of one run, which have its colour.
const kDashes = [null, [8, 4], [2, 3], [10, 3, 2, 3]];

function dashes(s) {
  return s.style === "dashed" ? styles.dashed.strokePattern : kDashes[(s.dash || 0) % kDashes.length];
}

function seriesColour(s) {
  const colour = themeColour("--series-" + s.colour);
  return s.style === "faint" ? colour + "66" : colour;
}

const kMark = 24;  // pixels of a curve that stand before its name

// A piece of the curve as it is drawn: its colour comes from the style.
function legendMark(s) {
  const make = (tag, attributes) => {
    const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, value);
    return e;
  };
  const mark = make("svg", {class: "key", width: kMark, height: 8, "aria-hidden": "true"});
  const line = make("line", {x1: 0, x2: kMark, y1: 4, y2: 4, stroke: "currentColor", "stroke-width": 2.5});
  if (dashes(s)) line.setAttribute("stroke-dasharray", dashes(s).join(" "));
  mark.append(line);
  if (s.style === "dots") mark.append(make("circle", {cx: kMark / 2, cy: 4, r: 3.5, fill: "currentColor"}));
  return mark;
}

// dygraphs knows the series by number: a name comes from the run and may be anything.
function seriesOptions(chart) {
  const options = {};
  chart.series.forEach((s, i) => {
    const style = s.points.length > 1 ? s.style : "dots";
    options["s" + i] = {...styles[style], strokePattern: dashes(s), color: seriesColour(s)};
  });
  return options;
}

// Round numbers of the x axis' unit on a logarithmic axis, as their logarithms.
function logTicks(low, high, most) {
  const within = (marks) => marks.filter((x) => x >= low && x <= high);
  const powers = (digits, every) => {
    const marks = [];
    for (let power = Math.floor(low); power <= high; power += every) {
      for (const digit of digits) marks.push(power + Math.log10(digit));
    }
    return within(marks);
  };
  const times = [0.01, 0.1, 1, 10, 60, 600, 3600, 6 * 3600, 86400, 10 * 86400, 100 * 86400].map(Math.log10);
  const few = view.axis === "time" ? within(times) : powers([1], Math.max(Math.ceil((high - low) / most), 1));
  const fine = few.length < 2 || (view.axis !== "time" && (high - low) * 3 <= most);
  return fine ? powers([1, 2, 5], 1) : few;
}

// Round numbers of the x axis' unit.
function linearTicks(low, high, most) {
  const rough = (high - low) / most;
  const power = Math.pow(10, Math.floor(Math.log10(rough)));
  let sizes = [0.5, 1, 2, 5, 10].map((digit) => digit * power);
  if (view.axis === "time" && rough > 1) {
    sizes = [0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400,
      ...sizes.filter((size) => size > 86400)];
  }
  const multiples = (size) => {
    const step = view.axis === "step" ? Math.max(size, 1) : size, ticks = [];
    for (let v = Math.ceil(low / step) * step; v <= high; v += step) ticks.push(v);
    return ticks;
  };
  const at = sizes.findIndex((size) => size >= rough);
  const ticks = multiples(sizes[at]);
  return ticks.length < 2 && at > 0 ? multiples(sizes[at - 1]) : ticks;
}

// Ticks of the x axis: two at least, since one alone gives no scale.
function xTicks(low, high, pixels) {
  const most = Math.max(Math.floor(pixels / 80), 2);
  if (!view.logX) {
    const label = view.axis === "time" ? formatTime : formatNumber;
    return linearTicks(low, high, most).map((v) => ({v, label: label(v)}));
  }
  let ticks = logTicks(low, high, most);
  if (ticks.length < 2) ticks = linearTicks(Math.pow(10, low), Math.pow(10, high), most).map(Math.log10);
  return ticks.map((v) => ({v, label: formatX(v)}));
}

const kEdge = 4;  // pixels beside the visible range: half a dot, which would be cut where the plot ends

function interaction() {
  const model = {...Dygraph.defaultInteractionModel};
  // A finger scrolls the page; zooming needs a mouse or a pen.
  for (const name of ["touchstart", "touchmove", "touchend"]) delete model[name];
  model.dblclick = () => view.setRange(...view.full);
  return model;
}

class ChartPlot {
  constructor(figure, chart) {
    this.figure = figure;
    this.chart = chart;
    const plot = figure.querySelector(".plot");
    plot.textContent = "";
    const canvas = element("div", "canvas");
    this.hairline = element("div", "hairline");
    this.tip = element("div", "tip");
    this.noLog = element("div", "no-log");
    this.hairline.hidden = this.tip.hidden = true;
    plot.append(canvas, this.hairline, this.tip, this.noLog);
    this.scale();
    plot.onmousemove = (event) => this.showTip(event.clientX - plot.getBoundingClientRect().left);
    plot.onmouseleave = () => { this.tip.hidden = true; };
    this.marks = marksOf(chart);
    this.makeLegend();
    this.graph = new Dygraph(canvas, toRows(this.plotted), {
      legend: "never",
      connectSeparatedPoints: true,
      gridLineWidth: 1,
      axisLineWidth: 1,
      highlightCircleSize: 3.5,
      yRangePad: 8,
      xLabelHeight: 16,
      axes: {
        x: {drawGrid: false, ticker: (low, high, pixels) => xTicks(view.range[0], view.range[1], pixels)},
        y: {axisLabelFormatter: (y) => formatNumber(y), axisLabelWidth: 56, pixelsPerLabel: 38},
      },
      interactionModel: interaction(),
      underlayCallback: (context, area, graph) => this.drawMarks(context, area, graph),
      highlightCallback: (event, x) => view.setCursor(x),
      unhighlightCallback: () => view.setCursor(null),
      drawCallback: (g, first) => {
        if (!first && !view.changing) this.takeRange(...g.xAxisRange());
      },
      ...this.options(),
    });
    this.drawn = this.graph.xAxisRange();
    this.showReadout(null);
  }

  // A logarithmic y axis where there is something to draw on it.
  scale() {
    const why = view.logY ? whyNoLog(this.chart) : null;
    this.log = view.logY && why === null;
    this.noLog.textContent = why || "";
    this.plotted = plottedPoints(this.chart, this.log);
  }

  options() {
    return {
      labels: ["x", ...this.chart.series.map((s, i) => "s" + i)],
      visibility: this.chart.series.map((s) => isShown(this.chart, s)),
      series: seriesOptions(this.chart),
      gridLineColor: themeColour("--rule"),
      axisLineColor: themeColour("--rule"),
      dateWindow: this.window(),
      valueRange: this.log ? logRange(this.chart, this.plotted) : null,
      logscale: this.log,
      includeZero: this.chart.zero && !this.log,
      xlabel: kAxes[view.axis].name,
    };
  }

  // Dotted lines behind the curves.
  drawMarks(context, area, graph) {
    context.save();
    context.strokeStyle = themeColour("--mark");
    context.setLineDash([2, 3]);
    for (const {x} of this.marks) {
      const at = Math.round(graph.toDomXCoord(x)) + 0.5;
      if (at < area.x || at > area.x + area.w) continue;
      context.beginPath();
      context.moveTo(at, area.y);
      context.lineTo(at, area.y + area.h);
      context.stroke();
    }
    context.restore();
  }

  // Explains the marks near a place of the plot.
  showTip(pixel) {
    const kNear = 6, kMost = 5;
    const near = this.marks.filter(({x}) => Math.abs(this.graph.toDomXCoord(x) - pixel) <= kNear);
    const {x, w} = this.graph.getArea();
    this.tip.hidden = near.length === 0 || pixel < x - kNear;
    if (this.tip.hidden) return;
    const lines = near.slice(-kMost).map((mark) => mark.text);
    if (near.length > kMost) lines.unshift(near.length - kMost + " earlier");
    this.tip.textContent = lines.join("\n");
    const left = pixel < x + w / 2;
    this.tip.style.left = left ? pixel + 10 + "px" : "";
    this.tip.style.right = left ? "" : this.figure.querySelector(".plot").clientWidth - pixel + 10 + "px";
  }

  // The legend doubles as the readout, and as the switch of each curve.
  makeLegend() {
    const box = this.figure.querySelector(".readout");
    box.textContent = "";
    this.place = element("span", "place");
    box.append(this.place);
    this.items = this.chart.series.map((s) => {
      const item = element("button", "item");
      item.type = "button";
      item.title = "Show or hide this curve";
      const key = legendMark(s);
      const value = element("b", "");
      item.append(key, s.name, " ", value);
      item.addEventListener("click", () => {
        const name = curveKey(this.chart, s);
        if (!view.hidden.delete(name)) view.hidden.add(name);
        this.redraw();
      });
      box.append(item);
      return {item, key, value};
    });
  }

  // Shows the values at the cursor, or else the last ones. The text keeps its width, so that nothing moves.
  showReadout(x) {
    const at = x === null ? view.range[1] : x;
    this.place.textContent = kAxes[view.axis].name + " " + formatX(at);
    this.chart.series.forEach((s, i) => {
      const {item, key, value} = this.items[i];
      const point = pointAt(this.plotted[i], at);
      const shown = isShown(this.chart, s);
      key.style.color = seriesColour(s);
      item.setAttribute("aria-pressed", String(shown));
      value.textContent = shown && point ? formatNumber(point[1]) : "\u2013";
    });
  }

  // The visible range and what lies beside it.
  window() {
    const [low, high] = view.range;
    const width = this.graph ? this.graph.getArea().w : this.figure.querySelector(".plot").clientWidth - 64;
    const beside = (high - low) * kEdge / Math.max(width - 2 * kEdge, 1);
    return [low - beside, high + beside];
  }
  // Somebody zoomed, or the plot has another width.
  takeRange(left, right) {
    if (left === this.drawn[0] && right === this.drawn[1]) return;
    const low = Math.max(left, view.full[0]), high = Math.min(right, view.full[1]);
    if (low < high) view.setRange(low, high);
    this.range();
  }
  range() {
    if (view.logY) return this.redraw();
    this.update({dateWindow: this.window(), valueRange: null});
  }
  cursor(x) {
    const inside = x !== null && x >= view.range[0] && x <= view.range[1];
    this.hairline.hidden = !inside;
    if (inside) this.hairline.style.left = this.graph.toDomXCoord(x) + "px";
    this.showReadout(inside ? x : null);
  }
  redraw() {
    this.scale();
    this.marks = marksOf(this.chart);
    this.update({file: toRows(this.plotted), ...this.options()});
    this.cursor(view.cursor);
  }
  update(options) {
    const before = view.changing;
    view.changing = true;
    this.drawn = options.dateWindow;
    this.graph.updateOptions(options);
    view.changing = before;
  }
  // Takes newer data of the same chart, perhaps with another curve.
  take() {
    const names = (chart) => JSON.stringify(chart.series.map((s) => s.name));
    const before = names(this.chart);
    this.chart = data.charts[this.figure.dataset.chart];
    if (names(this.chart) !== before) this.makeLegend();
  }
  end() { this.graph.destroy(); }
}

// Draws all plots of the page anew, after the places for them were made.
function drawCharts() {
  for (const listener of view.listeners) if (listener.end) listener.end();
  view.listeners = [];
  view.full = fullRange();
  view.range = view.full.slice();
  view.cursor = null;
  for (const figure of document.querySelectorAll("figure[data-chart]")) {
    const plot = new ChartPlot(figure, data.charts[figure.dataset.chart]);
    view.listeners.push(plot);
    addExports(figure, plot);
  }
  drawHeatMaps();
}

// Called when the axes or the data have changed. A range that was shown whole stays whole.
function changeAxes(change) {
  const whole = !view.isZoomed();
  const oldAxis = view.axis, oldLog = view.logX;
  change();
  view.full = fullRange();
  if (whole || view.axis !== oldAxis || view.logX !== oldLog) view.range = view.full.slice();
  view.cursor = null;
  view.redraw();
}
