"""What the timeline's script draws from: steps and collectives as columns of numbers and words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from shardtoll.dashboards import human
from shardtoll.dashboards.figure import Columns, Strings, ms
from shardtoll.dashboards.row_codes import Ints
from shardtoll.dashboards.sites import cause, plain
from shardtoll.dashboards.text import clip
from shardtoll.ledger import Report
from shardtoll.ledger.tables import to_frame


def spans(rows: Sequence[float], start_ns: Sequence[int], length_ns: Sequence[int]) -> Columns:
    """Return rectangles: row, start and length in ms."""
    return {
        "row": list(rows),
        "start": [ms(start) for start in start_ns],
        "length": [ms(length) for length in length_ns],
    }


def steps(report: Report, extent: Mapping[int, tuple[float, float]]) -> Columns:
    """Return the steps of the drawn ranks; `tall`: how far the rank's rows reach from the middle one."""
    table = report.tables["steps"].select(["step", "rank", "start_ns", "duration_ns"])
    found = [step for step in plain(to_frame(table)) if step["rank"] in extent]
    middles = [extent[step["rank"]] for step in found]
    return {
        **spans(
            [middle for middle, _ in middles],
            [step["start_ns"] for step in found],
            [step["duration_ns"] for step in found],
        ),
        "step": [step["step"] for step in found],
        "tall": [reach for _, reach in middles],
    }


def calls(found: Sequence[dict[str, Any]], rows: Ints, met: Ints, strings: Strings) -> Columns:
    """Return the collectives; `met`: equal on the ranks that met in one, null where that is not known."""

    def column(name: str) -> list[float | None]:
        return [None if call[name] is None else ms(call[name]) for call in found]

    # Small numbers in the order of the rows, however many collectives are folded.
    numbers: dict[int, int] = {}
    meets = [None if each < 0 else numbers.setdefault(each, len(numbers)) for each in met.tolist()]
    return {
        **spans(rows.tolist(), [call["start_ns"] for call in found], [call["duration_ns"] for call in found]),
        "exposed": column("exposed_ns"),
        "wait": column("wait_ns"),
        "floor": column("floor_ns"),
        "step": [call["step"] for call in found],
        "number": [call["seq"] for call in found],
        "met": meets,
        "text": [strings.add(_words(call)) for call in found],
    }


def _words(call: dict[str, Any]) -> str:
    """What the collective is and why; its rank and numbers stand in the columns. Shown as plain text."""
    group = f"×{call['group_size']} {clip(call['mesh_dim'] or call['group'], 40)}"
    head = f"{clip(call['op'], 40)} {group}, {human.size(call['message_bytes'])}"
    return f"{head}\n{cause(SimpleNamespace(**call))}"
