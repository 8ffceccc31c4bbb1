"""A figure of the page as the plain Plotly figure that Dash takes: same data, texts and colours.

The page's script draws rectangles as outlines and finds by arithmetic what the pointer is on. The
server sends few enough to draw each as a bar, which Plotly itself can explain and light up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from shardtoll.dashboards import human
from shardtoll.dashboards.app_arrivals import arrivals, met_at, met_in
from shardtoll.dashboards.app_lit import GROUND, OUTLINE, lit, whole
from shardtoll.dashboards.app_state import Zoom
from shardtoll.dashboards.figure import Columns, Figure, hover, literal

COLOURS: Final[Mapping[str, Mapping[str, str]]] = {
    "light": {"text": "#1c2128", "dim": "#57606a", "panel": "#ffffff", "line": "#d0d7de"},
    "dark": {"text": "#e6edf3", "dim": "#9da7b3", "panel": "#161b22", "line": "#343b44"},
}
"""As `page_style` has them."""

CONFIG: Final[Any] = {
    "displaylogo": False,
    "plotlyServerURL": "",
    "responsive": True,
    "doubleClick": "autosize",
    # Named one by one: Plotly's own choice has a button that uploads the chart.
    "modeBarButtons": [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "autoScale2d"]],
}
BARS_MOST: Final = 2_000
"""Rectangles of one kind that are bars, which the pointer can ask; more are one outline."""
_NS: Final = 1e6
"""Nanoseconds in a millisecond: columns are in ms."""


def plotted(
    figure: Figure,
    scheme: str = "light",
    zoom: Zoom = (),
    picked: int | None = None,
    kept: str = "",
    clicked: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """Return data and layout for `dcc.Graph`, in the colours of `light` or `dark`.

    `picked` is the number of the finding to light up, `clicked` trace and point of the collective whose
    arrivals are joined; while `kept` stays the same, so do the reader's choices in the legend.
    """
    colours = COLOURS.get(scheme, COLOURS["light"])
    data = [_trace(figure, trace) for trace in figure.data]
    chosen = whole(figure, figure.marks.get(picked, {})) if picked is not None else {}
    met = dict.fromkeys([*(met_at(figure, *clicked) if clicked else ()), *met_in(figure, chosen)])
    over = [
        {**_outline(figure, figure.data[at], some), "showlegend": False}
        for at, some in chosen.items()
        if _many(figure.data[at])
    ]
    return {
        "data": [*lit(data, chosen, colours["text"]), *over, *arrivals(figure, met, colours["text"])],
        "layout": _layout(figure, colours, zoom, kept),
    }


def _layout(figure: Figure, colours: Mapping[str, str], zoom: Zoom, kept: str) -> dict[str, Any]:
    axis = {"gridcolor": colours["line"], "linecolor": colours["line"], "zerolinecolor": colours["line"]}
    given = figure.layout
    layout: dict[str, Any] = {
        **given,
        "font": {"color": colours["text"], "family": "system-ui, sans-serif", "size": 13},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 80, "r": 16, "t": 40, "b": 50, **given.get("margin", {})},
        "uirevision": kept,
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": colours["dim"], "activecolor": colours["text"]},
        "hoverlabel": {
            "align": "left",
            "bgcolor": colours["panel"],
            "bordercolor": colours["line"],
            "font": {"color": colours["text"]},
        },
    }
    if any("rects" in trace for trace in figure.data):
        layout |= {"barmode": "overlay", "hovermode": "closest"}
    ends = {name: [low, high] for name, low, high in zoom}
    for name in {"xaxis", "yaxis", *(key for key in given if key[1:5] == "axis")}:
        short = name[0] + name[5:]
        # A range from the address is to win over what the reader did before, a legend's choices not.
        layout[name] = {**axis, **given.get(name, {}), "uirevision": f"{kept} {ends.get(short)}"}
        if short in ends:
            layout[name] |= {"range": ends[short], "autorange": False}
    return layout


def _trace(figure: Figure, trace: Mapping[str, Any]) -> dict[str, Any]:
    if _many(trace):
        return {**_outline(figure, trace, range(len(trace["rects"]["pick"]))), "meta": OUTLINE}
    if "rects" in trace:
        return _bars(figure, trace)
    texts = trace.get("hovertext")
    if not figure.strings or not isinstance(texts, list):
        return dict(trace)
    return {**trace, "hovertext": [figure.strings[at] if isinstance(at, int) else at for at in texts]}


def _bars(figure: Figure, trace: Mapping[str, Any]) -> dict[str, Any]:
    """Return rectangles as horizontal bars: one a position of `pick`, in its order."""
    rects = trace["rects"]
    table, pick, part = figure.columns[rects["of"]], rects["pick"], rects["part"]
    top, bottom = rects["band"]
    spans = [_span(table, at, part) for at in pick]
    # A rank of several rows has one step behind all of them.
    reaches = [table["tall"][at] for at in pick] if "tall" in table else [0.0] * len(pick)
    colour = trace.get("fillcolor")
    marker: dict[str, Any] = {"color": colour, "line": {"color": colour, "width": 0.5}}
    if "fillpattern" in trace:
        marker["pattern"] = trace["fillpattern"]
    rest = {
        name: value
        for name, value in trace.items()
        if name in ("name", "opacity", "visible", "showlegend", "legendgroup")
    }
    ground = {"meta": GROUND} if rects["of"] == "steps" else {}
    return {
        **rest,
        **ground,
        "type": "bar",
        "orientation": "h",
        "base": [start for start, _ in spans],
        "x": [length for _, length in spans],
        "y": [table["row"][at] + (top + bottom) / 2 for at in pick],
        "width": [bottom - top + 2 * reach for reach in reaches],
        "marker": marker,
        "hoverinfo": "text",
        "hovertext": [_told(figure, table, at) for at in pick],
        "textposition": "none",
    }


def _many(trace: Mapping[str, Any]) -> bool:
    return "rects" in trace and len(trace["rects"]["pick"]) > BARS_MOST


def _outline(figure: Figure, trace: Mapping[str, Any], points: Iterable[int]) -> dict[str, Any]:
    """Return rectangles as one outline, which cannot tell what they are; `points` are places in `pick`."""
    rects = trace["rects"]
    table = figure.columns[rects["of"]]
    top, bottom = rects["band"]
    xs: list[float | None] = []
    ys: list[float | None] = []
    for point in points:
        at = rects["pick"][point]
        start, length = _span(table, at, rects["part"])
        reach = table["tall"][at] if "tall" in table else 0.0
        low, high = table["row"][at] - reach + top, table["row"][at] + reach + bottom
        xs += [start, start + length, start + length, start, start, None]
        ys += [low, low, high, high, low, None]
    kept = {name: value for name, value in trace.items() if name != "rects"}
    return {**kept, "x": xs, "y": ys, "line": {"width": 0}, "hoverinfo": "skip"}


def _span(table: Columns, at: int, part: str) -> tuple[float, float]:
    """Return start and length in ms of the part of a record; exposed time is drawn at the end."""
    start, length = table["start"][at], table["length"][at]
    if part == "wait":
        return start, min(table["wait"][at] or 0, length)
    if part == "exposed":
        exposed = min(table["exposed"][at] or 0, length)
        return start + length - exposed, exposed
    return start, length


def _told(figure: Figure, table: Columns, at: int) -> str:
    """Return what the pointer tells of a rectangle; names in it show letter for letter."""
    length = _time(table["length"][at])
    if "calls" in table:
        return f"{human.plural(table['calls'][at], 'collective')} folded, in {length}"
    if "text" not in table:
        return f"step {table['step'][at]}, {length}" if "step" in table else length
    step, number = table["step"][at], table["number"][at]
    row = table["row"][at]
    names = figure.columns.get("rows", {}).get("rank", [])
    lines = [f"rank {names[row]}"] if isinstance(row, int) and 0 <= row < len(names) else []
    lines += figure.strings[table["text"][at]].split("\n")
    lines += [
        f"{'outside every step' if step is None else f'step {step}'}, "
        f"number {human.UNKNOWN if number is None else number} of its group",
        ", ".join(
            f"{word} {_time(table[column][at])}"
            for word, column in (
                ("took", "length"),
                ("exposed", "exposed"),
                ("waited", "wait"),
                ("floor", "floor"),
            )
        ),
    ]
    return hover(_wrapped([literal(line, 300) for line in lines]))


def _wrapped(lines: Sequence[str], most: int = 90) -> list[str]:
    """Break long lines at spaces: Plotly's label is as wide as its longest line."""
    found: list[str] = []
    for line in lines:
        row = ""
        for word in line.split(" "):
            if row and len(row) + len(word) >= most:
                found.append(row)
                row = word
            else:
                row = f"{row} {word}" if row else word
        found.append(row)
    return found


def _time(ms: float | None) -> str:
    return human.UNKNOWN if ms is None else human.duration(ms * _NS)
