"""The terminal's line while a command works: nothing for a moment, then the activity and its duration."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Final

from shardtoll.ledger.records.one_line import clean

AFTER_S: Final = 1.0
"""Work that ends sooner needs no word."""
REFRESH_S: Final = 0.1


@contextlib.contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show `what` with the time so far on a terminal's stderr, once it takes longer than `AFTER_S`.

    Nothing is shown if stderr is no terminal, and nothing stays there after the work.
    """
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    # Loading rich would delay work that may end at once.
    thread = threading.Thread(target=_show, args=(what, done), name="shardtoll-waiting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _show(what: str, done: threading.Event) -> None:
    if done.wait(AFTER_S):
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if console.is_dumb_terminal:
        # It cannot take a line back.
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    # A thread of rich's own would outlive the work by a moment.
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as bar:
        bar.add_task(clean(what), total=None)
        while not done.wait(REFRESH_S):
            bar.refresh()
