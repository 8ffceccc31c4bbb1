"""The page's own script: draws the figures in the reader's colours, light or dark.

A trace with `rects` is a set of rectangles: row, start and length come from the figure's columns.
They become one outline a row, and what the pointer is on is found by arithmetic. The bill works at once;
Plotly is run after the page was painted, and then figures are drawn one after the other, those nearest to
what the reader sees first. `html[data-first]` names the first one to be seen; `html[data-drawn]` is there
when all are drawn.
"""

from __future__ import annotations

from typing import Final

from shardtoll.dashboards.page_highlight import HIGHLIGHT
from shardtoll.dashboards.page_pointer import POINTER

_DRAW: Final = """
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const names = Object.keys(figures);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  }

  function place(name) { return document.getElementById(name + "-figure"); }

  function painted(name) {
    const layout = figures[name].layout;
    const text = colour("text"), line = colour("line"), panel = colour("panel");
    const axis = { gridcolor: line, linecolor: line, zerolinecolor: line };
    return Object.assign({}, layout, {
      font: { color: text, family: "system-ui, sans-serif", size: 13 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      margin: Object.assign({ l: 80, r: 16, t: 40, b: 50 }, layout.margin),
      uirevision: "kept",
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("dim"), activecolor: text },
      hoverlabel: { align: "left", bgcolor: panel, bordercolor: line, font: { color: text } },
      shapes: shapes(name),
      xaxis: Object.assign({}, axis, layout.xaxis),
      yaxis: Object.assign({}, axis, layout.yaxis)
    });
  }

  function box(table, rects, at) {
    const reach = table.tall ? table.tall[at] : 0, row = table.row[at];
    let start = table.start[at], length = table.length[at];
    if (rects.part === "wait") { length = Math.min(table.wait[at], length); }
    if (rects.part === "exposed") {
      const part = Math.min(table.exposed[at], length);
      start += length - part;
      length = part;
    }
    return [start, start + length, row - reach + rects.band[0], row + reach + rects.band[1]];
  }

  // One path for each row: along the row's edge, round one rectangle after the other. What joins them has no
  // height, so it fills nothing. Plotly makes an element of each stretch between two nulls.
  function outline(table, rects) {
    const rows = new Map(), x = [], y = [];
    rects.pick.forEach(function (at) {
      const side = box(table, rects, at), row = side[2] + " " + side[3];
      if (!rows.has(row)) { rows.set(row, []); }
      rows.get(row).push(side);
    });
    rows.forEach(function (sides) {
      sides.forEach(function (side) {
        x.push(side[0], side[0], side[1], side[1]);
        y.push(side[2], side[3], side[3], side[2]);
      });
      x.push(null);
      y.push(null);
    });
    return { x: x, y: y };
  }

  const made = {};

  function traces(name) {
    const figure = figures[name];
    made[name] = made[name] || figure.data.map(function (trace) {
      if (trace.rects) {
        return Object.assign({}, trace, outline(figure.columns[trace.rects.of], trace.rects));
      }
      if (!figure.strings.length || !trace.hovertext) { return trace; }
      const texts = trace.hovertext.map(function (at) { return figure.strings[at]; });
      return Object.assign({}, trace, { hovertext: texts });
    });
    return made[name].map(function (trace, at) { return lit(name, trace, at); });
  }

  function draw(name) {
    // The buttons are named one by one: Plotly's own choice has one that uploads the chart.
    const buttons = ["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"];
    const options = { responsive: true, displaylogo: false, plotlyServerURL: "", modeBarButtons: [buttons] };
    return Plotly.react(place(name), traces(name).concat(keyed(name)), painted(name), options);
  }
"""

_START: Final = """
  const left = new Set(names);

  // Of the figures that are not drawn yet the one nearest to what the reader sees.
  function nearest() {
    const tall = window.innerHeight;
    const away = function (name) {
      const side = place(name).getBoundingClientRect();
      return Math.max(side.top - tall, -side.bottom, 0);
    };
    return Array.from(left).reduce(function (best, name) { return away(name) < away(best) ? name : best; });
  }

  // After the browser has painted; a page in the background is not painted.
  function painting(then) {
    if (document.hidden) { window.setTimeout(then, 0); return; }
    window.requestAnimationFrame(function () { window.setTimeout(then, 0); });
  }

  function first(name) {
    left.delete(name);
    return draw(name).then(function () { wire(name); });
  }

  function next() {
    if (!left.size) { document.documentElement.dataset.drawn = names.join(" "); return; }
    const name = nearest();
    first(name).then(function () {
      painting(function () {
        document.documentElement.dataset.first = document.documentElement.dataset.first || name;
        next();
      });
    });
  }

  // Plotly's text is no script until then: the bill is painted and works before a browser has read it.
  function load() {
    const text = document.getElementById("plotly"), script = document.createElement("script");
    if (!text) { return; }
    script.textContent = text.textContent;
    text.replaceWith(script);
    next();
  }

  fromAddress();
  painting(load);
  dark.addEventListener("change", function () {
    names.forEach(function (name) { if (!left.has(name)) { draw(name); } });
  });
  window.addEventListener("beforeprint", function () {
    document.documentElement.classList.add("paper");
    load();
    names.forEach(function (name) { if (left.has(name)) { first(name); } else { draw(name); } });
  });
  window.addEventListener("afterprint", function () {
    document.documentElement.classList.remove("paper");
    names.forEach(draw);
  });
"""

SCRIPT: Final = f'\n"use strict";\n(function () {{{_DRAW}{HIGHLIGHT}{POINTER}{_START}}})();\n'
