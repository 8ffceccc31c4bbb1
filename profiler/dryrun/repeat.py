"""Fills in the blocks that a dry run passed over: copies of one that ran, where two were proven to be alike.

In the order of a step, a block's forward or backward is a segment from its mark to the next block's. Of a
pass over the blocks 0, 1, 2, 3, last, the segments of 1 and 2 are compared. If they agree in every operator,
collective, wait and storage, but for names and a shift of the order, copies of 2 stand for those that did not
run. Forward they are put between 2 and 3, backward between 3 and 2; what refers to the segment before or
after keeps doing so.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from shardtoll.ledger.records.dry import DryOp, DryStorage, DryWait
from shardtoll.ledger.records.record import Collective
from shardtoll.profiler.dryrun.blocks import Mark, Series

_OP: Final = (
    *("op", "kind", "phase", "flops", "read_bytes", "written_bytes", "dtype", "stream", "shapes", "fused"),
    *("batch", "m", "n", "k", "groups", "causal", "backward"),
)
_COLLECTIVE: Final = (
    "op",
    "group",
    "dtype",
    "message_bytes",
    "phase",
    "stream_name",
    "implicit",
    "caused_by_op",
)


class NotAlike(Exception):
    """Blocks that were taken to be alike are not."""


@dataclass(slots=True)
class StepRows:
    """What was recorded of one step."""

    ops: list[DryOp]
    waits: list[DryWait]
    collectives: list[Collective]


@dataclass(frozen=True, slots=True)
class Insertion:
    """Copies of one segment of a step, put where the next begins (forward) or before itself (backward)."""

    series: Series
    number: int
    """Of the pass: forward and backward of one micro-batch have the same."""
    backward: bool
    start: int
    """Where the segment that is copied begins."""
    length: int
    at: int
    """Where the copies are put, in the order as recorded."""
    copies: int

    def holds(self, order: int) -> bool:
        """Whether the place lies in the segment that is copied."""
        return self.start <= order < self.start + self.length


def insertions(marks: Sequence[Mark], series: Sequence[Series]) -> list[Insertion]:
    """Return where blocks are to be filled in; NotAlike if a pass did not go as it must."""
    made = []
    for one in series:
        mine = [mark.backward for mark in marks if mark.series == one.number]
        if mine.count(False) != mine.count(True) or not mine:
            raise NotAlike("layers ran forward and backward a different number of times")
        for backward in (False, True):
            mine = [mark for mark in marks if mark.series == one.number and mark.backward == backward]
            places = sorted(one.blocks or one.names, reverse=backward)
            if len(mine) % len(places):
                raise NotAlike("a pass over the layers is not whole")
            for number in range(len(mine) // len(places)):
                taken = mine[number * len(places) : (number + 1) * len(places)]
                if [mark.block for mark in taken] != places:
                    raise NotAlike("layers do not run one after another")
                begins = {mark.block: mark.order for mark in taken}
                copies = one.count - len(places)
                if backward:
                    lengths = begins[1] - begins[2], begins[0] - begins[1]
                    made.append(Insertion(one, number, True, begins[2], lengths[0], begins[2], copies))
                else:
                    lengths = begins[3] - begins[2], begins[2] - begins[1]
                    made.append(Insertion(one, number, False, begins[2], lengths[0], begins[3], copies))
                if lengths[0] != lengths[1]:
                    raise NotAlike(f"layers 1 and 2 take {lengths[1]} and {lengths[0]} steps of the order")
    return sorted(made, key=lambda each: each.at)


class Shifts:
    """Places in the order before and after copies were put in."""

    def __init__(self, made: Sequence[Insertion]) -> None:
        self._at = [each.at for each in made]
        self._sums = [0]
        for each in made:
            self._sums.append(self._sums[-1] + each.length * each.copies)

    def __call__(self, order: int) -> int:
        """Return the new place of what was recorded at this one."""
        return order + self._sums[bisect_right(self._at, order)]

    def before(self, insertion: Insertion) -> int:
        """Return where the first of the copies begins."""
        return self(insertion.at) - insertion.length * insertion.copies


def check_alike(rows: StepRows, storages: Sequence[DryStorage], made: Sequence[Insertion]) -> None:
    """Raise NotAlike unless each segment that is to be copied equals its neighbour."""
    for each in made:
        # The neighbour is block 1: before block 2 forward, after it backward.
        other = each.start + (each.length if each.backward else -each.length)
        if _told(rows, storages, each.start, each.length) != _told(rows, storages, other, each.length):
            raise NotAlike("two layers that look the same did different work")


def _told(rows: StepRows, storages: Sequence[DryStorage], start: int, length: int) -> list[Any]:
    within = range(start, start + length)
    told: list[Any] = [
        (op.order - start, *(getattr(op, name) for name in _OP)) for op in rows.ops if op.order in within
    ]
    told += [
        (row.order - start, *(getattr(row, name) for name in _COLLECTIVE))
        for row in rows.collectives
        if row.order is not None and row.order in within
    ]
    told += [
        (wait.order - start, wait.stream, wait.for_stream, wait.phase)
        for wait in rows.waits
        if wait.order in within
    ]
    told += sorted((row.born - start, row.bytes, row.stream) for row in storages if row.born in within)
    return told


def filled(
    rows: StepRows, storages: Sequence[DryStorage], made: Sequence[Insertion], step: int
) -> tuple[StepRows, list[DryStorage]]:
    """Return the step with all blocks. `storages`: those of every step; places in others than `step` stay."""
    shift = Shifts(made)
    ops = [replace(op, order=shift(op.order)) for op in rows.ops]
    collectives = [replace(row, order=shift(row.order or 0)) for row in rows.collectives]
    refer = _Referring(made, shift)
    waits = [
        replace(
            wait,
            order=shift(wait.order),
            for_order=refer(wait.order, wait.for_order),
            collective=None if wait.collective is None else refer(wait.order, wait.collective),
        )
        for wait in rows.waits
    ]
    for each in made:
        for copy, by, named in _copies(each, shift):
            ops += [
                replace(op, order=op.order + by, block=copy, **named(op))
                for op in rows.ops
                if each.holds(op.order)
            ]
            collectives += [
                replace(row, order=row.order + by, **named(row))
                for row in rows.collectives
                if row.order is not None and each.holds(row.order)
            ]
            waits += [
                replace(
                    wait,
                    order=wait.order + by,
                    for_order=_copied(each, wait.for_order, by, shift),
                    collective=None if wait.collective is None else _copied(each, wait.collective, by, shift),
                    block=copy,
                )
                for wait in rows.waits
                if each.holds(wait.order)
            ]
    ops.sort(key=lambda op: op.order)
    waits.sort(key=lambda wait: wait.order)
    collectives.sort(key=lambda row: row.order or 0)
    kept = [_moved(row, made, shift, step) for row in storages]
    kept += [
        copied for row in storages if row.step == step for copied in _copied_storages(row, made, shift, step)
    ]
    return StepRows(ops, waits, _numbered(collectives)), kept


def _copies(each: Insertion, shift: Shifts) -> Iterator[tuple[int, int, Callable[[Any], dict[str, Any]]]]:
    """Yield for each copy its block, how far rows of the segment move, and their new names."""
    first = shift.before(each) - each.start
    blocks = range(4, each.series.count - 1)
    for place in range(each.copies):
        block = blocks[each.copies - 1 - place] if each.backward else blocks[place]
        yield block, first + place * each.length, _renamer(each.series, block)


def _renamer(series: Series, block: int) -> Callable[[Any], dict[str, Any]]:
    old = series.names.get(2)

    def named(row: Any) -> dict[str, Any]:
        if old is None:
            return {}
        stem = old.rpartition(".")[0]
        new = f"{stem}.{block}" if stem else str(block)
        changed = {}
        for name in ("module", "parameter"):
            value = getattr(row, name)
            if value is not None and (value == old or value.startswith(f"{old}.")):
                changed[name] = value.replace(f"{old}.", f"{new}.") if value != old else new
        return changed

    return named


def _copied(each: Insertion, order: int, by: int, shift: Shifts) -> int:
    """Return what a row of a copy refers to: its segment and the one before move along, all else stays."""
    return order + by if each.start - each.length <= order <= each.start + each.length else shift(order)


class _Referring:
    """Where recorded rows refer to once copies stand between them and what they referred to."""

    def __init__(self, made: Sequence[Insertion], shift: Shifts) -> None:
        self._made = made
        self._shift = shift

    def __call__(self, order: int, earlier: int) -> int:
        for each in self._made:
            if each.at <= order < each.at + each.length and each.at - each.length <= earlier < each.at:
                return self._shift(each.at) + earlier - each.at
        return self._shift(earlier)


def _moved(row: DryStorage, made: Sequence[Insertion], shift: Shifts, step: int) -> DryStorage:
    born = shift(row.born) if row.step == step else row.born
    if row.freed is None or row.freed_step != step:
        return replace(row, born=born)
    freed = shift(row.freed)
    if row.step == step:
        for each in made:
            if each.at - each.length <= row.born < each.at <= row.freed < each.at + each.length:
                # Freed by the next block, which is a copy now.
                freed = shift.before(each) + row.freed - each.at
        pair = _pair(row, made)
        if pair is not None:
            forward, back, apart = pair
            if apart == 1 and forward.holds(row.born):
                # The block behind this one is the first copy forward, which is the last one backward.
                freed = shift(back.at) - back.length + row.freed - (back.start - back.length)
    return replace(row, born=born, freed=freed)


def _pair(row: DryStorage, made: Sequence[Insertion]) -> tuple[Insertion, Insertion, int] | None:
    """Return the passes, forward and backward, between which a storage of block 2 lives; None if it does not.

    The number says how many blocks behind its own the one is whose backward frees it.
    """
    assert row.freed is not None
    for forward in made:
        if forward.backward or not forward.holds(row.born):
            continue
        for back in made:
            if back.backward and back.series is forward.series and back.number == forward.number:
                # Backward runs 3, 2, 1: the segment before that of block 2 is block 3's.
                apart = -((row.freed - back.start) // back.length)
                if -1 <= apart <= 1:
                    return forward, back, apart
    return None


def _copied_storages(
    row: DryStorage, made: Sequence[Insertion], shift: Shifts, step: int
) -> Iterator[DryStorage]:
    """Yield the copies of a storage that was born in a segment that is copied."""
    for each in made:
        if not each.holds(row.born):
            continue
        for place, (block, by, named) in enumerate(_copies(each, shift)):
            freed = row.freed
            if freed is not None and row.freed_step == step:
                freed = _freed(row, freed, each, place, by, made, shift)
            yield replace(row, born=row.born + by, freed=freed, block=block, **named(row))


def _freed(
    row: DryStorage,
    freed: int,
    each: Insertion,
    place: int,
    by: int,
    made: Sequence[Insertion],
    shift: Shifts,
) -> int:
    if each.start <= freed < each.start + 2 * each.length:
        # By its own block or the one that runs next, a copy too; after the last copy the recorded one comes.
        return freed + by
    pair = None if each.backward else _pair(row, made)
    if pair is None:
        return shift(freed)
    _, back, apart = pair
    # Forward copy number `place` runs backward as number copies - 1 - place; the block behind it before that.
    turn = back.copies - 1 - place - apart
    offset = freed - (back.start - apart * back.length)
    if turn < 0:
        return shift(back.start - back.length + offset)
    return shift.before(back) + turn * back.length + offset


def _numbered(rows: Sequence[Collective]) -> list[Collective]:
    """Return the rows with sequence numbers that count on, group by group, from the first one's."""
    numbers: dict[str, int] = {}
    made = []
    for row in rows:
        if row.seq is None:
            made.append(row)
            continue
        numbers[row.group] = numbers.get(row.group, row.seq - 1) + 1
        made.append(replace(row, seq=numbers[row.group]))
    return made
