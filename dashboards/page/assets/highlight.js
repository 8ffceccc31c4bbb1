// Lights up what a picked finding speaks of, in every figure.
//
// `marks` of a figure: number of the finding -> trace -> points. Scatters and bars dim all other points,
// rectangles and cells of heat maps get an outline, tiles a thick edge, and links keep their colour alone.
((page) => {
  "use strict";

  // Number of the picked finding on the bill.
  page.picked = null;

  // The marks of the picked finding in a figure; null if none is picked or none is drawn there.
  page.marks = (name) => (page.picked === null ? null : page.figures[name].marks?.[page.picked] || null);

  const count = (marks) => Object.values(marks).reduce((sum, points) => sum + points.length, 0);

  function faint(hex) {
    const parts = /^#(..)(..)(..)/.exec(hex || "") || [0, "8a", "8a", "8a"];
    return `rgba(${parts.slice(1, 4).map((part) => Number.parseInt(part, 16)).join()},0.12)`;
  }

  page.lit = (name, trace, index) => {
    const marks = page.marks(name);
    if (marks === null) { return trace; }
    const points = marks[index] || [];
    const set = new Set(points);
    if (trace.rects) {
      // What it stands on stays; the outlines round its own are shapes.
      return trace.name === "step" ? trace : { ...trace, opacity: 0.3 };
    }
    if (trace.type === "treemap") {
      const line = {
        width: trace.labels.map((_, tile) => (set.has(tile) ? 5 : 0.5)),
        color: trace.labels.map((_, tile) => page.colour(set.has(tile) ? "text" : "line"))
      };
      return { ...trace, marker: { ...trace.marker, line } };
    }
    if (trace.type === "sankey") {
      const usual = trace.link.color;
      const color = trace.link.value.map((_, link) => {
        const plain = Array.isArray(usual) ? usual[link] : usual || "#8a8a8a";
        return set.has(link) ? `${String(plain).slice(0, 7)}b0` : faint(plain);
      });
      return { ...trace, link: { ...trace.link, color } };
    }
    // A line is a scale or a bound, not a record.
    const line = trace.type === "scatter" && /lines|none/.test(trace.mode);
    if (trace.type !== "bar" && (trace.type !== "scatter" || line)) { return trace; }
    const selected = { marker: { opacity: 1 } };
    return { ...trace, selectedpoints: points, selected, unselected: { marker: { opacity: 0.13 } } };
  };

  // The edges of a heat map's cells along an axis: half-way between what is given, or around categories.
  function edges(axis, values, number) {
    const numeric = values && axis?.type !== "category" && values.every((value) => typeof value === "number");
    const middles = numeric ? values : Array.from({ length: number }, (_, cell) => cell);
    const between = middles.slice(1).map((value, cell) => (value + middles[cell]) / 2);
    const lone = middles.length < 2;
    const first = lone ? middles[0] - 0.5 : 2 * middles[0] - between[0];
    const last = lone ? middles[0] + 0.5 : 2 * middles[middles.length - 1] - between[between.length - 1];
    return [first, ...between, last];
  }

  const rectangle = (x0, x1, y0, y1) => `M${x0},${y0}L${x1},${y0}L${x1},${y1}L${x0},${y1}Z`;

  function around(name, trace, points) {
    if (trace.rects) {
      const table = page.figures[name].columns[trace.rects.of];
      return points.map((point) => rectangle(...page.box(table, trace.rects, trace.rects.pick[point]))).join("");
    }
    if (trace.type !== "heatmap" || !trace.z.length) { return ""; }
    const wide = trace.z[0].length;
    const layout = page.figures[name].layout;
    const x = edges(layout.xaxis, trace.x, wide);
    const y = edges(layout.yaxis, trace.y, trace.z.length);
    // Cells next to each other in a row get one edge.
    const runs = [];
    for (const cell of points.slice().sort((a, b) => a - b)) {
      const run = runs[runs.length - 1];
      if (run && run[1] === cell - 1 && cell % wide !== 0) { run[1] = cell; } else { runs.push([cell, cell]); }
    }
    return runs.map((run) => {
      const row = Math.floor(run[0] / wide);
      return rectangle(x[run[0] % wide], x[(run[1] % wide) + 1], y[row], y[row + 1]);
    }).join("");
  }

  page.shapes = (name) => {
    const figure = page.figures[name];
    const marks = page.marks(name);
    const given = figure.layout.shapes || [];
    if (marks === null) { return given.concat(page.arrivals(name)); }
    const path = Object.keys(marks).map((index) => around(name, figure.data[index], marks[index])).join("");
    const edge = { type: "path", path, line: { color: page.colour("text"), width: 2 }, layer: "above" };
    return given.concat(path ? [edge] : [], page.arrivals(name));
  };

  // The line over a figure that says how many of its marks are the picked finding's.
  page.count = (name) => {
    const line = document.getElementById(`${name}-said`);
    if (!line) { return; }
    const marks = page.marks(name);
    const some = marks === null ? 0 : count(marks);
    line.hidden = page.picked === null;
    const words = [" speaks of nothing that is drawn here.", ": 1 mark of this figure is its."];
    line.textContent = page.picked === null ? "" :
      `Finding #${page.picked}${words[some] || `: ${some} marks of this figure are its.`}`;
  };

  page.finding = (number) => document.getElementById(`finding-${number}`);

  function link(text, place) {
    const made = document.createElement("a");
    made.href = `#${place}`;
    made.textContent = text;
    return made;
  }

  // Tell in the bar over the bill what is picked, with links to the figures that have marks of it.
  page.describe = (before) => {
    const number = page.picked;
    const words = document.getElementById("picked-words");
    if (!words) { return; }
    for (const line of document.querySelectorAll(".finding.picked")) { line.classList.remove("picked"); }
    if (number === null) {
      words.textContent = before === null ? "" : "nothing is highlighted";
    } else {
      const line = page.finding(number);
      line.classList.add("picked");
      const names = Object.keys(page.figures).filter((name) => page.marks(name) !== null);
      const jumps = names.flatMap((name, place) => [
        place ? ", " : "", link(`${name} ${count(page.marks(name))}`, name)
      ]);
      const kind = line.querySelector(".kind").lastChild.data.trim();
      words.replaceChildren("highlighted: ", link(`#${number} ${kind}`, `finding-${number}`),
        names.length ? " · marks: " : " · no figure has marks of it", ...jumps);
    }
    document.getElementById("picked").classList.toggle("on", number !== null);
    document.getElementById("picked-clear").hidden = number === null;
  };

  page.light = (number) => {
    const before = page.picked;
    page.picked = number;
    page.describe(before);
    for (const name of Object.keys(page.figures)) { page.count(name); }
    page.redraw();
  };

  page.pick = (number) => {
    if (number !== null && !page.finding(number)) { return; }
    page.light(number);
    page.remember(number);
  };

  // Of the findings that speak of a mark the one with the largest toll, as the bill has it.
  function dearest(name, trace, point) {
    let best = null;
    let most = -2;
    for (const [number, marks] of Object.entries(page.figures[name].marks || {})) {
      const line = (marks[trace] || []).includes(point) ? page.finding(number) : null;
      const toll = line ? Number(line.dataset.toll || -1) : -2;
      if (toll > most) {
        best = Number(number);
        most = toll;
      }
    }
    return best;
  }

  page.openOf = (name, trace, point) => {
    const number = dearest(name, trace, point);
    if (number === null) {
      page.say("no finding speaks of this mark");
      return;
    }
    page.finding(number).open = true;
    page.pick(number);
  };

  document.addEventListener("click", (event) => {
    if (event.target.closest("#picked-clear")) { page.pick(null); }
    const line = document.getElementById("picked") && event.target.closest(".finding > summary");
    if (!line) { return; }
    const number = Number(line.parentElement.id.slice("finding-".length));
    if (page.picked === number) {
      page.pick(null);
      return;
    }
    // One that is open already stays so: the click is for its marks.
    if (line.parentElement.open) { event.preventDefault(); }
    page.pick(number);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && page.picked !== null) { page.pick(null); }
  });
})(window.shardtoll);
