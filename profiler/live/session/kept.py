"""What one rank keeps of a session: rows on disk as it goes, notices, and how ranks' parts become one."""

from __future__ import annotations

import contextlib
import logging
import shutil
import tempfile
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import pyarrow as pa

from shardtoll.ledger import Evidence, Finding, Group, Ledger, Notice, RankWriter, Run, StepRows, merge
from shardtoll.ledger.disk.pack import pack, unpack
from shardtoll.ledger.disk.store import UnfinishedFolder, clear, is_run_folder, read_run, write_rank
from shardtoll.ledger.tables.ledger import empty_tables
from shardtoll.ledger.tables.tables import to_table
from shardtoll.profiler.live.cause.groups import Groups
from shardtoll.profiler.live.session.gather import Meeting
from shardtoll.profiler.live.session.joining import with_trace
from shardtoll.profiler.live.times.tracing import Tracer

STEPS_SHOWN: Final = 16


class GradientFindings:
    """The findings of gradient checks so far with their steps, in the order in which they were first made."""

    def __init__(self) -> None:
        self._first: dict[Hashable, Finding] = {}
        self._steps: dict[Hashable, list[int]] = {}

    def add(self, findings: Sequence[Finding], step: int | None) -> None:
        """Add what one check found; `step` None outside of steps."""
        for finding in findings:
            factor = finding.figure("factor")
            # As single findings are grouped: two digits, the rest is measured anew in each step.
            scale = None if factor is None else f"{factor:.2g}"
            key = (finding.where, finding.ranks, finding.parameters, finding.cause, scale)
            self._first.setdefault(key, finding)
            steps = self._steps.setdefault(key, [])
            if step is not None and step not in steps:
                steps.append(step)

    def findings(self) -> tuple[Finding, ...]:
        """Return each with its steps; its numbers are those of the first."""
        return tuple(_with(finding, self._steps[key]) for key, finding in self._first.items())


def _with(finding: Finding, steps: Sequence[int]) -> Finding:
    if not steps:
        return finding
    shown = ", ".join(map(str, steps[:STEPS_SHOWN]))
    more = f" and {len(steps) - STEPS_SHOWN} more" if len(steps) > STEPS_SHOWN else ""
    steps_wrong = Evidence("wrong in step" if len(steps) == 1 else "wrong in steps", f"{shown}{more}")
    return replace(finding, evidence=(*finding.evidence, steps_wrong))


log = logging.getLogger("shardtoll")


class Kept:
    """One rank's part of a run. `out` None: its folder is a temporary one, and goes with `let_go`."""

    def __init__(
        self, rank: int, world_size: int, out: Path | None, run: Callable[[], Run], groups: Groups
    ) -> None:
        self.meeting = Meeting(rank, world_size)
        self.findings = GradientFindings()
        self.folder = out or Path(tempfile.mkdtemp(prefix="shardtoll-"))
        self.alone = False
        """Whether this is the job's only process, whatever its rank: of a fake process group."""
        self._rank = rank
        self._is_temporary = out is None
        self._run = run
        self._groups = groups
        self._notices: list[Notice] = []
        self._writer: RankWriter | None = None
        self._gone: UnfinishedFolder | None = None
        """Why this rank's files could not be finished."""
        self._described: tuple[Run, tuple[Group, ...], tuple[Finding, ...]] | None = None

    def meet(self) -> None:
        """Agree with the other ranks on the run; rank 0 makes room for it. Errors: see `Meeting.open`."""
        self.meeting.open(self._clear)

    def _clear(self) -> None:
        """Make room for this run; an earlier one in the same folder is replaced, and the user told so."""
        if is_run_folder(self.folder):
            log.warning("shardtoll: the run in %s is replaced; name another folder to keep it", self.folder)
        clear(self.folder)

    def open(self) -> None:
        """Open the files. Raises on all ranks what it raises on one."""
        with self.meeting.telling_others():
            self._writer = RankWriter(self.folder, self._rank, self.meeting.run_id)

    @property
    def writer(self) -> RankWriter:
        """What writes the files, once they are open."""
        assert self._writer is not None
        return self._writer

    def append(self, *rows: StepRows) -> bool:
        """Write the rows of one or more steps in their order; returns whether there were any."""
        filled = [
            each
            for each in rows
            if each.step or each.collectives or each.notices or each.values or each.parameters
        ]
        if filled:
            self.writer.append(*filled)
        return bool(filled)

    def append_batches(self, batches: Mapping[str, pa.RecordBatch]) -> None:
        """Write rows that were made as batches, by table."""
        self.writer.append_batches(batches)

    def notice(self, kind: str, text: str, step: int | None = None) -> None:
        """Have something said in the report."""
        self._notices.append(Notice(self._rank, kind, text, step))

    def describe(self) -> None:
        """Keep the rank's own description on disk up to date; written only when it changed."""
        description = self._description()
        if description != self._described:
            # Without its folder a job goes on: the journals are open, and the end of the session says so.
            with contextlib.suppress(FileNotFoundError):
                self.writer.describe(*description)
                self._described = description

    def _description(self) -> tuple[Run, tuple[Group, ...], tuple[Finding, ...]]:
        return self._run(), self._groups.all_records(), self.findings.findings()

    def close(self, tracer: Tracer | None, limit_s: float) -> Ledger | None:
        """Write the rest and close the files; rank 0, or one `alone`, returns all records, others None.

        Rank 0 waits at most `limit_s` seconds for the others.
        """
        self.append(StepRows(None, notices=tuple(self._notices)))
        try:
            ledger_here = self.writer.close(*self._description())
        except UnfinishedFolder as error:
            self._gone = error
            ledger_here = self._saying_so(error)
        if tracer is not None:
            ledger_here = with_trace(ledger_here, tracer, self.folder)
        if self._rank != 0 and not self.alone:
            self.meeting.hand_over(pack(ledger_here))
            return None
        others = {rank: unpack(data) for rank, data in self.meeting.collect(limit_s).items()}
        if self._gone is not None:
            return self._anew([ledger_here, *others.values()])
        if self._is_temporary:
            return merge([ledger_here, *others.values()])
        for ledger in others.values():
            write_rank(self.folder, ledger, self.meeting.run_id)
        return read_run(self.folder)

    def _saying_so(self, error: UnfinishedFolder) -> Ledger:
        """Return what was read back of files that were removed or changed, with a notice that says so."""
        notice = Notice(self._rank, "folder-changed", f"rank {self._rank}: {error.message}")
        notices = pa.concat_tables([error.ledger.tables["notices"], to_table("notices", [notice])])
        return replace(error.ledger, tables={**error.ledger.tables, "notices": notices})

    def _anew(self, parts: Sequence[Ledger]) -> Ledger:
        """Write all ranks anew into the folder that was asked for; return them merged."""
        assert self._gone is not None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for part in parts:
                clear(self.folder, part.run.ranks_seen[0])
                write_rank(self.folder, part, self.meeting.run_id)
            written = f"the records of {len(parts)} ranks are written anew to {self.folder}"
        except OSError as error:
            written = f"they cannot be written anew ({error.strerror or error}): session.report() has them"
        log.warning("shardtoll: %s; %s", self._gone.message, written)
        return merge(parts)

    def leave(self) -> None:
        """Write the rest as one that dies: the rank's files then say that its session never closed."""
        self.append(StepRows(None, notices=tuple(self._notices)))
        self.describe()
        self.writer.abandon()

    def let_go(self) -> None:
        """Keep no files open any longer, and none at all of a run that nobody asked to keep."""
        if self._writer is not None:
            # Closed already, unless closing failed: then its files must not stay open.
            self._writer.abandon()
        if self._is_temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def bare(self) -> Ledger:
        """Return what can be said when the records themselves could not be kept: why."""
        tables = {**empty_tables(), "notices": to_table("notices", self._notices)}
        run, groups, findings = self._description()
        return Ledger(run, groups, tables, findings)
