"""What the command line reads: run folders, saved reports and traces, told apart by looking at them."""

from __future__ import annotations

import shlex
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from shardtoll.cli.traces import TraceOptions
from shardtoll.cli.traces import read as read_jobs
from shardtoll.ledger import Report, TraceError, UsageError, analyze, read_run
from shardtoll.ledger.store import is_run_folder

if TYPE_CHECKING:
    from shardtoll.analyzers.roofline import Fabric
    from shardtoll.profiler.traces import Job

Kind: TypeAlias = Literal["run", "report", "trace file", "traces"]
Extra: TypeAlias = "Callable[[Report, Job], Report]"
"""A step more on a report of traces: takes the report and the job, returns the report to show."""

_PEEK_BYTES: Final = 65_536
_PACKED: Final = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")
"""How files packed with gzip and zstandard begin."""
_GLOB: Final = frozenset("*?[")
_HINT: Final = (
    "name traces, a run folder, as given as out= to audit(), or a report written with -o report.json"
)


@dataclass(frozen=True, slots=True)
class Input:
    """What one report is made of."""

    kind: Kind
    paths: list[str]
    """One path; several only where trace files were named one by one."""


def sort_inputs(paths: Sequence[str]) -> list[Input]:
    """Return the inputs that paths name, in order; trace files named one by one are one input.

    Raises UsageError where a path is nothing we read.
    """
    inputs: list[Input] = []
    files = Input("trace file", [])
    for path in paths:
        kind = _kind(path)
        if kind != "trace file":
            inputs.append(Input(kind, [path]))
            continue
        if not files.paths:
            inputs.append(files)
        files.paths.append(path)
    return inputs


def load_reports(
    inputs: Sequence[Input], fabric: str | None, options: TraceOptions, extras: Sequence[Extra] = ()
) -> Iterator[tuple[str, Report]]:
    """Yield (name, report) of each input; runs and traces are analysed, saved reports taken as they are.

    `fabric` is a known name or a TOML file; `extras` are applied to reports of traces, in order. Raises
    UsageError where a fabric is given for a saved report, FabricError for the fabric, RunFolderError,
    TraceError and SchemaError for what cannot be read.
    """
    chosen = named_fabric(fabric)
    for item in inputs:
        path = item.paths[0]
        if item.kind == "run":
            yield path, analyze(read_run(Path(path)), chosen)
        elif item.kind == "report":
            yield path, _saved(Path(path), chosen)
        else:
            jobs = read_jobs(item.paths, options)
            while (job := _next_job(jobs, path)) is not None:
                report = analyze(job.ledger, chosen)
                for extra in extras:
                    report = extra(report, job)
                yield job.name, report


def one_report(path: str, fabric: str | None, options: TraceOptions) -> Report:
    """Return the report of a path; UsageError where it holds several jobs. Else as `load_reports`."""
    reports = list(load_reports(sort_inputs([path]), fabric, options))
    if len(reports) != 1:
        raise UsageError(f"{path} holds {len(reports)} jobs", "name the folder or file of one of them")
    return reports[0][1]


def _kind(path: str) -> Kind:
    """Return what a path is; UsageError where it is nothing we read."""
    from shardtoll.profiler.traces import sources

    local = Path(path)
    try:
        mode = local.stat().st_mode
    except (OSError, ValueError) as error:
        if "://" in path or "::" in path or _GLOB.intersection(path):
            return "traces"
        if isinstance(error, (FileNotFoundError, ValueError)):
            raise UsageError(f"there is no file or folder {path}", _HINT) from error
        raise UsageError(f"{path} cannot be read ({error.strerror or error})", _HINT) from error
    if stat.S_ISDIR(mode):
        try:
            if is_run_folder(local):
                return "run"
        except OSError as error:
            raise UsageError(f"{path} cannot be read ({error.strerror or error})", _HINT) from error
        if not sources.is_trace_input(path):
            raise UsageError(f"{path} holds neither a shardtoll run nor traces", _HINT)
        return "traces"
    if not stat.S_ISREG(mode):
        # A pipe would be waited for without end.
        raise UsageError(f"{path} is neither a file nor a folder", _HINT)
    return "trace file" if _is_trace(local) else "report"


def _next_job(jobs: Iterator[Job], path: str) -> Job | None:
    """Return the next job of traces; of a folder that holds runs the error names one of those."""
    try:
        return next(jobs, None)
    except TraceError as error:
        runs = _runs_inside(path)
        if not runs:
            raise
        which = f"the run in {path}" if len(runs) == 1 else f"one of the {len(runs):,} runs in {path}"
        raise TraceError(
            error.message, f"name {which}, as {shlex.quote(str(Path(path) / runs[0]))}"
        ) from error


def _runs_inside(path: str) -> list[str]:
    """Return the names of the runs in a folder of them; none where it is no such folder."""
    if not Path(path).is_dir():
        return []
    from shardtoll.cli.serve_list import look

    places, _ = look(path, time.time())
    return sorted(place.name for place in places if place.item.kind == "run")


def _saved(path: Path, fabric: Fabric | None) -> Report:
    report = Report.load(path)
    if fabric is not None:
        raise UsageError(
            f"--fabric does not apply to {path}, a saved report that has its floors already",
            "name the run folder or the traces instead",
        )
    return report


def named_fabric(name: str | None) -> Fabric | None:
    """Return the fabric of `--fabric`, None where it is not given; FabricError where there is none such."""
    if name is None:
        return None
    from shardtoll.analyzers.roofline import load_fabric

    return load_fabric(name)


def _is_trace(path: Path) -> bool:
    """Whether the file is for the reader of traces: anything but text with our schema's version.

    The reader says best what is wrong with a file that is neither.
    """
    try:
        with path.open("rb") as file:
            head = file.read(_PEEK_BYTES)
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror or error})", _HINT) from error
    return head.startswith(_PACKED) or b'"schema_version"' not in head
