"""Facts about a run for renderers: which steps are on record, which checks ran, how much time no finding
explains."""

from __future__ import annotations

from typing import Final

import pyarrow.compute as pc

from shardtoll.dashboards.facts.step_times import rank_times
from shardtoll.ledger import KINDS, Finding, Report, Run, Where
from shardtoll.ledger.answers.unbilled import Unbilled
from shardtoll.ledger.records.columns import literal
from shardtoll.ledger.records.levels import in_steps, surveyed_steps
from shardtoll.ledger.records.stall import GRAPH_CAPTURE
from shardtoll.ledger.records.value import UNASKED
from shardtoll.ledger.records.work import matmuls
from shardtoll.ledger.words import human

NAMED_RUNS: Final = 6
"""Runs of surveyed steps, as `0-3`, up to which their numbers are named."""


def step_count(report: Report) -> int:
    """Return how many different steps finished on at least one rank."""
    return len(report.tables["steps"].column("step").unique())


def surveyed_count(report: Report) -> int:
    """Return how many of them all their ranks surveyed; the others were only watched."""
    return len(surveyed_steps(report.tables["steps"]))


def levels(report: Report) -> str | None:
    """Return `100 steps: 3 surveyed (0, 2, 52), 97 watched`; None if every step was surveyed.

    None too for a trace without a device timeline: no step could be surveyed.

    Many surveyed steps are counted and not named.
    """
    every, surveyed = step_count(report), surveyed_count(report)
    if every == surveyed or (not surveyed and report.run.source == "trace"):
        return None
    numbers = human.runs(surveyed_steps(report.tables["steps"]))
    named = f" ({numbers})" if surveyed and numbers.count(",") < NAMED_RUNS else ""
    return f"{human.plural(every, 'step')}: {surveyed:,} surveyed{named}, {every - surveyed:,} watched"


def mean_of(report: Report, *, brief: bool = False) -> str:
    """Return the steps that the parts are the mean of, as `mean of 3 surveyed steps`.

    It is `only one surveyed` of one step: nothing was averaged. `brief`: without how they were divided.
    """
    every, surveyed = step_count(report), surveyed_count(report)
    if unmarked(report):
        return "whole recording" if brief else "the whole recording"
    if surveyed == every:
        return _mean_of(every, "step", brief=brief)
    times = rank_times(report)
    error = parts_error_ns(report)
    if error is not None:
        steps = max(time.steps for time in times)
        mean, noise = _mean_of(steps, "watched step", brief=brief), f"± {human.duration(error)}"
        if brief:
            return f"{mean}, compute and idle {noise}"
        divided = f"compute and idle are divided as in {human.plural(surveyed, 'surveyed one')}"
        return f"{mean}; {divided}, {noise}"
    if surveyed:
        mean, more = (
            _mean_of(surveyed, "surveyed step", brief=brief),
            "; watched ones tell time and waits only",
        )
    elif report.run.source == "trace":
        mean, more = (
            _mean_of(every, "step", brief=brief),
            " (no device timeline, so all of it is unattributed)",
        )
    else:
        mean, more = (
            _mean_of(every, "watched step", brief=brief),
            " (all but exposed comm is unattributed)",
        )
    return mean if brief else mean + more


def unmarked(report: Report) -> bool:
    """Return whether no trace marks steps, so that start-up and all steps are one."""
    without = set(unmarked_ranks(report))
    return report.run.source == "trace" and bool(without) and without >= set(report.run.ranks_seen)


def unmarked_ranks(report: Report) -> list[int]:
    """Return the ranks whose traces mark no steps."""
    return sorted({notice.rank for notice in report.notices if notice.kind == "no-steps"})


def no_marks(report: Report) -> str | None:
    """Return what figures of a trace without marked steps are of, and what to do; None if it has them."""
    if not unmarked(report):
        return None
    head = "No steps are marked: figures are of the whole recording"
    if report.run.workload == "inference":
        return f"{head}; put record_function around each pass"
    return f"{head}, start-up included; call prof.step()"


def _mean_of(count: int, kind: str, *, brief: bool) -> str:
    if count != 1:
        return f"mean of {human.plural(count, kind)}"
    # In full it stands after the word step.
    return f"one {kind}" if brief else f"only one {kind.removesuffix('step').strip() or 'recorded'}"


def parts_error_ns(report: Report) -> float | None:
    """Return how far compute and idle time of the step shown may be off; None if its parts were measured."""
    times = rank_times(report)
    if not times or not all(time.divided for time in times):
        return None
    return max(time.error_ns or 0.0 for time in times)


def base_of_tolls(report: Report) -> str:
    """Return which steps times are means of, as a clause, if the step that is shown is a watched one."""
    times = rank_times(report)
    if not surveyed_count(report) or not times or all(time.watched_ns is None for time in times):
        return ""
    return "; times are means over the watched steps if these tell them, counts and bytes over all"


def base_of_traffic(report: Report) -> str:
    """Return which steps the times of the table of collectives are of, as a clause; else ""."""
    return "; times are those of watched steps" if base_of_tolls(report) else ""


def recording(report: Report) -> str | None:
    """Return the cost of recording a surveyed step, as far as known; None for a trace or if it is nothing.

    Times that are shown do not include it if watched steps have them.
    """
    rows = in_steps(report.tables["steps"], surveyed_steps(report.tables["steps"]))
    if report.run.source != "live" or not rows.num_rows:
        return None
    sums = {name: pc.sum(rows.column(name)).as_py() / rows.num_rows for name in ("capture_ns", "duration_ns")}
    if not sums["capture_ns"]:
        return None
    took, cost = human.duration(sums["duration_ns"]), human.duration(sums["capture_ns"])
    if all(time.divided for time in rank_times(report)):
        watched = max(time.left_out_ns for time in rank_times(report))
        more = f", and a watched one {human.duration(watched)}" if watched else ""
        return f"Recording costs a surveyed step {cost} of its {took}{more}; no time here includes it."
    return f"Times include the recording: at least {cost} of the {took} step (capture)."


def forecast_of(run: Run) -> str | None:
    """Return which rank of a dry run is forecast; None of a run that was recorded."""
    if not run.is_forecast:
        return None
    return f"forecast of {human.ranks(run.ranks_seen)} of {run.world_size:,} · nothing measured"


def checked(report: Report) -> str:
    """Return what was looked at, for a bill that may be empty."""
    counts = _checked_counts(report)
    things = [human.plural(count, word) for word, count in counts.items()]
    return f"{things[0]}, {things[1]} and {things[2]} in {_checked_steps(report)}"


def nothing_found(report: Report) -> str:
    """Return that there are no findings and what was looked at; missing records are mentioned once."""
    there = [human.plural(count, word) for word, count in _checked_counts(report).items() if count]
    steps = _checked_steps(report)
    if not there:
        return f"no findings in {steps}: no collectives and no shapes of operators are on record"
    return f"no findings; checked: {', '.join(there)} in {steps}"


def _checked_counts(report: Report) -> dict[str, int]:
    tables = report.tables
    return {
        "collective": tables["collectives"].num_rows,
        "matmul-like operator": matmuls(tables["computes"]).num_rows,
        "sequence count": tables["counts"].num_rows,
    }


def _checked_steps(report: Report) -> str:
    steps = human.plural(step_count(report), "step")
    surveyed, watched = surveyed_count(report), step_count(report) - surveyed_count(report)
    if watched:
        steps += f" ({surveyed:,} surveyed, {watched:,} watched)"
    return f"{steps} of {human.ranks(report.run.ranks_seen)}"


_CHECKS: Final = {
    "gradients": "gradients of replicas",
    "reference": "gradients against a reference",
    "norms": "gradient norms",
    "replicas": "replicas",
    "data": "batches",
}


def sound_checks(report: Report) -> str | None:
    """Return which checks ran and found nothing wrong, in one line; None if none did."""
    parts = []
    for check in report.sound_checks:
        if check.groups is not None:
            parts.append(f"completeness of {human.plural(check.groups, 'group')}")
            continue
        name = _CHECKS.get(check.name, check.name)
        numbers = human.runs(check.steps)
        few = numbers.count(",") < NAMED_RUNS
        word = "step" if len(check.steps) == 1 else "steps"
        steps = f"{word} {numbers}" if few else human.plural(len(check.steps), "step")
        parts.append(f"{name} ({steps})" if check.steps else name)
    return f"Checks that found nothing: {', '.join(parts)}." if parts else None


def values_unasked(report: Report) -> str | None:
    """Return what to add to a run of several ranks whose values nobody compared, or a dry run, which has
    none; None for any other.

    Without a check a wrong gradient costs no time, so nothing else on the bill would show it.
    """
    if _dry_of_several(report):
        return (
            "A dry run has one rank and no values: it does not look for gradients that no collective "
            "reduces. `shardtoll run` on two ranks does."
        )
    if report.run.source != "live" or len(report.run.ranks_seen) < 2 or not _trained(report):
        return None
    if not set(pc.unique(report.tables["values"].column("kind")).to_pylist()) <= set(UNASKED):
        return None
    checked = pc.equal(report.tables["notices"].column("kind"), literal("gradients-checked"))
    if pc.any(checked).as_py() or any(KINDS[found.kind] == "correctness" for found in report.findings):
        return None
    return (
        "Gradients, replicas and batches were not compared, so a wrong one does not show: "
        "`shardtoll run --checks gradients,replicas,data`, or audit(model, checks=...)."
    )


def values_unasked_in_a_line(report: Report, width: int) -> str | None:
    """Return the same for a screen of `width` columns."""
    if values_unasked(report) is None:
        return None
    if _dry_of_several(report):
        return "Not looked for in a dry run: gradients that no collective reduces"
    checks = "--checks gradients,replicas,data"
    whole = f"Gradients were not compared; to find wrong ones: shardtoll run {checks}"
    return whole if len(whole) <= width else f"Gradients not compared: {checks}"


def _dry_of_several(report: Report) -> bool:
    """Whether the run is a dry one of several ranks; its steps are those of an optimizer, so it trains."""
    return report.run.source == "dry" and report.run.world_size > 1


def _trained(report: Report) -> bool:
    tables = (report.tables["collectives"], report.tables["computes"])
    return any("backward" in pc.unique(table.column("phase")).to_pylist() for table in tables)


def second_line(report: Report) -> str | None:
    """Return a plain line about the run, for under its verdict; None if there is nothing to add.

    Without findings it says what was looked at. Else it says how much of a step no finding explains, if that
    is more than any finding costs. It adds nothing to errors, nor if the cost of the first finding is
    unknown.
    """
    if not report.findings:
        return f"Checked: {checked(report)}."
    return _unbilled(report.unbilled, report.run) if report.unbilled and unbilled_leads(report) else None


def unbilled_leads(report: Report) -> bool:
    """Return whether the second line is about time that no finding explains."""
    if report.unbilled is None or not report.findings:
        return False
    top = report.findings[0]
    if top.severity == "error" or top.toll_ns is None:
        return False
    return report.unbilled.time_ns > max(finding.toll_ns or 0 for finding in report.findings)


def _unbilled(unbilled: Unbilled, run: Run) -> str:
    share, step = human.share(unbilled.time_ns, unbilled.step_ns), human.duration(unbilled.step_ns)
    if not unbilled.idle:
        why = "that time is unattributed"
    elif (did := doing(unbilled)) is not None:
        why = f"the device is idle, and {did}"
    elif run.device == "cpu" or (run.device is None and run.source == "live"):
        why = f"no operator runs (Python, loading or sleep){how_to_find(run)}"
    else:
        why = f"the device is idle, as its host has launched nothing{how_to_find(run)}"
    time = human.duration(unbilled.time_ns)
    return f"No finding explains {time} ({share}) of rank {unbilled.rank}'s {step} step: {why}."


def how_to_find(run: Run) -> str:
    """Return a clause on how to find the code of a host in idle time that is in no finding; empty for a
    forecast, whose host ran nowhere."""
    if run.is_forecast:
        return ""
    return (
        "; py-spy dump shows the line" if run.source == "live" else "; trace with_stack=True to see its code"
    )


def doing(unbilled: Unbilled) -> str | None:
    """Return the host's work in most of the idle time that is in no finding, in words; None if not known."""
    if unbilled.doing_ns is None:
        return None
    if unbilled.doing == GRAPH_CAPTURE:
        return "its host records a CUDA graph, and nothing of it runs yet; record steps that replay it"
    place = unbilled.source or unbilled.library
    if unbilled.source and unbilled.library:
        place = f"{unbilled.library}, called at {unbilled.source}"
    return f"for {human.duration(unbilled.doing_ns)} its host is in {place}"


def no_hardware(report: Report) -> bool:
    """Whether the hardware's limits do not apply: jobs on CPUs have no peaks to meet.

    A bound that measurements refute is mentioned even then.
    """
    roofline = report.roofline
    return roofline is None or (roofline.gpu is None and report.run.device == "cpu" and not roofline.refuted)


def places(finding: Finding) -> list[tuple[str, str]]:
    """Return the known facts about a finding's place, as (name, value); the specific part comes first."""
    return where_parts(finding.where)


def where_parts(where: Where) -> list[tuple[str, str]]:
    """Return the known facts about a place, as (name, value); the specific part comes first.

    The line of the user's code stands with the library's that it called, as `train.py:12 (main), in
    lightning/pytorch/loops/optimization/automatic.py:250 (optimizer_step)`.
    """
    source = where.source
    if source and where.library:
        source = f"{source}, in {where.library}"
    values = {
        "source": source,
        "parameter": where.parameter,
        "module": "(root)" if where.module == "" else where.module,
        "op": where.op,
        "phase": where.phase,
        "mesh dim": where.mesh_dim,
        "group": where.group,
    }
    named = [(name, value) for name, value in values.items() if value]
    return named or [("place", where.label())]


def some_ranks(finding: Finding, run: Run) -> str | None:
    """Return the ranks that a finding is of, in words; None if it is of all that were seen."""
    return None if set(finding.ranks) == set(run.ranks_seen) else human.ranks(finding.ranks)


def occurrences(finding: Finding) -> list[str]:
    """Return each place of a finding that has several, in one line: where, how often and what it costs."""
    lines = []
    for each in finding.places:
        often = f"{human.number(each.count)} per step" if each.count else "less than once per step"
        cost = "" if each.toll_ns is None else f", {human.duration(each.toll_ns)}"
        lines.append(f"{' · '.join(value for _, value in where_parts(each.where))}: {often}{cost}")
    return lines


def notices(report: Report) -> list[tuple[str, str]]:
    """Return the notices as (kind, text), those that several ranks share only once with their ranks."""
    ranks: dict[tuple[str, str], list[int]] = {}
    for notice in report.notices:
        ranks.setdefault((notice.kind, notice.text), []).append(notice.rank)
    # A file that was left out has its own notice, whichever rank that stands by.
    return [
        (kind, text if kind in ("file-left-out", "file-unreadable") else f"{text} ({human.ranks(seen)})")
        for (kind, text), seen in ranks.items()
    ]
