"""Facts of the first screen: the run in a line, the step's parts, the findings that come first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from shardtoll.dashboards.facts import step_times, summary
from shardtoll.dashboards.facts.first_screen.drawn import drawn_ns, words
from shardtoll.dashboards.facts.first_screen.first_rows import DIVIDED, LEAST_SHARE, Row, worth_showing
from shardtoll.dashboards.facts.step_times import RankTime
from shardtoll.dashboards.words.mesh_words import mesh_words
from shardtoll.ledger import Finding, Report
from shardtoll.ledger.records.one_cause import of_late_launches
from shardtoll.ledger.words import human

RANKS: Final = 3
CLAUSE: Final = 94
"""Characters of a remedy with its effort on the first screen, if it can be cut after a clause."""
LEAST_WORDS: Final = 4
LEAST_LATE: Final = 0.05
"""Part of a step that others must wait for a rank before information on it marks the rank."""
_SMALL: Final = ("a flag", "one line")
_ARGUMENT: Final = re.compile(
    r"(?<![\w.])([a-z_]\w*)=(?:True|False|\"[^\"]*\"|\d[\w. *]*(?:\([^()]*\))?)(?=[,)])"
)
"""An argument of a call that is set to a value, as `num_workers=4`."""
_BETWEEN: Final = "outside the model"
_BEYOND: Final = {"hidden": "if hidden", "left out": "if gone"}
"""How a saving can be more than toll less floor: the transfer overlaps compute, or is removed."""


class Bar(Struct, frozen=True):
    """The mean step of one rank, or of several folded into one."""

    name: str
    total_ns: float
    parts: tuple[tuple[int, float], ...]
    """(place in `DRAWN`, ns) of the parts that are known, in the order of `DRAWN`."""
    split: bool = False
    """Whether waiting or moving is known of some rank's exposed communication."""

    @property
    def shares(self) -> tuple[str, ...]:
        """Return the parts, as `compute 97 %`, the largest first; none if no part is known."""
        large = [part for part in self.parts if part[1] >= LEAST_SHARE * self.total_ns > 0]
        named = sorted(large, key=lambda part: -part[1])
        return tuple(
            f"{words(place, split=self.split)[0]} {human.share(part_ns, self.total_ns)}"
            for place, part_ns in named
        )


def bars(report: Report) -> list[Bar]:
    """Return the ranks that stand out, by rank, and the mean of all others; empty if no step finished.

    Each rank next to a mean has a word for why it stands there. A few ranks are all shown.
    """
    times = step_times.rank_times(report)
    late = tuple(dict.fromkeys((*waited_for(report), *slow_stages(report))))
    marks = marks_of(report, times) if late or (len(times) > 1 and not _alike(times)) else {}
    shown, rest = step_times.fold(times, max(RANKS, len(late) + 1), first=late)
    if rest is not None:
        second = next((time for time in shown if time.ranks not in marks), None)
        if second is not None and marks and not late and not _alike([second, rest]):
            marks[second.ranks] = "2nd slowest"
        fewer, others = step_times.fold(times, len(marks) + 1, first=late)
        if len(fewer) < len(shown) and all(time.ranks in marks for time in fewer):
            shown, rest = fewer, others
    listed = [*shown, rest] if rest else shown
    split = any(time.waiting_ns or time.moving_ns for time in listed)
    return [_bar(time, marks.get(time.ranks, ""), alone=not shown, split=split) for time in listed]


def waited_for(report: Report) -> tuple[int, ...]:
    """Return the ranks that findings on the screen say are late, the most expensive first, at most `RANKS`.

    Empty if there is none, if ranks take turns, or if others hardly wait for any.
    """
    longest = max((time.step_ns for time in step_times.rank_times(report)), default=0.0)
    late = [
        finding.ranks[0]
        for finding in (row.finding for row in worth_showing(report))
        if finding.kind == "straggler"
        and len(finding.ranks) == 1
        # If ranks take turns, one of them may be alone here: then no saving is known.
        and (
            finding.severity != "info"
            or (finding.saving_ns is not None and (finding.toll_ns or 0) >= LEAST_LATE * longest)
        )
    ]
    return tuple(dict.fromkeys(late))[:RANKS]


def slow_stages(report: Report) -> tuple[int, ...]:
    """Return the rank that a finding on the screen names for the slowest stage of a pipeline; else empty."""
    findings = [row.finding for row in worth_showing(report)]
    uneven = [finding.ranks for finding in findings if finding.kind == "pipeline-imbalance"]
    return uneven[0] if uneven and len(uneven[0]) == 1 else ()


def marks_of(report: Report, times: Sequence[RankTime]) -> dict[tuple[int, ...], str]:
    """Return ranks -> the word to stand by their name: the ranks to look at.

    They are late ranks, and the slowest stage of a pipeline, if there are any. The slowest rank is often
    another one, which waits for them longest.
    """
    named: dict[tuple[int, ...], str] = {(rank,): "slowest stage" for rank in slow_stages(report)}
    named |= {(rank,): "late" for rank in waited_for(report)}
    return named or step_times.marks(times)


def _alike(times: Sequence[RankTime]) -> bool:
    """Return whether no rank's step is longer by a share that is worth a word."""
    longest = max(time.step_ns for time in times)
    return min(time.step_ns for time in times) >= (1 - LEAST_SHARE) * longest


def _bar(time: RankTime, mark: str, *, alone: bool, split: bool) -> Bar:
    """Return the bar of a rank or a mean; `alone`: no rank is shown next to the mean."""
    several = f"mean of {len(time.ranks):,} {'ranks' if alone else 'others'}"
    name = f"rank {time.ranks[0]}" if len(time.ranks) == 1 else several
    parts = tuple((place, part) for place, part in enumerate(drawn_ns(time)) if part is not None)
    return Bar(f"{name} {mark}".rstrip(), time.total_ns, parts, split)


def run_line(report: Report, width: int | None = None) -> str:
    """Return what ran, on what, and how many steps of which ranks are on record, or that it is a forecast.

    In a line of `width` columns the backend, hosts and mesh are left out, in this order, until the rest fits.
    """
    run = report.run
    seen, world = len(run.ranks_seen), run.world_size
    few = human.plural(world, "rank") if seen == world else f"{seen:,} of {world:,} ranks seen"
    # No backend ran in a dry run.
    backend = None if run.is_forecast else run.backend
    hosts = human.plural(len(run.hosts), "host") if len(run.hosts) > 1 else None
    mesh = mesh_words(run)
    parts = [
        *(summary.forecast_of(run) or few, run.device, backend, hosts, mesh),
        summary.levels(report) or _steps(report),
        f"fabric {report.fabric.name}",
    ]
    for spare in (backend, hosts, mesh):
        line = " · ".join(part for part in parts if part)
        if width is None or len(line) <= width:
            return line
        parts = [part for part in parts if part is not spare]
    if width is not None and len(" · ".join(part for part in parts if part)) > width:
        parts = [_steps(report, brief=True) if part == _steps(report) else part for part in parts]
    return " · ".join(part for part in parts if part)


def _steps(report: Report, *, brief: bool = False) -> str:
    """Return how many steps are on record, if a trace marks none of them, and if it begins within one.

    `brief`: without who begins there.
    """
    without = summary.unmarked_ranks(report)
    every = set(without) >= set(report.run.ranks_seen)
    steps = "no steps marked" if without and every else human.plural(summary.step_count(report), "step")
    verb = "marks" if len(without) == 1 else "mark"
    said = [f"{human.ranks(without)} {verb} none"] if without and not every else []
    torn = sorted({notice.rank for notice in report.notices if notice.kind == "launches-unseen"})
    if torn and brief:
        said.append("cut in mid-step")
    elif torn:
        every = len(torn) == len(report.run.ranks_seen)
        begins = "begins" if len(torn) == 1 or every else "begin"
        said.append(f"{begins if every else f'{human.ranks(torn)} {begins}'} in mid-step")
    return f"{steps} ({', '.join(said)})" if said else steps


def figures(finding: Finding, error_ns: float | None = None, saved_with: int | None = None) -> list[str]:
    """Return toll, floor and saving in words, and the same with less said, for narrower lines.

    The saving stays longest: it says whether the fix is worth the work.

    Without a toll it is how often the finding happens. `error_ns`: how far compute and idle time may be off;
    a smaller toll of that time is noise. Communication is timed by itself. `saved_with`: number of the
    finding of the same cause, whose fix holds the saving of this one.
    """
    if finding.toll_ns is None:
        return [f"{human.often(finding.count)} per step"] if finding.count > 1 else [""]
    texts = {name: f"{name} {human.duration(getattr(finding, f'{name}_ns'))}" for name in _known(finding)}
    if finding.remedy_saves_ns == 0:
        texts["saving"] = "saving 0 (replayed)" if finding.replayed else "saving 0"
        texts["saving"] = texts["saving"] if saved_with is None else f"saving: with finding {saved_with}"
    beyond = "" if finding.beyond_floor is None else f" ({_BEYOND[finding.beyond_floor]})"
    if _is_noise(finding, error_ns):
        texts["toll"] = f"{texts['toll']} (within noise)"
    return [
        " · ".join(texts[name] for name in names) + (beyond if "floor" in names else "")
        for names in figure_names(finding, error_ns)
    ]


def figure_names(finding: Finding, error_ns: float | None = None) -> list[tuple[str, ...]]:
    """Return which of toll, floor and saving each entry of `figures` shows."""
    names = _known(finding)
    if _is_noise(finding, error_ns) and finding.saving_ns == finding.toll_ns:
        # A saving as large would be read as a second figure, and it is the same noise.
        return [("toll",)] * 3
    without_floor = tuple(name for name in names if name != "floor")
    return [names, without_floor, without_floor[-1:]] if names else [()]


def _is_noise(finding: Finding, error_ns: float | None) -> bool:
    """Return whether its toll is compute or idle time of less than that error."""
    toll_ns = finding.toll_ns
    return error_ns is not None and toll_ns is not None and toll_ns < error_ns and finding.family in DIVIDED


def _known(finding: Finding) -> tuple[str, ...]:
    if finding.toll_ns is None:
        return ()
    values = {"toll": finding.toll_ns, "floor": finding.floor_ns, "saving": finding.remedy_saves_ns}
    names = [name for name, value in values.items() if value is not None]
    # Nothing has to be sent at all: a floor of 0 looks like a fault.
    return tuple(name for name in names if name != "floor" or finding.floor_ns)


def saved_with(report: Report, number: int) -> int | None:
    """Return which other finding of the same cause holds the saving of that one; None without one."""
    shared = of_late_launches(report.findings)
    others = [place + 1 for place in shared if place + 1 != number and report.findings[place].saving_ns]
    return others[0] if number - 1 in shared and others else None


def more_like(row: Row) -> str | None:
    """Return which findings share the row of the first; None if it stands alone. Each has its own figures.

    Errors that it causes are named by their kinds: they go with it.
    """
    said = []
    if row.more:
        numbers = row.numbers[1 : 1 + len(row.more)]
        word = "finding" if len(row.more) == 1 else "findings"
        said.append(f"{len(row.more)} more like it ({word} {human.runs(numbers)})")
    if row.follow:
        numbers = tuple(number for _, each in row.follow for number in each)
        kinds = " and ".join(kind for kind, _ in row.follow)
        word, verb = ("finding", "is") if len(numbers) == 1 else ("findings", "are")
        said.append(f"{word} {human.runs(numbers)} ({kinds}) {verb} its consequence")
    return "; ".join(said) or None


def place(finding: Finding, report: Report) -> str:
    """Return the most specific part of a finding's place, and the ranks if not all."""
    if finding.kind == "straggler" and len(finding.ranks) == 1:
        return _late_place(finding, report)
    (_, where), *_ = summary.places(finding)
    where = {"other": _BETWEEN, "(root)": "whole model"}.get(where, where)
    some = summary.some_ranks(finding, report.run) if finding.ranks else None
    if finding.kind == "straggler":
        where = "other waits" if _one_is_late(report) else where
        some = "late rank changes" if some is None else f"late rank changes: {some}"
    return where if some is None else f"{where}, {some}{_rest_of_launches(finding, report)}"


def _rest_of_launches(finding: Finding, report: Report) -> str:
    """Return ` (rank 3: finding 2)` if the rank that launches latest has a line of its own."""
    linked = of_late_launches(report.findings) if finding.kind == "launch-bound" else []
    late = [place for place in linked if report.findings[place].kind != finding.kind]
    named = [f"{human.ranks(report.findings[place].ranks)}: finding {place + 1}" for place in late]
    return f" ({', '.join(named)})" if named else ""


def _one_is_late(report: Report) -> bool:
    return any(each.kind == "straggler" and len(each.ranks) == 1 for each in report.findings)


def _late_place(finding: Finding, report: Report) -> str:
    """Return in which phase a rank is late, which one it is, and on which host if there are several."""
    run, (rank,) = report.run, finding.ranks
    named = dict(zip(run.ranks_seen, run.rank_hosts, strict=False)) if len(run.hosts) > 1 else {}
    host = f" on {named[rank]}" if named.get(rank) else ""
    phase = f"{finding.where.phase}, " if finding.where.phase else ""
    waiting = "others wait" if run.world_size > 2 else "the other waits"
    return f"{phase}rank {rank}{host}: {waiting}"


def remedy(finding: Finding, room: int = CLAUSE) -> str:
    """Return the remedy in a clause with its effort; what happened if there is no remedy.

    A sentence that is longer than `room` ends before its explanation, if it is still an order then.
    """
    if finding.remedy is None:
        return finding.title
    effort = _effort(finding.remedy.effort, finding.remedy.code or "", finding.remedy.text)
    first = finding.remedy.text.partition(". ")[0].rstrip(".")
    for mark in (": ", " (", ", and ", ", as ", ", ", " and "):
        head = first.partition(mark)[0]
        if len(first) + len(effort) > room and len(head.split()) >= LEAST_WORDS:
            first = head
    return f"{first}{effort}"


def _effort(effort: str | None, code: str, text: str) -> str:
    """Return ` (fix: a flag, broadcast_buffers=False)`: a small fix with the argument that its code sets."""
    if effort is None:
        return ""
    argument = _ARGUMENT.search(code) if effort in _SMALL else None
    named = "" if argument is None or f"{argument[1]}=" in text else f", {argument[0]}"
    return f" (fix: {effort}{named})"
