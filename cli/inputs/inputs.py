"""Inputs of the command line become reports: runs and traces are analysed, saved reports taken.

Results of the analyses for a run or trace, kept so that `check` after `report` need not repeat them.

An entry's name is a digest of all that the analyses depend on: the ledger's content, the fabric and our own
code. It holds the analyses' additions to the ledger, which every command reads again. An entry that cannot be
read back is made anew.
"""

from __future__ import annotations

import hashlib
import io
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
import pyarrow as pa

from shardtoll.cli.inputs.hung import with_hang
from shardtoll.cli.inputs.kinds import Input as Input
from shardtoll.cli.inputs.kinds import sort_inputs as sort_inputs
from shardtoll.cli.inputs.runs_inside import TooMany, name_one, runs_inside
from shardtoll.cli.inputs.traces import TraceOptions
from shardtoll.cli.inputs.traces import read as read_jobs
from shardtoll.cli.inputs.waiting import waiting
from shardtoll.ledger import Report, SchemaError, TraceError, UsageError, analyze
from shardtoll.ledger.tables.ledger import empty_tables
from shardtoll.ledger.tables.parquet import from_parquet, to_parquet
from shardtoll.ledger.tables.validated import validated
from shardtoll.profiler.traces.job import cache

if TYPE_CHECKING:
    from shardtoll.analyzers.roofline import Fabric
    from shardtoll.ledger import Ledger
    from shardtoll.profiler.traces import Job


Extra: TypeAlias = "Callable[[Report, Job], Report]"
"""A step more on a report of traces: takes the report and the job, returns the report to show."""

_CODE: Final = ("shardtoll.ledger", "shardtoll.analyzers")

_FILLED: Final = ("collectives", "steps", "notices")
"""Tables to which the analyses add columns or rows; the others are the ledger's own."""

_REST: Final = "report.json"


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


def analysed(ledger: Ledger, fabric: Fabric | None, *, keep: bool) -> Report:
    """Return the ledger's report, kept from an earlier command where there was one; `keep`: use the cache."""
    if not keep:
        return analyze(ledger, fabric)
    with cache.open_results(keep=True) as results_folder:
        if results_folder.folder is None:
            return analyze(ledger, fabric)
        path = results_folder.folder / f"{_digest(ledger, fabric)}{cache.REPORT_SUFFIX}"
        report = _kept(path, ledger)
        if report is None:
            report = analyze(ledger, fabric)
            cache.write_whole(path, _packed(report))
        return report


def _digest(ledger: Ledger, fabric: Fabric | None) -> str:
    head = msgspec.json.encode((ledger.run, ledger.groups, ledger.findings, fabric), enc_hook=dict)
    hashing = hashlib.blake2b(cache.code_digest(_CODE).encode() + head, digest_size=32)
    for name, table in ledger.tables.items():
        hashing.update(f"\0{name}\0{table.num_rows}\0".encode())
        for batch in table.to_batches():
            hashing.update(batch.serialize())
    return hashing.hexdigest()


def _packed(report: Report) -> bytes:
    """Return the entry's bytes: a zip, unpacked, whose checksums reveal a damaged file."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as packed:
        packed.writestr(_REST, replace(report, tables=empty_tables()).to_json())
        for name in _FILLED:
            packed.writestr(f"{name}.parquet", to_parquet(report.tables[name]).to_pybytes())
    return whole.getvalue()


def _kept(path: Path, ledger: Ledger) -> Report | None:
    """Return the report of an entry; None if there is none, or a damaged one."""
    try:
        with zipfile.ZipFile(path) as packed:
            rest = Report.from_json(packed.read(_REST).decode())
            tables = dict(ledger.tables)
            for name in _FILLED:
                tables[name] = from_parquet(pa.py_buffer(packed.read(f"{name}.parquet")))
                validated(name, tables[name])
        report = replace(rest, run=ledger.run, tables=tables)
        cache.use(path)
    except (
        *(OSError, ValueError, KeyError, RuntimeError),
        *(zipfile.BadZipFile, zlib.error, pa.ArrowException, SchemaError),
    ):
        return None
    return report
