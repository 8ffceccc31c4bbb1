"""`--hta`: the figures of Holistic Trace Analysis for the traces become part of their report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from shardtoll.ledger import Report, TraceError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from shardtoll.cli.inputs.inputs import Input
    from shardtoll.profiler.traces import Job

_WHAT = {"run": "a run folder", "report": "a saved report"}


def check_inputs(inputs: Sequence[Input]) -> None:
    """Raise UsageError if an input holds no events that HTA could be asked about."""
    for item in inputs:
        if item.kind in _WHAT:
            hint = "name the traces themselves"
            if item.kind == "run":
                hint += ", as its trace.rank*.json.gz where audit(trace=True) wrote them"
            raise UsageError(f"--hta does not apply to {item.paths[0]}, {_WHAT[item.kind]}", hint)


def with_hta(report: Report, job: Job) -> Report:
    """Return the report with HTA's figures of the job's traces, read again one rank at a time."""
    from shardtoll.analyzers.hta.hta import hta_figures

    failed: list[str] = []
    figures = hta_figures(_events(job, failed))
    return replace(report, hta=replace(figures, notices=(*failed, *figures.notices)))


def _events(job: Job, failed: list[str]) -> Iterator[tuple[int, pa.Table]]:
    from shardtoll.profiler.traces.file.events import read_events

    seen: set[int] = set()
    for rank, file in zip(job.file_ranks, job.files, strict=True):
        if rank in seen:
            failed.append(f"rank {rank}: {file.address} is a later recording, which HTA was not asked about")
            continue
        seen.add(rank)
        try:
            yield rank, read_events(file)
        except TraceError as error:
            failed.append(f"rank {rank}: {error.message}")
