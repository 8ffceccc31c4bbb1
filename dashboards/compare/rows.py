"""Results of `shardtoll compare`, as plain lines that every renderer of it shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from msgspec import Struct

from shardtoll.dashboards.words.text import clip
from shardtoll.ledger.answers.comparison import Change, Comparison, FindingChange, ModuleChange, SiteChange
from shardtoll.ledger.words import human

SHOWN: Final = 12
"""Unchanged modules and collectives that are listed, the heaviest; all are in the JSON."""
FINDINGS_SHOWN: Final = 12
MEAN_STEP: Final = "step, mean of the ranks"
_TEXT: Final = 300
_NAME: Final = 160

Row = tuple[str, ...]
HEADS: Final = ("per step", "before", "after", "change", "interval", "least seen", "")
SITE_HEADS: Final = ("collective", "calls", "bytes", "exposed", "waiting", "")
FINDING_HEADS: Final = ("finding", "place", "before", "after", "")


def change(figure: Change) -> Row:
    """Return name, before, after, change, its interval, the least change that is seen, and the verdict."""
    was, now = (
        f"{'at least ' if bound else ''}{_value(value, figure.unit)}"
        for value, bound in zip((figure.before, figure.after), figure.at_least, strict=True)
    )
    interval = "exact"
    if figure.low is not None and figure.high is not None:
        interval = f"{_signed(figure.low, figure.unit)} to {_signed(figure.high, figure.unit)}"
    elif figure.verdict in ("unknown", "too few steps"):
        interval = "-"
    least = "-" if figure.least is None else _value(figure.least, figure.unit)
    return clip(figure.name, _NAME), was, now, difference(figure), interval, least, figure.verdict


def difference(figure: Change) -> str:
    """Return `+1.20 ms (+5.2 %)`, `none` or `unknown`."""
    by = figure.difference
    if by is None:
        return human.UNKNOWN
    if by == 0:
        return "none"
    share = f" ({100 * by / figure.before:+.3g} %)" if figure.before else " (new)"
    return f"{_signed(by, figure.unit)}{share}"


def _value(value: float | None, unit: str | None) -> str:
    if value is None:
        return human.UNKNOWN
    return human.quantity(round(value, 2) if unit is None else round(value), unit)


def _signed(value: float, unit: str | None) -> str:
    return f"{'+' if value > 0 else '-' if value < 0 else ''}{_value(abs(value), unit)}"


def times(comparison: Comparison) -> list[Row]:
    """Return the step, its parts, the totals, and the ranks that changed by themselves.

    The step of the slowest rank, which is a report's step, is the first of the totals. It stands above the
    mean of the ranks, to which the parts add up.
    """
    first, totals = [comparison.step], comparison.totals
    if max(comparison.before.ranks_seen, comparison.after.ranks_seen) > 1:
        first, totals = [totals[0], replace(comparison.step, name=MEAN_STEP)], totals[1:]
    return [change(figure) for figure in (*first, *comparison.parts, *totals, *comparison.ranks)]


def causes(comparison: Comparison) -> list[Row]:
    """Return each cause with what it adds to a step and its share; the last row is the rest."""
    rows: list[Row] = [
        (
            clip(cause.text, _TEXT),
            _signed(cause.change_ns, "ns"),
            _share(cause.share),
            "" if cause.certain else "its time is within noise",
        )
        for cause in comparison.causes
    ]
    if rows and comparison.unexplained_ns is not None:
        whole = comparison.step.difference
        share = comparison.unexplained_ns / whole if comparison.step.changed and whole else None
        rows.append(("unexplained", _signed(comparison.unexplained_ns, "ns"), _share(share), ""))
    return rows


def _share(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.3g} %"


def modules(comparison: Comparison) -> tuple[list[Row], int]:
    """Return the changed modules and the first of the others, and how many are left out."""
    shown = _shown(comparison.modules, [_module_changed(each) for each in comparison.modules])
    rows = []
    for module in shown:
        row = change(module.time)
        said = row[-1]
        if module.formats:
            said += f", {clip(module.formats[0], 40)} -> {clip(module.formats[1], 40)}"
        if module.work.changed:
            said += f", FLOPs {difference(module.work)}"
        rows.append((*row[:-1], said))
    return rows, len(comparison.modules) - len(shown)


def _module_changed(module: ModuleChange) -> bool:
    return module.time.changed or module.work.changed or module.formats is not None


def sites(comparison: Comparison) -> tuple[list[Row], int]:
    """Return the changed collectives and the first of the others, and how many are left out."""
    shown = _shown(comparison.sites, [each.what != "none" for each in comparison.sites])
    return [site(each) for each in shown], len(comparison.sites) - len(shown)


def _shown(every: Sequence[SiteChange | ModuleChange], changed: Sequence[bool]) -> list:  # type: ignore[type-arg]
    rest = SHOWN
    shown = []
    for each, is_changed in zip(every, changed, strict=True):
        if is_changed or rest > 0:
            shown.append(each)
            rest -= not is_changed
    return shown


def site(collective: SiteChange) -> Row:
    """Return one collective: its place, and what became of its calls, bytes and times."""
    place = " · ".join(
        part
        for part in (
            collective.op,
            collective.cause if collective.cause != collective.op else None,
            collective.module or None,
            collective.phase,
            collective.group,
            _arrow(collective.dtypes),
            _arrow(tuple(None if size is None else human.size(size) for size in collective.message_bytes)),
            collective.source,
        )
        if part
    )
    return (
        clip(place, _TEXT),
        *(
            _brief(each)
            for each in (collective.calls, collective.bytes, collective.exposed, collective.waiting)
        ),
        "same" if collective.what == "none" else collective.what,
    )


def _arrow(pair: Sequence[str | None]) -> str | None:
    values = [value for value in dict.fromkeys(pair) if value]
    return " -> ".join(values) if values else None


def _brief(figure: Change) -> str:
    """Return `2 -> 4`, or one figure with `~` if its change is within noise."""
    was, now = (_value(value, figure.unit) for value in (figure.before, figure.after))
    if was == now:
        return was
    return f"{was} -> {now}" if figure.changed else f"{was} ~ {now}"


def findings(comparison: Comparison) -> tuple[list[Row], int]:
    """Return the findings as the comparison has them, and how many are left out."""
    rows: list[Row] = [
        (
            f"{finding.severity} {finding.kind}",
            clip(finding.place, _NAME),
            _bill(finding.before, finding.toll_ns[0]),
            _bill(finding.after, finding.toll_ns[1]),
            _became(finding),
        )
        for finding in comparison.findings
    ]
    return rows[:FINDINGS_SHOWN], max(0, len(rows) - FINDINGS_SHOWN)


def _bill(number: int | None, toll_ns: int | None) -> str:
    if number is None:
        return "-"
    return f"#{number}" + ("" if toll_ns is None else f", {human.duration(toll_ns)}")


def _became(finding: FindingChange) -> str:
    if finding.before is not None and finding.after is not None:
        return "on both"
    word = "new" if finding.before is None else "gone"
    return word if finding.firm else f"{word}, by times: may be noise"


def scaling(comparison: Comparison) -> list[Row]:
    """Return the loss of efficiency by part; they add up to it."""
    if comparison.scaling is None:
        return []
    return [(loss.name, f"{100 * loss.share:+.2f} %") for loss in comparison.scaling.losses]


def scaling_words(comparison: Comparison) -> str:
    """Return `strong scaling, 4 -> 8 ranks: 1.60x the work a second, efficiency 80 % (why it is strong)`."""
    spread = comparison.scaling
    if spread is None:
        return ""
    ranks = f"{spread.ranks[0]} -> {spread.ranks[1]} ranks"
    why = f" ({clip(spread.why, _TEXT)})" if spread.why else ""
    if spread.if_weak is not None:
        return (
            f"scaling, {ranks}: strong and weak scaling look the same{why}. Efficiency "
            f"{100 * spread.efficiency:.1f} % if strong, as below; {100 * spread.if_weak:.1f} % if weak"
        )
    kind = {"given": "scaling by the work given", "batch": "scaling by the effective batch"}.get(
        spread.kind, f"{spread.kind} scaling"
    )
    return (
        f"{kind}, {ranks}: {human.factor(spread.speedup)} the work a second, "
        f"efficiency {100 * spread.efficiency:.1f} %{why if spread.kind != 'given' else ''}"
    )


def unit_words(comparison: Comparison) -> str:
    """Return the basis of the figures."""
    if comparison.unit is None:
        return "Means per step and rank."
    unit = clip(comparison.unit, 60)
    return f"Means of a rank for {unit}: times, bytes and FLOPs after are scaled to that work."


class Section(Struct, frozen=True):
    """One table."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Row]
    left: int
    """Rows that are not shown."""


def sections(comparison: Comparison) -> list[Section]:
    """Return every table; those without rows have nothing to say."""
    every = [
        ("Causes of the change", ("cause", "per step", "share", ""), causes(comparison), 0),
        ("Findings, by how much they differ", FINDING_HEADS, *findings(comparison)),
        ("The step", HEADS, times(comparison), 0),
        ("Computing by module", HEADS, *modules(comparison)),
        ("Collectives by place", SITE_HEADS, *sites(comparison)),
        (
            scaling_words(comparison),
            ("lost to", "of the rank-time"),
            scaling(comparison),
            0,
        ),
    ]
    return [Section(*table) for table in every if table[2]]
