"""Peak memory of plans against published rows: fits the constants per framework, writes every error.

    python benchmarks/forecasts/memory_fit.py rows.csv -o x.json [--write]

`rows.csv` has the columns of e2e_train.csv.
Errors of hf-ultrascale are those of a fit without the row's model; torchtitan's need no fit. `--write` renews
memory_fit.toml.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memory_rows import torchtitan_rows

from shardtoll.analyzers.forecast.memory.memory_fits import MemoryFit
from shardtoll.analyzers.forecast.memory.peak import outside_bytes, replay_stage
from shardtoll.ledger.answers.training_plan import Layout, ModelShape, TrainingPlan

GIB = 2**30
H100_BYTES = 84_943_765_504  # what the driver reports of an H100 with 80 GB: 79.11 GiB
FIT_FILE = Path(__file__).resolve().parents[2] / "analyzers/forecast/memory/memory_fit.toml"


def plan_of(row: dict[str, str]) -> TrainingPlan:
    """The plan of a hf-ultrascale row; sequence parallel where tensor parallel, as that benchmark ran."""

    def number(name: str) -> int:
        return int(row[name] or 1)

    model = ModelShape(
        number("layers"), number("hidden"), number("heads"), int(row["kv_heads"] or row["heads"]),
        number("ffn"), number("vocab"), gated=True, tied=row["tied"] == "1", name=row["model"],
    )  # fmt: skip
    layout = Layout(
        dp=number("dp"), sharding="zero1" if row["shard"] == "ZeRO1" else "ddp", tp=number("tp"),
        sequence_parallel=number("tp") > 1, pp=number("pp"), micro_batch=number("mbs"),
        accumulation=number("ga"),
    )  # fmt: skip
    return TrainingPlan(model, layout, number("seq"), "h100-sxm", framework=row["framework"])


def fit(replayed: Sequence[float], measured: Sequence[float]) -> tuple[float, float]:
    """Scale and extra GiB with the least sum of relative errors: least squares, weighted again and again."""
    scale, extra = 1.0, 0.0
    for _ in range(200):
        weights = [
            1 / y / max(abs(scale * x + extra - y) / y, 1e-3) / y
            for x, y in zip(replayed, measured, strict=True)
        ]
        total = sum(weights)
        mean_x = sum(w * x for w, x in zip(weights, replayed, strict=True)) / total
        mean_y = sum(w * y for w, y in zip(weights, measured, strict=True)) / total
        spread = sum(w * (x - mean_x) ** 2 for w, x in zip(weights, replayed, strict=True))
        both = sum(
            w * (x - mean_x) * (y - mean_y) for w, x, y in zip(weights, replayed, measured, strict=True)
        )
        scale = both / spread
        extra = mean_y - scale * mean_x
    return scale, extra


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def hf_rows(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows with measured memory and rows that crashed, with replayed GiB of the first and the last stage."""
    measured, crashed = [], []
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["group"] == "hf-ultrascale"]
    started = time.process_time()
    for row in rows:
        plan = plan_of(row)
        stages = _stages(plan)
        first, last = stages[0], stages[-1]
        entry = {
            "model": row["model"], "nodes": int(row["gpus"]) // 8, "config": row["config"],
            "replayed_gib": round(first, 3), "worst_gib": round(max(first, last), 3),
            "outside_gib": outside_bytes(plan) / GIB,
        }  # fmt: skip
        if row["status"] == "ok":
            measured.append(entry | {"measured_gib": float(row["mem_gib"])})
        else:
            crashed.append(entry)
    print(f"{len(rows) / (time.process_time() - started):.0f} rows/s of processor time, two stages a row")
    return measured, crashed


def leave_out(rows: list[dict[str, Any]], key: str) -> list[float]:
    """Relative errors, each by a fit on the rows with other values of `key`."""
    fits = {}
    for value in {row[key] for row in rows}:
        others = [row for row in rows if row[key] != value]
        fits[value] = fit([r["replayed_gib"] for r in others], [r["measured_gib"] for r in others])
    return [(fits[r[key]][0] * r["replayed_gib"] + fits[r[key]][1]) / r["measured_gib"] - 1 for r in rows]


def summary(errors: Sequence[float]) -> dict[str, float]:
    """Median, 90th percentile and mean of the absolute errors, and the bias, in percent."""
    sizes = [abs(error) for error in errors]
    return {
        "rows": len(errors),
        "median_pct": round(100 * statistics.median(sizes), 2),
        "p90_pct": round(100 * quantile(sizes, 0.9), 2),
        "mean_pct": round(100 * statistics.fmean(sizes), 2),
        "bias_pct": round(100 * statistics.median(errors), 2),
    }


def main() -> None:
    """Read the rows, fit, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", type=Path)
    parser.add_argument("-o", "--out", type=Path)
    parser.add_argument("--write", action="store_true", help="renew memory_fit.toml")
    arguments = parser.parse_args()
    started = time.monotonic()
    measured, crashed = hf_rows(arguments.rows)
    by_model = leave_out(measured, "model")
    by_nodes = leave_out(measured, "nodes")
    scale, extra = fit([r["replayed_gib"] for r in measured], [r["measured_gib"] for r in measured])
    ratios = [r["measured_gib"] / (scale * r["replayed_gib"] + extra) for r in measured]
    band = MemoryFit(scale, round(extra * GIB), quantile(ratios, 0.1), quantile(ratios, 0.9), len(measured))
    for row, error in zip(measured, by_model, strict=True):
        row["error_pct"] = round(100 * error, 2)
    crash = {
        "recalled_pct": round(100 * statistics.fmean(_crashes(r, scale, extra) for r in crashed), 2),
        "false_alarms_pct": round(100 * statistics.fmean(_crashes(r, scale, extra) for r in measured), 2),
        "crashed_rows": len(crashed),
    }
    titan: list[dict[str, Any]] = [
        {
            "table": table, "model": plan.model.name, "gpus": plan.layout.world_size, "measured_gib": gib,
            "replayed_gib": round(max(_stages(plan)), 3),
            "error_pct": round(100 * (max(_stages(plan)) / gib - 1), 2),
        }
        for table, plan, gib in torchtitan_rows()
    ]  # fmt: skip
    titan_errors = [row["error_pct"] / 100 for row in titan]
    report = {
        "hf-ultrascale, without the row's model": summary(by_model),
        "hf-ultrascale, without the row's node count": summary(by_nodes),
        "hf-ultrascale crashes": crash,
        "torchtitan, no fit": summary(titan_errors),
        "fit": {"scale": scale, "extra_gib": extra, "low": band.low, "high": band.high},
        "seconds": round(time.monotonic() - started, 1),
    }
    print(json.dumps(report, indent=1))
    titan_ratios = [1 / (1 + error) for error in titan_errors]
    fsdp = MemoryFit(1.0, 0, quantile(titan_ratios, 0.1), quantile(titan_ratios, 0.9), len(titan))
    if arguments.write:
        FIT_FILE.write_text(_toml({"nanotron": band, "fsdp": fsdp}), encoding="utf-8")
    if arguments.out:
        rows = {"hf_ultrascale": measured, "hf_ultrascale_crashed": crashed, "torchtitan": titan}
        arguments.out.write_text(json.dumps({"summary": report, **rows}, indent=1) + "\n", encoding="utf-8")


def _crashes(row: dict[str, Any], scale: float, extra: float) -> bool:
    return bool((scale * row["worst_gib"] + extra + row["outside_gib"]) * GIB > H100_BYTES)


def _stages(plan: TrainingPlan) -> list[float]:
    return [replay_stage(plan, stage).reserved_peak_bytes / GIB for stage in sorted({0, plan.layout.pp - 1})]


def _toml(fits: dict[str, MemoryFit]) -> str:
    lines = [
        "# Written by benchmarks/forecasts/memory_fit.py --write from published rows; "
        "low and high hold eight of ten."
    ]
    for name, each in fits.items():
        lines += [
            f"[{name}]", f"scale = {each.scale:.4f}", f"extra_bytes = {each.extra_bytes}",
            f"low = {min(1.0, each.low):.3f}", f"high = {max(1.0, each.high):.3f}", f"rows = {each.rows}",
        ]  # fmt: skip
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
