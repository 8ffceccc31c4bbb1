"""Checkpoints that the training thread writes: their time, their bytes, the finding, and what it advises."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint import state_dict_saver

from shardtoll.analyzers.advise.from_run.measured import checkpoint_cost
from shardtoll.ledger import Report
from shardtoll.profiler import audit
from shardtoll.profiler.live.times.saving import _bytes_of_rank

STEPS = 4
SAVED = 4 * 512 * 512 + 4 * 512
"""Bytes of the model's parameters."""


def recorded(folder: Path, kind: str) -> Report:
    """Train four steps; save after the second one, before the third."""
    model = nn.Linear(512, 512)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with audit(model, level="survey") as session:
        for step in range(STEPS):
            with session.step():
                model(torch.ones(8, 512)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            if step != 1:
                continue
            if kind == "file":
                # Twice in one: the inner one is a part of the outer.
                torch.save(model.state_dict(), folder / "model.pt")
            else:
                dcp.save(model.state_dict(), checkpoint_id=folder / "model")
    report = session.report()
    assert report is not None
    return report


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
@pytest.mark.parametrize(
    ("kind", "name"), [("file", "torch.save"), ("dcp", "torch.distributed.checkpoint.save")]
)
def test_a_save_between_steps_belongs_to_the_step_that_follows(tmp_path: Path, kind: str, name: str) -> None:
    before = torch.save, state_dict_saver._save_state_dict, dcp.async_save
    report = recorded(tmp_path, kind)
    assert (torch.save, state_dict_saver._save_state_dict, dcp.async_save) == before
    (row,) = [row for row in report.tables["stalls"].to_pylist() if row["kind"] == "checkpoint"]
    assert (row["name"], row["count"], row["rank"]) == (name, 1, 0)
    assert row["before_ns"] == row["total_ns"] > 0
    assert SAVED <= row["bytes"] < 2 * SAVED
    assert "(recorded)" in row["source"]
    cost = checkpoint_cost(report)
    assert cost["checkpoint_blocked_s"] == row["total_ns"] / 1e9
    assert cost["checkpoint_gbps"] == pytest.approx(row["bytes"] / row["total_ns"])


def test_the_finding_has_time_bytes_and_the_best_interval(tmp_path: Path) -> None:
    report = recorded(tmp_path, "file")
    (row,) = [row for row in report.tables["stalls"].to_pylist() if row["kind"] == "checkpoint"]
    found = [each for each in report.findings if each.kind == "checkpoint-stall"]
    if row["total_ns"] < 1_000_000:
        assert not found
        return
    (finding,) = found
    labels = {each.label: each.value for each in finding.evidence}
    assert labels["blocked by one checkpoint on the worst rank"] == row["total_ns"]
    assert labels["written by all ranks, one checkpoint"] == row["bytes"] == finding.bytes
    assert finding.toll_ns == round(row["before_ns"] / STEPS)
    assert labels["best time between checkpoints, by Daly"] > row["total_ns"]
    assert "once in 4 steps" in finding.title


def test_a_run_without_saves_has_no_cost() -> None:
    model = nn.Linear(4, 4)
    with audit(model, level="survey") as session, session.step():
        model(torch.ones(2, 4)).sum().backward()
    report = session.report()
    assert report is not None
    assert checkpoint_cost(report) == {}
    assert all(each.kind != "checkpoint-stall" for each in report.findings)


class Stream(io.BytesIO):
    """What is written goes elsewhere: it has no place, as remote files do not."""

    def tell(self) -> int:
        raise NotImplementedError


@pytest.mark.parametrize("file", [Stream, io.BytesIO])
def test_a_file_that_cannot_say_its_place_is_saved_to_as_before(file: type[io.BytesIO]) -> None:
    with audit() as session:
        torch.save({"weight": torch.ones(2)}, file())
    report = session.report()
    assert report is not None
    assert not [notice for notice in report.notices if notice.kind == "capture-stopped"]


def test_a_rank_looks_at_its_own_files_only(tmp_path: Path) -> None:
    for name in ("__0_0", "__0_1", "__1_0", "__0_3"):
        (tmp_path / f"{name}.distcp").write_bytes(bytes(10))
    assert _bytes_of_rank({}, SimpleNamespace(path=tmp_path)) == 20
    assert _bytes_of_rank({}, SimpleNamespace(path=tmp_path / "none")) is None
    assert _bytes_of_rank({}, object()) is None
