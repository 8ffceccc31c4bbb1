"""Sources of `shardtoll serve` with one report: a run folder that may still grow, a saved report, traces.

Each shows cheaply whether it changed, and makes its report when asked.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from shardtoll.cli.inputs.hung import with_hang
from shardtoll.cli.inputs.inputs import Input
from shardtoll.cli.inputs.traces import TraceOptions
from shardtoll.cli.inputs.traces import read as read_jobs
from shardtoll.ledger import Ledger, Report, TraceError
from shardtoll.ledger.disk.follow import Follower
from shardtoll.ledger.disk.run_files import stacks_in


class Shown(Protocol):
    """One thing to report on. `load` is not called by several threads at once."""

    def version(self) -> str:
        """Return a text that changes with the content shown; ShardtollError or OSError if it is gone."""

    def load(self) -> tuple[Report, bool]:
        """Return the report and whether more may come; ShardtollError if it cannot be made."""


class FollowedRun:
    """A run folder, whether its job still runs, hangs or has ended."""

    def __init__(self, folder: Path, analyze: Callable[[Ledger], Report]) -> None:
        self._folder = folder
        self._analyze = analyze
        self._follower = Follower(folder)

    def version(self) -> str:
        """Return that of the files. Ranks that stand still write their stacks, and nothing else."""
        version, still = self._follower.version(), len(stacks_in(self._folder))
        return f"{version}-{still}" if still else version

    def load(self) -> tuple[Report, bool]:
        """Read what is new and analyse all of it."""
        followed = self._follower.read()
        return with_hang(self._analyze(followed.ledger), self._folder), followed.live


class SavedReport:
    """A report.json."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def version(self) -> str:
        """Return that of the file."""
        return _mark(self._path)

    def load(self) -> tuple[Report, bool]:
        """Read the report."""
        return Report.load(self._path), False


class Traces:
    """Traces of one job."""

    def __init__(self, paths: list[str], options: TraceOptions, analyze: Callable[[Ledger], Report]) -> None:
        self._paths = paths
        self._options = options
        self._analyze = analyze

    def version(self) -> str:
        """Return that of the files, if they are on this machine; elsewhere they are taken as they are."""
        marks = []
        for path in self._paths:
            if not os.path.exists(path):
                continue
            # The folder's own changes when files are added; one that is rewritten in place is asked.
            marks.append(_mark(Path(path)))
            if os.path.isdir(path):
                with os.scandir(path) as entries:
                    marks += sorted(_mark(Path(entry.path)) for entry in entries)
        return f"t{len(marks)}-{abs(hash(tuple(marks))):x}"

    def load(self) -> tuple[Report, bool]:
        """Read and analyse the traces."""
        for job in read_jobs(self._paths, self._options):
            return self._analyze(job.ledger), False
        raise TraceError(f"{self._paths[0]} holds no traces", "name trace files or a folder of them")


def shown(item: Input, options: TraceOptions, analyze: Callable[[Ledger], Report]) -> Shown:
    """Return what an input of the command line is shown by."""
    if item.kind == "run":
        return FollowedRun(Path(item.paths[0]), analyze)
    if item.kind == "report":
        return SavedReport(Path(item.paths[0]))
    return Traces(item.paths, options, analyze)


def _mark(path: Path) -> str:
    stat = path.stat()
    return f"{stat.st_ino:x}-{stat.st_size:x}-{stat.st_mtime_ns:x}"
