"""The library constants that predict a sweep: those shipped, or learned without the sweep's source."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from learn_constants import Case, Errors, bands_of, cases_of, errors_of, learn, library_of, source_of

from shardtoll.analyzers.roofline import Cost, Fabric, Placement, collective_cost
from shardtoll.analyzers.roofline.evaluate.evaluate import Predict
from shardtoll.analyzers.roofline.evaluate.sweep import Sweep
from shardtoll.analyzers.roofline.model.cost import cost_by
from shardtoll.analyzers.roofline.model.library import Library
from shardtoll.analyzers.roofline.model.pricing import Pricing


@dataclass(frozen=True, slots=True)
class Constants:
    """What predicts one sweep."""

    predict: Predict
    library: Library | None = None
    """None: the shipped one."""


AS_SHIPPED: Final = Constants(collective_cost)


@dataclass(frozen=True, slots=True)
class _By:
    """Predicts with a library of its own where the fabric's is NCCL, from which the sweeps are."""

    library: Library
    kept: OrderedDict[int, Pricing] = field(default_factory=OrderedDict)

    def __call__(self, fabric: Fabric, op: str, message_bytes: int, at: Placement) -> Cost | None:
        if fabric.library != self.library.name or fabric.intra is None:
            return collective_cost(fabric, op, message_bytes, at)
        # A pricing holds its fabric: while it is kept no other has that id.
        pricing = self.kept.get(id(fabric))
        if pricing is None:
            pricing = self.kept[id(fabric)] = Pricing(fabric, self.library)
            if len(self.kept) > 4:
                self.kept.popitem(last=False)
        return cost_by(pricing, op, message_bytes, at)


def unseen(sweeps: Mapping[str, Sweep]) -> dict[str, Constants]:
    """Return for each sweep constants and bands that no sweep of its source took part in.

    Constants: learned from the sweeps of all other sources. Bands: from the errors on those, each predicted
    without its own source.
    """
    cases = cases_of(sweeps)
    sources = sorted({source_of(sweep) for sweep in sweeps.values()})
    learned = {source: library_of(learn(_without(cases, source))) for source in sources}
    errors = {
        source: errors_of([case for case in cases if case.source == source], learned) for source in sources
    }
    by_source = {}
    for source in sources:
        others = [found for other, found in errors.items() if other != source]
        library = learned[source]
        bands = bands_of(_together(others))
        library = replace(library, numbers={**library.numbers, **bands})
        by_source[source] = Constants(_By(library), library)
    return {name: by_source[source_of(sweep)] for name, sweep in sweeps.items()}


def _without(cases: Sequence[Case], source: str) -> list[Case]:
    return [case for case in cases if case.source != source]


def _together(found: Sequence[Errors]) -> Errors:
    every: Errors = {"model": {}, "transferred": {}}
    for errors in found:
        for basis, by_class in errors.items():
            for key, by_source in by_class.items():
                every[basis].setdefault(key, {}).update(by_source)
    return every
