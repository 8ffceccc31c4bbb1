"""What gradient checks found step by step is told once for each parameter and cause."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shardtoll.ledger import Finding, Ledger, RankWriter, Remedy, StepRows, Where, read_run
from shardtoll.ledger.disk.pack import pack
from shardtoll.ledger.disk.run_files import clear, flight_path, recorder_path, stacks_path, trace_path
from shardtoll.profiler.live.session.kept import GradientFindings, Kept
from tests import sample_reports


def wrong(name: str, off: str) -> Finding:
    return Finding(
        kind="wrong-gradient",
        severity="error",
        title=f"gradient of {name} is wrong: a reduction is missing (off by {off} % on rank 1)",
        toll_ns=None,
        floor_ns=None,
        saving_ns=None,
        bytes=None,
        count=1,
        ranks=(0, 1),
        where=Where(parameter=name),
        evidence=(),
        remedy=Remedy("reduce it"),
    )


def test_steps_of_one_parameter_and_cause_are_one_finding() -> None:
    found = GradientFindings()
    found.add([wrong("a", "50"), wrong("b", "5")], 0)
    found.add([wrong("a", "61.5")], 3)
    steps = [(one.where.parameter, one.evidence[-1].value) for one in found.findings()]
    assert steps == [("a", "0, 3"), ("b", "0")]


RUN_ID = "one"


def writer_of(folder: Path, rank: int) -> RankWriter:
    writer = RankWriter(folder, rank, RUN_ID)
    writer.describe(run_of(rank), sample_reports.GROUPS)
    return writer


def run_of(rank: int) -> Any:
    return replace(sample_reports.RUN, ranks_seen=(rank,))


def train(writer: RankWriter, *numbers: int) -> None:
    for number in numbers:
        writer.append(StepRows(sample_reports.step(number, writer.rank)))


def close(writer: RankWriter) -> Ledger:
    return writer.close(run_of(writer.rank), sample_reports.GROUPS)


def leading(folder: Path) -> Kept:
    """Return what rank 0 keeps of a run in the folder."""
    kept = Kept(0, 4, folder, lambda: run_of(0), cast(Any, None))
    kept.meeting.run_id = RUN_ID
    return kept


def steps(ledger: Ledger) -> list[tuple[int, int]]:
    table = ledger.tables["steps"]
    return sorted(zip(table["rank"].to_pylist(), table["step"].to_pylist(), strict=True))


def test_a_rank_that_still_trains_goes_on_in_its_own_files(tmp_path: Path) -> None:
    first, late = writer_of(tmp_path, 0), writer_of(tmp_path, 2)
    train(first, 0, 1)
    train(late, 0)
    merged = leading(tmp_path)._anew([close(first)])
    assert steps(merged) == [(0, 0), (0, 1), (2, 0)]
    (notice,) = merged.tables["notices"].to_pylist()
    assert (notice["rank"], notice["kind"]) == (2, "rank-incomplete")
    train(late, 1)
    assert steps(read_run(tmp_path)) == [(0, 0), (0, 1), (2, 0), (2, 1)], "as after a kill here"
    train(late, 2)
    close(late)
    whole = read_run(tmp_path)
    assert steps(whole) == [(0, 0), (0, 1), (2, 0), (2, 1), (2, 2)]
    assert not whole.tables["notices"].num_rows
    assert not list(tmp_path.glob("*.arrows"))


def test_what_lies_beside_the_tables_stays_when_ranks_are_written_anew(tmp_path: Path) -> None:
    writers = [writer_of(tmp_path, rank) for rank in (0, 1)]
    for writer in writers:
        train(writer, 0)
    parts = [close(writer) for writer in writers]
    beside = [
        make(tmp_path, rank)
        for make in (trace_path, stacks_path, recorder_path, flight_path)
        for rank in (0, 1, 2)
    ]
    for path in beside:
        path.write_bytes(path.name.encode())
    stale = tmp_path / "computes.rank00001.arrows"
    stale.write_bytes(b"")
    leading(tmp_path)._anew(parts)
    assert [path.read_bytes() for path in beside] == [path.name.encode() for path in beside]
    assert not stale.exists()
    assert steps(read_run(tmp_path)) == [(0, 0), (1, 0)]


def test_a_folder_that_was_emptied_is_written_whole(tmp_path: Path) -> None:
    writers = [writer_of(tmp_path, rank) for rank in (0, 1)]
    for writer in writers:
        train(writer, 0)
    parts = [close(writer) for writer in writers]
    clear(tmp_path)
    assert steps(leading(tmp_path)._anew(parts)) == steps(read_run(tmp_path)) == [(0, 0), (1, 0)]


def test_records_of_one_rank_that_cannot_be_read_cost_no_other_rank_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = leading(tmp_path)
    kept._writer = writer_of(tmp_path, 0)
    kept._groups = cast(Any, SimpleNamespace(all_records=lambda: sample_reports.GROUPS))
    train(kept.writer, 0)
    other = writer_of(tmp_path, 1)
    train(other, 0)
    handed_over = {1: pack(close(other)), 2: b"cut"}
    monkeypatch.setattr(kept.meeting, "collect", lambda limit_s: handed_over)
    ledger = kept.close(None, 1.0)
    assert ledger is not None
    assert steps(ledger) == [(0, 0), (1, 0)]
    (notice,) = ledger.tables["notices"].to_pylist()
    assert (notice["rank"], notice["kind"]) == (2, "gather-incomplete")
    assert notice["text"].startswith("the records of rank 2 cannot be read (")


def test_a_run_that_nobody_keeps_is_read_back_and_nothing_more_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = Kept(0, 4, None, lambda: run_of(0), cast(Any, SimpleNamespace(all_records=lambda: ())))
    kept._writer = writer_of(kept.folder, 0)
    train(kept.writer, 0, 1)
    before = {path: path.stat().st_size for path in kept.folder.iterdir()}
    monkeypatch.setattr(kept.meeting, "collect", lambda limit_s: {})
    ledger = kept.close(None, 1.0)
    assert ledger is not None
    assert steps(ledger) == [(0, 0), (0, 1)]
    after = {path: path.stat().st_size for path in kept.folder.iterdir()}
    ends = {path for path in before if path.suffix == ".arrows"}
    assert after.keys() == before.keys()
    assert all(after[path] == before[path] for path in before.keys() - ends)
    assert all(journal._file.closed for journal in kept.writer._journals.values())
    kept.let_go()
    assert not kept.folder.exists()


def test_a_rank_of_a_run_that_nobody_keeps_loses_nothing_on_a_disk_that_filled_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = Kept(0, 4, None, lambda: run_of(0), cast(Any, SimpleNamespace(all_records=lambda: ())))
    kept._writer = writer_of(kept.folder, 0)
    train(kept.writer, 0)
    kept.writer.folder = Path("/nowhere")
    monkeypatch.setattr(kept.meeting, "collect", lambda limit_s: {})
    ledger = kept.close(None, 1.0)
    kept.let_go()
    assert ledger is not None
    assert steps(ledger) == [(0, 0)]
    assert not ledger.tables["notices"].num_rows
