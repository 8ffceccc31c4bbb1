"""One rank's part of a session: rows on disk as it goes, notices, and the merge of ranks' parts."""

from __future__ import annotations

import contextlib
import logging
import shutil
import tempfile
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import pyarrow as pa

from shardtoll.ledger import Evidence, Finding, Group, Ledger, Notice, RankWriter, Run, StepRows, merge
from shardtoll.ledger.disk.pack import pack, unpack
from shardtoll.ledger.disk.run_files import clear, is_run_folder
from shardtoll.ledger.disk.run_reader import ranks_left, read_run
from shardtoll.ledger.disk.run_writer import UnfinishedFolder, replace_ranks, write_rank
from shardtoll.ledger.records.errors import RunFolderError, first_line
from shardtoll.ledger.tables.ledger import empty_tables
from shardtoll.ledger.tables.tables import to_table
from shardtoll.profiler.live.cause.groups import Groups
from shardtoll.profiler.live.session.gather import Meeting
from shardtoll.profiler.live.session.joining import with_trace
from shardtoll.profiler.live.times.tracing import Tracer

STEPS_SHOWN: Final = 16
_UNFINISHED: Final = "folder-changed"


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


def _fixed(out: Path) -> Path:
    """Return the folder by a name that still means it when the job changes its working folder."""
    with contextlib.suppress(OSError):
        return out.absolute()
    return out


def _with_notices(ledger: Ledger, notices: Sequence[Notice]) -> Ledger:
    both = pa.concat_tables([ledger.tables["notices"], to_table("notices", notices)])
    return replace(ledger, tables={**ledger.tables, "notices": both})


def _unpacked(handed_over: Mapping[int, bytes]) -> tuple[list[Ledger], list[Notice]]:
    """Return the ranks' ledgers by rank, and a notice for each that cannot be read: it costs no other's."""
    ledgers, unread = [], []
    for rank, data in sorted(handed_over.items()):
        try:
            ledgers.append(unpack(data))
        except ValueError as error:
            text = f"the records of rank {rank} cannot be read ({first_line(error)})"
            unread.append(Notice(rank, "gather-incomplete", text))
    return ledgers, unread


def _is_unfinished(ledger: Ledger) -> bool:
    """Whether a rank could not finish its files: then they hold less than what it handed over."""
    return _UNFINISHED in ledger.tables["notices"].column("kind").to_pylist()


class Kept:
    """One rank's part of a run. `out` None: its folder is a temporary one, and goes with `let_go`."""

    def __init__(
        self, rank: int, world_size: int, out: Path | None, run: Callable[[], Run], groups: Groups
    ) -> None:
        self.findings = GradientFindings()
        self.folder = Path(tempfile.mkdtemp(prefix="shardtoll-")) if out is None else _fixed(out)
        self.meeting = Meeting(rank, world_size, "" if out is None else str(self.folder))
        self.alone = False
        """Whether this is the job's only process, whatever its rank: of a fake process group."""
        self._rank = rank
        self._is_temporary = out is None
        self._run = run
        self._groups = groups
        self._notices: list[Notice] = []
        self._writer: RankWriter | None = None
        self._gone: str | None = None
        """Why files in the folder could not be finished."""
        self._here: Ledger | None = None
        """This rank's records, once its files are closed."""
        self._described: tuple[Run, tuple[Group, ...], tuple[Finding, ...]] | None = None

    def meet(self) -> None:
        """Agree with the other ranks on the run; rank 0 makes room for it. Errors: see `Meeting.open`."""
        self.meeting.open(self._clear)

    def _clear(self) -> None:
        """Make room for this run; an earlier one in the same folder is replaced, and the user gets a
        warning."""
        if is_run_folder(self.folder):
            log.warning("shardtoll: the run in %s is replaced; name another folder to keep it", self.folder)
        clear(self.folder)

    def open(self) -> None:
        """Open the files. Raises on all ranks what it raises on one."""
        with self.meeting.telling_others():
            self._writer = RankWriter(self.folder, self._rank, self.meeting.run_id)

    @property
    def writer(self) -> RankWriter:
        """The writer of the files, once they are open."""
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

    def provisional(self, made: Iterable[Mapping[str, pa.RecordBatch] | StepRows]) -> None:
        """Keep rows that a killed rank would lose, until they are written for good. Raises OSError."""
        self.writer.provisional(made)

    def notice(self, kind: str, text: str, step: int | None = None) -> None:
        """Have something said in the report."""
        self._notices.append(Notice(self._rank, kind, text, step))

    def describe(self) -> None:
        """Keep the rank's own description on disk up to date; written only when it changed."""
        description = self._description()
        if description != self._described:
            # Without its folder, or on a full disk, a job goes on: the end of the session says so.
            with contextlib.suppress(OSError):
                self.writer.describe(*description)
                self._described = description

    def announce(self) -> None:
        """Write the rank's first description. Raises on all ranks what it raises on one."""
        with self.meeting.telling_others():
            self._described = self._description()
            try:
                self.writer.describe(*self._described)
            except OSError as error:
                why = error.strerror or error
                raise RunFolderError(
                    f"run folder {self.folder} cannot be written ({why})", "name another with out="
                ) from error

    def _description(self) -> tuple[Run, tuple[Group, ...], tuple[Finding, ...]]:
        return self._run(), self._groups.all_records(), self.findings.findings()

    def close(self, tracer: Tracer | None, limit_s: float) -> Ledger | None:
        """Write the rest and close the files; rank 0, or one `alone`, returns all records, others None.

        Rank 0 waits at most `limit_s` seconds for the others.
        """
        unsaid: Sequence[Notice] = ()
        try:
            self.append(StepRows(None, notices=tuple(self._notices)))
        except OSError:
            # The disk is full, and may have room again by now.
            unsaid = self._notices
        try:
            closed = self.writer.close(*self._description(), keep=not self._is_temporary)
            here = _with_notices(closed, unsaid)
        except UnfinishedFolder as error:
            here = self._unfinished(error.ledger, error.message, unsaid)
        if tracer is not None:
            here = with_trace(here, tracer, self.folder)
        self._here = here
        if self._rank != 0 and not self.alone:
            self.meeting.hand_over(pack(here))
            return None
        others, unread = _unpacked(self.meeting.collect(limit_s))
        if unread:
            here = _with_notices(here, unread)
        if self._is_temporary:
            return merge([here, *others])
        if self._gone is None and not any(_is_unfinished(other) for other in others):
            try:
                for other in others:
                    write_rank(self.folder, other, self.meeting.run_id)
                return _with_notices(read_run(self.folder), [*unsaid, *unread])
            except (OSError, RunFolderError) as error:
                here = self._unfinished(
                    here, f"run folder {self.folder} cannot be finished ({first_line(error)})"
                )
        return self._anew([here, *others])

    def _unfinished(self, ledger: Ledger, why: str, unsaid: Sequence[Notice] = ()) -> Ledger:
        """Return what is there of files that cannot be finished, with notices that say so."""
        self._gone = why
        return _with_notices(ledger, [*unsaid, Notice(self._rank, _UNFINISHED, f"rank {self._rank}: {why}")])

    def _anew(self, parts: Sequence[Ledger]) -> Ledger:
        """Write ranks that handed over anew into the folder that was asked for; return all ranks merged.

        Files in the folder are replaced only by files that are written whole: a disk may be full. A rank that
        handed nothing over may still train and write. The report counts what its files hold by now, and they
        stay.
        """
        here = {part.run.ranks_seen[0] for part in parts}
        left = ranks_left(self.folder, self.meeting.run_id, here)
        why = self._gone or f"run folder {self.folder} cannot be finished by every rank"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_ranks(self.folder, parts, self.meeting.run_id)
            written = f"the records of {len(parts)} ranks are written anew to {self.folder}"
        except OSError as error:
            written = (
                f"the records cannot be written anew ({error.strerror or error}): session.report() has them"
            )
        log.warning("shardtoll: %s; %s", why, written)
        return merge([*parts, *left])

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
        """Return what can be said when the ranks' records could not be put together: why."""
        if self._here is not None:
            text = f"rank {self._rank} was interrupted as it gathered the records: only its own are counted"
            return _with_notices(self._here, [Notice(self._rank, "gather-incomplete", text)])
        notices = list(self._notices)
        if not any(notice.kind == "capture-stopped" for notice in notices):
            text = f"rank {self._rank} was interrupted as its session closed: no step is counted"
            kept = "" if self._is_temporary else f"; those that were written are in {self.folder}"
            notices.append(Notice(self._rank, "gather-incomplete", text + kept))
        tables = {**empty_tables(), "notices": to_table("notices", notices)}
        run, groups, findings = self._description()
        return Ledger(run, groups, tables, findings)
