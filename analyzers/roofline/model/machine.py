"""A group's place on a fabric with its library's constants: what every algorithm asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shardtoll.analyzers.roofline.machines.fabric import Fabric, Link
from shardtoll.analyzers.roofline.model.library import Library
from shardtoll.analyzers.roofline.model.place import Placement

MANY: Final = 8
"""Cards that a host's ranks drive at once from which on rings fall behind the cards' rate."""

_DOMAINS: Final = (("rack",), ("racks",), ("many_racks", "racks"))
"""Names of shares by how many domains of many hosts a group spans: one, two, more."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One group of ranks, its links and its library."""

    fabric: Fabric
    library: Library
    at: Placement
    near: Link
    net: Link | None

    @property
    def generation(self) -> str | None:
        """Generation of the accelerator, None if unknown."""
        return self.library.generation(self.fabric)

    @property
    def whole_node(self) -> bool:
        """Whether the group has all ranks of each of its hosts, as far as the fabric tells."""
        per_node = self.fabric.ranks_per_domain or self.fabric.ranks_per_node
        return per_node is not None and self.at.ranks_per_node >= per_node.value

    @property
    def rails(self) -> bool:
        """Whether a whole node of eight ranks sends over eight cards or more at once."""
        cards = None if self.net is None else self.net.cards
        if cards is None or not self.whole_node or self.at.ranks_per_node < MANY:
            return False
        return cards.value * hosts_of_a_domain(self.fabric) >= MANY

    def latency_ns(
        self, algorithm: str, protocol: str, near_hops: float, net_hops: float, *, at_once: bool = False
    ) -> float:
        """Return the time of an empty message over so many hops inside hosts and between them.

        Each hop that waits for the one before passes the network's plugin; `at_once`: none waits, and the
        plugin counts once.
        """
        number, protocol_name = self.library.number, protocol or None
        us = number(f"base_us.{algorithm}", protocol_name) + near_hops * number(
            f"near_hop_us.{algorithm}", protocol_name
        )
        us *= number("latency_factor", self.generation, otherwise=1.0)
        if self.net is not None and net_hops:
            factor = number(f"net_factor.{algorithm}", self.net.kind, otherwise=1.0)
            us += net_hops * factor * number(f"net_hop_us.{algorithm}", protocol_name)
            us += (1 if at_once else net_hops) * self._plugin_us()
        return 1000 * us

    def overrated_ns(self, algorithm: str, protocol: str, near_hops: float, net_hops: float) -> float:
        """Return by how much the library's version overrates that latency when it chooses."""
        near_us = self.library.chosen_by_us(f"near_hop_us.{algorithm}.{protocol}")
        net_us = self.library.chosen_by_us(f"net_hop_us.{algorithm}.{protocol}")
        return 1000 * (near_hops * near_us + net_hops * net_us)

    def _plugin_us(self) -> float:
        """Return the latency of the network's plugin in one hop: learned, else what the fabric states.

        The latency that a plugin reports to NCCL steers NCCL's choice; it is not a measurement of a hop.
        """
        assert self.net is not None
        kind, stated = self.net.kind, self.net.plugin_latency_ns
        return self.library.number(
            "plugin_us", f"{kind}_{self.generation}", kind, otherwise=stated.value / 1000 if stated else 0.0
        )

    def near_gbps(self, algorithm: str) -> float:
        """Return GB/s that one rank reaches inside its host with large messages.

        Domains of many hosts, as NVL72 racks, have shares of their own: one, two, and three and more.
        """
        domain = () if self.fabric.ranks_per_domain is None else _DOMAINS[min(3, self.at.nodes) - 1]
        names = (*(f"{name}_{self.generation}" for name in domain), self.generation, self.near.kind)
        share = self._share("near_share", self.near, algorithm, *names)
        return physical_near_gbps(self.near, self.at.ranks_per_node) * share

    def net_gbps(self, algorithm: str, *special: str) -> float:
        """Return GB/s that the group's ranks of one host together reach over the host's cards.

        A rank drives its own card, or its share if there are fewer cards than ranks. Groups that send at the
        same time share the host's cards. `special`: shares that go before that of the kind of network.
        """
        assert self.net is not None
        kind = self.net.kind
        names = (*special, f"{kind}_{self.generation}", kind)
        return self.physical_net_gbps() * self._share("net_share", self.net, algorithm, *names)

    def through_gbps(self, algorithm: str, *special: str) -> float:
        """Return the same for bytes that go through every host: the one with the fewest ranks bounds them."""
        placement = self.at
        if placement.fewest_ranks is None:
            return self.net_gbps(algorithm, *special)
        few = physical_net_gbps(self.fabric, placement, placement.fewest_ranks)
        return self.net_gbps(algorithm, *special) * few / self.physical_net_gbps()

    def protocol_share(self, protocol: str) -> float:
        """Return the share of the reached rate that a protocol leaves for data."""
        where = "net" if self.at.spans_nodes else "near"
        return self.library.number(f"protocol_share.{where}", protocol or None, otherwise=1.0)

    def ramp(self, algorithm: str, protocol: str) -> float:
        """Return the weight of the pipeline's filling (see `candidate`)."""
        number, net = self.library.number, self.net
        if not self.at.spans_nodes or net is None:
            weight = number(f"ramp.{algorithm}", "near", otherwise=0.0)
        else:
            rails = f"rails_{net.kind}" if self.rails else None
            weight = number(f"ramp.{algorithm}", rails, net.kind, "net", otherwise=0.0)
        return weight * number("ramp_factor", protocol or None, otherwise=1.0)

    def physical_net_gbps(self) -> float:
        """Return GB/s by physics that the group's ranks of one host have over its cards."""
        return physical_net_gbps(self.fabric, self.at)

    def _share(self, name: str, link: Link, algorithm: str, *special: str | None) -> float:
        stated = link.reached.get(algorithm)
        return self.library.number(f"{name}.{algorithm}", *special) if stated is None else stated.value


def physical_near_gbps(link: Link, ranks: int) -> float:
    """Return GB/s by physics that one of `ranks` ranks of a host can send to the others, one direction.

    In a mesh of direct links a group has the links among its own ranks only.
    """
    if link.peers is None:
        return link.rank_gbps.value
    return link.rank_gbps.value * min(1.0, max(1, ranks - 1) / link.peers.value)


def physical_net_gbps(fabric: Fabric, placement: Placement, ranks: int | None = None) -> float:
    """Return GB/s by physics that a group's ranks of one host have over the host's cards, one direction.

    `ranks`: how many these are, without it as many as are on the host that has most.

    A rank has its own card, or its share of fewer cards. All ranks of the group have at most the host's
    cards, in equal parts with groups that send at the same time. A domain has the cards of its hosts.
    """
    net = fabric.inter
    assert net is not None, "asked only if the network is known"
    ranks = ranks or placement.ranks_per_node
    cards_gbps = ranks * net.rank_gbps.value
    if net.node_gbps is None:
        return cards_gbps
    node, cards = net.node_gbps.value, net.cards
    card = net.rank_gbps.value if cards is None else max(net.rank_gbps.value, node / cards.value)
    return min(node * hosts_of_a_domain(fabric) / placement.sharing, ranks * card)


def hosts_of_a_domain(fabric: Fabric) -> float:
    """Return how many hosts share one NVLink domain; 1 if a host is one by itself."""
    domain, host = fabric.ranks_per_domain, fabric.ranks_per_node
    return 1.0 if domain is None or host is None else max(1.0, domain.value / host.value)
