"""One algorithm with one protocol for a collective on a placement: what its time is made of.

time = latency + transfer + ramp x sqrt(latency x transfer). The third part is the filling of a pipeline. S
bytes in m pieces take (1 + h/m)(transfer) + m x (a piece's latency): at the best m, twice the square root of
latency times transfer. Libraries cut pieces by rules of their own, so its weight is a measured constant.
Measured on 8x H100 it is about 0.9 (shared/reference/ROOFLINE.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

NOTHING: Final = Fraction(0)


@dataclass(frozen=True, slots=True)
class Candidate:
    """Does not depend on the message's size: bytes are given per byte of the message."""

    algorithm: str
    protocol: str
    steps: int
    """Hops that follow one another."""
    near_share: Fraction
    """Bytes one rank sends to ranks of its host, per byte of the message (the mean over a host's ranks)."""
    net_share: Fraction
    """Bytes one rank sends to other hosts, per byte of the message (the mean over a host's ranks)."""
    latency_ns: float
    ns_per_byte: float
    """Time of the slowest link per byte of the message, at the rate the library reaches."""
    ramp: float = 0.0
    wire_share: Fraction | None = None
    """Bytes one rank must send, per byte of the message; None: near and net together."""
    overrated_ns: float = 0.0
    """By how much the library's version overrates the latency when it chooses; excluded from the time."""
    few_channels_ns_per_byte: float = 0.0
    """As `ns_per_byte`, of messages up to `few_channels_bytes`: the library opens fewer channels."""
    few_channels_bytes: int = 0
    guesses: tuple[str, ...] = ()
    """Names of the library's constants in it that are guesses."""

    def transfer_ns(self, message_bytes: Floats) -> Floats:
        """Return the bytes' time at the reached rate, for each message size."""
        transfer: Floats = message_bytes * self.ns_per_byte
        if not self.few_channels_bytes:
            return transfer
        few = np.minimum(message_bytes, self.few_channels_bytes) * self.few_channels_ns_per_byte
        slower: Floats = np.maximum(transfer, few)
        return slower

    def time_ns(self, message_bytes: Floats) -> Floats:
        """Return latency, transfer and ramp together, for each message size."""
        transfer = self.transfer_ns(message_bytes)
        time: Floats = self.latency_ns + transfer + self.ramp * np.sqrt(self.latency_ns * transfer)
        return time

    def sent_bytes(self, message_bytes: int) -> int:
        """Return the bytes one rank must send, rounded up."""
        share = self.near_share + self.net_share if self.wire_share is None else self.wire_share
        return _part(share, message_bytes)

    def near_bytes(self, message_bytes: int) -> int:
        """Return the bytes one rank sends inside its host, rounded up."""
        return _part(self.near_share, message_bytes)

    def net_bytes(self, message_bytes: int) -> int:
        """Return the bytes one rank sends to other hosts, rounded up."""
        return _part(self.net_share, message_bytes)


def _part(share: Fraction, message_bytes: int) -> int:
    """Return a share of the bytes, rounded up; a Fraction's own product takes ten times as long."""
    return -(-share.numerator * message_bytes // share.denominator)
