"""The session a user opens around training steps: `audit()` and what it returns."""

from __future__ import annotations

import contextlib
import importlib
import logging
import socket
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final

import torch
import torch.distributed as dist
from torch import nn

from shardtoll.ledger import Finding, Ledger, Report, Run, UsageError, analyze
from shardtoll.profiler.live import pausing
from shardtoll.profiler.live.checks import Checks
from shardtoll.profiler.live.clearing import patch_clearing
from shardtoll.profiler.live.clock import Clock
from shardtoll.profiler.live.device_events import CudaDevice
from shardtoll.profiler.live.device_times import DeviceTimes
from shardtoll.profiler.live.device_waits import patch_device_waits
from shardtoll.profiler.live.devices import device_of, host_blocks
from shardtoll.profiler.live.drains import patch_backward
from shardtoll.profiler.live.entries import open_doors
from shardtoll.profiler.live.excluded import Excluded
from shardtoll.profiler.live.failures import reason
from shardtoll.profiler.live.groups import Groups, initialized
from shardtoll.profiler.live.guarded_checks import GuardedChecks
from shardtoll.profiler.live.kept import Kept
from shardtoll.profiler.live.loading import Loading
from shardtoll.profiler.live.machine import nccl_version, this_machine
from shardtoll.profiler.live.mode import SurveyMode
from shardtoll.profiler.live.mode_stack import take_off
from shardtoll.profiler.live.names import Names
from shardtoll.profiler.live.nodes import ranks_per_node
from shardtoll.profiler.live.optimizing import OptimizerSteps
from shardtoll.profiler.live.recorder import Recorder
from shardtoll.profiler.live.reducers import patch_reducers
from shardtoll.profiler.live.regions import Regions
from shardtoll.profiler.live.schedule import LEVELS, SURVEY_EVERY, Level, Schedule
from shardtoll.profiler.live.sequence import Templates
from shardtoll.profiler.live.spans import patch_user_profiler, quiet_kineto
from shardtoll.profiler.live.threads import elsewhere
from shardtoll.profiler.live.tracing import TRACE_STEPS, Tracer
from shardtoll.profiler.live.waits import OnThisThread, patch_future_wait, patch_work_wait
from shardtoll.profiler.live.watch import Watch
from shardtoll.profiler.live.watch_rows import Setting, WatchRows

log = logging.getLogger("shardtoll")

GATHER_LIMIT_S: Final = 60.0
_LIMIT_AFTER_ERROR_S: Final = 5.0
_active: Session | None = None


def audit(
    model: nn.Module | None = None,
    out: str | Path | None = None,
    *,
    level: Level = "schedule",
    survey_every: int = SURVEY_EVERY,
    trace: bool = False,
    trace_steps: int = TRACE_STEPS,
    gather_limit_s: float = GATHER_LIMIT_S,
    checks: Sequence[str] = (),
    check_every: int = 1,
) -> Session:
    """Record every collective of the steps run inside the returned context manager.

    Call it on every rank. `model` gives modules and parameters their names (without it they are taken
    from the modules seen). `out` is the run folder that `shardtoll report` reads; each rank writes
    there as it goes, so a rank that is killed leaves its finished steps, but for watched ones of its last
    quarter of a second. Leaving the context brings the
    ranks' ledgers to rank 0, which waits at most `gather_limit_s` seconds for ranks that still live.

    Without `session.step()` everything inside the context is one step; with it each call is one, and
    what happens between steps is listed with step None.

    `level` says how closely to look. A *surveyed* step has everything recorded: every operator is seen, which
    makes it slower. In a *watched* step only collectives are looked at, cheaply enough for every step of a
    job: each takes its cause from the surveyed step of which it repeats the sequence, and a step that repeats
    none is attributed by its own stack and the next one surveyed. `schedule` surveys steps 0 and 2, then one
    in `survey_every`, and watches all others; `survey` and `watch` do the one or the other to every step.

    `trace` has torch's profiler record the first `trace_steps` steps too; each rank writes them to
    `trace.rankN.json.gz` in the run folder after the last step, and what only a trace knows is joined to
    the records: on an accelerator the times of kernels. Without a trace a CUDA device's steps, and for how
    long its stream stood still for each collective, are timed by events; all other times are unknown there.
    Traced steps run slower, 1.2 to 1.5 times in our measurements on the CPU, and reading the recording takes
    some tenths of a second after them. A step of more than 300,000 operators is not traced, as memory would
    not hold it: call `session.step()`. The user's own profiler goes first: where it runs, the step is not
    traced and the report says so.

    `checks` asks for what costs more than it shows in every job, in one in `check_every` steps: `gradients`
    (each parameter's gradient as the optimizer is about to use it: missing, doubled or partial reductions,
    norms that count replicas twice), `replicas` (parameters and buffers after the step: those that should be
    equal on ranks and are not) and `data` (the inputs of the model: batches that several ranks saw, epochs in
    the same order). They need `model`. None adds a collective; one that fails ends the checks, not the audit.

    Nothing inside a step is changed: no collective, synchronisation or random number is added, and a
    failure of the capture itself ends the capture, not the training.

    Raises UsageError when a session is open already, `level` is none of the three, a check is not known or
    lacks its model, or `trace_steps`, `survey_every` or `check_every` is less than one; RunFolderError
    when `out` cannot be written.
    """
    if trace_steps < 1:
        raise UsageError(f"trace_steps is {trace_steps}", "trace at least one step, or leave out trace=True")
    if level not in LEVELS:
        raise UsageError(f"level is {level!r}", f"choose one of {', '.join(LEVELS)}")
    if survey_every < 1:
        raise UsageError(
            f"survey_every is {survey_every}", 'give at least 1, or level="watch" to survey none'
        )
    if trace and level == "watch":
        raise UsageError(
            'trace=True with level="watch"', 'traced steps are surveyed: leave level at "schedule"'
        )
    steps = trace_steps if trace else 0
    schedule = Schedule(level, survey_every)
    wanted = Checks.wanted(checks, check_every, model)
    return Session(model, None if out is None else Path(out), gather_limit_s, steps, schedule, wanted)


class Session:
    """An audit in progress, and its report once it is over."""

    def __init__(
        self,
        model: nn.Module | None,
        out: Path | None,
        gather_limit_s: float,
        trace_steps: int,
        schedule: Schedule,
        checks: Checks | None = None,
    ) -> None:
        self._model = model
        self._out = out
        self._limit_s = gather_limit_s
        self._trace_steps = trace_steps
        self._schedule = schedule
        self._wanted = checks
        self._steps_begun = 0
        self._in_step = False
        self._undo = contextlib.ExitStack()
        self._paused: list[tuple[Excluded, bool]] = []
        self._stopped = False
        self._ledger: Ledger | None = None
        self._report: Report | None = None
        self._state = "new"

    def open(self) -> Session:
        """Open the session, where `with` cannot be written; `close()` must follow. Errors: see `audit`."""
        return self.__enter__()

    def close(self) -> None:
        """Close a session opened with `open()`; the report is there then. Without effect on a closed one."""
        if self._state == "open":
            if self._in_step:
                self.end_step(finished=False)
            self.__exit__(None, None, None)

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
        self._groups = Groups()
        self._names = Names(self._model)
        self._groups.note_tensors(parameter for _, parameter in self._names.parameters())
        self._groups.note_live_meshes()
        self._device = device_of(self._model)
        self._device_name = _device_name(self._device)
        self._host = socket.gethostname()
        self._recorder = Recorder(
            self.rank,
            self._names,
            self._groups,
            Clock(),
            host_times=self._device.type == "cpu",
            ranks=self.world_size,
        )
        self._mode = SurveyMode(self._recorder, self._stop_capture)
        recorder = self._recorder
        if self._schedule.watches:
            recorder.templates = Templates()
        told = elsewhere(recorder, SurveyMode, self._stop_capture)
        self._watch = Watch(recorder, self._mode, told, self._stop_capture, self._split_region)
        watch_rows = WatchRows(
            Setting(self.rank, recorder.clock, recorder.epoch_ns, self._groups.mesh_dim, recorder.host_times)
        )
        self._kept = Kept(self.rank, self.world_size, self._out, self._run, self._groups)
        self._kept.alone = self._backend == "fake"
        self._checks = GuardedChecks(
            recorder,
            self._kept,
            self._device,
            is_training=self._records_training,
            has_stopped=lambda: self._stopped,
        )
        self._regions = Regions(
            recorder, self._mode, self._watch, watch_rows, self._schedule, self._kept, self._backend == "fake"
        )
        self._kept.meet()
        try:
            self._kept.open()
            self._prepare()
            # Ranks meet before anything is installed: an interrupt while waiting leaves nothing behind.
            self._kept.meeting.start_together()
            self._install()
            _active = self
            self._state = "open"
            # Until the first session.step() everything counts as one step of its own.
            self._begin_region(0, survey=self._schedule.wants_survey(0))
            # Inside the try: an interrupt just before the return still came while opening.
            return self
        except BaseException:
            self._uninstall()
            self._recorder.drop()
            self._let_go()
            raise

    def _prepare(self) -> None:
        self._undo.callback(quiet_kineto())
        # torch wraps dispatch modes so that its compiler skips them, and the wrapper imports the compiler
        # at its first call: better here than in the middle of the first step.
        importlib.import_module("torch._dynamo")
        if self._device.type == "cuda":
            self._time_device()
        if self._trace_steps:
            self._recorder.tracer = Tracer(self._recorder.spans, self._trace_steps, self._device)
        self._kept.describe()

    def _install(self) -> None:
        recorder = self._recorder
        thread_wait = OnThisThread(recorder.waited_for_work, self._is_recording)
        self._undo.callback(patch_work_wait(recorder.now_ns, thread_wait))
        future_wait = OnThisThread(recorder.waited_for_future, self._is_recording)
        self._undo.callback(patch_future_wait(recorder.now_ns, future_wait))
        optimizers = OptimizerSteps(recorder, self._records_training, self._stop_capture)
        self._undo.callback(optimizers.install())
        self._undo.callback(Loading(recorder.now_ns, self._fetched, self._is_recording).patch())
        watch = self._watch
        self._undo.callback(watch.training.unmark)
        watch.training.mark()
        self._undo.callback(open_doors(watch))
        if self._schedule.watches:
            self._undo.callback(patch_reducers(watch.reducer_ready))
            heard = watch.wants_drains, watch.backward_begins, watch.backward_ran, watch.backward_from
            # On one line: an interrupt between it and the next finds it undone.
            self._undo.callback(patch_backward(*heard))
        clearing = recorder.clearing
        begins, ended = self._in_survey(clearing.backward_begins), self._in_survey(clearing.backward_ended)
        self._undo.callback(patch_clearing(begins, ended))
        if recorder.device is not None:
            self._undo.callback(patch_device_waits(recorder.device, self._records_training))
        self._undo.callback(patch_user_profiler(recorder.spans.give_way))
        # A step that ended in backward could not stop it.
        self._undo.callback(recorder.spans.stop)
        self._undo.callback(pausing.register(self._pause, self._resume))
        self._undo.callback(pausing.register_sink(self._gradients_checked))
        self._undo.callback(take_off, self._mode, for_good=True)
        self._undo.callback(self._checks.remove)
        if self._wanted is not None and self._model is not None:
            self._checks.install(self._wanted, self._model)

    def check_model(self, model: nn.Module, names: Sequence[str]) -> None:
        """Have checks look at a model that was not there when the session opened; call it between steps."""
        wanted = Checks.wanted(names, 1, model)
        if wanted is not None and self._state == "open" and not self._stopped and not self._checks.installed:
            self._checks.install(wanted, model)

    def _time_device(self) -> None:
        """Have the device's own times taken, and what that needs made now rather than in the first step."""
        recorder, blocks = self._recorder, host_blocks()
        recorder.device = DeviceTimes(
            CudaDevice(self._device),
            recorder.now_ns,
            # A barrier blocks the host whatever the transport.
            host_blocks=lambda owner: blocks or getattr(owner, "op", None) == "barrier",
            on_failure=self._stop_capture,
        )
        recorder.fingerprints.prepare(self._device)

    def _in_survey(self, work: Callable[[], None]) -> Callable[[], None]:
        """Return what does the work where the training's own thread runs in a surveyed region."""

        def run() -> None:
            region = self._recorder.region
            surveyed = region is not None and not (region.watched or region.light or self._mode.muted)
            if surveyed and self._records_training():
                self._guarded(work)

        return run

    def _records_training(self) -> bool:
        return self._is_recording() and self._watch.training.is_here()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is not None and self._steps_begun == 0:
                self._drop_step(0)
            elif self._in_step:
                # Begun without `with`, and never ended.
                self._in_step = False
                self._drop_step(self._steps_begun - 1)
            elif self._steps_begun == 0:
                self._end_region()
                self._checks.end()
                self._steps_begun = 1
            else:
                self._end_region()
            # To uninstall ends the recording of the transport's spans: the last steps' are taken before.
            self._guarded(self._regions.flush)
            self._uninstall()
            # No step runs any more: now the device may be waited for.
            self._guarded(lambda: self._regions.append_finished(wait=True))
            self._checks.finish()
            self._guarded(lambda: self._close(failed=kind is not None))
            self._let_go()
        except BaseException:
            # An interrupt may have come before anything of this, or in its midst.
            self._uninstall()
            self._let_go()
            raise

    def _let_go(self) -> None:
        """Keep neither files, groups nor the model any longer; the session lives on for its report."""
        self._recorder.drop()
        self._watch.forget()
        self._kept.let_go()
        if self.rank == 0 and self._ledger is None:
            self._ledger = self._kept.bare()
        self._model = None
        self._checks.forget()
        self._names.forget()

    def _uninstall(self) -> None:
        """Take everything out of the process that was installed; once more does no harm."""
        global _active
        self._undo.close()
        _active = None
        self._state = "closed"

    def _close(self, *, failed: bool) -> None:
        if not self._stopped:
            self._regions.flush()
        limit_s = min(self._limit_s, _LIMIT_AFTER_ERROR_S) if failed else self._limit_s
        self._ledger = self._kept.close(self._recorder.tracer, limit_s)

    # -- steps ---------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Record what runs inside as one step. Steps are numbered from 0 and cannot be nested.

        Raises UsageError when the session is not open or another step is.
        """
        self.begin_step()
        finished = False
        try:
            yield
            finished = True
        finally:
            self.end_step(finished=finished)

    def begin_step(self) -> None:
        """Begin a step, where `with session.step()` cannot be written, as in a callback.

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
        tracer = self._recorder.tracer
        traced = tracer is not None and tracer.wanting
        self._begin_region(number, survey=self._schedule.wants_survey(number) or traced)

    def end_step(self, *, finished: bool = True) -> None:
        """End the step begun by `begin_step`; with `finished` false it is dropped, as one that failed.

        Raises UsageError when no step is open.
        """
        if not self._in_step:
            raise UsageError("no step is open", "call session.begin_step() first")
        self._in_step = False
        if finished:
            self._end_region()
            self._checks.end()
        else:
            self._drop_step(self._steps_begun - 1)
        self._begin_region(None, survey=not self._schedule.watches)

    def _split_region(self) -> None:
        self._end_region()
        self._begin_region(None, survey=False)

    def _begin_region(self, step: int | None, *, survey: bool) -> None:
        self._checks.begin(step)
        self._guarded(lambda: self._regions.begin(step, survey=survey))

    def _end_region(self) -> None:
        if self._stopped:
            self._recorder.drop()
        else:
            self._guarded(self._regions.end)

    def expect_steps(self) -> None:
        """Say that steps will follow: what runs before the first is then in no step, even if none comes."""
        if not self._in_step and self._steps_begun == 0:
            self._recorder.drop()
            self._begin_region(None, survey=not self._schedule.watches)

    def cancel_step(self) -> None:
        """Take `begin_step` back: what was recorded since then is in no step after all."""
        if not self._in_step:
            return
        self._in_step = False
        self._steps_begun -= 1
        if self._recorder.region is not None:
            self._recorder.region.step = None
        self._end_region()
        self._begin_region(None, survey=not self._schedule.watches)

    def _drop_step(self, number: int) -> None:
        self._regions.drop()
        text = f"step {number} of rank {self.rank} did not finish and is not counted"
        self._kept.notice("step-dropped", text)

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
        text = f"capture stopped on rank {self.rank}, training goes on unrecorded ({reason(error)})"
        log.warning("shardtoll: %s", text, exc_info=log.isEnabledFor(logging.DEBUG))
        self._kept.notice("capture-stopped", text)

    def _is_recording(self) -> bool:
        return not self._mode.muted

    def _fetched(self, begun_ns: int, ended_ns: int, name: str, batch: bool, frame: FrameType) -> None:
        self._guarded(lambda: self._recorder.fetched(begun_ns, ended_ns, name, batch, frame))

    def _pause(self) -> None:
        excluded = self._recorder.excluded()
        excluded.__enter__()
        self._paused.append((excluded, self._mode.muted))
        self._mode.muted = True

    def _resume(self) -> None:
        excluded, was_muted = self._paused.pop()
        self._mode.muted = was_muted or self._stopped
        excluded.__exit__()

    def _gradients_checked(
        self, findings: Sequence[Finding], right: Collection[str], wrong_here: Collection[str]
    ) -> None:
        self._checks.gradients_checked(right, wrong_here)
        count = "1 finding" if len(findings) == 1 else f"{len(findings)} findings"
        wrong = count if findings else "all equal to one device's"
        region = self._recorder.region
        step = None if region is None else region.step
        self._kept.findings.add(findings, step)
        where = "" if step is None else f" in step {step}"
        text = f"gradients checked{where}: {wrong}"
        # Kept without its step, so that it also survives a step that does not finish.
        self._kept.notice("gradients-checked", text)

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
            device=self._device_name,
            torch=torch.__version__,
            hosts=(self._host,),
            mesh=dict(self._groups.mesh),
            source="live",
            ranks_seen=(self.rank,),
            epoch_ns=self._recorder.epoch_ns,
            ranks_per_host=ranks_per_node(self.rank, self.world_size),
            nccl_version=nccl_version(self._backend),
            machine=this_machine(),
        )


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return device.type


def active_session() -> Session | None:
    """Return the open session of this process, None where there is none."""
    return _active
