from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from shardtoll.dashboards.exports import parquet
from shardtoll.ledger import UsageError
from tests import sample_reports


def test_a_file_a_table_with_the_ledgers_types(tmp_path: Path):
    report = sample_reports.report()
    written = parquet.write(report, tmp_path / "x.parquet")
    names = [
        "x.parquet",
        *(f"x.{name}.parquet" for name in ("steps", "findings", "computes", "counts", "notices")),
    ]
    assert [path.name for path in written] == names
    assert sorted(names) == sorted(path.name for path in tmp_path.iterdir())
    tables = {path.name: pq.read_table(path) for path in written}
    assert tables["x.parquet"].equals(report.tables["collectives"])
    assert tables["x.steps.parquet"].equals(report.tables["steps"])
    findings = tables["x.findings.parquet"].to_pylist()
    assert [(row["rank_on_bill"], row["kind"], row["toll_ns"]) for row in findings] == [
        (1, "wrong-gradient", None),
        (2, "implicit-redistribute", 9_400_000),
        (3, "latency-bound", 820_000),
    ]
    assert findings[1]["evidence"][0] == {
        "label": "placements", "number": None, "text": "(Partial(sum),) -> (Replicate(),)", "unit": None,
    }  # fmt: skip
    assert findings[1]["evidence"][1] == {
        "label": "message",
        "number": 2_097_152,
        "text": None,
        "unit": "bytes",
    }
    about = json.loads(pq.read_schema(written[0]).metadata[b"shardtoll"])
    assert about["run"]["world_size"] == 4
    assert about["fabric"]["name"] == "loopback-gloo"


@pytest.mark.parametrize("make", ["empty", "unknown", "hostile"])
def test_every_sample_reads_back_and_twice_gives_the_same_bytes(make: str, tmp_path: Path):
    report = getattr(sample_reports, make)()
    for path in parquet.write(report, tmp_path / "x.parquet"):
        before = path.read_bytes()
        assert pq.read_table(path).num_rows >= 0
        parquet.write(report, tmp_path / "x.parquet")
        assert path.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} >= {
        "x.parquet",
        "x.steps.parquet",
        "x.findings.parquet",
    }


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path):
    with pytest.raises(UsageError, match=r"cannot write .*No such file or directory"):
        parquet.write(sample_reports.report(), tmp_path / "missing" / "x.parquet")
