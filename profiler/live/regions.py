"""Regions of a session, one after the other: each is surveyed or watched, and its rows are written."""

from __future__ import annotations

from collections.abc import Sequence

from shardtoll.ledger import StepRows
from shardtoll.profiler.live.device_times import DeviceReading, RegionEvents
from shardtoll.profiler.live.kept import Kept
from shardtoll.profiler.live.mode import SurveyMode
from shardtoll.profiler.live.mode_stack import put_on, take_off
from shardtoll.profiler.live.recorder import Recorder
from shardtoll.profiler.live.schedule import Schedule
from shardtoll.profiler.live.unknown_times import times_unknown
from shardtoll.profiler.live.watch import Watch, Watched
from shardtoll.profiler.live.watch_rows import WatchRows


class Regions:
    """Begins and ends regions, which are steps and what lies between them.

    What fails in here is the caller's to keep from the training.
    """

    def __init__(
        self,
        recorder: Recorder,
        mode: SurveyMode,
        watch: Watch,
        watch_rows: WatchRows,
        schedule: Schedule,
        kept: Kept,
        is_fake: bool,
    ) -> None:
        self._recorder = recorder
        self._mode = mode
        self._watch = watch
        self._watch_rows = watch_rows
        self._schedule = schedule
        self._kept = kept
        self._is_fake = is_fake
        """Whether the backend transfers nothing."""
        self._told_times_unknown = False

    def begin(self, step: int | None, *, survey: bool) -> None:
        """Begin a region, that of a step or, with None, of what is in none."""
        if survey:
            # Its own recording of the transport's spans begins: what was watched so far needs the last.
            self.flush()
            put_on(self._mode)
        else:
            take_off(self._mode)
        self._recorder.begin(step, watched=not survey)
        if not survey and self._recorder.host_times and not self._is_fake:
            self._recorder.keep_spans()

    def end(self) -> None:
        """End the region and have its rows written, now or when the device has passed it."""
        region = self._recorder.region
        if region is not None and region.watched:
            self._end_watched()
            return
        rows = self._recorder.end()
        if rows is not None and self._kept.append(rows):
            self._kept.describe()
        learnt = self._recorder.learnt
        if region is not None and region.step is not None and learnt is not None:
            template, new = learnt
            self._watch.issues_unseen |= not template.all_seen
            self._schedule.surveyed(new=new, all_seen=template.all_seen)
        self.append_finished()

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
        known = self._watch.keep(ended.region, ended.end_ns, ended.at_end)
        if known is not None:
            assert ended.region.step is not None
            self._schedule.watched(ended.region.step, known=known)
        if self._recorder.device is not None:
            self._hold_watched(ended.events)
            self.append_finished()
        elif self._watch.due(ended.end_ns):
            self.flush()

    def _hold_watched(self, events: RegionEvents | None) -> None:
        """Have the rows of the watched region that has just ended made when the device has passed it."""
        watched = self._watch.take()

        def finish(device: DeviceReading | None) -> StepRows:
            if not watched:
                return StepRows(None)
            self._note_unknown_times(False, watched, device)
            return self._watch_rows.one(watched[0], None, self._recorder.threads, device)

        self._recorder.hold(events, finish)

    def append_finished(self, *, wait: bool = False) -> None:
        """Write the rows that were held back until the device had passed their step."""
        finished = self._recorder.finished(wait=wait)
        for rows in finished:
            self._kept.append(rows)
        if finished:
            self._kept.describe()

    def flush(self) -> None:
        """Write the rows of what was watched since the last time."""
        raw = self._recorder.take_spans()
        if raw is None and self._is_fake:
            # Nothing was in flight.
            raw = []
        watched = self._watch.take()
        if not watched:
            return
        for rows in self._watch_rows.make(watched, raw, self._recorder.threads):
            if isinstance(rows, StepRows):
                self._kept.append(rows)
            else:
                self._kept.append_batches(rows)
        self._note_unknown_times(raw is not None, watched)
        self._kept.describe()

    def _note_unknown_times(
        self, spans: bool, watched: Sequence[Watched], device: DeviceReading | None = None
    ) -> None:
        """Say once which times of watched steps are unknown."""
        host_times = self._recorder.host_times
        text = times_unknown(host_times, spans=spans or self._is_fake, device=device)
        if text is None or self._told_times_unknown or not any(each.region.collectives for each in watched):
            return
        self._told_times_unknown = True
        self._kept.notice("times-unknown", text, watched[0].region.step)
