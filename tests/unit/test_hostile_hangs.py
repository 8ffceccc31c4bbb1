"""Some thousand odd files up to the verdict, its page and its JSON: read, or refused in one line."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shardtoll.analyzers.hang.diagnose import diagnose
from shardtoll.cli.inputs.flights import read_all
from shardtoll.cli.inputs.outputs import write_answer
from shardtoll.ledger.records.errors import ShardtollError
from tests.flights import write_flight
from tests.fuzz import hostile_hangs as hostile
from tests.fuzz.of_hangs import _dump
from tests.fuzz.seams import check_line

LONGEST_S = 10.0
MOST_BYTES = 1 << 30


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder = tmp_path_factory.mktemp("sound")
    for rank in range(2):
        write_flight(folder, rank, 3 + rank, hang_in=True, state=None).let_go()
    files = [path.read_bytes() for path in sorted(folder.glob("flight.*"))]
    # The memory that a file was written from would be read in its place.
    return [hostile.with_head(data, {**hostile.head_of(data), "memory": None}) for data in files]


def run(cases: Iterator[hostile.Case], folder: Path) -> int:
    """Read each case to the end; return how many there were. Whatever it raises is named with its case."""
    count, wrong = 0, []  # how many so far
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name, write in cases:
        count += 1
        for old in folder.iterdir():
            old.unlink()
        write(folder)
        begin_s = time.monotonic()
        try:
            flights, now_ns, notes = read_all([folder])
            answer = diagnose(flights, now_ns, None, notes)
            for ending in ("json", "md", "html"):
                write_answer("hang", answer, [folder / f"out.{ending}"], as_json=True)
        except ShardtollError as error:
            check_line(error)
        except Exception as error:  # noqa: BLE001 - all of them are named at once
            wrong.append(f"{name}: {type(error).__name__}: {str(error)[:120]}")
        if time.monotonic() - begin_s > LONGEST_S:
            wrong.append(f"{name}: {time.monotonic() - begin_s:.0f} s")
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak)
    assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(wrong[:40])
    assert grown < MOST_BYTES
    return count


def test_flight_files_that_are_whole_and_wrong(sound: list[bytes], tmp_path: Path):
    assert run(hostile.flights(sound), tmp_path) > 500


SEAMS: dict[str, Callable[[], Iterator[hostile.Case]]] = {
    "dumps": lambda: hostile.dumps(_dump(0)), "logs": hostile.logs,
}  # fmt: skip


@pytest.mark.parametrize("name", SEAMS)
def test_dumps_and_logs_that_are_wrong(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "read").mkdir()
    assert run(SEAMS[name](), tmp_path / "read") > 100
    # No pickle ran anything.
    assert [each.name for each in tmp_path.iterdir()] == ["read"]
