"""What a terminal shows while a command works: nothing for a moment, then what is done and for how long."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from shardtoll.ledger.records.one_line import clean

if TYPE_CHECKING:
    from rich.progress import Progress

AFTER_S: Final = 1.0
"""Work that ends sooner needs no word."""


@contextlib.contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show `what` with the time so far on a terminal's stderr, once it takes longer than `AFTER_S`.

    Nothing is shown where stderr is no terminal, and nothing stays there after the work.
    """
    if not sys.stderr.isatty():
        yield
        return
    shown: list[Progress] = []

    def show() -> None:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        bar = Progress(*columns, console=Console(stderr=True), transient=True)
        bar.add_task(clean(what), total=None)
        bar.start()
        shown.append(bar)

    # Loading rich would delay the work that may end at once.
    timer = threading.Timer(AFTER_S, show)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        for bar in shown:
            bar.stop()
