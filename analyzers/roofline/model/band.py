"""How far sound runs lie from the model, by what is known of the machine and by size.

Widths are quantiles of the errors on published sweeps. Each sweep is predicted with constants that were
learned without its source (benchmarks/learn_constants.py). So they hold for a machine that nobody has
measured. If only one source measured a kind of machine, or none, the band is wider. Its low end is the floor.
"""

from __future__ import annotations

from typing import Final, Literal

import numpy as np

from shardtoll.analyzers.roofline.model.candidate import Floats
from shardtoll.analyzers.roofline.model.library import Library
from shardtoll.analyzers.roofline.model.machine import Machine

SIZES: Final[tuple[tuple[str, int], ...]] = (
    ("small", 64 << 10),
    ("middle", 8 << 20),
    ("large", 256 << 20),
    ("huge", 1 << 62),
)
"""Name and largest message of each band."""

_MIDDLES: Final = tuple(float(np.log(size)) for size in (4 << 10, 1 << 20, 64 << 20, 2 << 30))
"""Sizes at which the width is that of the band alone; between them it is interpolated."""

UNKNOWN_WIDTH: Final = 0.7
"""Logarithm of the factor to each side if nothing was ever measured: half to twice the time."""


PER_DOUBLING: Final = 1.5
"""The logarithm of that factor grows by so much on links whose constants are guesses, if a group has twice or
half the ranks of the nearest size timed. Measured with gloo on 2 cores, where ranks wait for a core: a fit to
2 ranks is up to 8 times off for 4. One to 4 ranks is up to 6 times off for 2."""

WIDEST: Final = 1.5
"""Times its usual width (a logarithm) that the band of a fit has at most, however far off the group is. So
many nodes or ranks away nothing of the fit is left but the link itself, and that is known no worse."""


def size_name(message_bytes: float) -> str:
    """Return the name of the size's band."""
    return next(name for name, most in SIZES if message_bytes <= most)


def where(machine: Machine | None) -> str:
    """Return what the errors go by: the network, or `near` inside a host, and the generation there."""
    if machine is None:
        return "unknown"
    if machine.net is not None:
        return f"{machine.net.kind}_{machine.generation}"
    return f"near_{machine.generation or machine.near.kind}"


def guessed_links(library: Library, machine: Machine | None) -> bool:
    """Return whether the library's constants of a kind of link on the way were learned from nothing."""
    if machine is None:
        return False
    kinds = (machine.near.kind, *(() if machine.net is None else (machine.net.kind,)))
    return not all(library.measured_on(kind) for kind in kinds)


def band_of_model(
    library: Library, machine: Machine | None, basis: Literal["transferred", "model"], message_bytes: Floats
) -> tuple[Floats, Floats]:
    """Return the logarithms of time / low and high / time, for each message size.

    If no sweep of a kind of link was at hand, other links' errors do not apply to it. The band is then a wide
    one, unless the machine's own curves were fitted.
    """
    place = where(machine)
    unseen = basis == "model" and guessed_links(library, machine)
    least = UNKNOWN_WIDTH if unseen else 0.0
    logs: Floats = np.log(np.maximum(message_bytes, 1.0))
    ends: list[Floats] = []
    for end in ("low", "high"):
        widths = [
            library.number(f"band.{basis}.{end}.{name}", place, otherwise=UNKNOWN_WIDTH) for name, _ in SIZES
        ]
        ends.append(np.maximum(least, np.interp(logs, _MIDDLES, widths)))
    return ends[0], ends[1]
