"""Checkpoints that the training thread writes: their time, their bytes, the finding, and what it advises."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint import state_dict_saver

from shardtoll.analyzers.advise.from_run.measured import checkpoint_cost
from shardtoll.ledger import Report
from shardtoll.profiler import audit
from shardtoll.profiler.live.times.saving import bytes_of_rank

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


def test_a_run_without_saves_has_no_cost() -> None:
    model = nn.Linear(4, 4)
    with audit(model, level="survey") as session, session.step():
        model(torch.ones(2, 4)).sum().backward()
    report = session.report()
    assert report is not None
    assert checkpoint_cost(report) == {}
    assert all(each.kind != "checkpoint-stall" for each in report.findings)


def saves_of(save: Callable[[], object]) -> list[dict[str, Any]]:
    """Rows of the saves in two recorded steps, between which `save` ran; the capture goes on after it."""
    model = nn.Linear(4, 4)
    with audit(model, level="survey") as session:
        for step in range(2):
            with session.step():
                model(torch.ones(2, 4)).sum().backward()
            if step == 0:
                save()
    report = session.report()
    assert report is not None
    assert not [notice for notice in report.notices if notice.kind == "capture-stopped"]
    assert len(report.tables["steps"]) == 2
    return [row for row in report.tables["stalls"].to_pylist() if row["kind"] == "checkpoint"]


class Stream(io.BytesIO):
    """What is written goes elsewhere: it has no place, as remote files do not."""

    def tell(self) -> int:
        raise NotImplementedError


class Raw(io.RawIOBase):
    """A writer to elsewhere, under a buffer of the standard library."""

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        raise LookupError

    def tell(self) -> int:
        raise NotImplementedError

    def write(self, data: Any) -> int:
        return len(data)


@pytest.mark.parametrize("file", [Stream, lambda: io.BufferedWriter(Raw())])
def test_a_file_that_cannot_say_its_place_is_saved_to_as_before(file: Callable[[], io.BytesIO]) -> None:
    (row,) = saves_of(lambda: torch.save({"weight": torch.ones(2)}, file()))
    assert row["bytes"] is None
    assert row["total_ns"] > 0


def test_a_file_object_has_grown_by_what_was_written(tmp_path: Path) -> None:
    state = {"weight": torch.ones(2)}
    alone = io.BytesIO()
    torch.save(state, alone)
    written = len(alone.getvalue())

    def into_memory() -> None:
        memory = io.BytesIO(bytes(5000))
        memory.seek(0, os.SEEK_END)
        torch.save(state, memory)

    def into_file() -> None:
        with (tmp_path / "log").open("wb") as file:
            file.write(bytes(5000))
            torch.save(state, f=file)

    assert [row["bytes"] for row in saves_of(into_memory)] == [written]
    assert [row["bytes"] for row in saves_of(into_file)] == [written]


def test_a_save_that_raises_has_a_time_and_no_bytes(tmp_path: Path) -> None:
    def save() -> None:
        with pytest.raises(RuntimeError, match="does not exist"):
            torch.save({}, tmp_path / "missing" / "model.pt")

    (row,) = saves_of(save)
    assert (row["bytes"], row["count"]) == (None, 1)


def test_a_save_on_another_thread_does_not_block_the_training(tmp_path: Path) -> None:
    def save() -> None:
        thread = Thread(target=torch.save, args=({}, tmp_path / "model.pt"))
        thread.start()
        thread.join(60)

    assert saves_of(save) == []
    assert (tmp_path / "model.pt").exists()


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
def test_an_asynchronous_save_has_a_time_and_no_bytes_yet(tmp_path: Path) -> None:
    (row,) = saves_of(
        lambda: dcp.async_save({"weight": torch.ones(2)}, checkpoint_id=tmp_path / "model").result(60)
    )
    assert (row["name"], row["count"]) == ("torch.distributed.checkpoint.async_save", 1)
    assert row["bytes"] is None


def test_what_saved_before_is_back_after_an_exception() -> None:
    def now() -> tuple[object, ...]:
        save = state_dict_saver._save_state_dict
        return torch.save, save, state_dict_saver.async_save, dcp.async_save

    def train() -> None:
        with audit() as session, session.step():
            assert all(one is not other for one, other in zip(now(), before, strict=True))
            raise KeyError("mine")

    before = now()
    with pytest.raises(KeyError, match="mine"):
        train()
    assert now() == before


def test_a_rank_looks_at_its_own_files_only(tmp_path: Path) -> None:
    for name in ("__0_0", "__0_1", "__1_0", "__0_3"):
        (tmp_path / f"{name}.distcp").write_bytes(bytes(10))
    assert bytes_of_rank({}, SimpleNamespace(path=tmp_path))() == 20
    assert bytes_of_rank({}, SimpleNamespace(path=tmp_path / "none"))() is None
    assert bytes_of_rank({}, object())() is None


def test_the_rank_in_a_name_is_the_one_in_the_group_that_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "__1_0.distcp").write_bytes(bytes(10))
    (tmp_path / "__0_0.distcp").write_bytes(bytes(30))
    writer, group = SimpleNamespace(path=tmp_path), object()
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda of=None: {None: 5, group: 1}[of])
    assert bytes_of_rank({}, writer)() is None
    assert bytes_of_rank({}, writer, group)() == 10
    assert bytes_of_rank({}, storage_writer=writer, process_group=group)() == 10
    # Each process saves for itself then, and calls itself 0.
    assert bytes_of_rank({}, writer, no_dist=True)() == 30
    assert bytes_of_rank({}, writer, None, 0, True)() == 30
