"""The session a user opens around training steps: `audit()` and what it returns."""

from __future__ import annotations

import contextlib
import importlib
import logging
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

import torch
import torch.distributed as dist
from torch import nn

from shardtoll.ledger import (
    Finding,
    Group,
    Ledger,
    Notice,
    RankWriter,
    Report,
    Run,
    StepRows,
    UsageError,
    analyze,
    merge,
)
from shardtoll.ledger.ledger import empty_tables
from shardtoll.ledger.pack import pack, unpack
from shardtoll.ledger.store import clear, is_run_folder, read_run, write_rank
from shardtoll.ledger.tables import to_table
from shardtoll.profiler.live import pausing
from shardtoll.profiler.live.clock import Clock
from shardtoll.profiler.live.gather import Meeting
from shardtoll.profiler.live.groups import Groups, initialized
from shardtoll.profiler.live.joining import with_trace
from shardtoll.profiler.live.mode import SurveyMode
from shardtoll.profiler.live.names import Names, local_of
from shardtoll.profiler.live.recorder import Excluded, Recorder
from shardtoll.profiler.live.spans import patch_user_profiler, quiet_kineto
from shardtoll.profiler.live.threads import patch_process_group
from shardtoll.profiler.live.tracing import TRACE_STEPS, Tracer
from shardtoll.profiler.live.waits import patch_future_wait, patch_work_wait

log = logging.getLogger("shardtoll")

GATHER_LIMIT_S: Final = 60.0
_LIMIT_AFTER_ERROR_S: Final = 5.0
_active: Session | None = None


def audit(
    model: nn.Module | None = None,
    out: str | Path | None = None,
    *,
    trace: bool = False,
    trace_steps: int = TRACE_STEPS,
    gather_limit_s: float = GATHER_LIMIT_S,
) -> Session:
    """Record every collective of the steps run inside the returned context manager.

    Call it on every rank. `model` gives modules and parameters their names (without it they are taken
    from the modules seen). `out` is the run folder that `shardtoll report` reads; each rank writes
    there as it goes, so a rank that is killed leaves its finished steps. Leaving the context brings the
    ranks' ledgers to rank 0, which waits at most `gather_limit_s` seconds for ranks that still live.

    Without `session.step()` everything inside the context is one step; with it each call is one, and
    what happens between steps is listed with step None.

    `trace` has torch's profiler record the first `trace_steps` steps too; each rank writes them to
    `trace.rankN.json.gz` in the run folder after the last step, and what only a trace knows is joined to
    the records: on an accelerator the times of kernels, without which durations and exposed time are
    unknown there. Traced steps run slower, 1.2 to 1.5 times in our measurements on the CPU, and reading the
    recording takes some tenths of a second after them. A step of more than 300,000 operators is not
    traced, as memory would not hold it: call `session.step()`. The user's own profiler goes first: where
    it runs, the step is not traced and the report says so.

    Nothing inside a step is changed: no collective, synchronisation or random number is added, and a
    failure of the capture itself ends the capture, not the training.

    Raises UsageError when a session is open already or `trace_steps` is less than one, RunFolderError
    when `out` cannot be written.
    """
    if trace_steps < 1:
        raise UsageError(f"trace_steps is {trace_steps}", "trace at least one step, or leave out trace=True")
    return Session(model, None if out is None else Path(out), gather_limit_s, trace_steps if trace else 0)


class Session:
    """An audit in progress, and its report once it is over."""

    def __init__(
        self, model: nn.Module | None, out: Path | None, gather_limit_s: float, trace_steps: int = 0
    ) -> None:
        self._model = model
        self._out = out
        self._limit_s = gather_limit_s
        self._trace_steps = trace_steps
        self._steps_begun = 0
        self._in_step = False
        self._notices: list[Notice] = []
        self._findings: list[Finding] = []
        self._described: tuple[Run, tuple[Group, ...], tuple[Finding, ...]] | None = None
        self._undo = contextlib.ExitStack()
        self._paused: list[tuple[Excluded, bool]] = []
        self._stopped = False
        self._ledger: Ledger | None = None
        self._report: Report | None = None
        self._state = "new"

    # -- opening and closing -----------------------------------------------------------------------

    def __enter__(self) -> Session:
        global _active
        if _active is not None or self._state != "new":
            raise UsageError(
                "an audit session is open already"
                if _active is not None
                else "this session was used already",
                "close it first; for several steps use session.step()",
            )
        live = initialized()
        self.rank: int = dist.get_rank() if live else 0
        self.world_size: int = dist.get_world_size() if live else 1
        self._backend = str(dist.get_backend()) if live else None
        self._meeting = Meeting(self.rank, self.world_size)
        self._folder = self._out or Path(tempfile.mkdtemp(prefix="shardtoll-"))
        self._meeting.open(self._clear)
        self._writer = RankWriter(self._folder, self.rank, self._meeting.run_id)
        self._groups = Groups()
        self._names = Names(self._model)
        self._groups.note_tensors(parameter for _, parameter in self._names.parameters())
        self._groups.note_live_meshes()
        self._device = _device_of(self._model, self._backend)
        self._undo.callback(quiet_kineto())
        # torch wraps dispatch modes so that its compiler skips them, and the wrapper imports the compiler
        # at its first call: better here than in the middle of the first step.
        importlib.import_module("torch._dynamo")
        self._recorder = Recorder(
            self.rank, self._names, self._groups, Clock(), host_times=self._device.type == "cpu"
        )
        if self._trace_steps:
            self._recorder.tracer = Tracer(self._recorder.spans, self._trace_steps, self._device)
        self._describe()
        self._mode = SurveyMode(self._recorder, self._stop_capture)
        try:
            # Ranks meet before anything is installed: an interrupt while waiting leaves nothing behind.
            self._meeting.start_together()
            self._install()
            _active = self
            self._state = "open"
            # Until the first session.step() everything counts as one step of its own.
            self._guarded(lambda: self._recorder.begin(0))
        except BaseException:
            self._undo.close()
            self._recorder.drop()
            self._writer.abandon()
            if self._out is None:
                shutil.rmtree(self._folder, ignore_errors=True)
            _active = None
            self._state = "closed"
            raise
        return self

    def _clear(self) -> None:
        """Make room for this run; an earlier one in the same folder is replaced, and the user told so."""
        if is_run_folder(self._folder):
            log.warning("shardtoll: the run in %s is replaced; name another folder to keep it", self._folder)
        clear(self._folder)

    def _install(self) -> None:
        recorder = self._recorder
        thread_wait = _OnThisThread(
            lambda begun, ended: recorder.waited(None, begun, ended), self._is_recording
        )
        self._undo.callback(patch_work_wait(recorder.now_ns, thread_wait))
        future_wait = _OnThisThread(recorder.waited_for_future, self._is_recording)
        self._undo.callback(patch_future_wait(recorder.now_ns, future_wait))
        self._undo.callback(patch_process_group(recorder, SurveyMode, self._is_recording, self._stop_capture))
        self._undo.callback(patch_user_profiler(recorder.spans.give_way))
        self._undo.callback(pausing.register(self._pause, self._resume))
        self._undo.callback(pausing.register_sink(self._gradients_checked))
        self._undo.enter_context(self._mode)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _active
        try:
            if kind is not None and self._steps_begun == 0:
                self._drop_step(0)
            elif self._steps_begun == 0:
                self._end_region()
                self._steps_begun = 1
            else:
                self._end_region()
        finally:
            self._undo.close()
            _active = None
            self._state = "closed"
        try:
            self._guarded(lambda: self._close(failed=kind is not None))
        finally:
            # Closed already, unless closing failed: then its files must not stay open.
            self._writer.abandon()
            if self._out is None:
                shutil.rmtree(self._folder, ignore_errors=True)
            if self.rank == 0 and self._ledger is None:
                self._ledger = self._bare_ledger()
            # The session outlives the steps, for its report: the model must not live as long because of it.
            self._model = None
            self._names.forget()

    def _bare_ledger(self) -> Ledger:
        """Return what can be said when the records themselves could not be kept: why."""
        tables = {**empty_tables(), "notices": to_table("notices", self._notices)}
        return Ledger(self._run(), self._groups.all_records(), tables, tuple(self._findings))

    def _close(self, *, failed: bool) -> None:
        self._append(StepRows(None, notices=tuple(self._notices)))
        own = self._writer.close(self._run(), self._groups.all_records(), self._findings)
        if self._recorder.tracer is not None:
            own = with_trace(own, self._recorder.tracer, self._folder)
        if self.rank != 0:
            self._meeting.hand_over(pack(own))
        else:
            limit_s = min(self._limit_s, _LIMIT_AFTER_ERROR_S) if failed else self._limit_s
            others = {rank: unpack(data) for rank, data in self._meeting.collect(limit_s).items()}
            if self._out is None:
                self._ledger = merge([own, *others.values()])
            else:
                for ledger in others.values():
                    write_rank(self._folder, ledger, self._meeting.run_id)
                self._ledger = read_run(self._folder)

    # -- steps ---------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Record what runs inside as one step. Steps are numbered from 0 and cannot be nested.

        Raises UsageError when the session is not open or another step is.
        """
        if self._state != "open" or self._in_step:
            raise UsageError(
                "session.step() inside another step"
                if self._in_step
                else "session.step() outside its session",
                "call it once a step, inside `with audit(...) as session:`",
            )
        number = self._steps_begun
        if number == 0 and self._recorder.region is not None:
            # What was recorded so far turns out to have been outside every step.
            self._recorder.region.step = None
        self._end_region()
        self._steps_begun += 1
        self._in_step = True
        self._guarded(lambda: self._recorder.begin(number))
        finished = False
        try:
            yield
            finished = True
        finally:
            self._in_step = False
            if finished:
                self._end_region()
            else:
                self._drop_step(number)
            self._guarded(lambda: self._recorder.begin(None))

    def _end_region(self) -> None:
        if self._stopped:
            self._recorder.drop()
            return

        def end() -> None:
            rows = self._recorder.end()
            if rows is not None:
                self._append(rows)
                self._describe()

        self._guarded(end)

    def _append(self, rows: StepRows) -> None:
        if rows.step or rows.collectives or rows.notices:
            self._writer.append(rows)

    def _drop_step(self, number: int) -> None:
        self._recorder.drop()
        text = f"step {number} of rank {self.rank} was ended by an exception and is not counted"
        self._notices.append(Notice(self.rank, "step-dropped", text, None))

    # -- the seam: capture must not kill training -----------------------------------------------------

    def _guarded(self, work: Callable[[], None]) -> None:
        if self._stopped and self._state == "open":
            return
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the seam between capture and training
            self._stop_capture(error)

    def _stop_capture(self, error: Exception) -> None:
        """Give up capturing: say so once, in the log and in the report."""
        self._mode.muted = True
        self._recorder.abandon()
        if self._stopped:
            return
        self._stopped = True
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        text = f"capture stopped on rank {self.rank}, training goes on unrecorded ({reason})"
        log.warning("shardtoll: %s", text, exc_info=log.isEnabledFor(logging.DEBUG))
        self._notices.append(Notice(self.rank, "capture-stopped", text, None))

    def _is_recording(self) -> bool:
        return not self._mode.muted

    def _pause(self) -> None:
        excluded = self._recorder.excluded()
        excluded.__enter__()
        self._paused.append((excluded, self._mode.muted))
        self._mode.muted = True

    def _resume(self) -> None:
        excluded, was_muted = self._paused.pop()
        self._mode.muted = was_muted or self._stopped
        excluded.__exit__()

    def _gradients_checked(self, findings: Sequence[Finding]) -> None:
        self._findings.extend(findings)
        count = "1 finding" if len(findings) == 1 else f"{len(findings)} findings"
        wrong = count if findings else "all equal to one device's"
        region = self._recorder.region
        step = None if region is None else region.step
        where = "" if step is None else f" in step {step}"
        text = f"gradients checked{where}: {wrong}"
        # Kept without its step, so that it also survives a step that does not finish.
        self._notices.append(Notice(self.rank, "gradients-checked", text, None))

    # -- results -------------------------------------------------------------------------------------

    def report(self) -> Report | None:
        """Return the report over all ranks on rank 0, None on the others; after the session is closed.

        Raises UsageError while the session is open.
        """
        if self._state != "closed":
            raise UsageError("the session is still open", "call session.report() after the `with` block")
        if self._ledger is None:
            return None
        if self._report is None:
            self._report = analyze(self._ledger)
        return self._report

    @property
    def ledger(self) -> Ledger | None:
        """The records of all ranks on rank 0 once the session is closed; None before and elsewhere."""
        return self._ledger

    def _run(self) -> Run:
        return Run(
            world_size=self.world_size,
            backend=self._backend,
            device=_device_name(self._device),
            torch=torch.__version__,
            hosts=(socket.gethostname(),),
            mesh=dict(self._groups.mesh),
            source="live",
            ranks_seen=(self.rank,),
            epoch_ns=self._recorder.epoch_ns,
        )

    def _describe(self) -> None:
        """Keep the rank's own description on disk up to date; written only when it changed."""
        known = (self._run(), self._groups.all_records(), tuple(self._findings))
        if known != self._described:
            self._writer.describe(*known)
            self._described = known


class _OnThisThread:
    """Passes waits on only from the thread that opened the session, while it records."""

    def __init__(self, note: Callable[[int, int], None], is_recording: Callable[[], bool]) -> None:
        self._note = note
        self._is_recording = is_recording
        self._ident = threading.get_ident
        self._thread = threading.get_ident()

    def __call__(self, begun_ns: int, ended_ns: int) -> None:
        if self._ident() == self._thread and self._is_recording():
            self._note(begun_ns, ended_ns)


def _device_of(model: nn.Module | None, backend: str | None) -> torch.device:
    for parameter in model.parameters() if model is not None else ():
        return local_of(parameter).device
    on_gpu = backend is not None and "nccl" in backend and torch.cuda.is_available()
    return torch.device("cuda" if on_gpu else "cpu")


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return device.type


def active_session() -> Session | None:
    """Return the open session of this process, None where there is none."""
    return _active
