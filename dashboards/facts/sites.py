"""Collectives that have the same cause and size, taken together: one site of the program, many calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from shardtoll.dashboards.facts.row_codes import row_codes
from shardtoll.dashboards.facts.spoken import spoken
from shardtoll.dashboards.words.text import clip
from shardtoll.ledger import Report
from shardtoll.ledger.tables.tables import to_frame
from shardtoll.ledger.words import human

if TYPE_CHECKING:
    import pandas as pd

KEYS: Final = (
    "op",
    "group",
    "group_size",
    "mesh_dim",
    "dtype",
    "message_bytes",
    "phase",
    "implicit",
    "placements_from",
    "placements_to",
    "caused_by_op",
    "module",
    "parameter",
    "source",
)
"""Collectives equal in all of these are one site."""

_BOUNDS: Final = ("floor_ns", "expected_ns", "light_ns", "band_low_ns", "band_high_ns")
_NUMBERS: Final = ("rank", "exposed_ns", "busbw_gbps", *_BOUNDS)


@dataclass(frozen=True, slots=True)
class Site:
    """Calls with one cause and size, over all ranks and steps. None is unknown."""

    op: str
    group: str
    group_size: int
    mesh_dim: str | None
    dtype: str | None
    message_bytes: int | None
    phase: str
    implicit: bool | None
    placements_from: str | None
    placements_to: str | None
    caused_by_op: str | None
    module: str | None
    parameter: str | None
    source: str | None
    calls: int
    exposed_ns: int | None
    """Sum over the calls whose exposed time is known."""
    busbw_gbps: float | None
    """Median over the calls."""
    busbw_least_gbps: float | None
    busbw_most_gbps: float | None
    floor_ns: int | None
    """Median over the calls, in whole ns."""
    light_ns: int | None = None
    """The same of the speed of light."""
    band_low_ns: int | None = None
    """The same of the band that nine of ten sound transfers lie in."""
    band_high_ns: int | None = None
    expected_ns: int | None = None
    """The same for the expected time of a tuned library."""
    findings: tuple[int, ...] = ()
    """Numbers on the bill of the findings that speak of a call of it."""

    @property
    def asked(self) -> str:
        """implicit, explicit or unknown."""
        return asked(self.implicit)

    @property
    def net(self) -> str:
        """The mesh dimension, or `group NAME` if none is named."""
        return self.mesh_dim or f"group {self.group}"

    def cause(self) -> str:
        """Return what caused it in one line, without its numbers."""
        return cause(self)


def asked(implicit: bool | None) -> str:
    """Return the word for a collective's `implicit`."""
    if implicit is None:
        return human.UNKNOWN
    return "implicit" if implicit else "explicit"


def cause(call: Any, most: int = 100) -> str:
    """Return what caused a collective, each part at most `most` characters; `call` has a Site's fields."""
    parts = [call.source, call.caused_by_op]
    if call.module is not None:
        parts.append(f"module {call.module or '(root)'}")
    if call.parameter:
        parts.append(f"parameter {call.parameter}")
    if call.placements_from or call.placements_to:
        parts.append(f"{call.placements_from or '?'} → {call.placements_to or '?'}")
    named = [clip(part, most) for part in parts if part]
    return " · ".join([*named, f"{call.phase}, {asked(call.implicit)}"] if named else ["cause unknown"])


def plain(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows as dicts of Python values with None for missing ones."""
    columns = [frame[name].astype(object).where(frame[name].notna(), None) for name in frame.columns]
    return [dict(zip(frame.columns, row, strict=True)) for row in zip(*columns, strict=True)]


def sites(report: Report) -> list[Site]:
    """Return every site, the one with the most exposed time first."""
    calls = report.tables["collectives"]
    if not calls.num_rows:
        return []
    code, first = row_codes(calls, KEYS)
    told_by: list[list[int]] = [[] for _ in first]
    for number, groups in spoken(report).of_groups(code, len(first)).items():
        for group in groups:
            told_by[group].append(number)
    rows = (
        to_frame(calls.select(list(_NUMBERS)))
        .groupby(code)
        .agg(
            calls=("rank", "size"),
            exposed_ns=("exposed_ns", "sum"),
            exposed_known=("exposed_ns", "count"),
            busbw_gbps=("busbw_gbps", "median"),
            busbw_least_gbps=("busbw_gbps", "min"),
            busbw_most_gbps=("busbw_gbps", "max"),
            floor_ns=("floor_ns", "median"),
            expected_ns=("expected_ns", "median"),
            light_ns=("light_ns", "median"),
            band_low_ns=("band_low_ns", "median"),
            band_high_ns=("band_high_ns", "median"),
        )
    )
    listed = []
    causes = calls.select(list(KEYS)).take(first).to_pylist()
    for cause_row, row, numbers in zip(causes, plain(rows), told_by, strict=True):
        # The sum over no known value is 0 in pandas; here it is unknown.
        exposed_ns = row["exposed_ns"] if row.pop("exposed_known") else None
        bounds = {name: None if row[name] is None else round(row[name]) for name in _BOUNDS}
        listed.append(
            Site(**{**cause_row, **row, **bounds, "exposed_ns": exposed_ns}, findings=tuple(numbers))
        )
    # Ties stand in the order of the ledger, so that equal reports give equal bytes.
    return sorted(listed, key=lambda site: -(site.exposed_ns or 0))
