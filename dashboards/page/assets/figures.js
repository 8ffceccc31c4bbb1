// Draws figures in the reader's colours, light or dark: on the self-contained page and in `shardtoll serve`.
//
// A trace with `rects` is a set of rectangles: row, start and length come from the figure's columns. They become
// one outline per row, and pointer.js finds by arithmetic what the pointer is on.
window.shardtoll = window.shardtoll || {};

((page) => {
  "use strict";

  // Figures by the names of their places: data, layout, strings, columns, marks.
  page.figures = {};
  // Ends of the zoomed axes, as x or y2, where an address names them; of a timeline's x the run's clock.
  page.zoom = {};
  // How often an address set the axes. Plotly holds what a hand did to an axis against every figure of the same
  // revision, also where none was drawn since: an address that takes the hand's zoom back needs another one.
  page.turn = 0;

  // The buttons are named one by one: Plotly's own choice has one that uploads the chart.
  const BUTTONS = ["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"];
  const OPTIONS = { responsive: true, displaylogo: false, plotlyServerURL: "", modeBarButtons: [BUTTONS] };
  const states = new WeakMap();

  // What is kept of a figure; one that takes its place begins anew.
  page.state = (name) => {
    const figure = page.figures[name];
    if (!states.has(figure)) { states.set(figure, { traces: null, mark: null, meeting: null }); }
    return states.get(figure);
  };

  page.place = (name) => document.getElementById(`${name}-figure`);

  page.colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  function axes(name) {
    const layout = page.figures[name].layout;
    const line = page.colour("line");
    const style = { gridcolor: line, linecolor: line, zerolinecolor: line };
    const others = Object.keys(layout).filter((key) => /^[xy]axis\d+$/.test(key));
    return Object.fromEntries(["xaxis", "yaxis", ...others].map((key) => {
      const letter = key.replace("axis", "");
      const ends = page.zoom[letter]?.map((end) => page.toAxis(name, letter, end));
      // A range from the address wins over what the reader did before; the legend's choices stay.
      const zoomed = ends ? { range: ends.slice(), autorange: false } : {};
      const now = page.place(name).layout?.[key];
      const said = letter === "x" ? page.clockTicks(name, ends || (now?.autorange === false ? now.range : null)) : {};
      const kept = `kept ${page.zoom[letter] || ""} ${page.turn}`;
      return [key, { ...style, ...layout[key], ...said, ...zoomed, uirevision: kept }];
    }));
  }

  function painted(name) {
    const layout = page.figures[name].layout;
    const text = page.colour("text");
    // Plotly measures a place when the window changes, which on paper is too late.
    const paper = document.documentElement.classList.contains("paper");
    const size = paper ? { autosize: false, width: page.place(name).clientWidth } : { autosize: true };
    return {
      ...layout,
      ...size,
      font: { color: text, family: "system-ui, sans-serif", size: 13 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 80, r: 16, t: 40, b: 50, ...layout.margin },
      uirevision: "kept",
      modebar: { bgcolor: "rgba(0,0,0,0)", color: page.colour("dim"), activecolor: text },
      hoverlabel: {
        align: "left", bgcolor: page.colour("panel"), bordercolor: page.colour("line"), font: { color: text }
      },
      shapes: page.shapes(name),
      ...axes(name)
    };
  }

  // Left, right, top and bottom of one rectangle. Exposed time is drawn at the end of its collective.
  page.box = (table, rects, row) => {
    const reach = table.tall ? table.tall[row] : 0;
    const middle = table.row[row];
    let start = table.start[row];
    let length = table.length[row];
    if (rects.part === "wait") { length = Math.min(table.wait[row], length); }
    if (rects.part === "exposed") {
      const part = Math.min(table.exposed[row], length);
      start += length - part;
      length = part;
    }
    return [start, start + length, middle - reach + rects.band[0], middle + reach + rects.band[1]];
  };

  // One path for each row: along the row's edge, round one rectangle after the other. What joins them has no
  // height, so it fills nothing. Plotly makes an element of each stretch between two nulls.
  function outline(table, rects) {
    const rows = new Map();
    const x = [];
    const y = [];
    for (const row of rects.pick) {
      const side = page.box(table, rects, row);
      const band = `${side[2]} ${side[3]}`;
      if (!rows.has(band)) { rows.set(band, []); }
      rows.get(band).push(side);
    }
    for (const sides of rows.values()) {
      for (const side of sides) {
        x.push(side[0], side[0], side[1], side[1]);
        y.push(side[2], side[3], side[3], side[2]);
      }
      x.push(null);
      y.push(null);
    }
    return { x, y };
  }

  // The traces as Plotly takes them, none of them lit.
  page.traces = (name) => {
    const figure = page.figures[name];
    const state = page.state(name);
    state.traces = state.traces || figure.data.map((trace) => {
      if (trace.rects) { return { ...trace, ...outline(figure.columns[trace.rects.of], trace.rects) }; }
      if (!figure.strings.length || !trace.hovertext) { return trace; }
      return { ...trace, hovertext: trace.hovertext.map((number) => figure.strings[number]) };
    });
    return state.traces;
  };

  page.draw = (name) => {
    const traces = page.traces(name).map((trace, index) => page.lit(name, trace, index));
    return Plotly.react(page.place(name), traces.concat(page.legend(name)), painted(name), OPTIONS);
  };

  page.redraw = () => {
    for (const name of Object.keys(page.figures)) {
      if (page.place(name)?.data) { page.draw(name); }
    }
  };

  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => page.redraw());
})(window.shardtoll);
