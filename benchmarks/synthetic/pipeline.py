"""Made-up jobs in which lateness travels: pipelines with replicas and several stages a rank, and chains."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from synthetic.layers import autograd, backward, compute, group_name, layer_of, trouble, world
from synthetic.rank import COMM_STREAM, Program, Rank
from synthetic.spec import Spec
from synthetic.words import Call


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank stands: rank = stage x replicas + replica."""

    stage: int
    replica: int
    line: tuple[int, ...]
    """The ranks of its pipeline."""
    peers: tuple[int, ...]
    """The ranks of its stage."""

    @classmethod
    def of(cls, spec: Spec, rank: int) -> Place:
        """Return the place of a rank."""
        stage, replica = divmod(rank, spec.replicas)
        line = tuple(range(replica, spec.ranks, spec.replicas))
        peers = tuple(range(stage * spec.replicas, (stage + 1) * spec.replicas))
        return cls(stage, replica, line, peers)


def groups_of(spec: Spec, rank: int, name: str) -> dict[str, Call]:
    """Return the groups of a rank besides the whole job; `name` begins the names of all of them."""
    if spec.strategy == "chain":
        pairs = [(low, low + 1) for low in (rank - 1, rank) if low >= 0 and low + 1 < spec.ranks]
        return {f"{name}_{low}": _group(f"{name}_{low}", (low, high), "mesh_cp") for low, high in pairs}
    place = Place.of(spec, rank)
    if spec.replicas == 1:
        return {name: _group(name, place.line, "mesh_pp")}
    pp, dp = f"{name}_{place.replica}", f"{name}_dp{place.stage}"
    return {pp: _group(pp, place.line, "mesh_pp"), dp: _group(dp, place.peers, "mesh_dp")}


def _group(name: str, ranks: tuple[int, ...], dim: str) -> Call:
    return Call("all_reduce", name, ranks, 0, description=dim)


def _rounds(spec: Spec, chunks: range) -> Iterator[tuple[int, int]]:
    """Return (chunk, micro-batch) in the order of the schedule.

    With several stages a rank, as many micro-batches pass a stage before the next one as no send waits for.
    """
    several = spec.microbatches if spec.chunks == 1 else max(1, spec.ranks // spec.replicas - 1)
    for first in range(0, spec.microbatches, several):
        for chunk in chunks:
            for number in range(first, min(first + several, spec.microbatches)):
                yield chunk, number


def pipeline(rank: Rank) -> Program:
    """All microbatches forward, then all backward; each rank has one stage, or several in turn or as a V."""
    spec = rank.spec
    place = Place.of(spec, rank.rank)
    groups = list(groups_of(spec, rank.rank, group_name(rank, 1)).values())
    stages = len(place.line)
    order = [
        stages - 1 - stage if spec.as_v and chunk % 2 else stage
        for chunk in range(spec.chunks)
        for stage in range(stages)
    ]
    mine = [number for number, stage in enumerate(order) if stage == place.stage]

    def move(op: str, number: int) -> Program:
        """Send to the stage of this number, or receive from it; stages of one rank need no message."""
        if not 0 <= number < len(order) or order[number] == place.stage:
            return
        peer = place.line[order[number]]
        call = Call(op, groups[0].group, place.line, spec.comm_bytes, "BFloat16", "mesh_pp", peer)
        if spec.transport == "host":
            yield from rank.hand_over(call)
            return
        stream = COMM_STREAM + 4 * (peer > rank.rank) + (8 if op == "recv" else 0)
        ended = yield from rank.collective(call, stream)
        if op == "recv":
            rank.wait(7, ended)

    def marked(name: str) -> AbstractContextManager[Any]:
        return rank.annotation(name) if spec.schedule_marked else nullcontext()

    start = rank.now
    for chunk, number in _rounds(spec, range(spec.chunks)):
        with marked(f"Forward {number}"):
            yield from move("recv", mine[chunk] - 1)
            for layer in range(spec.layers):
                with layer_of(rank, layer):
                    compute(rank, layer, False)
            yield from move("send", mine[chunk] + 1)
    trouble(rank, "host", 0)
    for chunk, number in _rounds(spec, range(spec.chunks)[::-1]):
        with marked(f"Backward {number}"):
            yield from move("recv", mine[chunk] + 1)
            with autograd(rank):
                for layer in reversed(range(spec.layers)):
                    backward(rank, layer)
            yield from move("send", mine[chunk] - 1)
    rank.work.pauses.append((start, rank.now, "bubble"))
    if spec.replicas > 1:
        whole = Call("all_reduce", groups[1].group, place.peers, spec.comm_bytes, "BFloat16", "mesh_dp")
        rank.wait(7, (yield from rank.collective(whole)))


def chain(rank: Rank) -> Program:
    """Each rank shares a group with the next: the first two meet, then the second and third, and so on."""
    spec = rank.spec
    with rank.frame("nn.Module: Net_0", module=True):
        for layer in range(spec.layers):
            with layer_of(rank, layer):
                compute(rank, layer, False)
    trouble(rank, "host", 0)
    with autograd(rank):
        for layer in reversed(range(spec.layers)):
            backward(rank, layer)
    for group in groups_of(spec, rank.rank, group_name(rank, 1)).values():
        call = Call("all_reduce", group.group, group.ranks, spec.comm_bytes, "BFloat16", "mesh_cp")
        rank.wait(7, (yield from rank.collective(call)))
    # All begin the next step together.
    small = Call("all_reduce", group_name(rank, 0), world(rank), 1 << 10)
    rank.wait(7, (yield from rank.collective(small)))
