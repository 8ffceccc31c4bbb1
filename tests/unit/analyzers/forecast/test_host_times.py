"""Host times of a dry run's operators: longer in a checkpointed block, and longest when it runs again."""

from __future__ import annotations

from typing import Any

import pytest

from shardtoll.analyzers.forecast.dry.dry_graph import HostTimes, build
from shardtoll.analyzers.forecast.dry.operators import Prices
from shardtoll.analyzers.forecast.plan.constants import Constants
from shardtoll.analyzers.forecast.plan.network import FabricNetwork
from shardtoll.analyzers.replay.events.engine import simulate
from shardtoll.analyzers.roofline import load_fabric
from shardtoll.ledger.records.dry import DryOp

CONSTANTS = Constants({"host_us": 10.0})


def op(order: int, phase: str, module: str | None = "block", **more: Any) -> DryOp:
    return DryOp(
        step=0, rank=0, order=order, op="aten.add.Tensor", kind="elementwise", phase=phase, module=module,
        dtype="float32", flops=0, read_bytes=4, written_bytes=4, **more,
    )  # fmt: skip


def host_us(ops: list[DryOp]) -> list[float]:
    times = HostTimes(ops, CONSTANTS, "h100-sxm")
    return [times.of(each) / 1000 for each in ops]


def test_an_operator_of_an_eager_program_takes_several_launches() -> None:
    assert host_us([op(0, "forward"), op(1, "backward"), op(2, "optimizer", None)]) == pytest.approx(
        [50, 41, 10]
    )


def test_a_checkpointed_block_takes_longer_and_a_plain_one_beside_it_does_not() -> None:
    ops = [op(0, "forward"), op(1, "forward", "other"), op(2, "recompute"), op(3, "backward")]
    assert host_us(ops) == pytest.approx([118, 50, 290, 41])


def test_a_compiled_operator_takes_less_than_one_launch() -> None:
    assert host_us([op(0, "forward", fused=1)]) == pytest.approx([4])


def test_short_kernels_wait_for_the_host() -> None:
    ops = [op(place, "forward") for place in range(4)]
    prices = Prices("h100-sxm", FabricNetwork(load_fabric("h100x8-ib400")), CONSTANTS, {}, 8)
    graph = build(ops, (), (), prices)
    outcome = simulate(graph.builder.graph())
    kernel_ns = graph.prices[-1].expected_ns
    assert outcome.end_ns[graph.end] == pytest.approx(4 * 50_000 + kernel_ns)
