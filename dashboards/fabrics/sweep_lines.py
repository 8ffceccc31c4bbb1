"""Measured sweeps with the model's predictions, as every renderer takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shardtoll.ledger.words import human


@dataclass(frozen=True, slots=True)
class SizeLine:
    """One size of a sweep; None if the model does not predict it."""

    message_bytes: int
    measured_ns: float
    predicted_ns: float | None = None
    low_ns: float | None = None
    high_ns: float | None = None
    floor_ns: float | None = None
    """At most one of twenty sound runs takes less."""
    light_ns: float | None = None
    """Speed of light: what physics of the links allows."""
    algorithm: str | None = None
    protocol: str | None = None
    basis: str | None = None
    """`measured`, `transferred` or `model`."""

    @property
    def error(self) -> float | None:
        """Signed relative error of the prediction: above 0 if it is too slow."""
        return None if self.predicted_ns is None else self.predicted_ns / self.measured_ns - 1

    @property
    def inside(self) -> bool | None:
        """Whether the measurement lies within the band; None if there is none."""
        if self.low_ns is None or self.high_ns is None:
            return None
        return self.low_ns <= self.measured_ns <= self.high_ns


@dataclass(frozen=True, slots=True)
class ErrorLine:
    """Errors of one band of sizes; shares of 1, None if unknown."""

    band: str
    count: int
    median: float | None
    p90: float | None
    inside: float | None
    """Share of the measurements within the stated bands."""
    noise_median: float | None
    """Difference between out-of-place and in-place times of one sweep: no model can do better."""
    noise_p90: float | None
    width: float | None = None
    """How many times their low ends the bands' high ends are, at the median."""
    below_floor: float | None = None
    """Share of the measurements below their floors, by more than 2 %."""
    below_light: float | None = None
    """Share of those that are faster than the speed of light."""


@dataclass(frozen=True, slots=True)
class SweepLine:
    """One sweep."""

    file: str
    hardware: str
    op: str
    nodes: int
    ranks: int
    fabric: str | None
    sure: str
    """How sure the choice of the fabric is, in words."""
    mode: str
    """`model`, `calibrated` or `transferred`."""
    sizes: tuple[SizeLine, ...]
    """Those that are scored, ascending."""
    fitted: tuple[SizeLine, ...]
    """Those of this sweep that were fitted, without predictions."""
    on: tuple[str, ...]
    """Files of the sweeps it was calibrated on."""
    reason: str | None
    """Why sizes have no prediction."""
    guesses: tuple[str, ...]
    """Numbers of the fabric that are guesses."""
    errors: tuple[ErrorLine, ...]
    """By band, and last of all sizes."""
    alone: str | None = None
    """Why nothing of the sweeps in `on` took part; None if it did."""

    @property
    def predicted(self) -> bool:
        """Whether the model says anything of it."""
        return any(size.predicted_ns is not None for size in self.sizes)

    def title(self) -> str:
        """Return op and group in words."""
        return f"{self.op} between {human.plural(self.ranks, 'rank')} on {human.plural(self.nodes, 'node')}"

    def mode_words(self) -> str:
        """Return the fitted parts, in words."""
        if self.mode == "calibrated":
            sizes = human.plural(len(self.fitted), "size")
            return f"calibrated on {sizes} of the same sweep, the others are scored"
        if self.alone:
            return self.alone
        if self.mode == "transferred" and not self.on:
            return "by the fabric's own curves" if self.predicted else "nothing to transfer from"
        if self.mode == "transferred":
            return f"transferred from {human.plural(len(self.on), 'other sweep')}"
        return "nothing fitted"


@dataclass(frozen=True, slots=True)
class SweepTable:
    """All sweeps of one evaluation, and the errors over all of a mode."""

    sweeps: tuple[SweepLine, ...]
    totals: tuple[tuple[str, tuple[ErrorLine, ...]], ...]
    """Mode -> errors by band, and last of all sizes."""

    def over(self, mode: str) -> str:
        """Return in words over how many sweeps of the mode the errors are."""
        of_mode = [sweep for sweep in self.sweeps if sweep.mode == mode]
        predicted = sum(sweep.predicted for sweep in of_mode)
        if predicted == len(of_mode):
            return f"errors over {human.plural(predicted, 'sweep')}"
        return f"errors over {predicted:,} of {human.plural(len(of_mode), 'sweep')}, no other is predicted"


LEGEND: Final = (
    "Outside, and not in band: the measurement lies outside of low to high, which should hold nine of ten. "
    "Width: high over low, at the median. "
    "Below floor: faster than the floor by more than 2 %, which at most 5 % of sound measurements are. "
    "Below light: faster than the speed of light, which none is. "
    "Noise: what out-of-place and in-place times of one sweep differ by; no model can do better."
)
"""Definitions of the words in the tables."""
