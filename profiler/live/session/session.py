"""The session a user opens around training steps: `audit()` and what it returns."""

from __future__ import annotations

import contextlib
import logging
import math
import sys
import threading
import time
import weakref
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import torch.distributed as dist
from torch import nn

from shardtoll.ledger import Finding, Ledger, Report, Run, UsageError, analyze
from shardtoll.profiler.live.capture.mode import DRY
from shardtoll.profiler.live.cause.groups import Groups, initialized
from shardtoll.profiler.live.session import holding, pausing
from shardtoll.profiler.live.session.capturing import Capturing
from shardtoll.profiler.live.session.flying import HANG_AFTER_S, Flying
from shardtoll.profiler.live.session.guarded_checks import GuardedChecks
from shardtoll.profiler.live.session.kept import Kept
from shardtoll.profiler.live.session.machine import (
    device_of,
    nccl_version,
    of_this_process,
    usable_cores,
)
from shardtoll.profiler.live.session.schedule import LEVELS, SURVEY_EVERY, Checks, Level, Schedule
from shardtoll.profiler.live.session.signals import Deferred
from shardtoll.profiler.live.times.tracing import TRACE_STEPS

GATHER_LIMIT_S: Final = 60.0
_LIMIT_AFTER_ERROR_S: Final = 5.0
_active: Session | None = None
log = logging.getLogger("shardtoll")


# Longer than 80 lines: most is the docstring, which is all that users read of the parameters.
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
    hang_after_s: float | None = HANG_AFTER_S,
) -> Session:
    """Record every collective of the steps run inside the returned context manager.

    Call it on every rank. `model` gives modules and parameters their names (without it they are taken
    from the modules seen). `out` is the run folder that `shardtoll report` reads. Each rank writes there as
    it goes. A rank that is killed leaves its finished steps, except watched ones of its last quarter second.
    Leaving the context brings the ranks' ledgers to rank 0, which waits at most `gather_limit_s` seconds for
    ranks that still live.

    Without `session.step()` everything inside the context is one step. With it each call is one, and records
    from between steps have step None.

    `level` says how closely to look. A *surveyed* step has everything recorded: every operator is seen, which
    makes it slower. In a *watched* step only collectives are looked at, cheaply enough for every step of a
    job. Each takes its cause from the surveyed step whose sequence it repeats. A step that repeats none is
    attributed by its own stack, and the next one is surveyed. `schedule` surveys steps 0 and 2, then one in
    `survey_every`, and watches all others. `survey` surveys every step, `watch` watches every step. With 100,
    if this would add more than 1 % to the job, it is one in 400, in 1,600 and so on.

    `trace` has torch's profiler record the first `trace_steps` steps too. Each rank writes them to
    `trace.rankN.json.gz` in the run folder after the last step. Facts that only a trace has are joined to the
    records: on an accelerator the times of kernels. Without a trace, events time a CUDA device's steps and
    how long its stream stood still for each collective. All other times are unknown there. Traced steps run
    slower, 1.2 to 1.5 times in our measurements on the CPU. Reading the recording takes some tenths of a
    second after them. A step of more than 300,000 operators is not traced, as memory would not hold it: call
    `session.step()`. The user's own profiler goes first: while it runs, the step is not traced and the report
    says so.

    `checks` asks for checks that cost more than every job should pay, in one of `check_every` steps.
    `gradients` looks at each parameter's gradient as the optimizer is about to use it. It finds missing,
    doubled or partial reductions, and norms that count replicas twice. `replicas` looks at parameters and
    buffers after the step: those that should be equal on ranks and are not. `data` looks at the inputs of the
    model: batches that several ranks saw, epochs in the same order. All three need `model`. None adds a
    collective; one that fails ends the checks, not the audit.

    While the session is open each rank keeps a small flight file in the run folder, which says what it is in.
    `shardtoll hang` reads it, also after the job was killed. A thread brings it up to date four times a
    second. Once the training thread has stood still for `hang_after_s` seconds, that thread writes the stacks
    of all threads there too. With None it writes none.

    Nothing inside a step is changed: no collective, synchronisation or random number is added. A failure of
    the capture itself ends the capture, not the training.

    In a dry run it records nothing, writes no folder and has no report: the dry run records the steps.

    Raises UsageError if a session is open already or `level` is none of the three. Also if a check is
    unknown, or needs a model that is not given. Also if `trace_steps`, `survey_every` or `check_every` is
    less than one, or if `hang_after_s` is not above 0. RunFolderError when `out` cannot be written.
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
    if hang_after_s is not None and not 0 < hang_after_s < math.inf:
        raise UsageError(f"hang_after_s is {hang_after_s}", "give seconds above 0, or None for no stacks")
    if DRY.idle_session is not None:
        idle: Session = DRY.idle_session()
        return idle
    steps = trace_steps if trace else 0
    schedule = Schedule(level, survey_every)
    wanted = Checks.wanted(checks, check_every, model)
    folder = None if out is None else Path(out)
    return Session(model, folder, gather_limit_s, steps, schedule, wanted, hang_after_s)


class _Alive:
    """Lives as long as the frame that holds it."""

    __slots__ = ("__weakref__",)


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
        hang_after_s: float | None = None,
    ) -> None:
        self._model = model
        self._out = out
        self._limit_s = gather_limit_s
        self._trace_steps = trace_steps
        self._schedule = schedule
        self._wanted = checks
        self._hang_after_s = hang_after_s
        self._steps_begun = 0
        self._in_step = False
        self._just_begun = False
        """Whether the open step was begun by the last call of `begin_step`, not by an earlier one."""
        self._with: weakref.ref[_Alive] | None = None
        """An object that lives as long as the `with` of the open step; None if it was begun without one."""
        self._ledger: Ledger | None = None
        self._report: Report | None = None
        self._thread = 0
        """The thread that opened the session: only its operators are seen."""
        self._state = "new"
        self._place: dict[str, Any] | None = None
        """This process's host and devices; asked once, as the description is made anew with each writing."""

    def open(self) -> Session:
        """Open the session in code that cannot use `with`; `close()` must follow. Errors: see `audit`."""
        return self.__enter__()

    def close(self) -> None:
        """Close a session opened with `open()`; the report is there then. Without effect on a closed one."""
        if self._state == "open":
            if self._in_step:
                self.end_step(finished=False)
            self.__exit__(None, None, None)

    # -- opening and closing -----------------------------------------------------------------------

    def __enter__(self) -> Session:
        if self._state != "new":
            raise UsageError(
                "an audit session is open already"
                if self._state == "open"
                else "this session was used already",
                "close it first; for several steps use session.step()",
            )
        try:
            # Inside the try: an interrupt just after it was claimed came while opening, too.
            holding.claim(self)
            return self._enter()
        except BaseException:
            if self._state == "open":
                # An interrupt after all was opened, and before the caller has the session.
                self._uninstall()
                self._capture.recorder.drop()
                self._let_go()
            holding.release(self)
            raise

    def _enter(self) -> Session:
        global _active
        self._thread = threading.get_ident()
        live = initialized()
        self.rank: int = dist.get_rank() if live else 0
        self.world_size: int = dist.get_world_size() if live else 1
        self._device = device_of(self._model)
        self._groups = Groups(self._device.type)
        self._backend = self._groups.backend()
        is_fake = self._backend == "fake"
        self._kept = Kept(self.rank, self.world_size, self._out, self._run, self._groups)
        self._kept.alone = is_fake
        self._capture = Capturing(
            self._model,
            self._device,
            self._groups,
            self._kept,
            self._schedule,
            rank=self.rank,
            ranks=self.world_size,
            is_fake=is_fake,
        )
        self._flying = Flying(self._capture.recorder, self._hang_after_s, is_fake=is_fake)
        self._checks = GuardedChecks(
            self._capture.recorder,
            self._kept,
            self._device,
            is_training=self._capture.records_training,
            has_stopped=lambda: self._capture.stopped,
        )
        self._kept.meet()
        try:
            self._kept.open()
            missing = self._flying.open(self._kept.folder, self.world_size, self._kept.meeting.run_id)
            if missing is not None:
                self._kept.notice("flight-missing", missing)
            self._capture.prepare(self._trace_steps)
            self._kept.announce()
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
            self._capture.recorder.drop()
            self._let_go()
            raise

    def _install(self) -> None:
        self._capture.undo.callback(self._flying.stop)
        self._flying.start()
        self._capture.install()
        self._capture.undo.callback(pausing.register_sink(self._gradients_checked))
        self._capture.undo.callback(self._checks.remove)
        if self._wanted is not None and self._model is not None:
            self._checks.install(self._wanted, self._model)

    def check_model(self, model: nn.Module, names: Sequence[str]) -> None:
        """Have checks look at a model that was not there when the session opened; call it between steps."""
        wanted = Checks.wanted(names, 1, model)
        if (
            wanted is not None
            and self._state == "open"
            and not self._capture.stopped
            and not self._checks.installed
        ):
            self._checks.install(wanted, model)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            # First in the try: Python guards nothing before it.
            if self._state == "forked":
                return
            if kind is not None and self._steps_begun == 0:
                self._drop_step(0)
            elif self._in_step:
                # Begun without `with`, and never ended.
                self._in_step = False
                self._drop_step(self._steps_begun - 1)
            elif self._steps_begun == 0:
                self._capture.end()
                self._checks.end()
                self._steps_begun = 1
            else:
                self._capture.end()
            # To uninstall ends the recording of the transport's spans: the last steps' are taken before.
            self._capture.flush()
            lost = self._flying.end("closed" if error is None else "failed", error, trace)
            if lost is not None:
                self._kept.notice("flight-missing", lost)
            self._uninstall()
            # No step runs any more: now the device may be waited for.
            self._capture.finish()
            if not self._checks.installed:
                self._capture.append_parameters()
            self._checks.finish()
            self._capture.guarded(lambda: self._close(failed=kind is not None))
            self._let_go()
        except BaseException:
            # An interrupt may have come before anything of this, or during it.
            self._uninstall()
            self._let_go()
            raise

    def _let_go(self) -> None:
        """Keep neither files, groups nor the model any longer; the session lives on for its report."""
        self._flying.end("left")
        self._capture.let_go()
        self._kept.let_go()
        if self.rank == 0 and self._ledger is None:
            self._ledger = self._kept.bare()
        self._model = None
        self._checks.forget()

    def _uninstall(self) -> None:
        """Take everything out of the process that was installed; once more does no harm."""
        global _active
        self._capture.uninstall()
        _active = None
        self._state = "closed"
        holding.release(self)

    def disown(self) -> None:
        """Record nothing any more, in a forked child: files, store and device are its parent's."""
        global _active
        _active = None
        # While it still opened there is nothing to silence yet.
        if self._state == "open":
            self._capture.disown()
        self._state, self._in_step = "forked", False

    def left_open(self) -> None:
        """End the session as the interpreter ends: finished steps stay in the run folder, no rank waits."""
        if self._state != "open":
            return
        if self._in_step or hasattr(sys, "last_value"):
            self._in_step = False
            self._drop_step(max(self._steps_begun - 1, 0))
        else:
            self._capture.end()
        self._capture.flush()
        self._uninstall()
        self._capture.guarded(self._kept.leave)
        log.warning(
            "shardtoll: rank %d ended without closing its audit; call session.close() to get a report%s",
            self.rank,
            "" if self._out is None else f" (finished steps are in {self._out})",
        )
        self._let_go()

    def _close(self, *, failed: bool) -> None:
        if not self._capture.stopped:
            self._capture.flush()
        limit_s = min(self._limit_s, _LIMIT_AFTER_ERROR_S) if failed else self._limit_s
        self._ledger = self._kept.close(self._capture.recorder.recording.tracer, limit_s)

    # -- steps ---------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Record what runs inside as one step. Steps are numbered from 0 and cannot be nested.

        Raises UsageError when the session is not open, another step is, or another thread opened it.
        """
        number, finished, alive = self._steps_begun, False, _Alive()
        try:
            # Inside the try: a signal handler may raise between any two instructions.
            self.begin_step()
            self._with = weakref.ref(alive)
            yield
            finished = True
        finally:
            if self._in_step and self._steps_begun > number:
                self.end_step(finished=finished)

    def begin_step(self) -> None:
        """Begin a step in code that cannot use `with session.step()`, as a callback.

        Raises UsageError when the session is not open, another step is, or another thread opened it.
        """
        if self._state == "forked":
            return
        try:
            with Deferred():
                self._begin_step()
        except BaseException:
            if self._in_step and self._just_begun:
                self.end_step(finished=False)
            raise

    def _begin_step(self) -> None:
        self._just_begun = False
        if self._in_step and self._with is not None and self._with() is None:
            # Its `with` is over: an exception came just before it could end the step.
            self.end_step(finished=False)
        if self._state != "open" or self._in_step:
            raise UsageError(
                "session.step() inside another step"
                if self._in_step
                else "session.step() outside its session",
                "call it once per step, inside `with audit(...) as session:`",
            )
        if threading.get_ident() != self._thread:
            raise UsageError(
                "session.step() on another thread than the one that opened the session",
                "open the audit on the thread that trains",
            )
        number = self._steps_begun
        if number == 0:
            # The records so far turn out to have been outside every step.
            self._capture.recorder.in_no_step()
        self._capture.end()
        self._steps_begun += 1
        self._in_step, self._with, self._just_begun = True, None, True
        tracer = self._capture.recorder.recording.tracer
        traced = tracer is not None and tracer.wanting
        survey = self._schedule.wants_survey(number) or traced
        self._schedule.begins(number, surveyed=survey, now_ns=time.monotonic_ns())
        self._begin_region(number, survey=survey)

    def end_step(self, *, finished: bool = True) -> None:
        """End the step begun by `begin_step`; with `finished` false it is dropped, as one that failed.

        Raises UsageError when no step is open.
        """
        if self._state == "forked":
            return
        with Deferred():
            if not self._in_step:
                raise UsageError("no step is open", "call session.begin_step() first")
            self._in_step = False
            if finished:
                self._capture.end()
                self._checks.end()
            else:
                self._drop_step(self._steps_begun - 1)
            self._begin_region(None, survey=not self._schedule.watches)

    def _begin_region(self, step: int | None, *, survey: bool) -> None:
        self._checks.begin(step)
        self._capture.begin(step, survey=survey)

    def expect_steps(self) -> None:
        """Say that steps will follow: what runs before the first is then in no step, even if none comes."""
        if self._state == "open" and not self._in_step and self._steps_begun == 0:
            self._capture.recorder.drop()
            self._begin_region(None, survey=not self._schedule.watches)

    def cancel_step(self) -> None:
        """Take `begin_step` back: what was recorded since then is in no step after all."""
        if not self._in_step:
            return
        self._in_step = False
        self._steps_begun -= 1
        self._capture.recorder.in_no_step()
        self._capture.end()
        self._begin_region(None, survey=not self._schedule.watches)

    def _drop_step(self, number: int) -> None:
        self._capture.drop()
        text = f"step {number} of rank {self.rank} did not finish and is not counted"
        self._kept.notice("step-dropped", text)

    def _gradients_checked(
        self, findings: Sequence[Finding], right: Collection[str], wrong_here: Collection[str]
    ) -> None:
        self._checks.gradients_checked(right, wrong_here)
        count = "1 finding" if len(findings) == 1 else f"{len(findings)} findings"
        wrong = count if findings else "all equal to one device's"
        region = self._capture.recorder.region
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
        if self._state == "forked":
            return None
        if self._state != "closed":
            raise UsageError("the session is still open", "call session.report() after the `with` block")
        if self._ledger is None:
            return None
        if self._report is None:
            self._report = analyze(self._ledger)
        return self._report

    @property
    def capture(self) -> Capturing:
        """The recording part, while the session is open: a dry run places its operators by it."""
        return self._capture

    @property
    def ledger(self) -> Ledger | None:
        """The records of all ranks on rank 0 once the session is closed; None before and elsewhere."""
        return self._ledger

    def _run(self) -> Run:
        if initialized():
            self._backend = self._groups.backend()
        # A script may pin itself to other cores at any time.
        cores, core_ids = usable_cores()
        if self._place is None:
            self._place = of_this_process(self.rank, self.world_size, self._device)
        return Run(
            world_size=self.world_size,
            backend=self._backend,
            mesh=dict(self._groups.mesh),
            source="live",
            ranks_seen=(self.rank,),
            epoch_ns=self._capture.recorder.setting.epoch_ns,
            nccl_version=nccl_version(self._backend),
            cores=cores,
            core_ids=core_ids,
            **self._place,
        )


def active_session() -> Session | None:
    """Return the open session of this process, None if there is none."""
    return _active
