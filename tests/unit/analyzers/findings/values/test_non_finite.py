"""Values that are not finite: what counts, what is left out, and a remedy that runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardtoll.ledger.records.work import OPTIMIZER_STEP
from tests.unit.analyzers.ledgers import collective, compute, ledger, step
from tests.unit.analyzers.of_kinds import running
from tests.unit.analyzers.value_rows import noise, value

run = running("non-finite")

NAN = np.full((8, 4), np.nan, np.float32)
STEPS = [step(number, rank) for number in (0, 1) for rank in (0, 1)]


def found(values=(), computes=(), collectives=()):
    """All that is said of non-finite values of two steps on two ranks: at most one finding."""
    findings = run(ledger(collectives, values=values, computes=computes, steps=STEPS)).findings
    return [each for each in findings if each.kind == "non-finite"]


def loss(number=0, rank=0, **given):
    return value("loss", "loss", rank, np.float32(np.inf).reshape(()), step=number, hash=None, **given)


def stepped(number=0, rank=0, non_finite=None, **given):
    return compute(
        step=number, rank=rank, op=OPTIMIZER_STEP, phase="optimizer", non_finite=non_finite, **given
    )


@pytest.mark.parametrize(("placements", "local"), [("Shard(dim=0)", ".to_local()"), (None, "")])
def test_a_dtensors_gradient_is_reduced_by_its_local_part(placements, local):
    given = {"placements": placements, "mesh_dims": placements and "dp"}
    (finding,) = found([value("gradient", "w", rank, NAN, **given) for rank in (0, 1)])
    assert f"~torch.isfinite(model.get_parameter('w').grad{local}))" in finding.remedy.code.replace('"', "'")


@pytest.mark.parametrize(
    ("values", "title"),
    [
        ([value("gradient", "w", 1, NAN)], "the gradient of w held NaN or infinity on rank 1 from step 0 on"),
        (
            [value("parameter", "w", 0, NAN, step=1)],
            "parameter w held NaN or infinity on rank 0 from step 1 on",
        ),
        (
            [value("gradient", name, rank, NAN) for name in "abcd" for rank in (0, 1)],
            "gradients of 4 parameters (a, b, c, ...) held NaN or infinity on ranks 0-1 from step 0 on",
        ),
        (
            [value("parameter", name, 0, NAN) for name in "abc"],
            "3 parameters (a, b, c) held NaN or infinity on rank 0 from step 0 on",
        ),
    ],
)  # fmt: skip
def test_checks_name_what_is_not_finite(values, title):
    (finding,) = found(values)
    assert (finding.title, finding.severity) == (title, "error")
    names = tuple(dict.fromkeys(each.name for each in values))
    assert finding.parameters == (names if len(names) > 1 else ())
    assert finding.where.parameter == (names[0] if len(names) == 1 else None)
    assert finding.count == len(names)


@pytest.mark.parametrize(
    ("array", "given"),
    [
        (noise(1), {}),
        (NAN, {"may_leave_out": True}),
        (NAN, {"numel": 0}),
        (NAN, {"hash": None}),
        (NAN, {"step": None}),
    ],
    ids=["finite", "left out by a scaler", "no elements", "never read", "before steps"],
)
@pytest.mark.parametrize("kind", ["gradient", "parameter"])
def test_silent(kind, array, given):
    assert found([value(kind, "w", 0, array, **given)]) == []


@pytest.mark.parametrize(
    ("used", "words"),
    [
        ("input", "gradients that the optimizer used held NaN or infinity on rank 1 from step 1 on"),
        ("output", "parameters that the optimizer wrote held NaN or infinity on rank 1 from step 1 on"),
    ],
)
def test_samples_say_what_an_optimizer_used_or_wrote(used, words):
    (finding,) = found(computes=[stepped(), stepped(1, 1, used)])
    assert (finding.title, finding.count, finding.parameters) == (words, 1, ())


@pytest.mark.parametrize("kept", ["left-out", None])
def test_what_a_kernel_leaves_out_is_silent(kept):
    assert found(computes=[stepped(non_finite=kept)]) == []


@pytest.mark.parametrize(
    ("values", "computes", "steps"),
    [
        ([loss()], [], "0"),
        ([loss(), loss(1)], [stepped(1)], "1"),
        ([loss(), loss(0, 1)], [stepped(), stepped(0, 1, "left-out")], "0"),
        ([loss(1), loss(may_leave_out=True)], [], "1"),
    ],
    ids=["no optimizer", "it went on in one step", "it went on on one rank", "a scaler was at work in one"],
)
def test_a_loss_counts_where_an_optimizer_went_on(values, computes, steps):
    (finding,) = found(values, computes)
    assert finding.title.startswith("the loss held NaN or infinity on rank 0 from")
    shown = {each.label: each.value for each in finding.evidence}
    assert shown["steps with it"] == steps


@pytest.mark.parametrize(
    ("values", "computes"),
    [
        ([loss()], [stepped(1)]),
        ([loss()], [stepped(0, 1)]),
        ([loss()], [stepped(non_finite="left-out")]),
        ([loss(None)], []),
        ([loss(number, rank, may_leave_out=True) for number in (0, 1) for rank in (0, 1)], []),
        ([loss(may_leave_out=True)], [stepped()]),
    ],
    ids=["skipped", "another rank's", "left out", "before steps", "skipped by a scaler in all", "another's"],
)
def test_a_loss_of_a_step_that_was_left_out_is_silent(values, computes):
    assert found(values, computes) == []


def test_an_optimizer_that_stepped_in_other_steps_has_left_these_out():
    later = [collective(step=1, rank=rank, optimizer_steps=3) for rank in (0, 1)]
    assert found([loss()], collectives=later) == []
    assert len(found([loss()], collectives=[replace(row, optimizer_steps=0) for row in later])) == 1


def test_the_first_operator_of_the_first_step_is_named():
    rows = [
        compute(index=4, op="aten.log.default", non_finite="input", module="late"),
        compute(
            index=3, op="aten.div.Tensor", rank=1, non_finite="output", module="mlp", source="t.py:3 (f)"
        ),
        compute(index=2, op="aten.mm.default"),
        compute(index=1, step=1, op="aten.exp.default", non_finite="output"),
        stepped(index=0, non_finite="input"),
    ]
    (finding,) = found([loss()], rows)
    assert (finding.where.op, finding.where.module, finding.where.source) == (
        "aten.div.Tensor",
        "mlp",
        "t.py:3 (f)",
    )
    assert sum(count for _, count, _ in finding.rows.computes) == 1
    shown = {each.label: each.value for each in finding.evidence}
    assert shown["met first by"] == "aten.div.Tensor of mlp in forward on rank 1, in its result alone"
    assert "of mlp" in finding.remedy.text
