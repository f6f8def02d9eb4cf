// Expert load: a canvas per layer, x = step, y = expert, colour = load over the even share, on a logarithmic scale.
"use strict";

const kAxisLeft = 56, kAxisBottom = 20;

function parseColour(hex) {
  return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
}

// The factor away from the even share at which the colours end: the least that holds 95 % of the cells.
function chooseSpan(heat) {
  const sizes = [];
  for (const panel of heat.panels) {
    for (const column of panel.load) {
      for (const load of column) sizes.push(Math.abs(Math.log(Math.max(load, 1) / 1000)));
    }
  }
  sizes.sort((a, b) => a - b);
  const size = Math.exp(sizes[Math.floor(0.95 * (sizes.length - 1))]);
  return [1.25, 1.5, 2, 4].find((span) => size <= span) || 8;
}

// Colour of a load given in thousandths of the even share.
function heatColour(load, span, stops) {
  const position = Math.log(Math.max(load, 1) / 1000) / Math.log(span);  // -1 to 1 within the scale
  const at = (Math.min(Math.max(position, -1), 1) + 1) / 2 * (stops.length - 1);
  const i = Math.min(Math.floor(at), stops.length - 2);
  return "rgb(" + stops[i].map((c, k) => Math.round(c + (stops[i + 1][k] - c) * (at - i))).join() + ")";
}

let heatSpan = 8;  // of all layers

class HeatMap {
  constructor(figure) {
    this.figure = figure;
    this.take();
    this.readout = figure.querySelector(".readout");
    this.canvas = figure.querySelector("canvas");
    this.hairline = element("div", "hairline");
    this.hairline.hidden = true;
    this.canvas.parentNode.querySelectorAll(".hairline").forEach((old) => old.remove());
    this.canvas.parentNode.append(this.hairline);
    this.place();
    this.height = Math.min(Math.max(this.panel.experts * 14, 110), 260);
    this.canvas.style.height = this.height + kAxisBottom + "px";
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.canvas);
    this.canvas.onmousemove = (event) => this.hover(event);
    this.canvas.onmouseleave = () => view.setCursor(null);
  }

  // Computes where the columns end on the x axis.
  place() { this.ends = this.heat.steps.map((step) => xOf(0, step)); }

  get width() { return this.canvas.clientWidth - kAxisLeft; }
  pixel(x) { return kAxisLeft + (x - view.range[0]) / (view.range[1] - view.range[0]) * this.width; }
  xAt(pixel) { return view.range[0] + (pixel - kAxisLeft) / this.width * (view.range[1] - view.range[0]); }

  // A column stands for the steps after the previous one, up to its own.
  column(x) {
    const i = this.ends.findIndex((end) => end >= x);
    return i < 0 ? this.ends.length - 1 : i;
  }

  draw() {
    if (this.canvas.clientWidth === 0) return;
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = this.canvas.clientWidth * ratio;
    this.canvas.height = (this.height + kAxisBottom) * ratio;
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    this.drawCells(context);
    this.drawAxes(context);
  }

  drawCells(context) {
    const stops = themeColour("--heat").split(/\s+/).map(parseColour);
    const row = this.height / this.panel.experts;
    context.save();
    context.beginPath();
    context.rect(kAxisLeft, 0, this.width, this.height);
    context.clip();
    this.panel.load.forEach((column, i) => {
      const left = i === 0 ? kAxisLeft : Math.floor(this.pixel(this.ends[i - 1]));
      const right = Math.ceil(this.pixel(this.ends[i]));
      if (right < kAxisLeft || left > kAxisLeft + this.width) return;
      column.forEach((load, expert) => {
        context.fillStyle = heatColour(load, heatSpan, stops);
        const top = Math.floor(expert * row);
        context.fillRect(left, top, Math.max(right - left, 1), Math.ceil((expert + 1) * row) - top);
      });
    });
    context.restore();
  }

  drawAxes(context) {
    context.fillStyle = themeColour("--muted");
    context.font = "12px " + getComputedStyle(document.body).fontFamily;
    context.textBaseline = "middle";
    context.textAlign = "right";
    const row = this.height / this.panel.experts;
    const every = Math.ceil(16 / row);
    for (let expert = 0; expert < this.panel.experts; expert += every) {
      context.fillText(String(expert), kAxisLeft - 8, Math.max((expert + 0.5) * row, 6));
    }
    const y = this.height + kAxisBottom - 7;
    context.textAlign = "left";
    context.fillText(kAxes[view.axis].name + " " + formatX(view.range[0]), kAxisLeft, y);
    context.textAlign = "right";
    context.fillText(formatX(view.range[1]), kAxisLeft + this.width, y);
  }

  hover(event) {
    const area = this.canvas.getBoundingClientRect();
    const x = event.clientX - area.left, y = event.clientY - area.top;
    if (x < kAxisLeft || y >= this.height) return view.setCursor(null);
    const i = this.column(this.xAt(x));
    const expert = Math.min(Math.max(Math.floor(y / this.height * this.panel.experts), 0), this.panel.experts - 1);
    view.setCursor(this.ends[i]);
    const load = this.panel.load[i][expert] / 1000;
    this.readout.textContent = "step " + this.heat.steps[i].toLocaleString("en") + " \u00b7 expert " + expert +
        " \u00b7 " +
        (100 * load / this.panel.experts).toFixed(1) + " % (" + load.toFixed(2) + "\u00d7)";
  }

  range() { this.draw(); }
  cursor(x) {
    const inside = x !== null && x >= view.range[0] && x <= view.range[1];
    this.hairline.hidden = !inside;
    if (inside) this.hairline.style.left = this.pixel(x) + "px";
    this.readout.textContent = "";
  }
  redraw() {
    this.place();
    this.draw();
  }
  take() {
    this.heat = data.heat;
    this.panel = data.heat.panels[this.figure.dataset.layer];
  }
  end() { this.observer.disconnect(); }
}

class HeatScale {
  constructor() {
    this.box = document.querySelector(".scale");
    this.take();
    this.redraw();
  }
  redraw() {
    const stops = themeColour("--heat").split(/\s+/);
    this.box.querySelector(".bar").style.background = "linear-gradient(to right, " + stops.join() + ")";
    this.box.querySelector(".low").textContent = "\u2264 " + formatNumber(1 / heatSpan) + "\u00d7";
    this.box.querySelector(".high").textContent = "\u2265 " + formatNumber(heatSpan) + "\u00d7 the even share";
  }
  take() { heatSpan = chooseSpan(data.heat); }
  range() {}
  cursor() {}
}

function drawHeatMaps() {
  if (!data.heat) return;
  view.listeners.push(new HeatScale());
  for (const figure of document.querySelectorAll("figure[data-layer]")) view.listeners.push(new HeatMap(figure));
}
