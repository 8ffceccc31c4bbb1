"""How far a command that runs several jobs has come."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from types import TracebackType

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Stages:
    """A bar on a terminal's stderr, plain lines elsewhere."""

    def __init__(self, stages: int) -> None:
        console = Console(stderr=True, highlight=False)
        self._plain = not console.is_terminal
        self._begun_s = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=self._plain,
            transient=True,
        )
        self._task = self._bar.add_task("", total=stages)
        self._open = False

    def __enter__(self) -> Stages:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def begin(self, what: str) -> None:
        """Say what is done now; the earlier activity is finished."""
        if self._open:
            self._bar.advance(self._task)
        self._open = True
        self._tell(what)

    @contextlib.contextmanager
    def waiting(self, what: str, every_s: float) -> Iterator[None]:
        """Say so every so many seconds until the `with` is over; a job that never ends would be silent."""
        over = threading.Event()

        def remind() -> None:
            while not over.wait(every_s):
                self._tell(what)

        reminder = threading.Thread(target=remind, daemon=True)
        reminder.start()
        try:
            yield
        finally:
            over.set()
            reminder.join()

    def _tell(self, what: str) -> None:
        self._bar.update(self._task, description=what)
        if self._plain:
            typer.echo(f"[{time.monotonic() - self._begun_s:5.1f} s] {what}", err=True)

    def say(self, what: str) -> None:
        """Say what is done now as part of what `begin` said; only a bar shows it."""
        self._bar.update(self._task, description=what)
