"""The least step time that hardware and fabric allow, on a terminal: a line of bounds with the measured time,
and why."""

from __future__ import annotations

from typing import Final

from rich.console import RenderableType
from rich.text import Text

from shardtoll.dashboards.facts import step_times, summary
from shardtoll.dashboards.terminal.coded import coded
from shardtoll.dashboards.words.text import clip
from shardtoll.ledger import Report
from shardtoll.ledger.answers.step_roofline import DEFINITIONS, RankRoofline, StepRoofline
from shardtoll.ledger.words import human

REFUTED_SHOWN: Final = 3


def roofline(report: Report) -> list[RenderableType]:
    """Return the block under the step table; empty if the report has no such section, or ran on CPUs."""
    step_roofline = report.roofline
    if step_roofline is None or not step_roofline.ranks or summary.no_hardware(report):
        return []
    rank = slowest(step_roofline)
    if step_roofline.gpu is None:
        text = Text("speed of light ", style="dim")
        text.append(f"unknown: {clip(step_roofline.why_unknown or 'the accelerator is not known', 300)}")
        return [Text(), text]
    text = Text("the hardware", style="bold")
    text.append(f", {clip(step_roofline.gpu, 60)}: rank {rank.rank}", style="not bold")
    text.append(" (slowest)\n" if len(step_roofline.ranks) > 1 else "\n", style="not bold")
    text.append(" · ".join(_bounds(rank, _captured(report, rank.rank))), style="bold")
    parts = (rank.compute_light_ns, rank.comm_light_ns, rank.compute_floor_ns, rank.comm_floor_ns)
    light, links, floor, library = map(human.duration, parts)
    few_links, few = (_counted(rank, count) for count in (rank.comm_light_count, rank.comm_floor_count))
    text.append(f"\nspeed of light: compute {light}, communication {links}{few_links}; ")
    text.append(f"floors: compute {floor}, communication {library}{few}")
    if rank.serial_ns is not None:
        text.append(f"; one after the other {human.duration(rank.serial_ns)}")
    if rank.exposed_comm_ns:
        exposed, hidden = human.duration(rank.exposed_comm_ns), human.duration(rank.hideable_ns)
        text.append(f"\nexposed communication {exposed}: ")
        if rank.hideable_ns is None:
            text.append("how much of it compute could hide is unknown")
        else:
            text.append(f"compute could hide {hidden} of it at best, if nothing had to wait for anything")
    for sentence in step_roofline.refuted[:REFUTED_SHOWN]:
        text.append("\nREFUTED ", style="yellow")
        text.append(clip(sentence, 300))
    if len(step_roofline.refuted) > REFUTED_SHOWN:
        text.append(f"\nand {len(step_roofline.refuted) - REFUTED_SHOWN} more bounds are refuted")
    for sentence in step_roofline.assumptions:
        if sentence not in DEFINITIONS:
            text.append("\n").append_text(coded(clip(sentence, 300), style="dim"))
    text.append("\nwhat the terms mean: docs/roofline.md", style="dim")
    if step_roofline.guesses:
        text.append(f"\nGUESS: {clip(', '.join(step_roofline.guesses), 200)}", style="yellow")
    return [Text(), text]


def slowest(step_roofline: StepRoofline) -> RankRoofline:
    """Return the rank whose step took longest, the first of equals."""
    return max(step_roofline.ranks, key=lambda rank: rank.took_ns)


def _counted(rank: RankRoofline, count: int | None) -> str:
    """Return ` (1 of 74 collectives)` if a sum leaves some out; empty if it has all or none."""
    if not count or not rank.comm_count or count == rank.comm_count:
        return ""
    return f" ({count:,} of {rank.comm_count:,} collectives)"


def _captured(report: Report, rank: int) -> bool:
    """Whether capture's own work is in the rank's step, as the table of the step shows it."""
    return any(time.capture_ns > 0 for time in step_times.rank_times(report) if rank in time.ranks)


def _bounds(rank: RankRoofline, captured: bool) -> list[str]:
    words = [
        f"speed of light {human.duration(rank.light_ns)}",
        f"best overlap {human.duration(rank.best_overlap_ns)}",
        f"took {human.duration(rank.took_ns)}{' without capture' if captured else ''}",
        f"MFU {human.share(rank.mfu, 1)}",
    ]
    if rank.hfu is not None and rank.hfu != rank.mfu:
        words.append(f"HFU {human.share(rank.hfu, 1)}")
    return words
