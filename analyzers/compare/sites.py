"""Collectives of two runs by place, and which of one run are which of the other."""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.shared.layer_names import pattern
from shardtoll.analyzers.shared.tally import codes, number, text
from shardtoll.analyzers.two_runs.issued import BYTES, CALLS, Issued
from shardtoll.analyzers.two_runs.judges import Floor, Judge, Rows
from shardtoll.analyzers.two_runs.steps import tabulated
from shardtoll.ledger import Report
from shardtoll.ledger.answers.comparison import SiteChange, SiteWhat
from shardtoll.ledger.records.levels import in_steps
from shardtoll.ledger.tables.tables import to_frame

WHAT: Final[tuple[SiteWhat, ...]] = ("added", "removed", "dtype", "size", "count", "time", "none")
"""Possible changes of a collective, in the order in which they are listed."""
COLUMNS: Final = ("step", "rank", "op", "caused_by_op", "module", "phase", "group", "group_size", "mesh_dim",
                  "dtype", "message_bytes", "exposed_ns", "transfer_ns", "source")  # fmt: skip
PLACE: Final = ("op", "caused_by_op", "modules", "phase", "net")
"""Columns that do not change with a call's number format and size."""
KIND: Final = (*PLACE, "dtype", "message_bytes")
_BITS: Final = re.compile(r"^[a-z]+(\d{1,3})")
"""Bits of a number in a format's name: `float32`, `bfloat16`, `float8_e4m3fn`."""
_LINE: Final = re.compile(r":\d+(?= \(|$)")

Array = npt.NDArray[np.float64]


class Site(Struct, frozen=True):
    """One kind of collective of one run."""

    place: tuple[str | None, ...]
    """As `PLACE` names it."""
    dtype: str | None
    message_bytes: int | None
    source: str | None
    calls: Array
    """(steps,), a mean over ranks, as all of these."""
    exposed: Array | None
    """ns; None if that of a call is unknown."""
    waiting: Array | None

    @property
    def each(self) -> float:
        """Calls of a mean step."""
        return float(self.calls.mean()) if len(self.calls) else 0.0


Paired = list[tuple[Site | None, Site | None]]


def sites(report: Report, numbers: tuple[int, ...]) -> list[Site]:
    """Return the kinds of collectives in these steps, by first appearance."""
    table = in_steps(report.tables["collectives"].select(list(COLUMNS)), numbers)
    frame = to_frame(table).reset_index(drop=True)
    if frame.empty:
        return []
    frame = frame.assign(modules=pattern(frame["module"]), net=_net(frame, report.run.world_size))
    code, first = codes(frame, KIND)
    step = frame["step"].to_numpy(dtype=np.int64)
    ranks = len(report.run.ranks_seen)

    def over(values: Array) -> Array:
        return tabulated(code, len(first), step, numbers, values, ranks)

    exposed = frame["exposed_ns"].to_numpy(dtype=np.float64, na_value=np.nan)
    moved = frame["transfer_ns"].to_numpy(dtype=np.float64, na_value=np.nan)
    late = np.maximum(exposed - moved, 0)
    calls, times, waits = over(np.ones(len(frame))), over(exposed), over(late)
    return [
        Site(
            place=tuple(text(row[name]) for name in PLACE),
            dtype=text(row["dtype"]),
            message_bytes=number(row["message_bytes"]),
            source=text(row["source"]),
            calls=calls[code_number],
            exposed=None if np.isnan(times[code_number]).any() else times[code_number],
            waiting=None if np.isnan(waits[code_number]).any() else waits[code_number],
        )
        for code_number, row in enumerate(first.to_dict("records"))
    ]


def _net(frame: pd.DataFrame, world_size: int) -> pd.Series[Any]:
    """Return the group in words that another run has too: its mesh dimension, `world`, or its size."""
    size = frame["group_size"].to_numpy(dtype=np.int64)
    words = {
        count: "world" if count == world_size else f"{count} ranks" for count in np.unique(size).tolist()
    }
    by_size = pd.Series([words[count] for count in size.tolist()], index=frame.index, dtype="string")
    named = frame["mesh_dim"].notna().to_numpy(dtype=bool)
    made: pd.Series[Any] = by_size.where(~named, "mesh dim " + frame["mesh_dim"].astype("string"))
    return made


def paired(before: list[Site], after: list[Site]) -> Paired:
    """Return which of both are one: equal ones first, then what is left of a place in its order.

    At one place two collectives of another number format or size are one whose format or size changed. Those
    of as many elements are paired first, then those called as often. A changed program adds and removes whole
    calls too. Last come those of the same function with as many elements, but of another module or phase.
    Then code was moved, or a copy in another format no longer shows whose it is.
    """
    pairs: Paired = []
    left = [list(before), list(after)]
    for rule in (_same, _same_elements, _same_calls, _same_place, _same_function):
        waiting: dict[Any, list[Site]] = {}
        for site in left[1]:
            waiting.setdefault(rule(site), []).append(site)
        rest = []
        taken: set[int] = set()
        for site in left[0]:
            others = waiting.get(rule(site))
            if others:
                other = others.pop(0)
                taken.add(id(other))
                pairs.append((site, other))
            else:
                rest.append(site)
        left = [rest, [site for site in left[1] if id(site) not in taken]]
    return [*pairs, *((site, None) for site in left[0]), *((None, site) for site in left[1])]


class SiteJudge(Struct, frozen=True):
    """Judges one kind of collective of two runs."""

    pair: tuple[Site | None, Site | None]
    calls: Judge
    bytes: Judge
    exposed: Judge
    waiting: Judge

    @classmethod
    def of(
        cls, pair: tuple[Site | None, Site | None], rows: Rows, floor: Floor, scale: float
    ) -> SiteJudge:  # fmt: skip
        """Add a pair's rows; `scale`: what times and bytes after are times, for as much work as before."""
        name = next(site.place[0] for site in pair if site is not None) or "collective"
        # A site that is missing has no calls.
        zeros = [np.zeros(len(guide)) for guide in rows.guide]
        calls = [zero if site is None else site.calls for site, zero in zip(pair, zeros, strict=True)]
        sizes = [0 if site is None else site.message_bytes for site in pair]
        moved = [None if size is None else call * size for call, size in zip(calls, sizes, strict=True)]
        times = []
        for what in ("exposed", "waiting"):
            was, now = (
                zero if site is None else getattr(site, what) for site, zero in zip(pair, zeros, strict=True)
            )
            now = None if now is None else now * scale
            times.append(rows.timed(name, was, now, floor.of(was, now)))
        return cls(
            pair, rows.exact(name, *calls), rows.exact(name, *moved, unit="bytes", scale=scale), *times
        )

    def __call__(self) -> SiteChange:
        """Return the change, once the intervals were drawn."""
        before, after = self.pair
        calls, moved, exposed, waiting = self.calls(), self.bytes(), self.exposed(), self.waiting()
        site = after or before
        assert site is not None, "a pair has at least one"
        dtypes = None if before is None else before.dtype, None if after is None else after.dtype
        sizes = tuple(None if site is None else site.message_bytes for site in self.pair)
        what: SiteWhat = "none"
        if before is None or after is None:
            if calls.changed:
                what = "added" if before is None else "removed"
        elif None not in dtypes and dtypes[0] != dtypes[1]:
            what = "dtype"
        elif sizes[0] != sizes[1] and moved.changed:
            what = "size"
        elif calls.changed:
            what = "count"
        elif exposed.changed or waiting.changed:
            what = "time"
        op, cause, module, phase, group = site.place
        return SiteChange(what, op or "collective", cause, module, phase or "other", group or "unknown group",
                          site.source, dtypes, (sizes[0], sizes[1]),
                          calls, moved, exposed, waiting)  # fmt: skip


def total_judges(rows: Rows, counted: tuple[Issued, Issued], scale: float) -> list[Judge]:
    """Add the rows of all collectives of each run and of their bytes, and return what judges them."""
    was, now = counted
    return [
        rows.exact(CALLS, was.calls, now.calls, at_least=(was.calls_at_least, now.calls_at_least)),
        rows.exact(
            *(BYTES, was.message_bytes, now.message_bytes),
            unit="bytes",
            scale=scale,
            at_least=(was.bytes_at_least, now.bytes_at_least),
        ),
    ]


def _same(site: Site) -> Any:
    return site.place, site.dtype, site.message_bytes


def _same_calls(site: Site) -> Any:
    return site.place, round(site.each, 6)


def _same_place(site: Site) -> Any:
    return site.place


def _same_elements(site: Site) -> Any:
    return site.place, _elements(site), round(site.each, 6)


def _same_function(site: Site) -> Any:
    op, _, _, _, net = site.place
    source = None if site.source is None else _LINE.sub("", re.split(r"[/\\]", site.source)[-1])
    # Without a line nothing tells that it is the same code.
    return op, net, source or id(site), _elements(site), round(site.each, 6)


def _elements(site: Site) -> int | None:
    """Return how many numbers a call moves; None if their format's size is not known."""
    bits = _BITS.search(site.dtype or "")
    if bits is None or site.message_bytes is None or not int(bits[1]):
        return None
    return 8 * site.message_bytes // int(bits[1])
