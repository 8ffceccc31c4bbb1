"""A cause that was planted is the first reason told; sound runs and near misses are left alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shardtoll.analyzers.roofline import (
    Fabric,
    Placement,
    collective_cost,
    load_fabric,
)
from shardtoll.analyzers.roofline.model.ways import ways
from shardtoll.ledger import Collective, Finding, Group, Stall
from tests.unit.analyzers.fabrics import predicted_ns, timed
from tests.unit.analyzers.ledgers import MS, collective, ledger, run_of
from tests.unit.analyzers.of_kinds import running

run = running("below-roofline")

MB = 1_000_000
GPU = {"device": "NVIDIA H100 80GB HBM3", "backend": "nccl"}
H100 = load_fabric("h100x8-ib400")
SHAPE = (2, 8)
"""dp over 2 nodes, tp inside a node of 8."""

Change = Callable[[dict[str, Any]], dict[str, Any]]


def groups(at: int, shape: tuple[int, ...] = SHAPE) -> list[tuple[int, ...]]:
    ranks = np.arange(int(np.prod(shape))).reshape(shape)
    return [tuple(map(int, row)) for row in np.moveaxis(ranks, at, -1).reshape(-1, shape[at])]


def rows(
    dim: str,
    factor: Callable[[int, int], float],
    *,
    size: int = 400 * MB,
    op: str = "all_reduce",
    many: int = 6,
    first_ns: int = MS,
    apart_ns: int = 500 * MS,
    fabric: Fabric = H100,
    shape: tuple[int, ...] = SHAPE,
    change: Change = dict,
    seq: int = 0,
) -> list[Collective]:
    """Every group of a dim runs `many` collectives, that take `factor(group, nth)` times the prediction."""
    axis = 0 if dim == "dp" else 1
    n, inner = shape[axis], shape[1]
    at = Placement(n, n, 1, sharing=inner) if dim == "dp" else Placement(n, 1, n)
    time_ns = predicted_ns(fabric, op, size, at)
    found = []
    for number, ranks in enumerate(groups(axis, shape)):
        for nth in range(many):
            took = round(factor(number, nth) * time_ns)
            for rank in ranks:
                given = {
                    "rank": rank,
                    "group": dim,
                    "group_size": n,
                    "mesh_dim": dim,
                    "seq": seq + nth,
                    "op": op,
                    "message_bytes": size,
                    "dtype": "bfloat16",
                    "issue_ns": first_ns + nth * apart_ns,
                    "start_ns": first_ns + nth * apart_ns,
                    "duration_ns": took,
                    "exposed_ns": took,
                }
                found.append(collective(**change(given | {"nth": nth, "number": number})))
    return found


def plain(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name not in ("nth", "number")}


def findings(
    collectives: list[Collective],
    fabric: Fabric = H100,
    shape: tuple[int, ...] = SHAPE,
    stalls: list[Stall] | None = None,
    **of_run: Any,
) -> list[Finding]:
    world = int(np.prod(shape))
    known = [
        Group(dim, ranks, mesh_dim=dim)
        for axis, dim in enumerate(("dp", "tp"))
        for ranks in groups(axis, shape)
    ]
    hosts = tuple(f"h{rank // shape[1]}" for rank in range(world))
    run_ = run_of(
        world,
        **(GPU | {"hosts": tuple(dict.fromkeys(hosts)), "ranks_per_host": shape[1], "mesh": {}} | of_run),
    )
    report = run(ledger(collectives, run=run_, groups=known, stalls=stalls or ()), fabric)
    return [finding for finding in report.findings if finding.kind == "below-roofline"]


def reasons(finding: Finding) -> list[str]:
    """The names of the reasons, the likeliest first."""
    return [item.label.partition(": ")[2] for item in finding.evidence if item.label.startswith("reason ")]


def fact(finding: Finding, label: str) -> Any:
    (item,) = [item for item in finding.evidence if item.label.startswith(label)]
    return item.value


def score(finding: Finding, place: int = 1) -> float:
    """Percent that the reason explains."""
    (item,) = [item for item in finding.evidence if item.label.startswith(f"reason {place}: ")]
    assert isinstance(item.value, str)
    return float(item.value.rpartition("(score ")[2].split()[0])


class TestSound:
    @pytest.mark.parametrize("dim", ["dp", "tp"])
    @pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
    def test_what_takes_the_predicted_time_is_silent(self, dim, op):
        assert findings(rows(dim, lambda group, nth: 1.0, op=op, change=plain)) == []

    def test_so_is_what_lies_in_the_band_or_a_little_above(self):
        cost = collective_cost(H100, "all_reduce", 400 * MB, Placement(2, 2, 1, sharing=8))
        assert cost is not None
        band = 1.1 * cost.high_ns / cost.time_ns
        assert findings(rows("dp", lambda group, nth: band, change=plain)) == []

    def test_one_slow_collective_among_many_is_an_accident(self):
        assert findings(rows("dp", lambda group, nth: 9.0 if nth == 2 else 1.0, change=plain)) == []


class TestWhatIsSaid:
    def test_prediction_band_light_and_basis(self):
        (finding,) = findings(rows("dp", lambda group, nth: 6.0, change=plain))
        cost = collective_cost(H100, "all_reduce", 400 * MB, Placement(2, 2, 1, sharing=8))
        assert cost is not None
        assert fact(finding, "expected") == cost.time_ns
        assert fact(finding, "floor (one of twenty sound runs is faster)") == cost.floor_ns
        assert fact(finding, "speed of light") == cost.light_ns
        assert fact(finding, "speed of light") <= cost.low_ns
        assert "not measured here" in fact(finding, "prediction by")
        assert "8 groups sharing the cards of a node" in fact(finding, "prediction by")
        assert fact(finding, "busbw reached") * 6 == pytest.approx(
            fact(finding, "busbw predicted for the median message"), rel=0.01
        )
        assert fact(finding, "median transfer over prediction") == 6.0

    def test_one_group_of_eight_that_is_slow_is_not_lost_in_their_median(self):
        (finding,) = findings(rows("dp", lambda group, nth: 6.0 if group == 3 else 1.0, change=plain))
        assert finding.ranks == (3, 11)
        assert "of ranks 3, 11" in finding.title

    def test_one_size_that_is_slow_is_not_lost_among_others(self):
        small = rows("dp", lambda group, nth: 1.0, size=100 * MB, many=20, change=plain)
        large = rows("dp", lambda group, nth: 6.0, many=6, seq=50, first_ns=20_000 * MS, change=plain)
        (finding,) = findings([*small, *large])
        assert "of 400 MB" in finding.title
        assert fact(finding, "collectives judged") == 6 * 8


class TestSlowRank:
    def test_the_rank_that_two_slow_groups_share(self):
        slow_dp = rows("dp", lambda group, nth: 5.0 if group == 3 else 1.0, change=plain)
        slow_tp = rows("tp", lambda group, nth: 5.0 if group == 1 else 1.0, first_ns=250 * MS, change=plain)
        for finding in findings([*slow_dp, *slow_tp]):
            assert reasons(finding)[0] == "one slow rank (rank 11)"
            assert score(finding) > 80
            assert "rank 11" in finding.remedy.text
            assert "one slow rank (rank 11)" in finding.title

    def test_of_one_group_either_may_be_it(self):
        (finding,) = findings(rows("dp", lambda group, nth: 5.0 if group == 3 else 1.0, change=plain))
        assert reasons(finding)[0] == "one slow rank (one of ranks 3, 11)"
        assert fact(finding, "median factor of groups with one of ranks 3, 11") == 5.0
        assert fact(finding, "median factor of their siblings") == 1.0

    def test_where_all_groups_are_slow_no_rank_is_named(self):
        (finding,) = findings(rows("dp", lambda group, nth: 5.0, change=plain))
        assert not any("slow rank" in name for name in reasons(finding))


class TestSlowHost:
    """Four nodes of eight, of which one is held back."""

    SHAPE = (2, 2, 8)
    """replicate over node pairs, shard over the nodes of a pair, tp inside a node."""
    HOSTS = ("h0", "h1", "h2", "h3")

    def job(
        self, slow: Callable[[tuple[int, ...]], bool], dims: tuple[str, ...], named: bool = True
    ) -> list[Finding]:
        at = {
            "replicate": Placement(2, 2, 1, sharing=8),
            "shard": Placement(2, 2, 1, sharing=8),
            "tp": Placement(8, 1, 8),
        }
        found: list[Collective] = []
        known = []
        for axis, (dim, where) in enumerate(at.items()):
            time_ns = predicted_ns(H100, "all_reduce", 400 * MB, where)
            for ranks in groups(axis, self.SHAPE):
                known.append(Group(dim, ranks, mesh_dim=dim))
                took = 5 * time_ns if slow(ranks) else time_ns
                found += [
                    collective(
                        rank=rank, group=dim, group_size=len(ranks), mesh_dim=dim, seq=nth, dtype="bfloat16",
                        message_bytes=400 * MB, issue_ns=MS + (3 * nth + axis) * 500 * MS,
                        start_ns=MS + (3 * nth + axis) * 500 * MS, duration_ns=took, exposed_ns=took,
                    )
                    for nth in range(6)
                    for rank in ranks
                    if dim in dims
                ]  # fmt: skip
        hosts = {"rank_hosts": tuple(self.HOSTS[rank // 8] for rank in range(32))} if named else {}
        run_ = run_of(32, **(GPU | {"hosts": self.HOSTS, "ranks_per_host": 8} | hosts))
        report = run(ledger(found, run=run_, groups=known), H100)
        return [finding for finding in report.findings if finding.kind == "below-roofline"]

    def third(self, ranks: tuple[int, ...]) -> bool:
        return any(16 <= rank < 24 for rank in ranks)

    def test_all_groups_that_touch_it_are_slow(self):
        told = self.job(self.third, ("replicate", "shard", "tp"))
        assert len(told) == 3
        for finding in told:
            assert reasons(finding)[0] == "one slow host (host h2, ranks 16-23)"
            assert score(finding) > 80
            assert "host h2, ranks 16-23" in finding.remedy.text

    def test_by_its_ranks_where_hosts_have_no_names(self):
        for finding in self.job(self.third, ("replicate", "shard"), named=False):
            assert reasons(finding)[0] == "one slow host (the host of ranks 16-23)"

    def test_of_one_group_inside_it(self):
        (finding,) = self.job(self.third, ("tp",))
        assert reasons(finding)[0] == "one slow host (host h2, ranks 16-23)"

    def test_of_groups_over_two_hosts_either_may_be_it(self):
        (finding,) = self.job(self.third, ("shard",))
        assert reasons(finding)[0] == ("one slow host (one of host h2, ranks 16-23 and host h3, ranks 24-31)")

    def test_a_single_rank_is_still_that_rank(self):
        for finding in self.job(lambda ranks: 19 in ranks, ("replicate", "shard", "tp")):
            assert reasons(finding)[0] == "one slow rank (rank 19)"

    def test_half_of_a_host_is_not_the_host(self):
        """Slow cards of ranks 16 to 19: other groups of the host are sound."""
        for finding in self.job(lambda ranks: any(16 <= rank < 20 for rank in ranks), ("replicate", "shard")):
            assert not any("host" in name for name in reasons(finding))
            assert reasons(finding)[0].startswith("slow ranks (")


def beside(dp: list[Collective], nths: set[int], exposed_ns: int = 0) -> list[Finding]:
    """Findings on dp's collectives, with gathers along a dimension of its own beside those of `nths`."""
    took = {row.seq: row.duration_ns for row in dp}
    other = [
        collective(
            rank=rank, group="shard", group_size=2, mesh_dim="shard", seq=nth, op="all_gather",
            message_bytes=400 * MB, issue_ns=MS + nth * 500 * MS, start_ns=MS + nth * 500 * MS,
            duration_ns=took[nth], exposed_ns=exposed_ns,
        )
        for nth in sorted(nths)
        for pair in groups(0)
        for rank in pair
    ]  # fmt: skip
    known = [Group(dim, ranks, mesh_dim=dim) for dim in ("dp", "shard") for ranks in groups(0)]
    run_ = run_of(16, **(GPU | {"hosts": ("a", "b"), "ranks_per_host": 8}))
    report = run(ledger([*dp, *other], run=run_, groups=known), H100)
    return [f for f in report.findings if f.kind == "below-roofline" and f.where.mesh_dim == "dp"]


class TestContention:
    def test_slow_where_other_groups_are_on_the_cards(self):
        dp = rows("dp", lambda group, nth: 4.0 if nth % 3 else 1.0, many=12, change=plain)
        (finding,) = beside(dp, {nth for nth in range(12) if nth % 3})
        assert reasons(finding)[0] == "contention"
        assert score(finding) > 80
        assert fact(finding, "median factor with others beside") == 4.0
        assert fact(finding, "median factor alone") == 1.0

    def test_with_company_always_twice_the_time_is_what_two_would_take(self):
        dp = rows("dp", lambda group, nth: 2.6, many=6, change=plain)
        (finding,) = beside(dp, set(range(6)))
        assert reasons(finding) == ["contention"], "half a node's rate for each is no sign of half its cards"

    def test_gathers_that_only_meet_others_in_backward_are_not_lost_in_the_median(self):
        dp = rows("dp", lambda group, nth: 2.8 if nth % 2 else 1.0, many=12, change=plain)
        (finding,) = beside(dp, {nth for nth in range(12) if nth % 2})
        assert reasons(finding)[0] == "contention"
        assert "all_reduce beside others on mesh dim dp" in finding.title
        assert fact(finding, "collectives judged") == 6 * 8

    def test_gathers_and_reductions_of_one_dimension_are_company_too(self):
        ops = ("all_gather", "reduce_scatter")
        slow = [
            rows("dp", lambda group, nth: 2.4, op=op, seq=50 * at, change=plain) for at, op in enumerate(ops)
        ]
        for finding in findings([*slow[0], *slow[1]]):
            assert reasons(finding)[0] == "contention"

    def test_messages_both_ways_are_none(self):
        assert H100.inter is not None
        time_ns = predicted_ns(H100, "send", 100 * MB, Placement(2, 2, 1, sharing=8))
        both = [
            collective(
                rank=rank, group="dp", group_size=2, mesh_dim="dp", seq=nth, op=op, root=(rank + 8) % 16,
                message_bytes=100 * MB, issue_ns=MS + nth * 500 * MS, start_ns=MS + nth * 500 * MS,
                duration_ns=3 * time_ns, exposed_ns=3 * time_ns,
            )
            for nth in range(6)
            for rank in range(16)
            for op in ("send", "recv")
        ]  # fmt: skip
        for finding in findings(both):
            assert "contention" not in reasons(finding)

    def test_company_that_does_not_matter_is_no_reason(self):
        dp = rows("dp", lambda group, nth: 6.0, many=12, change=plain)
        (finding,) = beside(dp, {nth for nth in range(12) if nth % 3})
        assert "contention" not in reasons(finding)


class TestMixedDtypes:
    def test_one_format_is_slow_and_another_of_the_same_size_is_not(self):
        def wide(given: dict[str, Any]) -> dict[str, Any]:
            return plain(given | {"dtype": "float32" if given["nth"] % 3 else "bfloat16"})

        factor = lambda group, nth: 5.0 if nth % 3 else 1.0  # noqa: E731
        (finding,) = findings(rows("dp", factor, many=12, change=wide))
        assert reasons(finding)[0] == "mixed dtypes (float32 beside bfloat16)"
        assert score(finding) > 80

    def test_two_formats_that_are_as_slow_are_no_reason(self):
        def wide(given: dict[str, Any]) -> dict[str, Any]:
            return plain(given | {"dtype": "float32" if given["nth"] % 3 else "bfloat16"})

        (finding,) = findings(rows("dp", lambda group, nth: 5.0, many=12, change=wide))
        assert not any("dtypes" in name for name in reasons(finding))

    def test_ranks_that_disagree(self):
        def uneven(given: dict[str, Any]) -> dict[str, Any]:
            return plain(given | {"dtype": "float32" if given["rank"] < 8 else "bfloat16"})

        (finding,) = findings(rows("dp", lambda group, nth: 5.0, change=uneven))
        assert reasons(finding)[0] == "mixed dtypes (bfloat16, float32 in one collective)"


class TestCompute:
    def hidden(self, given: dict[str, Any]) -> dict[str, Any]:
        return plain(given | ({"exposed_ns": given["duration_ns"] // 3} if given["nth"] % 3 else {}))

    def test_slow_where_compute_runs_beside(self):
        factor = lambda group, nth: 4.0 if nth % 3 else 1.0  # noqa: E731
        (finding,) = findings(rows("dp", factor, many=12, change=self.hidden))
        assert reasons(finding)[0] == "compute at the same time"
        assert "is_high_priority_stream" in finding.remedy.code

    def test_twice_the_time_always_behind_compute_is_no_sign_of_half_the_cards(self):
        def behind(given: dict[str, Any]) -> dict[str, Any]:
            return plain(given | {"exposed_ns": given["duration_ns"] // 5})

        (finding,) = findings(rows("dp", lambda group, nth: 2.2, change=behind))
        assert reasons(finding)[0] == "compute at the same time"

    def test_what_is_as_slow_alone_is_not_slow_by_compute(self):
        (finding,) = findings(rows("dp", lambda group, nth: 4.0, many=12, change=self.hidden))
        assert "compute at the same time" not in reasons(finding)


class TestStaging:
    def test_gloo_takes_tensors_of_gpus_through_the_host(self):
        # On gloo a rank may wait for a core; that is not what is planted here.
        given = {"backend": "cpu:gloo,cuda:gloo"}
        (finding,) = findings(rows("dp", lambda group, nth: 40.0, change=plain), **given)
        assert reasons(finding)[0] == "host-staged copies"
        assert 'init_process_group("nccl")' in finding.remedy.code

    def copies(
        self, share: float, names=("Memcpy DtoH (Device -> Pinned)", "Memcpy HtoD (Pinned -> Device)")
    ):
        return [
            Stall(
                step=0, rank=rank, kind="copy", name=name, phase="backward", count=6, total_ns=MS, lost_ns=0,
                bytes=round(share * 6 * 400 * MB),
            )
            for rank in range(16)
            for name in names
        ]  # fmt: skip

    def test_copies_of_the_same_bytes_tell_that_there_is_no_gpudirect(self):
        slow = rows("dp", lambda group, nth: 3.3, change=plain)
        (finding,) = findings(slow, stalls=self.copies(1.0))
        assert reasons(finding)[0] == "host-staged copies (no GPUDirect)"
        assert "GDRDMA" in finding.remedy.text

    @pytest.mark.parametrize("share", [0.01, 0.3])
    def test_a_few_copies_are_none(self, share: float):
        (finding,) = findings(rows("dp", lambda group, nth: 3.3, change=plain), stalls=self.copies(share))
        assert not any("staged" in name for name in reasons(finding))

    def test_copies_one_way_are_a_batch_or_an_offload(self):
        (finding,) = findings(
            rows("dp", lambda group, nth: 3.3, change=plain),
            stalls=self.copies(1.0, ("Memcpy HtoD (Pageable -> Device)",)),
        )
        assert not any("staged" in name for name in reasons(finding))

    def test_the_rate_of_pcie_inside_a_node_of_nvlink(self):
        cost = collective_cost(H100, "all_gather", 400 * MB, Placement(8, 1, 8))
        assert cost is not None
        at_pcie = cost.near_bytes / 20 / cost.time_ns
        (finding,) = findings(rows("tp", lambda group, nth: at_pcie, op="all_gather", change=plain))
        assert reasons(finding)[0] == "host-staged copies (no peer access between GPUs)"
        assert fact(finding, "a rank sends") == pytest.approx(20, rel=0.01)


class TestNetworkCards:
    def card_gbps(self) -> float:
        assert H100.inter is not None
        assert H100.inter.node_gbps is not None
        assert H100.inter.cards is not None
        return H100.inter.node_gbps.value / H100.inter.cards.value

    def factor(self, cards: float) -> float:
        """How much longer than predicted it takes over so many cards, nine tenths of their rate."""
        cost = collective_cost(H100, "all_reduce", 400 * MB, Placement(2, 2, 1, sharing=8))
        assert cost is not None
        return 8 * cost.net_bytes / (0.9 * cards * self.card_gbps()) / cost.time_ns

    def test_all_ranks_over_one_card(self):
        (finding,) = findings(rows("dp", lambda group, nth: self.factor(1), change=plain))
        assert reasons(finding)[0] == "network cards (1 of 8 at work)"
        assert fact(finding, "a node sends") == pytest.approx(0.9 * self.card_gbps(), rel=0.01)

    def slow_as(self, cards: float, sizes: tuple[int, ...], change: Change = plain) -> Finding:
        """The one finding on all_reduces of these sizes that all move at the rate of so many cards."""
        found: list[Collective] = []
        for number, size in enumerate(sizes):
            cost = collective_cost(H100, "all_reduce", size, Placement(2, 2, 1, sharing=8))
            assert cost is not None
            slower = 8 * cost.net_bytes / (0.9 * cards * self.card_gbps()) / cost.time_ns
            first_ns, seq = MS + number * 5000 * MS, 10 * number
            found += rows(
                "dp",
                lambda group, nth, by=slower: by,
                size=size,
                first_ns=first_ns,
                seq=seq,
                change=change,
            )
        (finding,) = findings(found)
        return finding

    HALF = "half of the host's rate: network cards, or copies without GPUDirect"

    def test_half_the_rate_of_one_size_has_more_than_one_reason(self):
        for sizes in ((400 * MB,), (200 * MB, 400 * MB, 800 * MB)):
            finding = self.slow_as(4, sizes)
            assert reasons(finding)[0] == self.HALF
            assert score(finding) == 49
            assert "GDRDMA" in finding.remedy.text

    def test_half_the_rate_of_several_sizes_is_half_the_cards(self):
        finding = self.slow_as(4, (100 * MB, 400 * MB, 1600 * MB))
        assert reasons(finding)[0] == "network cards (4 of 8 at work)"
        assert score(finding) == 70

    @pytest.mark.parametrize("factor", [2.1, 2.5, 3.0])
    def test_a_slowdown_of_one_size_that_nothing_explains_names_no_cards(self, factor: float):
        (finding,) = findings(rows("dp", lambda group, nth: factor, change=plain))
        assert not any(name.startswith("network cards") for name in reasons(finding))

    @pytest.mark.parametrize("factor", [2.4, 3.0])
    @pytest.mark.parametrize("sizes", [(400 * MB,), (100 * MB, 400 * MB, 1600 * MB)])
    def test_compute_that_is_on_record_goes_before_cards(self, factor: float, sizes: tuple[int, ...]):
        def behind(given: dict[str, Any]) -> dict[str, Any]:
            return plain(given | {"exposed_ns": given["duration_ns"] // 5})

        found: list[Collective] = []
        for number, size in enumerate(sizes):
            first_ns, seq = MS + number * 5000 * MS, 10 * number
            found += rows(
                "dp", lambda group, nth: factor, size=size, first_ns=first_ns, seq=seq, change=behind
            )
        (finding,) = findings(found)
        assert reasons(finding)[0] == "compute at the same time"

    def test_one_card_is_named_behind_compute_too(self):
        def behind(given: dict[str, Any]) -> dict[str, Any]:
            return plain(given | {"exposed_ns": given["duration_ns"] // 5})

        assert reasons(self.slow_as(1, (400 * MB,), behind))[0] == "network cards (1 of 8 at work)"

    def test_a_rate_between_is_not_that_of_a_number_of_cards(self):
        (finding,) = findings(rows("dp", lambda group, nth: self.factor(2), change=plain))
        assert not any("network cards" in name for name in reasons(finding))


class TestAlgorithm:
    SIZES = (64 * MB, 128 * MB, 256 * MB, 512 * MB)
    AT = Placement(8, 1, 8)

    def slow_as(
        self, algorithm: str, protocol: str, sizes: tuple[int, ...] = SIZES, kernel: str | None = None
    ) -> list[Finding]:
        """Findings on all_reduces inside a node that take the times of another algorithm or protocol."""
        found: list[Collective] = []
        for number, size in enumerate(sizes):
            cost = collective_cost(H100, "all_reduce", size, self.AT)
            assert cost is not None
            (other,) = [
                way
                for way in ways(H100, "all_reduce", size, self.AT, cost)
                if (way.algorithm, way.protocol) == (algorithm, protocol)
            ]
            found += rows(
                "tp",
                lambda group, nth, by=other.time_ns / cost.time_ns: by,
                size=size,
                first_ns=MS + number * 5000 * MS,
                seq=10 * number,
                change=lambda row: plain(row | ({"kernel": kernel} if kernel else {})),
            )
        return findings(found)

    def test_the_times_of_another_protocol(self):
        (finding,) = self.slow_as("ring", "LL")
        assert reasons(finding)[0] == "wrong algorithm or protocol (ring with LL)"
        assert "NCCL_PROTO" in finding.remedy.code
        assert score(finding) == 70

    def test_the_name_of_a_kernel_that_cannot_come_about_otherwise_is_believed(self):
        exact = "ncclDevKernel_AllReduce_Sum_bf16_RING_SIMPLE(ncclDevKernelArgsStorage<4096ul>)"
        (finding,) = self.slow_as("ring", "LL", kernel=exact)
        assert "wrong algorithm or protocol (ring with LL)" not in reasons(finding)
        usual = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        (finding,) = self.slow_as("ring", "LL", kernel=usual)
        assert score(finding) == 70, "the name proves nothing"

    def test_one_size_lies_on_some_line_or_other(self):
        (finding,) = self.slow_as("ring", "LL", (256 * MB,))
        assert score(finding) == 49

    def test_times_that_no_line_has(self):
        (finding,) = findings(rows("tp", lambda group, nth: 40.0, change=plain))
        assert not any("algorithm" in name for name in reasons(finding))


class TestChannels:
    SHAPE = (8, 8)

    def test_eight_nodes_of_eight_cards_with_the_librarys_own_channels(self):
        # Calibrated where 24 channels were set; the job runs without.
        at = Placement(64, 8, 8)
        tuned = timed(H100, "all_reduce", at, 8 << 30)
        time_ns = predicted_ns(tuned, "all_reduce", 8 << 30, at)
        took = round(time_ns * 391.4 / 320.7)
        world = [
            collective(
                rank=rank, group="world", group_size=64, seq=nth, message_bytes=8 << 30, dtype="bfloat16",
                issue_ns=MS + nth * 500 * MS, start_ns=MS + nth * 500 * MS, duration_ns=took, exposed_ns=took,
            )
            for rank in range(64)
            for nth in range(6)
        ]  # fmt: skip
        run_ = run_of(64, **(GPU | {"hosts": tuple("abcdefgh"), "ranks_per_host": 8}))
        book = ledger(world, run=run_, groups=[Group("world", tuple(range(64)))])
        (finding,) = [f for f in run(book, tuned).findings if f.kind == "below-roofline"]
        assert fact(finding, "median transfer over prediction") == 1.22
        assert reasons(finding)[0] == "too few channels"
        assert 'os.environ["NCCL_MIN_CTAS"] = "24"' in finding.remedy.code
        # Published figures do not tell so finely, nor what was measured of transfers with company.
        assert not [f for f in run(book, H100).findings if f.kind == "below-roofline"]
        hidden = [replace(row, exposed_ns=took // 2) for row in world]
        book = ledger(hidden, run=run_, groups=[Group("world", tuple(range(64)))])
        assert not [f for f in run(book, tuned).findings if f.kind == "below-roofline"]


class TestSmallMessages:
    SIZE = 4096

    def job(self, factor: float, fabric: Fabric) -> list[Finding]:
        time_ns = predicted_ns(fabric, "all_reduce", self.SIZE, Placement(2, 1, 2))
        took = round(factor * time_ns)
        small = [
            collective(
                rank=rank, seq=nth, message_bytes=self.SIZE, issue_ns=nth * MS, start_ns=nth * MS,
                duration_ns=took, exposed_ns=took,
            )
            for rank in (0, 1)
            for nth in range(1000)
        ]  # fmt: skip
        report = run(ledger(small, run=run_of(2, **GPU)), fabric)
        return [finding for finding in report.findings if finding.kind == "below-roofline"]

    def measured(self) -> Fabric:
        """H100 whose small all_reduces of two ranks were timed."""
        return timed(H100, "all_reduce", Placement(2, 1, 2), 256, 1024, self.SIZE, 65536)

    def test_latency_is_told_where_rates_were_measured(self):
        (finding,) = self.job(1.9, self.measured())
        assert reasons(finding)[0] == "small messages"
        assert "measured on this machine" in fact(finding, "prediction by")
        assert finding.confidence == "likely"

    def test_latency_of_published_figures_is_not_held_against_anybody(self):
        assert self.job(3.0, H100) == []

    def test_what_takes_far_longer_is_not_slow_by_its_size(self):
        (finding,) = self.job(30.0, self.measured())
        assert "small messages" not in reasons(finding)


def test_a_finding_names_the_guessed_constants_of_its_prediction():
    fabric = load_fabric("aws-p5")
    slow = rows("dp", lambda group, nth: 9.0, op="all_to_all", fabric=fabric, change=plain)
    (found,) = findings(slow, fabric)
    told = {item.label: item.value for item in found.evidence}
    assert "nccl net_share.pairwise.efa" in str(told["guesses among its numbers"])
