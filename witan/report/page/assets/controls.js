// The bar above the charts: axes, smoothing, zoom, the page's sections; and the export of each chart.
"use strict";

// Canvas and file names of an exported chart.
function download(name, blob) {
  const link = element("a", "");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function fileName(chart, ending) {
  return chart.title.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "") + ending;
}

// A row per x with the curves that are shown, as they are shown.
function toCsv(plot) {
  const shown = plot.chart.series.map((s, i) => i).filter((i) => isShown(plot.chart, plot.chart.series[i]));
  const quoted = (text) => "\"" + text.replaceAll("\"", "\"\"") + "\"";
  const lines = [[kAxes[view.axis].name, ...shown.map((i) => plot.chart.series[i].name)].map(quoted).join(",")];
  for (const row of toRows(shown.map((i) => plot.plotted[i]))) {
    const x = view.logX ? Math.pow(10, row[0]) : row[0];
    lines.push([+x.toPrecision(12), ...row.slice(1).map((y) => y === null ? "" : y)].join(","));
  }
  return lines.join("\n") + "\n";
}

// The plot with its title, legend and labels, which dygraphs keeps outside of its canvas.
function toImage(plot) {
  const ratio = window.devicePixelRatio || 1, above = 46;
  const area = plot.figure.querySelector(".plot .canvas").getBoundingClientRect();
  const canvas = document.createElement("canvas");
  canvas.width = (area.width + 24) * ratio;
  canvas.height = (area.height + above + 12) * ratio;
  const context = canvas.getContext("2d");
  const font = getComputedStyle(document.body).fontFamily;
  context.scale(ratio, ratio);
  context.fillStyle = themeColour("--surface");
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.fillStyle = themeColour("--ink");
  context.font = "600 14px " + font;
  context.fillText(plot.chart.title + (plot.chart.unit ? ", " + plot.chart.unit : ""), 12, 20);
  context.font = "12px " + font;
  let x = 12;
  for (const s of plot.chart.series.filter((one) => isShown(plot.chart, one))) {
    context.strokeStyle = seriesColour(s);
    context.lineWidth = 2.5;
    context.setLineDash(dashes(s) || []);
    context.beginPath();
    context.moveTo(x, 34);
    context.lineTo(x + kMark, 34);
    context.stroke();
    context.fillStyle = themeColour("--muted");
    context.fillText(s.name, x + kMark + 6, 38);
    x += kMark + 22 + context.measureText(s.name).width;
  }
  context.drawImage(plot.graph.hidden_, 12, above, area.width, area.height);
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (const label of plot.figure.querySelectorAll(".dygraph-axis-label, .dygraph-xlabel")) {
    const box = document.createRange();
    box.selectNodeContents(label);
    const place = box.getBoundingClientRect();
    context.fillText(label.textContent, 12 + place.left + place.width / 2 - area.left,
                     above + place.top + place.height / 2 - area.top);
  }
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

function addExports(figure, plot) {
  for (const old of figure.querySelectorAll(".exports")) old.remove();
  const box = element("span", "exports");
  const add = (text, hint, action) => {
    const button = element("button", "", text);
    button.type = "button";
    button.title = hint;
    button.addEventListener("click", action);
    box.append(button);
  };
  add("PNG", "Save this chart as an image", async () => download(fileName(plot.chart, ".png"), await toImage(plot)));
  add("CSV", "Save the curves that are shown as a table",
      () => download(fileName(plot.chart, ".csv"), new Blob([toCsv(plot)], {type: "text/csv"})));
  figure.querySelector("figcaption").append(box);
}

function option(value, text) {
  const made = element("option", "", text);
  made.value = value;
  return made;
}

function choice(name, options, change) {
  const label = element("label", "", name + " ");
  const select = element("select", "");
  select.append(...options.map(([value, text]) => option(value, text)));
  select.addEventListener("change", () => change(select.value));
  label.append(select);
  return label;
}

function check(name, change) {
  const label = element("label", "");
  const box = element("input", "");
  box.type = "checkbox";
  box.addEventListener("change", () => change(box.checked));
  label.append(box, " " + name);
  return label;
}

// The choices grow with a run that goes on.
function listSpans() {
  const select = document.getElementById("smoothing");
  for (const span of select ? smoothingSpans() : []) {
    const value = String(span);
    if (![...select.options].some((known) => known.value === value)) {
      select.append(option(value, span.toLocaleString("en") + " steps"));
    }
  }
}

// Links to the sections, which may have changed.
function listSections() {
  const nav = document.querySelector("#controls nav");
  nav.textContent = "";
  document.querySelectorAll("main h2").forEach((title, i) => {
    title.id = "section-" + i;
    const link = element("a", "", title.textContent);
    link.href = "#" + title.id;
    nav.append(link);
  });
}

function makeControls() {
  const bar = document.getElementById("controls");
  const axes = [["step", "step"]];
  if (data.runs.every((run) => run.tokens_per_step > 0)) axes.push(["tokens", "tokens"]);
  axes.push(["time", "training time"]);
  const smoothing = choice("smoothing", [["auto", "automatic"], ["none", "none"]], (value) => changeAxes(() => {
    view.smoothing = Number(value) || value;
  }));
  smoothing.querySelector("select").id = "smoothing";
  const reset = element("button", "reset", "Reset zoom");
  reset.type = "button";
  reset.disabled = true;
  reset.addEventListener("click", () => view.setRange(...view.full));
  const row = element("div", "row");
  row.append(
      choice("x axis", axes, (value) => changeAxes(() => { view.axis = value; })),
      check("log x", (on) => changeAxes(() => { view.logX = on; })),
      check("log y", (on) => changeAxes(() => { view.logY = on; })),
      smoothing,
      reset, element("span", "hint", "drag across a chart to zoom; click a curve\u2019s name to hide it"));
  bar.append(row, element("nav", ""));
  const showReset = () => { reset.disabled = !view.isZoomed(); };
  const {setRange, redraw} = view;
  view.setRange = function (low, high) { setRange.call(view, low, high); showReset(); };
  view.redraw = function () { redraw.call(view); showReset(); };
}

if (data.charts.length > 0) makeControls(); else document.getElementById("controls").append(element("nav", ""));
drawCharts();
listSections();
listSpans();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => view.redraw());
