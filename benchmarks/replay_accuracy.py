"""How true the replay of recorded steps is: unedited, and with planted causes removed; and how fast.

    python benchmarks/replay_accuracy.py traces FOLDER...      unedited replay against the record, every rank
    python benchmarks/replay_accuracy.py planted 8 64          made-up jobs with and without each cause
    python benchmarks/replay_accuracy.py asked 8 64            the same by `whatif --fix` of the findings
    python benchmarks/replay_accuracy.py pairs 8 64            two causes at once, by `whatif --fix`
    python benchmarks/replay_accuracy.py speed                 nodes a second and memory, against Python

A made-up job is written twice, with a cause and without. The first is replayed without the cause, by the edit
that stands for the remedy; its step is compared with that of the second. `asked` does so as a user does: it
analyses the job and fixes the findings that name the cause. `-o FILE.json` keeps the rows.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import numpy as np
from synthetic.spec import Spec
from synthetic_job import write_job

from shardtoll.analyzers.context.context import Context, make_context
from shardtoll.analyzers.findings.origins.like_with_like import alike_ranks
from shardtoll.analyzers.recorded.record_graph import recorded_graph
from shardtoll.analyzers.recorded.recorded import Recorded
from shardtoll.analyzers.replay.events import engine
from shardtoll.analyzers.replay.events.event_builder import Builder
from shardtoll.analyzers.replay.events.event_graph import EventGraph, Kind
from shardtoll.analyzers.replay.events.event_order import order_of
from shardtoll.analyzers.roofline import choose_fabric, with_device
from shardtoll.analyzers.whatif.edits.draft import Draft
from shardtoll.ledger import Report, TraceError, UsageError, analyze
from shardtoll.ledger.records.record import PHASES
from shardtoll.profiler.traces import read_traces

MS: Final = 1_000_000
STRAGGLER: Final = 3
OVER_HOSTS: Final = "pipeline over hosts"
"""Its hosts hand messages to each other: a receiver's host waits in `c10d::recv_`."""
STRATEGIES: Final = ("ddp", "fsdp", "tp", "pipeline", OVER_HOSTS)
CAUSES: Final = ("forward", "backward", "data", "host", "sync", "copy")

Cause = tuple[str, dict[str, Any], Callable[[Context, Draft], None]]


def load(path: Path) -> tuple[Context, Recorded | None]:
    """Return a job's context and graph."""
    (job,) = read_traces([str(path)], cache=False, jobs=1)
    ledger = replace(job.ledger, run=with_device(job.ledger.run))
    context = make_context(ledger, choose_fabric(ledger.run))
    return context, recorded_graph(context)


def unedited(paths: list[Path]) -> Iterator[dict[str, Any]]:
    """Yield one row a trace or job: how far replayed steps are off, over all ranks and steps."""
    for path in paths:
        name = "/".join(path.parts[-2:])
        try:
            _, recorded = load(path)
        except TraceError as error:
            yield {"name": name, "refused": error.message[:120]}
            continue
        if recorded is None:
            yield {"name": name, "graph": None}
            continue
        was, now = recorded.step_times(recorded.recorded()), recorded.step_times(recorded.replay())
        errors = np.array([abs(now[key] / was[key] - 1) for key in was if was[key]])
        yield {
            "name": name,
            "graph": recorded.source,
            "nodes": len(recorded.graph),
            "ranks": len(recorded.ranks),
            "steps": len(recorded.steps),
            "median_error": float(np.median(errors)),
            "p95_error": float(np.quantile(errors, 0.95)),
            "largest_error": float(errors.max()),
        }


def causes() -> Iterator[Cause]:
    """Yield each planted cause: its name, the spec's knobs, and the edit that takes it away."""

    def none_of(kind: Kind) -> Callable[[Context, Draft], None]:
        def edit(_: Context, draft: Draft) -> None:
            draft.duration[draft.recorded.of_kinds((kind,))] = 0.0

        return edit

    def as_peers(context: Context, draft: Draft) -> None:
        draft.ranks_as((STRAGGLER,), alike_ranks(context).peers)

    def no_syncs(_: Context, draft: Draft) -> None:
        draft.no_waits(np.flatnonzero(draft.recorded.of_kinds((Kind.SYNC,))))

    def no_recompute(_: Context, draft: Draft) -> None:
        draft.no_phase(PHASES.index("recompute"))

    for cause in CAUSES:
        yield f"straggler: {cause}", {"straggler": STRAGGLER, "cause": cause}, as_peers
    yield "data", {"data_ns": 3 * MS}, none_of(Kind.DATA)
    yield "sync", {"sync_ns": 3 * MS}, no_syncs
    yield "copy", {"copy_ns": 3 * MS}, none_of(Kind.COPY)
    yield "recompute", {"recompute": True}, no_recompute


def _base(ranks: int, strategy: str) -> dict[str, Any]:
    """Return the knobs of a job without a cause."""
    base: dict[str, Any] = {"ranks": ranks, "steps": 3, "strategy": strategy}
    if strategy in ("pipeline", OVER_HOSTS):
        base |= {"strategy": "pipeline", "replicas": 2}
    return base | ({"transport": "host"} if strategy == OVER_HOSTS else {})


def planted(ranks: int, strategies: list[str]) -> Iterator[dict[str, Any]]:
    """Yield one row per strategy and cause, and for pairs of causes of DDP."""
    for strategy in strategies:
        base = _base(ranks, strategy)
        after = _step(base, None)
        every = list(causes())
        for name, knobs, edit in every:
            yield _row(ranks, strategy, name, base | knobs, [edit], after)
        if strategy == "ddp":
            straggler, data, copy = every[1], every[6], every[8]
            for one, two in ((straggler, data), (data, copy), (straggler, copy)):
                both = base | one[1] | two[1]
                yield _row(ranks, strategy, f"{one[0]} + {two[0]}", both, [one[2], two[2]], after)


def _row(
    ranks: int, strategy: str, name: str, knobs: dict[str, Any], edits: list[Any], after_ns: float
) -> dict[str, Any]:
    before: list[float] = []
    predicted = _step(knobs, edits, before)
    return {
        "ranks": ranks,
        "strategy": strategy,
        "cause": name,
        "before_ms": before[0] / MS,
        "after_ms": after_ns / MS,
        "predicted_ms": predicted / MS,
        "error": predicted / after_ns - 1,
    }


FINDINGS: Final = {
    "data": "data-stall",
    "sync": "host-sync",
    "copy": "transfer-stall",
    "recompute": "recompute",
    "host": "launch-bound",
}
"""Cause -> kind of the finding that names it; that of a late rank may be named beside it or in its place."""


def asked(ranks: int, strategies: list[str]) -> Iterator[dict[str, Any]]:
    """Yield one row per strategy and cause: the step after the fixes that a user asks for."""
    for strategy in strategies:
        base = _base(ranks, strategy)
        after_ns = _step(base, None)
        for name, knobs, _ in causes():
            yield _asked_row(ranks, strategy, (name,), base | knobs, after_ns)


def pairs(ranks: int, strategies: list[str]) -> Iterator[dict[str, Any]]:
    """Yield one row per strategy and two causes at once: the step after the fixes that a user asks for."""
    for strategy in strategies:
        base = _base(ranks, strategy)
        after_ns = _step(base, None)
        for (one, knobs, _), (other, more, _) in combinations(causes(), 2):
            # A job has one late rank, for one reason.
            if not knobs.keys() & more.keys():
                yield _asked_row(ranks, strategy, (one, other), base | knobs | more, after_ns)


def _asked_row(
    ranks: int, strategy: str, names: tuple[str, ...], knobs: dict[str, Any], after_ns: float
) -> dict[str, Any]:
    kinds = {FINDINGS.get(name.removeprefix("straggler: ")) for name in names}
    kinds |= {"straggler"} if any(name.startswith("straggler") for name in names) else set()
    report = _report(knobs)
    numbers = [
        number
        for number, finding in enumerate(report.findings, 1)
        if finding.kind in kinds and finding.toll_ns
    ]
    row: dict[str, Any] = {"ranks": ranks, "strategy": strategy, "cause": " + ".join(names)}
    row |= {"after_ms": after_ns / MS, "findings": [report.findings[n - 1].kind for n in numbers]}
    try:
        answer = report.whatif(*numbers)
    except UsageError as error:
        return row | {"before_ms": _step(knobs, None) / MS, "refused": str(error)[:120]}
    before_ns = answer.before.step_ns
    saved_ns = before_ns - after_ns
    return row | {
        "before_ms": before_ns / MS,
        "predicted_ms": answer.after.step_ns / MS,
        "error": answer.after.step_ns / after_ns - 1,
        "held": answer.saving_low_ns <= saved_ns <= answer.saving_high_ns,
    }


def _report(knobs: dict[str, Any]) -> Report:
    with tempfile.TemporaryDirectory() as folder:
        write_job(Path(folder) / "job", Spec(**knobs))
        (job,) = read_traces([str(Path(folder) / "job")], cache=False, jobs=1)
        return analyze(job.ledger)


def _step(knobs: dict[str, Any], edits: list[Any] | None, before: list[float] | None = None) -> float:
    """Return the step's recorded time, or the one predicted by these edits."""
    with tempfile.TemporaryDirectory() as folder:
        write_job(Path(folder) / "job", Spec(**knobs))
        context, recorded = load(Path(folder) / "job")
    if recorded is None:
        raise SystemExit(f"{knobs}: no graph")
    lasts = recorded.lasts_ns(recorded.recorded())
    if edits is None:
        return lasts
    if before is not None:
        before.append(lasts)
    draft = Draft(recorded)
    for edit in edits:
        edit(context, draft)
    return draft.lasts_ns()


def wide_graph(ranks: int, collectives: int) -> EventGraph:
    """Return a made-up graph: a host that launches, a stream that computes, collectives that overlap it."""
    random = np.random.default_rng(1)
    builder = Builder()
    for rank in range(ranks):
        host = builder.nodes(rank, 3 * rank, Kind.HOST, random.uniform(10, 20, 2 * collectives))
        work = builder.nodes(rank, 3 * rank + 1, Kind.COMPUTE, random.uniform(10, 30, collectives))
        lasts = random.uniform(10, 30, collectives)
        comm = builder.nodes(rank, 3 * rank + 2, Kind.COLLECTIVE, lasts, meet=np.arange(collectives))
        builder.edges(host[::2], work, 5.0)
        builder.edges(work, comm)
        builder.edges(comm[:-3], work[3:])
    return builder.graph()


def speed() -> Iterator[dict[str, Any]]:
    """Yield one row a graph of about a million nodes: its order, and both sweeps, in seconds of one core."""
    wide = engine.WIDE
    for ranks, collectives in ((1, 250_000), (8, 32_000), (128, 2_000)):
        graph = wide_graph(ranks, collectives)
        start = time.process_time()
        order = order_of(graph)
        row: dict[str, Any] = {"ranks": ranks, "nodes": len(graph), "order_s": time.process_time() - start}
        for name, limit in (("plain_python_s", 1 << 60), ("levels_s", 0), ("chosen_s", wide)):
            engine.WIDE = limit  # type: ignore[misc]
            start = time.process_time()
            engine.simulate(graph, order=order)
            row[name] = time.process_time() - start
        row["times_plain_python"] = row["plain_python_s"] / row["chosen_s"]
        row["nodes_per_second"] = len(graph) / (row["order_s"] + row["chosen_s"])
        row["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        yield row


def main(argv: list[str] | None = None) -> None:
    """Run one part and print its rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("traces", "planted", "asked", "pairs", "speed"))
    parser.add_argument("given", nargs="*", help="traces, or numbers of ranks")
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("-o", type=Path, dest="out")
    options = parser.parse_args(argv)
    if options.part == "traces":
        rows = unedited([Path(path) for path in options.given])
    elif options.part in ("planted", "asked", "pairs"):
        wanted = options.strategies.split(",")
        make = {"planted": planted, "asked": asked, "pairs": pairs}[options.part]
        rows = (row for ranks in options.given for row in make(int(ranks), wanted))
    else:
        rows = speed()
    kept = []
    for row in rows:
        print(json.dumps(row), flush=True)
        kept.append(row)
        if options.out is not None:
            options.out.write_text(json.dumps({"argv": argv or sys.argv[1:], "rows": kept}, indent=1) + "\n")


if __name__ == "__main__":
    main()
