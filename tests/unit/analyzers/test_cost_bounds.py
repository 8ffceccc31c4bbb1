"""What holds for every fabric, op, size and placement: bounds in order, monotone, unknown stays unknown."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardtoll.analyzers.roofline import (
    UNKNOWN,
    Cost,
    Curve,
    CurvePoint,
    Fabric,
    Link,
    Placement,
    Quantity,
    collective_cost,
    known_fabrics,
    one_node,
)
from shardtoll.ledger.records.volume import OPS, busbw_factor

FABRICS = [fabric for fabric in known_fabrics() if fabric.intra is not None]
SIZES = st.one_of(
    st.integers(0, 1 << 40),
    st.integers(0, 40).map(lambda bit: 1 << bit),
    st.integers(2, 40).map(lambda bit: (1 << bit) - 1),
    st.sampled_from([0, 1, 2, 3, 7, 1000, 1 << 40]),
)
SOME = settings(deadline=None, max_examples=150)


def most_per_node(fabric: Fabric) -> int:
    return int(fabric.ranks_per_node.value) if fabric.ranks_per_node is not None else 8


@st.composite
def groups(draw, op: str | None = None) -> tuple[Fabric, str, Placement]:
    """Return a fabric, an op and a group that can be on it: whole hosts, parts of them, uneven ones."""
    fabric = draw(st.sampled_from(FABRICS))
    op = draw(st.sampled_from(OPS))
    if op in ("send", "recv"):
        return fabric, op, draw(st.sampled_from([one_node(2), Placement(2, 2, 1)][: 1 + bool(fabric.inter)]))
    g = draw(st.integers(1, most_per_node(fabric)))
    k = draw(st.sampled_from([1, 1, 2, 2, 3, 4, 5, 8, 13, 64, 540])) if fabric.inter else 1
    lacking = draw(st.integers(0, g - 1)) if k > 1 else 0
    sharing = draw(st.sampled_from([1, 1, 1, 2, 8])) if k > 1 else 1
    return fabric, op, Placement(k * g - lacking, k, g, sharing)


def cost(fabric: Fabric, op: str, size: int, at: Placement) -> Cost:
    found = collective_cost(fabric, op, size, at)
    assert found is not None
    return found


def in_order(found: Cost) -> None:
    assert 0 <= found.light_ns <= found.floor_ns <= found.time_ns
    assert found.light_ns <= found.low_ns <= found.time_ns <= found.high_ns
    assert 0 <= found.latency_ns <= found.time_ns


@given(given_=groups(), size=SIZES)
@SOME
def test_bounds_are_in_order(given_, size):
    fabric, op, at = given_
    found = cost(fabric, op, size, at)
    in_order(found)
    if at.ranks > 1 and op != "barrier":
        assert found.time_ns > 0
        assert found.basis in ("model", "transferred", "measured")
        assert (found.net_bytes == 0) or at.spans_nodes
        assert (found.near_bytes == 0) or at.ranks_per_node > 1


AZURE = next(fabric for fabric in FABRICS if fabric.name == "azure-nd-h100-v5")


@given(given_=groups(), size=SIZES, more=SIZES)
# The band's low end falls from 10,953 ns at 0 B to 10,541 at 10,000 B.
@example(given_=(AZURE, "send", one_node(2)), size=5_300, more=4_700)
@example(given_=(AZURE, "send", Placement(2, 2, 1)), size=0, more=10_000)
@example(given_=(AZURE, "all_gather", one_node(2)), size=65_536, more=305_191)
@SOME
def test_more_bytes_never_take_less(given_, size, more):
    fabric, op, at = given_
    small, large = cost(fabric, op, size, at), cost(fabric, op, size + more, at)
    # Not so the band's ends: larger messages are predicted better.
    for name in ("time_ns", "floor_ns", "light_ns", "wire_bytes"):
        assert getattr(small, name) <= getattr(large, name), name


@given(given_=groups(), size=st.integers(1, 1 << 30), times=st.integers(2, 1000))
@SOME
def test_light_is_bytes_over_rates_and_nothing_else(given_, size, times):
    fabric, op, at = given_
    one, many = cost(fabric, op, size, at), cost(fabric, op, times * size, at)
    if one.basis == many.basis == "model":
        assert many.light_ns == pytest.approx(times * one.light_ns, abs=times)


@pytest.mark.parametrize(
    "fabric", [fabric for fabric in FABRICS if fabric.inter], ids=lambda fabric: fabric.name
)
@pytest.mark.parametrize("op", ["broadcast", "all_gather", "all_to_all"])
def test_a_wide_band_does_not_lower_the_speed_of_light(fabric, op):
    at = Placement(2, 2, 1)
    small, large = cost(fabric, op, 1 << 23, at), cost(fabric, op, 1 << 30, at)
    assert large.light_ns == pytest.approx(128 * small.light_ns, abs=128)


@given(given_=groups(), size=SIZES)
@SOME
def test_the_bus_is_never_faster_than_the_links_it_consists_of(given_, size):
    fabric, op, at = given_
    factor = busbw_factor(op, at.ranks)
    if at.ranks == 1 or not factor or not size:
        return
    assert fabric.intra is not None
    fastest_gbps = fabric.intra.rank_gbps.value
    if at.spans_nodes:
        assert fabric.inter is not None
        # Both at once, and at most twice that where switches add (they halve what a rank must send).
        fastest_gbps += fabric.inter.rank_gbps.value
    assert size * factor / cost(fabric, op, size, at).time_ns <= 2 * fastest_gbps


def faster(link: Link | None, factor: float) -> Link | None:
    """Return the link with more bandwidth."""
    if link is None:
        return None
    node = link.node_gbps
    return replace(
        link,
        rank_gbps=replace(link.rank_gbps, value=factor * link.rank_gbps.value),
        node_gbps=None if node is None else replace(node, value=factor * node.value),
    )


@given(given_=groups(), size=SIZES, factor=st.sampled_from([1.01, 1.5, 2.0, 10.0]), which=st.integers(1, 3))
@SOME
def test_more_bandwidth_is_never_slower(given_, size, factor, which):
    fabric, op, at = given_
    fabric = replace(fabric, curves=())
    better = replace(
        fabric,
        intra=faster(fabric.intra, factor) if which & 1 else fabric.intra,
        inter=faster(fabric.inter, factor) if which & 2 else fabric.inter,
    )
    slow, fast = cost(fabric, op, size, at), cost(better, op, size, at)
    assert fast.time_ns <= slow.time_ns
    assert fast.light_ns <= slow.light_ns


@given(given_=groups(), size=SIZES, sharing=st.integers(2, 16))
@SOME
def test_sharing_the_cards_is_never_faster(given_, size, sharing):
    fabric, op, at = given_
    alone, shared = replace(at, sharing=1), replace(at, sharing=sharing)
    assert cost(fabric, op, size, alone).time_ns <= cost(fabric, op, size, shared).time_ns


@pytest.mark.parametrize("fabric", FABRICS, ids=lambda fabric: fabric.name)
@pytest.mark.parametrize("op", OPS)
def test_one_rank_costs_nothing(fabric, op):
    found = cost(fabric, op, 1 << 30, one_node(1))
    assert (found.time_ns, found.low_ns, found.high_ns, found.floor_ns, found.light_ns) == (0, 0, 0, 0, 0)
    assert (found.steps, found.wire_bytes, found.near_bytes, found.net_bytes) == (0, 0, 0, 0)


@pytest.mark.parametrize("fabric", FABRICS, ids=lambda fabric: fabric.name)
def test_what_is_not_known_stays_unknown(fabric):
    assert collective_cost(fabric, "all_reduce", None, one_node(2)) is None
    assert collective_cost(fabric, "all_reduce", 1024, None) is None
    assert collective_cost(fabric, "all_reduce_v9", 1024, one_node(2)) is None
    assert collective_cost(UNKNOWN, "all_reduce", 1024, one_node(2)) is None
    alone = replace(fabric, inter=None, curves=())
    assert all(collective_cost(alone, op, 1024, Placement(4, 2, 2)) is None for op in OPS)


@st.composite
def curves(draw) -> tuple[Curve, Placement]:
    """Return a curve whose times grow with the sizes, of an op on a placement of eight a host."""
    sizes = sorted(draw(st.sets(st.integers(1, 1 << 34), min_size=1, max_size=12)))
    times = sorted(draw(st.lists(st.integers(1000, 10**9), min_size=len(sizes), max_size=len(sizes))))
    wide = draw(st.floats(1.0, 2.0))
    points = tuple(
        CurvePoint(size, time, int(time / wide), int(time * wide) + 1, 5)
        for size, time in zip(sizes, times, strict=True)
    )
    k = draw(st.sampled_from([1, 2, 4]))
    op = draw(st.sampled_from(["all_reduce", "all_gather", "all_to_all", "broadcast"]))
    return Curve(op, 8 * k, k, points, "made for a test"), Placement(8 * k, k, 8)


MEASURABLE = next(fabric for fabric in FABRICS if fabric.name == "h100x8-ib400")


@given(
    made=curves(), op=st.sampled_from(OPS), k=st.sampled_from([1, 2, 3, 4, 8]), sizes=st.tuples(SIZES, SIZES)
)
@SOME
def test_bounds_hold_for_what_was_measured_and_what_is_transferred(made, op, k, sizes):
    curve, _ = made
    fabric = replace(MEASURABLE, curves=(curve,), measured=True)
    at = Placement(2, k, 2 if k == 1 else 1) if op in ("send", "recv") and k < 3 else Placement(8 * k, k, 8)
    small, large = cost(fabric, op, min(sizes), at), cost(fabric, op, max(sizes), at)
    in_order(small)
    assert small.time_ns <= large.time_ns
    assert small.light_ns <= large.light_ns


@given(made=curves(), data=st.data())
@SOME
def test_a_measured_size_takes_what_was_measured(made, data):
    curve, at = made
    point = data.draw(st.sampled_from(curve.points))
    found = cost(replace(MEASURABLE, curves=(curve,), measured=True), curve.op, point.message_bytes, at)
    assert found.basis == "measured"
    # Nothing is measured below the speed of light; a made-up curve may lie there.
    assert found.time_ns == pytest.approx(max(point.time_ns, found.light_ns), rel=0.02, abs=1)
    assert found.floor_ns <= found.time_ns


@pytest.mark.parametrize("kind", ["roce", "tcpx", "ethernet"])
def test_a_network_nobody_measured_has_a_wide_band_and_says_so(kind):
    assert MEASURABLE.inter is not None
    fabric = replace(MEASURABLE, inter=replace(MEASURABLE.inter, kind=kind))
    found = cost(fabric, "all_reduce", 1 << 30, Placement(16, 2, 8))
    assert found.high_ns >= 2 * found.time_ns
    assert f"nccl over {kind}" in found.guesses
    inside = cost(fabric, "all_reduce", 1 << 30, one_node(8))
    assert inside.high_ns < 1.5 * inside.time_ns


def test_a_guess_that_was_used_is_named():
    link = (
        replace(MEASURABLE.inter, rank_gbps=Quantity(50.0, "no idea", "GUESS")) if MEASURABLE.inter else None
    )
    fabric = replace(MEASURABLE, inter=link)
    inside, between = (
        cost(fabric, "all_gather", 1 << 20, one_node(8)),
        cost(fabric, "all_gather", 1 << 20, Placement(16, 2, 8)),
    )
    assert "inter.rank_gbps" in between.guesses
    assert "inter.rank_gbps" not in inside.guesses
