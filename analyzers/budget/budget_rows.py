"""A run's collectives as a budget counts them: by step and rank, with what is not known kept apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.shared.placements import hidden
from shardtoll.analyzers.shared.tally import codes, keep, number, text
from shardtoll.ledger import Report, Run
from shardtoll.ledger.answers.overrun import Call
from shardtoll.ledger.records.levels import alike_steps, exposure_doubted, watched_steps
from shardtoll.ledger.records.record import MOST_RANKS
from shardtoll.ledger.tables.tables import to_frame

Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

CAUSE: Final = (
    "op",
    "group",
    "mesh_dim",
    "phase",
    "module",
    "parameter",
    "caused_by_op",
    "placements_from",
    "placements_to",
    "source",
    "implicit",
)
"""Collectives equal in all of these have one cause."""
SHOWN: Final = 8
"""Causes listed of one figure; the rest are counted."""


class Rows(Struct, frozen=True):
    """The collectives of the judged steps, and the cells (step and rank) they are counted in."""

    frame: pd.DataFrame
    cell: Ints
    """Per row: the index of its cell."""
    step: Ints
    """Per cell."""
    rank: Ints
    """Per cell."""
    duration_ns: Floats
    """Per cell: how long the step took, without capture's own work; NaN if the rank did not end it."""
    exposed_ns: Floats
    """Per cell: the step's exposed communication; NaN as `duration_ns`."""
    exposed_lacks: Floats
    """Per cell: collectives whose part of `exposed_ns` is unknown. If the host waits for each, a surveyed
    step knows its own figure, whatever it knows of each collective."""
    timed: Mask
    """Per cell: whether its times may be judged; see `Context.timed_rows`."""
    lacking: dict[str, Ints]
    """Group name -> of each cell how many collectives the group counted that are not on record."""
    implicit: Mask
    """Per row: whether the framework inserted it."""
    asked_unknown: Mask
    """Per row: whether it is unknown who asked for it."""

    @property
    def nowhere(self) -> Mask:
        """The rows of no known module: neither module nor parameter is on record."""
        mask: Mask = (self.frame["module"].isna() & self.frame["parameter"].isna()).to_numpy(dtype=bool)
        return mask

    def per_cell(self, rows: Mask, values: Any = None) -> Floats:
        """Return for each cell how many of these rows it has, or the sum of their values; unknown adds 0."""
        weights = None
        if values is not None:
            weights = values.to_numpy(dtype=np.float64, na_value=0.0)[rows]
        return np.bincount(self.cell[rows], weights=weights, minlength=len(self.step)).astype(np.float64)

    def unknown(self, rows: Mask, column: str) -> Floats:
        """Return for each cell of how many of these rows the value is not known."""
        return self.per_cell(rows & self.frame[column].isna().to_numpy(dtype=bool))

    def all_lacking(self) -> Ints:
        """Return of each cell how many collectives are counted and not on record, over all groups."""
        return sum(self.lacking.values(), np.zeros(len(self.step), dtype=np.int64))

    def named(self, column: str, wanted: Callable[[str], bool]) -> Mask:
        """Return the rows whose known value of a column is a wanted one."""
        # Each name once: a long run has millions of rows and a few hundred names.
        places, different = pd.factorize(self.frame[column])
        fits = np.array([*(wanted(str(name)) for name in different), False], dtype=bool)
        matching: Mask = fits[places]
        return matching

    def calls(self, rows: Mask, cell: int, by: str) -> tuple[tuple[Call, ...], int]:
        """Return what these rows of a cell are, most of the column `by` first, and how many are left out."""
        inside = keep(self.frame, rows & (self.cell == cell))
        code, first = codes(inside, CAUSE)
        # A step may have as many causes as parameters: only those shown are put together. An unknown value
        # may be the largest of all.
        values = np.ones(len(inside)) if by == "count" else inside[by].to_numpy(np.float64, na_value=np.inf)
        most = np.bincount(code, weights=values, minlength=len(first))
        calls = []
        for cause in np.argsort(-most, kind="stable")[:SHOWN].tolist():
            row, mine = first.iloc[cause], inside[code == cause]
            calls.append(
                Call(
                    count=len(mine),
                    wire_bytes=_sum(mine["wire_bytes"]),
                    exposed_ns=_sum(mine["exposed_ns"]),
                    implicit=None if pd.isna(row["implicit"]) else bool(row["implicit"]),
                    **{name: text(row[name]) for name in CAUSE if name != "implicit"},  # type: ignore[arg-type]
                )
            )
        return tuple(calls), max(0, len(first) - SHOWN)


def rows_of(report: Report, skip_steps: int) -> Rows:
    """Return the report's collectives in its steps after the first `skip_steps`; empty if no step is left."""
    steps = report.steps
    numbers = np.unique(_ints(steps["step"]))[skip_steps:]
    steps = keep(steps, steps["step"].isin(numbers.tolist()))
    frame = report.collectives
    frame = keep(frame, frame["step"].isin(numbers)).reset_index(drop=True)
    keys, place = np.unique(np.concatenate([_key(steps), _key(frame)]), return_inverse=True)
    step, rank = keys // MOST_RANKS, keys % MOST_RANKS
    of_step, cell = place[: len(steps)], place[len(steps) :].astype(np.int64)
    duration, exposed = np.full(len(step), np.nan), np.full(len(step), np.nan)
    duration[of_step] = (steps["duration_ns"] - steps["capture_ns"]).to_numpy(dtype=np.float64)
    exposed[of_step] = steps["exposed_comm_ns"].to_numpy(dtype=np.float64)
    table = report.tables["steps"]
    usable = set(watched_steps(table)) & set(numbers.tolist()) or set(alike_steps(table)) & set(
        numbers.tolist()
    )
    timed = np.isin(step, sorted(usable or numbers.tolist())) & ~np.isnan(duration)
    lacking = _lacking(report, keys)
    doubted = np.isin(keys, _key(to_frame(exposure_doubted(report.tables))))
    untimed = cell[frame["exposed_ns"].isna().to_numpy(dtype=bool)]
    lacks = sum(lacking.values(), np.bincount(untimed, minlength=len(step)).astype(np.int64))
    return Rows(
        frame=frame,
        cell=cell,
        step=step,
        rank=rank,
        duration_ns=duration,
        exposed_ns=exposed,
        exposed_lacks=np.where(doubted, lacks, 0).astype(np.float64),
        timed=timed,
        lacking=lacking,
        implicit=hidden(frame).to_numpy(dtype=bool),
        asked_unknown=frame["implicit"].isna().to_numpy(dtype=bool),
    )


def _lacking(report: Report, keys: Ints) -> dict[str, Ints]:
    counts = to_frame(report.tables["counts"])
    fewer = keep(counts, counts["recorded"] < counts["issued"])
    wanted = _key(fewer)
    lacking: dict[str, Ints] = {}
    if not len(keys):
        return lacking
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    lacks = _ints(fewer["issued"] - fewer["recorded"])
    for place_of_row, name, count in zip(
        place, fewer["group"], np.where(keys[place] == wanted, lacks, 0), strict=True
    ):
        if count:
            lacking.setdefault(str(name), np.zeros(len(keys), dtype=np.int64))[place_of_row] += count
    return lacking


def _key(frame: pd.DataFrame) -> Ints:
    """Return a number for each row that is the same for rows of one step and rank, in their order."""
    key: Ints = _ints(frame["step"]) * MOST_RANKS + _ints(frame["rank"])
    return key


def _ints(column: pd.Series[Any]) -> Ints:
    return column.to_numpy(dtype=np.int64)


def is_fake(run: Run) -> bool:
    """Whether the run's process group transfers nothing, and its times are not a forecast's either."""
    return "fake" in (run.backend or "") and not run.is_forecast


def host_waits(run: Run) -> bool:
    """Whether the host waits for each collective, so that its blocked time is the exposed one."""
    return run.device == "cpu" or "gloo" in (run.backend or "")


def _sum(column: pd.Series[Any]) -> int | None:
    return None if column.isna().any() else number(column.sum())
