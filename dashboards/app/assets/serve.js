// What `shardtoll serve` adds to the page's own drawing: figures, bill and tables come as answers of the server,
// and the address alone says what is picked and zoomed, so that links and the browser's back button restore it.
((page) => {
  "use strict";

  const shown = { bill: null, drawing: null, numbers: null };
  const opened = new Set(); // Keys of the findings that stand open, also of those a filter hides for now.
  const wired = new WeakSet();
  let keys = {}; // Key of a finding, which stays while a run grows -> its number on the bill.
  let address = "";

  const element = (id) => document.getElementById(id);

  function put(id, html) { element(id).innerHTML = html; }

  function write(name, value) {
    const query = new URLSearchParams(address);
    if (value === null) { query.delete(name); } else { query.set(name, value); }
    address = query.size ? `?${query}` : "";
    window.dash_clientside.set_props("address", { search: address });
  }

  page.remember = (number) => {
    write("finding", Object.keys(keys).find((key) => keys[key] === number) ?? null);
  };

  function zoomIn(text) {
    const zoom = {};
    for (const part of (text || "").split(",").slice(0, 6)) {
      const [axis, ...ends] = part.split(":");
      const [low, high] = ends.map(Number);
      if (/^[xy]\d?$/.test(axis) && Number.isFinite(low) && Number.isFinite(high) && low !== high) {
        zoom[axis] = [low, high];
      }
    }
    return zoom;
  }

  const zoomText = (zoom) => Object.keys(zoom).sort()
    .map((axis) => [axis, ...zoom[axis].map((end) => Number(end.toPrecision(9)))].join(":")).join(",");

  // What the reader did to the figure's axes goes into the address, and from there to the server.
  function moved(event, gd, name) {
    const zoom = { ...page.zoom };
    for (const change of Object.keys(event)) {
      const [, letter, number, what] = /^([xy])axis(\d?)\.(range|autorange)/.exec(change) || [];
      if (what === "autorange") { delete zoom[letter + number]; }
      if (what === "range") {
        const ends = gd.layout[`${letter}axis${number}`].range;
        zoom[letter + number] = ends.map((end) => page.toClock(name, letter + number, end));
      }
    }
    if (zoomText(zoom) !== zoomText(page.zoom)) {
      page.zoom = zoom;
      write("zoom", zoomText(zoom) || null);
    }
  }

  function draw(name) {
    const gd = page.place(name);
    if (!window.Plotly || !gd) { return; }
    page.count(name);
    page.draw(name).then(() => {
      if (wired.has(gd)) { return; }
      wired.add(gd);
      page.wire(name);
      gd.on("plotly_relayout", (event) => moved(event, gd, name));
    });
  }

  // The element of a figure that is shown again stays: with it the legend's choices and the focus.
  function showDrawing(drawing) {
    const host = element("shown");
    const old = host.querySelector(".figure");
    const fresh = document.createElement("div");
    fresh.innerHTML = drawing ? drawing.section : "";
    const slot = fresh.querySelector(".figure");
    if (slot) { slot.dataset.of = drawing.of; }
    const focused = old !== null && document.activeElement === old;
    if (old && slot && old.dataset.of === slot.dataset.of) {
      old.style.minHeight = slot.style.minHeight;
      slot.replaceWith(old);
    } else if (old?.data) {
      Plotly.purge(old);
    }
    host.replaceChildren(...fresh.childNodes);
    if (focused && old.isConnected) { old.focus({ preventScroll: true }); }
    page.figures = drawing && slot ? { [drawing.name]: drawing.figure } : {};
    Object.keys(page.figures).forEach(draw);
  }

  function showBill(bill, picked) {
    const lines = () => Array.from(document.querySelectorAll("#findings .finding"));
    if (shown.bill === null && picked) { opened.add(picked); }
    for (const line of lines()) {
      if (line.open) { opened.add(line.dataset.key); } else { opened.delete(line.dataset.key); }
    }
    const focused = document.activeElement?.closest("#findings .finding")?.dataset.key;
    for (const part of ["head", "findings", "rest"]) { put(part, bill ? bill[part] : ""); }
    keys = bill ? bill.keys : {};
    const named = Object.fromEntries(Object.entries(keys).map(([key, number]) => [`finding-${number}`, key]));
    for (const line of lines()) {
      line.dataset.key = named[line.id];
      line.open = opened.has(line.dataset.key);
      if (focused && line.dataset.key === focused) { line.querySelector("summary").focus({ preventScroll: true }); }
    }
  }

  function showNumbers(numbers) {
    const open = element("numbers").querySelector("details[open]") !== null;
    put("numbers", numbers || "");
    const details = element("numbers").querySelector("details");
    if (details) { details.open = open; }
  }

  // Dash calls it when an answer comes or the address changes.
  function follow(search, bill, drawing, numbers) {
    address = search || "";
    const query = new URLSearchParams(address);
    const before = zoomText(page.zoom);
    page.zoom = zoomIn(query.get("zoom"));
    const zoomed = zoomText(page.zoom) !== before;
    if (zoomed) { page.turn += 1; }
    element("unzoom").hidden = !query.get("zoom");
    const news = { bill: bill !== shown.bill, drawing: drawing !== shown.drawing };
    if (news.bill) { showBill(bill, query.get("finding")); }
    const number = keys[query.get("finding")] ?? null;
    const other = number !== page.picked;
    if (news.drawing) {
      page.picked = number;
      showDrawing(drawing);
      page.describe(null);
    } else if (news.bill || other) {
      page.light(number);
    } else if (zoomed) {
      page.redraw();
    }
    if (numbers !== shown.numbers) { showNumbers(numbers); }
    Object.assign(shown, { bill, drawing, numbers });
    return window.dash_clientside.no_update;
  }

  document.addEventListener("click", (event) => {
    if (event.target.closest("#unzoom")) { write("zoom", null); }
  });
  element("plotly").addEventListener("load", () => Object.keys(page.figures).forEach(draw));
  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.shardtoll = { follow };
})(window.shardtoll);
