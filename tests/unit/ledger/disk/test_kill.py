"""A rank that dies at any moment leaves its finished steps whole: cut at any write, and killed for real."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shardtoll.ledger import Ledger, RankWriter, read_run
from shardtoll.ledger.disk.run_writer import _WRITE_ORDER
from shardtoll.ledger.tables.tables import DRY, SCHEMAS, to_records

STEPS = 3
COLLECTIVES = 2
STRIDE_BYTES = 251
TABLES = [table for table in SCHEMAS if table not in DRY]
"""What a job writes as it runs: a dry one runs nothing."""


def _steps_that_are_whole(ledger: Ledger) -> list[int]:
    """Return the steps, after checking that each has every row it was written with and no other is there."""
    steps = ledger.tables["steps"].column("step").to_pylist()
    one = dict.fromkeys(
        ("computes", "counts", "notices", "leadups", "stalls", "values", "device_ops", "events"), 1
    )
    rows = {"collectives": COLLECTIVES, **one}
    for table, each in rows.items():
        found = [row.step for row in to_records(table, ledger.tables[table]) if row.step is not None]
        assert sorted(found) == sorted(steps * each), table
    return steps


def test_a_death_at_any_write_leaves_finished_steps_whole(make, tmp_path):
    """Replays the order in which bytes reach the files, and stops it at many places.

    At all of one file: test_journal.
    """
    writer = RankWriter(tmp_path / "whole", 0, "one")
    writer.describe(make.run(), [make.group()])
    names = {table: f"{table}.rank00000.arrows" for table in TABLES}
    sizes = {table: (tmp_path / "whole" / name).stat().st_size for table, name in names.items()}
    before = dict(sizes)
    written: list[tuple[str, int, int, int]] = []  # table, size before, size after, step
    for step in range(STEPS):
        writer.append(make.rows(step, collectives=COLLECTIVES))
        for table in _WRITE_ORDER:
            size = (tmp_path / "whole" / names[table]).stat().st_size
            written.append((table, sizes[table], size, step))
            sizes[table] = size
    writer.abandon()
    assert [table for table, *_ in written[: len(TABLES)]] == list(_WRITE_ORDER)
    assert _WRITE_ORDER[-1] == "steps"

    cut = tmp_path / "cut"
    shutil.copytree(tmp_path / "whole", cut)
    for table, size in before.items():
        os.truncate(cut / names[table], size)
    for table, start, end, step in written:
        data = (tmp_path / "whole" / names[table]).read_bytes()
        for at in sorted({*range(start, end, STRIDE_BYTES), start + 1, end - 1, end}):
            (cut / names[table]).write_bytes(data[:at])
            finished = step + (table == "steps" and at == end)
            assert _steps_that_are_whole(read_run(cut)) == list(range(finished)), (table, step, at)


def test_a_death_while_the_rank_closes_loses_nothing(make, tmp_path):
    """Closing writes Parquet beside the journal, then removes it, table by table; the mark comes last."""
    journals = make.written(tmp_path / "open", steps=STEPS, closed=False)
    parquet = make.written(tmp_path / "closed", steps=STEPS)
    for done in range(len(TABLES) + 1):
        for leftover in ("journal", "half-written"):
            folder = tmp_path / f"{done}-{leftover}"
            shutil.copytree(journals, folder)
            for index, table in enumerate(TABLES):
                name = f"{table}.rank00000"
                if index < done:
                    shutil.copy(parquet / f"{name}.parquet", folder)
                    if leftover != "journal" or index < done - 1:
                        (folder / f"{name}.arrows").unlink()
                elif index == done and leftover == "half-written":
                    (folder / f"{name}.parquet.part").write_bytes(b"PAR1")
            assert _steps_that_are_whole(read_run(folder)) == list(range(STEPS))


_CHILD = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from conftest import Make
from shardtoll.ledger import RankWriter
make, mode = Make(), sys.argv[2]
writer = RankWriter(Path(sys.argv[1]), 0, "one")
writer.describe(make.run(), [make.group()])
step = 0
while True:
    writer.append(make.rows(step))
    print(step, flush=True)
    step += 1
    if mode == "mid-step" and step == 3:
        # The fourth step has begun: some of its rows are there, its end is not.
        rows = make.rows(step)
        writer._journals["collectives"].append(rows.collectives)
        writer._journals["computes"].append(rows.computes)
        print("mid", flush=True)
        sys.stdin.read()
"""


def _start(folder: Path, mode: str) -> subprocess.Popen[str]:
    program = _CHILD.format(tests=str(Path(__file__).parents[1]))
    return subprocess.Popen(
        [sys.executable, "-c", program, str(folder), mode],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_rank_killed_in_mid_step_keeps_its_finished_steps(tmp_path):
    with _start(tmp_path, "mid-step") as child:
        assert child.stdout is not None
        said = [child.stdout.readline().strip() for _ in range(4)]
        os.kill(child.pid, signal.SIGKILL)
        assert child.wait(timeout=30) == -signal.SIGKILL
    assert said == ["0", "1", "2", "mid"]
    ledger = read_run(tmp_path)
    assert _steps_that_are_whole(ledger) == [0, 1, 2]
    assert ledger.run.ranks_missing == (1, 2, 3)
    assert [notice.kind for notice in to_records("notices", ledger.tables["notices"])][
        -1
    ] == "rank-incomplete"


@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.11])
def test_a_rank_killed_while_it_writes_keeps_all_it_had_finished(tmp_path, after_s):
    with _start(tmp_path, "endless") as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "0\n"
        time.sleep(after_s)
        os.kill(child.pid, signal.SIGKILL)
        rest = child.stdout.read().split("\n")
        assert child.wait(timeout=30) == -signal.SIGKILL
    acknowledged = max((int(line) for line in rest[:-1]), default=0)
    steps = _steps_that_are_whole(read_run(tmp_path))
    assert steps == list(range(len(steps)))
    assert acknowledged + 1 <= len(steps) <= acknowledged + 2
