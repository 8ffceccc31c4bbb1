"""Regret of the advice on measured layouts: how much slower the chosen layout ran than the best that was run.

`python benchmarks/forecasts/advice_regret.py rows.csv -o x.json`. A cell is one model on one number of nodes
of hf-ultrascale. In each, the forecast chooses among the layouts that were run. Beside it: the rule of thumb
(least tensor and pipeline parallel, a sharded optimizer, the largest micro-batch), the median layout, a
random one. `held out`: the same with constants of time and memory that were fitted without any row of the
cell's model. The orders that are judged: see `advice_orders.py`.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from advice_orders import ORDERS, judged_order, ordered, summary_of
from forecast_fit import FIXED, STAGES, fit, load
from memory_fit import GIB, hf_rows, plan_of, quantile
from memory_fit import fit as fit_memory

from shardtoll.analyzers.advise.decision_path import FAMILIES
from shardtoll.analyzers.forecast.memory import plan_memory
from shardtoll.analyzers.forecast.memory.memory_fits import MemoryFit, fit_of
from shardtoll.analyzers.forecast.plan.constants import Constants, fitted
from shardtoll.analyzers.forecast.plan.price import price_parts
from shardtoll.analyzers.forecast.rows.parse import read_row
from shardtoll.analyzers.forecast.rows.row_prices import priced_row

Row = dict[str, Any]
Fits = tuple[Mapping[str, Constants], Mapping[str, MemoryFit]]


def without(path: Path) -> Fits:
    """Constants of time and of memory by model, fitted to the rows of the other models."""
    rows = [each for each in load(path) if each.row["group"] == "hf-ultrascale"]
    stage = next(each for each in STAGES if each.framework == "nanotron")
    start = fitted().with_({**START_OF_FIT, **FIXED})
    models = sorted({each.row["model"] for each in rows})
    times = {
        model: fit([each for each in rows if each.row["model"] != model], start, stage.free)
        for model in models
    }
    measured, _ = hf_rows(path)
    return times, {model: _memory_without(measured, model) for model in models}


def _memory_without(measured: list[Row], model: str) -> MemoryFit:
    others = [each for each in measured if each["model"] != model]
    scale, extra = fit_memory([x["replayed_gib"] for x in others], [x["measured_gib"] for x in others])
    ratios = [x["measured_gib"] / (scale * x["replayed_gib"] + extra) for x in others]
    return MemoryFit(scale, round(extra * GIB), quantile(ratios, 0.1), quantile(ratios, 0.9), len(others))


START_OF_FIT = {
    "sustained.nanotron.h100-sxm": 0.88, "attention.nanotron": 0.9, "memory.nanotron": 0.7,
    "host_us.nanotron": 8.0, "call_us.nanotron": 12.0, "near.nanotron": 1.4, "net.nanotron": 1.1,
    "step_ms.nanotron": 10.0, "send_us.nanotron": 20.0,
}  # fmt: skip
"""What the fit of nanotron starts from: nothing that was fitted to its rows."""


def cells_of(path: Path, fits: Fits | None = None) -> dict[tuple[str, int], list[Row]]:
    """Rows by model and nodes, each with measured tokens/s (0: it crashed), forecast tokens/s and memory.

    `fits`: what to price each model's rows with; what is packaged if None.
    """
    cells: dict[tuple[str, int], list[Row]] = defaultdict(list)
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["group"] != "hf-ultrascale":
                continue
            layout = read_row(row).plan.layout
            expected, high = _peak(row, None if fits is None else fits[1].get(row["model"]))
            cells[row["model"], int(row["gpus"]) // 8].append(
                {
                    "layout": f"dp{layout.dp} tp{layout.tp} pp{layout.pp} {row['shard']}"
                    f" mbs{layout.micro_batch}",
                    "measured": float(row["tok_s_gpu"] or 0),
                    "forecast": forecast(row, None if fits is None else fits[0].get(row["model"])),
                    "families": [family.holds(layout) for family in FAMILIES],
                    "expected_bytes": expected,
                    "high_bytes": high,
                    "thumb": (layout.tp * layout.pp, row["shard"] != "ZeRO1", -layout.micro_batch),
                }
            )
    return cells


def _peak(row: dict[str, str], fit: MemoryFit | None) -> tuple[float, float]:
    """Expected peak and its upper end, with what lies outside the allocator. `fit`: None is the packaged."""
    memory = plan_memory(plan_of(row))
    expected, high = float(memory.reserved.expected_bytes), float(memory.reserved.high_bytes)
    if fit is not None:
        packaged = fit_of("nanotron")
        replayed = (expected - packaged.extra_bytes) / packaged.scale
        expected = replayed * fit.scale + fit.extra_bytes
        high = expected * max(1.0, fit.high)
    return expected + memory.outside_bytes, high + memory.outside_bytes


def forecast(row: dict[str, str], constants: Constants | None) -> float:
    """Tokens/s per GPU of a row, as `shardtoll forecast eval` answers, or with these constants."""
    if constants is None:
        priced = priced_row(1, row).tok_s_gpu
        return 0.0 if priced is None else priced.expected
    read = read_row(row)
    plan = read.plan
    step_ns = price_parts(plan, read.network, constants).step_ns
    return 1e9 * plan.tokens / plan.layout.world_size / step_ns


def judged(model: str, nodes: int, rows: list[Row]) -> Row | None:
    """Regrets of one cell in percent; None if fewer than two layouts ran."""
    ran = [row for row in rows if row["measured"] > 0]
    if len(ran) < 2:
        return None
    best = max(row["measured"] for row in ran)

    def regret(measured: float) -> float:
        return float(round(100 * (best / measured - 1), 2))

    return {
        "model": model,
        "nodes": nodes,
        "layouts": len(ran),
        "rule_of_thumb_pct": regret(min(ran, key=lambda row: row["thumb"])["measured"]),
        "median_layout_pct": regret(statistics.median(row["measured"] for row in ran)),
        "random_pct": round(statistics.fmean(regret(row["measured"]) for row in ran), 2),
        "orders": {name: judged_order(rows, name) for name in ORDERS},
        "best": max(ran, key=lambda row: row["measured"])["layout"],
        "order_of_advise": [row["layout"] for row in ordered(ran, "advise")][:5],
    }


def summary(cells: list[Row]) -> Row:
    """Medians and worst of the cells."""
    made: Row = {"cells": len(cells)}
    for name in ("rule_of_thumb_pct", "median_layout_pct", "random_pct"):
        values = [cell[name] for cell in cells]
        made[name] = {"median": statistics.median(values), "worst": max(values)}
    made["orders"] = {order: summary_of([cell["orders"][order] for cell in cells]) for order in ORDERS}
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
            cell["held_out"] = other["orders"]
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
