"""A model that is compiled inside an audited step trains as it would alone; its collectives are billed."""

from __future__ import annotations

from tests.live import compile_programs as programs
from tests.live.launch import run_ranks


def test_a_model_in_ddp_may_be_compiled_inside_the_first_step() -> None:
    runs = run_ranks(programs.ddp_compiled_from_the_first_step, 2)
    for run in runs:
        bare, audited = run["bare"], run["audited"]
        assert audited["losses"] == bare["losses"]
        assert audited["graphs"] == bare["graphs"] >= 1
    reduced = [row for row in runs[0]["audited"]["rows"] if row["op"] == "all_reduce"]
    assert {(row["step"], row["rank"]) for row in reduced} == {
        (step, rank) for step in range(programs.STEPS) for rank in range(2)
    }
