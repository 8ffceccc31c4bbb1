"""Which sweep is predicted from what: every sweep, every ordered pair of a cluster, and their classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from learn_constants import forced

from accuracy.constants import Constants
from shardtoll.analyzers.roofline import Fabric
from shardtoll.analyzers.roofline.evaluate.evaluate import (
    Evaluation,
    calibrated,
    fabric_of,
    not_fitted,
    refused,
    told,
    transferred,
)
from shardtoll.analyzers.roofline.evaluate.score import BANDS, BELOW
from shardtoll.analyzers.roofline.evaluate.sweep import Sweep, parse_sweep

FAR: Final = 8
"""A transfer to more than this many times the nodes, or fewer, is not one that the aim speaks of."""


@dataclass(frozen=True, slots=True)
class Aim:
    """What a class of cases should reach: median and 90th percentile of the relative error, by band."""

    by_band: Mapping[str, tuple[float, float]]
    """Bands without an aim are missing."""


def _everywhere(median: float, p90: float) -> Aim:
    return Aim(dict.fromkeys((*(band for band, _ in BANDS), "all"), (median, p90)))


_LARGE: Final = BANDS[-1][0]
CALIBRATED: Final = "calibrated: every second size of the same sweep, the others scored"
CALIBRATED_PLAIN: Final = "calibrated: of those, one node, or NVLink + IB/EFA"
CALIBRATED_OTHER: Final = "calibrated: of those, other networks (Slingshot)"
EITHER: Final = "transferred: another node count or another collective, NVLink + IB/EFA"
NODES: Final = "transferred: another node count, NVLink + IB/EFA"
NODES_FREE: Final = "transferred: of those, nothing set by hand (algorithm, channels)"
COLLECTIVE: Final = "transferred: another collective, NVLink + IB/EFA"
BOTH: Final = "transferred: both, or other GPUs a node, NVLink + IB/EFA"
DISTANT: Final = f"transferred: more than x{FAR} the nodes, NVLink + IB/EFA"
ELSEWHERE: Final = "transferred: other networks (Slingshot)"
SMALL: Final = "not fitted: up to 4 nodes"
MIDDLE: Final = "not fitted: 5 to 7 nodes"
BIG: Final = "not fitted: 8 nodes and more"
EVERY: Final = "not fitted: all sweeps"
PLAIN: Final = "not fitted: of those, one node, or NVLink + IB/EFA"
UNTOLD: Final = "not fitted: the hardware does not tell the network, and one is assumed"
OTHER: Final = "not fitted: of those, other networks (Slingshot)"

AIMS: Final[dict[str, Aim]] = {
    CALIBRATED: _everywhere(0.03, 0.10),
    CALIBRATED_PLAIN: Aim({}),
    CALIBRATED_OTHER: Aim({}),
    EITHER: _everywhere(0.08, 0.20),
    NODES: _everywhere(0.08, 0.20),
    NODES_FREE: _everywhere(0.08, 0.20),
    COLLECTIVE: _everywhere(0.08, 0.20),
    BOTH: Aim({}),
    DISTANT: Aim({}),
    ELSEWHERE: Aim({}),
    SMALL: Aim({**{band: (0.15, 0.30) for band, _ in BANDS}, BELOW: (0.15, 0.30), _LARGE: (0.05, 0.08)}),
    MIDDLE: Aim({}),
    BIG: Aim({_LARGE: (0.12, 0.20)}),
    EVERY: Aim({}),
    PLAIN: Aim({}),
    OTHER: Aim({}),
    UNTOLD: Aim({}),
}
"""Class of cases -> what issue 6 asks of it. In all of them the band should hold 90 %; where there is no aim
for the error of a transfer, a band that does, or a refusal, is what is asked."""


@dataclass(frozen=True, slots=True)
class Case:
    """One sweep predicted in one way."""

    kinds: tuple[str, ...]
    """Keys of `AIMS`: the classes it belongs to."""
    name: str
    """The sweep's file name without its ending; of a transfer `from -> to`."""
    found: Evaluation


def read_all(folder: Path) -> dict[str, Sweep]:
    """Return the sweeps of a folder by file name without ending; an index beside them is none."""
    paths = sorted(path for path in folder.glob("*.csv") if path.name != "INDEX.csv")
    return {path.stem: parse_sweep(path.read_text(encoding="utf-8"), path.name) for path in paths}


def cases(sweeps: Mapping[str, Sweep], by_name: Mapping[str, Constants]) -> Iterator[Case]:
    """Yield every case. `by_name`: what predicts each scored sweep."""
    fabrics = {name: fabric_of(sweep) for name, sweep in sweeps.items()}
    for name, sweep in sweeps.items():
        (fabric, sure), by = fabrics[name], by_name[name]
        size = SMALL if sweep.nodes <= 4 else MIDDLE if sweep.nodes < 8 else BIG
        if fabric is None:
            yield Case((size, EVERY), name, refused(sweep, "model", "no fabric is known for this hardware"))
            continue
        plain = _plain_network(fabric, sweep)
        kinds: tuple[str, ...] = (size, EVERY, PLAIN if plain else OTHER)
        if not told(sweep, fabric, sure):
            # Half of what is wrong there says nothing of the model: the machine had other cards.
            kinds = (UNTOLD,)
        yield Case(kinds, name, not_fitted(sweep, fabric, by.predict, by.library))
        part = CALIBRATED_PLAIN if plain else CALIBRATED_OTHER
        yield Case((CALIBRATED, part), name, calibrated(sweep, fabric, by.predict, by.library))
        for other_name, other in _pairs(name, sweeps):
            found = transferred(sweep, fabric, [other], by.predict, by.library)
            kind = _kind(fabric, other, sweep)
            of: tuple[str, ...] = (EITHER, kind) if kind in (NODES, COLLECTIVE) else (kind,)
            if kind == NODES and not (forced(name) or forced(other_name)):
                of = (*of, NODES_FREE)
            yield Case(of, f"{other_name} -> {name}", found)


def _pairs(name: str, sweeps: Mapping[str, Sweep]) -> Sequence[tuple[str, Sweep]]:
    """Return the sweeps of the same cluster with another node count or another collective."""
    sweep = sweeps[name]
    return [
        (other_name, other)
        for other_name, other in sweeps.items()
        if other.hardware == sweep.hardware and (other.nodes != sweep.nodes or other.op != sweep.op)
    ]


def _kind(fabric: Fabric, source: Sweep, target: Sweep) -> str:
    if not _plain_network(fabric, target):
        return ELSEWHERE
    if max(source.nodes, target.nodes) > FAR * min(source.nodes, target.nodes):
        return DISTANT
    per_node = source.placement.ranks_per_node == target.placement.ranks_per_node
    if per_node and source.op == target.op:
        return NODES
    if per_node and source.nodes == target.nodes:
        return COLLECTIVE
    return BOTH


def _plain_network(fabric: Fabric, sweep: Sweep) -> bool:
    """Whether the aims for NVLink with InfiniBand or EFA speak of this fabric."""
    return sweep.nodes == 1 or (
        fabric.inter is not None and fabric.inter.kind in ("infiniband", "efa", "roce")
    )
