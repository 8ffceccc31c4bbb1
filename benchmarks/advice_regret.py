"""Regret of the advice on measured layouts: how much slower the chosen layout ran than the best that was run.

`python benchmarks/advice_regret.py rows.csv -o x.json`. A cell is one model on one number of nodes of
hf-ultrascale. In each, the forecast chooses among the layouts that were run. Beside it: the rule of thumb
(least tensor and pipeline parallel, a sharded optimizer, the largest micro-batch), the median layout, a
random one. `held out`: the same with constants that were fitted without any row of the cell's model.

Three orders are judged. `forecast`: tokens/s alone. `fits`: layouts whose expected peak exceeds the GPU stand
last. `advise`: those whose upper band exceeds 90 % of the GPU stand last, and the first is the simplest
family within 2 % of the fastest, as `shardtoll advise` chooses if `--max-memory` is left out.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from forecast_fit import FIXED, STAGES, fit, load
from memory_fit import H100_BYTES, plan_of

from shardtoll.analyzers.advise.path import FAMILIES, NOISE
from shardtoll.analyzers.forecast.memory import plan_memory
from shardtoll.analyzers.forecast.plan.constants import Constants, fitted
from shardtoll.analyzers.forecast.plan.price import price_parts
from shardtoll.analyzers.forecast.rows.evaluate import priced_row
from shardtoll.analyzers.forecast.rows.parse import read_row

Row = dict[str, Any]
SHARE = 0.9
"""`--max-memory` of `shardtoll advise` if it is left out."""
ORDERS = ("forecast", "fits", "advise")


def without(path: Path) -> dict[str, Constants]:
    """Constants by model, fitted to the rows of the other models."""
    rows = [each for each in load(path) if each.row["group"] == "hf-ultrascale"]
    stage = next(each for each in STAGES if each.framework == "nanotron")
    start = fitted().with_({**START_OF_FIT, **FIXED})
    return {
        model: fit([each for each in rows if each.row["model"] != model], start, stage.free)
        for model in sorted({each.row["model"] for each in rows})
    }


START_OF_FIT = {
    "sustained.nanotron.h100-sxm": 0.88, "attention.nanotron": 0.6, "memory.nanotron": 0.7,
    "host_us.nanotron": 8.0, "call_us.nanotron": 12.0, "near.nanotron": 1.4, "net.nanotron": 1.1,
    "step_ms.nanotron": 10.0, "send_us.nanotron": 20.0,
}  # fmt: skip
"""What the fit of nanotron starts from: nothing that was fitted to its rows."""


def cells_of(
    path: Path, constants: Mapping[str, Constants] | None = None
) -> dict[tuple[str, int], list[Row]]:
    """Rows by model and nodes, each with measured tokens/s (0: it crashed), forecast tokens/s and memory.

    `constants`: those to price each model's rows with; the packaged ones if None.
    """
    cells: dict[tuple[str, int], list[Row]] = defaultdict(list)
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["group"] != "hf-ultrascale":
                continue
            read = read_row(row)
            layout = read.plan.layout
            memory = plan_memory(plan_of(row))
            cells[row["model"], int(row["gpus"]) // 8].append(
                {
                    "layout": f"dp{layout.dp} tp{layout.tp} pp{layout.pp} {row['shard']}"
                    f" mbs{layout.micro_batch}",
                    "measured": float(row["tok_s_gpu"] or 0),
                    "forecast": forecast(row, None if constants is None else constants.get(row["model"])),
                    "families": [family.holds(layout) for family in FAMILIES],
                    "fits": memory.reserved.expected_bytes + memory.outside_bytes <= H100_BYTES,
                    "allowed": memory.reserved.high_bytes + memory.outside_bytes <= SHARE * H100_BYTES,
                    "thumb": (layout.tp * layout.pp, row["shard"] != "ZeRO1", -layout.micro_batch),
                }
            )
    return cells


def forecast(row: dict[str, str], constants: Constants | None) -> float:
    """Tokens/s per GPU of a row, as `shardtoll forecast eval` answers, or with these constants."""
    if constants is None:
        priced = priced_row(1, row).tok_s_gpu
        return 0.0 if priced is None else priced.expected
    read = read_row(row)
    plan = read.plan
    step_ns = price_parts(plan, read.network, constants).step_ns
    return 1e9 * plan.tokens / plan.layout.world_size / step_ns


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


def scores(rows: list[Row], order: str) -> list[float]:
    """One score per row, the first choice with the largest; see the top of this file."""
    holds = {"forecast": None, "fits": "fits", "advise": "allowed"}[order]
    made = [row["forecast"] - (_LAST if holds is not None and not row[holds] else 0.0) for row in rows]
    if order == "advise" and max(made) > 0:
        near = [place for place, score in enumerate(made) if (1 + NOISE) * score >= max(made)]
        made[max(near, key=lambda place: (rows[place]["families"], made[place]))] = _LAST
    return made


_LAST = 1e9
"""More tokens/s than any row has."""


def judged_order(rows: list[Row], order: str) -> Row:
    """Regrets and rank correlation of one order of the layouts that ran."""
    best = max(row["measured"] for row in rows)
    by_score = scores(rows, order)
    places = sorted(range(len(rows)), key=lambda place: -by_score[place])
    chosen = [rows[place]["measured"] for place in places[:3]]
    return {
        "first_pct": round(100 * (best / chosen[0] - 1), 2),
        "best_of_three_pct": round(100 * (best / max(chosen) - 1), 2),
        "spearman": spearman(by_score, [row["measured"] for row in rows]),
        "last": sum(score < 0 for score in by_score),
        "chosen": rows[places[0]]["layout"],
    }


def judged(model: str, nodes: int, rows: list[Row]) -> Row | None:
    """Regrets of one cell in percent; None if no layout ran."""
    ran = [row for row in rows if row["measured"] > 0]
    if len(ran) < 2:
        return None
    best = max(row["measured"] for row in ran)
    orders = {name: judged_order(ran, name) for name in ORDERS}
    among_all = max((row for row in rows if row["fits"]), key=lambda row: row["forecast"], default=None)

    def regret(measured: float) -> float:
        return float(round(100 * (best / measured - 1), 2))

    return {
        "model": model,
        "nodes": nodes,
        "layouts": len(ran),
        "first_pct": orders["forecast"]["first_pct"],
        "best_of_three_pct": orders["forecast"]["best_of_three_pct"],
        "rule_of_thumb_pct": regret(min(ran, key=lambda row: row["thumb"])["measured"]),
        "median_layout_pct": regret(statistics.median(row["measured"] for row in ran)),
        "random_pct": round(statistics.fmean(regret(row["measured"]) for row in ran), 2),
        "spearman": orders["forecast"]["spearman"],
        "orders": orders,
        "chosen": orders["forecast"]["chosen"],
        "best": max(ran, key=lambda row: row["measured"])["layout"],
        "first_of_all_crashed": None if among_all is None else among_all["measured"] == 0,
    }


def summary(cells: list[Row]) -> Row:
    """Medians and worst of the cells."""
    names = ("first_pct", "best_of_three_pct", "rule_of_thumb_pct", "median_layout_pct", "random_pct")
    made: Row = {"cells": len(cells)}
    for name in names:
        values = [cell[name] for cell in cells]
        made[name] = {"median": statistics.median(values), "worst": max(values)}
    made["spearman_median"] = statistics.median(cell["spearman"] or 0.0 for cell in cells)
    made["orders"] = {order: summary_of([cell["orders"][order] for cell in cells]) for order in ORDERS}
    return made


def summary_of(cells: list[Row]) -> Row:
    """Medians, worst and least of one order over the cells."""
    made: Row = {"last": sum(cell["last"] for cell in cells)}
    for name in ("first_pct", "best_of_three_pct"):
        made[name] = {
            "median": statistics.median(cell[name] for cell in cells),
            "worst": max(cell[name] for cell in cells),
        }
    ranked = [cell["spearman"] for cell in cells if cell["spearman"] is not None]
    made["spearman"] = {"median": statistics.median(ranked), "least": min(ranked)}
    return made


def main() -> None:
    """Read, choose, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", type=Path)
    parser.add_argument("-o", "--out", type=Path)
    parser.add_argument("--quick", action="store_true", help="no fits without the cell's model")
    arguments = parser.parse_args()
    started = time.monotonic()
    cells = [judged(model, nodes, rows) for (model, nodes), rows in sorted(cells_of(arguments.rows).items())]
    made = [cell for cell in cells if cell is not None]
    report: Row = {"up to 8 nodes": summary([cell for cell in made if cell["nodes"] <= 8])}
    if any(cell["nodes"] >= 16 for cell in made):
        report["16 nodes and more"] = summary([cell for cell in made if cell["nodes"] >= 16])
    if not arguments.quick:
        left = cells_of(arguments.rows, without(arguments.rows))
        held = [judged(model, nodes, rows) for (model, nodes), rows in sorted(left.items())]
        others = [cell for cell in held if cell is not None]
        report["held out, up to 8 nodes"] = summary([cell for cell in others if cell["nodes"] <= 8])
        for cell, other in zip(made, others, strict=True):
            cell["held_out"] = {
                name: other[name]
                for name in ("first_pct", "best_of_three_pct", "spearman", "chosen", "orders")
            }
    report["seconds"] = round(time.monotonic() - started, 1)
    for cell in made:
        print(json.dumps(cell))
    print(json.dumps(report, indent=1))
    if arguments.out:
        arguments.out.write_text(
            json.dumps({"summary": report, "cells": made}, indent=1) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
