"""The watching level: what each collective costs in every step, and nothing for any other operator.

No dispatch mode is active. Each collective that Python issues is decoded, numbered and timed where it is
called, and takes its cause from the surveyed collective whose place in the sequence it has; one that has left
every known sequence is attributed by its own stack. Collectives that C++ issues are taken from the surveyed
step where the groups' own counts prove that as many were issued.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import get_ident
from typing import Any, Final, Protocol

from shardtoll.profiler.live.call import UNDECODED, Call, Tensors
from shardtoll.profiler.live.calls import Calls, Said
from shardtoll.profiler.live.callsite import CallSites, Site
from shardtoll.profiler.live.device_calls import timed_call, timed_wait, waited_for
from shardtoll.profiler.live.methods import MethodDecoder
from shardtoll.profiler.live.pending import NOWHERE, PendingCollective, Place, Region, growths
from shardtoll.profiler.live.recorder import Recorder
from shardtoll.profiler.live.sequence import Template, grown, key_of
from shardtoll.profiler.live.threads import CallMode
from shardtoll.profiler.live.training import TrainingThread

_FLUSH_NS: Final = 250_000_000
_FLUSH_STEPS: Final = 64
_FLUSH_ROWS: Final = 20_000
_MOST_UNSEEN: Final = 1_000
"""Rows at most for what one group was counted to issue between two steps and was not seen to."""
_EAGER: Final = 4
"""So many times at first rows are made at once: a job that dies young leaves what it did."""


@dataclass(frozen=True, slots=True)
class Watched:
    """A region that has ended, its rows still to be made."""

    region: Region
    end_ns: int
    at_end: Mapping[str, int | None]
    template: Template | None
    """The surveyed step it repeats."""
    same: bool = False
    """Whether it repeats that in the sizes too."""


class Mutable(Protocol):
    """What says whether anything is to be recorded now."""

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
        self._calls = Calls(recorder)
        self._sites = CallSites(recorder.attribution.stack)
        self.ended: list[Watched] = []
        """Regions since the last flush."""
        self.issues_unseen = False
        """Whether C++ has issued collectives in some surveyed step."""
        self._rows = 0
        self._made = 0
        self._since_ns = 0

    # -- calls -------------------------------------------------------------------------------------

    def collective(
        self, original: Callable[..., Any], decode: MethodDecoder, args: Sequence[Any], kwargs: Any
    ) -> Any:
        """Make a collective's call; in a watched region of the training thread, note it."""
        if self._mode.muted:
            return original(*args, **kwargs)
        thread = get_ident()
        if not (thread == self._thread or self._is_training()):
            return self._elsewhere(original, args, kwargs)
        recorder = self._recorder
        region = recorder.region
        if thread in self._inside or region is None:
            return original(*args, **kwargs)
        self._inside.add(thread)
        try:
            if region.watched:
                return self._noted(original, decode, args, kwargs, region)
            try:
                recorder.site = self._site(sys._getframe(2), region)
            except Exception as error:  # noqa: BLE001 - the seam: a failure of ours must not kill training
                self._on_failure(error)
            work = original(*args, **kwargs)
            if region.collectives:
                recorder.works[id(work)] = len(region.collectives) - 1
            return work
        finally:
            self._inside.discard(thread)
            recorder.site = None

    def _noted(
        self,
        original: Callable[..., Any],
        decode: MethodDecoder,
        args: Sequence[Any],
        kwargs: Any,
        region: Region,
    ) -> Any:
        now_ns = self._now_ns
        entered_ns = begun_ns = now_ns()
        issued: list[tuple[PendingCollective, Said]] = []
        said: tuple[Said, ...] | None = ()
        try:
            try:
                said = self._calls.said(decode, args, kwargs)
            except UNDECODED:
                said = ()
            if said is not None:
                frame = sys._getframe(3)
                templates = self._recorder.templates
                expected = None if templates is None or region.step is None else templates.expected()
                site = self._sites.site(frame, region.node_base, expected, region.backward_ran)
                for each in said:
                    pending = each.pending()
                    self._place(pending, region, site, frame, decode, args, kwargs)
                    issued.append((pending, each))
                begun_ns = now_ns()
                for pending, _ in issued:
                    pending.issue_ns = begun_ns
        except Exception as error:  # noqa: BLE001 - the seam: a failure of ours must not kill training
            self._on_failure(error)
            issued, said = [], ()
        if said is None:
            return self._seen_by_mode(original, args, kwargs)
        recorder = self._recorder
        if recorder.device is None:
            result = original(*args, **kwargs)
        else:
            result = timed_call(recorder.device, original, args, kwargs, issued)
        if not issued or recorder.region is not region:
            return result
        try:
            returned_ns = now_ns()
            if len(issued) == 1:
                recorder.issued_alone(*issued[0], result)
            else:
                recorder.issued([(pending, each.call) for pending, each in issued], result)
            index = len(region.collectives) - 1
            recorder.works[id(result)] = index
            if issued[0][1].call.blocking:
                recorder.waited(index, begun_ns, returned_ns)
            region.capture += ((entered_ns, begun_ns), (returned_ns, now_ns()))
            if region.step is None and len(region.collectives) >= _FLUSH_ROWS:
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
            pending = self._calls.bare(call).pending()
            self._place(pending, region, site, frame, lambda *_: (call,), (), {})
            pending.issue_ns = self._now_ns()
            return pending

        with CallMode(issue, lambda calls: self._recorder.issued(calls, ()), self._on_failure):
            return original(*args, **kwargs)

    def _place(
        self,
        pending: PendingCollective,
        region: Region,
        site: Site,
        frame: Any,
        decode: MethodDecoder,
        args: Sequence[Any],
        kwargs: Any,
    ) -> None:
        """Give a collective its place: that of the surveyed one it repeats, else what its own stack says."""
        recorder = self._recorder
        if recorder.templates is not None and region.step is not None:
            pending.key = key = key_of(pending, region, site)
            like = recorder.templates.follow(key)
            if like is not None and not like.place.by_tensor:
                pending.place = like.place
            elif like is not None:
                known = like.place
                name, of_values = self._name_by_tensor(known, frame, decode, args, kwargs)
                pending.place = known
                if name != known.parameter or of_values != known.of_values:
                    # What is sent may be made from the tensor that has the name: only the stack has that.
                    own, _ = recorder.attribution.place(frame, _inputs(decode, args, kwargs))
                    if own.parameter != known.parameter or own.of_values != known.of_values:
                        region.moved, pending.place = True, own
        if pending.place is NOWHERE:
            pending.place, _ = recorder.attribution.place(frame, _inputs(decode, args, kwargs))
        if site[2] is not None and pending.place.waits_in_cpp:
            recorder.watch_drain(pending)

    def _name_by_tensor(
        self, like: Place, frame: Any, decode: MethodDecoder, args: Sequence[Any], kwargs: Any
    ) -> tuple[str | None, bool | None]:
        """Return the parameter of a collective that is issued where `like` was, and whether of its values."""
        attribution = self._recorder.attribution
        # Where DTensor redistributes, it is the whole stack's doing that the place is the same.
        moved = None if like.placements_from is None else attribution.stack.redistributed(frame)
        sent = _inputs(decode, args, kwargs) if moved is None else (moved,)
        return attribution.name_by_tensor(sent, like)

    def wait(self, original: Callable[..., Any], args: Sequence[Any], kwargs: Any) -> Any:
        """Wait for a functional collective's result; in a watched region, note for how long."""
        recorder = self._recorder
        region = recorder.region
        if region is None or not region.watched or self._mode.muted or not self._is_training():
            return original(*args, **kwargs)
        if recorder.device is not None:
            original = timed_wait(recorder, recorder.device, original)
        begun_ns = self._now_ns()
        result = original(*args, **kwargs)
        if recorder.region is region:
            try:
                recorder.waited_for(waited_for(args, kwargs), begun_ns, self._now_ns())
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
        """Note where the backward that begins now will get to, where a sequence may be known by it."""
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
                self._recorder.watch_drain(at_root=True)
        except Exception as error:  # noqa: BLE001 - the seam
            self._on_failure(error)

    # -- regions -----------------------------------------------------------------------------------

    def keep(self, region: Region, end_ns: int, at_end: Mapping[str, int | None]) -> bool | None:
        """Keep a watched region that has ended.

        Returns whether it repeats a surveyed step, whatever the sizes; None for the time between steps.
        """
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
            if not self.ended:
                self._since_ns = region.start_ns
            self.ended.append(Watched(region, end_ns, at_end, template, same))
            self._rows += len(region.collectives) + 1
        if region.step is None:
            return None
        return template is not None and template.surveyed

    def due(self, now_ns: int) -> bool:
        """Whether the regions kept are old or many enough to have their rows made."""
        if not self.ended:
            return False
        many = len(self.ended) >= _FLUSH_STEPS or self._rows >= _FLUSH_ROWS
        return self._made < _EAGER or many or now_ns - self._since_ns >= _FLUSH_NS

    def take(self) -> list[Watched]:
        """Return the regions kept and forget them."""
        ended, self.ended, self._rows = self.ended, [], 0
        self._made += bool(ended)
        return ended

    def forget(self) -> None:
        """Let go of the process groups that calls were made on; none is noted any more."""
        self._calls.forget()


def _add_unseen(region: Region, at_end: Mapping[str, int | None], sizes: Callable[[str], int]) -> None:
    """Add what no door showed between steps, as validation under DDP: its groups' counts tell how much."""
    recorded = growths((*region.collectives, *region.elsewhere))
    for group, growth in grown(region, at_end).items():
        missing = 0 if growth is None else growth - recorded.get(group, 0)
        for _ in range(min(missing, _MOST_UNSEEN)):
            size = sizes(group)
            unknown = PendingCollective("unknown", group, size, None, None, None, None, None, NOWHERE, 0)
            unknown.issue_ns, unknown.growth, unknown.unseen = region.start_ns, 1, True
            region.collectives.append(unknown)


def _inputs(decode: MethodDecoder, args: Sequence[Any], kwargs: Any) -> Tensors:
    return tuple(tensor for call in decode(args, kwargs) or () for tensor in call.inputs)


def _same_sizes(region: Region, template: Template) -> bool:
    known = [template.collectives[at] for at in template.places]
    return all(
        seen.message_bytes == like.message_bytes and seen.wire_bytes == like.wire_bytes
        for seen, like in zip(region.collectives, known, strict=True)
    )


def completed(region: Region, template: Template, *, same: bool) -> list[PendingCollective]:
    """Return the region's collectives and those C++ issued in between, as the surveyed step has them.

    `same`: all others have the sizes they had in that step. If not, the size of what C++ issued is unknown,
    unless it is one that never changes.
    """
    if template.all_seen:
        return region.collectives
    found: list[PendingCollective] = []
    seen = dict(zip(template.places, region.collectives, strict=True))
    issue_ns = region.start_ns
    for index, known in enumerate(template.collectives):
        pending = seen.get(index)
        if pending is None:
            number, start = template.numbers[index], region.sequence_at_start.get(known.group, 0)
            seq = None if number is None or start is None else start + number
            pending = replace(known, issue_ns=issue_ns, seq=seq, tickets=None, outcome=None, unseen=True)
            if not (same or template.unseen_sizes_stay):
                pending.message_bytes = pending.wire_bytes = None
        issue_ns = pending.issue_ns
        found.append(pending)
    return found
