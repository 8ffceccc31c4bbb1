"""Traces with impossible times and run folders with ranks that cannot be: read, or refused in one line."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from tests.fuzz.seams import DATA, LONGEST_LINE
from tests.unit.cli.conftest import write_run

LONGEST_S = 10.0
TIMES: tuple[Any, ...] = (
    *(float("nan"), float("inf"), -float("inf"), -1, -1e300, 1e308, 2**53 + 0.5, 2**63, -(2**63), 10**30),
    *(None, True, "", "x", "1e999", [], {}),
)
"""In place of a time, a duration or a number of a trace."""
SAID: tuple[Any, ...] = (-1, 2**31, 2**63, 10**30, 0.5, None, "x", [], {"a": 1}, float("nan"))
"""In place of a rank or a number of ranks."""
WHOLE = bool(os.environ.get("SHARDTOLL_WHOLE"))
Write = Callable[[Path], None]


def traces() -> Iterator[tuple[str, Write]]:
    """Yield two ranks' traces, of which the second says something impossible."""
    first = (DATA / "rank0.trace.json").read_text()
    second = json.loads((DATA / "rank1.trace.json").read_text())

    def case(name: str, change: Callable[[dict[str, Any]], None]) -> tuple[str, Write]:
        def write(folder: Path) -> None:
            made = json.loads(json.dumps(second))
            change(made)
            (folder / "rank0.json").write_text(first)
            (folder / "rank1.json").write_text(json.dumps(made))

        return name, write

    def everywhere(key: str, value: Any, every: int) -> Callable[[dict[str, Any]], None]:
        def change(made: dict[str, Any]) -> None:
            for event in made["traceEvents"][::every]:
                event[key] = value

        return change

    for nth, value in enumerate(TIMES):
        for key in ("ts", "dur", "pid", "tid", "name", "cat", "ph", "args"):
            yield case(f"{key}-{nth}", everywhere(key, value, 3 + nth % 4))
        yield case(f"all-ts-{nth}", everywhere("ts", value, 1))
    for nth, value in enumerate(SAID):
        for key in ("rank", "world_size", "backend", "pg_config"):
            yield case(f"{key}-{nth}", lambda made, k=key, v=value: made.update(distributedInfo={k: v}))
        yield case(f"info-{nth}", lambda made, v=value: made.update(distributedInfo=v))
    yield case("same-rank", lambda made: made.update(distributedInfo={"rank": 0, "world_size": 2}))


def runs(sound: Path) -> Iterator[tuple[str, Write]]:
    """Yield run folders with ranks that are too many, twice there, or say something impossible."""

    def case(name: str, change: Write) -> tuple[str, Write]:
        def write(folder: Path) -> None:
            shutil.copytree(sound, folder, dirs_exist_ok=True)
            change(folder)

        return name, write

    def renamed(folder: Path, number: str) -> None:
        for path in sorted(folder.glob("*rank00001*")):
            shutil.copy(path, folder / path.name.replace("rank00001", f"rank{number}"))

    for number in (
        "00004",
        "00007",
        "99999",
        "131072",
        "999999999",
        "000001",
        "0001",
        "99999999999999999999",
    ):
        yield case(f"extra-{number}", lambda folder, n=number: renamed(folder, n))
        yield case(f"about-{number}", lambda folder, n=number: shutil.copy(
            folder / "run.rank00001.json", folder / f"run.rank{n}.json") and None)  # fmt: skip
    about = json.loads((sound / "run.rank00001.json").read_text())

    def says(said: dict[str, Any]) -> Write:
        return lambda folder: (folder / "run.rank00001.json").write_text(json.dumps(said)) and None

    for nth, value in enumerate(SAID):
        for key in about:
            yield case(f"{key}-{nth}", says({**about, key: value}))
    for key in about:
        yield case(f"without-{key}", says({each: about[each] for each in about if each != key}))

    def replaced(name: str, other: Path | None) -> Write:
        def change(folder: Path) -> None:
            (folder / name).unlink()
            if other is None:
                (folder / name).mkdir()
            else:
                shutil.copy(other, folder / name)

        return change

    for table in sorted(path.name for path in sound.glob("*rank00001*.*")):
        yield case(f"gone-{table}", lambda folder, n=table: (folder / n).unlink())
        yield case(f"empty-{table}", lambda folder, n=table: (folder / n).write_bytes(b"") and None)
        yield case(f"folder-{table}", replaced(table, None))
        yield case(f"other-{table}", replaced(table, sound / "steps.rank00000.parquet"))


def some(cases: Iterator[tuple[str, Write]]) -> Iterator[tuple[str, Write]]:
    """Return all cases in `make fuzz`, else a part of them: all take two minutes."""
    return cases if WHOLE else islice(cases, 0, None, 7)


def check(shoot: Callable[..., Any], cases: Iterator[tuple[str, Write]], place: Path) -> int:
    """Run `report` and `hang` on each; return how many there were. All that is wrong is named at once."""
    count, wrong = 0, []  # how many so far
    for name, write in cases:
        count += 1
        folder = place / "it"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        write(folder)
        for command in (("report", folder, "--json", "--no-cache", "-j", 1), ("hang", folder, "--json")):
            begin_s = time.monotonic()
            try:
                ran = shoot(*command)
            except Exception as error:  # noqa: BLE001 - all of them are named at once
                wrong.append(f"{name}: {command[0]}: {type(error).__name__}: {str(error)[:150]}")
                continue
            last = ran.err.splitlines()[-1] if ran.err else ""
            if ran.code not in (0, 1, 2) or "our fault" in ran.err or "Traceback" in ran.err:
                wrong.append(f"{name}: {command[0]}: exit {ran.code}: {ran.err[-300:]!r}")
            elif ran.code == 2 and (ran.err.count("\n") != 1 or len(last) > LONGEST_LINE):
                wrong.append(f"{name}: {command[0]}: no line: {ran.err[:300]!r}")
            elif ran.code == 0:
                json.loads(ran.out)
            if time.monotonic() - begin_s > LONGEST_S:
                wrong.append(f"{name}: {command[0]}: {time.monotonic() - begin_s:.0f} s")
    assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(wrong[:40])
    return count


def test_traces_with_impossible_numbers(shardtoll: Callable[..., Any], tmp_path: Path):
    assert check(shardtoll, some(traces()), tmp_path) > (150 if WHOLE else 15)


def test_run_folders_with_impossible_ranks(shardtoll: Callable[..., Any], tmp_path: Path):
    assert check(shardtoll, some(runs(write_run(tmp_path / "sound"))), tmp_path) > (100 if WHOLE else 15)
