"""Inputs of the command line become reports: runs and traces are analysed, saved reports taken."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from shardtoll.cli.inputs.analysed import analysed
from shardtoll.cli.inputs.hung import with_hang
from shardtoll.cli.inputs.kinds import Input as Input
from shardtoll.cli.inputs.kinds import sort_inputs as sort_inputs
from shardtoll.cli.inputs.runs_inside import TooMany, name_one, runs_inside
from shardtoll.cli.inputs.traces import TraceOptions
from shardtoll.cli.inputs.traces import read as read_jobs
from shardtoll.cli.inputs.waiting import waiting
from shardtoll.ledger import Report, TraceError, UsageError

if TYPE_CHECKING:
    from shardtoll.analyzers.roofline import Fabric
    from shardtoll.profiler.traces import Job

Extra: TypeAlias = "Callable[[Report, Job], Report]"
"""A step more on a report of traces: takes the report and the job, returns the report to show."""


def load_reports(
    inputs: Sequence[Input], fabric: str | None, options: TraceOptions, extras: Sequence[Extra] = ()
) -> Iterator[tuple[str, Report]]:
    """Yield (name, report) of each input; runs and traces are analysed, saved reports taken as they are.

    `fabric` is a known name or a TOML file; `extras` are applied to reports of traces, in order. Raises
    UsageError if a fabric is given for a saved report. Raises FabricError for the fabric, and RunFolderError,
    TraceError and SchemaError for an input that cannot be read.
    """
    chosen = named_fabric(fabric)
    for item in inputs:
        path = item.paths[0]
        if item.kind == "run":
            from shardtoll.ledger import read_run

            with waiting(f"analysing {Path(path).name}"):
                report = with_hang(analysed(read_run(Path(path)), chosen, keep=options.cache), Path(path))
            yield path, report
        elif item.kind == "report":
            with waiting(f"reading {Path(path).name}"):
                report = _saved(Path(path), chosen)
            yield path, report
        else:
            jobs = read_jobs(item.paths, options)
            job = _first_job(jobs, path)
            if isinstance(job, str):
                yield from load_reports([Input("run", [job])], fabric, options)
                continue
            while job is not None:
                with waiting(f"analysing {job.name}"):
                    report = analysed(job.ledger, chosen, keep=options.cache)
                for extra in extras:
                    report = extra(report, job)
                yield job.name, report
                job = next(jobs, None)


def one_report(path: str, fabric: str | None, options: TraceOptions) -> Report:
    """Return the report of a path; UsageError if it holds several jobs. Else as `load_reports`."""
    reports = list(load_reports(sort_inputs([path]), fabric, options))
    if len(reports) != 1:
        raise UsageError(f"{path} holds {len(reports)} jobs", "name the folder or file of one of them")
    return reports[0][1]


def _first_job(jobs: Iterator[Job], path: str) -> Job | str | None:
    """Return the first job of traces, or the run in a folder that holds one and no trace that can be read.

    Then a line on stderr says so. The error on a folder of several runs begins with those.
    """
    try:
        return next(jobs, None)
    except TraceError as error:
        unread = f"no trace there can be read ({error.message})"
        try:
            runs = runs_inside(path)
        except TooMany as many:
            raise TraceError(f"{many.message}: {many.hint}", unread) from error
        if len(runs) == 1:
            said = TraceError(error.message, f"the run {runs[0]} is reported")
            sys.stderr.write(f"shardtoll: {said}\n")
            return runs[0]
        if not runs:
            raise
        raise TraceError(name_one(path, runs), unread) from error


def _saved(path: Path, fabric: Fabric | None) -> Report:
    report = Report.load(path)
    if fabric is not None:
        raise UsageError(
            f"--fabric does not apply to {path}, a saved report that has its floors already",
            "name the run folder or the traces instead",
        )
    return report


def named_fabric(name: str | None) -> Fabric | None:
    """Return the fabric of `--fabric`; None if omitted. Raises FabricError if it is unknown."""
    if name is None:
        return None
    from shardtoll.analyzers.roofline import load_fabric

    return load_fabric(name)
