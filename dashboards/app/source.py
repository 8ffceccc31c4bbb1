"""The source of the server's reports, as the app sees it: a list of runs, and a report of each.

The app holds no run itself and asks again at each poll. An error of a run is a value here: one bad folder
must not hide the list of all others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from shardtoll.ledger import Report

Kind: TypeAlias = Literal["live", "run", "report", "traces"]
"""`live`: a run folder in which some rank has yet to close. `run`: one that all ranks closed."""


@dataclass(frozen=True, slots=True)
class RunEntry:
    """One line of the list of runs. A field is None until it is known, if the files do not show it
    cheaply."""

    name: str
    """Argument of `Source.report`: unique in the list, stable from poll to poll. Untrusted text."""
    path: str
    kind: Kind
    modified_ns: int | None = None
    """Unix time in ns of the newest file."""
    world_size: int | None = None
    steps: int | None = None
    """Different steps, of whichever ranks; known once the run was analysed."""
    dearest: str | None = None
    """Title of the finding that stands first on the bill; known once the run was analysed."""
    error: str | None = None
    """Why it cannot be read, in one line."""
    fabric: str | None = None
    """Name of the interconnect its floors are computed for; known once the run was analysed."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The present state of one run."""

    report: Report | None
    """The last report that could be made; None if there is none yet, or no run of that name."""
    version: str
    """Differs when the report does: a drawing of a version may be kept. Letters, digits and `-` only."""
    live: bool = False
    """Some rank has not closed: more may come."""
    error: str | None = None
    """Why the newest state cannot be read, in one line; `report` then is the last good one."""
    analysing: bool = False
    """A newer state is being read and analysed: ask again."""


class Source(Protocol):
    """Reports for the server. Every method may be called by several threads at once and returns soon."""

    @property
    def single(self) -> bool:
        """Whether there is one run only, and no list to show."""

    def runs(self) -> list[RunEntry]:
        """Return what there is to see, the last changed first."""

    def report(self, name: str, wait_s: float = 0.0) -> Snapshot:
        """Return the run's state; waits at most `wait_s` if its first report is still being made.

        An unknown name gives a snapshot with an error, no exception: names come from links.
        """

    def close(self) -> bool:
        """Stop working in the background, and return whether anything still ends there; none is waited for.

        Earlier results stay good.
        """
