"""How much of a message is of parameters that its record names, counted in elements.

Elements are compared, not bytes: gradients may be sent in a narrower dtype than that of their parameters.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.unsynced.gradient_groups import how_many, is_many, names_in
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.sampled import WIDTHS
from shardtoll.analyzers.shared.tally import codes, numbered

WHOLE: Final = ("all_gather", "gather")
"""Operations whose message counts the parts of all ranks."""

Numbers = npt.NDArray[np.float64]


class Held(Struct, frozen=True):
    """Sizes of the parameters that each rank holds."""

    elements: dict[int, dict[str, int]]
    """Rank -> name -> elements on it."""
    many: dict[int, frozenset[str]]
    """Rank -> those that were seen in a call of many."""

    def of(self, rank: int, names: Collection[str]) -> float:
        """Return how many elements of these parameters a rank holds."""
        mine = self.elements.get(rank, {})
        return float(sum(mine.get(name, 0) for name in names))


@once
def held(context: Context) -> Held:
    """Return what the table of parameters says of each rank."""
    elements: dict[int, dict[str, int]] = {}
    many: dict[int, set[str]] = {}
    columns = ["rank", "name", "numel", "carried"]
    for rank, name, numel, seen in context.model[columns].itertuples(index=False):
        elements.setdefault(int(rank), {})[str(name)] = int(numel)
        if not pd.isna(seen) and seen:
            many.setdefault(int(rank), set()).add(str(name))
    return Held(elements, {rank: frozenset(names) for rank, names in many.items()})


def unknown_of(context: Context, frame: pd.DataFrame) -> Numbers:
    """Return how many bytes of each of these collectives' messages are of nobody knows what."""
    width = frame["dtype"].map(WIDTHS).fillna(1).to_numpy(dtype=np.float64)
    message = frame["message_bytes"].astype("float64").to_numpy(dtype=np.float64, na_value=np.inf)
    times = np.where(frame["op"].isin(WHOLE), frame["group_size"].astype("float64"), 1.0)
    elements = message / width / times
    number, first = codes(frame[["rank", "parameter"]], ["rank", "parameter"])
    pairs = list(first.itertuples(index=False, name=None))
    sizes = [held(context).of(int(rank), names_in(text)) for rank, text in pairs]
    known = np.array(sizes, dtype=np.float64)[number]
    of_many = np.array([is_many(text) for _, text in pairs], dtype=np.bool_)[number]
    if of_many.any():
        known[of_many] = _of_many(held(context), frame[of_many], elements[of_many])
    # Less than the whole gradient that it names: it is a part of it, or compressed, and may hold others too.
    unknown = np.where(elements < known, elements, elements - known)
    of_bytes: Numbers = unknown * width * times
    return of_bytes


def _of_many(holds: Held, frame: pd.DataFrame, elements: Numbers) -> Numbers:
    """Return how many elements of each call of many tensors are of known parameters.

    A call says how many it holds, and names the first. If calls of one step and group say as many as were
    seen in such calls in all, they hold these: what is known is shared out by size. Else those that a call
    does not name are taken to be the smallest.
    """
    count = np.array([how_many(text) for text in frame["parameter"]], dtype=np.int64)
    ranks, texts = frame["rank"].to_numpy(), frame["parameter"].tolist()
    number = numbered(frame, ["rank", "step", "group"])
    known = np.zeros(len(frame))
    order = np.argsort(number, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(number[order])) + 1):
        rank = int(ranks[rows[0]])
        seen, sent = holds.many.get(rank, frozenset()), float(elements[rows].sum())
        if count[rows].sum() == len(seen) and np.isfinite(sent):
            together = holds.of(rank, seen)
            known[rows] = elements[rows] * (together / sent) if together <= sent else np.inf
            continue
        for row in rows:
            names = names_in(texts[row])
            others = sorted(holds.of(rank, {name}) for name in seen - names)
            known[row] = holds.of(rank, names) + sum(others[: max(0, int(count[row]) - 1)])
    return known
