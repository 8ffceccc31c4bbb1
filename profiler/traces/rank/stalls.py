"""Records of lost time: idle by reason, exposed copies, recomputation, work that looks like communication."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from shardtoll.ledger.records.record import PHASES
from shardtoll.ledger.records.stall import GRAPH_CAPTURE, IDLE_KINDS, Stall
from shardtoll.profiler.traces.collectives.stacks import nests
from shardtoll.profiler.traces.file.trace_columns import I64
from shardtoll.profiler.traces.rank.causes import Stacks, Work
from shardtoll.profiler.traces.rank.facts import Facts
from shardtoll.profiler.traces.rank.host_code import Code, HostCode
from shardtoll.profiler.traces.rank.idle import BUBBLE, HOST, LAUNCH, Pieces, Reasons, disjoint
from shardtoll.profiler.traces.rank.phases import RECOMPUTE, Phases
from shardtoll.profiler.traces.rank.split import COMPUTE, IDLE, LOOKALIKE, MOVE

_NO_STEP_MARK: Final = "ProfilerStep"
_LOOKED_AT_NS: Final = 1_000_000
"""Idle time of a group from which the host's code is looked up."""


def stalls(
    facts: Facts,
    phases: Phases,
    stacks: Stacks,
    why: Reasons,
    parts: Pieces,
    work: Work,
    rank: int,
) -> list[Stall]:
    """Return where the rank lost time, by step, kind, name and place.

    The idle kinds of a step add up to its idle time; copies and lookalikes to its exposed copies and
    unattributed time.
    """
    made = _idle(facts, phases, stacks, why, parts, rank)
    for layer, kind in ((MOVE, "copy"), (LOOKALIKE, "unclassified")):
        made += _device(facts, work, np.flatnonzero(facts.layer == layer), layer, kind, rank)
    again = np.flatnonzero((facts.layer == COMPUTE) & (work.phase == RECOMPUTE))
    made += _device(facts, work, again, COMPUTE, "recompute", rank)
    return made


def _number(facts: Facts, place: int) -> int | None:
    return None if place == facts.steps.none else facts.steps.numbers[place]


def _idle(
    facts: Facts, phases: Phases, stacks: Stacks, why: Reasons, parts: Pieces, rank: int
) -> list[Stall]:
    rows = np.flatnonzero((parts.layer >= IDLE) & (parts.owner < facts.steps.none))
    start, length = parts.edges_ns[rows], np.diff(parts.edges_ns)[rows]
    kind, owner, reason = parts.layer[rows], parts.owner[rows], parts.reason[rows]
    del rows
    made = [
        row
        for each in (LAUNCH, HOST)
        for row in _host(facts, phases, start, length, owner, kind == each, each, rank)
    ]
    explained = np.flatnonzero((kind != HOST) & (kind != LAUNCH))
    used, place = np.unique(reason[explained], return_inverse=True)
    phase = phases.at(why.thread[used], why.start_ns[used])
    called = stacks.called_from(why.thread[used].tolist(), why.start_ns[used].tolist())
    sites: dict[tuple[int, int, int, int, str | None, str | None], list[int]] = {}
    seen = set()
    for nth, piece in enumerate(explained.tolist()):
        row = int(place[nth])
        number = int(used[row])
        module, source = called[row]
        name = -1 if kind[piece] == BUBBLE else int(why.name[number])
        key = (int(owner[piece]), int(kind[piece]), name, int(phase[row]), module, source)
        sums = sites.setdefault(key, [0, 0, 0])
        sums[2] += int(length[piece])
        if (number, key) not in seen:
            seen.add((number, key))
            sums[0] += 1
            sums[1] += int(why.lasted_ns[number])
    for (step, number, name, nth, module, source), (count, total_ns, lost_ns) in sites.items():
        text = facts.trace.names[name] if name >= 0 else "pipeline schedule"
        made.append(
            Stall(
                step=_number(facts, step),
                rank=rank,
                kind=IDLE_KINDS[number - IDLE],
                name=text,
                phase=PHASES[nth],
                count=count,
                total_ns=total_ns,
                lost_ns=lost_ns,
                module=module,
                source=source,
            )
        )
    return made


def _host(
    facts: Facts,
    phases: Phases,
    start_ns: I64,
    length_ns: I64,
    owner: npt.NDArray[np.integer],
    chosen: npt.NDArray[np.bool_],
    kind: int,
    rank: int,
) -> list[Stall]:
    """Idle because of late launches, or for no reason on record.

    By phase and by the outermost annotation of the training thread.
    """
    rows = np.flatnonzero(chosen)
    if not len(rows):
        return []
    lost_ns = length_ns[rows]
    at_ns = start_ns[rows] + lost_ns // 2
    trace, thread = facts.trace, np.full(len(rows), phases.main, np.int32)
    phase = phases.at(thread, at_ns)
    names = ~np.array([name.startswith(_NO_STEP_MARK) for name in trace.names], np.bool_)
    notes = trace.annotations
    nest = nests(notes, names[notes.name] & (notes.thread == phases.main)) if len(notes.name) else {}
    around = nest[phases.main].outermost(at_ns) if phases.main in nest else np.full(len(rows), -1)
    name = np.where(around >= 0, notes.name[around] if len(notes.name) else -1, -1)
    keys = (owner[rows], name, phase)
    groups = _grouped(keys, lost_ns)
    looks = kind == HOST and any(lost >= _LOOKED_AT_NS for _, _, lost in groups)
    code = HostCode(trace, phases.main) if looks else None
    members = _members(keys) if looks else []
    made = []
    for nth, ((step, text, phase_number), count, lost) in enumerate(groups):
        did = Code()
        if code is not None and lost >= _LOOKED_AT_NS:
            mine = members[nth]
            did = code.during(start_ns[rows[mine]], lost_ns[mine], _bounds_ns(facts, step))
        note = _annotation(trace.names[text] if text >= 0 else "")
        named_ns = min(lost, round(did.share * lost))
        rest = (note, 0 if named_ns else count, lost - named_ns, Code())
        made += [
            Stall(
                *(_number(facts, step), rank, IDLE_KINDS[kind - IDLE], name, PHASES[phase_number]),
                *(number, part_ns, part_ns),
                source=what.source,
                library=what.library,
            )
            for name, number, part_ns, what in ((did.name or note, count, named_ns, did), rest)
            if part_ns
        ]
    return made


def _bounds_ns(facts: Facts, step: int) -> tuple[int, int]:
    """Return begin and end of a step, of all its windows."""
    windows = facts.steps.place == step
    return int(facts.steps.start_ns[windows].min()), int(facts.steps.end_ns[windows].max())


def _annotation(text: str) -> str:
    """Return an annotation's text, never what stands for a graph's capture: users write what they like."""
    return f"{text} (annotation)" if text == GRAPH_CAPTURE else text


def _grouped(keys: Sequence[npt.NDArray[np.integer]], values: I64) -> list[tuple[tuple[int, ...], int, int]]:
    """Return (key, rows, sum of values) for each distinct key."""
    if not len(values):
        return []
    order, heads = _sorted(keys)
    first = order[heads]
    sums = np.add.reduceat(values[order], heads).tolist()
    counts = np.diff(np.append(heads, len(values))).tolist()
    firsts = zip(*(key[first].tolist() for key in keys), strict=True)
    return [(key, count, total) for key, count, total in zip(firsts, counts, sums, strict=True)]


def _members(keys: Sequence[npt.NDArray[np.integer]]) -> list[I64]:
    """Return the rows of each distinct key, in the order of `_grouped`."""
    if not len(keys[0]):
        return []
    order, heads = _sorted(keys)
    return np.split(order, heads[1:])


def _sorted(keys: Sequence[npt.NDArray[np.integer]]) -> tuple[I64, I64]:
    """Return the rows by key, and where in them each distinct key begins."""
    # One number per row instead of a table of keys: rows come by the hundred thousand.
    code = np.zeros(len(keys[0]), np.int64)
    for key in keys:
        low = int(key.min())
        code *= int(key.max()) - low + 1
        code += key
        code -= low
    order = np.argsort(code, kind="stable")
    code = code[order]
    return order, np.flatnonzero(np.concatenate(([True], code[1:] != code[:-1])))


def _device(
    facts: Facts,
    work: Work,
    rows: I64,
    layer: int,
    kind: str,
    rank: int,
) -> list[Stall]:
    if not len(rows):
        return []
    device = facts.trace.device
    lost = lost_ns(facts, rows, layer)
    total = device.end_ns[rows] - device.start_ns[rows]
    phases, modules = work.phase[rows], work.module[rows]
    # Recomputed work is grouped by module, other lost time by its own name too.
    names = np.full(len(rows), -1) if kind == "recompute" else device.name[rows]
    keys = (facts.owner[rows], names, phases, modules)
    losses = _grouped(keys, lost)
    totals = _grouped(keys, total)
    moved = _grouped(keys, np.maximum(device.bytes[rows], 0)) if kind == "copy" else losses
    unknown = _grouped(keys, (device.bytes[rows] < 0).astype(np.int64))
    made = []
    for ((step, name, phase, module), count, gone), (_, _, total_ns), (_, _, size), (_, _, gaps) in zip(
        losses, totals, moved, unknown, strict=True
    ):
        made.append(
            Stall(
                step=_number(facts, step),
                rank=rank,
                kind=kind,
                name=facts.trace.names[name] if name >= 0 else "",
                phase=PHASES[phase],
                count=count,
                total_ns=total_ns,
                lost_ns=gone,
                module=work.name_of(module),
                bytes=size if kind == "copy" and not gaps else None,
            )
        )
    return made


def lost_ns(facts: Facts, rows: I64, layer: int) -> I64:
    """Return, for each row of device work, the time of its step's `layer` that it accounts for.

    If several run at once the one that started first has the instant.
    """
    device, split = facts.trace.device, facts.split
    lost = np.zeros(len(rows), np.int64)
    lengths = np.diff(split.edges_ns)
    owner = facts.owner[rows]
    for step in np.unique(owner).tolist():
        here = np.flatnonzero(owner == step)
        start, end, of = disjoint(device.start_ns[rows[here]], device.end_ns[rows[here]], here)
        if not len(start):
            continue
        low, high = np.searchsorted(split.edges_ns, [start[0], end[-1]])
        mine = (split.layer[low:high] == layer) & (split.owner[low:high] == step)
        sums = np.concatenate(([0], np.cumsum(np.where(mine, lengths[low:high], 0))))
        edges = split.edges_ns[low : high + 1]
        lost[of] = sums[np.searchsorted(edges, end)] - sums[np.searchsorted(edges, start)]
    return lost
