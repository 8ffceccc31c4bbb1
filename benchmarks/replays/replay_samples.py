"""Replay held against the samples: strategies unedited, and incidents bad and fixed.

    python benchmarks/replays/replay_samples.py strategies -o benchmarks/results/replay-strategies.json
    python benchmarks/replays/replay_samples.py incidents --repeats 3 \\
        -o benchmarks/results/replay-incidents.json

A strategy's row says how far replayed steps are off the recorded ones, over all ranks and steps. An incident
runs bad and fixed in turn, never both at one time: their ranks need the same cores. Its steps are run
`ROUNDS` times over, so that most are watched ones, whose times are true, and without checks. The bad run
predicts the step of the fixed one after it, by the finding that the incident must have. Figures are of median
steps. The noise is how far the repeats of the fixed one differ, and the spread is that of its steps: half the
range of the middle half of them, as a share of the median.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from replay_medians import predicted, step_ms, step_spread
from replay_ranks import ended, started

from shardtoll.analyzers.analyses import context_of
from shardtoll.analyzers.recorded.record_graph import recorded_graph
from shardtoll.ledger import Report, ShardtollError, analyze, read_run
from shardtoll.profiler import audit
from shardtoll.samples.incidents import uneven_pipeline
from shardtoll.samples.incidents.job import incident_of, part
from shardtoll.samples.ranks import process_group
from shardtoll.samples.strategies import common

MOST_S: Final = 240.0
ROUNDS: Final = 8
STRATEGIES: Final = {
    **dict.fromkeys(("accumulation", "checkpointing", "clipping", "ddp", "fsdp1", "fsdp2", "zero"), 2),
    **dict.fromkeys(("context_parallel", "expert_parallel", "groups", "point_to_point"), 4),
    **dict.fromkeys(("pipeline", "tensor_parallel", "two_d"), 4),
}
INCIDENTS: Final = (
    *("accum_sync", "accum_sync_ddp", "bmm_gather", "clip_many", "colwise_allreduce", "ddp_one_bucket"),
    *("fp32_reduce", "fsdp_ac_regather", "item_sync", "logging_gather", "one_late_rank", "slow_loader"),
    *("tp_across_nodes", "uneven_pipeline"),
)
"""Those whose fix changes time; the others change results."""


def strategy(name: str, variant: str, level: Any, steps: int, out: str) -> None:
    """Be one rank of a strategy."""
    torch.set_num_threads(1)
    build = import_module(f"shardtoll.samples.strategies.{name}").VARIANTS[variant]
    with process_group("cpu") as device:
        # As many sequences as a pipeline has micro-batches.
        options = common.Options(device="cpu", level=level, steps=steps, out=Path(out), sequences=8)
        # A stage without a layer has nothing to train.
        stages = torch.distributed.get_world_size() * getattr(build, "per_rank", 1)
        sizes = replace(options.sizes, layers=max(options.sizes.layers, stages))
        options = replace(options, sizes=sizes)
        session, _ = common.train(build(options, device), options)
        session.report()
        torch.distributed.barrier()


def strategies(every: bool, level: str, steps: int) -> Iterator[dict[str, Any]]:
    """Yield one row per strategy, of its first variant or of every one."""
    for name, ranks in STRATEGIES.items():
        variants = list(import_module(f"shardtoll.samples.strategies.{name}").VARIANTS)
        for variant in variants if every else variants[:1]:
            row: dict[str, Any] = {"strategy": name, "variant": variant, "ranks": ranks}
            with tempfile.TemporaryDirectory() as folder:
                try:
                    ended(started(strategy, ranks, (name, variant, level, steps, folder)), MOST_S)
                    yield row | unedited(Path(folder))
                except (RuntimeError, ShardtollError) as error:
                    yield row | {"refused": str(error)[:160]}


def unedited(folder: Path) -> dict[str, Any]:
    """Return how far the replayed steps of a run are off those of its step rows."""
    context = context_of(read_run(folder))
    recorded = recorded_graph(context)
    if recorded is None:
        return {"graph": None}
    frame = context.step_rows
    keys = zip(frame["step"].astype(int), frame["rank"].astype(int), strict=True)
    was = dict(zip(keys, frame["duration_ns"].astype(float), strict=True))
    now = recorded.step_times(recorded.replay())
    errors = np.array([abs(time / was[key] - 1) for key, time in now.items()])
    return {
        "graph": recorded.source,
        "nodes": len(recorded.graph),
        "steps": len(recorded.steps),
        "median_error": round(float(np.median(errors)), 6),
        "p95_error": round(float(np.quantile(errors, 0.95)), 6),
        "largest_error": round(float(errors.max()), 6),
    }


def trained(name: str, fixed: bool, out: str) -> None:
    """Be one rank of an incident's program, audited as a user's is by default."""
    incident = incident_of(name)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    warnings.simplefilter("ignore", FutureWarning)
    with process_group("cpu", incident.backend):
        program = (
            # The remedy moves layers: its twin does the same work, divided evenly.
            uneven_pipeline.build(fixed, mended_s=uneven_pipeline.EVEN_FORWARD_S)
            if name == "uneven_pipeline"
            else incident.build(fixed)
        )
        with audit(program.model, out) as session:
            for _ in range(ROUNDS):
                program.train(session)
        part()


def incidents(names: list[str], repeats: int) -> Iterator[dict[str, Any]]:
    """Yield one row an incident."""
    for name in names:
        incident = incident_of(name)
        row: dict[str, Any] = {"incident": name, "ranks": incident.ranks}
        made: list[dict[str, Any]] = []
        measured: list[float] = []
        spreads: list[float] = []
        for _ in range(repeats):
            with tempfile.TemporaryDirectory() as folder:
                outs = [Path(folder, part) for part in ("bad", "fixed")]
                try:
                    for way in (False, True):
                        arguments = (name, way, str(outs[way]))
                        ended(started(trained, incident.ranks, arguments, incident.environment), MOST_S)
                    bad, fixed = (read_run(out) for out in outs)
                    after = step_ms(fixed)
                    measured.append(after)
                    spreads.append(step_spread(fixed))
                    found = fix_of(analyze(bad), incident.expected[0].kind, step_ms(bad))
                    made.append(found if "missing" in found else {**found, "measured_ms": after})
                except (RuntimeError, ShardtollError) as error:
                    made.append({"missing": str(error)[:160]})
        if spreads:
            row["spread"] = round(statistics.median(spreads), 4)
        yield row | _joined(made, measured)


def fix_of(report: Report, kind: str, median_ms: float) -> dict[str, Any]:
    """Return what the findings of a kind predict, fixed together."""
    fixes = [number for number, finding in enumerate(report.findings, 1) if finding.kind == kind]
    if not fixes:
        return {"missing": f"no {kind}"}
    return {"kind": kind, **predicted(report, fixes, {}, median_ms)}


def _joined(made: list[dict[str, Any]], measured: list[float]) -> dict[str, Any]:
    there = [each for each in made if "missing" not in each]
    if not there or not measured:
        return {"refused": made[0].get("missing")}
    after = statistics.median(measured)
    middle = {
        key: round(statistics.median(each[key] for each in there), 4) for key in there[0] if key != "kind"
    }
    errors = [abs(each["predicted_ms"] / each["measured_ms"] - 1) for each in there]
    return {
        "kind": there[0]["kind"],
        **middle,
        "measured_ms": round(after, 4),
        "error": round(middle["predicted_ms"] / after - 1, 4),
        "error_each": round(statistics.median(errors), 4),
        "noise": round((max(measured) - min(measured)) / 2 / after, 4),
        "held": sum(each["low_ms"] <= each["measured_ms"] <= each["high_ms"] for each in there),
        "of": len(there),
    }


def main(argv: list[str] | None = None) -> None:
    """Run one part and print its rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("strategies", "incidents"))
    parser.add_argument("--every", action="store_true", help="every variant of the strategies")
    parser.add_argument("--level", default="survey", help="how closely strategies are looked at")
    parser.add_argument("--steps", type=int, default=3, help="audited steps of a strategy")
    parser.add_argument("--only", default="", help="incidents whose name holds this")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("-o", type=Path, dest="out")
    options = parser.parse_args(argv)
    if options.part == "strategies":
        rows = strategies(options.every, options.level, options.steps)
    else:
        rows = incidents([name for name in INCIDENTS if options.only in name], options.repeats)
    kept = []
    for row in rows:
        print(json.dumps(row), flush=True)
        kept.append(row)
        if options.out is not None:
            told = {"load": os.getloadavg()[0], "rows": kept}
            options.out.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
