"""The part of the page's script that lights up what a picked finding speaks of, in every figure.

`marks` of a figure: number of the finding -> trace -> points. Scatters and bars dim all other points,
rectangles and cells of heat maps get an outline, tiles a thick edge, and links keep their colour alone.
"""

from typing import Final

HIGHLIGHT: Final = """
  let picked = null;

  function mine(name) {
    const marks = figures[name].marks || {};
    return picked === null ? null : marks[picked] || null;
  }

  function count(marks) {
    return Object.values(marks).reduce(function (sum, points) { return sum + points.length; }, 0);
  }

  function faint(one) {
    const parts = /^#(..)(..)(..)/.exec(one || "") || [0, "8a", "8a", "8a"];
    return "rgba(" + parts.slice(1, 4).map(function (two) { return parseInt(two, 16); }).join() + ",0.12)";
  }

  function lit(name, trace, at) {
    const marks = mine(name);
    if (marks === null) { return trace; }
    const points = marks[at] || [], set = new Set(points);
    if (trace.rects) {
      // What it stands on stays; the outlines round its own are shapes.
      return trace.name === "step" ? trace : Object.assign({}, trace, { opacity: 0.3 });
    }
    if (trace.type === "treemap") {
      const edge = { width: trace.labels.map(function (_, tile) { return set.has(tile) ? 5 : 0.5; }),
        color: trace.labels.map(function (_, tile) { return colour(set.has(tile) ? "text" : "line"); }) };
      return Object.assign({}, trace, { marker: Object.assign({}, trace.marker, { line: edge }) });
    }
    if (trace.type === "sankey") {
      const own = trace.link.color;
      const colours = trace.link.value.map(function (_, link) {
        const usual = Array.isArray(own) ? own[link] : own || "#8a8a8a";
        return set.has(link) ? String(usual).slice(0, 7) + "b0" : faint(usual);
      });
      return Object.assign({}, trace, { link: Object.assign({}, trace.link, { color: colours }) });
    }
    const lines = trace.type === "scatter" && /lines|none/.test(trace.mode);
    if (trace.type !== "bar" && (trace.type !== "scatter" || lines)) { return trace; }
    return Object.assign({}, trace, { selectedpoints: points,
      selected: { marker: { opacity: 1 } }, unselected: { marker: { opacity: 0.13 } } });
  }

  // The edges of a heat map's cells along an axis: half-way between what is given, or around categories.
  function edges(axis, values, number) {
    const places = values && !(axis && axis.type === "category");
    const numeric = places && values.every(function (value) { return typeof value === "number"; });
    const at = numeric ? values : Array.from({ length: number }, function (_, one) { return one; });
    const mid = at.slice(1).map(function (value, one) { return (value + at[one]) / 2; });
    const first = at.length > 1 ? at[0] - (mid[0] - at[0]) : at[0] - 0.5;
    const last = at.length > 1 ? 2 * at[at.length - 1] - mid[mid.length - 1] : at[0] + 0.5;
    return [first].concat(mid, [last]);
  }

  function rectangle(x0, x1, y0, y1) {
    return "M" + x0 + "," + y0 + "L" + x1 + "," + y0 + "L" + x1 + "," + y1 + "L" + x0 + "," + y1 + "Z";
  }

  function around(name, trace, points) {
    if (trace.rects) {
      const table = figures[name].columns[trace.rects.of];
      return points.map(function (at) {
        const side = box(table, trace.rects, trace.rects.pick[at]);
        return rectangle(side[0], side[1], side[2], side[3]);
      }).join("");
    }
    if (trace.type !== "heatmap" || !trace.z.length) { return ""; }
    const wide = trace.z[0].length, layout = figures[name].layout;
    const x = edges(layout.xaxis, trace.x, wide), y = edges(layout.yaxis, trace.y, trace.z.length);
    // Cells beside each other in a row get one edge.
    const runs = [], sorted = points.slice().sort(function (a, b) { return a - b; });
    sorted.forEach(function (at) {
      const run = runs[runs.length - 1];
      if (run && run[1] === at - 1 && at % wide !== 0) { run[1] = at; } else { runs.push([at, at]); }
    });
    return runs.map(function (run) {
      const row = Math.floor(run[0] / wide);
      return rectangle(x[run[0] % wide], x[run[1] % wide + 1], y[row], y[row + 1]);
    }).join("");
  }

  function shapes(name) {
    const figure = figures[name], marks = mine(name), own = figure.layout.shapes || [];
    if (marks === null) { return own.concat(met(name)); }
    const path = Object.keys(marks).map(function (at) {
      return around(name, figure.data[at], marks[at]);
    }).join("");
    const edge = { type: "path", path: path, line: { color: colour("text"), width: 2 }, layer: "above" };
    return own.concat(path ? [edge] : [], met(name));
  }

  function says(name) {
    const line = document.getElementById(name + "-said");
    if (!line) { return; }
    const marks = mine(name), some = marks === null ? 0 : count(marks);
    line.hidden = picked === null;
    line.textContent = picked === null ? "" : "Finding #" + picked + (some === 0 ?
      " speaks of nothing that is drawn here." :
      (some === 1 ? ": 1 mark of this figure is its." : ": " + some + " marks of this figure are its."));
  }

  function finding(number) { return document.getElementById("finding-" + number); }

  function pick(number) {
    if (number !== null && !finding(number)) { return; }
    const before = picked;
    picked = number;
    document.querySelectorAll(".finding.picked").forEach(function (one) { one.classList.remove("picked"); });
    const words = document.getElementById("picked-words"), button = document.getElementById("picked-clear");
    const bar = document.getElementById("picked");
    if (number === null) {
      words.textContent = before === null ? "" : "nothing is highlighted";
      history.replaceState(null, "", location.pathname + location.search);
    } else {
      finding(number).classList.add("picked");
      const link = document.createElement("a"), told = document.createElement("span");
      link.href = "#finding-" + number;
      link.textContent = "#" + number + " " + finding(number).querySelector(".kind").lastChild.data.trim();
      const seen = names.filter(function (name) { return mine(name) !== null; });
      told.textContent = seen.length ? " · marks: " : " · no figure has marks of it";
      seen.forEach(function (name, at) {
        const jump = document.createElement("a");
        jump.href = "#" + name;
        jump.textContent = name + " " + count(mine(name));
        told.append(at ? ", " : "", jump);
      });
      words.replaceChildren("highlighted: ", link, told);
      history.replaceState(null, "", "#finding-" + number);
    }
    bar.classList.toggle("on", number !== null);
    button.hidden = number === null;
    names.forEach(function (name) {
      says(name);
      if (place(name).data) { draw(name); }
    });
  }

  // Of the findings that speak of a mark the dearest, as the bill has it.
  function dearest(name, trace, point) {
    let best = null, most = -2;
    Object.entries(figures[name].marks || {}).forEach(function (entry) {
      if (!(entry[1][trace] || []).includes(point)) { return; }
      const toll = Number(finding(entry[0]) ? finding(entry[0]).dataset.toll || -1 : -2);
      if (toll > most) { best = Number(entry[0]); most = toll; }
    });
    return best;
  }

  function openOf(name, trace, point) {
    const number = dearest(name, trace, point);
    if (number === null) { say("no finding speaks of this mark"); return; }
    finding(number).open = true;
    pick(number);
  }

  function fromAddress() {
    const hash = /^#finding-([0-9]{1,6})$/.exec(location.hash);
    if (!hash || !finding(hash[1])) { return; }
    finding(hash[1]).open = true;
    if (picked !== Number(hash[1])) { pick(Number(hash[1])); }
    finding(hash[1]).scrollIntoView();
  }

  if (document.getElementById("picked")) {
    document.querySelectorAll(".finding").forEach(function (one) {
      const number = Number(one.id.slice("finding-".length));
      one.querySelector("summary").addEventListener("click", function (event) {
        if (picked === number) { pick(null); return; }
        // One that is open already stays so: the click is for its marks.
        if (one.open) { event.preventDefault(); }
        pick(number);
      });
    });
    document.getElementById("picked-clear").addEventListener("click", function () { pick(null); });
    document.addEventListener("keydown", function (event) {
      if (event.key === "Escape" && picked !== null) { pick(null); }
    });
    window.addEventListener("hashchange", fromAddress);
  }
"""
