"""A run folder that grows, however its bytes arrive, reads as it would if it were read for the first time."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtoll.ledger import RankWriter, RunFolderError, SchemaError, StepRows, read_run
from shardtoll.ledger.disk.follow import BEHIND_S, ENDED_AFTER_S, Follower
from shardtoll.ledger.disk.journal import Journal, JournalTail, read_journal

LATER = 4e9
"""A time of day at which every run here has long stood still."""


@pytest.fixture(scope="module")
def job(make, tmp_path_factory) -> Path:
    """Two ranks that were killed after four steps; some rows lie outside of steps."""
    folder = tmp_path_factory.mktemp("job")
    for rank in range(2):
        writer = RankWriter(folder, rank, "one")
        writer.describe(make.run(ranks_seen=(rank,)), [make.group()])
        for step in range(4):
            writer.append(make.rows(step, rank, collectives=1 + step))
            writer.append(StepRows(step=None, collectives=(make.collective(None, rank, op="barrier"),)))
        writer.abandon()
    return folder


@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_any_split_of_the_appended_bytes_reads_the_same(job: Path, tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("grows")
    journals = sorted(job.glob("*.arrows"))
    for path in job.glob("*.json"):
        shutil.copy(path, folder)
    for path in journals:
        (folder / path.name).touch()
    follower = Follower(folder, lambda: LATER)
    for _ in range(data.draw(st.integers(1, 4))):
        for path in journals:
            here = folder / path.name
            have, size = here.stat().st_size, path.stat().st_size
            upto = data.draw(st.integers(have, size))
            with here.open("ab") as file:
                file.write(path.read_bytes()[have:upto])
        assert follower.read().ledger == read_run(folder)
    for path in journals:
        shutil.copy(path, folder)
    assert follower.read().ledger == read_run(folder) == read_run(job)


def test_only_what_was_appended_is_read(make, tmp_path, monkeypatch):
    path = tmp_path / "steps.rank00000.arrows"
    journal = Journal("steps", path.open("wb"))
    tail = JournalTail("steps", path)
    opened = []
    real = os.path.getsize
    for step in range(200):
        journal.append([make.step(step)])
        before = tail._read_bytes
        assert tail.read().column("step").to_pylist() == list(range(step + 1))
        opened.append(tail._read_bytes - before)
        assert tail._read_bytes == real(path)
    journal.close()
    assert tail.read().equals(read_journal("steps", path))
    # Each time about one batch; and few of them are kept apart.
    assert max(opened[1:]) < 3 * min(opened[1:])
    assert tail.read().column("step").num_chunks <= 10


def test_new_steps_show_when_all_ranks_have_finished_them(make, tmp_path):
    writers = [RankWriter(tmp_path, rank, "one") for rank in range(2)]
    follower = Follower(tmp_path)
    for rank, writer in enumerate(writers):
        writer.describe(make.run(ranks_seen=(rank,)), [make.group()])
        writer.append(make.rows(0, rank))
    before = follower.version()
    assert before == follower.version()
    first = follower.read()
    assert (first.live, first.version) == (True, before)
    assert first.ledger.run.ranks_seen == (0, 1)
    assert "rank-incomplete" not in set(first.ledger.frame("notices")["kind"])
    writers[0].append(make.rows(1, 0))
    assert follower.version() != before
    assert set(follower.read().ledger.frame("steps")["step"]) == {0}
    assert set(follower.read().ledger.frame("collectives")["step"]) == {0}
    writers[1].append(make.rows(1, 1))
    assert set(follower.read().ledger.frame("collectives")["step"]) == {0, 1}
    for rank, writer in enumerate(writers):
        writer.close(make.run(ranks_seen=(rank,)), [make.group()], [make.finding()])
        assert follower.read().live == (rank == 0)
    assert follower.read().ledger == read_run(tmp_path)
    assert follower.read().ledger.findings == (make.finding(),)


def test_ranks_may_come_late_and_one_that_died_holds_nobody_up(make, tmp_path):
    writers = {0: RankWriter(tmp_path, 0, "one")}
    writers[0].describe(make.run(), [make.group()])
    writers[0].append(make.rows(0, 0))
    follower = Follower(tmp_path)
    assert follower.read().ledger.run.ranks_seen == (0,)
    writers[1] = RankWriter(tmp_path, 1, "one")
    writers[1].describe(make.run(ranks_seen=(1,)), [make.group()])
    assert set(follower.read().ledger.frame("steps")["step"]) == {0}
    writers[1].append(make.rows(0, 1))
    writers[1].abandon()
    writers[0].append(make.rows(1, 0))
    both = follower.read().ledger
    assert both.run.ranks_seen == (0, 1)
    assert set(both.frame("steps")["step"]) == {0}
    for path in tmp_path.glob("*.rank00001.*"):
        found = path.stat()
        os.utime(path, (found.st_atime, found.st_mtime - 2 * BEHIND_S))
    steps = follower.read().ledger.frame("steps")
    assert steps.groupby("rank")["step"].max().to_dict() == {0: 1, 1: 0}
    writers[0].abandon()


def test_a_run_that_stands_still_has_ended_and_its_ranks_say_so(make, tmp_path):
    make.written(tmp_path, rank=0, closed=False)
    newest = max(path.stat().st_mtime for path in tmp_path.iterdir())
    now = [newest + ENDED_AFTER_S - 1]
    follower = Follower(tmp_path, lambda: now[0])
    running = follower.read()
    assert running.live
    now[0] += 2
    assert follower.version() != running.version
    ended = follower.read()
    assert not ended.live
    assert ended.ledger == read_run(tmp_path)


def test_a_folder_that_is_used_again_shows_the_new_run(make, tmp_path):
    make.written(tmp_path, rank=0, steps=3, closed=False)
    follower = Follower(tmp_path)
    assert follower.read().ledger.frame("steps")["step"].max() == 2
    # Longer than the old one, so that its size alone does not tell.
    make.written(tmp_path, rank=0, steps=9, closed=False, run_id="two", world_size=8)
    again = follower.read().ledger
    assert (again.run.world_size, again.frame("steps")["step"].max()) == (8, 8)
    make.written(tmp_path, rank=1, closed=False, run_id="three", world_size=8)
    with pytest.raises(RunFolderError, match="mixes files of several runs"):
        follower.read()
    for path in tmp_path.glob("*.rank00001.*"):
        path.unlink()
    assert follower.read().ledger == again


def test_what_cannot_be_read_is_said_and_tried_again(make, tmp_path):
    folder = make.written(tmp_path / "run", closed=False)
    follower = Follower(folder, lambda: LATER)
    good = follower.read()
    about = folder / "run.rank00000.json"
    text = about.read_text()
    about.write_text(text[:40])
    with pytest.raises(RunFolderError, match="damaged"):
        follower.read()
    about.write_text(text.replace('"store_version": 1', '"store_version": 9'))
    with pytest.raises(SchemaError, match="store version 9"):
        follower.read()
    about.write_text(text)
    assert follower.read().ledger == good.ledger
    journal = folder / "steps.rank00000.arrows"
    shutil.copy(folder / "counts.rank00000.arrows", journal)
    with pytest.raises(RunFolderError, match="other columns"):
        Follower(folder).read()
    shutil.rmtree(folder)
    for ask in (follower.version, follower.read):
        with pytest.raises(RunFolderError, match="cannot be read"):
            ask()
    folder.mkdir()
    with pytest.raises(RunFolderError, match="holds no shardtoll run"):
        follower.version()
