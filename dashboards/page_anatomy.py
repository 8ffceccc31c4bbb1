"""Figure: where each rank's step goes, as stacked bars that add up to its duration."""

from __future__ import annotations

from typing import Any, Final

from shardtoll.dashboards import human, step_times, summary
from shardtoll.dashboards.figure import PALETTE, TOP_LEGEND, Figure, height, hover, ms
from shardtoll.ledger import Report

LEAD: Final = "The mean step of each rank. The parts of a rank add up to its step."

COLOURS = {
    "compute_ns": PALETTE["green"],
    "exposed_comm_ns": PALETTE["vermillion"],
    "exposed_copy_ns": PALETTE["purple"],
    "idle_ns": PALETTE["sky"],
    "unattributed_ns": PALETTE["grey"],
}


def figure(report: Report) -> Figure:
    """Return one bar a rank, mean over its surveyed steps; nothing to draw where no step finished."""
    times = step_times.rank_times(report)
    if not times:
        return Figure([], {}, ["No step finished, so there is no time to divide."])
    worst = step_times.slowest(times)
    names = [f"rank {time.ranks[0]}{' (slowest)' if time is worst else ''}" for time in times]
    data: list[dict[str, Any]] = []
    for at, (part, words) in enumerate(step_times.PARTS):
        texts = []
        for name, time in zip(names, times, strict=True):
            value = time.parts_ns[at]
            lines = [f"<b>{name}</b>", f"{words}: {human.duration(value)}"]
            if value is not None:
                lines.append(f"{human.share(value, time.total_ns)} of {human.duration(time.total_ns)}")
            if part == "unattributed_ns":
                lines.append(f"of which capture: {human.duration(time.capture_ns)}")
            texts.append(hover(lines))
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": words,
                "y": names,
                # An unknown part has no bar; its hover text says so.
                "x": [None if (part_ns := time.parts_ns[at]) is None else ms(part_ns) for time in times],
                "hovertext": texts,
                "hovertemplate": "%{hovertext}<extra></extra>",
                "marker": {
                    "color": COLOURS[part],
                    # Not by colour alone.
                    "pattern": {
                        "shape": "/" if part == "exposed_comm_ns" else "",
                        "bgcolor": COLOURS[part],
                        "fgcolor": "#ffffff",
                        "size": 7,
                        "solidity": 0.2,
                    },
                },
            }
        )
    layout = {
        "barmode": "stack",
        "height": height(len(times)),
        "xaxis": {"title": {"text": "ms a step"}, "rangemode": "tozero"},
        "yaxis": {"autorange": "reversed", "type": "category", "automargin": True},
        "legend": TOP_LEGEND,
    }
    return Figure(data, layout, _notes(report))


def _notes(report: Report) -> list[str]:
    """Return what the parts are the mean of, where not every step was divided."""
    levels = summary.levels(report)
    if levels is None:
        return []
    if summary.surveyed_count(report):
        return [
            f"{levels}. The parts are the mean over the surveyed steps and add up to them; of watched steps "
            "time and exposed communication are known, as the table says."
        ]
    return [f"{levels}. In a watched step what is not exposed communication is unattributed."]
