// Starts the self-contained page: its figures and Plotly itself are text in the page until they are needed.
//
// The bill works at once; Plotly is run after the page was painted, and then figures are drawn one after the
// other, those nearest to what the reader sees first. `html[data-first]` names the first one to be seen;
// `html[data-drawn]` is there when all are drawn.
((page) => {
  "use strict";

  page.figures = JSON.parse(document.getElementById("figures").textContent);
  const root = document.documentElement;
  const names = Object.keys(page.figures);
  const left = new Set(names);

  page.remember = (number) => {
    const here = location.pathname + location.search;
    history.replaceState(null, "", number === null ? here : `#finding-${number}`);
  };

  function fromAddress() {
    const number = /^#finding-([0-9]{1,6})$/.exec(location.hash)?.[1];
    const line = number && page.finding(number);
    if (!line) { return; }
    line.open = true;
    if (page.picked !== Number(number)) { page.pick(Number(number)); }
    line.scrollIntoView();
  }

  // Of the figures that are not drawn yet the one nearest to what the reader sees.
  function nearest() {
    const away = (name) => {
      const side = page.place(name).getBoundingClientRect();
      return Math.max(side.top - window.innerHeight, -side.bottom, 0);
    };
    return Array.from(left).reduce((best, name) => (away(name) < away(best) ? name : best));
  }

  // After the browser has painted; a page in the background is not painted.
  function painting(then) {
    if (document.hidden) {
      window.setTimeout(then, 0);
      return;
    }
    window.requestAnimationFrame(() => { window.setTimeout(then, 0); });
  }

  function first(name) {
    left.delete(name);
    return page.draw(name).then(() => page.wire(name));
  }

  function next() {
    if (!left.size) {
      root.dataset.drawn = names.join(" ");
      return;
    }
    const name = nearest();
    first(name).then(() => {
      painting(() => {
        root.dataset.first = root.dataset.first || name;
        next();
      });
    });
  }

  // Plotly's text is no script until then: the bill is painted and works before a browser has read it.
  function load() {
    const text = document.getElementById("plotly");
    if (!text) { return; }
    const script = document.createElement("script");
    script.textContent = text.textContent;
    text.replaceWith(script);
    next();
  }

  if (document.getElementById("picked")) {
    fromAddress();
    window.addEventListener("hashchange", fromAddress);
  }
  painting(load);
  window.addEventListener("beforeprint", () => {
    root.classList.add("paper");
    load();
    names.forEach((name) => {
      // Flows that are drawn again move to their places slowly; new ones stand there at once.
      for (const flow of page.place(name).querySelectorAll(".sankey")) { flow.remove(); }
      if (left.has(name)) { first(name); } else { page.draw(name); }
    });
  });
  window.addEventListener("afterprint", () => {
    root.classList.remove("paper");
    names.forEach(page.draw);
  });
})(window.shardtoll);
