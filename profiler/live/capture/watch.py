"""The watching level: the cost of each collective in every step, and no work for any other operator.

No dispatch mode is active. Each collective that Python issues is decoded, numbered and timed where it is
called. Its cause is that of the surveyed collective at the same place of the sequence. A collective that has
left every known sequence is attributed by its own stack. Collectives that C++ issues are taken from the
surveyed step where the groups' own counts prove that as many were issued.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from threading import get_ident
from typing import Any, Final, Protocol

import torch

from shardtoll.profiler.live.capture.calls import Calls, Said
from shardtoll.profiler.live.capture.device_calls import timed_call, timed_wait, waited_for
from shardtoll.profiler.live.capture.keeping import FLUSH_ROWS, Keeping
from shardtoll.profiler.live.capture.recorder import Recorder
from shardtoll.profiler.live.capture.rows import Ended
from shardtoll.profiler.live.capture.sequence import Template, Templates, grown, key_of
from shardtoll.profiler.live.capture.threads import CallMode
from shardtoll.profiler.live.cause.call import UNDECODED, Call, Tensors
from shardtoll.profiler.live.cause.callsite import CallSites, Site
from shardtoll.profiler.live.cause.methods import MethodDecoder
from shardtoll.profiler.live.cause.pending import (
    NOWHERE,
    Message,
    PendingCollective,
    Place,
    Region,
    growths,
)
from shardtoll.profiler.live.flight.flight import Note
from shardtoll.profiler.live.times.training import TrainingThread

log = logging.getLogger("shardtoll")

_MOST_UNSEEN: Final = 1_000
"""Rows at most for what one group was counted to issue between two steps and was not seen to."""


class Mutable(Protocol):
    """Says whether anything is to be recorded now."""

    muted: bool


class Watch:
    """Makes the calls of collectives while a session is open, and keeps what watched regions have shown."""

    def __init__(
        self,
        recorder: Recorder,
        mode: Mutable,
        elsewhere: Callable[..., Any],
        on_failure: Callable[[Exception], None],
        on_full: Callable[[], None],
    ) -> None:
        """Make one on the training thread. `elsewhere` makes the calls of threads that do not train.

        `on_full` is called when what runs between steps has become too much to be kept in one piece.
        """
        self._recorder = recorder
        self._mode = mode
        self.training = TrainingThread()
        self._thread = self.training.ident
        self._is_training = self.training.is_here
        self._elsewhere = elsewhere
        self._on_failure = on_failure
        self._on_full = on_full
        self._now_ns = recorder.now_ns
        self._inside: set[int] = set()
        """Threads that are making a collective's call."""
        self._waits = recorder.waits
        self._calls = Calls(recorder.groups, recorder.rank)
        self._sites = CallSites(recorder.attribution.stack)
        self.ended: list[Ended] = []
        """Regions since the last flush."""
        self._taken: list[Ended] = []
        """Those whose rows are being made."""
        self.issues_unseen = False
        """Whether C++ has issued collectives in some surveyed step."""
        self.keeping = Keeping()
        """Says when the rows of ended regions, surveyed or watched, are to be made."""

    # -- calls -------------------------------------------------------------------------------------

    def collective(
        self, original: Callable[..., Any], decode: MethodDecoder, args: Sequence[Any], kwargs: Any
    ) -> Any:
        """Make a collective's call; in a watched region of the training thread, note it."""
        thread = get_ident()
        recorder = self._recorder
        region = recorder.region
        if thread in self._inside:
            return original(*args, **kwargs)
        recorded = not (self._mode.muted or region is None)
        if not (thread == self._thread or self._is_training()):
            return self._elsewhere(original, args, kwargs) if recorded else original(*args, **kwargs)
        if region is None or not recorded:
            return self._unrecorded(original, decode, args, kwargs)
        self._inside.add(thread)
        try:
            if region.watched:
                return self._noted(original, decode, args, kwargs, region)
            return self._seen_below(original, args, kwargs, region)
        finally:
            self._inside.discard(thread)

    def _unrecorded(
        self, original: Callable[..., Any], decode: MethodDecoder, args: Sequence[Any], kwargs: Any
    ) -> Any:
        """Make a call that is on no bill; only the rank's present place is noted."""
        flight, thread = self._recorder.flight, get_ident()
        note: Note | None = None
        issued: list[tuple[PendingCollective, Said]] = []
        self._inside.add(thread)
        try:
            try:
                for each in self._calls.said(decode, args, kwargs) or ():
                    pending = PendingCollective(each.message, NOWHERE, 0, each.count())
                    note = flight.issue(pending, self._now_ns())
                    issued.append((pending, each))
            except Exception:
                log.debug("shardtoll: a call could not be noted", exc_info=True)
            try:
                result = original(*args, **kwargs)
            except BaseException:
                flight.raised(note)
                raise
            if issued:
                flight.returned_calls(note, result, issued, self._now_ns())
            return result
        finally:
            self._inside.discard(thread)

    def _seen_below(
        self, original: Callable[..., Any], args: Sequence[Any], kwargs: Any, region: Region
    ) -> Any:
        """Make a call in a surveyed region, where the mode sees the operator behind it."""
        recorder = self._recorder
        try:
            recorder.called_from(self._site(sys._getframe(3), region))
        except Exception as error:  # noqa: BLE001 - the seam: a failure of ours must not kill training
            self._on_failure(error)
        try:
            work = original(*args, **kwargs)
            if region.collectives:
                self._waits.hands_work(work, len(region.collectives) - 1)
                recorder.flight.hands(work)
            return work
        finally:
            recorder.called_from(None)

    def _noted(
        self,
        original: Callable[..., Any],
        decode: MethodDecoder,
        args: Sequence[Any],
        kwargs: Any,
        region: Region,
    ) -> Any:
        now_ns, recorder = self._now_ns, self._recorder
        note: Note | None = None
        entered_ns = begun_ns = now_ns()
        issued: list[tuple[PendingCollective, Said]] = []
        said: tuple[Said, ...] | None = ()
        try:
            try:
                said = self._calls.said(decode, args, kwargs)
            except UNDECODED:
                said = ()
            if said:
                frame = sys._getframe(3)
                templates = None if region.step is None else recorder.templates
                expected = None if templates is None else templates.expected()
                site = self._sites.site(frame, region.node_base, expected, region.backward_ran)
                for each in said:
                    pending = PendingCollective(each.message, NOWHERE, 0, each.count())
                    self._place(pending, region, site, templates, frame, decode, args, kwargs)
                    issued.append((pending, each))
                    note = recorder.flight.issue(pending, entered_ns)
                begun_ns = now_ns()
                for pending, _ in issued:
                    pending.issue_ns = begun_ns
        except Exception as error:  # noqa: BLE001 - the seam: a failure of ours must not kill training
            self._on_failure(error)
            issued, said = [], ()
        if said is None:
            return self._seen_by_mode(original, args, kwargs)
        try:
            if recorder.device is None:
                result = original(*args, **kwargs)
            else:
                result = timed_call(recorder.device, original, args, kwargs, issued)
        except BaseException:
            recorder.flight.raised(note)
            raise
        if not issued:
            return result
        try:
            returned_ns = now_ns()
            if note is not None and said[-1].plain and len(issued) == 1:
                recorder.flight.returned(note, result)
            else:
                recorder.flight.returned_calls(note, result, issued, returned_ns)
            if recorder.region is not region:
                return result
            if len(issued) == 1:
                pending, each = issued[0]
                recorder.issued_alone(pending, each, region)
            else:
                recorder.issued([(pending, each.call) for pending, each in issued], result)
            index = len(region.collectives) - 1
            if len(issued) == 1:
                self._waits.hands(result, index)
            else:
                self._waits.hands_work(result, index)
            if issued[0][1].call.blocking:
                self._waits.note(index, begun_ns, returned_ns)
            region.capture += ((entered_ns, begun_ns), (returned_ns, now_ns()))
            if region.step is None and index >= FLUSH_ROWS:
                # Between steps much may run, as a validation: it is no one thing that must be kept whole.
                self._on_full()
        except Exception as error:  # noqa: BLE001 - the seam
            self._on_failure(error)
        return result

    def _site(self, frame: Any, region: Region) -> Site:
        return self._sites.site(frame, region.node_base, None, region.backward_ran)

    def _seen_by_mode(self, original: Callable[..., Any], args: Sequence[Any], kwargs: Any) -> Any:
        """Make a call whose arguments say too little under a mode that sees the operator behind it."""

        def issue(call: Call, frame: Any) -> PendingCollective | None:
            region = self._recorder.region
            if region is None:
                return None
            site = self._site(frame, region)
            said = self._calls.bare(call)
            pending = PendingCollective(said.message, NOWHERE, 0, said.count())
            templates = None if region.step is None else self._recorder.templates
            self._place(pending, region, site, templates, frame, lambda *_: (call,), (), {})
            pending.issue_ns = self._now_ns()
            return pending

        with CallMode(issue, lambda calls: self._recorder.issued(calls, ()), self._on_failure):
            return original(*args, **kwargs)

    def _place(
        self,
        pending: PendingCollective,
        region: Region,
        site: Site,
        templates: Templates | None,
        frame: Any,
        decode: MethodDecoder,
        args: Sequence[Any],
        kwargs: Any,
    ) -> None:
        """Give a collective its place: that of the surveyed one it repeats, else what its own stack says."""
        if templates is not None:
            pending.key = key = key_of(pending, region, site)
            like = templates.follow(key)
            if like is not None:
                pending.place = like.place
        place = pending.place
        if place is NOWHERE or place.by_tensor:
            self._look(pending, region, frame, decode, args, kwargs)
        if site[2] is not None and pending.place.waits_in_cpp:
            self._waits.end_of_backward(pending)

    def _look(
        self,
        pending: PendingCollective,
        region: Region,
        frame: Any,
        decode: MethodDecoder,
        args: Sequence[Any],
        kwargs: Any,
    ) -> None:
        """Give a collective the place that its own stack or its tensor shows."""
        place = self._recorder.attribution.place
        surveyed = pending.place
        if surveyed is NOWHERE:
            pending.place, _ = place(frame, _inputs(decode, args, kwargs))
            return
        name, of_values = self._name_by_tensor(surveyed, frame, decode, args, kwargs)
        if name != surveyed.parameter or of_values != surveyed.of_values:
            # The sent tensor may be made from the tensor that has the name: only the stack has that.
            by_stack, _ = place(frame, _inputs(decode, args, kwargs))
            if by_stack.parameter != surveyed.parameter or by_stack.of_values != surveyed.of_values:
                region.moved, pending.place = True, by_stack

    def _name_by_tensor(
        self, like: Place, frame: Any, decode: MethodDecoder, args: Sequence[Any], kwargs: Any
    ) -> tuple[str | None, bool | None]:
        """Return the parameter of a collective that is issued where `like` was, and whether of its values."""
        attribution = self._recorder.attribution
        # If DTensor redistributes, the whole stack identifies the place.
        moved = None if like.placements_from is None else attribution.stack.redistributed(frame)
        sent = _inputs(decode, args, kwargs) if moved is None else (moved,)
        return attribution.name_by_tensor(sent, like)

    def ddp_outside(self, original: Callable[..., Any], args: Sequence[Any], kwargs: Any) -> Any:
        """Make a call of DDP's whose C++ issues collectives; of watched regions, note them.

        Within steps only its constructor: of all else the surveyed step that it repeats says what it is.
        """
        region, thread = self._recorder.region, get_ident()
        if region is None or not region.watched or self._mode.muted:
            return original(*args, **kwargs)
        if region.step is not None and getattr(original, "__name__", None) != "__init__":
            return self._drained(region, original, args, kwargs)
        if thread in self._inside or not self._is_training():
            return original(*args, **kwargs)
        self._inside.add(thread)
        try:
            return self._seen_by_mode(original, args, kwargs)
        finally:
            self._inside.discard(thread)

    def _drained(self, region: Region, original: Callable[..., Any], args: Sequence[Any], kwargs: Any) -> Any:
        """Make a call in a step that waits on the host for what its C++ issues; note for how long."""
        recorder = self._recorder
        # A device's streams wait there, not the host.
        if recorder.device is not None or get_ident() != self._thread or not self._is_training():
            return original(*args, **kwargs)
        begun_ns = self._now_ns()
        try:
            return original(*args, **kwargs)
        finally:
            if recorder.region is region:
                region.drains.append((begun_ns, self._now_ns()))

    def wait(self, original: Callable[..., Any], args: Sequence[Any], kwargs: Any) -> Any:
        """Wait for a functional collective's result; in a watched region, note for how long."""
        if not self._is_training():
            return original(*args, **kwargs)
        recorder = self._recorder
        region, flight, tensor = recorder.region, recorder.flight, waited_for(args, kwargs)
        strided = type(tensor) is torch.Tensor and tensor.layout is torch.strided
        noted = region is not None and region.watched and not self._mode.muted
        if noted and recorder.device is not None:
            original = timed_wait(self._waits, recorder.device, original)
        begun_ns = self._now_ns()
        flight.waits(tensor.data_ptr() if strided else id(tensor), begun_ns)
        try:
            result = original(*args, **kwargs)
        except BaseException:
            flight.wait_raised()
            raise
        ended_ns = self._now_ns()
        flight.waited(ended_ns)
        if noted and recorder.region is region:
            try:
                self._waits.for_result(tensor, begun_ns, ended_ns)
            except Exception as error:  # noqa: BLE001 - the seam
                self._on_failure(error)
        return result

    def reducer_ready(self, number: int) -> None:
        """Note that one of DDP's reducers will reduce in the backward to come."""
        region = self._recorder.region
        if region is not None and get_ident() == self._thread:
            region.reducers.append(number)

    def wants_drains(self) -> bool:
        """Whether the backward that begins now may end in waiting that no door shows."""
        region = self._recorder.region
        if not self.issues_unseen or region is None or not region.watched or region.step is None:
            return False
        return not self._mode.muted and self._is_training()

    def backward_from(self, roots: Any) -> None:
        """Note where the backward that begins now will get to, if a sequence may be known by it."""
        recorder = self._recorder
        region, templates = recorder.region, recorder.templates
        if region is None or region.step is None or templates is None or self._mode.muted:
            return
        if not self._is_training() or (
            region.watched and not region.graphs and not templates.told_by_graph()
        ):
            return
        try:
            graph = recorder.attribution.graph_of(roots)
            region.graphs.append(graph)
            templates.backward(graph)
        except Exception as error:  # noqa: BLE001 - the seam
            self._on_failure(error)

    def backward_ran(self) -> None:
        """Note that a backward is over."""
        if self._is_training():
            self._recorder.attribution.backward_ran()
            region = self._recorder.region
            if region is not None:
                region.backward_ran = True

    def backward_begins(self) -> None:
        """Note the beginning of a backward, on the thread that runs it."""
        try:
            if self._recorder.region is not None:
                self._waits.end_of_backward(at_root=True)
        except Exception as error:  # noqa: BLE001 - the seam
            self._on_failure(error)

    # -- regions -----------------------------------------------------------------------------------

    def keep(self, ended: Ended) -> bool | None:
        """Keep a watched region that has ended.

        Returns whether it repeats a surveyed step, whatever the sizes; None for the time between steps.
        """
        region, at_end = ended.region, ended.at_end
        template = None
        templates = self._recorder.templates
        if region.step is not None and templates is not None:
            template = templates.end(grown(region, at_end), region.reducers)
        if template is not None and len(region.collectives) != len(template.keys):
            # A call that raised was counted by its key, and left no record.
            template = None
        same = template is not None and _same_sizes(region, template)
        if template is None and region.step is not None and templates is not None:
            templates.learn(region, at_end)
        if region.step is None:
            _add_unseen(region, at_end, self._recorder.groups.size)
        if region.step is not None or region.collectives or region.elsewhere or region.waits:
            self.ended.append(replace(ended, template=template, same=same))
            self.keeping.add(region.start_ns, ended.end_ns, len(region.collectives) + 1)
        else:
            self.keeping.saw(region.start_ns, ended.end_ns)
        if region.step is None:
            return None
        return template is not None and template.surveyed

    def take(self) -> list[Ended]:
        """Return the regions kept, whose rows are made now; `written` is to follow."""
        # In this order: another thread that looks in between finds them twice, not missing.
        self._taken = ended = self.ended
        self.ended = []
        return ended

    def written(self) -> None:
        """Note that the rows of what was taken are written, or will never be."""
        self._taken = []

    def let_go(self, gone: Sequence[Ended]) -> None:
        """Keep these no longer: their rows are written, or will never be."""
        ids = set(map(id, gone))
        # In one go: another thread may look meanwhile.
        self.ended = [each for each in self.ended if id(each) not in ids]

    def unwritten(self) -> tuple[list[Ended], bool]:
        """Return the steps whose rows are not written yet, and whether they are made now; for any thread."""
        ended = self.ended
        taken = self._taken
        regions = taken if taken is ended else taken + ended
        return [each for each in regions if each.region.step is not None], bool(taken)

    def forget(self) -> None:
        """Let go of the process groups that calls were made on; none is noted any more."""
        self._calls.forget()
        self._taken = []


def _add_unseen(region: Region, at_end: Mapping[str, int | None], sizes: Callable[[str], int]) -> None:
    """Add what no door showed between steps, as validation under DDP: its groups' counts give the number."""
    recorded = growths((*region.collectives, *region.elsewhere))
    for group, growth in grown(region, at_end).items():
        missing = 0 if growth is None else growth - recorded.get(group, 0)
        for _ in range(min(missing, _MOST_UNSEEN)):
            size = sizes(group)
            unknown = Message("unknown", group, size)
            region.collectives.append(
                PendingCollective(unknown, NOWHERE, region.start_ns, growth=1, unseen=True)
            )


def _inputs(decode: MethodDecoder, args: Sequence[Any], kwargs: Any) -> Tensors:
    return tuple(tensor for call in decode(args, kwargs) or () for tensor in call.inputs)


def _same_sizes(region: Region, template: Template) -> bool:
    surveyed = [template.collectives[place].message for place in template.places]
    return all(
        seen.message.message_bytes == like.message_bytes and seen.message.wire_bytes == like.wire_bytes
        for seen, like in zip(region.collectives, surveyed, strict=True)
    )
