"""DeepSpeed's engine on two real ranks: counts and bytes of every ZeRO stage in closed form, and causes."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Any

import pytest

from tests.live import deepspeed_programs as programs
from tests.live.launch import ROOT, run_ranks

pytestmark = [
    pytest.mark.live,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed"),
]

DOCUMENTATION = ROOT / "docs" / "integrations.md"
WORLD = 2
FIRST, SECOND = 4 * (8 * 16 + 16), 4 * (16 * 8 + 8)
"""Bytes of the two layers."""
ALL = FIRST + SECOND
OF_FIRST, OF_SECOND = "0.weight, 0.bias", "2.weight, 2.bias"
OF_ALL = "0.weight, ... (4 parameters)"

Row = tuple[str, int, str, str, str | None]


def _micro_batches(rows: list[Row]) -> list[Row]:
    return rows * programs.MICRO_BATCHES


EXPECTED: dict[str, list[Row]] = {
    # Without ZeRO all gradients are reduced in one piece at the end.
    "0": [
        ("all_reduce", ALL, "backward", "DeepSpeed.reduce", None),
        ("all_reduce", 4, "optimizer", "DeepSpeed.norm", None),
    ],
    # ZeRO 1 reduces once per step, in buckets; ZeRO 2 after every micro-batch, in backward's order.
    "1": [
        ("all_reduce", FIRST, "backward", "DeepSpeed.ZeRO-1.reduce", OF_FIRST),
        ("all_reduce", SECOND, "backward", "DeepSpeed.ZeRO-1.reduce", OF_SECOND),
        ("all_reduce", 4, "optimizer", "DeepSpeed.ZeRO-1.norm", None),
        ("all_gather", ALL, "optimizer", "DeepSpeed.ZeRO-1.gather", OF_ALL),
    ],
    "2": [
        *_micro_batches(
            [
                ("all_reduce", SECOND, "backward", "DeepSpeed.ZeRO-2.reduce", OF_SECOND),
                ("all_reduce", FIRST, "backward", "DeepSpeed.ZeRO-2.reduce", OF_FIRST),
            ]
        ),
        ("all_reduce", 4, "optimizer", "DeepSpeed.ZeRO-2.norm", None),
        ("all_gather", ALL, "optimizer", "DeepSpeed.ZeRO-2.gather", OF_ALL),
    ],
    # ZeRO 3 gathers every layer forward and backward and keeps its part of the gradient only.
    "3": [
        *_micro_batches(
            [
                ("all_gather", FIRST, "forward", "DeepSpeed.ZeRO-3.gather", OF_FIRST),
                ("all_gather", SECOND, "forward", "DeepSpeed.ZeRO-3.gather", OF_SECOND),
                ("all_gather", SECOND, "backward", "DeepSpeed.ZeRO-3.gather", OF_SECOND),
                ("all_gather", FIRST, "backward", "DeepSpeed.ZeRO-3.gather", OF_FIRST),
                ("reduce_scatter", SECOND, "backward", "DeepSpeed.ZeRO-3.reduce", OF_SECOND),
                ("reduce_scatter", FIRST, "backward", "DeepSpeed.ZeRO-3.reduce", OF_FIRST),
            ]
        ),
        ("all_reduce", 8, "optimizer", "DeepSpeed.ZeRO-3.norm", None),
    ],
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    blocks = re.findall(r"^```python\n(.*?)^```$", DOCUMENTATION.read_text(), flags=re.M | re.S)
    (example,) = [block for block in blocks if "deepspeed" in block]
    folder = tmp_path_factory.mktemp("example")
    found: list[dict[str, Any]] = run_ranks(programs.every_stage, WORLD, example, str(folder), foreign=True)
    return found


def test_the_example_of_the_documentation_runs(results: list[dict[str, Any]]) -> None:
    assert [result["example"] for result in results] == [programs.STEPS, None]


@pytest.fixture(params=[str(stage) for stage in programs.STAGES])
def stage(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_counts_bytes_and_causes_of_a_step_are_exact(results: list[dict[str, Any]], stage: str) -> None:
    check_steps(results[0][stage]["rows"]["collectives"], stage, "(train)")


def test_a_script_that_was_not_edited_gives_the_same_steps(results: list[dict[str, Any]]) -> None:
    rows = results[0]["script"]["rows"]
    assert {s["step"] for s in rows["steps"]} == set(range(programs.STEPS))
    check_steps(rows["collectives"], "2", "(<module>)")


def check_steps(rows: list[dict[str, Any]], stage: str, where: str) -> None:
    for rank in range(WORLD):
        # The first step has ZeRO 3 also compare the order of modules across ranks.
        for step in range(1, programs.STEPS):
            mine = [c for c in rows if (c["rank"], c["step"]) == (rank, step)]
            told = [
                (c["op"], c["message_bytes"], c["phase"], c["caused_by_op"], c["parameter"]) for c in mine
            ]
            # DeepSpeed sorts each bucket by itself: its order is not ours to state.
            assert [(*row[:4], _sorted(row[4])) for row in told] == [
                (*row[:4], _sorted(row[4])) for row in EXPECTED[stage]
            ]
            for c in mine:
                rounds = 2 if c["op"] == "all_reduce" else 1
                assert c["wire_bytes"] == rounds * (WORLD - 1) * c["message_bytes"] // WORLD
                assert c["source"].startswith("tests/live/deepspeed_")
                assert c["source"].endswith(where)
                assert c["implicit"] is False
                assert c["duration_ns"] > 0


def _sorted(names: str | None) -> list[str]:
    return sorted((names or "").split(", "))


def test_gathers_of_zero_3_name_the_module_they_are_for(results: list[dict[str, Any]]) -> None:
    rows = results[0]["3"]["rows"]["collectives"]
    gathers = [c for c in rows if c["op"] == "all_gather" and c["step"] == 1 and c["rank"] == 0]
    assert [c["module"] for c in gathers] == ["0", "2", "2", "0"] * programs.MICRO_BATCHES


def test_steps_are_updates_and_every_collective_is_recorded(
    results: list[dict[str, Any]], stage: str
) -> None:
    rows = results[0][stage]["rows"]
    assert sorted((s["rank"], s["step"]) for s in rows["steps"]) == [
        (rank, step) for rank in range(WORLD) for step in range(programs.STEPS)
    ]
    assert sum(count["issued"] for count in rows["counts"]) == sum(
        c["step"] is not None for c in rows["collectives"]
    )
    assert [count for count in rows["counts"] if count["issued"] != count["recorded"]] == []
    assert rows["notices"] == []


def test_losses_are_bit_equal_and_nothing_is_left_behind(results: list[dict[str, Any]], stage: str) -> None:
    for result in results:
        told = result[stage]
        assert told["bare"] == told["audited"]
        assert len(told["bare"]) == programs.STEPS * programs.MICRO_BATCHES
        assert told["left"] == []
