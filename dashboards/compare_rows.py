"""What `shardtoll compare` found, as plain lines that every renderer of it shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from shardtoll.dashboards import human
from shardtoll.dashboards.text import clip
from shardtoll.ledger.comparison import Change, Comparison, FindingChange, ModuleChange, SiteChange

SHOWN: Final = 12
"""Unchanged modules and collectives that are listed, the heaviest; all are in the JSON."""
FINDINGS_SHOWN: Final = 12
_TEXT: Final = 300
_NAME: Final = 160

Row = tuple[str, ...]
HEADS: Final = ("per step", "before", "after", "change", "interval", "least seen", "")
SITE_HEADS: Final = ("collective", "calls", "bytes", "exposed", "waiting", "")
FINDING_HEADS: Final = ("finding", "place", "before", "after", "")


def change(one: Change) -> Row:
    """Return name, before, after, change, its interval, the least change that is seen, and the verdict."""
    was, now = (_value(value, one.unit) for value in (one.before, one.after))
    interval = "exact"
    if one.low is not None and one.high is not None:
        interval = f"{_signed(one.low, one.unit)} to {_signed(one.high, one.unit)}"
    elif one.verdict in ("unknown", "too few steps"):
        interval = "-"
    least = "-" if one.least is None else _value(one.least, one.unit)
    return clip(one.name, _NAME), was, now, difference(one), interval, least, one.verdict


def difference(one: Change) -> str:
    """Return `+1.20 ms (+5.2 %)`, `none` or `unknown`."""
    by = one.difference
    if by is None:
        return human.UNKNOWN
    if by == 0:
        return "none"
    share = f" ({100 * by / one.before:+.3g} %)" if one.before else " (new)"
    return f"{_signed(by, one.unit)}{share}"


def _value(value: float | None, unit: str | None) -> str:
    if value is None:
        return human.UNKNOWN
    return human.quantity(round(value, 2) if unit is None else round(value), unit)


def _signed(value: float, unit: str | None) -> str:
    return f"{'+' if value > 0 else '-' if value < 0 else ''}{_value(abs(value), unit)}"


def times(found: Comparison) -> list[Row]:
    """Return the step, its parts, the totals, and the ranks that changed by themselves."""
    return [change(one) for one in (found.step, *found.parts, *found.totals, *found.ranks)]


def causes(found: Comparison) -> list[Row]:
    """Return each cause with what it adds to a step and its share; the last row is the rest."""
    rows: list[Row] = [
        (
            clip(cause.text, _TEXT),
            _signed(cause.change_ns, "ns"),
            _share(cause.share),
            "" if cause.certain else "its time is within noise",
        )
        for cause in found.causes
    ]
    if rows and found.unexplained_ns is not None:
        whole = found.step.difference
        share = found.unexplained_ns / whole if found.step.changed and whole else None
        rows.append(("unexplained", _signed(found.unexplained_ns, "ns"), _share(share), ""))
    return rows


def _share(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.3g} %"


def modules(found: Comparison) -> tuple[list[Row], int]:
    """Return the changed modules and the first of the others, and how many are left out."""
    shown = _shown(found.modules, [_module_changed(one) for one in found.modules])
    rows = []
    for one in shown:
        row = change(one.time)
        said = row[-1]
        if one.formats:
            said += f", {clip(one.formats[0], 40)} -> {clip(one.formats[1], 40)}"
        if one.work.changed:
            said += f", FLOPs {difference(one.work)}"
        rows.append((*row[:-1], said))
    return rows, len(found.modules) - len(shown)


def _module_changed(one: ModuleChange) -> bool:
    return one.time.changed or one.work.changed or one.formats is not None


def sites(found: Comparison) -> tuple[list[Row], int]:
    """Return the changed collectives and the first of the others, and how many are left out."""
    shown = _shown(found.sites, [one.what != "none" for one in found.sites])
    return [site(one) for one in shown], len(found.sites) - len(shown)


def _shown(every: Sequence[SiteChange | ModuleChange], changed: Sequence[bool]) -> list:  # type: ignore[type-arg]
    rest = SHOWN
    shown = []
    for one, is_changed in zip(every, changed, strict=True):
        if is_changed or rest > 0:
            shown.append(one)
            rest -= not is_changed
    return shown


def site(one: SiteChange) -> Row:
    """Return one collective: its place, and what became of its calls, bytes and times."""
    place = " · ".join(
        part
        for part in (
            one.op,
            one.cause if one.cause != one.op else None,
            one.module or None,
            one.phase,
            one.group,
            _arrow(one.dtypes),
            _arrow(tuple(None if size is None else human.size(size) for size in one.message_bytes)),
            one.source,
        )
        if part
    )
    return (
        clip(place, _TEXT),
        *(_brief(each) for each in (one.calls, one.bytes, one.exposed, one.waiting)),
        "same" if one.what == "none" else one.what,
    )


def _arrow(pair: Sequence[str | None]) -> str | None:
    known = [value for value in dict.fromkeys(pair) if value]
    return " -> ".join(known) if known else None


def _brief(one: Change) -> str:
    """Return `2 -> 4`, or one figure with `~` where its change cannot be told from noise."""
    was, now = (_value(value, one.unit) for value in (one.before, one.after))
    if was == now:
        return was
    return f"{was} -> {now}" if one.changed else f"{was} ~ {now}"


def findings(found: Comparison) -> tuple[list[Row], int]:
    """Return the findings that came or went, then those on both bills, and how many are left out."""
    rows: list[Row] = [
        (
            f"{one.severity} {one.kind}",
            clip(one.place, _NAME),
            _bill(one.before, one.toll_ns[0]),
            _bill(one.after, one.toll_ns[1]),
            _became(one),
        )
        for one in found.findings
    ]
    return rows[:FINDINGS_SHOWN], max(0, len(rows) - FINDINGS_SHOWN)


def _bill(number: int | None, toll_ns: int | None) -> str:
    if number is None:
        return "-"
    return f"#{number}" + ("" if toll_ns is None else f", {human.duration(toll_ns)}")


def _became(one: FindingChange) -> str:
    if one.before is not None and one.after is not None:
        return "on both"
    word = "new" if one.before is None else "gone"
    return word if one.firm else f"{word}, by times: may be noise"


def scaling(found: Comparison) -> list[Row]:
    """Return the loss of efficiency by part; they add up to it."""
    if found.scaling is None:
        return []
    return [(loss.name, f"{100 * loss.share:+.2f} %") for loss in found.scaling.losses]


def scaling_words(found: Comparison) -> str:
    """Return `strong scaling, 4 -> 8 ranks: 1.60x the work a second, efficiency 80 % (why it is strong)`."""
    one = found.scaling
    if one is None:
        return ""
    ranks = f"{one.ranks[0]} -> {one.ranks[1]} ranks"
    why = f" ({clip(one.why, _TEXT)})" if one.why else ""
    if one.if_weak is not None:
        return (
            f"scaling, {ranks}: strong and weak cannot be told apart{why}. Efficiency "
            f"{100 * one.efficiency:.1f} % if strong, as below; {100 * one.if_weak:.1f} % if weak"
        )
    kind = {"given": "scaling by the work given", "batch": "scaling by the effective batch"}.get(
        one.kind, f"{one.kind} scaling"
    )
    return (
        f"{kind}, {ranks}: {human.times(one.speedup)} the work a second, "
        f"efficiency {100 * one.efficiency:.1f} %{why if one.kind != 'given' else ''}"
    )


def unit_words(found: Comparison) -> str:
    """Return what the figures are of."""
    if found.unit is None:
        return "Means of a step and rank."
    return (
        f"Means of a rank for {clip(found.unit, 60)}: times, bytes and FLOPs after are scaled to that work."
    )


@dataclass(frozen=True, slots=True)
class Section:
    """One table."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Row]
    left: int
    """Rows that are not shown."""


def sections(found: Comparison) -> list[Section]:
    """Return every table; those without rows have nothing to say."""
    every = [
        ("What accounts for it", ("cause", "a step", "share", ""), causes(found), 0),
        ("The step", HEADS, times(found), 0),
        ("Computing by module", HEADS, *modules(found)),
        ("Collectives by place", SITE_HEADS, *sites(found)),
        ("Findings", FINDING_HEADS, *findings(found)),
        (
            scaling_words(found),
            ("lost to", "of the rank-time"),
            scaling(found),
            0,
        ),
    ]
    return [Section(*one) for one in every if one[2]]
