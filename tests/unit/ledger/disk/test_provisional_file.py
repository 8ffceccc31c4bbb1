"""Rows that a rank keeps for the case that it is killed before they are in its journals."""

from __future__ import annotations

import json

import pytest

from shardtoll.ledger import RankWriter, read_run
from shardtoll.ledger.disk.follow import ENDED_AFTER_S, Follower
from shardtoll.ledger.disk.provisional_file import TABLES, packed, unpacked
from shardtoll.ledger.disk.run_files import clear, provisional_path
from shardtoll.ledger.tables.tables import to_batch, to_records


def killed(make, folder, provisional):
    """Write steps 0 and 1 for good and those others provisionally, as of a rank that was killed."""
    writer = RankWriter(folder, 0, "one")
    writer.describe(make.run(), [make.group()])
    writer.append(make.rows(0), make.rows(1))
    writer.provisional(provisional)
    writer.abandon()


def headed(head):
    """Return a file that is nothing but its head."""
    data = json.dumps(head).encode()
    return len(data).to_bytes(8, "little") + data


def steps_of(ledger, table="steps"):
    return [row.step for row in to_records(table, ledger.tables[table]) if row.step is not None]


def test_a_killed_rank_has_its_provisional_steps_once_and_says_what_they_lack(make, tmp_path):
    killed(make, tmp_path, [make.rows(1), make.rows(2), make.rows(3)])
    ledger = read_run(tmp_path)
    assert steps_of(ledger) == [0, 1, 2, 3]
    for table in TABLES:
        assert sorted(set(steps_of(ledger, table))) == [0, 1, 2, 3], table
        assert len(steps_of(ledger, table)) % 4 == 0, "none of them twice"
    notices = {notice.kind: notice.text for notice in to_records("notices", ledger.tables["notices"])}
    assert notices["rank-incomplete"].endswith("finished steps counted: 4")
    assert notices["times-unknown"].startswith(
        "rank 0 ended before the rows of its last 2 steps were complete"
    )


def test_batches_are_kept_as_rows_are(make, tmp_path):
    batches = {
        "steps": to_batch("steps", [make.step(2)]),
        "collectives": to_batch("collectives", [make.collective(2)]),
    }
    killed(make, tmp_path, [batches, make.rows(3)])
    assert steps_of(read_run(tmp_path)) == [0, 1, 2, 3]


def test_the_rows_kept_last_replace_those_before(make, tmp_path):
    killed(make, tmp_path, [make.rows(2)])
    writer = RankWriter(tmp_path, 0, "one")
    writer.describe(make.run(), [make.group()])
    writer.provisional([make.rows(0)])
    writer.provisional([make.rows(0), make.rows(1)])
    writer.abandon()
    assert steps_of(read_run(tmp_path)) == [0, 1]


def test_a_rank_that_closed_has_no_provisional_rows(make, tmp_path):
    writer = RankWriter(tmp_path, 0, "one")
    writer.append(make.rows(0))
    writer.provisional([make.rows(0), make.rows(1)])
    ledger = writer.close(make.run(), [make.group()])
    assert not provisional_path(tmp_path, 0).exists()
    assert steps_of(ledger) == steps_of(read_run(tmp_path)) == [0]


def test_rows_of_an_earlier_run_are_not_taken_for_this_ones(make, tmp_path):
    killed(make, tmp_path, [make.rows(2), make.rows(3)])
    of_before = provisional_path(tmp_path, 0).read_bytes()
    later = RankWriter(tmp_path, 0, "two")
    later.describe(make.run(), [make.group()])
    later.append(make.rows(0))
    later.abandon()
    # Copied there with an archive of both runs.
    provisional_path(tmp_path, 0).write_bytes(of_before)
    ledger = read_run(tmp_path)
    assert steps_of(ledger) == [0]
    said = [row["text"] for row in ledger.tables["notices"].to_pylist()]
    assert not [text for text in said if "the rows of its last" in text or "provisional" in text]


def test_a_later_run_in_the_folder_removes_them(make, tmp_path):
    killed(make, tmp_path, [make.rows(2)])
    half = provisional_path(tmp_path, 0).with_suffix(".arrows.part")
    half.write_bytes(b"")
    clear(tmp_path)
    assert not list(tmp_path.iterdir())


def test_who_follows_a_run_has_them_once_it_has_ended(make, tmp_path):
    killed(make, tmp_path, [make.rows(2)])
    assert steps_of(Follower(tmp_path).read().ledger) == [0, 1], "the job may write them for good yet"
    changed_s = provisional_path(tmp_path, 0).stat().st_mtime
    ended = Follower(tmp_path, lambda: changed_s + ENDED_AFTER_S + 1).read()
    assert steps_of(ended.ledger) == [0, 1, 2]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 8,
        packed([], "one")[:-1],
        (2).to_bytes(8, "little") + b"[]",
        headed({"bytes": {"steps": 9e9}, "run_id": "one"}),
        headed({"bytes": {"notices": 0}, "run_id": "one"}),
        headed({"bytes": {}}),
        (5000).to_bytes(8, "little") + b"[" * 5000,
    ],
)
def test_damaged_ones_are_said_to_be_so(data, make, tmp_path):
    killed(make, tmp_path, [make.rows(2)])
    provisional_path(tmp_path, 0).write_bytes(data)
    read = read_run(tmp_path)
    # What was written for good is whole.
    assert sorted(read.tables["steps"].column("step").to_pylist()) == [0, 1]
    said = [row["text"] for row in read.tables["notices"].to_pylist() if row["kind"] == "rank-incomplete"]
    assert [text for text in said if text.startswith("provisional.rank00000.arrows is damaged or cut short")]


def test_every_cut_is_seen(make):
    data = packed([make.rows(2), make.rows(3)], "one")
    assert unpacked(data, "one")["steps"].num_rows == 2
    for at in range(0, len(data) - 16, 97):
        with pytest.raises((ValueError, OSError)):
            unpacked(data[:at], "one")
