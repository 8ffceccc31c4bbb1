"""Collectives that the framework inserted although a budget allows none: one overrun a cause."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from msgspec import Struct

from shardtoll.analyzers.budget.budget_rows import Floats, Mask, Rows
from shardtoll.analyzers.shared.layer_names import pattern as layer_pattern
from shardtoll.analyzers.shared.tally import codes, keep, text
from shardtoll.ledger.answers.budget import matches
from shardtoll.ledger.answers.overrun import Answer, Call, Overrun
from shardtoll.ledger.words.human import plural as times
from shardtoll.ledger.words.human import some_size

CAUSE = ("op", "group", "layer", "phase", "caused_by_op", "placements_from", "placements_to", "source")
"""Implicit collectives equal in these are one line; the layers of a model are one, as `blocks.*.mlp`."""


class Scope(Struct, frozen=True):
    """A part of the step without implicit collectives."""

    label: str | None
    """The section; None: the whole step."""
    rows: Mask
    nameless: Mask
    """The rows of no known module that may belong to it."""
    lacking: Floats
    """Per cell: the collectives that may belong to it, are counted and not on record."""


def whole(rows: Rows) -> Scope:
    """Return the whole step."""
    return Scope(
        None, np.ones(len(rows.frame), dtype=bool), rows.nowhere, rows.all_lacking().astype(np.float64)
    )


def implicit(rows: Rows, patterns: Sequence[str], scope: Scope) -> Iterator[Overrun]:
    """Yield the implicit collectives inside the modules of the patterns, each cause at its first pattern.

    If a collective has no module, its parameter's name decides.
    """
    for overrun in _found(rows, patterns, scope):
        yield replace(overrun, section=scope.label)


def _found(rows: Rows, patterns: Sequence[str], scope: Scope) -> Iterator[Overrun]:
    taken = np.zeros(len(rows.frame), dtype=bool)
    lacks = scope.lacking
    for pattern in patterns:
        inside = _inside(rows, pattern) & scope.rows & ~taken
        taken |= inside
        yield from _causes(rows, pattern, inside & rows.implicit)
        unknown = inside & rows.asked_unknown
        if unknown.any():
            yield _untold(rows, pattern, unknown, "it is not known whether the framework inserted")
        if lacks.any():
            cell = int(np.argmax(lacks))
            why = f"{times(int(lacks[cell]), 'collective')} of a step are counted and not on record"
            yield Overrun("no_implicit", pattern, "cannot be told", 0, None, why, *_at(rows, cell), None)
    homeless = ~taken & scope.nameless & (rows.implicit | rows.asked_unknown)
    if patterns and homeless.any():
        yield _untold(rows, ", ".join(patterns), homeless, "no module is known of")


def _inside(rows: Rows, pattern: str) -> Mask:
    if pattern == "*":
        return np.ones(len(rows.frame), dtype=bool)
    wanted = partial(matches, pattern)
    return rows.named("module", wanted) | rows.named("parameter", wanted)


def _causes(rows: Rows, pattern: str, inserted: Mask) -> Iterator[Overrun]:
    if not inserted.any():
        return
    frame = keep(rows.frame, inserted)
    frame = frame.assign(layer=layer_pattern(frame["module"]))
    code, first = codes(frame, CAUSE)
    of_row = np.full(len(rows.frame), -1, dtype=np.int64)
    of_row[inserted] = code
    for cause, row in enumerate(first.to_dict("records")):
        mine = of_row == cause
        per_cell = rows.per_cell(mine)
        cell = int(np.argmax(per_cell))
        calls, more = rows.calls(mine, cell, "wire_bytes")
        count = int(per_cell[cell])
        why = _words(calls[0], count, rows, mine, cell, text(row["layer"]))
        yield _overrun(rows, pattern, "over", cell, count, why, calls, more)


def _words(call: Call, count: int, rows: Rows, mine: Mask, cell: int, layer: str | None) -> str:
    """Return as `2 implicit all_gathers, 8.19 kB each rank sends: aten.mm.default, (..) -> (..)`."""
    sized = not rows.unknown(mine, "wire_bytes")[cell]
    sent = int(rows.per_cell(mine, rows.frame["wire_bytes"])[cell]) if sized else None
    moved = ""
    if call.placements_from or call.placements_to:
        moved = f" of {call.placements_from or 'unknown'} -> {call.placements_to or 'unknown'}"
    cause = call.caused_by_op or "an operator that is not known"
    where = "in the root module" if layer == "" else f"in {layer}" if layer else "in no known module"
    on = f"mesh dim {call.mesh_dim}" if call.mesh_dim else f"group {call.group}"
    return (
        f"{times(count, f'implicit {call.op}')}{moved} for {cause} {where} ({call.phase}) on {on}, "
        f"a rank sends {some_size(sent)}"
    )


def _untold(rows: Rows, pattern: str, mine: Mask, what: str) -> Overrun:
    per_cell = rows.per_cell(mine)
    cell = int(np.argmax(per_cell))
    calls, more = rows.calls(mine, cell, "wire_bytes")
    why = f"{what} {times(int(per_cell[cell]), 'collective')} of the step"
    return _overrun(rows, pattern, "cannot be told", cell, None, why, calls, more)


def _overrun(
    rows: Rows,
    pattern: str,
    answer: Answer,
    cell: int,
    calls_found: int | None,
    why: str,
    calls: tuple[Call, ...],
    more: int,
) -> Overrun:
    source = next((call.source for call in calls if call.source), None)
    return Overrun("no_implicit", pattern, answer, 0, calls_found, why, *_at(rows, cell), source, calls, more)


def _at(rows: Rows, cell: int) -> tuple[int, int]:
    return int(rows.step[cell]), int(rows.rank[cell])
