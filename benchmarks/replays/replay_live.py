"""Predicted against measured: live gloo jobs of planted lengths, replayed with a change and really changed.

    python benchmarks/replays/replay_live.py -o benchmarks/results/replay-live.json
    python benchmarks/replays/replay_live.py --only "late rank"

Each case of `replay_programs.py` runs as it is and changed, at one time: what else the machine does delays
both, and their sleeps take no core from each other. The run as it is predicts the step of
the changed one; the noise is how far the repeats of the changed one differ, as a share of their median.
Predictions and measured steps are medians over steps; see `replay_medians.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import warnings
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from replay_medians import predicted as predicted_medians
from replay_medians import step_ms
from replay_programs import CASES, Case
from replay_ranks import ended, started

from shardtoll.ledger import Report, ShardtollError, analyze, read_run
from shardtoll.profiler import audit

STEPS: Final = 14
MOST_S: Final = 180.0


def work(name: str, changed: int, out: str) -> None:
    """Be one rank of one program."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    warnings.simplefilter("ignore", FutureWarning)
    dist.init_process_group("gloo")
    model, step = CASES[name].build(bool(changed))
    with audit(model, out=out) as session:
        for _ in range(STEPS):
            with session.step():
                step()
    session.report()
    dist.barrier()


def predicted(case: Case, report: Report, median_ms: float) -> dict[str, Any]:
    """Return step and band after the change, in ms, where the step before is the median one."""
    fixes: tuple[int, ...] = ()
    if case.kind is not None:
        fixes = tuple(
            number for number, finding in enumerate(report.findings, 1) if finding.kind == case.kind
        )[:1]
        if not fixes:
            return {"missing": case.kind}
    return predicted_medians(report, fixes, case.asked, median_ms)


def row(name: str, repeats: int) -> dict[str, Any]:
    """Return one case's row: medians over its repeats."""
    case = CASES[name]
    made: list[dict[str, Any]] = []
    measured: list[float] = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            outs = [Path(folder, part) for part in ("as_is", "changed")]
            pids = [started(work, case.ranks, (name, changed, str(outs[changed]))) for changed in (0, 1)]
            ended([*pids[0], *pids[1]], MOST_S)
            as_is, changed = (read_run(out) for out in outs)
        measured.append(step_ms(changed))
        try:
            made.append(predicted(case, analyze(as_is), step_ms(as_is)))
        except ShardtollError as error:
            made.append({"missing": str(error)[:200]})
    there = [each for each in made if "missing" not in each]
    if not there:
        return {"case": name, "ranks": case.ranks, "refused": made[0]["missing"]}
    after = statistics.median(measured)
    kept = {key: round(statistics.median(each[key] for each in there), 4) for key in there[0]}
    off = kept["predicted_ms"] / after - 1
    return {
        "case": name,
        "ranks": case.ranks,
        **kept,
        "measured_ms": round(after, 4),
        "error": round(off, 4),
        "noise": round((max(measured) - min(measured)) / 2 / after, 4),
        "held": sum(each["low_ms"] <= after <= each["high_ms"] for each in there),
        "of": len(there),
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the median error over all cases, and how many bands held."""
    told = [row for row in rows if "error" in row]
    errors = [abs(row["error"]) for row in told]
    return {
        "cases": len(rows),
        "predicted": len(told),
        "median_error": round(statistics.median(errors), 4) if errors else None,
        "largest_error": max(errors, default=None),
        "bands_held": sum(row["held"] for row in told),
        "bands": sum(row["of"] for row in told),
    }


def main(argv: list[str] | None = None) -> None:
    """Run the cases and print their rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("-o", type=Path, dest="out")
    options = parser.parse_args(argv)
    rows = []
    for name in CASES:
        if options.only not in name:
            continue
        try:
            rows.append(row(name, options.repeats))
        except RuntimeError as error:
            rows.append({"case": name, "refused": str(error)[:200]})
        print(json.dumps(rows[-1]), flush=True)
        if options.out is not None:
            told = {"load": os.getloadavg()[0], "summary": summary(rows), "rows": rows}
            options.out.write_text(json.dumps(told, indent=1) + "\n")
    print(json.dumps(summary(rows)))


if __name__ == "__main__":
    main()
