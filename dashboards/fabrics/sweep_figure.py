"""Figure: one measured sweep, the model's line, and the band it states; below them, their ratio."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from shardtoll.dashboards.fabrics.sweep_lines import SizeLine, SweepLine
from shardtoll.dashboards.page.html.figure import PALETTE, TOP_LEGEND, Figure, Strings, hover, literal
from shardtoll.dashboards.words.text import clean, clip
from shardtoll.ledger.words import human

_BAND: Final = "rgba(86,180,233,0.25)"
_GRID: Final = "rgba(138,138,138,0.3)"
_RATIO: Final = {"xaxis": "x", "yaxis": "y2"}
_RATIOS: Final = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.8, 1, 1.25, 2, 5, 10, 20, 50, 100]


def _ticks(powers: Iterable[int], words: Callable[[float], str], *, scale: float = 1) -> dict[str, Any]:
    """Return a tick at each of these powers of ten, with words for the value times `scale`."""
    values = [float(f"1e{power}") for power in powers]
    # `10 kB`, not `10.0 kB`: a tick is exact.
    texts = [words(value * scale).replace(".00 ", " ").replace(".0 ", " ") for value in values]
    return {"tickvals": values, "ticktext": texts}


_SIZES: Final = _ticks(range(16), human.size)
_TIMES: Final = _ticks(range(-3, 10), human.duration, scale=1e3)
"""Ticks for a time in µs, the unit of the axis."""


def figure(sweep: SweepLine) -> Figure:
    """Return times over sizes, both logarithmic, and under them measured over predicted."""
    # A logarithmic axis has no zero.
    sizes = [size for size in sweep.sizes if size.message_bytes > 0]
    fitted = [size for size in sweep.fitted if size.message_bytes > 0]
    if not sizes and not fitted:
        return Figure([], {}, ["There is no size above zero to draw."])
    strings = Strings()
    said = [size for size in sizes if size.predicted_ns is not None]
    data = _band(said) + _lines(said) + _marks("measured", sizes, strings, hollow=False)
    if fitted:
        data += _marks("measured, given to the model", fitted, strings, hollow=True)
    data += _ratio(said)
    notes = [f"Not predicted: {clip(sweep.reason, 300)}."] if sweep.reason else []
    notes += [f"Guesses: {', '.join(clean(name) for name in sweep.guesses)}."] if sweep.guesses else []
    layout = {
        "height": 560,
        "xaxis": {"type": "log", "title": {"text": "message size"}, "anchor": "y2", **_SIZES},
        "yaxis": {
            "type": "log",
            "title": {"text": "time"},
            "domain": [0.36, 1],
            "automargin": True,
            **_TIMES,
        },
        "yaxis2": {
            "type": "log",
            "tickvals": _RATIOS,
            "ticktext": [f"{value:g}" for value in _RATIOS],
            "title": {"text": "measured / predicted"},
            "domain": [0, 0.28],
            "gridcolor": _GRID,
            "linecolor": _GRID,
            "zerolinecolor": _GRID,
            "automargin": True,
        },
        "shapes": [_level_one()],
        "hovermode": "closest",
        "legend": TOP_LEGEND,
    }
    return Figure(data, layout, notes, strings.all())


def _level_one() -> dict[str, Any]:
    line = {"color": PALETTE["blue"], "width": 1.5}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "yref": "y2", "y0": 1, "y1": 1, "line": line}


def _band(said: Sequence[SizeLine]) -> list[dict[str, Any]]:
    """Return the lower edge and the upper one, which fills down to it."""
    edges = [(size.message_bytes, size.low_ns, size.high_ns) for size in said]
    whole = [(size, low, high) for size, low, high in edges if low is not None and high is not None]
    x = [size for size, _, _ in whole]
    lows, highs = [_us(low) for _, low, _ in whole], [_us(high) for _, _, high in whole]
    bare = {"type": "scatter", "mode": "lines", "x": x, "line": {"width": 0}, "hoverinfo": "skip"}
    upper = {"y": highs, "fill": "tonexty", "fillcolor": _BAND, "name": "band of 9 in 10"}
    return [{**bare, "y": lows, "showlegend": False}, {**bare, **upper}] if whole else []


def _lines(said: Sequence[SizeLine]) -> list[dict[str, Any]]:
    lines = []
    model = [(size.message_bytes, size.predicted_ns) for size in said]
    light = [(size.message_bytes, size.light_ns) for size in said]
    for name, points, line in (
        ("model", model, {"color": PALETTE["blue"], "width": 2}),
        ("speed of light", light, {"color": PALETTE["grey"], "width": 1.5, "dash": "dot"}),
    ):
        priced = [(size, ns) for size, ns in points if ns is not None and ns > 0]
        if priced:
            lines.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers" if len(priced) == 1 else "lines",
                    "name": name,
                    "x": [size for size, _ in priced],
                    "y": [_us(ns) for _, ns in priced],
                    "line": line,
                    "hoverinfo": "skip",
                }
            )
    return lines


def _marks(name: str, sizes: Sequence[SizeLine], strings: Strings, *, hollow: bool) -> list[dict[str, Any]]:
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": name,
            "x": [size.message_bytes for size in sizes],
            "y": [_us(size.measured_ns) for size in sizes],
            "marker": {
                "color": PALETTE["orange"],
                "size": 8,
                "symbol": "circle-open" if hollow else "circle",
            },
            "hovertext": [strings.add(_words(size)) for size in sizes],
            "hovertemplate": "%{hovertext}<extra></extra>",
        }
    ]


def _ratio(said: Sequence[SizeLine]) -> list[dict[str, Any]]:
    """Return measured over predicted, and the band in the same measure."""
    priced = [
        (size.message_bytes, size.measured_ns, size.predicted_ns, size.low_ns, size.high_ns)
        for size in said
        if size.predicted_ns
    ]
    if not priced:
        return []
    x = [size for size, *_ in priced]
    bare = {
        "type": "scatter",
        "mode": "lines",
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
    }
    data: list[dict[str, Any]] = []
    if all(low is not None and high is not None for *_, low, high in priced):
        lows = [_digits((low or 0) / said_ns) for _, _, said_ns, low, _ in priced]
        highs = [_digits((high or 0) / said_ns) for _, _, said_ns, _, high in priced]
        data.append({**bare, **_RATIO, "x": x, "y": lows})
        data.append({**bare, **_RATIO, "x": x, "y": highs, "fill": "tonexty", "fillcolor": _BAND})
    data.append(
        {
            "type": "scatter",
            "mode": "markers",
            **_RATIO,
            "x": x,
            "y": [_digits(measured / said_ns) for _, measured, said_ns, _, _ in priced],
            "marker": {"color": PALETTE["orange"], "size": 7},
            "hoverinfo": "skip",
            "showlegend": False,
        }
    )
    return data


def _words(size: SizeLine) -> str:
    lines = [f"<b>{human.size(size.message_bytes)}</b>", f"measured {human.duration(size.measured_ns)}"]
    if size.predicted_ns is not None:
        band = f"band {human.duration(size.low_ns)} to {human.duration(size.high_ns)}"
        lines.append(f"model {human.duration(size.predicted_ns)} ({100 * (size.error or 0):+.1f} %), {band}")
        lines.append(f"floor {human.duration(size.floor_ns)}, light {human.duration(size.light_ns)}")
        by = " ".join(part for part in (size.algorithm, size.protocol, size.basis) if part)
        lines.append(literal(by, 80))
    return hover(lines)


def _us(ns: float) -> float:
    return _digits(ns / 1e3)


def _digits(value: float) -> float:
    return float(f"{value:.6g}")
