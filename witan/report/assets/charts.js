// Draws every <figure data-chart> with dygraphs. Zoom and cursor are shared by all plots through `view`.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);

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
  if (size >= 1e9) return +(value / 1e9).toPrecision(4) + " G";
  if (size >= 1e6) return +(value / 1e6).toPrecision(4) + " M";
  if (size >= 1e4) return +(value / 1e3).toPrecision(4) + " k";
  const text = size > 0 && size < 1e-2 ? (+value.toPrecision(3)).toExponential() : String(+value.toPrecision(4));
  return text.replaceAll("-", "\u2212");
}

// What all plots share: the visible range of steps and the step under the cursor.
const view = {
  full: data.steps,
  range: data.steps.slice(),
  listeners: [],
  reset: null,
  setRange(low, high) {
    if (low === this.range[0] && high === this.range[1]) return;
    this.range = [low, high];
    for (const listener of this.listeners) listener.range(low, high);
    this.reset.hidden = low === this.full[0] && high === this.full[1];
  },
  setCursor(step) {
    for (const listener of this.listeners) listener.cursor(step);
  },
};

// The last point at or before `step`, or null.
function pointAt(points, step) {
  let low = 0, high = points.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][0] <= step) low = middle + 1; else high = middle;
  }
  return low > 0 ? points[low - 1] : null;
}

// dygraphs wants one table: a row per step, null where a series has no point.
function toRows(series) {
  const rows = new Map();
  series.forEach((s, i) => {
    for (const [x, y] of s.points) {
      if (!rows.has(x)) rows.set(x, [x, ...series.map(() => null)]);
      rows.get(x)[i + 1] = y;
    }
  });
  return [...rows.values()].sort((a, b) => a[0] - b[0]);
}

const styles = {
  faint: {strokeWidth: 1, highlightCircleSize: 0},
  line: {strokeWidth: 2},
  dots: {strokeWidth: 2, drawPoints: true, pointSize: 2.5},
  dashed: {strokeWidth: 1.5, strokePattern: [6, 4], highlightCircleSize: 0},
};

function seriesColour(s) {
  const colour = themeColour("--series-" + s.colour);
  return s.style === "faint" ? colour + "66" : colour;
}

// dygraphs knows the series by number: a name comes from the run and may be anything.
function seriesOptions(chart) {
  const options = {};
  chart.series.forEach((s, i) => {
    const style = s.points.length > 1 ? s.style : "dots";
    options["s" + i] = {...styles[style], color: seriesColour(s)};
  });
  return options;
}

function themeOptions(chart) {
  return {gridLineColor: themeColour("--rule"), axisLineColor: themeColour("--rule"), series: seriesOptions(chart)};
}

// The legend doubles as the readout: names alone, or with values at the cursor.
function showReadout(box, chart, step) {
  box.textContent = "";
  if (step !== null) box.append(element("span", "item", "step " + step.toLocaleString("en")));
  for (const s of chart.series) {
    const item = element("span", "item");
    const key = element("span", s.style === "dashed" ? "key dashed" : "key");
    key.style.borderTopColor = seriesColour(s);
    const point = step === null ? null : pointAt(s.points, step);
    item.append(key, s.name);
    if (point) item.append(" ", element("b", "", formatNumber(point[1])));
    box.append(item);
  }
}

function interaction() {
  const model = {...Dygraph.defaultInteractionModel};
  // A finger scrolls the page; zooming needs a mouse or a pen.
  for (const name of ["touchstart", "touchmove", "touchend"]) delete model[name];
  model.dblclick = () => view.setRange(...view.full);
  return model;
}

function drawChart(figure, chart) {
  const box = figure.querySelector(".readout");
  const plot = figure.querySelector(".plot");
  const canvas = element("div", "canvas");
  const hairline = element("div", "hairline");
  hairline.hidden = true;
  plot.append(canvas, hairline);
  showReadout(box, chart, null);
  const graph = new Dygraph(canvas, toRows(chart.series), {
    labels: ["step", ...chart.series.map((s, i) => "s" + i)],
    legend: "never",
    dateWindow: view.range,
    includeZero: chart.zero,
    connectSeparatedPoints: true,
    gridLineWidth: 1,
    axisLineWidth: 1,
    highlightCircleSize: 3.5,
    xRangePad: 3,
    yRangePad: 8,
    axes: {
      x: {drawGrid: false, axisLabelFormatter: (x) => Number.isInteger(x) ? formatNumber(x) : "", pixelsPerLabel: 70},
      y: {axisLabelFormatter: (y) => formatNumber(y), axisLabelWidth: 56, pixelsPerLabel: 38},
    },
    interactionModel: interaction(),
    highlightCallback: (event, x) => view.setCursor(x),
    unhighlightCallback: () => view.setCursor(null),
    drawCallback: (g, first) => {
      if (!first) view.setRange(...g.xAxisRange());
    },
    ...themeOptions(chart),
  });
  view.listeners.push({
    range: (low, high) => {
      const [left, right] = graph.xAxisRange();
      if (left !== low || right !== high) graph.updateOptions({dateWindow: [low, high], valueRange: null});
    },
    cursor: (step) => {
      hairline.hidden = step === null;
      if (step !== null) hairline.style.left = graph.toDomXCoord(step) + "px";
      showReadout(box, chart, step);
    },
    theme: () => {
      graph.updateOptions(themeOptions(chart));
      showReadout(box, chart, null);
    },
  });
}

view.reset = element("button", "reset", "Reset zoom");
view.reset.hidden = true;
view.reset.addEventListener("click", () => view.setRange(...view.full));
document.body.append(view.reset);

for (const figure of document.querySelectorAll("figure[data-chart]")) {
  drawChart(figure, data.charts[figure.dataset.chart]);
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const listener of view.listeners) listener.theme();
});
