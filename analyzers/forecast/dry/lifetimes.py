"""When the storages of a dry run are born and freed, from the job's first step to the one that is recorded.

The memory that the allocator holds depends on the steps before: the first one runs without optimizer states.
Later these lie where its activations were. So the recorded steps are replayed from an empty device until each
follows upon a step like it. In the first replay those states are made after its backward.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from shardtoll.ledger.records.dry import DryStorage

BACKWARD = ("backward", "recompute")
_STEPS = 3
"""Steps that are replayed at least. With 12 models of `make gpu`, one step alone reserves less in ten, two in
one. A fourth and later ones reserve no more in any."""


@dataclass(frozen=True, slots=True)
class Happening:
    """A storage is born, or freed."""

    key: Hashable
    born: bool
    storage: DryStorage
    order: int
    """Place in the order of the recorded steps; -1 before them."""
    recorded: bool
    """Whether it is of the recorded steps, not of those that are thought to come before."""


@dataclass(frozen=True, slots=True)
class _Event:
    order: int
    born: bool
    place: int


def happenings(storages: Sequence[DryStorage]) -> Iterator[Happening]:
    """Yield what happens on the device, in its order: a model is made, steps run, the recorded ones last."""
    events = _events(storages)
    steps = 1 + max((row.step for row in storages if row.step is not None), default=0)
    replays = max(1, -(-_STEPS // steps))
    for place, row in enumerate(storages):
        if row.step is None and row.freed is None and row.category != "optimizer":
            yield Happening(("before", place), True, row, -1, replays == 1)
    states = [
        (place, row)
        for place, row in enumerate(storages)
        if row.step is None and row.freed is None and row.category == "optimizer"
    ]
    after_backward = max((event.order for event in events if _is_backwards(event, storages)), default=-1)
    left: dict[tuple[str, int], list[Hashable]] = defaultdict(list)
    for replay in range(replays):
        recorded = replay == replays - 1
        of_last, left = left, defaultdict(list)
        taken: dict[int, Hashable] = {}
        for place, row in enumerate(storages):
            if row.step is not None or row.freed is None:
                continue
            # The step before left it to this one, which frees it.
            held = of_last.get((row.stream, row.bytes))
            if held:
                taken[place] = held.pop()
            elif recorded:
                taken[place] = ("before", place)
                yield Happening(taken[place], True, row, -1, False)
        for (stream, size), unknown in of_last.items():
            # No row of the recording knows these: they were gone before it began.
            gone = DryStorage(None, 0, 0, None, None, size, "temporary", stream)
            yield from (Happening(each, False, gone, -1, False) for each in unknown)
        for event in events:
            row = storages[event.place]
            if states and event.order > after_backward:
                for place, state in states:
                    yield Happening(("before", place), True, state, event.order, recorded)
                states = []
            name: Hashable | None = taken.get(event.place) if row.step is None else (replay, event.place)
            if name is None:
                continue
            yield Happening(name, event.born, row, event.order, recorded)
            if event.born and row.freed is None:
                left[row.stream, row.bytes].append(name)
    for place, state in states:
        yield Happening(("before", place), True, state, -1, True)


def _is_backwards(event: _Event, storages: Sequence[DryStorage]) -> bool:
    row = storages[event.place]
    # The recorded steps count from 0.
    return event.born and row.step == 0 and row.phase in BACKWARD


def _events(storages: Sequence[DryStorage]) -> list[_Event]:
    """Return births and deaths in the recorded steps, in the order in which they happen.

    An operator has its place in the order once it has run. Storages freed at that place went before it
    allocated its result: the caller holds operands that go with it until after it.
    """
    last = max((row.step for row in storages if row.step is not None), default=0)
    span = 1 + max(
        (max(row.born, row.freed or 0) for row in storages if row.step is not None or row.freed is not None),
        default=0,
    )
    events: list[tuple[int, int, _Event]] = []
    for place, row in enumerate(storages):
        start = -1 if row.step is None else row.step * span + row.born
        if row.step is not None:
            events.append((start, 1, _Event(start, True, place)))
        if row.freed is not None:
            end = max((row.freed_step if row.freed_step is not None else last) * span + row.freed, start)
            # One that lives for no place at all comes before it goes.
            events.append((end, 2 if end == start else 0, _Event(end, False, place)))
    return [event for _, _, event in sorted(events, key=lambda each: (*each[:2], each[2].place))]
