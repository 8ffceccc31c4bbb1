"""Rows that a strategy must have, in closed form, and the comparison of a run with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from shardtoll.ledger.records.volume import wire_bytes
from tests.live.launch import ROOT

PARTS = ("compute_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns", "unattributed_ns")
UNTRUSTED = {"unmatched-collectives", "incomplete-input"}
"""Findings that say the records are not complete: none may appear."""


@dataclass(frozen=True, slots=True)
class Want:
    """One collective on one rank, as a row must describe it."""

    op: str
    phase: str
    message_bytes: int
    cause: str
    source: str | None
    module: str | None = None
    parameter: str | None = None
    dtype: str | None = "float32"
    dim: str | None = None
    ranks: tuple[int, ...] | None = None
    """Global ranks of its group; None: all."""
    implicit: bool = False
    root: int | None = None


@cache
def at(path: str, text: str, function: str) -> str:
    """Return `path:line (function)` of the one line of a file that holds the text."""
    lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
    (number,) = [number for number, line in enumerate(lines, start=1) if text in line]
    return f"{path}:{number} ({function})"


def _ranks_of(row: dict[str, Any], groups: Sequence[tuple[str, list[int]]]) -> tuple[int, ...]:
    fits = [
        tuple(ranks)
        for name, ranks in groups
        if name == row["group"] and row["rank"] in ranks and len(ranks) == row["group_size"]
    ]
    assert len(set(fits)) == 1, (row, groups)
    return fits[0]


def _told(row: dict[str, Any], groups: Sequence[tuple[str, list[int]]]) -> Want:
    return Want(
        op=row["op"],
        phase=row["phase"],
        message_bytes=row["message_bytes"],
        cause=row["caused_by_op"],
        source=row["source"],
        module=row["module"],
        parameter=row["parameter"],
        dtype=row["dtype"],
        dim=row["mesh_dim"],
        ranks=_ranks_of(row, groups),
        implicit=row["implicit"],
        root=row["root"],
    )


def _key(want: Want) -> str:
    return repr(want)


def check_accounting(found: dict[str, Any], *, may_be_gone: bool = False) -> None:
    """Conservation, completeness, shares that add up: true of every step of every rank."""
    assert found["steps"]
    for step in found["steps"]:
        assert sum(step[part] for part in PARTS) == step["duration_ns"]
        mine = [c for c in found["collectives"] if (c["step"], c["rank"]) == (step["step"], step["rank"])]
        assert sum(c["exposed_ns"] for c in mine) == step["exposed_comm_ns"]
    for count in found["counts"]:
        if not (may_be_gone and count["issued"] is None):
            assert count["issued"] == count["recorded"], count
    assert not UNTRUSTED & set(found["kinds"]), found["kinds"]


def check_rows(
    found: dict[str, Any],
    world: int,
    wanted: Callable[[int], Sequence[Want]],
    *,
    step: int = 1,
    in_order: bool = True,
    may_be_gone: bool = False,
) -> None:
    """Hold every rank's rows of a step to what `wanted(rank)` says, each field of them."""
    check_accounting(found, may_be_gone=may_be_gone)
    everyone = tuple(range(world))
    for rank in range(world):
        rows = [c for c in found["collectives"] if (c["step"], c["rank"]) == (step, rank)]
        told = [_told(row, found["groups"]) for row in rows]
        full = [want if want.ranks is not None else replace(want, ranks=everyone) for want in wanted(rank)]
        if all(want.dim is None for want in full if want.ranks == everyone):
            # A mesh that an earlier job of the same process still holds may have named the world.
            told = [replace(one, dim=None) if one.ranks == everyone else one for one in told]
        if not in_order:
            told, full = sorted(told, key=_key), sorted(full, key=_key)
        assert len(told) == len(full), (rank, [(want.op, want.message_bytes) for want in told])
        for one, want in zip(told, full, strict=True):
            assert one == want, (rank, one, want)
        for row in rows:
            is_root = row["root"] == rank
            size = row["group_size"]
            assert row["wire_bytes"] == wire_bytes(row["op"], row["message_bytes"], size, is_root=is_root)
            assert row["duration_ns"] is None or row["duration_ns"] > 0
