"""Price published training steps and say how far the forecast lies from them, row by row and by group.

    python benchmarks/forecast_accuracy.py SHARED -o benchmarks/results

SHARED has forecast/e2e_train.csv, whose rows the constants were fitted to, and reference/e2e_results.csv, of which
the groups that e2e_train.csv lacks are a hold-out that no fit has seen. Writes forecast-rows.csv, one line a row
(group, model, gpus, measured and predicted step in s, error and band in per cent), and forecast-scores.json.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from shardtoll.analyzers.forecast.plan.price import price_plan
from shardtoll.analyzers.forecast.rows.calibrate import Anchor, anchor_for, anchors_of, calibrated
from shardtoll.analyzers.forecast.rows.measured import measured_step_ns
from shardtoll.analyzers.forecast.rows.parse import Abstain, number, read_row
from shardtoll.analyzers.forecast.rows.score import scores_of, weak_scaling
from shardtoll.ledger.answers.forecast import PricedRow

TORCHTITAN: Final = ("torchtitan", "T1", "T2", "T3", "T4", "T5")


def training_rows(folder: Path) -> list[dict[str, str]]:
    """Return the rows that were measured and are not marked as excluded."""
    with (folder / "forecast" / "e2e_train.csv").open(encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["split"] == "train" and row["status"] == "ok"]


def held_out_rows(folder: Path) -> list[dict[str, str]]:
    """Return the rows of sources that e2e_train.csv lacks, with what `same` stands for filled in."""
    with (folder / "reference" / "e2e_results.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    filled: list[dict[str, str]] = []
    for row in rows:
        before = filled[-1] if filled else row
        for name in ("source", "hardware"):
            if row[name] == "same" or (name == "source" and row[name] in TORCHTITAN[1:] and filled):
                row[name] = before[name]
        if row["config"].startswith("+") or "async" in row["config"] or "vanilla" in row["config"]:
            row["config"] = " ".join((before["config"].split("+")[0].replace("vanilla", ""), row["config"])) if (
                "FSDP" not in row["config"]
            ) else row["config"]
        if row["hardware"] in ("Megatron-LM", "MegaScale"):
            row["hardware"] = before["hardware"]
        words = row["source"].split()[0]
        row["framework"] = {"torchtitan": "torchtitan", "MegaScale": "Megatron-LM", "Korthikanti": "Megatron-LM"}.get(
            words, "Megatron-LM" if "Llama3" in row["source"] or "Megatron" in row["source"] else ""
        )
        row["group"] = f"held out: {words}"
        if "llama3_h100" in row["source"] or "llama3-8b_h200" in row["source"] or "asyncTP" in row["source"]:
            # torchtitan's own settings for these tables, as its files state them.
            row["seq"] = "" if "seq" in row["config"] else "8192"
            if "lbs" not in row["config"] and "8B" in row["model"] and "CP" not in row["config"] and "TP" not in row["config"]:
                row["config"] += " lbs2 SAC"
            elif "TP" in row["config"] and "PP" not in row["config"]:
                row["config"] += " fullAC" if "70" in row["model"] else " SAC"
                row["config"] += "" if "lbs" in row["config"] else " lbs16"
        filled.append(row)
    return filled


def priced(rows: Sequence[dict[str, str]], anchors: Sequence[Anchor] = ()) -> list[PricedRow]:
    """Return the step times of the rows, without memory, which another benchmark judges."""
    made = []
    for place, row in enumerate(rows, start=1):
        named = (place, row["group"], row["model"], row.get("gpu") or row["hardware"], number(row, "gpus"), row["metric"])
        try:
            read = read_row(row)
            price = price_plan(read.plan, read.network)
        except Abstain as error:
            made.append(PricedRow(*named, str(error)))
            continue
        anchor = anchor_for(read.plan, anchors)
        if anchor is not None:
            price = calibrated(read.plan, price, anchor)
        measured = measured_step_ns(row, read.plan)
        made.append(
            PricedRow(
                *named, None, price.step_ns.scaled(1e-9), price.tokens_per_s_gpu, price.mfu,
                calibrated_on=anchor.number if anchor else None,
                measured_step_s=None if measured is None else measured / 1e9,
            )
        )  # fmt: skip
    return made


def main() -> None:
    """Price, score and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--group", help="only groups that hold this word")
    parser.add_argument("--every", type=int, default=1, help="each so many rows only")
    arguments = parser.parse_args()
    began = time.perf_counter()
    rows = [*training_rows(arguments.folder), *held_out_rows(arguments.folder)]
    rows = [row for row in rows if (arguments.group or "") in row["group"]][:: arguments.every]
    made = priced(rows)
    took = time.perf_counter() - began
    scores = scores_of(made)
    weak = weak_scaling(rows)
    for score in scores:
        if score.measured:
            figures = (score.bias, score.mean, score.median, score.p90, score.largest, score.inside, score.width, score.constant_rate)
            print(f"{score.group:28} {score.measured:5}", *(f"{100 * (value or 0):7.1f}" for value in figures))
    print(f"weak scaling {asdict(weak)}")
    print(f"{len(rows)} rows in {took:.0f} s")
    if arguments.output:
        _write(arguments.output, made, {"scores": [asdict(each) for each in scores], "weak_scaling": asdict(weak)})


def _write(folder: Path, rows: Sequence[PricedRow], document: dict[str, object]) -> None:
    with (folder / "forecast-rows.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("row", "group", "model", "gpus", "measured_s", "predicted_s", "error_pct", "low_s", "high_s", "reason"))
        for row in rows:
            step = row.step_s
            figures = ("", "", "", "") if step is None else (
                f"{step.expected:.5g}", "" if row.error is None else f"{100 * row.error:.1f}", f"{step.low:.4g}", f"{step.high:.4g}"
            )
            measured = "" if row.measured_step_s is None else f"{row.measured_step_s:.5g}"
            writer.writerow((row.number, row.group, row.model, row.gpus, measured, *figures, row.reason or ""))
    (folder / "forecast-scores.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
