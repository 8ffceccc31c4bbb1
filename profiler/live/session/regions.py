"""Regions of a session, one after the other: each is surveyed or watched, and its rows are written."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from shardtoll.ledger import StepRows
from shardtoll.profiler.live.capture.mode import SurveyMode, put_on, take_off
from shardtoll.profiler.live.capture.recorder import Recorder
from shardtoll.profiler.live.capture.rows import Ended, Passed
from shardtoll.profiler.live.capture.watch import Watch
from shardtoll.profiler.live.capture.watch_rows import Batches, WatchRows
from shardtoll.profiler.live.session.kept import Kept
from shardtoll.profiler.live.session.provisional import Provisional
from shardtoll.profiler.live.session.schedule import Schedule
from shardtoll.profiler.live.times.device_times import DeviceReading, RegionEvents
from shardtoll.profiler.live.times.recording import times_unknown
from shardtoll.profiler.live.times.spans import RawSpan


class Regions:
    """Begins and ends regions, which are steps and what lies between them.

    The caller must keep failures in here from the training.
    """

    def __init__(
        self,
        recorder: Recorder,
        mode: SurveyMode,
        watch: Watch,
        schedule: Schedule,
        kept: Kept,
        is_fake: bool,
    ) -> None:
        self._recorder = recorder
        self._mode = mode
        self._watch = watch
        self._watch_rows = WatchRows(recorder.setting)
        self._schedule = schedule
        self._kept = kept
        self._is_fake = is_fake
        """Whether the backend transfers nothing."""
        self._told_times_unknown = False
        self._made: list[Ended] = []
        """Watched regions that the device has passed, whose rows were made and are not yet written."""

    def begin(self, step: int | None, *, survey: bool) -> None:
        """Begin a region, that of a step or, with None, of what is in none."""
        if survey:
            # Its own recording of the transport's spans begins: what was watched so far needs the last.
            if self._watch.ended or self._recorder.recording.spans.running:
                self.flush()
            put_on(self._mode)
        else:
            take_off(self._mode)
        self._recorder.begin(step, watched=not survey)
        if not survey and self._recorder.setting.host_times and not self._is_fake:
            self._recorder.recording.keep()

    def end(self) -> None:
        """End the region and have its rows written, now or when the device has passed it."""
        region = self._recorder.region
        if region is not None and region.watched:
            self._end_watched()
            return
        rows, learnt = self._recorder.end()
        if region is not None and region.step is not None and learnt is not None:
            template, new = learnt
            self._watch.issues_unseen |= not template.all_seen
            self._schedule.surveyed(new=new, all_seen=template.all_seen)
        if self._recorder.device is not None:
            self.flush()
        elif region is not None and rows:
            self._watch.keeping.add(region.start_ns, self._recorder.now_ns(), rows)
            if region.step is not None:
                # A job that is killed loses no surveyed step; each costs more than its writing.
                self.flush()
            else:
                self._flush_when_due()

    def drop(self) -> None:
        """End the region without rows."""
        region = self._recorder.region
        if region is not None and region.watched:
            self._recorder.end_watched()
        else:
            self._recorder.drop()

    def _end_watched(self) -> None:
        ended = self._recorder.end_watched()
        assert ended is not None
        before = len(self._watch.ended)
        repeats = self._watch.keep(ended)
        if repeats is not None:
            assert ended.region.step is not None
            self._schedule.watched(ended.region.step, repeats=repeats)
        if self._recorder.device is not None:
            self._hold_watched(ended.events, self._watch.ended[before:])
        self._flush_when_due()

    def _flush_when_due(self) -> None:
        # Surveyed rows that have yet to pass the device are written as soon as possible.
        if self._recorder.holds_surveyed or self._watch.keeping.due(self._recorder.now_ns()):
            self.flush()

    def _hold_watched(self, events: RegionEvents | None, watched: Sequence[Ended]) -> None:
        """Have the rows of the watched region that has just ended made when the device has passed it.

        `watched` is that region, or nothing if it has no rows.
        """

        def finish(device: DeviceReading | None) -> Passed | None:
            if not watched:
                return None
            self._note_unknown_times(False, watched, device)
            self._made.extend(watched)
            return Passed(watched[0], device)

        self._recorder.hold(events, finish)

    def append_finished(self, *, wait: bool = False) -> None:
        """Write the rows that were held back and can be made now."""
        made: list[StepRows | Passed] = []
        try:
            made.extend(self._recorder.finished(wait=wait))
        finally:
            # `extend` keeps what came before a failure: a region without rows costs no other one its own.
            try:
                self._append(made)
            finally:
                gone, self._made = self._made, []
                if gone:
                    self._watch.let_go(gone)

    def _append(self, made: Sequence[StepRows | Passed]) -> None:
        """Write the rows of regions in their order, watched ones next to each other in one batch."""
        failures: list[Exception] = []
        for is_watched, together in groupby(made, lambda each: isinstance(each, Passed)):
            if not is_watched:
                self._kept.append(*(each for each in together if isinstance(each, StepRows)))
                continue
            try:
                for rows in self._watch_rows.passed(each for each in together if isinstance(each, Passed)):
                    self._keep(rows)
            except Exception as error:  # noqa: BLE001 - raised once the other rows are written
                failures.append(error)
        if made:
            self._kept.describe()
        if failures:
            raise failures[0]

    def _keep(self, rows: Batches | StepRows) -> None:
        if isinstance(rows, StepRows):
            self._kept.append(rows)
        else:
            self._kept.append_batches(rows)

    def provisional(self) -> Provisional:
        """Return what keeps provisional rows of what waits, should a region last."""
        rows = WatchRows(self._recorder.setting)
        # On a fake group nothing was in flight; else the transport's times come with the real rows.
        spans: Sequence[RawSpan] | None = [] if self._is_fake else None
        return Provisional(self._watch, lambda ended: self._kept.provisional(rows.make(ended, spans)))

    def flush(self) -> None:
        """Write the rows of what was surveyed and watched since the last time."""
        begin_ns = self._recorder.now_ns()
        self._watch.keeping.begin_anew()
        self._write()
        self._watch.keeping.made(begin_ns, self._recorder.now_ns())

    def _write(self) -> None:
        self.append_finished()
        if self._recorder.device is not None:
            return
        raw = self._recorder.recording.take()
        if raw is None and self._is_fake:
            # Nothing was in flight.
            raw = []
        watched = self._watch.take()
        if not watched:
            return
        try:
            for rows in self._watch_rows.make(watched, raw):
                self._keep(rows)
        finally:
            self._watch.written()
        self._note_unknown_times(raw is not None, watched)
        self._kept.describe()

    def _note_unknown_times(
        self, spans: bool, watched: Sequence[Ended], device: DeviceReading | None = None
    ) -> None:
        """Say once which times of watched steps are unknown."""
        host_times = self._recorder.setting.host_times
        text = times_unknown(host_times, spans=spans or self._is_fake, device=device)
        if text is None or self._told_times_unknown or not any(map(_communicates, watched)):
            return
        self._told_times_unknown = True
        self._kept.notice("times-unknown", text, watched[0].region.step)


def _communicates(ended: Ended) -> bool:
    """Whether a region has collectives, those counted that only C++ saw."""
    return bool(ended.region.collectives or (ended.template is not None and ended.template.collectives))
