"""Work of ours, or of the gradient check, in the midst of a step that it is no part of."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardtoll.profiler.live.recorder import Recorder


class Excluded:
    """Keeps what runs inside it out of the region: collectives out of the counts, time out of the step."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __enter__(self) -> None:
        self._begun_ns = self._recorder.now_ns()
        self._before = self._recorder.groups.sequence_numbers()
        if self._recorder.device is not None:
            self._recorder.device.excluded_begun()

    def __exit__(self, *_: object) -> None:
        region = self._recorder.region
        if region is None:
            return
        if self._recorder.device is not None:
            self._recorder.device.excluded_ended()
        for name, after in self._recorder.groups.sequence_numbers().items():
            before = self._before.get(name, 0)
            if after is not None and before is not None:
                region.uncounted[name] = region.uncounted.get(name, 0) + after - before
        region.excluded.append((self._begun_ns, self._recorder.now_ns()))
