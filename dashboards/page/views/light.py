"""Figure and table: each rank's step compared with what hardware and fabric allow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from shardtoll.dashboards.page.html.figure import (
    PALETTE,
    TOP_LEGEND,
    Figure,
    Marks,
    bars,
    height,
    hover,
    literal,
    ms,
)
from shardtoll.dashboards.page.html.page_bill import safe
from shardtoll.dashboards.page.html.tables import RANKS_SHOWN, table
from shardtoll.dashboards.words.text import clip
from shardtoll.ledger import Finding
from shardtoll.ledger.answers.step_roofline import RankRoofline, StepRoofline
from shardtoll.ledger.words import human

LEAD: Final = (
    "Mean step of each rank. Speed of light: peaks of the accelerator and physics of the links. Best "
    "overlap: what tuned kernels and a tuned library reach, with all communication hidden. The gap "
    "between best overlap and the step is the most that can be gained."
)

_BARS: Final = (
    ("compute_light_ns", "compute at the speed of light", PALETTE["green"], "\\"),
    ("comm_light_ns", "communication at the speed of light", PALETTE["vermillion"], "/"),
    ("best_overlap_ns", "best overlap", PALETTE["sky"], "x"),
    ("took_ns", "took", PALETTE["grey"], ""),
)
"""Field, words, colour and, not by colour alone, pattern."""

_COLUMNS: Final = (
    ("speed of light", "light_ns"),
    ("of compute", "compute_light_ns"),
    ("of communication", "comm_light_ns"),
    ("best overlap", "best_overlap_ns"),
    ("compute floor", "compute_floor_ns"),
    ("communication floor", "comm_floor_ns"),
    ("one after the other", "serial_ns"),
    ("took", "took_ns"),
    ("exposed communication", "exposed_comm_ns"),
    ("could be hidden", "hideable_ns"),
)


def figure(roofline: StepRoofline, findings: Sequence[Finding] = ()) -> Figure:
    """Return the bars, one group per rank; a sentence instead if the accelerator is not known.

    Findings with a toll light up the steps of their ranks.
    """
    notes = [clip(text, 400) for text in roofline.assumptions]
    notes += [f"REFUTED: {clip(text, 400)}" for text in roofline.refuted]
    if roofline.guesses:
        notes.append(f"GUESS: {clip(', '.join(roofline.guesses), 300)}")
    if roofline.gpu is None:
        return Figure([], {}, [f"Not known: {clip(roofline.why_unknown or 'the accelerator', 400)}.", *notes])
    shown, cut = _shown(roofline)
    if cut:
        notes.insert(0, cut)
    names = [f"rank {rank.rank}" for rank in shown]
    data: list[dict[str, Any]] = []
    for name, words, colour, pattern in _BARS:
        values = [getattr(rank, name) for rank in shown]
        texts = [
            hover([f"<b>{who}</b>", f"{words}: {human.duration(value)}"])
            for who, value in zip(names, values, strict=True)
        ]
        took = [None if value is None else ms(value) for value in values]
        data.append(bars(words, names, took, texts, colour, pattern))
    layout = {
        "barmode": "group",
        "height": height(2 * len(shown)) + 40,
        "xaxis": {"title": {"text": f"ms per step on {literal(roofline.gpu, 60)}"}, "rangemode": "tozero"},
        "yaxis": {"autorange": "reversed", "type": "category", "automargin": True},
        "legend": TOP_LEGEND,
    }
    last = [name for name, *_ in _BARS].index("took_ns")
    marks: Marks = {}
    for number, finding in enumerate(findings, start=1):
        places = [bar for bar, rank in enumerate(shown) if rank.rank in finding.ranks]
        if finding.toll_ns is not None and places:
            marks[number] = {last: places}
    return Figure(data, layout, notes, marks=marks)


def numbers(roofline: StepRoofline) -> str:
    """Return the same as a table."""
    shown, _ = _shown(roofline)
    rows = [
        [
            str(rank.rank),
            *(human.duration(getattr(rank, name)) for _, name in _COLUMNS),
            human.share(rank.mfu, 1),
            human.share(rank.hfu, 1),
            human.share(rank.known_share, 1),
        ]
        for rank in shown
    ]
    heads = ("rank", *(words for words, _ in _COLUMNS), "MFU", "HFU", "compute time known")
    return table([safe(head) for head in heads], rows, "speed of light by rank")


def _shown(roofline: StepRoofline) -> tuple[list[RankRoofline], str]:
    """Return the slowest ranks, by rank, and a sentence if others are left out."""
    if len(roofline.ranks) <= RANKS_SHOWN:
        return list(roofline.ranks), ""
    kept = sorted(roofline.ranks, key=lambda rank: -rank.took_ns)[:RANKS_SHOWN]
    words = f"Only the {RANKS_SHOWN} slowest of {len(roofline.ranks):,} ranks are shown."
    return sorted(kept, key=lambda rank: rank.rank), words
