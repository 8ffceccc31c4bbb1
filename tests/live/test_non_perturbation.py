"""Nothing of the training changes because it is audited, and whatever ends a session leaves nothing."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from shardtoll.ledger import read_run
from tests.live import ending_programs, perturbation_programs
from tests.live.launch import run_ranks
from tests.live.perturbation_programs import KINDS, LEVELS, STEPS

pytestmark = pytest.mark.live

BARE = "None"
LIMIT_S = 240.0


@cache
def found() -> list[dict[str, Any]]:
    return run_ranks(perturbation_programs.everything, 2, limit_s=LIMIT_S)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", KINDS)
def test_bits_random_numbers_collectives_and_compiled_code_are_those_of_a_bare_run(
    kind: str, level: str
) -> None:
    for rank in found():
        bare, audited = rank["trials"][kind][BARE], rank["trials"][kind][level]
        assert {name: audited[name] for name in bare} == bare
    leading = found()[0]["trials"][kind][level]
    assert leading["notices"] == []
    assert len(leading["counts"]) == 2 * STEPS, "one group, each step of each rank"
    # Watching alone never learns what C++ issues: it says so, as what it counted and did not see.
    unseen = level == "watch" and kind == "ddp"
    assert all((issued == recorded) != unseen for issued, recorded in leading["counts"])


def test_the_compiled_programs_did_run_compiled() -> None:
    for rank in found():
        warm, cold = (rank["trials"][kind][BARE] for kind in ("compiled", "compiled in the first step"))
        # Two blocks share one graph: it is compiled once, before the steps or in the first, and runs twice.
        assert warm["runs of compiled code"] == [2, 4, 6, 8, 10]
        assert (warm["compiled anew"], warm["graphs"]) == (0, {})
        assert cold["runs of compiled code"] == [2, 4, 6, 8, 10]
        assert (cold["compiled anew"], cold["graphs"]["unique_graphs"]) == (1, 1)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "compiled in the first step"])
def test_operators_run_in_the_order_of_a_bare_run(kind: str, level: str) -> None:
    for rank in found():
        bare, audited = rank["operators"][kind][BARE], rank["operators"][kind][level]
        assert audited["own"] == bare["own"]
        # Fingerprints read values where they lie: no level runs any operator of its own.
        assert audited["added"] == bare["added"] == []


def test_torchs_profiler_sees_the_same_step_bare_and_watched() -> None:
    for rank in found():
        for first, *others in rank["profiled"].values():
            assert len(first) > 100
            assert others == [first] * len(others)


@cache
def ended(level: str) -> list[dict[str, Any]]:
    return run_ranks(ending_programs.endings, 2, level, limit_s=LIMIT_S)


def both(level: str, name: str) -> list[dict[str, Any]]:
    """What the two ranks say; only rank 0 has the steps."""
    leading, other = (rank[name] for rank in ended(level))
    assert "failed" not in leading, leading
    assert "failed" not in other, other
    return [leading, other]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("forward", "RuntimeError"),
        ("backward", "ArithmeticError"),
        ("optimizer", "ArithmeticError"),
        ("interrupt", "KeyboardInterrupt"),
        ("exit", "SystemExit"),
    ],
)
def test_what_is_raised_in_a_step_passes_and_the_steps_before_it_count(
    name: str, error: str, level: str
) -> None:
    leading, other = both(level, name)
    assert leading == {"arrived": error, "steps": [0, 1]}
    assert other["arrived"] == error


@pytest.mark.parametrize("level", LEVELS)
def test_an_interrupt_while_ranks_are_waited_for_passes_and_nothing_is_left(level: str) -> None:
    leading, other = both(level, "closing")
    # On a busy machine the interrupt may come before the rank's own files are closed.
    assert leading.pop("steps") in ([0], [])
    assert leading == {"arrived": "KeyboardInterrupt", "folder is gone": True, "told": True}
    assert other == {"arrived": "", "folder is gone": True}


@pytest.mark.parametrize("level", LEVELS)
def test_sessions_nest_not_and_repeat_without_growth(level: str) -> None:
    for rank in both(level, "nested"):
        assert rank["told"] == (
            "an audit session is open already: close it first; for several steps use session.step()"
        )
    assert both(level, "nested")[0]["steps"] == [0, 1]
    assert both(level, "repeated") == [{"descriptors": 0, "threads": 0, "folders": 0}] * 2
    assert both(level, "suspended")[0]["steps"] == [0, 1]


@pytest.mark.parametrize("level", LEVELS)
def test_threads_and_loader_workers_are_left_alone(level: str) -> None:
    assert [rank["same"] for rank in both(level, "other thread")] == [True, True]
    assert both(level, "other thread")[0]["steps"] == [0, 1]
    for rank in both(level, "beside a thread"):
        assert (rank["same"], rank["wrong"], rank["passes"]) == (True, 0, True)
    assert both(level, "beside a thread")[0]["steps"] == [0, 1, 2]
    assert [rank["same"] for rank in both(level, "loading")] == [True, True]
    assert both(level, "loading")[0]["steps"] == [0, 1]


@pytest.mark.parametrize("level", LEVELS)
def test_the_users_own_modes_and_profiler_see_what_they_see_without_an_audit(level: str) -> None:
    for rank in both(level, "user's own"):
        matmuls, collectives = rank["matmuls"], rank["collectives"]
        assert matmuls[0] > 0
        assert len(set(matmuls)) == 1
        assert collectives == [4, 4, 4]
        # torch's profiler counts an operator twice where a mode passed it on.
        assert rank["profiled"] == (4 if level == "watch" else 8)
    assert both(level, "user's own")[0]["steps"] == [[0]] * 5


@pytest.mark.parametrize("level", LEVELS)
def test_a_rank_that_ends_inside_its_session_delays_nobody(level: str, tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    leading, gone = run_ranks(ending_programs.gone_in_session, 2, out, level, may_die=(1,))
    assert gone is None
    assert leading["left_s"] < 30
    assert leading["steps"] == [0, 1]
    steps = {(row["rank"], row["step"]) for row in read_run(Path(out)).tables["steps"].to_pylist()}
    assert steps == {(rank, step) for rank in range(2) for step in range(2)}
