"""Facts known of a machine's interconnect. Every number carries its source and how sure it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, get_args

from shardtoll.analyzers.roofline.machines.curve import Curve
from shardtoll.analyzers.roofline.machines.gpu import Gpu
from shardtoll.analyzers.roofline.machines.quantity import Quantity

IntraKind = Literal["nvswitch", "nvlink", "xgmi", "pcie", "memory"]
"""nvswitch: any pair at a GPU's full rate. nvlink, xgmi: a mesh of direct links. memory: processes of one
host without accelerators."""
InterKind = Literal["infiniband", "roce", "efa", "tcpx", "slingshot", "ethernet"]
LinkKind = Literal[
    "nvswitch", "nvlink", "xgmi", "pcie", "memory",
    "infiniband", "roce", "efa", "tcpx", "slingshot", "ethernet",
]  # fmt: skip
INTRA_KINDS: Final[tuple[str, ...]] = get_args(IntraKind)
INTER_KINDS: Final[tuple[str, ...]] = get_args(InterKind)

Library = Literal["nccl", "rccl", "gloo"]
LIBRARIES: Final[tuple[str, ...]] = get_args(Library)

REACHED: Final = ("ring", "tree", "nvls", "nvlstree", "collnet", "pairwise", "direct")
"""Algorithms for which a link may say what share of it is reached."""

LINK_NUMBERS: Final = ("rank_gbps", "node_gbps", "cards", "plugin_latency_ns", "peers")
"""Fields of a link that are numbers."""


def _guess(number: Quantity) -> Quantity:
    return replace(number, confidence="GUESS")


@dataclass(frozen=True, slots=True)
class Link:
    """One kind of link: between ranks of a host (or NVLink domain), or between hosts."""

    kind: LinkKind
    rank_gbps: Quantity
    """GB/s (1e9) that one rank can send in one direction by physics; between hosts over its own card(s)."""
    node_gbps: Quantity | None = None
    """Between hosts: GB/s of all cards of a host together, in one direction."""
    cards: Quantity | None = None
    """Between hosts: network cards a host."""
    plugin_latency_ns: Quantity | None = None
    """Between hosts: latency that the network's plugin adds to NCCL's own."""
    peers: Quantity | None = None
    """In a mesh: direct links a rank has; a pair of ranks has `rank_gbps / peers`."""
    reached: Mapping[str, Quantity] = field(default_factory=dict)
    """Share of `rank_gbps` that a tuned library reaches with large messages, by algorithm (`REACHED`). A
    missing one follows the library's own constants. Above 1 where the network helps reduce."""

    def as_guess(self) -> Link:
        """Return the link with every number marked as a guess: it is not known whether it is this one."""
        return replace(
            self,
            rank_gbps=_guess(self.rank_gbps),
            node_gbps=self.node_gbps and _guess(self.node_gbps),
            cards=self.cards and _guess(self.cards),
            plugin_latency_ns=self.plugin_latency_ns and _guess(self.plugin_latency_ns),
            peers=self.peers and _guess(self.peers),
            reached={algorithm: _guess(number) for algorithm, number in self.reached.items()},
        )

    def quantities(self) -> Iterator[tuple[str, Quantity]]:
        """Yield every number with its dotted name, as `reached.ring`."""
        for name in LINK_NUMBERS:
            number = getattr(self, name)
            if number is not None:
                yield name, number
        for algorithm, number in self.reached.items():
            yield f"reached.{algorithm}", number


@dataclass(frozen=True, slots=True)
class Fabric:
    """The interconnect as the cost model sees it; a missing link makes its costs unknown, not zero."""

    name: str
    title: str
    """One line for a list of fabrics."""
    provenance: str
    """The source of the numbers, for the report: `measured on this machine ...`, or another."""
    library: Library = "nccl"
    """The library that runs the collectives; its constants are the model's."""
    library_version: str | None = None
    """Its version, as `2.21.5`; None: today's, or not known."""
    gpu: Gpu | None = None
    ranks_per_node: Quantity | None = None
    """Ranks of one host where the run does not tell."""
    ranks_per_domain: Quantity | None = None
    """Ranks that share `intra` if that is more than a host holds, as 72 in an NVL72 rack."""
    intra: Link | None = None
    """Between ranks of one host, or of one domain."""
    inter: Link | None = None
    """Between hosts, or domains."""
    curves: tuple[Curve, ...] = ()
    """Measured times; if one fits a collective it goes before the model."""
    measured: bool = False
    """Whether the numbers were measured on the machine whose job is judged."""
    sharp: bool = False
    """Whether the network's switches reduce (InfiniBand SHARP)."""
    device_names: tuple[str, ...] = ()
    """Device names that hold one of these as a word have this fabric (case does not matter) ..."""
    device_names_not: tuple[str, ...] = ()
    """... unless they hold one of these."""
    backends: tuple[str, ...] = ()
    """Backends of jobs without an accelerator that run on this fabric."""
    hardware: tuple[str, ...] = ()
    """Words by which descriptions of such machines name them, as `p5.48xlarge`."""
    hosts: tuple[str, ...] = ()
    """Names of the hosts that were measured; empty if none was, or their names are not known."""

    def quantities(self) -> Iterator[tuple[str, Quantity]]:
        """Yield every number of the interconnect with its dotted name, as `inter.rank_gbps`."""
        if self.ranks_per_node is not None:
            yield "ranks_per_node", self.ranks_per_node
        if self.ranks_per_domain is not None:
            yield "ranks_per_domain", self.ranks_per_domain
        for place, link in (("intra", self.intra), ("inter", self.inter)):
            if link is not None:
                for name, number in link.quantities():
                    yield f"{place}.{name}", number

    @property
    def guesses(self) -> tuple[str, ...]:
        """Names of the interconnect's numbers that are guesses; output that uses them says so."""
        return tuple(name for name, number in self.quantities() if number.confidence == "GUESS")


UNKNOWN: Final = Fabric(
    name="unknown",
    title="no fabric is known for this job",
    provenance="no shipped fabric fits this job, so floors are unknown; name one with --fabric or run "
    "`shardtoll calibrate`",
)
"""The fabric of a job we know none for: every cost on it is unknown."""
