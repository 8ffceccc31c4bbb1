"""What a cost model says of one algorithm."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Terms:
    """One algorithm's cost, its parts apart: time = latency + transfer."""

    algorithm: str
    steps: int
    """Hops that follow one another."""
    wire_bytes: int
    """Bytes one rank must send."""
    latency_ns: float
    transfer_ns: float
    """wire bytes over bandwidth: bytes / (GB/s) is ns."""

    @property
    def time_ns(self) -> float:
        """Latency and transfer together."""
        return self.latency_ns + self.transfer_ns
