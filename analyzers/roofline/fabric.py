"""What is known of a machine's interconnect. Every number carries its source and how sure it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

Certainty = Literal["verified", "derived", "GUESS"]
"""verified: read in the source named. derived: computed from such numbers. GUESS: neither."""

CERTAINTIES: Final[tuple[str, ...]] = get_args(Certainty)


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number with where it comes from. The name of the field that holds it tells its unit."""

    value: float
    source: str
    confidence: Certainty


@dataclass(frozen=True, slots=True)
class Rates:
    """What one op reaches at its best over one kind of link."""

    step_latency_ns: Quantity
    """Least time of one hop of a small message."""
    bandwidth_gbps: Quantity
    """GB/s (1e9) that one rank sends in one direction."""


@dataclass(frozen=True, slots=True)
class Link:
    """One kind of link: between ranks of a host, or between hosts."""

    base_latency_ns: Quantity
    """Least time of a collective before its first hop, as its launch."""
    default: Rates
    per_op: Mapping[str, Rates] = field(default_factory=dict)
    rank_gbps: Quantity = Quantity(1.0, "", "derived")
    node_gbps: Quantity | None = None
    cards: Quantity | None = None
    """Rates of ops that differ from `default`, by name in `ledger.volume.OPS`."""

    def rates(self, op: str) -> Rates:
        """Return the rates of this op."""
        return self.per_op.get(op, self.default)


@dataclass(frozen=True, slots=True)
class Fabric:
    """The interconnect as the cost model sees it; a missing link makes its costs unknown, not zero."""

    name: str
    title: str
    """One line for a list of fabrics."""
    provenance: str
    """Where the numbers come from, for the report: `measured on this machine ...`, or else."""
    measured: bool = False
    """Whether the numbers were measured on the machine whose job is judged."""
    ranks_per_node: Quantity | None = None
    """Ranks of one host where the run does not tell."""
    intra: Link | None = None
    """Between ranks of one host."""
    inter: Link | None = None
    """Between hosts; its bandwidth is that of one rank's share of the network cards."""
    device_names: tuple[str, ...] = ()
    """Device names that contain one of these have this fabric (case does not matter) ..."""
    device_names_not: tuple[str, ...] = ()
    """... unless they contain one of these."""
    backends: tuple[str, ...] = ()
    """Backends of jobs without an accelerator that run on this fabric."""

    def quantities(self) -> Iterator[tuple[str, Quantity]]:
        """Yield every number with its dotted name, as `inter.default.bandwidth_gbps`."""
        if self.ranks_per_node is not None:
            yield "ranks_per_node", self.ranks_per_node
        for name, link in (("intra", self.intra), ("inter", self.inter)):
            if link is None:
                continue
            yield f"{name}.base_latency_ns", link.base_latency_ns
            for op, rates in {"default": link.default, **link.per_op}.items():
                yield f"{name}.{op}.step_latency_ns", rates.step_latency_ns
                yield f"{name}.{op}.bandwidth_gbps", rates.bandwidth_gbps

    @property
    def guesses(self) -> tuple[str, ...]:
        """Names of the numbers that are guesses; output that uses them says so."""
        return tuple(name for name, number in self.quantities() if number.confidence == "GUESS")


UNKNOWN: Final = Fabric(
    name="unknown",
    title="no fabric is known for this job",
    provenance="no shipped fabric fits this job, so floors are unknown; name one with --fabric or run "
    "`shardtoll calibrate`",
)
"""The fabric of a job we know none for: every cost on it is unknown."""
