"""The part of each collective that lies inside its step: what is outside neither fills the step nor stretches
it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Sent:
    """One collective of the recorded step."""

    op: str
    group: str
    group_size: int
    mesh_dim: str | None
    message_bytes: int | None
    start_ns: int
    duration_ns: int
    exposed_ns: int
    wait_ns: int
    """Time that it waited for late ranks; 0 if unknown."""

    @property
    def name(self) -> str:
        """Its group in words: the mesh dimension, else the size."""
        return self.mesh_dim or f"group of {self.group_size}"

    @property
    def end_ns(self) -> int:
        """When it ended."""
        return self.start_ns + self.duration_ns


def inside(sent: Iterable[Sent], start: int, end: int) -> tuple[Sent, ...]:
    """Return the collectives cut to the step. One wholly outside lasts no time; its group is still known."""
    return tuple(_cut(each, start, end) for each in sent)


def _cut(sent: Sent, start: int, end: int) -> Sent:
    begun = min(max(sent.start_ns, start), end)
    length = min(max(sent.end_ns, start), end) - begun
    # A collective waits for late ranks at its beginning.
    wait = min(length, max(0, sent.wait_ns - (begun - sent.start_ns)))
    exposed = min(length, sent.exposed_ns)
    return replace(sent, start_ns=begun, duration_ns=length, exposed_ns=exposed, wait_ns=wait)
