"""Per-step figures of many groups of rows at once, with unknown kept apart from zero.

A figure of a finding is one rank's mean over the steps with known values (see `Context`). It is the rank with
the largest mean. So the figure never exceeds that rank's row in the table of those steps. A step without such
rows counts as zero. A rank's step whose rows include an unknown value has an unknown sum and is left out of
that rank's mean. If nothing is known, the figure is NA. Times may be of other steps than counts and bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct

from shardtoll.ledger import Rows, Where

Codes = npt.NDArray[np.int64]


def numbered(frame: pd.DataFrame, columns: Sequence[str]) -> Codes:
    """Return for each row the number of its group by `columns`.

    Groups are numbered by first appearance; unknown values are equal to each other.
    """
    # A groupby finds the same, but for the short tables of most jobs it takes half as long again.
    number, groups = np.zeros(len(frame), dtype=np.int64), 1
    for column in columns:
        each, values = pd.factorize(frame[column], use_na_sentinel=False)
        different = len(values)
        if different < 2:
            continue
        if groups > 1:
            each, numbers = pd.factorize(number * different + each)
            different = len(numbers)
        number, groups = each, different
    return number


def codes(frame: pd.DataFrame, columns: Sequence[str]) -> tuple[Codes, pd.DataFrame]:
    """Return for each row the number of its group by `columns`, as `numbered`, and each group's first row.

    Hand over only columns that are read of the first rows: to pick rows of 60 columns takes a millisecond.
    """
    if frame.empty:
        return np.empty(0, dtype=np.int64), frame
    number = numbered(frame, columns)
    _, first = np.unique(number, return_index=True)
    # A shallow copy of all rows, and an index put in place, cost a tenth of taking rows of 60 columns.
    rows: pd.DataFrame = frame.copy(deep=False) if len(first) == len(frame) else frame.iloc[first]
    rows.index = pd.RangeIndex(len(rows))
    return number, rows


def keep(frame: pd.DataFrame, mask: pd.Series[Any] | npt.NDArray[np.bool_]) -> pd.DataFrame:
    """Return the rows where the mask is true; unknown is not.

    Columns may be added to what is returned, but no cell changed in place: it may be a cell of `frame`.
    """
    if isinstance(mask, pd.Series):
        mask = mask.to_numpy(dtype=bool, na_value=False)
    # All or none is what most analyses find most of the time, and picking rows of 60 columns costs far more.
    if mask.all():
        kept: pd.DataFrame = frame.copy(deep=False)
    elif not mask.any():
        kept = frame.iloc[:0]
    else:
        kept = frame[mask]
    return kept


def begins_with(column: pd.Series[Any], beginning: str | tuple[str, ...]) -> npt.NDArray[np.bool_]:
    """Return which texts begin so, or in one of these ways; unknown ones do not. Equal texts are one."""
    number, texts = pd.factorize(column)
    does = np.array([str(text).startswith(beginning) for text in texts] + [False], dtype=np.bool_)
    answer: npt.NDArray[np.bool_] = does[number]
    return answer


def with_columns(frame: pd.DataFrame, **columns: Any) -> pd.DataFrame:
    """Return the frame with these columns added or replaced; its other cells are shared, not copied."""
    wider: pd.DataFrame = frame.copy(deep=False)
    for name, values in columns.items():
        wider[name] = values
    return wider


def number(value: Any) -> int | None:
    """Return a cell of a nullable whole-number column as int; None if it is NA."""
    return None if pd.isna(value) else int(value)


def text(value: Any) -> str | None:
    """Return a cell of a string column as str; None if it is NA."""
    return None if pd.isna(value) else str(value)


def steps_spoken_of(step_rows: pd.DataFrame, ranks: Iterable[int], steps: Iterable[int]) -> Rows:
    """Return the rows of these ranks' steps."""
    here = step_rows["rank"].isin(list(ranks)) & step_rows["step"].isin(list(steps))
    return Rows.of(steps=step_rows.index[here.to_numpy(dtype=bool)])


@dataclass(frozen=True, slots=True)
class Line:
    """One group of rows: what becomes one finding."""

    code: int
    """The group's number, as in `Tally.code`."""
    first: Mapping[str, Any]
    """Its first row, to read what all its rows share."""
    figures: dict[str, int | None]
    """Value name -> per step, on the rank where it is largest; None unknown."""
    count: int
    """Rows per step and rank, at least 1."""
    each: int | float
    """The same for sentences: `count`, or the mean if that is below 1."""
    calls: float
    """Rows per step, on the rank that has most in each step, as they are."""
    total: int
    """Rows in all."""
    unknown: int
    """Number of rows with an unknown value."""
    ranks: tuple[int, ...]

    def text(self, column: str) -> str | None:
        """Return the value that all rows have in a column; None if unknown."""
        return text(self.first[column])

    def where(self, *columns: str, op: str | None = None, parameter: str | None = None) -> Where:
        """Return the place made of the columns all rows share; `op` and `parameter` as given."""
        library = text(self.first.get("library")) if "source" in columns else None
        return Where(
            op=op, parameter=parameter, library=library, **{name: self.text(name) for name in columns}
        )


class Tally(Struct, frozen=True):
    """Groups of rows and their figures, in order of first appearance."""

    lines: list[Line]
    code: Codes
    """For each row that was tallied the number of its group."""
    index: Codes
    """Each row's place in its table: frames keep it as their index."""

    def places(self, line: Line) -> Codes:
        """Return the places of a group's rows in their table."""
        places: Codes = self.index[self.code == line.code]
        return places


def tally(
    frame: pd.DataFrame,
    columns: Sequence[str],
    values: Sequence[str],
    steps: Sequence[int],
    *,
    over_ranks: Literal["max", "mean"] = "max",
    times_in: Sequence[int] = (),
) -> Tally:
    """Return the figures of `frame`'s groups by `columns`.

    `frame` must have `step` and `rank`, every step in `steps`; `values` are whole-number columns.
    `over_ranks` is `max` (the slowest rank) or, if ranks do the same work, `mean`. `times_in`: those of
    `steps` that times, the columns `*_ns`, are means over, unless the group's rows there do not know them. A
    group without rows there costs nothing there. Empty: all steps.
    """
    number_of = numbered(frame, columns)
    _, places = np.unique(number_of, return_index=True)
    first = _FirstRows(frame, number_of, places)
    has_value = {name: ~frame[name].isna().to_numpy(dtype=bool) for name in values}
    of = _Steps.of(number_of, frame)
    figures = {
        name: _figure(
            of, frame[name].to_numpy(dtype=np.int64, na_value=0), has_value[name], len(steps), over_ranks
        )
        for name in values
    }
    if times_in and len(times_in) < len(steps):
        names = [name for name in values if name.endswith("_ns")]
        _replace_times(figures, names, number_of, frame, times_in, over_ranks)
    busiest = of.busiest()
    all_known = np.logical_and.reduce(list(has_value.values())) if values else np.ones(len(frame), dtype=bool)
    means = busiest / max(1, len(steps))
    counts = np.maximum(1, np.rint(means)).astype(np.int64)
    totals = np.bincount(number_of, minlength=len(places))
    unknown = np.bincount(number_of, weights=~all_known, minlength=len(places))
    ranks: list[list[int]] = [[] for _ in range(len(places))]
    for code, rank in zip(of.pair_code, of.pair_rank, strict=True):
        ranks[code].append(int(rank))
    lines = [
        Line(
            code=code,
            first=_FirstRow(first, code),
            figures={name: figures[name][code] for name in values},
            count=int(counts[code]),
            each=int(counts[code]) if means[code] >= 1 else round(float(means[code]), 2),
            calls=float(means[code]),
            total=int(totals[code]),
            unknown=int(unknown[code]),
            ranks=tuple(ranks[code]),
        )
        for code in range(len(places))
    ]
    return Tally(lines, number_of, frame.index.to_numpy())


def _replace_times(
    figures: dict[str, list[int | None]],
    names: Sequence[str],
    number_of: Codes,
    frame: pd.DataFrame,
    steps: Sequence[int],
    over_ranks: Literal["max", "mean"],
) -> None:
    """Replace these figures by those of some steps, unless the group's rows there do not know them."""
    there = frame["step"].isin(steps).to_numpy(dtype=bool)
    rows = frame.loc[there, ["step", "rank", *names]]
    of = _Steps.of(number_of[there], rows)
    groups = np.unique(number_of[there]).tolist()
    for name in names:
        has_value = ~rows[name].isna().to_numpy(dtype=bool)
        values = rows[name].to_numpy(dtype=np.int64, na_value=0)
        there_ns = dict(zip(groups, _figure(of, values, has_value, len(steps), over_ranks), strict=True))
        for group, anywhere_ns in enumerate(figures[name]):
            value = there_ns.get(group, None if anywhere_ns is None else 0)
            figures[name][group] = anywhere_ns if value is None else value


class _FirstRows:
    """Each group's first row, a column at a time once it is asked for: of 60 columns a finding reads ten."""

    def __init__(self, frame: pd.DataFrame, number_of: Codes, places: Codes) -> None:
        self.frame = frame
        self._number_of = number_of
        self._places = places
        self._columns: dict[str, list[Any]] = {}

    def column(self, name: str) -> list[Any]:
        """Return the cells of a column; no library's frame where the rows of a group differ in it."""
        if name not in self._columns:
            column = self.frame[name]
            first = column if len(self._places) == len(column) else column.iloc[self._places]
            if name == "library" and column.notna().any():
                each, _ = pd.factorize(column, use_na_sentinel=False)
                others = each != each[self._places][self._number_of]
                first = first.mask(np.bincount(self._number_of, weights=others) > 0)
            self._columns[name] = first.tolist()
        return self._columns[name]


class _FirstRow(Mapping[str, Any]):
    """One group's first row, column -> cell."""

    __slots__ = ("_number", "_rows")

    def __init__(self, rows: _FirstRows, number: int) -> None:
        self._rows = rows
        self._number = number

    def __getitem__(self, name: str) -> Any:
        return self._rows.column(name)[self._number]

    def __iter__(self) -> Iterator[str]:
        return iter(str(name) for name in self._rows.frame)

    def __len__(self) -> int:
        return len(self._rows.frame.columns)


class _Steps(Struct, frozen=True):
    """The rows sorted by group, rank and step, and where each step of a rank of a group begins.

    Arrays, as frames of millions of rows copy all their columns at each turn.
    """

    order: Codes
    starts: Codes
    """Places in `order`."""
    step: Codes
    """One per entry of `starts`."""
    pair: Codes
    """One per entry of `starts`: the number of its group and rank."""
    pair_code: Codes
    pair_rank: Codes

    @classmethod
    def of(cls, code: Codes, frame: pd.DataFrame) -> _Steps:
        step = frame["step"].to_numpy(dtype=np.int64)
        rank = frame["rank"].to_numpy(dtype=np.int64)
        order = np.lexsort((step, rank, code))
        code, rank, step = code[order], rank[order], step[order]
        new_pair = changes(code, rank)
        starts = np.flatnonzero(new_pair | changes(step))
        pairs = np.flatnonzero(new_pair)
        return cls(order, starts, step[starts], np.cumsum(new_pair)[starts] - 1, code[pairs], rank[pairs])

    def busiest(self) -> npt.NDArray[np.float64]:
        """Return for each group the sum over steps of the rows of the rank that has most in that step."""
        if not len(self.order):
            return np.zeros(0)
        rows = np.diff(self.starts, append=len(self.order))
        code = self.pair_code[self.pair]
        order = np.lexsort((self.step, code))
        first = np.flatnonzero(changes(code[order], self.step[order]))
        most = np.maximum.reduceat(rows[order], first).astype(np.float64)
        return np.bincount(code[order][first], weights=most).astype(np.float64)


def changes(*sorted_keys: Codes) -> npt.NDArray[np.bool_]:
    """Return for each row whether a key differs from the row before; the first does."""
    new = np.zeros(len(sorted_keys[0]), dtype=np.bool_)
    for key in sorted_keys:
        new[1:] |= key[1:] != key[:-1]
    new[:1] = True
    return new


def _figure(
    of: _Steps,
    values: Codes,
    has_value: npt.NDArray[np.bool_],
    steps: int,
    over_ranks: Literal["max", "mean"],
) -> list[int | None]:
    """Return for each group: of each rank the mean over its steps of known value, then over the ranks."""
    if not len(of.order):
        return []
    is_known = np.logical_and.reduceat(has_value[of.order], of.starts)
    sums = np.where(is_known, np.add.reduceat(values[of.order], of.starts), 0)
    of_pair = np.flatnonzero(changes(of.pair))
    known_sum = np.add.reduceat(sums, of_pair)
    known_steps = np.add.reduceat(is_known.astype(np.int64), of_pair)
    unknown_steps = np.diff(of_pair, append=len(of.starts)) - known_steps
    # A rank without any known row has no figure; its steps without rows do not make that a zero.
    says = known_steps > 0
    means = np.divide(known_sum, steps - unknown_steps, out=np.full(len(says), np.nan), where=says)
    groups = np.flatnonzero(changes(of.pair_code))
    if over_ranks == "max":
        figures = np.fmax.reduceat(means, groups)
    else:
        count = np.add.reduceat(says.astype(np.int64), groups)
        total = np.add.reduceat(np.where(says, means, 0.0), groups)
        figures = np.divide(total, count, out=np.full(len(groups), np.nan), where=count > 0)
    return [None if np.isnan(value) else round(float(value)) for value in figures]
