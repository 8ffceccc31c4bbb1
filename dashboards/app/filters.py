"""A reader's filters of a report, as they stand in a link, and the report with only the chosen parts.

Links come from anywhere: an invalid filter is left out and reported in words, never an error. Steps keep
their parts whatever is filtered, as parts belong to a whole step of a rank.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, get_args
from urllib.parse import parse_qsl, urlencode

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtoll.dashboards.facts.row_codes import Bools, Ints
from shardtoll.dashboards.facts.spoken import left
from shardtoll.dashboards.words.text import clip
from shardtoll.ledger import KINDS, PHASES, Finding, Report
from shardtoll.ledger.records.finding import RowTable
from shardtoll.ledger.records.record import MOST_RANKS

MOST_CHARACTERS: Final = 20_000
"""Length of a query."""
MOST_NAMES: Final = 100
"""Names of each kind."""
LONGEST_NAME: Final = 1_000
MOST_PICKED: Final = 100_000
"""Ranks."""

_RANGE: Final = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?", re.ASCII)
_KEYS: Final = {"group": "groups", "module": "modules", "phase": "phases", "kind": "kinds"}
"""Key in a link -> field; each may stand several times. `ranks=0-3,8` stands once."""
_CLOSED: Final = {"phase": frozenset(PHASES), "kind": frozenset(KINDS)}


@dataclass(frozen=True, slots=True)
class Filter:
    """The parts to show; an empty part lets everything through. Names are kept in order, each once."""

    ranks: tuple[int, ...] = ()
    groups: tuple[str, ...] = ()
    """Names of groups or of mesh dimensions."""
    modules: tuple[str, ...] = ()
    """A module with all inside it; `*` stands for one part of a name, the empty name for the root alone."""
    phases: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    """Kinds of findings: these concern the bill only."""
    refused: tuple[str, ...] = field(default=(), compare=False)
    """Filters that a link asked for and does not get, one sentence each."""

    def __post_init__(self) -> None:
        for name in ("ranks", *_KEYS.values()):
            object.__setattr__(self, name, tuple(sorted(set(getattr(self, name)))))

    def __bool__(self) -> bool:
        return self != Filter()

    @classmethod
    def from_query(cls, query: str) -> Filter:
        """Return the filter in a link's query, with or without `?`; keys of others are ignored."""
        refused: list[str] = []
        if len(query) > MOST_CHARACTERS:
            why = f"the link's filters are not used: longer than {MOST_CHARACTERS:,} characters"
            return cls(refused=(why,))
        ranks: tuple[int, ...] = ()
        names: dict[str, list[str]] = {key: [] for key in _KEYS}
        for key, value in parse_qsl(query.removeprefix("?"), keep_blank_values=True):
            if key == "ranks":
                ranks, wrong = parse_ranks(value)
                refused += wrong
            elif key in names:
                unfit = _unfit(key, value, len(names[key]))
                if unfit is None:
                    names[key].append(value)
                else:
                    refused.append(unfit)
        chosen = {_KEYS[key]: tuple(values) for key, values in names.items()}
        return cls(ranks=ranks, refused=tuple(dict.fromkeys(refused)), **chosen)

    def to_query(self) -> str:
        """Return the filter as a link's query, without `?`; the same for equal filters, empty for none."""
        parts = [("ranks", ranges(self.ranks))] if self.ranks else []
        for key, name in _KEYS.items():
            parts += [(key, value) for value in getattr(self, name)]
        return urlencode(parts, safe=",", errors="replace")

    def words(self) -> str:
        """Return the active filters, as one sentence of plain text; empty if nothing is left out."""
        said = []
        if self.ranks:
            said.append(f"{'rank' if len(self.ranks) == 1 else 'ranks'} {clip(ranges(self.ranks), 120)}")
        for name in ("groups", "modules", "phases"):
            if values := getattr(self, name):
                said.append(_named(name, [value or "(root)" for value in values]))
        text = "; ".join(said)
        if self.kinds:
            text += f"{'; ' if text else ''}on the bill {_named('kinds', self.kinds)}"
        return f"Shown: {text}. Steps are whole." if text else ""


def parse_ranks(text: str) -> tuple[tuple[int, ...], list[str]]:
    """Return the ranks that a text like `0-3,8` names, ascending, and in words its invalid parts."""
    ranks: set[int] = set()
    refused = []
    for part in text[:MOST_CHARACTERS].replace(" ", "").split(","):
        match = _RANGE.fullmatch(part)
        if not match:
            if part:
                refused.append(f"{clip(part, 40)} is no rank: write 3 or 0-7, with commas between")
            continue
        first = int(match.group(1))
        last = int(match.group(2) or first)
        if last < first or last >= MOST_RANKS:
            refused.append(f"{part} names no ranks")
        elif len(ranks) + last - first >= MOST_PICKED:
            refused.append(f"{part} is left out: more than {MOST_PICKED:,} ranks")
        else:
            ranks.update(range(first, last + 1))
    return tuple(sorted(ranks)), refused[:MOST_NAMES]


def ranges(ranks: Sequence[int]) -> str:
    """Return ascending ranks as `0-3,8`."""
    if not ranks:
        return ""
    every = np.asarray(ranks)
    starts = np.flatnonzero(np.diff(every, prepend=every[0] - 2) > 1)
    ends = np.append(starts[1:] - 1, len(every) - 1)
    pairs = zip(every[starts].tolist(), every[ends].tolist(), strict=True)
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in pairs)


def absent(report: Report, only: Filter) -> list[str]:
    """Return in words the filters that match nothing in the whole report, one sentence part each."""
    said = []
    seen = report.run.ranks_seen
    if missing := sorted(set(only.ranks) - set(seen)):
        noun = "rank" if len(missing) == 1 else "ranks"
        here = f"rank{'' if len(seen) == 1 else 's'} {clip(ranges(sorted(seen)), 120)}" if seen else "none"
        said.append(f"there is no {noun} {clip(ranges(missing), 120)} on record, only {here}")
    groups = {group.name for group in report.groups} | {group.mesh_dim for group in report.groups}
    for column in ("group", "mesh_dim"):
        groups |= set(pc.unique(report.tables["collectives"][column]).to_pylist())
    said += _none_of("group", set(only.groups) - groups)
    if only.modules:
        modules = {
            name
            for table in ("collectives", "computes")
            for name in pc.unique(report.tables[table]["module"]).drop_null().to_pylist()
        }
        modules |= {finding.where.module for finding in report.findings if finding.where.module is not None}
        said += _none_of(
            "module", {want for want in only.modules if not any(_inside(name, [want]) for name in modules)}
        )
    return said + _none_of("finding of kind", set(only.kinds) - {finding.kind for finding in report.findings})


def _none_of(what: str, names: set[str]) -> list[str]:
    return [f"the run has no {what} {clip(name or '(root)', 60)}" for name in sorted(names)[:5]]


def apply(report: Report, only: Filter) -> Report:
    """Return the report with the records and findings that fit; those whose part is unknown do not.

    A record without such a part at all, as the group of a matmul, is not asked for it. Only the rank filter
    applies to steps, notices, counts, values and parameters.
    """
    if not only:
        return report
    tables = {name: _fitting(name, table, only) for name, table in report.tables.items()}
    if tables["collectives"][1] is not None:
        leadups = _moved(report.tables["leadups"], report.tables["collectives"], tables["collectives"][1])
        tables["leadups"] = _fitting("leadups", leadups, only)
    dims = {group.mesh_dim for group in report.groups if group.name in only.groups} - {None}
    roofline = report.roofline
    if roofline is not None and only.ranks:
        wanted = frozenset(only.ranks)
        roofline = replace(roofline, ranks=tuple(rank for rank in roofline.ranks if rank.rank in wanted))
    kept: dict[RowTable, Bools] = {
        name: _plain_mask(mask) for name in get_args(RowTable) if (mask := tables[name][1]) is not None
    }
    speaking = [finding for finding in report.findings if _speaks(finding, only, dims)]
    return replace(
        report,
        tables={name: table for name, (table, _) in tables.items()},
        findings=left(speaking, kept),
        roofline=roofline,
    )


_BY_RANK_ONLY: Final = ("steps", "notices", "counts", "values", "parameters")


def _fitting(name: str, table: pa.Table, only: Filter) -> tuple[pa.Table, pa.ChunkedArray | None]:
    """The rows that fit, and which of the table's they are; None if all fit."""
    tests = []
    if only.ranks:
        tests.append(pc.is_in(table["rank"], value_set=pa.array(only.ranks, pa.int64())))
    if name not in _BY_RANK_ONLY:
        if only.groups and "group" in table.column_names:
            wanted = pa.array(only.groups, pa.string())
            in_group = pc.is_in(table["group"], value_set=wanted)
            tests.append(pc.or_(in_group, pc.is_in(table["mesh_dim"], value_set=wanted)))
        # A rank's work before it joined a collective is kept with the collective, whatever it was.
        if name != "leadups":
            if only.modules and "module" in table.column_names:
                modules = pc.unique(table["module"]).drop_null().to_pylist()
                inside = [name for name in modules if _inside(name, only.modules)]
                tests.append(pc.is_in(table["module"], value_set=pa.array(inside, pa.string())))
            if only.phases and "phase" in table.column_names:
                tests.append(pc.is_in(table["phase"], value_set=pa.array(only.phases, pa.string())))
    if not tests:
        return table, None
    mask = tests[0]
    for test in tests[1:]:
        mask = pc.and_(mask, test)
    return table.filter(mask), mask


def _moved(leadups: pa.Table, collectives: pa.Table, kept: pa.ChunkedArray) -> pa.Table:
    """The lead-ups of kept collectives, with the places these now have among their rank's rows."""
    if not leadups.num_rows:
        return leadups
    rank = collectives["rank"].to_numpy()
    stays = _plain_mask(kept)
    order = np.argsort(rank, kind="stable")
    stays, sorted_rank = stays[order], rank[order]
    first = np.searchsorted(sorted_rank, sorted_rank)
    before: Ints = np.cumsum(stays) - stays
    after: Ints = before - before[first]
    # A lead-up's collective: so many rows after its rank's first.
    of_rank = leadups["rank"].to_numpy()
    place_of = np.searchsorted(sorted_rank, of_rank) + leadups["index"].to_numpy()
    there = place_of < np.searchsorted(sorted_rank, of_rank, side="right")
    stay = there & stays[np.minimum(place_of, len(stays) - 1)] if len(stays) else there
    place = leadups.schema.get_field_index("index")
    moved = leadups.filter(pa.array(stay))
    return moved.set_column(place, leadups.schema.field(place), pa.array(after[place_of[stay]], pa.int64()))


def _plain_mask(mask: pa.Array | pa.ChunkedArray) -> Bools:
    """Return a mask as Arrow filters by it: unknown is not kept."""
    filled = pc.fill_null(mask, False)
    plain: Bools = (
        filled.to_numpy(zero_copy_only=False) if isinstance(filled, pa.Array) else filled.to_numpy()
    )
    return plain


def _inside(module: str, wanted: Sequence[str]) -> bool:
    """Whether a module is one of the wanted ones or lies in one; findings name modules with `*` too."""
    parts = module.split(".")
    for name in wanted:
        asked = name.split(".")
        if len(asked) > len(parts) or (module and not name):
            continue
        # Part by part, without a pattern that a long name could make slow.
        if all(_part(part, want) or _part(want, part) for part, want in zip(parts, asked, strict=False)):
            return True
    return False


def _part(part: str, wanted: str) -> bool:
    before, star, after = wanted.partition("*")
    if not star:
        return part == wanted
    return len(part) > len(before) + len(after) and part.startswith(before) and part.endswith(after)


def _speaks(finding: Finding, only: Filter, dims: set[str | None]) -> bool:
    where = finding.where
    if only.kinds and finding.kind not in only.kinds:
        return False
    if only.ranks and not set(finding.ranks) & set(only.ranks):
        return False
    if only.phases and where.phase not in only.phases:
        return False
    if only.groups:
        spans = {where.group, where.mesh_dim} - {None}
        by_dim = where.group is None and where.mesh_dim in dims
        if not (spans & set(only.groups) or by_dim):
            return False
    return not only.modules or (where.module is not None and _inside(where.module, only.modules))


def _unfit(key: str, value: str, count: int) -> str | None:
    if count >= MOST_NAMES:
        return f"only the first {MOST_NAMES} of each kind of name are used ({key})"
    if len(value) > LONGEST_NAME:
        return f"a {key} of {len(value):,} characters is left out"
    if key == "module" and any(part.count("*") > 1 for part in value.split(".")):
        return f"{clip(value, 40)} has more than one * between two dots"
    if key in _CLOSED and value not in _CLOSED[key]:
        return f"there is no {key} {clip(value, 40)}"
    return None


def _named(name: str, values: Sequence[str]) -> str:
    shown = ", ".join(clip(value, 60) for value in values[:5])
    more = f" and {len(values) - 5} more" if len(values) > 5 else ""
    return f"{name if len(values) > 1 else name[:-1]} {shown}{more}"
