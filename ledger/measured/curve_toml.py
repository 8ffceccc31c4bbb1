"""Measured curves as the tables of a fabric file: the one text that the profiler and the roofline share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from shardtoll.ledger.measured.measured import CurvePoint, Timings, summarize

LISTS = ("message_bytes", "time_ns", "low_ns", "high_ns", "samples")
"""Keys of a curve that hold one number a point."""


def text(value: str) -> str:
    """Return a TOML string."""
    # A JSON string is a TOML basic string, except for DEL, which only TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def curve_lines(
    op: str, ranks: int, nodes: int, source: str, points: Sequence[CurvePoint], *, sharing: int = 1
) -> list[str]:
    """Return the lines of one `[[curve]]`, a blank one first."""
    lines = ["", "[[curve]]", f"op = {text(op)}", f"ranks = {ranks}", f"nodes = {nodes}"]
    if sharing > 1:
        lines.append(f"sharing = {sharing}")
    lines.append(f"source = {text(source)}")
    for key in LISTS:
        lines.append(f"{key} = [{', '.join(str(getattr(point, key)) for point in points)}]")
    return lines


def measured_toml(head: Mapping[str, str | Sequence[str]], timings: Sequence[Timings]) -> str:
    """Return a whole fabric file: the keys of `head`, that it is measured, and a curve for each timing."""
    lines = []
    for key, value in head.items():
        shown = text(value) if isinstance(value, str) else f"[{', '.join(text(item) for item in value)}]"
        lines.append(f"{key} = {shown}")
    lines.append("measured = true")
    for curve in timings:
        lines += curve_lines(
            curve.op, curve.ranks, curve.nodes, curve.source, summarize(curve), sharing=curve.sharing
        )
    return "\n".join(lines) + "\n"
