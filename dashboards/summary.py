"""What every renderer says first: which steps are on record, and one sentence about the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from shardtoll.dashboards import human
from shardtoll.dashboards.step_times import PARTS, longest, rank_times
from shardtoll.dashboards.text import clip
from shardtoll.ledger import Finding, Report
from shardtoll.ledger.levels import in_steps, surveyed_steps
from shardtoll.ledger.work import matmuls

UNBILLED_SHARE: Final = 0.2
"""Share of a step that must not be passed over in silence because no finding has a price for it."""

NAMED_RUNS: Final = 6
"""Runs of surveyed steps, as `0-3`, up to which their numbers are named."""

_IDLE_BILLS: Final = {"data-stall": "data", "host-sync": "host-sync", "pipeline-bubble": "bubble"}
"""Finding kind -> kind of the stalls, parts of idle time, that it prices."""


def ranks_words(ranks: Sequence[int]) -> str:
    """Return `rank 3`, `ranks 0-3`."""
    return f"{'rank' if len(set(ranks)) == 1 else 'ranks'} {human.ranks(ranks)}"


def step_count(report: Report) -> int:
    """Return how many different steps finished on at least one rank."""
    return len(report.tables["steps"].column("step").unique())


def surveyed_count(report: Report) -> int:
    """Return how many of them all their ranks surveyed; the others were only watched."""
    return len(surveyed_steps(report.tables["steps"]))


def levels(report: Report) -> str | None:
    """Return `100 steps: 3 surveyed (0, 2, 52), 97 watched`; None where every step was surveyed.

    Many surveyed steps are counted and not named.
    """
    every, surveyed = step_count(report), surveyed_count(report)
    if every == surveyed:
        return None
    numbers = human.ranks(surveyed_steps(report.tables["steps"]))
    named = f" ({numbers})" if surveyed and numbers.count(",") < NAMED_RUNS else ""
    return f"{human.plural(every, 'step')}: {surveyed:,} surveyed{named}, {every - surveyed:,} watched"


def mean_of(report: Report) -> str:
    """Return what the parts of a step are the mean of, as `mean of 3 surveyed steps`."""
    every, surveyed = step_count(report), surveyed_count(report)
    if surveyed == every:
        return f"mean of {human.plural(every, 'step')}"
    if surveyed:
        return f"mean of {human.plural(surveyed, 'surveyed step')}; watched ones tell time and waits only"
    return f"mean of {human.plural(every, 'watched step')}: what is no exposed comm is unattributed"


def by_severity(findings: Sequence[Finding]) -> list[tuple[int, Finding]]:
    """Return the findings with their numbers on the bill: errors first, otherwise as they stand."""
    ordered = sorted(findings, key=lambda finding: finding.severity != "error")
    return list(enumerate(ordered, start=1))


def checked(report: Report) -> str:
    """Return what was looked at, for a bill that may be empty."""
    tables = report.tables
    things = [
        human.plural(tables["collectives"].num_rows, "collective"),
        human.plural(matmuls(tables["computes"]).num_rows, "matmul-like operator"),
        human.plural(tables["counts"].num_rows, "sequence count"),
    ]
    steps = human.plural(step_count(report), "step")
    surveyed, watched = surveyed_count(report), step_count(report) - surveyed_count(report)
    if watched:
        steps += f" ({surveyed:,} surveyed, {watched:,} watched)"
    return f"{things[0]}, {things[1]} and {things[2]} in {steps} of {ranks_words(report.run.ranks_seen)}"


def headline(report: Report) -> str:
    """Return the one sentence a reader should leave with: the top finding and its weight."""
    if not report.findings:
        return f"Nothing found. Checked: {checked(report)}."
    _, top = by_severity(report.findings)[0]
    errors = sum(finding.severity == "error" for finding in report.findings)
    title = clip(top.title, 300).rstrip(".")
    if errors:
        return f"{human.plural(errors, 'error')}, to be mended before any cost: {title}."
    if top.toll_ns is None:
        return f"First on the bill: {title}. What it costs is unknown."
    unbilled = _unbilled(report)
    if unbilled is None or unbilled.time_ns <= max(finding.toll_ns or 0 for finding in report.findings):
        return f"Dearest: {title}. It costs {human.duration(top.toll_ns)} a step."
    toll = human.duration(top.toll_ns)
    return f"{unbilled.sentence()} Dearest of what is billed: {title}. It costs {toll} a step."


@dataclass(frozen=True, slots=True)
class _Unbilled:
    """Time of the slowest rank's mean step that no finding has a price for."""

    rank: int
    time_ns: float
    total_ns: float
    idle: bool
    """Idle, as against unattributed."""
    on_cpu: bool

    def sentence(self) -> str:
        share, total = human.share(self.time_ns, self.total_ns), human.duration(self.total_ns)
        what = f"{human.duration(self.time_ns)} of rank {self.rank}'s {total} step ({share})"
        if not self.idle:
            return f"{what} is unattributed, which is on no bill."
        if self.on_cpu:
            return f"In {what} no operator runs (Python, loading or sleep), which is on no bill."
        return f"In {what} the device is idle, as its host has launched nothing: that is on no bill."


def _unbilled(report: Report) -> _Unbilled | None:
    """Return the largest part of the slowest rank's step that is on no bill, if it is a large share.

    Idle time that a finding prices (a data stall, a wait for the device, a bubble) is billed.
    """
    time = longest(rank_times(report))
    if time is None or time.total_ns <= 0:
        return None
    rank = time.ranks[0]
    parts = dict(zip((name for name, _ in PARTS), time.parts_ns, strict=True))
    billed_kinds = {_IDLE_BILLS[f.kind] for f in report.findings if f.kind in _IDLE_BILLS}
    stalls = in_steps(report.tables["stalls"], surveyed_steps(report.tables["steps"]))
    billed = sum(
        row["lost_ns"]
        for row in stalls.select(["rank", "kind", "lost_ns"]).to_pylist()
        if row["rank"] == rank and row["kind"] in billed_kinds
    )
    idle, unattributed = parts["idle_ns"], parts["unattributed_ns"]
    if idle is None or unattributed is None:
        # Watched steps alone: most of them is unattributed by design, which says nothing.
        return None
    idle_ns, lost_ns = idle - billed / time.steps, unattributed - time.capture_ns
    found = _Unbilled(
        rank, max(idle_ns, lost_ns), time.total_ns, idle_ns >= lost_ns, report.run.device in (None, "cpu")
    )
    return found if found.time_ns >= UNBILLED_SHARE * time.total_ns else None


def no_hardware(report: Report) -> bool:
    """Whether there is nothing to say of what the hardware allows: jobs on CPUs have no peaks to meet.

    A bound that measurements refute is said even then.
    """
    found = report.roofline
    return found is None or (found.gpu is None and report.run.device == "cpu" and not found.refuted)


def places(finding: Finding) -> list[tuple[str, str]]:
    """Return what is known of where a finding is, as (name, value); the telling part comes first."""
    where = finding.where
    known = {
        "source": where.source,
        "parameter": where.parameter,
        "module": "(root)" if where.module == "" else where.module,
        "op": where.op,
        "phase": where.phase,
        "mesh dim": where.mesh_dim,
        "group": where.group,
    }
    found = [(name, value) for name, value in known.items() if value]
    return found or [("place", where.label())]


def notices(report: Report) -> list[tuple[str, str]]:
    """Return the notices as (kind, text), those that several ranks share only once with their ranks."""
    ranks: dict[tuple[str, str], list[int]] = {}
    for notice in report.notices:
        ranks.setdefault((notice.kind, notice.text), []).append(notice.rank)
    # A file that was left out speaks for itself, whichever rank its notice stands by.
    return [
        (kind, text if kind in ("file-left-out", "file-unreadable") else f"{text} ({ranks_words(seen)})")
        for (kind, text), seen in ranks.items()
    ]
