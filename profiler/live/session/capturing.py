"""Everything that records inside the job: made and installed together, behind the one seam to the training.

A failure in here ends the capture, is reported once, and costs the training nothing. Whatever is installed
goes onto one undo stack, which `uninstall` empties.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from types import FrameType
from typing import Any, Final

import torch
from torch import nn

from shardtoll.ledger.records.errors import reason
from shardtoll.ledger.records.step_rows import StepRows
from shardtoll.profiler.live.capture.compiler import patch_compiling, skip_ours
from shardtoll.profiler.live.capture.entries import open_doors
from shardtoll.profiler.live.capture.measure_slowdown import measure as measure_slowdown
from shardtoll.profiler.live.capture.mode import SurveyMode, take_off
from shardtoll.profiler.live.capture.optimizing import OptimizerSteps
from shardtoll.profiler.live.capture.recorder import Recorder
from shardtoll.profiler.live.capture.scaling import patch_scalers
from shardtoll.profiler.live.capture.sequence import Templates
from shardtoll.profiler.live.capture.threads import elsewhere
from shardtoll.profiler.live.capture.watch import Watch
from shardtoll.profiler.live.cause.groups import Groups
from shardtoll.profiler.live.cause.module_names import Names
from shardtoll.profiler.live.cause.pending import PendingCollective
from shardtoll.profiler.live.session import pausing
from shardtoll.profiler.live.session.kept import Kept
from shardtoll.profiler.live.session.machine import host_blocks
from shardtoll.profiler.live.session.parameter_rows import unchecked_rows
from shardtoll.profiler.live.session.regions import Regions
from shardtoll.profiler.live.session.schedule import Schedule
from shardtoll.profiler.live.session.signals import Deferred, raised_by_handler
from shardtoll.profiler.live.session.starting_shards import StartingShards
from shardtoll.profiler.live.times.batch_size import batch_size
from shardtoll.profiler.live.times.clearing import patch_clearing
from shardtoll.profiler.live.times.clock import Clock
from shardtoll.profiler.live.times.device_events import CudaDevice
from shardtoll.profiler.live.times.device_times import DeviceTimes
from shardtoll.profiler.live.times.device_waits import patch_device_waits
from shardtoll.profiler.live.times.drains import patch_backward, patch_ddp_outside, patch_reducers
from shardtoll.profiler.live.times.loading import Loaded, Loading
from shardtoll.profiler.live.times.saving import Saving
from shardtoll.profiler.live.times.spans import patch_user_profiler, quiet_kineto
from shardtoll.profiler.live.times.training import OnThisThread, patch_future_wait, patch_work_wait

log = logging.getLogger("shardtoll")

_SEVERAL: Final = 2


class Capturing:
    """The capture of one session, on the thread that trains."""

    def __init__(
        self,
        model: nn.Module | None,
        device: torch.device,
        groups: Groups,
        kept: Kept,
        schedule: Schedule,
        *,
        rank: int,
        ranks: int,
        is_fake: bool,
    ) -> None:
        """`is_fake`: whether the backend transfers nothing."""
        self.undo = ExitStack()
        """Undoes the installation, for `uninstall`."""
        self.stopped = False
        """Whether the capture was given up."""
        self._device = device
        self._kept = kept
        self._schedule = schedule
        self._rank = rank
        self._ranks = ranks
        self._installed = False
        self._spoilt = False
        """Whether a signal handler of the user's raised during our work: this region is not kept."""
        self._paused: list[tuple[AbstractContextManager[None], bool]] = []
        self._names = Names(model)
        self._shards = StartingShards(rank)
        groups.note_tensors(parameter for _, parameter in self._names.parameters())
        groups.note_live_meshes()
        self.recorder = Recorder(
            rank,
            self._names,
            groups,
            Clock(),
            host_times=device.type == "cpu",
            ranks=ranks,
            templates=Templates() if schedule.watches else None,
        )
        self.mode = SurveyMode(self.recorder, self.stop)
        others = elsewhere(self.recorder, SurveyMode, self.stop)
        self.recorder.attribution.met_root = self._met_root
        self._watch = Watch(self.recorder, self.mode, others, self.stop, self._split)
        self._regions = Regions(self.recorder, self.mode, self._watch, schedule, kept, is_fake)

    # -- installing --------------------------------------------------------------------------------

    def prepare(self, trace_steps: int) -> None:
        """Do before the ranks meet what would otherwise take its time in the first step."""
        self.undo.callback(quiet_kineto())
        # torch wraps dispatch modes so that its compiler skips them, and the wrapper imports the compiler at
        # its first call. It is better to import it here than in the middle of the first step.
        importlib.import_module("torch._dynamo")
        skip_ours()
        if self._device.type == "cuda":
            self._time_device()
        if self.recorder.setting.host_times and self._schedule.surveys:
            self.guarded(self._measure_slowdown)
        if trace_steps:
            self.recorder.recording.trace(trace_steps, self._device)

    def _measure_slowdown(self) -> None:
        """Find out what surveying adds to an operator that the mode cannot see itself."""
        recorder = self.recorder
        recorder.setting = replace(recorder.setting, slowing=measure_slowdown(recorder, self.mode))

    def _time_device(self) -> None:
        """Have the device's own times taken."""
        blocks = host_blocks()
        self.recorder.time_device(
            DeviceTimes(
                CudaDevice(self._device),
                self.recorder.now_ns,
                # A barrier blocks the host whatever the transport.
                host_blocks=lambda owner: blocks or _is_barrier(owner),
                on_failure=self.stop,
            )
        )
        if self._schedule.surveys:
            self.recorder.fingerprints.prepare(self._device)

    def install(self) -> None:
        """Install all that records; `uninstall` must follow, also if this is interrupted."""
        recorder, watch, undo = self.recorder, self._watch, self.undo
        work_wait = OnThisThread(recorder.waits.for_work, self._is_recording)
        undo.callback(patch_work_wait(recorder.now_ns, work_wait, recorder.flight))
        future_wait = OnThisThread(recorder.waits.for_future, self._is_recording)
        undo.callback(patch_future_wait(recorder.now_ns, future_wait, recorder.flight))
        undo.callback(OptimizerSteps(recorder, self.records_training, self.stop).install())
        loading = recorder.loading = Loading(recorder.now_ns, self._fetched, self._is_recording)
        undo.callback(loading.patch())
        undo.callback(Saving(recorder.now_ns, self._saved, self._is_recording, self._attempt).patch())
        undo.callback(patch_compiling())
        undo.callback(watch.training.unmark)
        watch.training.mark()
        recorder.attribution.stack.asks_from = watch.training.asks_from
        undo.callback(open_doors(watch))
        if self._schedule.watches:
            undo.callback(patch_reducers(watch.reducer_ready))
            undo.callback(patch_ddp_outside(watch.ddp_outside))
            heard = watch.wants_drains, watch.backward_begins, watch.backward_ran, watch.backward_from
            # On one line: an interrupt between it and the next finds it undone.
            undo.callback(patch_backward(*heard))
        clearing = recorder.clearing
        begins, ended = self._in_survey(clearing.backward_begins), self._in_survey(clearing.backward_ended)
        undo.callback(patch_clearing(begins, ended, self._backward_of))
        undo.callback(patch_scalers(recorder.loss_is_scaled))
        if recorder.device is not None:
            undo.callback(patch_device_waits(recorder.device, self.records_training))
        undo.callback(recorder.recording.spans.patch_ranges())
        undo.callback(patch_user_profiler(recorder.recording.spans.give_way))
        # A step that ended in backward could not stop it.
        undo.callback(recorder.recording.spans.stop)
        undo.callback(pausing.register(self._pause, self._resume))
        undo.callback(take_off, self.mode, for_good=True)
        undo.callback(recorder.awake.close)
        if self._schedule.watches:
            provisional = self._regions.provisional()
            undo.callback(provisional.stop)
            provisional.start()
        self._installed = True

    def uninstall(self) -> None:
        """Take everything out of the process that was installed; once more does no harm."""
        self.undo.close()
        self._installed = False

    def disown(self) -> None:
        """Let everything pass unrecorded in a forked child; only the child's memory is touched."""
        self.mode.muted = True
        self.stopped = True
        self.recorder.region = None
        self.recorder.flight.let_go()
        # The child's interpreter ends while its parent's mode is on the stack, and would die of it.
        take_off(self.mode, for_good=True)

    def let_go(self) -> None:
        """Hold neither groups nor the model any longer."""
        self.recorder.drop()
        self._watch.forget()
        self._names.forget()

    # -- regions -----------------------------------------------------------------------------------

    def begin(self, step: int | None, *, survey: bool) -> None:
        """Begin a region: that of a step or, with None, of what is in none."""
        if self._spoilt:
            self._spoilt = False
            self.mode.muted = self.stopped or bool(self._paused)
        if step is not None:
            self.guarded(lambda: self._shards.take(step, self._names.parameters()))
        self.guarded(lambda: self._regions.begin(step, survey=survey))

    def name_model(self, model: nn.Module) -> None:
        """Take names of modules and parameters from a model that is known only now."""
        self._names.add_root(model)
        self.recorder.groups.note_tensors(parameter for _, parameter in self._names.parameters())

    def parameter_name(self, parameter: object) -> str | None:
        """Return the name of a parameter of a known module, None for anything else."""
        return self._names.parameter(parameter)

    def _met_root(self) -> None:
        """Take the shards of a module that a forward made known, as long as no optimizer has changed them."""
        region = self.recorder.region
        if region is not None and not self.recorder.optimizer_has_begun:
            self._shards.take_more(region.step, self._names.parameters())

    def end(self) -> None:
        """End the region and have its rows written, now or later."""
        with Deferred():
            self._end()

    def _end(self) -> None:
        if self.stopped:
            self.recorder.drop()
            return
        region = self.recorder.region
        step = None if region is None else region.step
        if self._spoilt:
            self.guarded(self._regions.drop)
            self._tell_spoilt(step)
            return
        try:
            self.guarded(self._regions.end)
        except BaseException:
            self._tell_spoilt(step)
            raise

    def _tell_spoilt(self, step: int | None) -> None:
        if step is not None:
            text = (
                f"step {step} of rank {self._rank} is not counted: a signal handler interrupted its recording"
            )
            self._kept.notice("step-dropped", text)

    def drop(self) -> None:
        """End the region without rows."""
        self._regions.drop()

    def _split(self) -> None:
        """Begin anew between steps, as more has come together than is kept in one piece."""
        self.end()
        self.begin(None, survey=False)

    def flush(self) -> None:
        """Write the rows of what was watched since the last time."""
        with Deferred():
            self.guarded(self._regions.flush)

    def finish(self) -> None:
        """Wait for the device and write the rows held back for it; for after the last step only."""
        self.guarded(lambda: self._regions.append_finished(wait=True))
        self.guarded(self._append_shards)

    def _append_shards(self) -> None:
        self._kept.append(StepRows(None, values=self._shards.rows(wait=True)))

    def append_parameters(self) -> None:
        """Write which parameters this rank holds and what reduces them, for a run whose checks write none."""
        if self.stopped or self._kept.alone or self._ranks < _SEVERAL:
            # A single rank has nobody to reduce a gradient with.
            return
        if not self.recorder.used:
            # As of watched steps: nothing is to be said of gradients that no optimizer was seen to use.
            return
        rows = self._attempt(lambda: unchecked_rows(self.recorder, self._names))
        if rows:
            self._kept.append(StepRows(None, parameters=rows))

    # -- the seam: capture must not kill training ---------------------------------------------------

    def guarded(self, work: Callable[[], None]) -> None:
        """Do work of the capture's; a failure of it ends the capture and passes."""
        if self.stopped and self._installed:
            return
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the seam between capture and training
            self.stop(error)

    def _attempt(self, work: Callable[[], Any]) -> Any:
        """Return the work's result about the user's objects; None if it fails: the capture goes on without
        it."""
        try:
            return work()
        except Exception as error:  # noqa: BLE001 - the seam between capture and training
            if raised_by_handler(error):
                self.stop(error)
            return None

    def stop(self, error: Exception) -> None:
        """Give up capturing: say so once, in the log and in the report.

        An exception of the user's signal handler is no failure of ours. The program gets it, and only the
        region that it came into is given up.
        """
        self.mode.muted = True
        if raised_by_handler(error):
            self._spoilt = True
            raise error
        self.recorder.abandon()
        if self.stopped:
            return
        self.stopped = True
        text = f"capture stopped on rank {self._rank}, training goes on unrecorded ({reason(error)})"
        log.warning("shardtoll: %s", text, exc_info=log.isEnabledFor(logging.DEBUG))
        self._kept.notice("capture-stopped", text)

    def _is_recording(self) -> bool:
        return not self.mode.muted

    def records_training(self) -> bool:
        """Whether there is recording, and the training's own thread asks."""
        return not self.mode.muted and self._watch.training.is_here()

    def _in_survey(self, work: Callable[[], None]) -> Callable[[], None]:
        """Return what does the work where the training's own thread runs in a surveyed region."""

        def run() -> None:
            region = self.recorder.region
            surveyed = region is not None and not (region.watched or region.light or self.mode.muted)
            if surveyed and self.records_training():
                self.guarded(work)

        return run

    def _backward_of(self, roots: Any) -> None:
        self._in_survey(lambda: self.recorder.backward_of(roots))()

    def _fetched(
        self, begun_ns: int, ended_ns: int, name: str, loaded: Loaded | None, frame: FrameType
    ) -> None:
        def note() -> None:
            size = None if loaded is None else batch_size(*loaded)
            self.recorder.fetched(begun_ns, ended_ns, name, size, frame)

        self.guarded(note)

    def _saved(self, begun_ns: int, ended_ns: int, name: str, written: int | None, frame: FrameType) -> None:
        self.guarded(lambda: self.recorder.saved(begun_ns, ended_ns, name, written, frame))

    def _pause(self) -> None:
        excluded = self.recorder.excluded()
        excluded.__enter__()
        self._paused.append((excluded, self.mode.muted))
        self.mode.muted = True

    def _resume(self) -> None:
        excluded, was_muted = self._paused.pop()
        self.mode.muted = was_muted or self.stopped
        excluded.__exit__(None, None, None)


def _is_barrier(owner: object) -> bool:
    return isinstance(owner, PendingCollective) and owner.message.op == "barrier"
