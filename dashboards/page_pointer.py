"""The part of the page's script for pointer and keys: what a mark is, where a collective's ranks arrived.

A figure that has the focus is stepped through by arrow keys; what is reached is told in a live region.
"""

from typing import Final

POINTER: Final = """
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  document.body.append(tip);
  const at = {};  // Name of a figure -> the mark that keys or pointer are on.
  const joined = {};  // Name of a timeline -> number of the meeting whose arrivals are joined.

  function say(text) {
    const told = document.getElementById("told");
    if (told) { told.textContent = text; }
  }

  function time(ms) {
    if (ms === null) { return "unknown"; }
    if (ms === 0) { return "0 ns"; }
    const units = [["s", 1e3], ["ms", 1], ["µs", 1e-3], ["ns", 1e-6]];
    const unit = units.find(function (one) { return ms >= one[1]; }) || units[3];
    return Number((ms / unit[1]).toPrecision(3)) + " " + unit[0];
  }

  // The collectives that met, by row, the last to arrive told apart.
  function meeting(table, number) {
    const all = [];
    for (let one = 0; number !== null && one < table.met.length; one += 1) {
      if (table.met[one] === number) { all.push(one); }
    }
    let last = all[0], first = all[0];
    all.forEach(function (one) {
      if (table.start[one] > table.start[last]) { last = one; }
      if (table.start[one] < table.start[first]) { first = one; }
    });
    all.sort(function (a, b) { return table.row[a] - table.row[b]; });
    return { all: all, last: last, late: all.length ? table.start[last] - table.start[first] : 0 };
  }

  function met(name) {
    const columns = figures[name].columns, table = columns && columns.calls;
    if (!table || !table.met) { return []; }
    const wanted = new Set(), marks = mine(name);
    if (joined[name] !== undefined && joined[name] !== null) { wanted.add(joined[name]); }
    Object.keys(marks || {}).forEach(function (trace) {
      const rects = figures[name].data[trace].rects;
      if (rects.of !== "calls") { return; }
      marks[trace].forEach(function (one) {
        if (table.met[rects.pick[one]] !== null) { wanted.add(table.met[rects.pick[one]]); }
      });
    });
    if (!wanted.size) { return []; }
    // More would hide all else.
    Array.from(wanted).slice(60).forEach(function (number) { wanted.delete(number); });
    const members = new Map();
    table.met.forEach(function (number, one) {
      if (!wanted.has(number)) { return; }
      if (!members.has(number)) { members.set(number, []); }
      members.get(number).push(one);
    });
    const paths = { line: [], bold: [], last: [] };
    members.forEach(function (all, number) {
      let last = all[0];
      all.sort(function (a, b) { return table.row[a] - table.row[b]; });
      const first = Math.min.apply(null, all.map(function (one) { return table.start[one]; }));
      const way = all.map(function (one, place) {
        if (table.start[one] > table.start[last]) { last = one; }
        return (place ? "L" : "M") + table.start[one] + "," + (table.row[one] - 0.07);
      }).join("");
      paths[number === joined[name] ? "bold" : "line"].push(way);
      const row = table.row[last], x = table.start[last];
      // Where all came at once nobody was late.
      if (x > first) {
        paths.last.push("M" + x + "," + (row - 0.375) + "L" + x + "," + (row + 0.375));
      }
    });
    const style = { line: [1, "dot", "text"], bold: [2.5, "solid", "text"], last: [2.5, "solid", "late"] };
    return Object.keys(style).filter(function (kind) { return paths[kind].length; }).map(function (kind) {
      return { type: "path", name: kind, path: paths[kind].join(""), layer: "above",
        line: { width: style[kind][0], dash: style[kind][1], color: colour(style[kind][2]) } };
    });
  }

  // Lines and strokes are shapes, which have no legend: a trace of nothing stands there for each.
  function keyed(name) {
    const words = { line: "arrivals of one collective", last: "last to arrive" };
    return met(name).filter(function (shape) { return words[shape.name]; }).map(function (shape) {
      return { type: "scatter", mode: "lines", x: [null], y: [null], name: words[shape.name],
        line: shape.line, hoverinfo: "skip", showlegend: true };
    });
  }

  function join(name, number) {
    if (joined[name] === number) { return; }
    joined[name] = number;
    if (place(name).data) { Plotly.relayout(place(name), { shapes: shapes(name) }); }
  }

  function told(figure, name, at) {
    const table = figure.columns[name];
    if (name === "folded") { return table.calls[at] + " collectives folded, in " + time(table.length[at]); }
    if (name === "steps") { return "step " + table.step[at] + ", " + time(table.length[at]); }
    const step = table.step[at] === null ? "outside every step" : "step " + table.step[at];
    const number = table.number[at] === null ? "unknown" : table.number[at];
    const ranks = figure.columns.rows.rank, all = meeting(table, table.met[at]);
    const last = all.all.length < 2 || !all.late ? "" : "\\narrivals of " + all.all.length +
      " ranks: last is rank " + ranks[table.row[all.last]] + ", " + time(all.late) + " after the first";
    return "rank " + ranks[table.row[at]] + ": " + figure.strings[table.text[at]] + "\\n" + step +
      ", number " + number + " of its group\\ntook " +
      time(table.length[at]) + ", exposed " + time(table.exposed[at]) + ", waited " + time(table.wait[at]) +
      ", floor " + time(table.floor[at]) + last;
  }

  function found(table, row, from, to) {
    let best = -1;
    for (let at = 0; at < table.row.length; at += 1) {
      const start = table.start[at], end = start + table.length[at];
      const reach = table.tall ? table.tall[at] : 0;
      const hit = Math.abs(table.row[at] - row) <= reach && start <= to && end >= from;
      if (hit && (best < 0 || table.length[at] < table.length[best])) { best = at; }
    }
    return best;
  }

  // Which table and record of a timeline is under the pointer; null where none is.
  function under(name, event) {
    const gd = place(name), figure = figures[name];
    const area = gd.querySelector(".nsewdrag").getBoundingClientRect();
    const inside = event.clientX >= area.left && event.clientX <= area.right &&
      event.clientY >= area.top && event.clientY <= area.bottom;
    if (!inside) { return null; }
    const xs = gd.layout.xaxis.range, ys = gd.layout.yaxis.range;
    const wide = (xs[1] - xs[0]) / area.width;
    const x = xs[0] + (event.clientX - area.left) * wide;
    const row = Math.round(ys[1] + (event.clientY - area.top) / area.height * (ys[0] - ys[1]));
    let hit = null;
    // Two pixels of grace: many collectives are thinner than one.
    ["calls", "folded", "steps"].some(function (table) {
      const one = found(figure.columns[table], row, x - 2 * wide, x + 2 * wide);
      if (one >= 0) { hit = [table, one]; }
      return one >= 0;
    });
    return hit;
  }

  function show(text, left, top) {
    tip.textContent = text;
    tip.hidden = text === "";
    tip.style.left = Math.max(0, Math.min(left + 14, window.innerWidth - 480)) + "px";
    tip.style.top = (top + 16) + "px";
  }

  // The trace and point that a record of a timeline is.
  function mark(name, table, one) {
    const data = figures[name].data;
    for (let trace = 0; trace < data.length; trace += 1) {
      const rects = data[trace].rects;
      const point = rects.of === table && rects.part === "whole" ? rects.pick.indexOf(one) : -1;
      if (point >= 0) { return [trace, point]; }
    }
    return null;
  }

  function explain(name) {
    const figure = figures[name], gd = place(name);
    gd.addEventListener("mouseleave", function () { tip.hidden = true; });
    gd.addEventListener("mousemove", function (event) {
      const hit = under(name, event);
      show(hit ? told(figure, hit[0], hit[1]) : "", event.clientX, event.clientY);
      if (hit && hit[0] === "calls") { join(name, figure.columns.calls.met[hit[1]]); }
    });
    gd.addEventListener("click", function (event) {
      const hit = under(name, event), one = hit && mark(name, hit[0], hit[1]);
      if (one) { openOf(name, one[0], one[1]); }
    });
  }

  // Every mark that keys can step to, as [trace, point]; a picked finding's own where it has some.
  function stops(name) {
    const marks = mine(name), found = [];
    figures[name].data.forEach(function (trace, index) {
      if (trace.rects && (trace.rects.of !== "calls" || trace.rects.part !== "whole")) { return; }
      if (trace.type === "scatter" && !trace.rects && !/^markers/.test(trace.mode || "")) { return; }
      const number = trace.rects ? trace.rects.pick.length : trace.z ? trace.z.length * trace.z[0].length :
        trace.link ? trace.link.value.length : (trace.labels || trace.x || []).length;
      for (let point = 0; point < number; point += 1) {
        if (marks === null || (marks[index] || []).includes(point)) { found.push([index, point]); }
      }
    });
    const table = figures[name].columns && figures[name].columns.calls;
    if (table && table.met) {
      const record = function (stop) { return figures[name].data[stop[0]].rects.pick[stop[1]]; };
      found.sort(function (a, b) {
        const one = record(a), two = record(b);
        return table.row[one] - table.row[two] || table.start[one] - table.start[two];
      });
    }
    return found;
  }

  function plainly(text) {
    return String(text).replace(/<br>/g, "\\n").replace(/<\\/?b>/g, "").replace(/&lt;/g, "<")
      .replace(/&gt;/g, ">").replace(/&amp;/g, "&");
  }

  function words(name, stop) {
    const trace = made[name][stop[0]], point = stop[1];
    if (trace.rects) { return told(figures[name], "calls", trace.rects.pick[point]); }
    const source = trace.link ? trace.link.hovertext || trace.link.customdata || trace.link.label : null;
    let text = (source || trace.hovertext || trace.customdata || trace.text || [])[point];
    if (trace.z) {
      const wide = trace.z[0].length, cells = trace.hovertext || trace.customdata || trace.z;
      text = cells[Math.floor(point / wide)][point % wide];
    }
    if (text === undefined || text === null) { text = trace.labels ? trace.labels[point] : trace.name; }
    return plainly(text);
  }

  function reach(name, stop) {
    const gd = place(name), trace = made[name][stop[0]], box = gd.getBoundingClientRect();
    at[name] = stop;
    const text = words(name, stop);
    say(text);
    let left = box.left + 60, top = box.top + 20;
    if (trace.rects) {
      const table = figures[name].columns.calls, one = trace.rects.pick[stop[1]];
      const area = gd.querySelector(".nsewdrag").getBoundingClientRect();
      const xs = gd.layout.xaxis.range, ys = gd.layout.yaxis.range, wide = xs[1] - xs[0];
      if (table.start[one] < xs[0] || table.start[one] > xs[1]) {
        const from = table.start[one] - wide / 2;
        Plotly.relayout(gd, { "xaxis.range": [from, from + wide] });
      }
      join(name, table.met[one]);
      const now = gd.layout.xaxis.range;
      left = area.left + (table.start[one] - now[0]) / wide * area.width;
      top = area.top + (table.row[one] - ys[1]) / (ys[0] - ys[1]) * area.height;
    } else if (trace.type === "scatter" || trace.type === "bar") {
      Plotly.Fx.hover(gd, [{ curveNumber: stop[0], pointNumber: stop[1] }]);
      return;
    }
    show(text, left, top);
  }

  function step(name, by) {
    const all = stops(name);
    if (!all.length) { say("no mark to step to"); return; }
    const now = at[name] ? all.findIndex(function (one) {
      return one[0] === at[name][0] && one[1] === at[name][1];
    }) : -1;
    const next = now < 0 ? (by > 0 ? 0 : all.length - 1) : (now + by + all.length) % all.length;
    reach(name, all[next]);
  }

  function wire(name) {
    const gd = place(name), figure = figures[name];
    if (figure.columns && figure.columns.calls) { explain(name); }
    if (!document.getElementById("picked")) { return; }
    gd.addEventListener("keydown", function (event) {
      const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (by && !event.altKey && !event.ctrlKey && !event.metaKey) { event.preventDefault(); step(name, by); }
      if (event.key === "Enter" && at[name]) { openOf(name, at[name][0], at[name][1]); }
    });
    gd.addEventListener("blur", function () { tip.hidden = true; });
    if (gd.on) {
      gd.on("plotly_click", function (event) {
        const point = event.points && event.points[0];
        if (!point) { return; }
        const flows = figure.data.findIndex(function (trace) { return trace.type === "sankey"; });
        const curve = point.curveNumber === undefined ? flows : point.curveNumber;
        const trace = figure.data[curve];
        if (!trace || trace.rects) { return; }
        let number = point.pointNumber;
        if (Array.isArray(number)) { number = number[0] * trace.z[0].length + number[1]; }
        if (trace.type === "sankey" && point.source === undefined) { return; }
        if (typeof number === "number") { openOf(name, curve, number); }
      });
    }
  }
"""
