"""A disk that is full: what was written before is kept, in memory and in the folder."""

from __future__ import annotations

import errno
import gc
import resource
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from shardtoll.ledger import Ledger, RankWriter, read_run
from shardtoll.ledger.disk.journal import Journal
from shardtoll.ledger.disk.run_reader import ranks_left
from shardtoll.ledger.disk.run_writer import UnfinishedFolder, replace_ranks
from shardtoll.ledger.records.step_rows import StepRows
from tests import sample_reports


@contextmanager
def no_file_above(size_bytes: int) -> Iterator[None]:
    """Let no file grow beyond a size, as on a disk that is full by then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def rows(number: int) -> StepRows:
    """Return one step's rows of rank 0."""
    mine = tuple(row for row in sample_reports.collectives() if (row.rank, row.step) == (0, 0))
    return StepRows(
        sample_reports.step(number, 0), collectives=tuple(replace(row, step=number) for row in mine)
    )


def cut(folder: Path) -> UnfinishedFolder:
    """Write steps until the disk is full, and close; return what closing says."""
    run = replace(sample_reports.RUN, ranks_seen=(0,))
    writer = RankWriter(folder, 0, "test")
    writer.describe(run, sample_reports.GROUPS)
    writer.append(rows(0))
    writer.append(rows(1))
    largest = max(path.stat().st_size for path in folder.iterdir())
    with no_file_above(largest + 100):
        with pytest.raises(OSError, match="large"):
            writer.append(*map(rows, range(2, 100)))
        with pytest.raises(OSError, match="large"):
            writer.append(rows(100))
        with pytest.raises(UnfinishedFolder, match=r"cannot be finished \(File too large\)") as left:
            writer.close(run, sample_reports.GROUPS)
    return left.value


def steps(ledger: Ledger) -> list[int]:
    return sorted(ledger.tables["steps"].column("step").to_pylist())


def test_steps_before_it_are_in_memory_and_in_the_folder(tmp_path: Path) -> None:
    left = cut(tmp_path / "run")
    assert steps(left.ledger) == [0, 1]
    assert left.ledger.tables["collectives"].num_rows == 2 * len(rows(0).collectives)
    kept = read_run(tmp_path / "run")
    assert steps(kept) == [0, 1]
    assert "rank-incomplete" in kept.tables["notices"].column("kind").to_pylist()


def test_what_cannot_be_written_anew_destroys_nothing(tmp_path: Path) -> None:
    left = cut(tmp_path / "run")
    with no_file_above(100), pytest.raises(OSError, match="large"):
        replace_ranks(tmp_path / "run", [left.ledger], "test")
    assert steps(read_run(tmp_path / "run")) == [0, 1]
    assert [steps(one) for one in ranks_left(tmp_path / "run", "test", ())] == [[0, 1]]
    assert ranks_left(tmp_path / "run", "another", ()) == ranks_left(tmp_path / "run", "test", {0}) == []
    replace_ranks(tmp_path / "run", [left.ledger], "test")
    assert "rank-incomplete" not in read_run(tmp_path / "run").tables["notices"].column("kind").to_pylist()
    assert not list((tmp_path / "run").glob(".anew*"))


class Batch:
    """Stands for what a training loop holds."""


def test_it_keeps_nothing_of_the_training_loop(tmp_path: Path) -> None:
    journal = Journal("steps", (tmp_path / "steps").open("w+b"))

    def loop() -> weakref.ref[Batch]:
        batch = Batch()
        for number in range(2):
            with pytest.raises(OSError, match="large") as raised:
                journal.append([sample_reports.step(number, 0)])
            assert raised.value.errno == errno.EFBIG
            del raised
        return weakref.ref(batch)

    gc.disable()
    try:
        with no_file_above(10):
            batch = loop()
            assert batch() is None, "the journal keeps the frames of who called it"
            journal.abandon()
    finally:
        gc.enable()


def test_a_journal_is_left_without_a_word(tmp_path: Path) -> None:
    file = (tmp_path / "steps").open("w+b")
    journal = Journal("steps", file)
    with no_file_above(10):
        with pytest.raises(OSError, match="large"):
            journal.append([sample_reports.step(0, 0)])
        journal.abandon()
    assert file.closed
