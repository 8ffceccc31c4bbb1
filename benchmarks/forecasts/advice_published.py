"""Published layouts against the advice: among its ties, or by how much and where they lose.

    python benchmarks/forecasts/advice_published.py rows.csv -o benchmarks/results/advice-published.json

Rows are those of e2e_train.csv: llm-foundry (one for each model and GPU on the fewest and on the most GPUs)
and NeMo's summaries (one for each model, GPU and precision). Each question keeps the row's GPUs, batch,
precision, framework and network. A Markdown table lies beside the JSON.
"""

from __future__ import annotations

import argparse
import csv
import json
import operator
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardtoll.analyzers.advise.search import Search
from shardtoll.analyzers.forecast.compute.cards import capacity_of
from shardtoll.analyzers.forecast.rows.measured_step import measured_step_ns
from shardtoll.analyzers.forecast.rows.parse import Abstain, ReadRow, read_row
from shardtoll.ledger import ShardtollError
from shardtoll.ledger.answers.advice import Candidate, Question
from shardtoll.ledger.words import human

GROUPS = ("llm-foundry", "nemo-perf-summary")
Row = dict[str, str]


def chosen_rows(path: Path) -> list[tuple[Row, ReadRow]]:
    """The rows that are judged."""
    kept: dict[tuple[str, ...], tuple[Row, ReadRow]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["group"] in GROUPS and row["split"] == "train"]
    for row in rows:
        try:
            read = read_row(row)
        except Abstain:
            continue
        if read.plan.precision == "fp4" or read.plan.notes.get("frozen"):
            continue
        key = (row["group"], row["model"], read.plan.gpu, read.plan.precision)
        if row["group"] == "llm-foundry":
            if row["seq"] != "2048":
                continue
            gpus = int(row["gpus"])
            for end, better in (("fewest", operator.lt), ("most", operator.gt)):
                name = (*key, end)
                old = kept.get(name)
                if old is None or better(gpus, int(old[0]["gpus"])):
                    kept[name] = (row, read)
        else:
            kept.setdefault(key, (row, read))
    return list({id(pair[0]): pair for pair in kept.values()}.values())


def question_of_row(read: ReadRow) -> Question:
    """The row's job as a question."""
    plan = read.plan
    return Question(
        plan.model, plan.layout.world_size, plan.gpu, plan.sequence, plan.sequences,
        gpus_per_node=plan.gpus_per_node, precision=plan.precision, framework=plan.framework,
        memory_share=1.0,
    )  # fmt: skip


def lost(current: Candidate, fastest: Candidate) -> str:
    """Where the published layout loses most, in words."""
    parts = {
        "exposed communication": sum(current.exposed_ns.values()) - sum(fastest.exposed_ns.values()),
        "pipeline bubble": current.bubble_ns - fastest.bubble_ns,
        "compute": current.compute_ns - fastest.compute_ns,
        "host and fixed time": current.other_ns - fastest.other_ns,
    }
    name, ns = max(parts.items(), key=lambda each: each[1])
    return f"{name} +{human.duration(max(0.0, ns))}"


def judged(row: Row, read: ReadRow) -> dict[str, Any] | None:
    """One row's verdict; None if no layout fits by the forecast."""
    question = question_of_row(read)
    search = Search(question, read.network, capacity_of(question.gpu))
    fitting = search.fitting(search.run(), 3)
    current = search.candidate(replace(read.plan.layout, async_tp=False, schedule="1F1B"))
    if not fitting:
        return None
    fastest = fitting[0] if fitting[0].step_ns.expected <= current.step_ns.expected else current
    gap = current.step_ns.expected / fastest.step_ns.expected - 1
    tie = current.step_ns.low <= fastest.step_ns.high
    measured = measured_step_ns(row, read.plan)
    return {
        "group": row["group"], "model": row["model"], "gpus": question.gpus, "gpu": question.gpu,
        "precision": question.precision, "published": current.words, "fastest": fastest.words,
        "measured_s": None if measured is None else round(measured / 1e9, 4),
        "forecast_s": round(current.step_ns.expected / 1e9, 4),
        "gap_pct": round(100 * gap, 2), "tie": tie, "fits": current.fits,
        "memory_high_gb": round(current.memory_high_bytes / 1e9, 1),
        "why": "" if gap <= 0 else lost(current, fastest),
    }  # fmt: skip


def table(rows: list[dict[str, Any]]) -> str:
    """The verdicts as Markdown."""
    lines = [
        "| model | GPUs | published | fastest by the forecast | gap | verdict |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        verdict = "tie" if row["tie"] else f"loses: {row['why']}"
        if row["tie"] and row["gap_pct"] == 0:
            verdict = "best"
        if not row["fits"]:
            verdict += f"; upper band of its memory {row['memory_high_gb']} GB"
        gpus = f"{row['gpus']} {row['gpu']}, {row['precision']}"
        cells = (row["model"], gpus, row["published"], row["fastest"], f"{row['gap_pct']} %", verdict)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Ask, compare, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    arguments = parser.parse_args()
    started = time.monotonic()
    made = []
    for row, read in chosen_rows(arguments.rows):
        began = time.monotonic()
        try:
            verdict = judged(row, read)
        except ShardtollError as error:
            print(f"{row['model']} on {row['gpus']}: {error.message}", flush=True)
            continue
        if verdict is not None:
            made.append(verdict)
            print(f"{time.monotonic() - began:.0f} s {json.dumps(verdict)}", flush=True)
    summary = {
        group: {
            "rows": len(those),
            "best_or_tie": sum(each["tie"] for each in those),
            "gap_median_pct": statistics.median(each["gap_pct"] for each in those),
            "gap_worst_pct": max(each["gap_pct"] for each in those),
            "upper_band_above_the_gpu": sum(not each["fits"] for each in those),
        }
        for group in GROUPS
        if (those := [each for each in made if each["group"] == group])
    }
    seconds = round(time.monotonic() - started, 1)
    print(json.dumps(summary, indent=1))
    text = json.dumps({"summary": summary, "seconds": seconds, "rows": made}, indent=1)
    arguments.out.write_text(text + "\n", encoding="utf-8")
    arguments.out.with_suffix(".md").write_text(table(made), encoding="utf-8")


if __name__ == "__main__":
    main()
