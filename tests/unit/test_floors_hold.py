"""Floors and bands hold on sources that were left out; the model knows machines of many hosts a domain.

The shares are those of `benchmarks/results/model_accuracy.json`: `test_floors_accuracy` says how it is made.
"""

from __future__ import annotations

import pytest

from shardtoll.analyzers.roofline import Cost, Placement, collective_cost, fabric_names, load_fabric, one_node
from shardtoll.analyzers.roofline.model.band import SIZES, where
from shardtoll.analyzers.roofline.model.library import load_library
from shardtoll.analyzers.roofline.model.model import machine_of
from shardtoll.ledger.records.volume import busbw_factor
from tests.unit.test_floors_accuracy import BANDS, figures

LEFT_OUT = "that have not seen the sweep's source"
EVERY = "not fitted: all sweeps"


def cost(fabric: str, op: str, message_bytes: int, at: Placement) -> Cost:
    found = collective_cost(load_fabric(fabric), op, message_bytes, at)
    assert found is not None
    return found


def test_at_most_one_of_twenty_measurements_of_sources_left_out_is_below_its_floor():
    known = figures()[LEFT_OUT][EVERY]
    for band in BANDS:
        assert known[band, "below floor"] <= 0.05, band
        assert known[band, "below light"] == 0, band


def test_bands_hold_nine_of_ten_measurements_of_sources_left_out():
    assert 0.88 <= figures()[LEFT_OUT][EVERY]["all", "in band"] <= 0.95


@pytest.mark.parametrize("name", fabric_names())
def test_the_band_begins_at_the_floor_and_never_below_light(name):
    for op in ("all_reduce", "all_gather", "all_to_all"):
        for size in (8, 1 << 20, 1 << 30):
            found = collective_cost(load_fabric(name), op, size, one_node(2))
            assert found is None or found.light_ns <= found.floor_ns == found.low_ns <= found.time_ns


@pytest.mark.parametrize("end", ["low", "high"])
@pytest.mark.parametrize(("size", "_"), SIZES)
def test_a_machine_that_one_source_measured_or_none_has_a_wider_band(size, _, end):
    numbers = load_library("nccl").numbers
    widths = {name.rsplit(".", 1)[-1]: each for name, each in numbers.items()
              if name.startswith(f"band.model.{end}.{size}.")}  # fmt: skip
    alone = [place for place, each in widths.items() if " of 1 sources" in each.source]
    assert alone
    assert all(widths[place].value >= widths["default"].value for place in alone)
    several = [each.value for place, each in widths.items() if place not in alone and place != "default"]
    assert min(several) < widths["default"].value


def test_a_network_and_accelerator_that_nobody_measured_together_take_the_widest_band():
    known, unknown = (
        machine_of(load_fabric(name), Placement(16, 2, 8)) for name in ("aws-p5", "aws-p6-b200")
    )
    assert (where(known), where(unknown)) == ("efa_hopper", "efa_blackwell")
    one, other = (
        cost(name, "all_reduce", 1 << 20, Placement(16, 2, 8)) for name in ("aws-p5", "aws-p6-b200")
    )
    assert other.high_ns / other.floor_ns > 1.5 * one.high_ns / one.floor_ns


def busbw_gbps(racks: int) -> float:
    at, size = Placement(72 * racks, racks, 72), 1 << 34
    factor = busbw_factor("all_reduce", at.ranks)
    assert factor is not None
    return size * factor / cost("gb200-nvl72-ib400", "all_reduce", size, at).time_ns


def test_two_racks_are_as_fast_as_one_and_many_about_half():
    """Published: 811 GB/s between 144 GPUs, 839 between 72 and 406 between 1440."""
    assert busbw_gbps(2) == pytest.approx(811, rel=0.05)
    assert busbw_gbps(20) == pytest.approx(406, rel=0.1)
    found = cost("gb200-nvl72-ib400", "all_reduce", 1 << 34, Placement(144, 2, 72))
    assert found.algorithm == "nvlstree"


@pytest.mark.parametrize("size", [8, 1 << 10, 1 << 14])
def test_small_messages_over_tcpxo_take_what_they_take_there(size):
    found = cost("gcp-a3-mega", "all_reduce", size, Placement(16, 2, 8))
    assert 123_000 <= found.time_ns <= 160_000


def test_every_hop_over_the_network_passes_its_plugin():
    two, four, eight = (
        cost("aws-p6-b200", "all_reduce", 1 << 20, Placement(8 * hosts, hosts, 8)) for hosts in (2, 4, 8)
    )
    plugin_ns = 1000 * load_library("nccl").number("plugin_us", "efa_blackwell", "efa")
    assert four.floor_ns < 380_000 < four.high_ns
    assert eight.time_ns - four.time_ns > 2 * plugin_ns
    assert four.time_ns > two.time_ns
    # In an all_to_all nothing waits for the message before: it counts once.
    pairs = [cost("aws-p5", "all_to_all", 8, Placement(8 * hosts, hosts, 8)) for hosts in (2, 4)]
    hop_ns = 1000 * load_library("nccl").number("net_hop_us.pairwise")
    assert pairs[1].time_ns - pairs[0].time_ns == pytest.approx(16 * hop_ns, rel=0.01)
