"""Price published training steps and say how far the forecast lies from them, row by row and by group.

    python benchmarks/forecasts/forecast_accuracy.py SHARED -o benchmarks/results

SHARED has forecast/e2e_train.csv, whose rows the constants were fitted to, and reference/e2e_results.csv, of
which
the groups that e2e_train.csv lacks are a hold-out that no fit has seen. Writes forecast-rows.csv, one line a
row
(group, model, gpus, measured and predicted step in s, error and band in per cent), and forecast-scores.json.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from shardtoll.analyzers.forecast.plan.price import price_plan
from shardtoll.analyzers.forecast.rows.calibrate import Anchor, anchor_for, calibrated
from shardtoll.analyzers.forecast.rows.measured_step import measured_step_ns
from shardtoll.analyzers.forecast.rows.parse import Abstain, number, read_row
from shardtoll.analyzers.forecast.rows.row_scores import scores_of, weak_scaling
from shardtoll.ledger.answers.forecast import PricedRow

HEADINGS: Final = {
    "T1": "lbs2 SAC",
    "T2": "compile fp8 lbs1 fullAC",
    "T3": "lbs2 SAC",
    "T4": "compile fp8 lbs16 fullAC",
    "T5": "compile fp8 asyncTP lbs32 gbs256 fullAC",
    "asyncTP_llama3_h100_2025-06 70B": "compile lbs16 fullAC",
    "asyncTP_llama3_h100_2025-06 8B": "compile lbs12 SAC",
    "llama3-8b_h200_202506_trainy-whitefiber": "SAC",
}
"""What the headings of torchtitan's tables state for all their rows (benchmarks of pytorch/torchtitan).
The last one's configuration file checkpoints selectively."""


def training_rows(folder: Path) -> list[dict[str, str]]:
    """Return the rows that were measured and are not marked as excluded."""
    with (folder / "forecast" / "e2e_train.csv").open(encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["split"] == "train" and row["status"] == "ok"]


FRAMEWORKS: Final = {"torchtitan": "torchtitan", "MegaScale": "Megatron-LM", "Korthikanti": "Megatron-LM"}


def held_out_rows(folder: Path) -> list[dict[str, str]]:
    """Return the rows of sources that e2e_train.csv lacks, with what `same` stands for filled in."""
    with (folder / "reference" / "e2e_results.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    filled: list[dict[str, str]] = []
    table = layout = ""
    for row in rows:
        before = filled[-1] if filled else row
        if row["source"] != "same" and row["source"].split()[-1] != table:
            table, layout = row["source"].split()[-1], ""
        for name in ("source", "hardware"):
            if row[name] == "same" or (name == "source" and row[name] in HEADINGS):
                row[name] = before[name]
        if row["hardware"] in ("Megatron-LM", "MegaScale"):
            row["hardware"] = before["hardware"]
        words = row["source"].split()[0]
        megatron = "Llama3" in row["source"] or "Megatron" in row["source"]
        row["framework"] = FRAMEWORKS.get(words, "Megatron-LM" if megatron else "")
        row["group"] = f"held out: {words}"
        if words == "torchtitan":
            # A line without degrees goes on with those of the line above in its table.
            layout = " ".join(_DEGREES.findall(row["config"])) or layout
            row["config"] = f"{layout} {_DEGREES.sub('', row['config'])} {_heading(table, row['model'])}"
            row["seq"] = "" if "seq" in row["config"] else "8192"
        filled.append(row)
    return filled


_DEGREES: Final = re.compile(r"(?:FSDP|TP|PP|CP)\d+")


def _heading(table: str, model: str) -> str:
    return HEADINGS.get(table) or HEADINGS[f"{table} {model.split('-')[-1]}"]


def priced(rows: Sequence[dict[str, str]], anchors: Sequence[Anchor] = ()) -> list[PricedRow]:
    """Return the step times of the rows, without memory, which another benchmark judges."""
    made = []
    for place, row in enumerate(rows, start=1):
        gpu = row.get("gpu") or row["hardware"]
        named = (place, row["group"], row["model"], gpu, number(row, "gpus"), row["metric"])
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
            errors = (score.bias, score.mean, score.median, score.p90, score.largest)
            figures = (*errors, score.inside, score.width, score.constant_rate)
            words = (f"{100 * (value or 0):7.1f}" for value in figures)
            print(f"{score.group:28} {score.measured:5}", *words)
    print(f"weak scaling {asdict(weak)}")
    print(f"{len(rows)} rows in {took:.0f} s")
    if arguments.output:
        _write(
            arguments.output,
            made,
            {"scores": [asdict(each) for each in scores], "weak_scaling": asdict(weak)},
        )


def _write(folder: Path, rows: Sequence[PricedRow], document: dict[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "forecast-rows.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        heads = ("row", "group", "model", "gpus", "measured_s", "predicted_s", "error_pct", "low_s", "high_s")
        writer.writerow((*heads, "reason"))
        for row in rows:
            step = row.step_s
            values = (None,) * 3 if step is None else (step.expected, step.low, step.high)
            error = "" if row.error is None else f"{100 * row.error:.1f}"
            expected, low, high = ("" if value is None else f"{value:.5g}" for value in values)
            measured = "" if row.measured_step_s is None else f"{row.measured_step_s:.5g}"
            names = (row.number, row.group, row.model, row.gpus)
            writer.writerow((*names, measured, expected, error, low, high, row.reason or ""))
    (folder / "forecast-scores.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
