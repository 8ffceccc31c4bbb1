"""check_gradients in one process, without torch.distributed; and how findings are grouped and worded."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from shardtoll.ledger import Finding, UsageError
from shardtoll.profiler import check_gradients
from shardtoll.profiler.live.gradients.compare import Overlap
from shardtoll.profiler.live.gradients.diagnosis import Diagnosis, Measured
from shardtoll.profiler.live.gradients.findings import GROUP_ABOVE, Suspect, findings_of, rank_list
from shardtoll.profiler.live.session import pausing

X, Y = torch.randn(6, 4), torch.randn(6, 3)


def loss(module: nn.Module) -> torch.Tensor:
    return mse_loss(module(X), Y)


def trained(scale: float = 1.0) -> nn.Module:
    model = nn.Linear(4, 3)
    (scale * loss(model)).backward()
    return model


def test_right_gradients_give_an_empty_list() -> None:
    model, reference = trained(), nn.Linear(4, 3)
    assert check_gradients(model, reference, loss) == []
    assert torch.equal(reference.weight, model.weight), "the reference has the model's weights now"
    assert reference.weight.grad is None


def test_a_wrong_scale_is_found_on_one_process() -> None:
    found = check_gradients(trained(2.0), nn.Linear(4, 3), loss)
    assert [finding.where.parameter for finding in found] == ["weight", "bias"]
    assert "wrong scale: it is 2 times the true one" in found[0].title
    assert found[0].ranks == (0,)


def test_a_difference_without_other_ranks_has_no_cause() -> None:
    model = trained()
    assert model.weight.grad is not None
    model.weight.grad[0] += 1
    (finding,) = check_gradients(model, nn.Linear(4, 3), loss)
    assert "different, cause unknown: off by" in finding.title


def test_a_tighter_rtol_finds_more() -> None:
    model = trained(1 + 1e-4)
    assert check_gradients(model, nn.Linear(4, 3), loss) == []
    assert len(check_gradients(model, nn.Linear(4, 3), loss, rtol=1e-6)) == 2


def test_the_check_works_inside_no_grad_and_keeps_the_random_state() -> None:
    model, reference = trained(), nn.Linear(4, 3)
    state = torch.get_rng_state()

    def noisy(module: nn.Module) -> torch.Tensor:
        torch.rand(3)
        return loss(module)

    with torch.no_grad():
        assert check_gradients(model, reference, noisy) == []
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), state)


def test_the_reference_takes_the_models_modes_and_gets_its_own_back() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.9)).eval()
    loss(model).backward()
    reference = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.9))
    reference[0].weight.requires_grad_(False)
    assert check_gradients(model, reference, loss) == []
    assert reference[1].training
    assert not reference[0].weight.requires_grad


@pytest.mark.parametrize(
    ("inner", "named"), [(nn.Dropout(0.5), "1"), (nn.MultiheadAttention(4, 2, dropout=0.1), "1")]
)
def test_active_dropout_is_refused_since_no_other_device_draws_its_masks(
    inner: nn.Module, named: str
) -> None:
    model = nn.Sequential(nn.Linear(4, 3), inner)
    with pytest.raises(UsageError) as refused:
        check_gradients(model, nn.Sequential(nn.Linear(4, 3), inner), loss)
    assert str(refused.value) == (
        f"module {named} drops activations at random: compute loss and gradients with it in eval(), or with "
        "p = 0: no other device draws the same masks"
    )


def test_an_interrupt_in_the_loss_passes_through() -> None:
    def interrupted(module: nn.Module) -> torch.Tensor:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check_gradients(trained(), nn.Linear(4, 3), interrupted)


def test_pauses_nest_and_end_whatever_is_raised() -> None:
    events: list[str] = []
    undo = [
        pausing.register(lambda n=n: events.append(f"pause {n}"), lambda n=n: events.append(f"resume {n}"))  # type: ignore[misc]
        for n in (1, 2)
    ]
    with pytest.raises(UsageError):
        check_gradients(nn.Linear(4, 3), nn.Linear(4, 3), loss)
    assert events == ["pause 1", "pause 2", "resume 2", "resume 1"]
    for undone in undo:
        undone()
    with pausing.paused():
        pass
    assert len(events) == 4


def test_a_pause_that_fails_resumes_those_before_it() -> None:
    events: list[str] = []

    def refuse() -> None:
        raise RuntimeError("cannot pause")

    undo = [
        pausing.register(lambda: events.append("pause"), lambda: events.append("resume")),
        pausing.register(refuse, lambda: events.append("never")),
    ]
    with pytest.raises(RuntimeError, match="cannot pause"), pausing.paused():
        pass
    for undone in undo:
        undone()
    assert events == ["pause", "resume"]


def test_findings_are_delivered_until_the_sink_is_taken_back() -> None:
    seen: list[Finding] = []
    undo = pausing.register_sink(lambda found, right, wrong: seen.extend(found))
    found = check_gradients(trained(2.0), nn.Linear(4, 3), loss)
    assert seen == found
    undo()
    check_gradients(trained(2.0), nn.Linear(4, 3), loss)
    assert len(seen) == 2


def suspect(name: str, own_sq: float = 4.0) -> Suspect:
    wrong = Measured(True, True, Overlap(1, own_sq, 1.0, 2.0, (own_sq**0.5 - 1) ** 2))
    return Suspect(
        name=name,
        kind="plain",
        replicated_over=(),
        was_partial=None,
        ranks=(wrong, wrong),
        diagnosis=Diagnosis("wrong-scale", (0, 1), factor=2.0, factor_name="the world size"),
        tolerance=3.5e-4,
        dtype="float32",
        weights_apart=(0.0, 0.0),
    )


def test_parameters_are_grouped_from_one_above_the_limit() -> None:
    alike = [suspect(f"layers.{n}.weight") for n in range(GROUP_ABOVE)]
    assert len(findings_of(alike, [])) == GROUP_ABOVE
    more = [*alike, suspect("head.weight", own_sq=9.0)]
    (finding,) = findings_of(more, [])
    assert finding.count == GROUP_ABOVE + 1
    assert f"gradients of {GROUP_ABOVE + 1} parameters (layers.0.weight, " in finding.title
    facts = {fact.label: fact.value for fact in finding.evidence}
    assert facts["worst parameter"] == "head.weight"
    assert facts["relative error, rank 0"] == 2.0


def test_a_different_diagnosis_stays_apart() -> None:
    alike = [suspect(f"layers.{n}.weight") for n in range(GROUP_ABOVE + 1)]
    other = replace(suspect("odd"), diagnosis=Diagnosis("unknown", (0,)))
    assert [finding.count for finding in findings_of([*alike, other], [])] == [GROUP_ABOVE + 1, 1]


def test_ranks_in_words() -> None:
    assert rank_list([2]) == "rank 2"
    assert rank_list([0, 1]) == "ranks 0, 1"
    assert rank_list([0, 1, 2, 3]) == "ranks 0-3"
    assert rank_list([0, 2, 5]) == "ranks 0, 2, 5"
    assert rank_list(range(0, 40, 2)).endswith("28, 30, ...")
