"""The output of `report` for one report: its first screen, some findings, some sections, or everything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from shardtoll.ledger import UsageError

if TYPE_CHECKING:
    from shardtoll.dashboards.terminal.first_screen import More
    from shardtoll.ledger import Report


class Shown(Struct, frozen=True):
    """A user's choice; the default is the first screen."""

    finding: tuple[str, ...] = ()
    everything: bool = False
    sections: tuple[str, ...] = ()
    width: int | None = None

    @property
    def first_screen(self) -> bool:
        """Whether the first screen is printed."""
        return not self.finding and not self.everything and not self.sections


def shown_of(finding: list[str] | None, everything: bool, show: str | None, width: int | None) -> Shown:
    """Return what the options ask for.

    Raises UsageError for options that contradict each other and for a section that there is none of.
    """
    given = [
        name
        for name, there in (("--finding", finding or None), ("--all", everything or None), ("--show", show))
        if there is not None
    ]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} contradict each other", "give one of them")
    sections = () if show is None else tuple(name.strip() for name in show.split(","))
    if sections:
        from shardtoll.dashboards.terminal.terminal import SECTIONS

        for name in sections:
            if name not in SECTIONS:
                raise UsageError(f"--show has no section {name!r}", f"give some of {', '.join(SECTIONS)}")
    return Shown(tuple(finding or ()), everything, sections, width)


def show(report: Report, shown: Shown, more: Sequence[More], *, hta: bool = False) -> None:
    """Print the report; `more` are the lines under the first screen that say how to see the rest.

    Raises UsageError for a number that no finding has.
    """
    if shown.everything:
        report.show(shown.width)
        return
    from shardtoll.dashboards.terminal.screen import Screen

    console = Screen(shown.width)
    if shown.finding:
        from shardtoll.dashboards.terminal.one_finding import one_finding
        from shardtoll.ledger.report.asked import asked

        for place, number in enumerate(asked(shown.finding, report.findings)):
            if place:
                console.print()
            console.print(one_finding(report, number))
        return
    from shardtoll.dashboards.terminal.terminal import Sections

    if shown.sections:
        console.print(Sections(report, shown.sections))
        return
    from shardtoll.dashboards.terminal.first_screen import FirstScreen

    console.print(FirstScreen(report, more))
    if hta:
        console.print(Sections(report, ("hta",)))
