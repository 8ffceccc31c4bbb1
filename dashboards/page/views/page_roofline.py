"""Figure: message size against bus bandwidth, under the ceilings that the fabric allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

from shardtoll.dashboards.facts.sites import Site
from shardtoll.dashboards.page.html.figure import (
    ASKED,
    ASKED_LEAD,
    ASKED_WORDS,
    Figure,
    Marks,
    Strings,
    hover,
    literal,
    log_axis,
)
from shardtoll.ledger.records.volume import OPS, busbw_factor
from shardtoll.ledger.words import human

LEAD: Final = (
    "One mark for all calls with the same cause and size. Solid lines: the ceiling, the bus bandwidth at "
    "the fabric's floor; one of twenty sound transfers exceeds it. Dashed: expected. Dotted: what the "
    "links could carry (speed of light). In the grey area lie nine of ten sound transfers. Small hollow "
    "marks on a line identify its collective. Far below its ceiling means slow. Far left means small "
    "messages, which cost latency. " + ASKED_LEAD
)

SITES_DRAWN: Final = 1_500
_SYMBOLS: Final = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "star",
                   "pentagon", "hexagon", "bowtie")  # fmt: skip
CEILING: Final = "ceiling"
"""The bandwidth at the floor: one of twenty sound transfers exceeds it."""
EXPECTED: Final = "expected"
"""The bandwidth at the time that a tuned library is expected to take."""
LIGHT: Final = "speed of light"
"""The rate that the links could carry."""
BAND: Final = "nine of ten sound runs"
"""The cost model's expected range of a transfer."""
_LINES: Final = {
    CEILING: {"width": 2, "dash": "solid"},
    EXPECTED: {"width": 1.5, "dash": "dash"},
    LIGHT: {"width": 1.5, "dash": "dot"},
}
"""Lines differ without colour; the small markers identify the collective."""
_STROKE: Final = 1.15
"""Half the width of the stroke for a curve of one size, as a factor of the size."""


Curves = dict[tuple[str, int, str], list[tuple[int, float]]]
"""op, group size and net -> (message bytes, GB/s), by size."""


Bound = Literal["floor_ns", "expected_ns", "light_ns", "band_low_ns", "band_high_ns"]


def ceilings(sites: Sequence[Site], bound: Bound = "floor_ns") -> Curves:
    """Return for each op, group size and net the floor, or another bound, as bandwidth.

    busbw = message bytes / floor ns x the nccl-tests factor; bytes a ns are GB/s. If calls of one size have
    several floors, the highest ceiling counts.
    """
    highest: dict[tuple[str, int, str], dict[int, float]] = {}
    for site in sites:
        factor = busbw_factor(site.op, site.group_size)
        message, bound_ns = site.message_bytes or 0, getattr(site, bound) or 0
        if message <= 0 or bound_ns <= 0 or not factor:
            continue
        curve = highest.setdefault((site.op, site.group_size, site.net), {})
        gbps = message / bound_ns * factor
        curve[message] = max(gbps, curve.get(message, 0.0))
    return {key: sorted(curve.items()) for key, curve in highest.items()}


def figure(sites: Sequence[Site]) -> Figure:
    """Return the scatter of all sites whose size and bandwidth are known, with their ceilings."""
    sized = [site for site in sites if (site.message_bytes or 0) > 0 and (site.busbw_gbps or 0) > 0]
    notes = []
    if len(sized) < len(sites):
        missing = human.plural(len(sites) - len(sized), "site")
        notes.append(f"{missing} of {len(sites):,} not drawn: size or bandwidth is unknown or zero.")
    if len(sized) > SITES_DRAWN:
        notes.append(
            f"Only the {SITES_DRAWN:,} sites with the most exposed time of {len(sized):,} are drawn."
        )
        sized = sized[:SITES_DRAWN]
    if not sized:
        return Figure([], {}, notes or ["There are no collectives."])
    strings = Strings()
    under = _bands(sites) + _curves(ceilings(sites), strings)
    points, marks = _points(sized, strings, len(under))
    data = under + points
    data += _curves(ceilings(sites, "expected_ns"), strings, EXPECTED)
    data += _curves(ceilings(sites, "light_ns"), strings, LIGHT)
    layout = {
        "height": 520,
        "xaxis": log_axis("message size", [x for trace in data for x in trace["x"]], human.size),
        "yaxis": log_axis("bus bandwidth", [y for trace in data for y in trace["y"]], human.rate),
        "hovermode": "closest",
        "legend": {"groupclick": "toggleitem"},
    }
    return Figure(data, layout, notes, strings.all(), marks=marks)


def _bands(sites: Sequence[Site]) -> list[dict[str, Any]]:
    """Return an area for each op, group size and net, from the slowest to the fastest sound transfer."""
    slow, fast = ceilings(sites, "band_high_ns"), ceilings(sites, "band_low_ns")
    data: list[dict[str, Any]] = []
    for key in (key for key in slow if key in fast):
        low, high = dict(slow[key]), dict(fast[key])
        sizes = [size for size in low if size in high]
        ends = [(float(size), size) for size in sizes]
        if len(sizes) == 1:
            ends = [(float(f"{sizes[0] * by:.6g}"), sizes[0]) for by in (1 / _STROKE, _STROKE)]
        around = [(x, low[size]) for x, size in ends] + [(x, high[size]) for x, size in reversed(ends)]
        data.append(
            {
                "type": "scatter",
                "mode": "none",
                "fill": "toself",
                "fillcolor": "rgba(138,138,138,0.22)",
                "name": BAND,
                "legendgroup": BAND,
                "showlegend": not data,
                "hoverinfo": "skip",
                "x": [x for x, _ in around],
                "y": [float(f"{gbps:.6g}") for _, gbps in around],
            }
        )
    return data


def _curves(curves: Curves, strings: Strings, what: str = CEILING) -> list[dict[str, Any]]:
    data = []
    for (op, size, dim), points in curves.items():
        ends = [(float(message), message, gbps) for message, gbps in points]
        if len(points) == 1:
            # A curve of one size is a short stroke at its height.
            ((message, gbps),) = points
            ends = [(float(f"{message * by:.6g}"), message, gbps) for by in (1 / _STROKE, _STROKE)]
        name = f"{what} {literal(op, 24)} ×{size} {literal(dim, 24)}"
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers" if len(points) > 1 else "lines",
                "name": name,
                "legendgroup": "ceilings" if what == CEILING else what,
                "x": [x for x, _, _ in ends],
                "y": [float(f"{gbps:.6g}") for _, _, gbps in ends],
                "line": {"color": ASKED["unknown"], **_LINES[what]},
                "marker": {"symbol": _hollow(op), "size": 6, "color": ASKED["unknown"]},
                "hovertext": [
                    strings.add(hover([f"<b>{name}</b>", f"{human.size(message)}: {human.rate(gbps)}"]))
                    for _, message, gbps in ends
                ],
                "hovertemplate": "%{hovertext}<extra></extra>",
            }
        )
    return data


def _symbol(op: str) -> str:
    return _SYMBOLS[OPS.index(op)] if op in OPS else "asterisk-open"


def _hollow(op: str) -> str:
    return f"{_symbol(op).removesuffix('-open')}-open"


def _points(sites: Sequence[Site], strings: Strings, before: int) -> tuple[list[dict[str, Any]], Marks]:
    """Return one trace for each op and cause, of which the first is the trace `before`; and the marks."""
    split: dict[tuple[str, str], list[Site]] = {}
    for site in sites:
        split.setdefault((site.op, site.asked), []).append(site)
    data: list[dict[str, Any]] = []
    marks: Marks = {}
    for (op, asked), members in split.items():
        for point, site in enumerate(members):
            for number in site.findings:
                marks.setdefault(number, {}).setdefault(before + len(data), []).append(point)
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": f"{literal(op, 24)}, {ASKED_WORDS[asked]}",
                "legendgroup": "sites",
                "x": [site.message_bytes for site in members],
                "y": [float(f"{site.busbw_gbps or 0:.6g}") for site in members],
                "marker": {"color": ASKED[asked], "symbol": _symbol(op), "size": 10, "opacity": 0.85},
                "hovertext": [strings.add(_words(site)) for site in members],
                "hovertemplate": "%{hovertext}<extra></extra>",
            }
        )
    return data, marks


def _words(site: Site) -> str:
    group = f"×{site.group_size} {literal(site.net, 40)}"
    lines = [f"<b>{literal(site.op, 40)}</b> {group}, {human.size(site.message_bytes)}"]
    lines += [literal(part, 120) for part in site.cause().split(" · ")]
    spread = ""
    if site.calls > 1 and site.busbw_least_gbps != site.busbw_most_gbps:
        spread = f" ({human.rate(site.busbw_least_gbps)} to {human.rate(site.busbw_most_gbps)})"
    lines.append(f"{human.plural(site.calls, 'call')}, median {human.rate(site.busbw_gbps)}{spread}")
    times = [("exposed in all", site.exposed_ns), ("floor", site.floor_ns)]
    times += [
        (name, time_ns)
        for name, time_ns in (("expected", site.expected_ns), ("speed of light", site.light_ns))
        if time_ns is not None
    ]
    lines.append(" · ".join(f"{name}: {human.duration(time_ns)}" for name, time_ns in times))
    return hover(lines)
