"""The bill in Prometheus' text format: for node_exporter's textfile collector or a Pushgateway.

The format is https://prometheus.io/docs/instrumenting/exposition_formats/. It has base units (seconds, bytes,
ratios), and a HELP and a TYPE for each metric. Unknown values get no series, and the number of series is
bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, TypeAlias

from shardtoll.dashboards.facts import figures_of_run, step_times
from shardtoll.dashboards.facts.figures_of_run import NS, seconds
from shardtoll.dashboards.words.files import write as write_file
from shardtoll.dashboards.words.text import clip
from shardtoll.ledger import Finding, Report

Series: TypeAlias = tuple[Mapping[str, str], float | None]

MOST_FINDINGS: Final = 100
MOST_RANKS: Final = 64
MOST_GROUPS: Final = 100
"""Most series of a metric; those left out are counted in `shardtoll_left_out`."""


def write(report: Report, path: Path) -> list[Path]:
    """Write the metrics and return the files written; UsageError if that fails."""
    write_file(path, prometheus(report).encode())
    return [path]


def prometheus(report: Report) -> str:
    """Return the text, which ends in a line end."""
    findings = list(enumerate(report.findings, start=1))
    shown = [finding for _, finding in findings[:MOST_FINDINGS]]
    times = step_times.rank_times(report)
    few, rest = step_times.fold(times, MOST_RANKS)
    traffic = figures_of_run.traffic(report)
    worst = step_times.slowest(times)
    slowest = None if worst is None else float(worst.ranks[0])
    left_out = {"findings": len(findings) - len(shown), "groups": max(0, len(traffic) - MOST_GROUPS)}
    left_out["ranks"] = len(times) - len(few)
    lines = [
        *_metric("info", "The run and the fabric that floors are computed for.", [(_run(report), 1.0)]),
        *_metric(
            "findings",
            "Findings by kind and severity.",
            [
                ({"kind": kind, "severity": severity}, float(count))
                for (kind, severity), count in figures_of_run.counts(report).items()
            ],
        ),
        *_metric("finding_toll_seconds", "Cost of a finding per step.", _dearest(shown, "toll_ns", NS)),
        *_metric("finding_floor_seconds", "Least time for what is needed.", _dearest(shown, "floor_ns", NS)),
        *_metric(
            "finding_saving_seconds",
            "Gain of the remedy per step: at most, or as replayed.",
            _dearest(shown, "saving_ns", NS),
        ),
        *_metric("finding_bytes", "Message bytes per step and rank.", _dearest(shown, "bytes", 1)),
        *_metric(
            "step_seconds",
            "A rank's mean step.",
            [({"rank": _rank(time)}, seconds(time.step_ns)) for time in [*few, *([rest] if rest else [])]],
        ),
        *_metric(
            "step_part_seconds",
            "The parts of a rank's mean step.",
            [
                ({"rank": _rank(time), "part": name.removesuffix("_ns")}, seconds(value))
                for time in [*few, *([rest] if rest else [])]
                for name, value in figures_of_run.parts(time).items()
            ],
        ),
        *_metric("slowest_rank", "The rank whose mean step is longest.", [({}, slowest)]),
        *_metric(
            "exposed_comm_ratio",
            "Share of the slowest rank's step in which communication is exposed.",
            [({}, figures_of_run.exposed_ratio(report))],
        ),
        *_metric(
            "collectives",
            "Collectives per step, over all ranks seen.",
            [(_of(row), row.calls) for row in traffic[:MOST_GROUPS]],
        ),
        *_metric(
            "wire_bytes",
            "Bytes sent per step by collectives of known size, over all ranks seen.",
            [(_of(row), row.wire_bytes) for row in traffic[:MOST_GROUPS]],
        ),
        *_metric(
            "collectives_without_size",
            "Collectives per step of unknown size, in no count of bytes.",
            [(_of(row), row.sizeless) for row in traffic[:MOST_GROUPS] if row.sizeless],
        ),
        *_metric(
            "ranks", "Ranks by whether they left records.",
            [({"seen": "true"}, float(len(report.run.ranks_seen))),
             ({"seen": "false"}, float(report.run.world_size - len(report.run.ranks_seen)))],
        ),
        *_metric(
            "left_out",
            "Findings, ranks and groups that have no series of their own.",
            [({"what": what}, float(count)) for what, count in left_out.items()],
        ),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _metric(name: str, words: str, series: Iterable[Series]) -> list[str]:
    """Return a gauge; nothing at all if no value is known. For equal labels the largest value is kept."""
    largest: dict[str, float] = {}
    for labels, value in series:
        if value is not None:
            text = ",".join(f'{key}="{_escaped(value_of_label)}"' for key, value_of_label in labels.items())
            largest[text] = max(value, largest.get(text, value))
    if not largest:
        return []
    full = f"shardtoll_{name}"
    rows = [
        f"{full}{{{labels}}} {value!r}" if labels else f"{full} {value!r}"
        for labels, value in largest.items()
    ]
    return [f"# HELP {full} {words}", f"# TYPE {full} gauge", *rows]


def _escaped(value: str) -> str:
    shown = clip(value, 120)
    return shown.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _run(report: Report) -> dict[str, str]:
    run = report.run
    labels = {
        "world_size": str(run.world_size),
        "backend": run.backend,
        "device": run.device,
        "torch": run.torch,
        "source": run.source,
        "fabric": report.fabric.name,
    }
    return {key: value for key, value in labels.items() if value is not None}


def _dearest(findings: Iterable[Finding], field: str, over: float) -> list[Series]:
    """Return a number of each finding by kind, severity and place; lines of code stand without their number.

    A line's number changes with every edit above it, and each would begin a new series.
    """
    series: list[Series] = []
    for finding in findings:
        where = finding.where
        labels = {"kind": finding.kind, "severity": finding.severity, "place": _place(finding)}
        labels |= {
            key: value for key, value in (("phase", where.phase), ("mesh_dim", where.mesh_dim)) if value
        }
        value = getattr(finding, field)
        series.append((labels, None if value is None else float(value) / over))
    return series


def _place(finding: Finding) -> str:
    where = finding.where
    if where.parameter or where.module:
        return where.parameter or where.module or ""
    if where.source:
        path, _, rest = where.source.rpartition(":")
        line, _, function = rest.partition(" ")
        return f"{path} {function}".strip() if path and line.isdigit() else where.source
    return where.label()


def _rank(time: step_times.RankTime) -> str:
    return str(time.ranks[0]) if len(time.ranks) == 1 else "mean of the others"


def _of(row: figures_of_run.Traffic) -> dict[str, str]:
    return {"group": row.group, "op": row.op}
