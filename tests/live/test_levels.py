"""Every strategy under the default schedule: a watched step says what a surveyed one says, and when."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from shardtoll.ledger import read_run
from tests.live import level_programs, sequence_programs
from tests.live.coverage import cover
from tests.live.launch import run_ranks

pytestmark = pytest.mark.live

ON_TWO = {
    "ddp:buckets": ("ddp", "buckets"),
    "ddp:power_sgd": ("ddp", "power_sgd"),
    "fsdp1:full_shard": ("fsdp1", "full_shard"),
    "fsdp2:reshard_true": ("fsdp2", "reshard_true"),
    "zero:plain": ("zero", "plain"),
    "accumulation:fsdp2_last": ("accumulation", "fsdp2_last"),
    "checkpointing:wrapped_non_reentrant": ("checkpointing", "wrapped, non-reentrant"),
    "checkpointing:wrapped_reentrant": ("checkpointing", "wrapped, reentrant"),
    "clipping:library": ("clipping", "library"),
    "groups:all_kinds": ("by_hand", "all kinds"),
    "groups:objects": ("by_hand", "objects"),
    "tensor_parallel:sequence": ("tensor_parallel", "sequence"),
    "tensor_parallel:loss": ("tensor_parallel", "loss"),
    "context_parallel:ulysses": ("context_parallel", "ulysses"),
    "pipeline:1f1b": ("pipeline", "1f1b"),
    "expert_parallel:skewed": ("expert_parallel", "skewed"),
    "point_to_point:coalesced": ("point_to_point", "coalesced"),
    "point_to_point:functional": ("point_to_point", "functional"),
    "compiled:tensor": ("compiled", "tensor"),
    "compiled:fsdp2": ("compiled", "fsdp2"),
    "dcp:sharded": ("saving", "sharded"),
}
"""Sample -> its row in the coverage table."""
ON_FOUR = {"two_d:sequence": ("two_d", "sequence"), "fsdp2:hsdp": ("fsdp2", "hsdp")}
SIZES = ("message_bytes", "wire_bytes", "received_bytes")
UNEVEN = "expert_parallel:skewed"
EITHER_THREAD = "ddp:power_sgd"
"""Its hook goes on from gloo's thread, or at once where the first exchange is over: both are right."""


@cache
def found(ranks: int) -> dict[str, Any]:
    variants = [name.split(":") for name in (ON_TWO if ranks == 2 else ON_FOUR)]
    answer: dict[str, Any] = run_ranks(level_programs.watched_like_surveyed, ranks, variants, limit_s=240)[0]
    return answer


@pytest.mark.parametrize(
    ("name", "ranks"), [*((name, 2) for name in ON_TWO), *((name, 4) for name in ON_FOUR)]
)
def test_a_watched_step_says_what_a_surveyed_one_says(
    request: pytest.FixtureRequest, name: str, ranks: int
) -> None:
    shown = found(ranks)[name]
    assert shown["levels"][0] == shown["levels"][2] == "survey"
    assert shown["rows"] > 0
    differences = shown["differences"]
    if name == EITHER_THREAD:
        assert shown["incomplete"] == []
        assert set(shown["parts"]) == {0}
        cover(request.config, *ON_TWO[name], {"watch": "surveyed again where another thread goes on"})
        return
    assert shown["levels"][3:] == ["watch"] * (level_programs.STEPS - 3)
    if name == UNEVEN:
        # Where the tokens go changes with every step, and nothing else does.
        sizes = [line for line in differences if any(f" {size}: " in line for size in SIZES)]
        assert sizes
        differences = [line for line in differences if line not in sizes]
    assert differences == []
    assert shown["incomplete"] == []
    assert set(shown["parts"]) == {0}
    missing = shown["times_missing"]
    assert set(missing["watch"]) <= set(missing["survey"]), "watching knows the times that surveying knows"
    assert shown["exposed_ns"] > 0
    cover(request.config, *(ON_TWO | ON_FOUR)[name], {"watch": "yes"})


@cache
def disturbed() -> dict[str, Any]:
    answer: dict[str, Any] = run_ranks(sequence_programs.disturbed, 2)[0]
    return answer


PLAIN, EXTRA = ["all_reduce"], ["all_reduce", "broadcast"]
SURVEY, WATCH = "survey", "watch"


def test_a_sequence_that_changes_has_its_causes_at_once_and_is_surveyed_next() -> None:
    shown = disturbed()["changes"]
    assert shown["ops"] == [PLAIN] * 5 + [EXTRA] * 4
    assert shown["levels"] == [SURVEY, WATCH, SURVEY, WATCH, WATCH, WATCH, SURVEY, WATCH, WATCH]
    assert shown["sources"][5] == shown["sources"][6] == shown["sources"][8]
    assert all("(_step)" in source for source in shown["sources"][5])
    assert shown["incomplete"] == []


def test_of_two_sequences_that_alternate_both_are_surveyed_and_then_watched() -> None:
    shown = disturbed()["alternates"]
    assert shown["ops"] == [PLAIN, EXTRA] * 6
    surveyed = [step for step, level in enumerate(shown["levels"]) if level == SURVEY]
    assert surveyed == [0, 2, 4, 5]
    assert shown["sources"][1::2] == [shown["sources"][5]] * 6
    assert shown["incomplete"] == []


@pytest.mark.parametrize(
    ("name", "levels"),
    [
        ("watch", [WATCH] * 5),
        ("gradients", [SURVEY, WATCH, SURVEY, WATCH, WATCH]),
        ("interrupted", [SURVEY, WATCH, SURVEY, WATCH, WATCH]),
        ("thread", [SURVEY, WATCH, SURVEY, WATCH, WATCH]),
        ("profiler", [SURVEY, WATCH, SURVEY, WATCH, WATCH, WATCH]),
        ("no steps", [SURVEY]),
        ("no steps, watch", [WATCH]),
    ],
)
def test_what_disturbs_a_step_leaves_it_counted(name: str, levels: list[str]) -> None:
    shown = disturbed()[name]
    assert shown["levels"] == levels
    assert shown["incomplete"] == []
    assert all(source for sources in shown["sources"] for source in sources)


def test_watching_alone_attributes_every_step_by_its_own_stack() -> None:
    assert disturbed()["watch"]["ops"] == [PLAIN] * 3 + [EXTRA] * 2


def test_a_gradient_check_in_a_watched_step_is_no_part_of_it() -> None:
    shown = disturbed()["gradients"]
    assert shown["ops"] == [["all_reduce"] * 2] * 5
    assert shown["notices"] == ["gradients checked in step 3: all equal to one device's"]


def test_a_watched_step_that_raises_is_not_counted() -> None:
    shown = disturbed()["interrupted"]
    assert shown["steps"] == [0, 1, 2, 4, 5]
    assert shown["notices"] == ["step 3 of rank 0 did not finish and is not counted"]


def test_a_collective_of_another_thread_is_in_the_watched_step() -> None:
    assert disturbed()["thread"]["ops"] == [PLAIN] * 3 + [EXTRA, PLAIN]


def test_where_the_users_profiler_runs_times_are_unknown_and_the_report_says_so() -> None:
    shown = disturbed()["profiler"]
    assert shown["ops"] == [PLAIN] * 6
    assert shown["times_missing"] > 0
    (notice,) = shown["notices"]
    assert "torch's profiler could not be used" in notice


def test_misuse_is_refused_with_what_to_do_instead() -> None:
    outside = [
        "session.step() outside its session",
        "call it once per step, inside `with audit(...) as session:`",
    ]
    nothing_open = ["no step is open", "call session.begin_step() first"]
    again = "close it first; for several steps use session.step()"
    assert disturbed()["misused"] == [
        outside,
        nothing_open,
        ["an audit session is open already", again],
        nothing_open,
        ["session.step() inside another step", outside[1]],
        ["this session was used already", again],
        outside,
    ]


def test_a_rank_killed_while_watching_leaves_the_steps_written_by_then(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shown = run_ranks(sequence_programs.killed, 2, str(folder), may_die=(1,))[0]
    assert shown["steps"] == list(range(sequence_programs.KILLED_AFTER + 1))
    assert shown["ops"] == [PLAIN] * sequence_programs.KILLED_AFTER + [[]]
    assert shown["incomplete"] == []
    read = read_run(folder).tables["steps"].to_pylist()
    assert [s["step"] for s in read if s["rank"] == 1] == shown["steps"]
