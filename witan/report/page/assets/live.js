// Keeps the page of `witan watch` up to date: requests changes, and shows the state of the runs.
"use strict";

const live = JSON.parse(document.getElementById("live").textContent);
const kEveryMs = 2000;
const token = new URLSearchParams(location.search).get("token") || "";
const shownParts = {};

const runBar = element("div", "runs");
document.getElementById("controls").prepend(runBar);

// With several runs, each name also switches its curves on and off.
function showRuns(runs) {
  runBar.textContent = "";
  runs.forEach((run, i) => {
    const item = element(runs.length > 1 ? "button" : "span", "run " + run.state);
    const dot = element("span", "dot");
    if (runs.length > 1) {
      dot.style.background = themeColour("--series-" + (i % 8 + 1));
      item.type = "button";
      item.title = "Show or hide this run";
      item.setAttribute("aria-pressed", String(!view.hiddenRuns.has(i)));
      item.addEventListener("click", () => {
        if (!view.hiddenRuns.delete(i)) view.hiddenRuns.add(i);
        view.redraw();
        showRuns(runs);
      });
    }
    item.append(dot, element("b", "", run.name), " ", element("span", "state", run.state), " ", run.text);
    runBar.append(item);
  });
}

function showLost(text) {
  runBar.textContent = "";
  const item = element("span", "run unreadable");
  item.append(element("span", "dot"), text);
  runBar.append(item);
}

// A part that has not changed is not sent.
function putPart(name, html) {
  if (html === undefined || shownParts[name] === html) return false;
  shownParts[name] = html;
  document.querySelector("[data-part=" + name + "]").innerHTML = html;
  return true;
}

// The places that the page must have for its plots.
function placesOf(plots) {
  return JSON.stringify([plots.charts.map((chart) => chart.title), plots.heat ? plots.heat.panels.length : 0]);
}

// Applies `changes` to `old`: a list comes as the number of elements to keep of the old one, and the elements after them.
function changedData(old, changes) {
  if (Array.isArray(changes)) return changes.map((one, i) => changedData(old && old[i], one));
  if (changes === null || typeof changes !== "object") return changes;
  if ("keep" in changes) return (old || []).slice(0, changes.keep).concat(changes.then);
  return Object.fromEntries(Object.entries(changes).map(([key, one]) => [key, changedData(old && old[key], one)]));
}

// Keeps the places of unchanged plots, so that zoomed ranges and hidden curves stay.
function putUpdate(update) {
  const fresh = update.data || changedData(data, update.changes);
  const hadCharts = data.charts.length > 0, samePlaces = placesOf(data) === placesOf(fresh);
  if (!hadCharts && fresh.charts.length > 0) return location.reload();
  const whole = !view.isZoomed();
  data = fresh;
  view.full = fullRange();
  if (whole) view.range = view.full.slice();
  putPart("summary", update.parts.summary);
  const otherRest = putPart("rest", update.parts.rest);
  if (samePlaces) {
    view.tell((listener) => listener.take());
    view.redraw();
  } else {
    putPart("charts", update.parts.charts);
    drawCharts();
  }
  if (otherRest || !samePlaces) listSections();
  listSpans();
}

async function ask() {
  try {
    const answer = await fetch("update?known=" + live.version + "&token=" + encodeURIComponent(token));
    if (!answer.ok) throw new Error(await answer.text());
    const update = await answer.json();
    if (update.parts) putUpdate(update);
    live.version = update.version;
    showRuns(update.runs);
  } catch (error) {
    showLost("no answer from witan watch: this is what was known last (" + error.message + ")");
  }
  setTimeout(ask, document.hidden ? 5 * kEveryMs : kEveryMs);
}

showRuns(live.runs);
setTimeout(ask, kEveryMs);
