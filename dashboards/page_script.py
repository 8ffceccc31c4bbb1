"""The page's own script: draws the figures in the reader's colours, light or dark.

A trace with `rects` is a set of rectangles: row, start and length come from the figure's columns.
They become one outline a trace, and what the pointer is on is found by arithmetic.
"""

from typing import Final

SCRIPT: Final = """
"use strict";
(function () {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  function painted(layout) {
    const style = getComputedStyle(document.documentElement);
    const get = function (name) { return style.getPropertyValue(name).trim(); };
    const text = get("--text"), line = get("--line"), panel = get("--panel"), dim = get("--dim");
    const axis = { gridcolor: line, linecolor: line, zerolinecolor: line };
    return Object.assign({}, layout, {
      font: { color: text, family: "system-ui, sans-serif", size: 13 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 80, r: 16, t: 40, b: 50 },
      uirevision: "kept",
      modebar: { bgcolor: "rgba(0,0,0,0)", color: dim, activecolor: text },
      hoverlabel: { align: "left", bgcolor: panel, bordercolor: line, font: { color: text } },
      xaxis: Object.assign({}, axis, layout.xaxis),
      yaxis: Object.assign({}, axis, layout.yaxis)
    });
  }

  function outline(table, rects) {
    const x = [], y = [], top = rects.band[0], bottom = rects.band[1];
    rects.pick.forEach(function (at) {
      let start = table.start[at], length = table.length[at];
      if (rects.part === "wait") { length = Math.min(table.wait[at], length); }
      if (rects.part === "exposed") {
        const part = Math.min(table.exposed[at], length);
        start += length - part;
        length = part;
      }
      const end = start + length, row = table.row[at];
      x.push(start, end, end, start, start, null);
      y.push(row + top, row + top, row + bottom, row + bottom, row + top, null);
    });
    return { x: x, y: y };
  }

  function traces(figure) {
    return figure.data.map(function (trace) {
      if (trace.rects) {
        return Object.assign({}, trace, outline(figure.columns[trace.rects.of], trace.rects));
      }
      if (!figure.strings.length || !trace.hovertext) { return trace; }
      const texts = trace.hovertext.map(function (at) { return figure.strings[at]; });
      return Object.assign({}, trace, { hovertext: texts });
    });
  }

  function time(ms) {
    if (ms === null) { return "unknown"; }
    if (ms === 0) { return "0 ns"; }
    const units = [["s", 1e3], ["ms", 1], ["µs", 1e-3], ["ns", 1e-6]];
    const unit = units.find(function (one) { return ms >= one[1]; }) || units[3];
    return Number((ms / unit[1]).toPrecision(3)) + " " + unit[0];
  }

  function told(figure, name, at) {
    const table = figure.columns[name];
    if (name === "folded") { return table.calls[at] + " collectives folded, in " + time(table.length[at]); }
    if (name === "steps") { return "step " + table.step[at] + ", " + time(table.length[at]); }
    const step = table.step[at] === null ? "outside every step" : "step " + table.step[at];
    const number = table.number[at] === null ? "unknown" : table.number[at];
    return figure.strings[table.text[at]] + "\\n" + step + ", number " + number + " of its group\\ntook " +
      time(table.length[at]) + ", exposed " + time(table.exposed[at]) + ", waited " + time(table.wait[at]) +
      ", floor " + time(table.floor[at]);
  }

  function found(table, row, from, to) {
    let best = -1;
    for (let at = 0; at < table.row.length; at += 1) {
      const start = table.start[at], end = start + table.length[at];
      const hit = table.row[at] === row && start <= to && end >= from;
      if (hit && (best < 0 || table.length[at] < table.length[best])) { best = at; }
    }
    return best;
  }

  function explain(name) {
    const place = document.getElementById(name + "-figure"), figure = figures[name];
    const tip = document.createElement("div");
    tip.className = "tip";
    tip.hidden = true;
    document.body.append(tip);
    place.addEventListener("mouseleave", function () { tip.hidden = true; });
    place.addEventListener("mousemove", function (event) {
      const box = place.querySelector(".nsewdrag").getBoundingClientRect();
      const xs = place.layout.xaxis.range, ys = place.layout.yaxis.range;
      const wide = (xs[1] - xs[0]) / box.width;
      const x = xs[0] + (event.clientX - box.left) * wide;
      const row = Math.round(ys[1] + (event.clientY - box.top) / box.height * (ys[0] - ys[1]));
      let text = "";
      if (event.clientX >= box.left && event.clientX <= box.right && event.clientY >= box.top &&
          event.clientY <= box.bottom) {
        // Two pixels of grace: many collectives are thinner than one.
        ["calls", "folded", "steps"].some(function (table) {
          const at = found(figure.columns[table], row, x - 2 * wide, x + 2 * wide);
          if (at >= 0) { text = told(figure, table, at); }
          return at >= 0;
        });
      }
      tip.textContent = text;
      tip.hidden = text === "";
      tip.style.left = Math.max(0, Math.min(event.clientX + 14, window.innerWidth - 480)) + "px";
      tip.style.top = (event.clientY + 16) + "px";
    });
  }

  function draw(name) {
    const figure = figures[name];
    // The buttons are named one by one: Plotly's own choice has one that uploads the chart.
    const buttons = ["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"];
    const options = { responsive: true, displaylogo: false, plotlyServerURL: "", modeBarButtons: [buttons] };
    return Plotly.react(name + "-figure", traces(figure), painted(figure.layout), options);
  }

  const names = Object.keys(figures);
  Promise.all(names.map(draw)).then(function () {
    names.filter(function (name) { return figures[name].columns.calls; }).forEach(explain);
    document.documentElement.dataset.drawn = names.join(" ");
  });
  dark.addEventListener("change", function () { names.forEach(draw); });
})();
"""
