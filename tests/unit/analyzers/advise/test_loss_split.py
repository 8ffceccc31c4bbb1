"""What a step consists of adds up to it, for each layout, each number of GPUs and each precision."""

from dataclasses import replace

import pytest

from shardtoll.analyzers.advise.advise import advise
from shardtoll.analyzers.advise.lever_trade import neighbours
from shardtoll.dashboards.advise.advice_rows import sections
from shardtoll.ledger.answers.advice import Advice
from shardtoll.ledger.answers.training_plan import Layout
from tests.unit.analyzers.advise.test_advise import BASE


@pytest.fixture(scope="module", params=["bf16", "fp32"])
def made(request: pytest.FixtureRequest) -> Advice:
    # One sequence of 1,024 tokens for each GPU: most of a step waits for the host.
    return advise(replace(BASE, sequences=32, precision=request.param))


def test_the_parts_of_a_layout_are_its_step(made: Advice) -> None:
    assert made.ties
    assert made.levers
    for each in (*made.ties, *made.others, *(lever.candidate for lever in made.levers)):
        parts = each.compute_ns + sum(each.exposed_ns.values()) + each.bubble_ns + each.other_ns
        assert parts == pytest.approx(each.step_ns.expected, rel=0.02), each.words


def test_the_losses_of_scaling_and_the_compute_that_is_needed_are_the_step(made: Advice) -> None:
    assert len(made.scaling) >= 4
    needed = []
    for point in made.scaling:
        losses = (
            point.exposed_share, point.bubble_share, point.other_share, point.slower_compute_share
        )  # fmt: skip
        assert all(0 <= each <= 1 for each in losses)
        needed.append((1 - sum(losses)) * made.question.tokens / point.tokens_per_s * point.gpus)
    # All points need the same GPU seconds.
    assert needed == pytest.approx([needed[0]] * len(needed), rel=0.02)
    shown = next(each for each in sections(made) if each.title.startswith("Scaling"))
    assert "optimizer, host" in shown.heads


def test_the_next_narrower_precision_is_a_lever(made: Advice) -> None:
    wanted = {"bf16": "fp8 matmuls", "fp32": "bf16 matmuls"}[made.question.precision]
    names = [each.name for each in made.levers]
    assert [name for name in names if name.endswith("matmuls")] == [wanted]
    assert made.best is not None
    lever = next(each for each in made.levers if each.name == wanted)
    if wanted == "bf16 matmuls":
        assert lever.tokens_per_s_share > 0.5
    assert "none checkpointing" not in names
    # Another precision is no layout of the figure, and has words of its own.
    assert lever.candidate.words == f"{made.best.words}, {wanted}"
    assert lever.candidate not in made.pareto
    assert {each.precision for each in made.pareto} == {None}
    assert made.best in made.pareto or any(
        each.memory_bytes <= made.best.memory_bytes and each.step_ns.expected <= made.best.step_ns.expected
        for each in made.pareto
    )


def test_leaving_checkpointing_out_is_called_so() -> None:
    names = [name for name, _ in neighbours(Layout(dp=8, checkpointing="full"))]
    assert names[:2] == ["no checkpointing", "selective checkpointing"]
