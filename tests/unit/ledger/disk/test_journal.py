"""A journal cut at any byte gives back exactly the batches that lie wholly before the cut."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shardtoll.ledger.disk.journal import Journal, JournalTail, read_journal
from shardtoll.ledger.tables.tables import DRY, RECORDS, SCHEMAS, to_table

BATCHES = 3


def _written(make, table: str, path: Path, batches: int = BATCHES) -> list[tuple[int, int]]:
    """Write a journal; return (file size, rows) after each append."""
    journal = Journal(table, path.open("wb"))
    ends = []
    for step in range(batches):
        rows = make.rows(step)
        records = [rows.step] if table == "steps" else list(getattr(rows, table))
        journal.append(records)
        ends.append((path.stat().st_size, journal.rows))
    journal.close()
    return ends


# Tables of dry runs are written once, when the run is over, and have no journal.
@pytest.mark.parametrize("table", [name for name in RECORDS if name not in DRY])
def test_a_cut_at_every_byte_keeps_whole_batches(make, table, tmp_path):
    """Of two batches: a cut before, in and between them, and in what ends the stream."""
    path = tmp_path / "journal"
    ends = _written(make, table, path, batches=2)
    whole = read_journal(table, path)
    assert whole.num_rows == ends[-1][1] > ends[0][1] > 0
    # From the end on: shortening a file is cheaper than writing it.
    for cut in range(path.stat().st_size, -1, -1):
        os.truncate(path, cut)
        rows = max((rows for end, rows in ends if end <= cut), default=0)
        assert read_journal(table, path).equals(whole.slice(0, rows)), f"cut at {cut}"


def test_rows_are_readable_while_the_writer_lives(make, tmp_path):
    path = tmp_path / "journal"
    journal = Journal("steps", path.open("wb"))
    assert read_journal("steps", path).num_rows == 0
    journal.append([make.step(0), make.step(1)])
    assert read_journal("steps", path).column("step").to_pylist() == [0, 1]
    journal.append([])
    journal.append([make.step(2)])
    assert read_journal("steps", path).column("step").to_pylist() == [0, 1, 2]
    assert journal.rows == 3
    journal.abandon()


def test_packed_batches_and_plain_ones_stand_in_one_journal_and_are_cut_alike(make, tmp_path):
    """A batch of many rows is packed, a small one is written as it is."""
    path = tmp_path / "journal"
    journal = Journal("steps", path.open("wb"))
    ends, numbers = [], iter(range(10_000))
    for count in (2, 400, 1, 300, 400):
        journal.append([make.step(next(numbers)) for _ in range(count)])
        ends.append((path.stat().st_size, journal.rows))
    journal.close()
    whole = read_journal("steps", path)
    assert whole.column("step").to_pylist() == list(range(1103))
    tail = JournalTail("steps", path)
    assert tail.read().equals(whole)
    for cut in sorted({end + by for end, _ in ends for by in (0, -1)}, reverse=True):
        os.truncate(path, cut)
        rows = max((rows for end, rows in ends if end <= cut), default=0)
        assert read_journal("steps", path).num_rows == rows


def test_garbage_after_whole_batches_does_not_hide_them(make, tmp_path):
    path = tmp_path / "journal"
    ends = _written(make, "steps", path)
    path.write_bytes(path.read_bytes()[: ends[1][0]] + b"\x07" * 64)
    assert read_journal("steps", path).column("step").to_pylist() == [0, 1]


@pytest.mark.parametrize("content", [b"", b"\x00" * 64, b"PAR1" * 20, b'{"not": "arrow"}' * 9])
def test_a_file_that_never_was_a_journal_has_no_rows(content, tmp_path):
    path = tmp_path / "journal"
    path.write_bytes(content)
    assert read_journal("steps", path).equals(SCHEMAS["steps"].empty_table())


def test_another_tables_journal_is_refused(make, tmp_path):
    path = tmp_path / "journal"
    _written(make, "counts", path)
    with pytest.raises(ValueError, match="holds other columns than this shardtoll's steps"):
        read_journal("steps", path)


def test_no_file_is_not_an_empty_journal(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_journal("steps", tmp_path / "none")


def test_the_file_is_read_as_a_table_of_the_schema(make, tmp_path):
    path = tmp_path / "journal"
    _written(make, "collectives", path)
    expected = to_table(
        "collectives", [row for step in range(BATCHES) for row in make.rows(step).collectives]
    )
    assert read_journal("collectives", path).equals(expected)
