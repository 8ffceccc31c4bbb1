"""How one machine differs from the model: three factors, fitted to what was measured on it.

The factors are on latencies, on bytes' times and on the ramp. Each is held near 1 as strongly as it was seen
to vary between machines of a kind. Robust (soft L1 on relative errors), by Levenberg and Marquardt's method.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Struct

Floats = npt.NDArray[np.float64]


class Correction(Struct, frozen=True):
    """Factors on the parts of a candidate's time; all 1: the model as it is."""

    latency: float = 1.0
    transfer: float = 1.0
    ramp: float = 1.0


NONE: Final = Correction()

Spread: TypeAlias = tuple[float, float, float]

SPREAD: Final[Spread] = (0.1, 0.08, 0.1)
"""Standard deviations of the factors' logarithms between machines of a kind."""

GUESSED_SPREAD: Final[Spread] = (2.0, 1.0, 0.1)
"""The same if the constants of a link's kind are guesses. Measured with gloo between 2 and 4 ranks on 2
cores: hops take 5 to 60 times the guess, bytes 2 to 5 times."""

NOISE: Final = 0.1
"""Relative error of one measured point against a well-fitted model."""


def minimise(residuals: Callable[[Floats], Floats], start: Floats, rounds: int = 40) -> Floats:
    """Return the parameters with the least sum of squared residuals from there on (numeric derivatives)."""
    point: Floats = start.astype(np.float64)
    damping = 1e-2
    here = residuals(point)
    for _ in range(rounds):
        columns = []
        for i in range(len(point)):
            nudged = point.copy()
            nudged[i] += 1e-4
            columns.append((residuals(nudged) - here) / 1e-4)
        slopes: Floats = np.stack(columns, axis=1)
        normal, downhill = slopes.T @ slopes, slopes.T @ here
        better: bool = False
        for _ in range(8):
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal) + 1e-12), -downhill)
            there = residuals(point + step)
            if there @ there < here @ here:
                gain = 1 - (there @ there) / (here @ here)
                point, here, damping, better = point + step, there, damping / 4, bool(gain > 1e-5)
                break
            damping *= 4
        if not better:
            break
    return point


def soft(errors: Floats) -> Floats:
    """Return errors whose squares grow like the errors themselves where these are large (soft L1)."""
    softened: Floats = np.sign(errors) * np.sqrt(2 * (np.sqrt(1 + errors**2) - 1))
    return softened


def fit_correction(
    predicted_ns: Callable[[Correction], Sequence[Floats]],
    measured_ns: Sequence[Floats],
    within: Spread = SPREAD,
) -> Correction:
    """Return the factors that bring the model nearest to the measured times of some curves.

    `within`: standard deviations of the factors' logarithms between machines of the kind.
    """
    measured = [np.log(times) for times in measured_ns]

    def errors(logs: Floats) -> list[Floats]:
        times = predicted_ns(Correction(*np.exp(np.clip(logs, -4, 4)).tolist()))
        return [np.log(time) - real for time, real in zip(times, measured, strict=True)]

    def fitted(noise: float) -> Floats:
        def residuals(logs: Floats) -> Floats:
            # A curve of many sizes tells more than one of few, but not in proportion: its errors go together.
            weighted = [error / noise * len(error) ** -0.25 for error in errors(logs)]
            return np.concatenate([soft(np.concatenate(weighted)), logs / np.array(within)])

        return minimise(residuals, np.zeros(3))

    logs = fitted(NOISE)
    # If the model's shape does not fit the machine, its factors predict little of another collective.
    misfit = float(np.median(np.abs(np.concatenate(errors(logs)))))
    if misfit > NOISE:
        logs = fitted(misfit * misfit / NOISE)
    return Correction(*np.exp(np.clip(logs, -4, 4)).tolist())
