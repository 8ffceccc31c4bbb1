"""A report on an incident, compared with its expected findings: found, of the right size, nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from shardtoll.ledger import KINDS, Finding, Report
from shardtoll.samples.incidents.expected import Expected, Proven, Wanted

NEAR: Final = 0.01
"""Bytes and FLOPs are right within this share of the expected value."""

AVOIDABLE: Final = (
    "implicit-redistribute",
    "redundant-collective",
    "sync-every-microbatch",
    "latency-bound",
    "cross-node-traffic",
    "wide-dtype",
    "duplicated-compute",
    "duplicated-data",
)
"""Kinds that say: this work need not be done. Others are about time that work takes, or about the report."""

TIMED: Final = ("latency-bound", "exposed-communication", "serialized-collectives", "straggler", "recompute")
"""Kinds that times decide, in addition to those of the schedule."""

Variant = Literal["bad", "mended", "clean"]


@dataclass(frozen=True, slots=True)
class Missing:
    """One expected finding that is not there as it should be."""

    expected: Expected
    why: str


@dataclass(frozen=True, slots=True)
class Alarm:
    """A finding that nobody expected or proved, of a kind that says something is wrong or avoidable."""

    variant: Variant
    finding: Finding


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one incident came out."""

    wanted: Wanted
    found: tuple[tuple[Expected, Finding], ...]
    """Expected findings that are on the bill, right in kind, place, size and words."""
    missing: tuple[Missing, ...]
    still: tuple[tuple[Expected, Finding], ...]
    """Expected findings that the fixed program has too."""
    alarms: tuple[Alarm, ...]
    weighed: int
    """Findings that precision counts, of both programs."""
    others: int = 0
    """Further findings, of times or of the report itself, which precision leaves out."""
    others_warn: int = 0
    """Those of them that are warnings or errors."""
    runs: int = 1
    """How often it was run: what times decide is run again if it misses."""
    seconds: float | None = None
    failed: str | None = None
    """Why a program did not run, in one line; None if both did."""

    @property
    def unweighed(self) -> int:
        """How many of the expected findings that were found precision leaves out: of times, or a choice."""
        return sum(not is_weighed(finding) for _, finding in self.found)

    @property
    def good(self) -> bool:
        """Whether all was found and nothing else."""
        return not (self.missing or self.still or self.alarms or self.failed)


@dataclass(frozen=True, slots=True)
class Score:
    """Totals over verdicts. A share of nothing is None."""

    expected: int
    found: int
    weighed: int
    false: int
    failed: int
    others: int = 0
    others_warn: int = 0
    unweighed: int = 0
    """Number of found findings that precision leaves out."""
    again: int = 0
    """Incidents that were run more than once."""

    @property
    def recall(self) -> float | None:
        """Expected findings that were found, of all."""
        return self.found / self.expected if self.expected else None

    @property
    def precision(self) -> float | None:
        """Findings that are expected or proven, of all that say something is wrong or avoidable."""
        return 1 - self.false / self.weighed if self.weighed else None

    @property
    def perfect(self) -> bool:
        """Whether everything ran, everything was found and nothing was false."""
        return self.found == self.expected and self.false == 0 and self.failed == 0


def judge(wanted: Wanted, bad: Report, twin: Report | None, seconds: float | None = None) -> Verdict:
    """Compare the reports of an incident's two programs with their expected findings.

    A clean program (nothing expected) has one report, given as `bad`, and `twin` None.
    """
    hits, missing, still = [], [], []
    for expected in wanted.expected:
        there = [finding for finding in bad.findings if _is(expected, finding)]
        # Several may have the kind and place; the text says what is wrong with the nearest of them.
        wrongs = sorted(((_wrongs(expected, finding), finding) for finding in there), key=lambda w: len(w[0]))
        if not wrongs:
            missing.append(Missing(expected, _absent(expected, bad)))
        elif wrongs[0][0]:
            missing.append(Missing(expected, "; ".join(wrongs[0][0])))
        else:
            hits.append((expected, wrongs[0][1]))
        if twin is not None:
            still += [(expected, finding) for finding in twin.findings if _is(expected, finding)]
    alarms, weighed = [], 0
    for variant, report in _variants(wanted, bad, twin):
        for finding in filter(is_weighed, report.findings):
            weighed += 1
            if not _explained(wanted, finding, variant):
                alarms.append(Alarm(variant, finding))
    others = [
        finding
        for variant, report in _variants(wanted, bad, twin)
        for finding in report.findings
        if not is_weighed(finding) and not _explained(wanted, finding, variant)
    ]
    return Verdict(
        wanted,
        tuple(hits),
        tuple(missing),
        tuple(still),
        tuple(alarms),
        weighed,
        others=len(others),
        others_warn=sum(finding.severity != "info" for finding in others),
        seconds=seconds,
    )


def not_run(wanted: Wanted, why: str, seconds: float | None = None) -> Verdict:
    """Return the verdict of an incident of which a program failed: all it should show is missing."""
    missing = tuple(Missing(expected, "did not run") for expected in wanted.expected)
    return Verdict(wanted, (), missing, (), (), 0, seconds=seconds, failed=why)


def total(verdicts: Sequence[Verdict]) -> Score:
    """Return recall and precision over all verdicts."""
    return Score(
        expected=sum(len(verdict.wanted.expected) for verdict in verdicts),
        found=sum(len(verdict.found) for verdict in verdicts),
        weighed=sum(verdict.weighed for verdict in verdicts),
        false=sum(len(verdict.alarms) for verdict in verdicts),
        failed=sum(verdict.failed is not None for verdict in verdicts),
        others=sum(verdict.others for verdict in verdicts),
        others_warn=sum(verdict.others_warn for verdict in verdicts),
        unweighed=sum(verdict.unweighed for verdict in verdicts),
        again=sum(verdict.runs > 1 for verdict in verdicts),
    )


def by_time(verdict: Verdict) -> bool:
    """Whether the error may come from times, which other programs on this machine change."""
    if verdict.failed is not None:
        return "in time" in verdict.failed
    kinds = {missing.expected.kind for missing in verdict.missing}
    kinds |= {expected.kind for expected, _ in verdict.still}
    kinds |= {alarm.finding.kind for alarm in verdict.alarms}
    return all(KINDS[kind] == "schedule" or kind in TIMED for kind in kinds)


def is_weighed(finding: Finding) -> bool:
    """Whether precision counts it: it says that results are wrong, or that work is avoidable.

    Reported as information, and not counted: replicated computation that is a choice, and a reduction that an
    operator needs. The same holds for FSDP's repeated gathers, which hold less memory.
    """
    if KINDS[finding.kind] == "correctness":
        return True
    is_choice = finding.kind in ("duplicated-compute", "implicit-redistribute") and finding.severity == "info"
    return finding.kind in AVOIDABLE and not (is_choice or _is_trade(finding))


def _is_trade(finding: Finding) -> bool:
    """Whether it names the price of redundant collectives as a figure and bills none of it."""
    return (
        finding.kind == "redundant-collective"
        and finding.severity == "info"
        and finding.toll_ns is None
        and finding.figure("exposed_ns") is not None
    )


def _variants(wanted: Wanted, bad: Report, twin: Report | None) -> Iterator[tuple[Variant, Report]]:
    yield "bad" if wanted.expected or twin is not None else "clean", bad
    if twin is not None:
        yield "mended", twin


def _is(what: Expected | Proven, finding: Finding) -> bool:
    where = finding.where
    places = (where.parameter, where.module, where.source, where.op, where.mesh_dim)
    return what.kind in (finding.kind, *finding.also) and any(
        what.place in place for place in places if place is not None
    )


def _explained(wanted: Wanted, finding: Finding, variant: Variant) -> bool:
    if any(_is(proven, finding) and (proven.twin or variant != "mended") for proven in wanted.proven):
        return True
    return variant == "bad" and any(_is(expected, finding) for expected in wanted.expected)


def _absent(expected: Expected, report: Report) -> str:
    elsewhere = [finding.where.label() for finding in report.findings if finding.kind == expected.kind]
    if elsewhere:
        return f"{expected.kind} is at {', '.join(elsewhere[:3])}"
    return f"no {expected.kind}"


def _wrongs(expected: Expected, finding: Finding) -> list[str]:
    """Return the differences from the expected finding, a few words each."""
    wrongs = []
    flops = finding.figure("flops_too_many")
    for name, want, seen in (("bytes", expected.bytes, finding.bytes), ("FLOPs", expected.flops, flops)):
        if want is not None and (seen is None or abs(seen - want) > NEAR * want):
            wrongs.append(f"{'unknown' if seen is None else format(seen, ',')} {name}, not {want:,}")
    if expected.toll_ns is not None:
        least, most = expected.toll_ns
        toll = finding.toll_ns
        if toll is None or not least <= toll <= most:
            wrongs.append(f"toll {'unknown' if toll is None else f'{toll:,}'} ns, not {least:,} to {most:,}")
    words = _words(finding)
    wrongs += [f"does not say {text!r}" for text in expected.says if text not in words]
    return wrongs


def _words(finding: Finding) -> str:
    """Return all a reader sees of a finding."""
    parts = [finding.title]
    for item in finding.evidence:
        parts += [item.label, str(item.value), f"{item.value} {item.unit or ''}"]
    if finding.remedy is not None:
        parts += [finding.remedy.text, finding.remedy.code or "", finding.remedy.counterfactual or ""]
    return "\n".join(parts)
