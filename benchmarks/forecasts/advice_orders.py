"""Orders of measured layouts in `advice_regret.py`: which layouts stand last, and which one is chosen.

`forecast`: tokens/s alone. `upper 90`, `upper 95`, `upper 100`: layouts whose upper memory band exceeds that
share of the GPU stand last, and the choice is the simplest family within 2 % of the fastest. `advise`: the
choice of `upper 100`, then layouts whose expected peak fits, by speed, then the rest by what they lack. That
is how `shardtoll advise` answers if `--max-memory` is left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, Final

from memory_fit import H100_BYTES

from shardtoll.analyzers.advise.decision_path import NOISE

Row = dict[str, Any]
SHARES: Final = {"upper 90": 0.9, "upper 95": 0.95, "upper 100": 1.0, "advise": 1.0}
ORDERS: Final = ("forecast", *SHARES)


def ordered(rows: Sequence[Row], order: str) -> list[Row]:
    """The rows, first choice first."""
    if order == "forecast":
        return sorted(rows, key=lambda row: -row["forecast"])
    limit = SHARES[order] * H100_BYTES
    fitting = [row for row in rows if row["high_bytes"] <= limit]
    first = chosen(fitting)

    def place(row: Row) -> tuple[bool, bool, float]:
        if order != "advise":
            return row is not first, row["high_bytes"] > limit, -row["forecast"]
        lacks = row["expected_bytes"] > limit
        return row is not first, lacks, row["expected_bytes"] if lacks else -row["forecast"]

    return sorted(rows, key=place)


def chosen(fitting: Sequence[Row]) -> Row | None:
    """The fastest of the simplest family within the noise of the fastest; None if nothing fits."""
    most = max((row["forecast"] for row in fitting), default=0.0)
    near = [row for row in fitting if (1 + NOISE) * row["forecast"] >= most]
    return max(near, key=lambda row: (row["families"], row["forecast"]), default=None)


def judged_order(rows: Sequence[Row], order: str) -> Row:
    """Regrets and rank correlation among the layouts that ran, and crashes among all that were tried.

    A layout that crashed once and ran once did not crash for memory.
    """
    ran = [row for row in rows if row["measured"] > 0]
    those_ran = {row["layout"] for row in ran}
    best = max(row["measured"] for row in ran)
    places = ordered(ran, order)
    three = [row["measured"] for row in places[:3]]
    of_all = ordered([row for row in rows if row["measured"] > 0 or row["layout"] not in those_ran], order)
    limit = SHARES.get(order, 0.0) * H100_BYTES or float("inf")
    key = "expected_bytes" if order == "advise" else "high_bytes"
    return {
        "first_pct": round(100 * (best / three[0] - 1), 2),
        "best_of_three_pct": round(100 * (best / max(three) - 1), 2),
        "spearman": spearman([-number for number in range(len(places))], [row["measured"] for row in places]),
        "last": sum(row[key] > limit for row in ran),
        "crashed_first": int(of_all[0]["measured"] == 0),
        "crashed_of_three": sum(row["measured"] == 0 for row in of_all[:3]),
        "chosen": places[0]["layout"],
    }


def summary_of(cells: Sequence[Row]) -> Row:
    """Medians, worst, least and sums of one order over the cells."""
    made: Row = {name: sum(cell[name] for cell in cells) for name in _SUMS}
    for name in ("first_pct", "best_of_three_pct"):
        made[name] = {
            "median": statistics.median(cell[name] for cell in cells),
            "worst": max(cell[name] for cell in cells),
        }
    ranked = [cell["spearman"] for cell in cells if cell["spearman"] is not None]
    made["spearman"] = {"median": statistics.median(ranked), "least": min(ranked)}
    return made


_SUMS: Final = ("last", "crashed_first", "crashed_of_three")


def ranks(values: Sequence[float]) -> list[float]:
    """Rank of each value, ties at their mean."""
    order = sorted(range(len(values)), key=values.__getitem__)
    result = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for place in range(start, end + 1):
            result[order[place]] = (start + end) / 2
        start = end + 1
    return result


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Correlation of ranks; None for fewer than three values."""
    return statistics.correlation(ranks(first), ranks(second)) if len(first) > 2 else None
