"""Figure and table: operators under the accelerator's roofline, FLOPs per byte against FLOPs per second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from shardtoll.dashboards.page.html.figure import (
    PALETTE,
    Figure,
    Marks,
    Strings,
    drawable,
    hover,
    literal,
    log_axis,
)
from shardtoll.dashboards.page.html.page_bill import safe
from shardtoll.dashboards.page.html.tables import table
from shardtoll.dashboards.words.text import clip
from shardtoll.ledger import KINDS, Finding
from shardtoll.ledger.answers.step_roofline import OpRoofline, StepRoofline
from shardtoll.ledger.words import human

LEAD: Final = (
    "One mark for all calls of an operator on equal shapes. The slope is the memory's rate, flat lines are "
    "the peaks of the formats in use. Under the slope an operator is bound by memory, under a flat line by "
    "compute."
)

_BOUND: Final = {
    "compute": ("bound by compute", PALETTE["blue"], "circle"),
    "memory": ("bound by memory", PALETTE["orange"], "diamond"),
    None: ("no peak known", PALETTE["grey"], "x"),
}
"""Words, colour and, not by colour alone, symbol."""
OPS_SHOWN: Final = 200
_DASHES: Final = ("solid", "dash", "dot", "dashdot", "longdash")


def figure(roofline: StepRoofline, findings: Sequence[Finding] = ()) -> Figure:
    """Return the scatter under its ceilings: operators with FLOPs, bytes and a time.

    Findings on compute that name an operator light up all its shapes.
    """
    ops = roofline.ops[:OPS_SHOWN]
    drawn = [op for op in ops if drawable(op.intensity) and drawable(op.tflops)]
    notes = []
    if len(ops) < len(roofline.ops):
        notes.append(f"Only the first {OPS_SHOWN} of {len(roofline.ops):,} operators are shown.")
    if len(drawn) < len(ops):
        notes.append(
            f"{len(ops) - len(drawn)} of {human.plural(len(ops), 'operator')} not drawn: FLOPs, "
            "bytes or time on the device are unknown or zero."
        )
    if not drawn:
        return Figure([], {}, notes)
    strings = Strings()
    data = _ceilings(roofline, drawn, strings)
    points, marks = _points(drawn, strings, _spoken_of(findings), len(data))
    data += points
    layout = {
        "height": 480,
        "xaxis": log_axis("FLOPs per byte", [x for trace in data for x in trace["x"]], _plain),
        "yaxis": log_axis("FLOPs per second", [y for trace in data for y in trace["y"]], _rate),
        "hovermode": "closest",
    }
    return Figure(data, layout, notes, strings.all(), marks=marks)


def _plain(value: float) -> str:
    return f"{value:g}"


def _rate(tflops: float | None) -> str:
    return human.UNKNOWN if tflops is None else f"{human.work(tflops * 1e12)}/s"


def _ceilings(roofline: StepRoofline, drawn: Sequence[OpRoofline], strings: Strings) -> list[dict[str, Any]]:
    if roofline.memory_gbps is None or not drawable(roofline.memory_gbps):
        return []
    peaks = {name: peak for name, peak in roofline.peak_tflops.items() if drawable(peak)}
    used = [name for name in peaks if any(op.dtype == name for op in drawn)]
    low, high = min(op.intensity or 1.0 for op in drawn), max(op.intensity or 1.0 for op in drawn)
    data = []
    for place, name in enumerate(used):
        peak = peaks[name]
        # GB/s x FLOPs per byte = 1e9 FLOPs per second; the two meet at the ridge.
        ridge = peak * 1e3 / roofline.memory_gbps
        xs = sorted({min(low, ridge), ridge, max(high, ridge * 4)})
        words = f"{literal(name, 20)} peak {_rate(peak)}, memory {human.rate(roofline.memory_gbps)}"
        text = strings.add(hover([f"<b>{words}</b>", f"they meet at {ridge:.3g} FLOPs per byte"]))
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": words,
                "x": [float(f"{x:.6g}") for x in xs],
                "y": [float(f"{min(peak, x * roofline.memory_gbps / 1e3):.6g}") for x in xs],
                "line": {"color": PALETTE["grey"], "width": 1.5, "dash": _DASHES[place % len(_DASHES)]},
                "hovertext": [text] * len(xs),
                "hovertemplate": "%{hovertext}<extra></extra>",
            }
        )
    return data


def _spoken_of(findings: Sequence[Finding]) -> dict[str, list[int]]:
    """Return operator -> the findings on compute that name it."""
    numbers: dict[str, list[int]] = {}
    for number, finding in enumerate(findings, start=1):
        if finding.where.op is not None and KINDS.get(finding.kind) == "compute":
            numbers.setdefault(finding.where.op, []).append(number)
    return numbers


def _points(
    drawn: Sequence[OpRoofline], strings: Strings, spoken_of: Mapping[str, Sequence[int]], before: int
) -> tuple[list[dict[str, Any]], Marks]:
    """Return the marks' traces, the first of them the figure's trace `before`; and which are whose."""
    data: list[dict[str, Any]] = []
    marks: Marks = {}
    for bound, (words, colour, symbol) in _BOUND.items():
        members = [op for op in drawn if op.bound == bound]
        if not members:
            continue
        for point, op in enumerate(members):
            for number in spoken_of.get(op.op, ()):
                marks.setdefault(number, {}).setdefault(before + len(data), []).append(point)
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": words,
                "x": [float(f"{op.intensity or 0:.6g}") for op in members],
                "y": [float(f"{op.tflops or 0:.6g}") for op in members],
                # The outline separates a light colour from a light page.
                "marker": {
                    "color": colour,
                    "symbol": symbol,
                    "size": 10,
                    "opacity": 0.85,
                    "line": {"color": PALETTE["grey"], "width": 1},
                },
                "hovertext": [strings.add(_words(op)) for op in members],
                "hovertemplate": "%{hovertext}<extra></extra>",
            }
        )
    return data, marks


def _words(op: OpRoofline) -> str:
    lines = [f"<b>{literal(op.op, 60)}</b>"]
    if op.shapes:
        lines.append(literal(op.shapes, 120))
    lines.append(f"{human.number(op.count)} calls per step, each {human.duration(op.device_ns)}")
    lines.append(f"{human.work(op.flops)}, {human.size(op.moved_bytes)}: {_rate(op.tflops)}")
    lines.append(f"speed of light {human.duration(op.light_ns)}")
    return hover(lines)


def numbers(roofline: StepRoofline) -> str:
    """Return all operators as a table."""
    rows = [
        [
            safe(clip(op.op, 80)),
            safe(clip(op.shapes or human.UNKNOWN, 160)),
            human.number(op.count),
            human.duration(op.device_ns),
            human.work(op.flops),
            human.size(op.moved_bytes),
            _rate(op.tflops),
            human.duration(op.light_ns),
            op.bound or human.UNKNOWN,
        ]
        for op in roofline.ops[:OPS_SHOWN]
    ]
    heads = ("operator", "shapes", "calls per step", "each took", "FLOPs", "bytes at least", "reached",
             "speed of light", "bound by")  # fmt: skip
    return table(heads, rows, "operators")
