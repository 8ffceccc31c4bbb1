"""The outside programs of the shared inputs: what the audit says of each is right."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from tests.live.shared_runs import output_of

Findings = list[tuple[str, str, str]]
"""Severity, kind, title."""


def findings(output: str) -> Findings:
    (line,) = [line for line in output.splitlines() if line.startswith("FINDINGS ")]
    told: Findings = ast.literal_eval(line.removeprefix("FINDINGS "))
    return told


@pytest.mark.parametrize("warm", ["0", "1"])
def test_a_pipeline_is_judged_from_its_first_step_on(warm: str) -> None:
    told = findings(output_of("pipeline_setup_messages.py", 3, WARM=warm))
    kinds = {kind: (severity, title) for severity, kind, title in told}
    assert kinds["pipeline-bubble"][0] == "warning"
    severity, title = kinds["pipeline-imbalance"]
    # The last stage has 24 layers, the others 4.
    assert (severity, title.startswith("rank 2 (stage 2, the last)")) == ("warning", True)


@pytest.mark.parametrize("how", ["closure", "plain"])
def test_an_update_inside_a_closure_costs_what_a_plain_one_costs(how: str) -> None:
    (line,) = [
        line for line in output_of("optimizer_closure.py", 2, how).splitlines() if line.startswith(how)
    ]
    titles: list[str] = ast.literal_eval(line.removeprefix(how).strip())
    updates = [title for title in titles if "the same update" in title]
    # 0.4 ms on a quiet machine, where forward and backward take 125 ms.
    for title in updates:
        cost, unit = title.split("update, ")[1].split(" per step")[0].split(" ")[:2]
        assert float(cost) * {"ms": 1.0, "\N{MICRO SIGN}s": 1e-3}[unit] < 25, title


@pytest.mark.parametrize("how", ["none", "gloo", "cpu:gloo"])
def test_the_backend_is_the_groups_own(tmp_path: Path, how: str) -> None:
    bill = tmp_path / "bill.json"
    output_of("backend_undefined.py", 2, how, prefix=("-m", "shardtoll.cli", "run", "-o", str(bill)))
    document = json.loads(bill.read_text())
    assert (document["run"]["backend"], document["fabric"]["name"]) == ("gloo", "loopback-gloo")
    reduced = [row for row in document["collectives"] if row["op"] == "all_reduce"]
    assert reduced
    assert all(row["floor_ns"] for row in reduced)
