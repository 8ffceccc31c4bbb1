"""What the bill does not see: ranks, steps, times that are missing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.context.held import is_gloo
from shardtoll.analyzers.shared.tally import number
from shardtoll.ledger import Evidence, Finding, Remedy, Rows, Severity
from shardtoll.ledger.words.human import plural as times
from shardtoll.ledger.words.human import ranks, runs, some_size

NOTICES: Final = {
    "rank-incomplete": "ended before the session closed; the finished steps are counted",
    "gather-incomplete": "could not be gathered",
    "capture-stopped": "stopped capturing; what followed is not on record",
    "times-unknown": "recorded collectives without all of their times",
    "no-steps": "named no steps: the whole recording is billed as one",
    "no-kernels": "recorded no device work: times are those of the host",
    "no-device-timeline": "recorded no device timeline: compute, exposed and idle time are unknown",
    "world-size-unknown": "did not say how many ranks the job has: the fewest it can have are assumed",
    "groups-unknown": "did not name the group of every collective: it is unknown, or assumed as noted",
    "sizes-unknown": "did not say how large some messages are: their bandwidth is unknown",
    "launches-unseen": "ran device work whose launch lies outside the recording",
    "file-unreadable": "could not be read",
    "file-cut": "left a file that ends in the middle; what could be read is counted",
    "file-left-out": "set aside: not part of this job",
    "steps-differ": "recorded other steps than the rest",
    "rank-from-name": "did not say which rank it is: the file's name does",
    "rank-assumed": "did not say which rank it is: it is taken as rank 0",
    "clock-unknown": "did not say what the clock counts from",
    "devices-left-out": "drove several devices: the one with most kernels stands for it",
    "graphs-whole": "recorded CUDA graphs as a whole: the time in them is unattributed",
    "tables-missing": "left an export without some kinds of events",
}
"""Notice kinds that make the input incomplete, and what such a rank (or file, of `FILES`) did."""

FILES: Final = {"file-unreadable": "file", "file-left-out": "path"}
"""Kinds that are of files or folders, one text each, and of no rank that was seen."""

MINOR: Final = ("no-steps", "launches-unseen", "rank-from-name", "rank-assumed", "sizes-unknown")
"""Kinds that leave the rest of the bill as good as it was."""

REMEDIES: Final = {
    "no-steps": "Call `prof.step()` after each step: without marks the whole recording counts as one step. "
    "In inference, put `record_function` around each pass, named as `step[DECODE bs=32]`.",
    "no-kernels": "Record with ProfilerActivity.CUDA as well.",
    "no-device-timeline": "Record with ProfilerActivity.CUDA (or the device's own activity) as well.",
    "world-size-unknown": "Record after `init_process_group`: newer versions of torch write the job's size.",
    "groups-unknown": "Record with a newer torch, which writes process groups: until then waiting is an "
    "estimate.",
    "sizes-unknown": "Record message sizes: set record_shapes=True, or use a newer torch.",
    "launches-unseen": "Start the recording a step earlier (`schedule(warmup=1)`): it begins in mid-step.",
    "file-unreadable": "Write these files again; the others are counted.",
    "file-cut": "Write these files again: what is missing is not in the bill.",
    "file-left-out": "Give each job a folder of its own, and report each folder by its path.",
    "steps-differ": "Record the same steps on every rank: only those are compared.",
    "rank-from-name": "Check that the names are right; newer versions of torch write the rank into the file.",
    "rank-assumed": "Put the rank into the file's name, as rank3.json, or record after `init_process_group`.",
    "devices-left-out": "Start one process for each device, as torchrun does, and record each.",
    "graphs-whole": "Record with `nsys profile --cuda-graph-trace=node`.",
    "tables-missing": "Record with `nsys profile --trace=cuda,nvtx`.",
    "clock-unknown": "Record all ranks with one version of torch; until then compare only durations.",
}
"""Notice kind -> what to do, where that is not just to be careful."""

OF_TRAINING: Final = {
    "no-steps": "Call `prof.step()` after each step, so that the trace says where steps begin.",
}
OF_INFERENCE: Final = {
    "no-steps": "Put `record_function` around each pass (`step[DECODE bs=32]`): without marks the whole "
    "recording counts as one step. Some engines annotate their steps by themselves.",
    "launches-unseen": "Start the recording a few passes earlier, after a warm-up: it begins in mid-pass.",
}
"""What to do instead, where a trace shows what the job does."""

TOLD: Final = ("rank-incomplete", "steps-differ")
"""Kinds that say already why a rank has fewer steps."""

NO_ROWS: Final = Rows()

ASIDE: Final = "Nothing to do: the counts and bytes of these collectives are right."
"""The remedy where the bill's times do not rest on what is missing."""

SHOWN: Final = 10
"""Texts of one kind shown as evidence; a thousand ranks may each have their own."""


def find(context: Context) -> list[Finding]:
    """Return one finding a cause: ranks not seen, notices by kind, uneven steps, steps
    only watched, rows outside steps, collectives without times. None of them has a toll."""
    run = context.ledger.run
    findings = []
    kinds = set(context.notices["kind"])
    if run.ranks_missing and run.backend != "fake":
        missing = run.ranks_missing
        findings.append(
            _finding(
                f"{ranks(missing)} of {run.world_size} left no records: the bill covers "
                f"{ranks(run.ranks_seen) if run.ranks_seen else 'no rank'} and not how long they waited",
                missing,
                (Evidence("ranks seen", len(run.ranks_seen)), Evidence("ranks missing", len(missing))),
                "Record all ranks over the same steps, and report their traces together, from one folder."
                if run.source == "trace"
                else "Copy these ranks' files into the run folder and report it, if each rank wrote to its "
                "own disk. Else read their logs: they died or could not be reached.",
            )
        )
    for kind, did in NOTICES.items():
        rows = context.notices[context.notices["kind"] == kind]
        if rows.empty or (kind == "no-kernels" and _on_cpus(context)):
            # A job on CPUs has no device whose work could be missing.
            continue
        who = tuple(sorted({int(rank) for rank in rows["rank"]}))
        texts = list(dict.fromkeys(str(text) for text in rows["text"]))
        if kind == "groups-unknown" and len(texts) == 1:
            # Whether groups were assumed or stay unknown is known to the reader of the trace only.
            did = f"did not name every group: {texts[0]}"
        # A bill whose times come from other steps is as good as without these.
        minor = kind in MINOR
        if kind == "times-unknown" and (steps := _untimed_aside(context, rows)):
            did, minor = f"{did} in {steps}; the step's times come from other steps", True
        findings.append(
            _finding(
                f"{times(len(texts), FILES[kind])} {did}" if kind in FILES else f"{ranks(who)} {did}",
                () if kind in FILES else who,
                (
                    *(Evidence(kind, text) for text in texts[:SHOWN]),
                    *((Evidence("texts more", len(texts) - SHOWN),) if len(texts) > SHOWN else ()),
                ),
                ASIDE
                if minor and kind not in MINOR
                else _remedies(context).get(
                    kind, "Record these ranks again; until then their figures are lower bounds."
                ),
                severity="info" if minor else "warning",
            )
        )
    findings += _steps(context)
    findings += _watched(context)
    findings += _outside(context)
    findings += _torn(context)
    findings += _open(context)
    if kinds.isdisjoint(("times-unknown", "no-device-timeline")):
        findings += _untimed(context)
    return findings


def _remedies(context: Context) -> dict[str, str]:
    """Return what to do by notice kind, for what the job does."""
    own = {"training": OF_TRAINING, "inference": OF_INFERENCE}.get(context.ledger.run.workload or "", {})
    return REMEDIES | own


def _untimed_aside(context: Context, notices: pd.DataFrame) -> str | None:
    """Return the steps that notices of unknown times name; None if the bill's times rest on one of them."""
    named = notices["step"]
    if named.isna().any() or context.timed_rows.empty or set(named) & set(context.timed_rows["step"]):
        return None
    steps = {int(step) for step in named}
    return f"{'step' if len(steps) == 1 else 'steps'} {runs(steps)}"


def _on_cpus(context: Context) -> bool:
    """Whether the job computes on CPUs: gloo alone carries its collectives, and no device is on record."""
    run = context.ledger.run
    return run.device == "cpu" and is_gloo(run.backend)


def _torn(context: Context) -> list[Finding]:
    """Collectives whose times contradict each other although the ranks share a clock."""
    rows = context.collectives[context.collectives["torn"]]
    if rows.empty:
        return []
    count = int(rows["match_id"].nunique())
    return [
        _finding(
            f"in {times(count, 'collective')} one rank left before another rank of its host arrived: the "
            "record of one is wrong, and waiting is unknown",
            tuple(sorted({int(rank) for rank in rows["rank"]})),
            (Evidence("ops", ", ".join(sorted(set(rows["op"])))),),
            "Record again; until then compare only durations of these collectives: some times were not taken "
            "where they ran.",
            severity="info",
            rows=Rows.of(collectives=rows.index),
        )
    ]


def _open(context: Context) -> list[Finding]:
    """Collectives of traces that nothing tells the counterparts of."""
    if len(context.ledger.run.ranks_seen) < 2:
        return []
    rows = context.collectives[context.matches.rows["open"].to_numpy(dtype=bool)]
    if rows.empty:
        return []
    return [
        _finding(
            f"{len(rows):,} of {times(len(context.collectives), 'collective')} match none of the other "
            f"ranks' "
            "for sure, so waiting in them is unknown",
            tuple(sorted({int(rank) for rank in rows["rank"]})),
            (Evidence("ops", ", ".join(sorted(set(rows["op"])))),),
            "Record the same whole steps on every rank; newer versions of torch write sequence numbers, "
            "which need no guess.",
            severity="info",
            rows=Rows.of(collectives=rows.index),
        )
    ]


def _steps(context: Context) -> list[Finding]:
    """Ranks that finished fewer steps than others, where no notice has said so."""
    if not context.steps:
        return [
            _finding(
                "no rank finished a step: there is nothing to bill per step",
                context.ledger.run.ranks_seen,
                (Evidence("collectives on record", len(context.collectives)),),
                "Keep at least one whole step inside the recording.",
            )
        ]
    noticed = context.notices.loc[context.notices["kind"].isin(TOLD), "rank"]
    counts = context.step_rows.groupby("rank")["step"].nunique()
    counts = counts.reindex(list(context.ledger.run.ranks_seen), fill_value=0)
    short = counts[(counts < len(context.steps)) & ~counts.index.isin(noticed)]
    if short.empty:
        return []
    return [
        _finding(
            f"{ranks(int(rank) for rank in short.index)} finished fewer than the {len(context.steps)} steps",
            tuple(int(rank) for rank in short.index),
            tuple(Evidence(f"steps of rank {rank}", int(count)) for rank, count in short.head(SHOWN).items()),
            "Survey the same steps on every rank: a step is billed on the ranks that finished it.",
        )
    ]


def _watched(context: Context) -> list[Finding]:
    """A run of which no step was surveyed: what then cannot be told, said once."""
    if not context.steps or context.surveyed or context.ledger.run.source == "trace":
        # Notices of traces say themselves what is missing.
        return []
    mixed = bool((context.step_rows["level"] == "survey").any())
    why = "no step was surveyed on all of its ranks" if mixed else "every step was only watched"
    return [
        _finding(
            f"{why}: duplicated compute, repeated bytes, small messages that could be one, idle time and "
            "what late ranks did meanwhile are unknown",
            context.ledger.run.ranks_seen,
            (
                Evidence("steps watched", len(context.steps)),
                Evidence("known of them", "collectives, their causes and times, and waiting for late ranks"),
            ),
            'Survey some steps: audit(level="schedule"), the default, surveys two early ones and then every '
            'hundredth, audit(level="survey") all of them.',
            severity="info",
        )
    ]


def _outside(context: Context) -> list[Finding]:
    frame = context.collectives[~context.collectives["step"].isin(context.steps)]
    if context.ledger.run.source == "live":
        # A program sends set-up once, before its first step: no step misses it.
        frame = frame[~_set_up(context, frame)]
    if frame.empty or not context.steps:
        return []
    moved = frame["message_bytes"].sum(min_count=1)
    return [
        _finding(
            f"{times(len(frame), 'collective')} ({some_size(number(moved))} over all ranks) "
            "ran outside every step: listed, but not in the bill",
            tuple(sorted({int(rank) for rank in frame["rank"]})),
            (Evidence("ops", ", ".join(sorted(set(frame["op"])))),),
            "Annotate each pass that should count. Nothing to do for waiting requests and warm-up."
            if context.serves
            else "Move those of a step inside session.step(); those of set-up or checkpoints may stay.",
            severity="info",
            rows=Rows.of(collectives=frame.index),
        )
    ]


def _set_up(context: Context, frame: pd.DataFrame) -> pd.Series[bool]:
    """Return which rows were issued before the first step on record of their rank began."""
    first = context.step_rows.groupby("rank")["start_ns"].min()
    return frame["step"].isna() & (frame["issue_ns"] < frame["rank"].map(first)).fillna(False)


def _untimed(context: Context) -> list[Finding]:
    frame = context.in_steps
    untimed = frame[frame["exposed_ns"].isna()]
    if untimed.empty:
        return []
    return [
        _finding(
            f"{len(untimed):,} of {times(len(frame), 'collective')} have no known time and no toll",
            tuple(sorted({int(rank) for rank in untimed["rank"]})),
            (Evidence("ops", ", ".join(sorted(set(untimed["op"])))),),
            "Use a backend that reports times, as NCCL or gloo; counts and bytes are right without.",
            severity="info",
            rows=Rows.of(collectives=untimed.index),
        )
    ]


def _finding(
    title: str,
    who: Iterable[int],
    evidence: tuple[Evidence, ...],
    remedy: str,
    *,
    severity: Severity = "warning",
    rows: Rows = NO_ROWS,
) -> Finding:
    return Finding(
        kind="incomplete-input",
        severity=severity,
        title=title,
        toll_ns=None,
        floor_ns=None,
        saving_ns=None,
        bytes=None,
        count=1,
        ranks=tuple(who),
        evidence=evidence,
        remedy=Remedy(remedy),
        rows=rows,
    )
