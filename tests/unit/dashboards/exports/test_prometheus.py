from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from shardtoll.dashboards.exports import prometheus as prometheus_file
from shardtoll.dashboards.exports.prometheus import prometheus
from shardtoll.ledger import Report, Where
from tests import sample_reports

NAME = re.compile(r"shardtoll_[a-z_]+")
LINE = re.compile(
    r'(?P<name>[a-z_]+)(\{[a-z_]+="([^"\\\n]|\\["\\n])*"(,[a-z_]+="([^"\\\n]|\\["\\n])*")*\})? [0-9.e+-]+'
)


def read(report: Report) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Return metric -> labels -> value, as Prometheus' own reader has them, after checks of its text."""
    text = prometheus(report)
    assert text.endswith("\n")
    lines = text.splitlines()
    seen: list[str] = []
    for at, line in enumerate(lines):
        if line.startswith("# HELP"):
            name = line.split()[2]
            assert NAME.fullmatch(name)
            assert name not in seen
            assert lines[at + 1] == f"# TYPE {name} gauge"
            seen.append(name)
        elif not line.startswith("#"):
            found = LINE.fullmatch(line)
            assert found, line
            assert found["name"] == seen[-1]
    metrics = {}
    for family in text_string_to_metric_families(text):
        assert family.type == "gauge"
        rows = [(tuple(sorted(sample.labels.items())), sample.value) for sample in family.samples]
        assert len(dict(rows)) == len(rows), "one series has two values"
        metrics[family.name] = dict(rows)
    return metrics


@pytest.mark.parametrize("make", ["report", "empty", "unknown", "hostile"])
def test_every_sample_is_valid(make: str, tmp_path: Path):
    report = getattr(sample_reports, make)()
    metrics = read(report)
    assert all(
        value == value and abs(value) != float("inf") for rows in metrics.values() for value in rows.values()
    )
    assert prometheus_file.write(report, tmp_path / "x.prom") == [tmp_path / "x.prom"]
    assert (tmp_path / "x.prom").read_text(encoding="utf-8") == prometheus(report)


def test_the_bill_in_base_units():
    metrics = read(sample_reports.report())
    place = (
        ("kind", "implicit-redistribute"),
        ("mesh_dim", "tp"),
        ("phase", "forward"),
        ("place", "blocks.0.mlp"),
        ("severity", "warning"),
    )
    latency = (
        ("kind", "latency-bound"),
        ("phase", "optimizer"),
        ("place", "group world"),
        ("severity", "info"),
    )
    assert metrics["shardtoll_finding_toll_seconds"] == {place: 0.0094, latency: 0.00082}
    assert metrics["shardtoll_finding_saving_seconds"] == {place: 0.0082}, "unknown is no 0"
    assert metrics["shardtoll_step_seconds"][(("rank", "2"),)] == 0.053
    parts = {
        dict(labels)["part"]: value
        for labels, value in metrics["shardtoll_step_part_seconds"].items()
        if ("rank", "2") in labels
    }
    assert sum(parts.values()) == pytest.approx(0.053)
    assert metrics["shardtoll_exposed_comm_ratio"] == {(): pytest.approx(15 / 53)}
    wire = metrics["shardtoll_wire_bytes"]
    rows = [row for row in sample_reports.collectives() if row.step is not None]
    for op, group in (("all_reduce", "tp"), ("all_gather", "world")):
        sent = sum(row.wire_bytes or 0 for row in rows if row.op == op)
        assert wire[("group", group), ("op", op)] == sent / 2


def test_a_line_is_named_without_its_number():
    def place(source: str) -> str:
        finding = replace(sample_reports.FINDINGS[0], where=Where(source=source))
        ((labels, _),) = read(sample_reports.report(findings=(finding,)))[
            "shardtoll_finding_toll_seconds"
        ].items()
        return dict(labels)["place"]

    assert place("train.py:42 (step)") == place("train.py:99 (step)") == "train.py (step)"
    assert place("train.py:42") == "train.py"
    assert place("<no line>") == "<no line>"


def test_series_are_bounded_and_what_is_left_out_is_said():
    base = sample_reports.FINDINGS[0]
    findings = tuple(replace(base, where=Where(module=f"layers.{at}")) for at in range(150))
    report = replace(sample_reports.many(100, 4), findings=findings)
    metrics = read(report)
    assert len(metrics["shardtoll_finding_toll_seconds"]) == 100
    assert len(metrics["shardtoll_step_seconds"]) == 64
    assert (("rank", "mean of the others"),) in metrics["shardtoll_step_seconds"]
    left_out = {dict(labels)["what"]: value for labels, value in metrics["shardtoll_left_out"].items()}
    assert left_out == {"findings": 50, "groups": 0, "ranks": 37}
