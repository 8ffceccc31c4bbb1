"""Which annotations mark steps and phases: they are renamed as the analysis of a rank knows them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from shardtoll.profiler.traces.file.interned import Names
from shardtoll.profiler.traces.file.trace_columns import I64, HostWork
from shardtoll.profiler.traces.nsys import words

_TITLES: Final = {
    "forward": "## forward ##",
    "backward": "## backward ##",
    "optimizer": "## optimizer ##",
    "data": "## data_load ##",
}
_STEP: Final = "ProfilerStep"
_BARE: Final = "unnumbered "


def renamed(
    notes: HostWork, names: Names, process: npt.NDArray[np.int64]
) -> tuple[HostWork, list[tuple[str, str]]]:
    """Return the annotations with steps and phases under their usual names, and notices.

    `process`: the process of each thread; each marks its steps by itself.
    """
    texts = list(names)
    used = np.unique(notes.name).tolist()
    phases = {number: title for number in used if (title := words.phase(texts[number])) is not None}
    number_of = np.arange(len(texts), dtype=np.int64)
    for number, title in phases.items():
        if not texts[number].startswith("#"):
            number_of[number] = names[f"{_TITLES[title]} {texts[number]}"]
    name = number_of[notes.name]
    counted = {number: family for number in used if (family := _counted(texts[number])) is not None}
    notices: list[tuple[str, str]] = []
    if counted and not any(texts[number].startswith(_STEP) for number in used):
        passes = [number for number, title in phases.items() if title in ("forward", "backward")]
        owner = process[notes.thread]
        candidates = np.isin(notes.name, list(counted))
        inner = np.isin(notes.name, passes)
        for each in np.unique(owner[candidates]).tolist():
            rows = np.flatnonzero(candidates & (owner == each))
            within = np.flatnonzero(inner & (owner == each))
            notices += _mark(notes, name, rows, within, counted, texts, names)
    return replace(notes, name=name.astype(np.int32)), list(dict.fromkeys(notices))


def _counted(text: str) -> tuple[str, int] | None:
    """Return what a range counts and its number, -1 for a step without one; None for other ranges."""
    if (counted := words.numbered(text)) is not None:
        return counted
    return (f"{_BARE}{text}", -1) if words.is_bare_step(text) else None


def _mark(
    notes: HostWork,
    name: npt.NDArray[np.int64],
    rows: I64,
    passes: I64,
    counted: dict[int, tuple[str, int]],
    texts: list[str],
    names: Names,
) -> list[tuple[str, str]]:
    """Rename the steps among the rows of one process, in `name`; return notices."""
    families: defaultdict[str, list[int]] = defaultdict(list)
    for row in rows[np.argsort(notes.start_ns[rows], kind="stable")].tolist():
        families[counted[int(notes.name[row])][0]].append(row)
    usable = [
        family
        for family, members in families.items()
        if not family.startswith(_BARE) or _holds(notes, members, passes)
    ]
    if not usable:
        return []
    lasted = notes.end_ns - notes.start_ns
    chosen = max(
        usable, key=lambda family: (not family.startswith(_BARE), int(lasted[families[family]].sum()))
    )
    members = families[chosen]
    numbers = [counted[int(notes.name[row])][1] for row in members]
    again = len(set(numbers)) < len(numbers)
    for nth, (row, number) in enumerate(zip(members, numbers, strict=True)):
        name[row] = names[f"{_STEP}#{nth if again or number < 0 else number}"]
    if again:
        shown = texts[int(notes.name[members[0]])][:80]
        return [("steps-numbered", f"steps are the ranges like {shown!r}, numbered from 0 in their order")]
    return []


def _holds(notes: HostWork, outer: list[int], inner: I64) -> bool:
    """Whether some of the inner ranges lie in the outer ones; a `step` next to `forward` is no whole step."""
    if not len(inner):
        return True
    starts = np.sort(notes.start_ns[outer])
    ends = np.sort(notes.end_ns[outer])
    at_ns = notes.start_ns[inner]
    return bool((np.searchsorted(starts, at_ns, side="right") > np.searchsorted(ends, at_ns)).any())
