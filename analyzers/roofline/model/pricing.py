"""A fabric made ready: candidates of each op and placement, fits to its curves, and bands."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, Literal

import numpy as np
from msgspec import Struct

from shardtoll.analyzers.roofline.machines.curve import Curve
from shardtoll.analyzers.roofline.machines.fabric import Fabric
from shardtoll.analyzers.roofline.model.band import (
    PER_DOUBLING,
    UNKNOWN_WIDTH,
    WIDEST,
    band_of_model,
    guessed_links,
)
from shardtoll.analyzers.roofline.model.candidate import Candidate, Floats
from shardtoll.analyzers.roofline.model.correction import (
    GUESSED_SPREAD,
    NONE,
    SPREAD,
    Correction,
    fit_correction,
)
from shardtoll.analyzers.roofline.model.direct import PAIRED
from shardtoll.analyzers.roofline.model.library import Library, load_library
from shardtoll.analyzers.roofline.model.light import light_ns_per_byte
from shardtoll.analyzers.roofline.model.measured_cost import curves_of, measured_cost, timed_ranks
from shardtoll.analyzers.roofline.model.model import Choice, Model
from shardtoll.analyzers.roofline.model.place import Placement
from shardtoll.analyzers.roofline.model.ring import CHAINED

_FAMILIES: Final[dict[str, str]] = {
    "all_gather": "gather",
    "reduce_scatter": "gather",
    **dict.fromkeys(CHAINED, "chain"),
    **dict.fromkeys(("send", "recv", "gather", "scatter"), "direct"),
}
"""Groups of ops that cost the same."""

ONE_CARD_WIDTH: Final = 1.2
"""Logarithm of the factor by which a message between two hosts may be faster than the model says."""

_FAR: Final = 8
"""A fit made on so many times fewer nodes, or more, is no longer one of a neighbour."""


Basis = Literal["measured", "transferred", "model"]
"""`measured`: this op was timed on such a group. `transferred`: others were, and the model is fitted to them.
`model`: only published figures of the links and constants of the library."""


class Price(Struct, frozen=True):
    """Times in ns, not rounded."""

    time_ns: float
    latency_ns: float
    low_ns: float
    high_ns: float
    floor_ns: float
    light_ns: float
    basis: Basis


class _Fit(Struct, frozen=True):
    correction: Correction
    nodes: tuple[int, ...]
    """Numbers of hosts that it was fitted on; none: there was nothing to fit it on."""
    ranks: tuple[int, ...] = ()
    """Sizes of the groups that it was fitted on; none: it was fitted on messages, or on nothing."""


class _Modelled(Struct, frozen=True):
    """The model's times of some message sizes, in ns; the band as logarithms to both sides."""

    choice: Choice
    time_ns: Floats
    best_ns: Floats
    light_ns: Floats
    low: Floats
    high: Floats
    basis: Literal["transferred", "model"]


_RUNGS: Final[Floats] = np.concatenate([[0.0], 2.0 ** np.arange(63)])
"""Message sizes whose floors hold for all larger messages. They include all sizes at which a band bends."""


class Pricing:
    """Costs on one fabric."""

    def __init__(self, fabric: Fabric, library: Library | None = None) -> None:
        self.fabric = fabric
        self.library = library or load_library(fabric.library, fabric.library_version)
        self._models: dict[tuple[str, Placement], Model] = {}
        self._fits: dict[tuple[str, bool], _Fit] = {}
        self._light: dict[tuple[str, Placement], float] = {}
        self._rungs: dict[tuple[str, Placement], tuple[Floats, Floats]] = {}

    def model(self, op: str, placement: Placement) -> Model:
        """Return the candidates of the op on the placement; falsy where there is none."""
        op = "all_reduce" if op == "barrier" else op
        model = self._models.get((op, placement))
        if model is None:
            model = self._models[op, placement] = Model(self.fabric, op, placement, self.library)
        return model

    def knows(self, op: str, placement: Placement) -> bool:
        """Whether the op is known and all links it needs are."""
        return bool(self.model(op, placement))

    def price(self, op: str, message_bytes: int, placement: Placement) -> tuple[Candidate, Price]:
        """Return the fastest candidate and the times of the collective."""
        return self.prices(op, (message_bytes,), placement)[0]

    def prices(self, op: str, sizes: Sequence[int], placement: Placement) -> list[tuple[Candidate, Price]]:
        """Return the same for each of some message sizes: none depends on the others."""
        fit, model = self._fit(op, placement), self.model(op, placement)
        message_bytes = _floats(sizes)
        modelled = self._modelled(op, placement, fit, model, message_bytes)
        choice, basis = modelled.choice, modelled.basis
        floors_ns = self._floors_ns(op, placement, fit, model, message_bytes, modelled)
        latencies = [candidate.latency_ns * fit.correction.latency for candidate in choice.candidates]
        columns = (
            modelled.time_ns,
            np.array(latencies)[choice.index],
            np.maximum(modelled.time_ns * np.exp(-modelled.low), floors_ns),
            modelled.time_ns * np.exp(modelled.high),
            floors_ns,
            modelled.light_ns,
        )
        rows = zip(*(column.tolist() for column in columns), strict=True)
        best = [choice.candidates[each] for each in choice.index.tolist()]
        priced = [
            Price(time, latency, least, most, floor, light, basis)
            for time, latency, least, most, floor, light in rows
        ]
        if curves_of(self.fabric.curves, op, placement):
            priced = [
                self._measured(op, size, placement, price) for size, price in zip(sizes, priced, strict=True)
            ]
        return list(zip(best, priced, strict=True))

    def _modelled(
        self, op: str, placement: Placement, fit: _Fit, model: Model, message_bytes: Floats
    ) -> _Modelled:
        choice = model.choose(message_bytes, fit.correction)
        # Another version of the library may take the best algorithm: no sound run is below that one's band.
        times_ns, best_ns = choice.time_ns, choice.best_ns
        light_ns: Floats = self.light_ns_per_byte(op, placement) * message_bytes
        basis: Literal["transferred", "model"] = "transferred" if fit.nodes else "model"
        if basis == "model":
            # A share that was learned elsewhere may be above what the links here allow.
            times_ns, best_ns = np.maximum(times_ns, light_ns), np.maximum(best_ns, light_ns)
        low, high = band_of_model(self.library, model.machine, basis, message_bytes)
        if basis == "model" and self._guessed_rate(placement):
            low, high = np.maximum(low, UNKNOWN_WIDTH), np.maximum(high, UNKNOWN_WIDTH)
        if basis == "model" and op in PAIRED and placement.spans_nodes:
            # How much of a card one message gets differs between machines more than anything else (0.3 to 1).
            low = np.maximum(low, ONE_CARD_WIDTH)
        wider, more = self._wider(fit, placement), self._per_size(fit, placement, model)
        return _Modelled(choice, times_ns, best_ns, light_ns, low * wider + more, high * wider + more, basis)

    def _floors_ns(
        self,
        op: str,
        placement: Placement,
        fit: _Fit,
        model: Model,
        message_bytes: Floats,
        modelled: _Modelled,
    ) -> Floats:
        """Return what one of twenty sound runs takes less than, for each message size.

        A larger message takes no less than a smaller one, so each floor is also one of every larger message.
        The band is wider at some sizes than at smaller ones: its low end alone would fall there.
        """
        rungs = self._rungs.get((op, placement))
        if rungs is None:
            whole = self._modelled(op, placement, fit, model, _RUNGS)
            below_ns: Floats = np.maximum.accumulate(whole.best_ns * np.exp(-whole.low))
            rungs = self._rungs[op, placement] = (below_ns, whole.low)
        below_ns, low = rungs
        at = np.searchsorted(_RUNGS, message_bytes, side="right") - 1
        # Between two rungs the wider end counts, so that floors do not fall there either.
        widest = np.maximum(modelled.low, low[np.minimum(at + 1, len(low) - 1)])
        floors: Floats = np.maximum(below_ns[at], modelled.best_ns * np.exp(-widest))
        return floors

    def _measured(self, op: str, message_bytes: int, placement: Placement, price: Price) -> Price:
        """Return what was measured of the very same collective in place of the model's price."""
        model, fit = self.model(op, placement), self._fit(op, placement)

        def shape(size: float) -> float:
            return float(model.choose(np.array([size], dtype=np.float64), fit.correction).time_ns[0])

        measured = measured_cost(self.fabric.curves, op, message_bytes, placement, shape)
        if measured is None:
            return price
        latency_ns = min(price.latency_ns, measured.time_ns)
        return Price(
            measured.time_ns,
            latency_ns,
            measured.low_ns,
            measured.high_ns,
            measured.low_ns,
            price.light_ns,
            "measured",
        )

    def light_ns_per_byte(self, op: str, placement: Placement) -> float:
        """Return the least ns a byte of the message by the rates of the links."""
        light = self._light.get((op, placement))
        if light is None:
            machine = self.model(op, placement).machine
            assert machine is not None, "asked for known ops only"
            light = self._light[op, placement] = light_ns_per_byte(
                machine, "all_reduce" if op == "barrier" else op
            )
        return light

    def guesses(self, placement: Placement, of: Candidate) -> tuple[str, ...]:
        """Return the names of guessed numbers: those of the links that the placement uses, and of the
        library's constants that the candidate is made of."""
        return (*self._link_guesses(placement), *(f"{self.library.name} {name}" for name in of.guesses))

    def _link_guesses(self, placement: Placement) -> tuple[str, ...]:
        """Return the names of the guessed numbers of the links that the placement uses."""
        places = ("intra.", "inter.") if placement.spans_nodes else ("intra.",)
        links = (self.fabric.intra, self.fabric.inter) if placement.spans_nodes else (self.fabric.intra,)
        guesses = tuple(name for name in self.fabric.guesses if name.startswith(places))
        kinds = (link.kind for link in links if link is not None)
        return (
            *guesses,
            *(f"{self.library.name} over {kind}" for kind in kinds if not self.library.measured_on(kind)),
        )

    def _guessed_rate(self, placement: Placement) -> bool:
        """Whether the rate of a link that the placement uses is a guess."""
        rates = ("intra.rank_gbps", "inter.rank_gbps", "inter.node_gbps")
        return any(name in rates for name in self._link_guesses(placement))

    def _wider(self, fit: _Fit, placement: Placement) -> float:
        """Return what a band is multiplied with: 1, more where the fit comes from far fewer or more nodes."""
        if not fit.nodes:
            return 1.0
        apart = min(max(nodes, placement.nodes) / min(nodes, placement.nodes) for nodes in fit.nodes)
        return min(WIDEST, 1.0 + max(0.0, math.log2(apart / _FAR)))

    def _per_size(self, fit: _Fit, placement: Placement, model: Model) -> float:
        """Return how much a band's logarithms grow if no group of this size was timed.

        0 on links whose constants were learned: their widths are those of other group sizes too.

        Each doubling is off by a factor of its own. Such logarithms add up by their squares.
        So the width grows with the root of their number, up to `WIDEST` times that of one.
        """
        if not fit.ranks or not guessed_links(self.library, model.machine):
            return 0.0
        doublings = min(abs(math.log2(placement.ranks / ranks)) for ranks in fit.ranks)
        return PER_DOUBLING * min(WIDEST, math.sqrt(doublings))

    def _fit(self, op: str, placement: Placement) -> _Fit:
        key = (_FAMILIES.get(op, op), placement.spans_nodes)
        fit = self._fits.get(key)
        if fit is None:
            fit = self._fits[key] = self._fitted(*key)
        return fit

    def _fitted(self, family: str, spans_nodes: bool) -> _Fit:
        """Return the correction by the curves of the op's family, else by all that cross hosts as it does."""
        within = [curve for curve in self.fabric.curves if (curve.nodes > 1) == spans_nodes]
        family_curves = [curve for curve in within if _FAMILIES.get(curve.op, curve.op) == family]
        modelled = [(curve, self.model(curve.op, _placement(curve))) for curve in family_curves or within]
        modelled = [(curve, model) for curve, model in modelled if model]
        if not modelled:
            return _Fit(NONE, ())
        sizes = [_floats(point.message_bytes for point in curve.points) for curve, _ in modelled]
        times = [_floats(point.time_ns for point in curve.points) for curve, _ in modelled]

        def predicted_ns(correction: Correction) -> list[Floats]:
            pairs = zip(modelled, sizes, strict=True)
            return [model.choose(size, correction).time_ns for (_, model), size in pairs]

        guessed = any(guessed_links(self.library, model.machine) for _, model in modelled)
        correction = fit_correction(predicted_ns, times, GUESSED_SPREAD if guessed else SPREAD)
        nodes = {curve.nodes for curve, _ in modelled}
        ranks = timed_ranks(curve for curve, _ in modelled)
        return _Fit(correction, tuple(sorted(nodes)), tuple(sorted(ranks)))


def _placement(curve: Curve) -> Placement:
    most, least = -(-curve.ranks // curve.nodes), curve.ranks // curve.nodes
    return Placement(curve.ranks, curve.nodes, most, curve.sharing, None if least == most else least)


def _floats(values: Iterable[int]) -> Floats:
    return np.array(list(values), dtype=np.float64)
