"""Which dimension of a mesh spans nodes, what another order would do, and meshes that lie as they should."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from shardtoll.analyzers.context.mesh_layouts import (
    Dim,
    Projected,
    crossing_bytes,
    dim_of,
    groups_of,
    mesh_of,
    projected,
    spans,
)
from shardtoll.analyzers.roofline import Placement, collective_cost, load_fabric
from shardtoll.ledger import Collective, Finding, Group
from tests.unit.analyzers.fabrics import MEASURED_GLOO, ROUND
from tests.unit.analyzers.ledgers import MS, collective, ledger, run_of
from tests.unit.analyzers.of_kinds import running

run = running("cross-node-traffic")

MB = 1_000_000
TP = {"op": "all_reduce", "caused_by_op": "aten.mm.default", "phase": "forward"}
DP = {"op": "all_reduce", "caused_by_op": "all_reduce", "phase": "other"}


def groups(shape: tuple[int, ...], at: int) -> list[tuple[int, ...]]:
    """The groups of one dimension of a mesh as init_device_mesh makes it."""
    ranks = np.arange(int(np.prod(shape))).reshape(shape)
    return [tuple(map(int, row)) for row in np.moveaxis(ranks, at, -1).reshape(-1, shape[at])]


def job(
    shape: tuple[int, ...],
    names: tuple[str | None, ...],
    moved: tuple[int, ...],
    given: tuple[dict[str, Any], ...],
    per_host: int,
    fabric: Any = ROUND,
    **of_run: Any,
) -> list[Finding]:
    """Findings on a job that moves so many bytes a rank along each dimension, in one message."""
    rows: list[Collective] = []
    known = []
    for at, (name, size, more) in enumerate(zip(names, moved, given, strict=True)):
        for ranks in groups(shape, at):
            # The name of a group is the same on all groups of a dimension, as in torch.
            known.append(Group(f"g{at}", ranks, mesh_dim=name))
            if size:
                rows += [
                    collective(
                        rank=rank,
                        group=f"g{at}",
                        group_size=len(ranks),
                        mesh_dim=name,
                        message_bytes=size,
                        seq=1,
                        **more,
                    )
                    for rank in ranks
                ]
    world = int(np.prod(shape))
    run_ = run_of(world, **({"ranks_per_host": per_host, "mesh": {}} | of_run))
    report = run(ledger(rows, run=run_, groups=known), fabric)
    return [finding for finding in report.findings if finding.kind == "cross-node-traffic"]


def evidence(finding: Finding) -> dict[str, Any]:
    return {item.label: item.value for item in finding.evidence}


def test_tensor_parallelism_that_spans_nodes() -> None:
    (finding,) = job((2, 2), ("tp", "dp"), (8 * MB, MB), (TP, DP), 2)
    assert (finding.where.mesh_dim, finding.bytes, finding.severity) == ("tp", 8 * MB, "warning")
    facts = evidence(finding)
    # Two groups of two, each rank sends its wire bytes to the other node.
    assert facts["bytes between nodes per step, of this dim, all ranks"] == 2 * 2 * 8 * MB
    assert facts["bytes between nodes per step, swapped mesh"] == 2 * 2 * MB
    assert finding.remedy is not None
    assert finding.remedy.code == 'mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))'
    assert finding.confidence == "certain"


def test_the_projection_is_what_the_fabric_expects_of_both_orders() -> None:
    (finding,) = job((2, 2), ("tp", "dp"), (8 * MB, MB), (TP, DP), 2)
    far, near = Placement(2, 2, 1), Placement(2, 1, 2)

    def cost(size: int, at: Placement) -> int:
        found = collective_cost(ROUND, "all_reduce", size, at)
        assert found is not None
        return found.time_ns

    now, then = cost(8 * MB, far) + cost(MB, near), cost(8 * MB, near) + cost(MB, far)
    facts = evidence(finding)
    assert facts["projected time of all collectives now"] == now
    assert facts["projected time with the swapped mesh"] == then
    assert finding.floor_ns is not None
    assert 0 < finding.floor_ns < then
    assert finding.toll_ns == 2 * MS
    assert finding.saving_ns == min(2 * MS, now - then)


def test_without_rates_between_nodes_bytes_decide_and_no_time_is_claimed() -> None:
    (finding,) = job((2, 2), ("tp", "dp"), (8 * MB, MB), (TP, DP), 2, MEASURED_GLOO)
    assert (finding.saving_ns, finding.floor_ns) == (None, None)
    assert evidence(finding)["projected time with the swapped mesh"] is None
    assert "between nodes instead of" in finding.title


@pytest.mark.parametrize(
    ("shape", "names", "moved", "given", "per_host"),
    [
        ((2, 2), ("dp", "tp"), (MB, 8 * MB), (DP, TP), 2),
        ((2, 2), ("tp", "dp"), (MB, 8 * MB), (TP, DP), 2),
        ((2, 2), ("tp", "dp"), (8 * MB, MB), (TP, DP), 4),
        ((2, 2), ("tp", "dp"), (8 * MB, MB), (TP, DP), 1),
        ((4,), ("dp",), (8 * MB,), (DP,), 2),
        ((2, 4), ("tp", "dp"), (MB, MB), (TP, DP), 4),
    ],
    ids=["tp inside", "dp moves more", "one node", "a rank a node", "one dimension", "equal"],
)
def test_meshes_that_lie_as_they_should(
    shape: Any, names: Any, moved: Any, given: Any, per_host: int
) -> None:
    assert not job(shape, names, moved, given, per_host)


def test_what_hides_behind_computing_does_not_push_tensor_parallelism_out() -> None:
    fsdp = DP | {"caused_by_op": "FSDP.unshard", "op": "all_gather"}
    assert not job((2, 2), ("dp", "tp"), (8 * MB, MB), (fsdp, TP), 2)
    assert job((2, 2), ("dp", "tp"), (8 * MB, MB), (DP, TP), 2), "by hand nothing is hidden"


def test_hsdp_that_shards_across_nodes_and_replicates_inside() -> None:
    gather = {"caused_by_op": "FSDP.unshard", "op": "all_gather"}
    reduce = {"caused_by_op": "FSDP.post_backward", "op": "all_reduce"}
    (finding,) = job((2, 2), ("shard", "replicate"), (8 * MB, MB), (gather, reduce), 2)
    assert finding.where.mesh_dim == "shard"
    assert not job((2, 2), ("replicate", "shard"), (MB, 8 * MB), (reduce, gather), 2)


def test_groups_made_by_hand_have_no_names() -> None:
    (finding,) = job((2, 2), (None, None), (8 * MB, MB), (TP, DP), 2)
    assert "of 2 ranks 2 apart" in finding.title
    assert finding.remedy is not None
    assert finding.remedy.code == 'mesh = init_device_mesh("cpu", (2, 2))'


def test_what_saves_less_than_a_hundredth_of_the_step_is_not_told() -> None:
    # Five times faster inside a node: of 2 ms in a step of 100 most is spared, of 0.9 ms too little.
    assert job((2, 2), ("tp", "dp"), (8 * MB, MB), (TP | {"exposed_ns": 2 * MS}, DP), 2)
    assert not job((2, 2), ("tp", "dp"), (8 * MB, MB), (TP | {"exposed_ns": 9 * MS // 10}, DP), 2)
    # Two dimensions that move nearly the same: another order spares a part of the time only.
    assert not job((2, 2), ("tp", "dp"), (8 * MB, 6 * MB), (TP | {"exposed_ns": 3 * MS}, DP), 2)
    # Without rates between nodes the exposed time is what could be saved at most.
    small = TP | {"exposed_ns": MS // 2}
    assert not job((2, 2), ("tp", "dp"), (8 * MB, MB), (small, DP), 2, MEASURED_GLOO)


def test_the_projection_has_the_band_of_sound_runs() -> None:
    (finding,) = job((2, 2), ("tp", "dp"), (8 * MB, MB), (TP, DP), 2)
    for when in ("now", "swapped mesh"):
        low, _, high = str(evidence(finding)[f"band of sound runs, {when}"]).partition(" to ")
        assert low.endswith("ms")
        assert high.endswith("ms")
        assert float(low.split()[0]) < float(high.split()[0])


def test_all_groups_of_a_dimension_share_the_cards() -> None:
    alone = projected(ROUND, {("all_reduce", MB): 1.0}, ((0, 2),), (0, 0, 1, 1))
    both = projected(ROUND, {("all_reduce", MB): 2.0}, ((0, 2), (1, 3)), (0, 0, 1, 1))
    cost = collective_cost(ROUND, "all_reduce", MB, Placement(2, 2, 1, sharing=2))
    assert cost is not None
    assert both == Projected(2 * cost.time_ns, 2 * cost.low_ns, 2 * cost.high_ns, 2 * cost.floor_ns)
    assert alone is not None
    assert alone.time_ns <= cost.time_ns


def test_three_dimensions_keep_the_pipeline_outside() -> None:
    names = ("tp", "pp", "dp")
    (finding,) = job((2, 2, 2), names, (8 * MB, 0, MB), (TP, DP, DP), 2)
    assert finding.where.mesh_dim == "tp"
    assert 'mesh_dim_names=("pp", "dp", "tp"))' in (finding.remedy.code or "") or (  # type: ignore[union-attr]
        'mesh_dim_names=("dp", "pp", "tp"))' in (finding.remedy.code or "")  # type: ignore[union-attr]
    )


def test_a_dimension_that_no_record_shows_is_not_moved_out_of_its_node() -> None:
    """More likely its collectives are not seen, as those of user buffers, than that there are none."""
    assert not job((2, 2), ("dp", "tp"), (8 * MB, 0), (DP, TP), 2)
    # Nor one that no group was made of: the job's ranks are 2 apart, and what is between is not known.
    assert not job((2, 2), ("dp",), (8 * MB,), (DP,), 2)


@pytest.mark.parametrize(
    "unseen", [{"message_bytes": None, "wire_bytes": None}, {"op": "barrier", "message_bytes": 0}]
)
def test_one_of_which_no_bytes_are_on_record_is_possible(unseen: dict[str, Any]) -> None:
    rows = [
        collective(
            rank=rank, group="dp", group_size=2, mesh_dim="dp", seq=1, caused_by_op="all_reduce",
            message_bytes=8 * MB,
        )
        for ranks in groups((2, 2), 0)
        for rank in ranks
    ]  # fmt: skip
    rows += [
        collective(**({"rank": rank, "group": "tp", "mesh_dim": "tp", "group_size": 2, "seq": 1} | unseen))
        for ranks in groups((2, 2), 1)
        for rank in ranks
    ]
    known = [
        Group(dim, ranks, mesh_dim=dim) for at, dim in enumerate(("dp", "tp")) for ranks in groups((2, 2), at)
    ]
    run_ = run_of(4, ranks_per_host=2, mesh={})
    report = run(ledger(rows, run=run_, groups=known), ROUND)
    (finding,) = [each for each in report.findings if each.kind == "cross-node-traffic"]
    assert finding.confidence == "possible"
    assert "no bytes of tp are on record, its collectives may be unrecorded" in finding.title
    assert finding.remedy is not None
    assert finding.remedy.text.startswith("First see what tp sends.")


def test_hosts_by_name_need_not_be_consecutive() -> None:
    # A launcher that deals ranks out: 0 and 2 share a host.
    hosts = {"hosts": ("a", "b"), "rank_hosts": ("a", "b", "a", "b")}
    assert not job((2, 2), ("tp", "dp"), (8 * MB, MB), (TP, DP), 2, **hosts)


def test_nodes_that_only_the_fabric_tells_of_are_likely() -> None:
    fabric = load_fabric("h100x8-ib400")
    given = {"hosts": (), "source": "trace", "ranks_per_host": None}
    (finding,) = job((8, 2), ("tp", "dp"), (1000 * MB, MB), (TP, DP), 8, fabric, **given)
    assert finding.confidence == "likely"


@pytest.mark.parametrize("shape", [(2, 2), (2, 4), (4, 2), (2, 3, 2), (2, 2, 2, 2)])
def test_the_mesh_is_found_again_in_its_groups(shape: tuple[int, ...]) -> None:
    dims = [dim_of(groups(shape, at)[0]) for at in range(len(shape))]
    assert all(dim is not None for dim in dims)
    world = int(np.prod(shape))
    known = {dim: 1 for dim in dims if dim is not None}
    # The whole job, as losses are averaged over it, and a flattened pair are no dimensions of their own.
    known[Dim(world, 1)] = 1
    known[Dim(shape[0] * shape[1], world // (shape[0] * shape[1]))] = 0
    assert mesh_of(known, world) == tuple(dims)


def test_any_order_of_a_mesh_has_the_groups_that_torch_would_make() -> None:
    shape = (2, 3, 4)
    mesh = [dim_of(groups(shape, at)[0]) for at in range(3)]
    for order in product(range(3), repeat=3):
        if len(set(order)) < 3:
            continue
        swapped = tuple(shape[at] for at in order)
        for at, dim in enumerate(mesh):
            assert dim is not None
            found = groups_of(dim, mesh, order)  # type: ignore[arg-type]
            assert found is not None
            assert sorted(found) == sorted(groups(swapped, order.index(at)))


@pytest.mark.parametrize("ranks", [(0,), (0, 1, 3), (3, 1), (1, 2), (0, 0)])
def test_groups_that_are_no_dimension(ranks: tuple[int, ...]) -> None:
    assert dim_of(ranks) is None


def test_bytes_between_nodes() -> None:
    one, node = ((0, 1, 2, 3),), (0, 0, 1, 1)
    assert crossing_bytes({("all_reduce", 800): 1.0}, one, node) == 2 * 2 * 3 * 800 // 4
    assert crossing_bytes({("all_gather", 800): 2.0}, one, node) == 2 * 2 * 600
    assert crossing_bytes({("all_to_all", 800): 1.0}, one, node) == 2 * 2 * 2 * 800 / 4
    assert crossing_bytes({("broadcast", 800): 1.0}, one, node) == 800
    assert crossing_bytes({("barrier", 0): 1.0, ("recv", 800): 1.0}, one, node) == 0
    assert crossing_bytes({("all_reduce", 800): 1.0}, one, (0, 0, 0, 0)) == 0
    assert spans(one, node)
    assert not spans(((0, 1), (2, 3)), node)
