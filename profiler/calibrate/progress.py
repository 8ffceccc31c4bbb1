"""Telling how far a calibration has come: a bar on rank 0's terminal, and a line a round in a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from shardtoll.profiler.calibrate.sweep import Progress


class Watcher(Protocol):
    """Called after every round."""

    def __call__(self, now: Progress) -> None:
        """Show it."""


@contextmanager
def watching(limit_s: float, file: Path | None) -> Iterator[Watcher]:
    """Yield what shows progress: a bar if stderr is a terminal, and `file` if one is named."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Bar(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("warming up", total=limit_s)

        def show(now: Progress) -> None:
            bar.update(
                task,
                completed=min(now.elapsed_s, limit_s),
                description=words(now.rounds, now.wide, now.cases),
            )
            if file is not None:
                line = {
                    "rounds": now.rounds,
                    "elapsed_s": now.elapsed_s,
                    "wide": now.wide,
                    "cases": now.cases,
                }
                with file.open("a", encoding="utf-8") as out:
                    out.write(json.dumps(line) + "\n")

        yield show


def words(rounds: int, wide: int, cases: int) -> str:
    """Return the text next to a bar."""
    return f"{rounds} rounds, {cases - wide} of {cases} medians sure"
