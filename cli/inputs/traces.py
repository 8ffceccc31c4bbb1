"""Traces on the command line: their options, the progress bar, and messages about files left out."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from msgspec import Struct

if TYPE_CHECKING:
    from shardtoll.profiler.traces.job.job import Job, Progress


class TraceOptions(Struct, frozen=True):
    """The command line's options for reading traces."""

    jobs: int | None = None
    dask: str | None = None
    cache: bool = True
    kernels: Path | None = None


def read(paths: Sequence[str], options: TraceOptions) -> Iterator[Job]:
    """Yield the job of each path, a bar on the terminal meanwhile; stderr names files that are left out.

    Raises as `read_traces` does.
    """
    from shardtoll.profiler.traces import read_traces

    with _bar() as progress:
        jobs = read_traces(
            paths,
            jobs=options.jobs,
            dask=options.dask,
            cache=options.cache,
            kernels=options.kernels,
            progress=progress,
        )
    for job in jobs:
        _tell(job)
        yield job


def _tell(job: Job) -> None:
    """Say in one line how much was left out; the report itself names each with its reason."""
    count = len(job.set_aside)
    if count == 1:
        from shardtoll.dashboards.words.text import clean

        ((address, reason),) = job.set_aside
        text = reason if address in reason else f"{address}: {reason}"
        typer.echo(f"left out: {clean(text)}", err=True)
    elif count:
        named = "named with their reasons in the report's notices"
        typer.echo(f"left out: {count} files, {named}", err=True)


@contextlib.contextmanager
def _bar() -> Iterator[Callable[[Progress], None] | None]:
    """Give what shows the progress: a bar on a terminal, None elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        ProgressColumn,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.progress import Progress as Bar

    columns: list[ProgressColumn | str] = [
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[files]} files"),
    ]
    shown: list[tuple[Bar, TaskID]] = []

    def show(progress: Progress) -> None:
        by_bytes = progress.of_bytes is not None
        done = progress.bytes if by_bytes else progress.files
        files = f"{progress.files}/{progress.of_files}"
        if not shown:
            # If sizes are unknown, files are counted and a rate in bytes means nothing.
            rate = [TransferSpeedColumn()] if by_bytes else [MofNCompleteColumn()]
            bar = Bar(*columns, *rate, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
            bar.start()
            total = progress.of_bytes if by_bytes else progress.of_files
            shown.append((bar, bar.add_task("reading traces", total=total, files=files)))
        bar, task = shown[0]
        bar.update(task, completed=done, files=files)
        if progress.files == progress.of_files:
            # The next job has a bar of its own.
            bar.stop()
            shown.clear()

    try:
        yield show
    finally:
        for bar, _ in shown:
            bar.stop()
