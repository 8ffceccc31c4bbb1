"""One pass over blocks of a rank: device time, host time, and collectives that it waits for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_SOFT: Final = 16.0
"""Exponent of the soft maximum of host and device time: both stall each other a little where they are
equal."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One pass over a block or the head."""

    compute_ns: float
    """Device time of its operators."""
    host_ns: float
    exposed_ns: dict[str, float]
    """Collectives that the block waits for, by cause: tensor, context, expert."""

    @property
    def time_ns(self) -> float:
        """How long the pass takes."""
        device = self.compute_ns + sum(self.exposed_ns.values())
        if not self.host_ns:
            return device
        return float((device**_SOFT + self.host_ns**_SOFT) ** (1 / _SOFT))

    def plus(self, other: Phase, times: float = 1.0) -> Phase:
        """Return this pass followed by `times` the other."""
        causes = {*self.exposed_ns, *other.exposed_ns}
        exposed = {
            cause: self.exposed_ns.get(cause, 0.0) + times * other.exposed_ns.get(cause, 0.0)
            for cause in causes
        }
        return Phase(
            self.compute_ns + times * other.compute_ns, self.host_ns + times * other.host_ns, exposed
        )


EMPTY: Final = Phase(0.0, 0.0, {})
