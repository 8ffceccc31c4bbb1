"""The model of one collective on one placement: every algorithm that can do it, and the fastest.

The two-level all_reduce: reduce-scatter inside each host, all_reduce between hosts, all_gather inside.

Bytes: 2(g-1)/g S per rank inside, 2(k-1)/k S/g between hosts; the three phases follow one another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from shardtoll.analyzers.roofline.machines.fabric import Fabric
from shardtoll.analyzers.roofline.model.candidate import Candidate, Floats
from shardtoll.analyzers.roofline.model.correction import NONE, Correction
from shardtoll.analyzers.roofline.model.direct import direct, pairwise
from shardtoll.analyzers.roofline.model.library import Library, load_library, watched
from shardtoll.analyzers.roofline.model.logarithmic import bruck, halving_doubling, pat, recursive_doubling
from shardtoll.analyzers.roofline.model.machine import Machine
from shardtoll.analyzers.roofline.model.place import Placement
from shardtoll.analyzers.roofline.model.ring import chain, ring
from shardtoll.analyzers.roofline.model.switched import collnet, nvls, nvlstree
from shardtoll.analyzers.roofline.model.tree import binomial, tree

Algorithm = Callable[[Machine, str], list[Candidate]]


def hierarchical(machine: Machine, op: str) -> list[Candidate]:
    """Return the two-level all_reduce; nothing for a group inside one host, or with one rank a host."""
    placement = machine.at
    k, g = placement.nodes, placement.ranks_per_node
    if op != "all_reduce" or k == 1 or g == 1:
        return []
    near, net = Fraction(2 * (g - 1), g), Fraction(2 * (k - 1), k * g)
    return [
        Candidate(
            algorithm="hierarchical",
            protocol=protocol,
            steps=2 * (g - 1) + 2 * (k - 1),
            near_share=near,
            net_share=net,
            latency_ns=machine.latency_ns("ring", protocol, 2 * (g - 1), 2 * (k - 1)),
            ns_per_byte=(
                float(near) / machine.near_gbps("ring") + float(net) * g / machine.through_gbps("ring")
            )
            / machine.protocol_share(protocol),
            ramp=machine.ramp("ring", protocol),
        )
        for protocol in machine.library.protocols
    ]


ALGORITHMS: Final[dict[str, Algorithm]] = {
    "ring": ring,
    "chain": chain,
    "tree": tree,
    "binomial": binomial,
    "nvls": nvls,
    "nvlstree": nvlstree,
    "collnet": collnet,
    "pat": pat,
    "pairwise": pairwise,
    "direct": direct,
    "hierarchical": hierarchical,
    "recursive_doubling": recursive_doubling,
    "halving_doubling": halving_doubling,
    "bruck": bruck,
}
"""One idea a function; each returns nothing for an op it does not do. A library names those it has."""


class Choice(Struct, frozen=True):
    """The candidate taken for each of some message sizes."""

    time_ns: Floats
    best_ns: Floats
    """Time of the fastest; less than `time_ns` where the library's version is known to choose another."""
    index: npt.NDArray[np.intp]
    """Into `candidates`."""
    candidates: tuple[Candidate, ...]


def machine_of(fabric: Fabric, placement: Placement, library: Library | None = None) -> Machine | None:
    """Return the group's machine; None if a link it needs is unknown."""
    if fabric.intra is None or (placement.spans_nodes and fabric.inter is None):
        return None
    net = fabric.inter if placement.spans_nodes else None
    library = library or load_library(fabric.library, fabric.library_version)
    return Machine(fabric, library, placement, fabric.intra, net)


def candidates(machine: Machine, op: str, algorithms: tuple[str, ...] | None = None) -> tuple[Candidate, ...]:
    """Return what the library, or the algorithms named, can do `op` with; empty for an unknown op."""
    names = machine.library.algorithms if algorithms is None else algorithms
    return tuple(candidate for name in names for candidate in _with_guesses(ALGORITHMS[name], machine, op))


def _with_guesses(algorithm: Algorithm, machine: Machine, op: str) -> list[Candidate]:
    """Return the algorithm's candidates, each with the guesses it was made of."""
    library = watched(machine.library)
    made = algorithm(replace(machine, library=library), op)
    if not library.guesses:
        return made
    return [
        replace(candidate, guesses=tuple(_of_protocol(library.guesses, candidate, library)))
        for candidate in made
    ]


def _of_protocol(guesses: list[str], candidate: Candidate, library: Library) -> Iterator[str]:
    for name in guesses:
        protocol = name.rsplit(".", 1)[-1]
        if protocol == candidate.protocol or protocol not in library.protocols:
            yield name


def fastest(
    candidates: tuple[Candidate, ...], message_bytes: Floats, correction: Correction = NONE
) -> Choice:
    """Return for each message size the candidate that takes least time, as a tuned library picks it."""
    times = []
    for candidate in candidates:
        latency = candidate.latency_ns * correction.latency
        transfer = candidate.transfer_ns(message_bytes) * correction.transfer
        ramp = candidate.ramp * correction.ramp
        times.append(latency + transfer + ramp * np.sqrt(latency * transfer))
    table: Floats = np.stack(times)
    overrated = np.array([[candidate.overrated_ns] for candidate in candidates], dtype=np.float64)
    index: npt.NDArray[np.intp] = np.argmin(table + overrated, axis=0)
    return Choice(np.take_along_axis(table, index[None], axis=0)[0], table.min(axis=0), index, candidates)


class Model:
    """The candidates of one op on one placement of a fabric, ready for any number of message sizes."""

    def __init__(self, fabric: Fabric, op: str, placement: Placement, library: Library | None = None) -> None:
        machine = machine_of(fabric, placement, library)
        self.machine = machine
        self.candidates = () if machine is None else candidates(machine, op)

    def __bool__(self) -> bool:
        return bool(self.candidates)

    def choose(self, message_bytes: Floats, correction: Correction = NONE) -> Choice:
        """Return the fastest candidate for each message size."""
        return fastest(self.candidates, message_bytes, correction)
