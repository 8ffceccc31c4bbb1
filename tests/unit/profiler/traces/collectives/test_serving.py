"""Traces of inference: the steps that engines mark, what those serve, and what is training instead."""

from __future__ import annotations

import pytest

from shardtoll.profiler.traces.collectives.serving import Served, marks, workload
from shardtoll.profiler.traces.collectives.steps import find_steps
from tests.unit.profiler.traces.build import GEMM, Build

PAGED = "void paged_attention_ll4mi_reduce_kernel<0, 128>"


@pytest.mark.parametrize(
    ("name", "served"),
    [
        ("step[DECODE bs=32]", Served("decode", 32)),
        ("step[EXTEND bs=1 toks=107]", Served("prefill", 1)),
        ("step[EXTEND bs=2 toks=12 c_sqsq=80 c_sk=20]", Served("prefill", 2)),
        ("step[MIXED bs=2]", Served("mixed", 2)),
        ("step[TARGET_VERIFY bs=4]", Served("decode", 4)),
        ("step[DRAFT_EXTEND bs=4]", Served("decode", 4)),
        ("step[IDLE bs=0]", Served(None, 0)),
        ("step[anything]", Served(None, None)),
        ("prefill[bs=2 tok=16384]", Served("prefill", 2)),
        ("decode[bs=64 tok=64]", Served("decode", 64)),
        ("execute_context_3(107)_generation_2(50)", Served("mixed", 5)),
        ("execute_context_0(0)_generation_7(7)", Served("decode", 7)),
        ("execute_8192_context_9(sq8155sk8430sqsq7)_generation_0(sq0sk0)", Served("prefill", 9)),
        ("execute_new_1_cached_7", Served(None, 8)),
        ("[Executor] _forward_step 12: 1 ctx reqs, 107 ctx tokens, 31 gen reqs", Served("mixed", 32)),
        ("[Executor] _forward_step 12: 0 ctx reqs, 32 gen reqs", Served("decode", 32)),
    ],
)
def test_what_an_engine_says_of_its_step(name: str, served: Served) -> None:
    trace = Build().note(name, 10, 20).work(GEMM, 15, 25, launch=12).trace()
    assert [mark.served for mark in marks(trace)] == [served]
    steps = find_steps(trace)
    assert (steps.marked, steps.numbers, steps.served) == (True, (0,), (served,))


def test_a_step_lasts_until_the_next_unless_the_engine_had_nothing_to_do() -> None:
    build = Build()
    for start in (0, 100, 200, 900):
        build.note("step[DECODE bs=1]", start, start + 30)
    steps = find_steps(build.trace())
    assert steps.numbers == (0, 1, 2, 3)
    assert steps.end_ns.tolist() == [100, 200, 230, 930]


def test_a_wrapper_of_one_engine_around_another_counts_once() -> None:
    build = Build().note("execute_32_context_0(sq0)_generation_32(sq32)", 0, 50)
    steps = find_steps(build.note("step[DECODE bs=31]", 5, 45).trace())
    assert steps.served == (Served("decode", 31),)
    assert (steps.start_ns.tolist(), steps.end_ns.tolist()) == ([0], [50]), "what is prepared belongs to it"


def test_the_profilers_own_steps_count_unless_the_engine_has_more() -> None:
    build = Build().note("ProfilerStep#3", 0, 50).note("step[DECODE bs=8]", 5, 20)
    assert find_steps(build.trace()).numbers == (3,)
    assert find_steps(build.note("step[DECODE bs=8]", 25, 45).trace()).numbers == (0, 1)


@pytest.mark.parametrize(
    "name",
    ["autograd::engine::evaluate_function: MmBackward0", "Optimizer.step#AdamW.step", "## backward ##"],
)
def test_a_backward_or_an_optimizer_is_training(name: str) -> None:
    trace = Build().note("step[DECODE bs=32]", 0, 50).note(name, 60, 70).trace()
    assert workload(trace) == "training"
    assert not find_steps(trace).marked


def test_a_paged_cache_is_inference_without_marked_steps() -> None:
    trace = Build().work(PAGED, 10, 20).trace()
    assert workload(trace) == "inference"
    assert not find_steps(trace).marked


def test_nothing_of_either_is_unknown() -> None:
    assert workload(Build().work(GEMM, 10, 20).note("ProfilerStep#1", 0, 30).trace()) is None
    assert workload(Build().trace()) is None


def test_names_of_functions_on_python_stacks_prove_nothing() -> None:
    trace = Build().work(PAGED, 10, 20).frame("torch/autograd/__init__.py(1): backward", 0, 50).trace()
    assert workload(trace) == "inference"
