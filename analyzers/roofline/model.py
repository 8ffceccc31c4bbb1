"""The model of one collective on one placement: every algorithm that can do it, and the fastest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from shardtoll.analyzers.roofline.candidate import Candidate, Floats
from shardtoll.analyzers.roofline.correction import NONE, Correction
from shardtoll.analyzers.roofline.direct import direct, pairwise
from shardtoll.analyzers.roofline.fabric import Fabric
from shardtoll.analyzers.roofline.hierarchical import hierarchical
from shardtoll.analyzers.roofline.library import Library, load_library, watched
from shardtoll.analyzers.roofline.logarithmic import bruck, halving_doubling, pat, recursive_doubling
from shardtoll.analyzers.roofline.machine import Machine
from shardtoll.analyzers.roofline.place import Placement
from shardtoll.analyzers.roofline.ring import chain, ring
from shardtoll.analyzers.roofline.switched import collnet, nvls, nvlstree
from shardtoll.analyzers.roofline.tree import binomial, tree

Algorithm = Callable[[Machine, str], list[Candidate]]

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


@dataclass(frozen=True, slots=True)
class Choice:
    """The candidate taken for each of some message sizes."""

    time_ns: Floats
    best_ns: Floats
    """Time of the fastest; less than `time_ns` where the library's version is known to choose another."""
    index: npt.NDArray[np.intp]
    """Into `candidates`."""
    candidates: tuple[Candidate, ...]


def machine_of(fabric: Fabric, at: Placement, library: Library | None = None) -> Machine | None:
    """Return the group's machine; None where a link it needs is unknown."""
    if fabric.intra is None or (at.spans_nodes and fabric.inter is None):
        return None
    net = fabric.inter if at.spans_nodes else None
    library = library or load_library(fabric.library, fabric.library_version)
    return Machine(fabric, library, at, fabric.intra, net)


def candidates(machine: Machine, op: str, algorithms: tuple[str, ...] | None = None) -> tuple[Candidate, ...]:
    """Return what the library, or the algorithms named, can do `op` with; empty for an unknown op."""
    names = machine.library.algorithms if algorithms is None else algorithms
    return tuple(found for name in names for found in _with_guesses(ALGORITHMS[name], machine, op))


def _with_guesses(algorithm: Algorithm, machine: Machine, op: str) -> list[Candidate]:
    """Return the algorithm's candidates, each with the guesses it was made of."""
    library = watched(machine.library)
    found = algorithm(replace(machine, library=library), op)
    if not library.guesses:
        return found
    return [replace(one, guesses=tuple(_of_protocol(library.guesses, one, library))) for one in found]


def _of_protocol(guesses: list[str], candidate: Candidate, library: Library) -> Iterator[str]:
    for name in guesses:
        own = name.rsplit(".", 1)[-1]
        if own == candidate.protocol or own not in library.protocols:
            yield name


def fastest(found: tuple[Candidate, ...], message_bytes: Floats, correction: Correction = NONE) -> Choice:
    """Return for each message size the candidate that takes least time, as a tuned library picks it."""
    times = []
    for candidate in found:
        latency = candidate.latency_ns * correction.latency
        transfer = candidate.transfer_ns(message_bytes) * correction.transfer
        ramp = candidate.ramp * correction.ramp
        times.append(latency + transfer + ramp * np.sqrt(latency * transfer))
    table: Floats = np.stack(times)
    overrated = np.array([[candidate.overrated_ns] for candidate in found], dtype=np.float64)
    index: npt.NDArray[np.intp] = np.argmin(table + overrated, axis=0)
    return Choice(np.take_along_axis(table, index[None], axis=0)[0], table.min(axis=0), index, found)


class Model:
    """The candidates of one op on one placement of a fabric, ready for any number of message sizes."""

    def __init__(self, fabric: Fabric, op: str, at: Placement, library: Library | None = None) -> None:
        machine = machine_of(fabric, at, library)
        self.machine = machine
        self.candidates = () if machine is None else candidates(machine, op)

    def __bool__(self) -> bool:
        return bool(self.candidates)

    def choose(self, message_bytes: Floats, correction: Correction = NONE) -> Choice:
        """Return the fastest candidate for each message size."""
        return fastest(self.candidates, message_bytes, correction)
