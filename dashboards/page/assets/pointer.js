// Pointer and keys: what a mark is, and where the ranks of a collective arrived.
//
// A figure that has the focus is stepped through by arrow keys; what is reached is told in a live region.
((page) => {
  "use strict";

  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  document.body.append(tip);

  page.say = (text) => {
    const region = document.getElementById("told");
    if (region) { region.textContent = text; }
  };

  function time(ms) {
    if (ms === null) { return "unknown"; }
    if (ms === 0) { return "0 ns"; }
    const units = [["s", 1e3], ["ms", 1], ["µs", 1e-3], ["ns", 1e-6]];
    const unit = units.find((pair) => ms >= pair[1]) || units[3];
    return `${Number((ms / unit[1]).toPrecision(3))} ${unit[0]}`;
  }

  // The wanted meetings of a timeline, each with its rows by rank, and the first and last of them to arrive.
  function meetings(table, wanted) {
    const members = new Map();
    table.met.forEach((number, row) => {
      if (!wanted.has(number)) { return; }
      if (!members.has(number)) { members.set(number, []); }
      members.get(number).push(row);
    });
    return Array.from(members, ([number, rows]) => {
      rows.sort((a, b) => table.row[a] - table.row[b]);
      const first = rows.reduce((best, row) => (table.start[row] < table.start[best] ? row : best));
      const last = rows.reduce((best, row) => (table.start[row] > table.start[best] ? row : best));
      return { number, rows, last, late: table.start[last] - table.start[first] };
    });
  }

  const meetingTable = (name) => {
    const table = page.figures[name].columns?.calls;
    return table?.met ? table : null;
  };

  // Lines through the arrivals of the collective under the pointer and of those the picked finding speaks of.
  page.arrivals = (name) => {
    const table = meetingTable(name);
    if (!table) { return []; }
    const pointed = page.state(name).meeting;
    const wanted = new Set(pointed === null ? [] : [pointed]);
    for (const [trace, points] of Object.entries(page.marks(name) || {})) {
      const rects = page.figures[name].data[trace].rects;
      if (rects.of !== "calls") { continue; }
      for (const point of points) { wanted.add(table.met[rects.pick[point]]); }
    }
    wanted.delete(null);
    if (!wanted.size) { return []; }
    // More would hide all else.
    const few = new Set(Array.from(wanted).slice(0, 60));
    const paths = { line: [], bold: [], last: [] };
    for (const { number, rows, last, late } of meetings(table, few)) {
      const way = rows.map((row, place) => `${place ? "L" : "M"}${table.start[row]},${table.row[row] - 0.07}`);
      paths[number === pointed ? "bold" : "line"].push(way.join(""));
      const x = table.start[last];
      const middle = table.row[last];
      // If all came at once, nobody was late.
      if (late > 0) { paths.last.push(`M${x},${middle - 0.375}L${x},${middle + 0.375}`); }
    }
    const style = { line: [1, "dot", "text"], bold: [2.5, "solid", "text"], last: [2.5, "solid", "late"] };
    return Object.keys(style).filter((kind) => paths[kind].length).map((kind) => {
      const [width, dash, colour] = style[kind];
      const line = { width, dash, color: page.colour(colour) };
      return { type: "path", name: kind, path: paths[kind].join(""), layer: "above", line };
    });
  };

  // Lines and strokes are shapes, which have no legend: a trace without points stands there for each.
  page.legend = (name) => {
    const words = { line: "arrivals of one collective", last: "last to arrive" };
    return page.arrivals(name).filter((shape) => words[shape.name]).map((shape) => ({
      type: "scatter", mode: "lines", x: [null], y: [null], name: words[shape.name],
      line: shape.line, hoverinfo: "skip", showlegend: true
    }));
  };

  function join(name, number) {
    const state = page.state(name);
    if (state.meeting === number) { return; }
    state.meeting = number;
    if (page.place(name).data) { Plotly.relayout(page.place(name), { shapes: page.shapes(name) }); }
  }

  // What a record of a timeline is, in words.
  function told(figure, name, row) {
    const table = figure.columns[name];
    const length = time(table.length[row]);
    if (name === "folded") { return `${table.calls[row]} collectives folded, in ${length}`; }
    if (name === "steps") { return `step ${table.step[row]}, ${length}`; }
    const step = table.step[row] === null ? "outside every step" : `step ${table.step[row]}`;
    const ranks = figure.columns.rows.rank;
    const numbers = new Set(table.met[row] === null ? [] : [table.met[row]]);
    const lines = [
      `rank ${ranks[table.row[row]]}: ${figure.strings[table.text[row]]}`,
      `${step}, number ${table.number[row] ?? "unknown"} of its group`,
      `took ${length}, exposed ${time(table.exposed[row])}, waited ${time(table.wait[row])}, ` +
        `floor ${time(table.floor[row])}`
    ];
    for (const { rows, last, late } of meetings(table, numbers)) {
      if (late > 0) {
        const rank = ranks[table.row[last]];
        lines.push(`arrivals of ${rows.length} ranks: last is rank ${rank}, ${time(late)} after the first`);
      }
    }
    return lines.join("\n");
  }

  // The shortest record of a table on this row in this stretch of time; -1 if there is none.
  function shortest(table, row, from, to) {
    let best = -1;
    for (let record = 0; record < table.row.length; record += 1) {
      const start = table.start[record];
      const reach = table.tall ? table.tall[record] : 0;
      const hit = Math.abs(table.row[record] - row) <= reach && start <= to && start + table.length[record] >= from;
      if (hit && (best < 0 || table.length[record] < table.length[best])) { best = record; }
    }
    return best;
  }

  const area = (name) => page.place(name).querySelector(".nsewdrag").getBoundingClientRect();

  // Which table and record of a timeline is under the pointer; null if none is.
  function under(name, event) {
    const box = area(name);
    const inside = event.clientX >= box.left && event.clientX <= box.right &&
      event.clientY >= box.top && event.clientY <= box.bottom;
    if (!inside) { return null; }
    const layout = page.place(name).layout;
    const xs = layout.xaxis.range;
    const ys = layout.yaxis.range;
    const wide = (xs[1] - xs[0]) / box.width;
    const x = xs[0] + (event.clientX - box.left) * wide;
    const row = Math.round(ys[1] + (event.clientY - box.top) / box.height * (ys[0] - ys[1]));
    // Two pixels of grace: many collectives are thinner than one.
    for (const table of ["calls", "folded", "steps"]) {
      const record = shortest(page.figures[name].columns[table], row, x - 2 * wide, x + 2 * wide);
      if (record >= 0) { return [table, record]; }
    }
    return null;
  }

  function show(text, left, top) {
    tip.textContent = text;
    tip.hidden = text === "";
    tip.style.left = `${Math.max(0, Math.min(left + 14, window.innerWidth - 480))}px`;
    tip.style.top = `${top + 16}px`;
  }

  // The trace and point that a record of a timeline is.
  function markOf(name, table, record) {
    const data = page.figures[name].data;
    for (let trace = 0; trace < data.length; trace += 1) {
      const rects = data[trace].rects;
      const point = rects.of === table && rects.part === "whole" ? rects.pick.indexOf(record) : -1;
      if (point >= 0) { return [trace, point]; }
    }
    return null;
  }

  // Timelines are pointed at by arithmetic; Plotly knows nothing of their rectangles.
  function explain(name, gd) {
    const timed = () => Boolean(page.figures[name]?.columns?.calls && gd.data);
    gd.addEventListener("mouseleave", () => { tip.hidden = true; });
    gd.addEventListener("mousemove", (event) => {
      if (!timed()) { return; }
      const hit = under(name, event);
      show(hit ? told(page.figures[name], hit[0], hit[1]) : "", event.clientX, event.clientY);
      if (hit && hit[0] === "calls") { join(name, page.figures[name].columns.calls.met[hit[1]]); }
    });
    gd.addEventListener("click", (event) => {
      const hit = timed() && under(name, event);
      const mark = hit && markOf(name, hit[0], hit[1]);
      if (mark) { page.openOf(name, mark[0], mark[1]); }
    });
  }

  // Every mark that keys can step to, as [trace, point]; a picked finding's own if it has some.
  function stops(name) {
    const figure = page.figures[name];
    const marks = page.marks(name);
    const all = [];
    figure.data.forEach((trace, index) => {
      if (trace.rects && (trace.rects.of !== "calls" || trace.rects.part !== "whole")) { return; }
      if (trace.type === "scatter" && !trace.rects && !/^markers/.test(trace.mode || "")) { return; }
      let number = (trace.labels || trace.x || []).length;
      if (trace.rects) { number = trace.rects.pick.length; }
      if (trace.z) { number = trace.z.length * trace.z[0].length; }
      if (trace.link) { number = trace.link.value.length; }
      for (let point = 0; point < number; point += 1) {
        if (marks === null || (marks[index] || []).includes(point)) { all.push([index, point]); }
      }
    });
    const table = meetingTable(name);
    if (table) {
      const record = (stop) => figure.data[stop[0]].rects.pick[stop[1]];
      all.sort((a, b) => table.row[record(a)] - table.row[record(b)] || table.start[record(a)] - table.start[record(b)]);
    }
    return all;
  }

  const plainly = (text) => String(text).replace(/<br>/g, "\n").replace(/<\/?b>/g, "").replace(/&lt;/g, "<")
    .replace(/&gt;/g, ">").replace(/&amp;/g, "&");

  function words(name, stop) {
    const trace = page.traces(name)[stop[0]];
    const point = stop[1];
    if (trace.rects) { return told(page.figures[name], "calls", trace.rects.pick[point]); }
    const texts = trace.link ? trace.link.hovertext || trace.link.customdata || trace.link.label : null;
    let text = (texts || trace.hovertext || trace.customdata || trace.text || [])[point];
    if (trace.z) {
      const wide = trace.z[0].length;
      text = (trace.hovertext || trace.customdata || trace.z)[Math.floor(point / wide)][point % wide];
    }
    return plainly(text ?? (trace.labels ? trace.labels[point] : trace.name));
  }

  function reach(name, stop) {
    const gd = page.place(name);
    const trace = page.traces(name)[stop[0]];
    const box = gd.getBoundingClientRect();
    page.state(name).mark = stop;
    const text = words(name, stop);
    page.say(text);
    if (!trace.rects && (trace.type === "scatter" || trace.type === "bar")) {
      Plotly.Fx.hover(gd, [{ curveNumber: stop[0], pointNumber: stop[1] }]);
      return;
    }
    if (!trace.rects) {
      show(text, box.left + 60, box.top + 20);
      return;
    }
    const table = page.figures[name].columns.calls;
    const record = trace.rects.pick[stop[1]];
    const xs = gd.layout.xaxis.range;
    const wide = xs[1] - xs[0];
    if (table.start[record] < xs[0] || table.start[record] > xs[1]) {
      const from = table.start[record] - wide / 2;
      Plotly.relayout(gd, { "xaxis.range": [from, from + wide] });
    }
    join(name, table.met[record]);
    const inner = area(name);
    const now = gd.layout.xaxis.range;
    const ys = gd.layout.yaxis.range;
    show(text, inner.left + (table.start[record] - now[0]) / wide * inner.width,
      inner.top + (table.row[record] - ys[1]) / (ys[0] - ys[1]) * inner.height);
  }

  function step(name, by) {
    const all = stops(name);
    if (!all.length) {
      page.say("no mark to step to");
      return;
    }
    const mark = page.state(name).mark;
    const now = mark ? all.findIndex((stop) => stop[0] === mark[0] && stop[1] === mark[1]) : -1;
    const first = by > 0 ? 0 : all.length - 1;
    reach(name, all[now < 0 ? first : (now + by + all.length) % all.length]);
  }

  // What Plotly says was clicked, as trace and point; null if it is neither a mark nor a link.
  function clicked(data, point) {
    const flows = data.findIndex((trace) => trace.type === "sankey");
    const curve = point.curveNumber === undefined ? flows : point.curveNumber;
    const trace = data[curve];
    if (!trace || trace.rects || (trace.type === "sankey" && point.source === undefined)) { return null; }
    const cell = point.pointNumber;
    const number = Array.isArray(cell) ? cell[0] * trace.z[0].length + cell[1] : cell;
    // What lies over a heat map of the same cells, as those not known, has no marks of its own.
    const first = trace.type === "heatmap" ? data.findIndex((other) => other.type === "heatmap") : curve;
    return typeof number === "number" ? [first, number] : null;
  }

  // Listen to a figure's element; once, however often it is drawn.
  page.wire = (name) => {
    const gd = page.place(name);
    explain(name, gd);
    gd.on("plotly_relayout", (event) => page.followClock(name, event));
    if (!document.getElementById("picked")) { return; }
    gd.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (by && !event.altKey && !event.ctrlKey && !event.metaKey) {
        event.preventDefault();
        step(name, by);
      }
      const mark = page.state(name).mark;
      if (event.key === "Enter" && mark) { page.openOf(name, mark[0], mark[1]); }
    });
    gd.addEventListener("blur", () => { tip.hidden = true; });
    gd.on("plotly_click", (event) => {
      const mark = event.points?.[0] ? clicked(page.figures[name].data, event.points[0]) : null;
      if (mark) { page.openOf(name, mark[0], mark[1]); }
    });
  };
})(window.shardtoll);
