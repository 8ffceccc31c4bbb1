// The run's clock at a timeline's axis whose gaps between steps are folded.
//
// `columns.clock` holds the stretches that are drawn in full: their ends on the clock, `from` and `to`, and `at`,
// where they begin on the axis. Addresses hold the clock; Plotly's ranges hold places on the axis.
((page) => {
  "use strict";

  const TICKS = 9;

  const clockOf = (name) => page.figures[name]?.columns?.clock || null;

  const last = (list) => list[list.length - 1];

  // The last stretch that begins by then; the first one for what lies before all.
  function stretch(begins, value) {
    let low = 0;
    let high = begins.length;
    while (low + 1 < high) {
      const middle = (low + high) >> 1;
      if (begins[middle] <= value) { low = middle; } else { high = middle; }
    }
    return low;
  }

  const length = (clock, number) => clock.to[number] - clock.from[number];

  // From one of two scales to the other: along a stretch at the same speed, through a folded gap at the gap's.
  function moved(clock, value, begins, others) {
    const number = stretch(begins, value);
    const into = value - begins[number];
    const inside = length(clock, number);
    if (into <= inside || number + 1 === begins.length) { return others[number] + into; }
    const gap = (list) => list[number + 1] - list[number] - inside;
    return others[number] + inside + (into - inside) * gap(others) / gap(begins);
  }

  page.toAxis = (name, key, value) => {
    const clock = key === "x" ? clockOf(name) : null;
    return clock ? moved(clock, value, clock.from, clock.at) : value;
  };

  page.toClock = (name, key, value) => {
    const clock = key === "x" ? clockOf(name) : null;
    return clock ? moved(clock, value, clock.at, clock.from) : value;
  };

  // 1, 2 or 5 times a power of ten: the distance of the axis' numbers.
  function pace(wide) {
    const least = wide / TICKS;
    const power = 10 ** Math.floor(Math.log10(least));
    return [1, 2, 5, 10].map((times) => times * power).find((each) => each >= least);
  }

  // Numbers of the clock, and their places on this part of the axis. Each stretch has its round numbers, else the
  // number of its beginning if there is room.
  function ticks(clock, low, high) {
    const each = pace(high - low);
    const round = [];
    const begins = [];
    for (let number = stretch(clock.at, low); number < clock.at.length && clock.at[number] <= high; number += 1) {
      const offset = clock.from[number] - clock.at[number];
      const from = Math.max(low, clock.at[number]);
      const to = Math.min(high, clock.at[number] + length(clock, number));
      const had = round.length;
      // Counted, not added up: an address may name a range so narrow that a step changes nothing.
      const first = Math.ceil((from + offset) / each);
      for (let nth = 0; nth <= 2 * TICKS && (first + nth) * each - offset <= to; nth += 1) {
        const time = (first + nth) * each;
        round.push([time - offset, time, each]);
      }
      if (round.length === had && from <= to) { begins.push([from, from + offset, each / 10]); }
    }
    const kept = [];
    for (const tick of round.concat(begins)) {
      if (kept.every((other) => Math.abs(other[0] - tick[0]) >= each * 0.7)) { kept.push(tick); }
    }
    kept.sort((a, b) => a[0] - b[0]);
    const words = kept.map(([, time, unit]) => {
      const digits = Math.min(6, Math.max(0, -Math.floor(Math.log10(unit) + 1e-9)));
      return time.toLocaleString("en-US", { maximumFractionDigits: digits });
    });
    return { tickmode: "array", tickvals: kept.map((tick) => tick[0]), ticktext: words };
  }

  // What a figure's time axis says for a range of it; for all of it if none is given.
  page.clockTicks = (name, range) => {
    const clock = clockOf(name);
    if (!clock) { return {}; }
    const whole = [clock.at[0], last(clock.at) + length(clock, clock.at.length - 1)];
    const [low, high] = (range || whole).slice().sort((a, b) => a - b);
    return high > low ? ticks(clock, low, high) : {};
  };

  // Write the numbers anew when a hand has moved the axis.
  page.followClock = (name, event) => {
    const gd = page.place(name);
    if (!clockOf(name) || !Object.keys(event).some((key) => /^xaxis\.(range|autorange)/.test(key))) { return; }
    const said = page.clockTicks(name, gd.layout.xaxis.range);
    Plotly.relayout(gd, Object.fromEntries(Object.entries(said).map(([key, value]) => [`xaxis.${key}`, value])));
  };
})(window.shardtoll);
