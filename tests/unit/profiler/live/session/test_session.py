"""The session in one process: steps, phases, FLOPs, user mistakes, and leaving no trace."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils.checkpoint import checkpoint

from shardtoll.ledger import RunFolderError, UsageError, read_run
from shardtoll.profiler import audit
from shardtoll.profiler.live.capture import mode
from shardtoll.profiler.live.capture.recorder import Recorder

D = 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(D, 4 * D)
        self.down = nn.Linear(4 * D, D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.block = Block()
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = checkpoint(self.block, x, use_reentrant=self.reentrant)
        return out


def rows(session: Any, table: str) -> list[dict[str, Any]]:
    return list(session.ledger.tables[table].to_pylist())


def train(model: nn.Module) -> None:
    model(torch.randn(8, D, requires_grad=True)).square().mean().backward()


def test_a_context_without_steps_is_one_step() -> None:
    with audit(Block()) as session:
        train(session._model)
    (step,) = rows(session, "steps")
    assert step["step"] == 0
    parts = [
        step[p] for p in ("compute_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns", "unattributed_ns")
    ]
    assert sum(parts) == step["duration_ns"]
    assert step["compute_ns"] > 0
    assert 0 < step["capture_ns"] <= step["unattributed_ns"]


def test_steps_are_numbered_and_what_lies_between_is_outside(tmp_path: Path) -> None:
    model = Block()
    with audit(model, out=tmp_path / "run", level="survey") as session:
        model(torch.randn(8, D))
        for _ in range(3):
            with session.step():
                train(model)
    assert [s["step"] for s in rows(session, "steps")] == [0, 1, 2]
    assert {c["step"] for c in rows(session, "computes")} == {0, 1, 2}
    assert read_run(tmp_path / "run").tables["steps"].equals(session.ledger.tables["steps"])


def test_matmuls_carry_flops_phase_module_and_line() -> None:
    model = nn.Sequential(Block(), Block())
    with audit(model) as session:
        train(model)
    computes = rows(session, "computes")
    one = 2 * 8 * D * 4 * D
    assert {c["flops"] for c in computes} == {one}
    forward = [c["module"] for c in computes if c["phase"] == "forward"]
    assert forward == ["0.up", "0.down", "1.up", "1.down"]
    backward = [c["module"] for c in computes if c["phase"] == "backward"]
    # Each linear layer has two matmuls in backward: for its input and for its weight.
    assert backward == [name for name in reversed(forward) for _ in range(2)]
    assert all(c["source"].endswith("(forward)") and "test_session.py" in c["source"] for c in computes)


@pytest.mark.parametrize("reentrant", [True, False])
def test_recompute_is_told_from_backward(reentrant: bool) -> None:
    model = Checkpointed(reentrant)
    with audit(model) as session:
        train(model)
    seen = [(c["phase"], c["module"]) for c in rows(session, "computes")]
    assert seen[:2] == [("forward", "block.up"), ("forward", "block.down")]
    recomputed = [module for phase, module in seen if phase == "recompute"]
    # Without reentrancy torch stops recomputing once everything needed is there again.
    assert recomputed in (["block.up", "block.down"], ["block.up"])
    backward = [module for phase, module in seen if phase == "backward"]
    assert backward == ["block.down", "block.down", "block.up", "block.up"]


@pytest.mark.parametrize(
    ("work", "flops"),
    [
        (lambda: torch.bmm(torch.randn(3, 4, 5), torch.randn(3, 5, 6)), 2 * 3 * 4 * 5 * 6),
        (lambda: torch.baddbmm(torch.zeros(3, 4, 6), torch.randn(3, 4, 5), torch.randn(3, 5, 6)), 720),
        (lambda: torch.conv2d(torch.randn(1, 2, 8, 8), torch.randn(4, 2, 3, 3)), 2 * 4 * 6 * 6 * 2 * 9),
    ],
)
def test_flops_of_other_operators(work: Any, flops: int) -> None:
    with audit() as session:
        work()
    assert [c["flops"] for c in rows(session, "computes")] == [flops]


@pytest.mark.parametrize("kind", [nn.Conv2d, nn.ConvTranspose2d])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("stride", [1, 2])
def test_each_gradient_of_a_convolution_has_its_flops(kind: Any, groups: int, stride: int) -> None:
    layer = kind(4, 8, 3, stride=stride, groups=groups, bias=False)
    x = torch.randn(2, 4, 9, 9, requires_grad=True)
    with audit() as session:
        made = layer(x)
        made.sum().backward()
    places = x.shape[2] * x.shape[3] if kind is nn.ConvTranspose2d else made.shape[2] * made.shape[3]
    one = 2 * 2 * places * 9 * 4 * 8 // groups
    assert [c["flops"] for c in rows(session, "computes")] == [one, 2 * one]


def test_fused_attention_is_counted() -> None:
    q = torch.randn(2, 3, 7, 8, requires_grad=True)
    with audit() as session:
        nn.functional.scaled_dot_product_attention(q, q, q).sum().backward()
    one = 2 * (2 * 3 * 7 * 7 * 8)
    # Scores and values forward; backward the scores again and a gradient for each of the four products.
    assert [c["flops"] for c in rows(session, "computes")] == [2 * one, 5 * one]


def test_an_exception_of_the_user_passes_and_leaves_nothing() -> None:
    def interrupted() -> None:
        with session:
            torch.ones(3) @ torch.ones(3)
            raise KeyboardInterrupt

    session = audit()
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert rows(session, "steps") == []
    assert "is not counted" in rows(session, "notices")[0]["text"]


def test_an_operators_own_error_passes_untouched() -> None:
    with audit() as session:
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            torch.mm(torch.ones(2, 3), torch.ones(2, 3))
        torch.mm(torch.ones(2, 3), torch.ones(3, 2))
    assert len(rows(session, "computes")) == 1
    assert rows(session, "notices") == []


def test_a_failed_step_is_dropped_and_later_ones_count() -> None:
    model = Block()
    with audit(model) as session:
        with pytest.raises(ZeroDivisionError), session.step():
            raise ZeroDivisionError
        with session.step():
            train(model)
    assert [s["step"] for s in rows(session, "steps")] == [1]
    assert rows(session, "notices")[0]["kind"] == "step-dropped"


def test_the_users_own_profiler_goes_on() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
        with audit() as session:
            torch.ones(3, 3) @ torch.ones(3, 3)
    assert any(event.key == "aten::mm" for event in theirs.key_averages())
    assert len(rows(session, "steps")) == 1


def test_two_sessions_one_after_the_other() -> None:
    for _ in range(2):
        with audit() as session:
            torch.ones(3, 3) @ torch.ones(3, 3)
        assert len(rows(session, "computes")) == 1


def test_mistakes_are_told_in_one_line(tmp_path: Path) -> None:
    with audit() as session:
        with pytest.raises(UsageError) as nested, audit():
            pass
        with pytest.raises(UsageError) as early:
            session.report()
        with session.step():
            with pytest.raises(UsageError) as inner, session.step():
                pass
    assert (
        str(nested.value)
        == "an audit session is open already: close it first; for several steps use session.step()"
    )
    assert str(early.value) == "the session is still open: call session.report() after the `with` block"
    assert str(inner.value) == (
        "session.step() inside another step: call it once per step, inside `with audit(...) as session:`"
    )
    with pytest.raises(UsageError) as late, session.step():
        pass
    assert "outside its session" in str(late.value)
    with pytest.raises(UsageError) as again, session:
        pass
    assert "was used already" in str(again.value)
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError) as folder, audit(out=tmp_path / "file" / "run"):
        pass
    assert "cannot be made" in str(folder.value)
    assert "\n" not in str(folder.value)


def test_steps_on_another_thread_than_the_sessions_are_refused() -> None:
    """Operators are seen on the thread that opened the session: such steps would look idle."""
    raised: list[str] = []

    def train(session: Any) -> None:
        try:
            with session.step():
                torch.ones(3, 3) @ torch.ones(3, 3)
        except UsageError as error:
            raised.append(str(error))

    with audit() as session:
        thread = threading.Thread(target=train, args=(session,))
        thread.start()
        thread.join()
        with session.step():
            torch.ones(3, 3) @ torch.ones(3, 3)
    assert raised == [
        "session.step() on another thread than the one that opened the session: "
        "open the audit on the thread that trains"
    ]
    assert [row["step"] for row in rows(session, "steps")] == [0]
    assert len(rows(session, "computes")) == 1


def test_random_numbers_are_untouched() -> None:
    def draw() -> torch.Tensor:
        torch.manual_seed(3)
        return nn.functional.dropout(torch.ones(1000), 0.5) + torch.randn(1000)

    bare = draw()
    with audit():
        audited = draw()
    assert torch.equal(bare, audited)


def test_another_threads_operators_are_left_alone() -> None:
    import threading

    results: list[torch.Tensor] = []
    with audit() as session:
        thread = threading.Thread(target=lambda: results.append(torch.ones(4, 4) @ torch.ones(4, 4)))
        thread.start()
        thread.join()
    assert results[0].sum() == 64
    assert rows(session, "computes") == []


def test_without_a_model_names_come_from_the_outermost_module() -> None:
    model = nn.Sequential(Block(), Block())
    with audit() as session:
        train(model)
    modules = [c["module"] for c in rows(session, "computes") if c["phase"] == "forward"]
    assert modules == ["0.up", "0.down", "1.up", "1.down"]


def test_higher_order_operators_run_as_without_an_audit() -> None:
    def work(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda v: v + 1, lambda v: v - 1, (x,))

    x = torch.ones(3)
    bare = work(x)
    with audit() as session:
        assert torch.equal(work(x), bare)
    assert rows(session, "notices") == []


def test_a_scheduled_profiler_of_the_user_runs_through_an_audit() -> None:
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=1)
    activities = [torch.profiler.ProfilerActivity.CPU]
    # acc_events: without it torch warns when a cycle ends, and crashes where warnings are errors.
    with torch.profiler.profile(activities=activities, schedule=schedule, acc_events=True) as theirs:
        with audit() as session:
            for _ in range(4):
                with session.step():
                    torch.ones(3, 3) @ torch.ones(3, 3)
                theirs.step()
    assert [s["step"] for s in rows(session, "steps")] == [0, 1, 2, 3]


def test_an_interrupt_while_ranks_meet_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from shardtoll.profiler.live.session.gather import Meeting

    def interrupted(self: Meeting) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Meeting, "start_together", interrupted)
    with pytest.raises(KeyboardInterrupt), audit():
        pass
    monkeypatch.undo()
    with audit() as session:
        torch.ones(3, 3) @ torch.ones(3, 3)
    assert len(rows(session, "steps")) == 1


def test_a_full_disk_still_gives_a_report_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from shardtoll.ledger import RankWriter

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RankWriter, "append", full)
    with audit() as session:
        torch.ones(3, 3) @ torch.ones(3, 3)
    report = session.report()
    assert report is not None
    assert any("No space left" in notice.text for notice in report.notices)


def test_the_model_is_let_go_when_the_session_closes() -> None:
    import gc
    import weakref

    model = Block()
    gone = weakref.ref(model)
    with audit(model) as session:
        train(model)
    del model
    gc.collect()
    assert gone() is None
    assert session.ledger is not None


def test_the_environment_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
    with audit():
        torch.ones(1)
    assert "KINETO_LOG_LEVEL" not in os.environ


def test_a_failing_capture_leaves_torchs_profiler_running_until_the_step_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Stopped in the midst of a step, while a transport's threads report to it, it can corrupt memory."""

    def broken(*_: Any) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(Recorder, "computed", broken)
    with audit(Block()) as session:
        with session.step():
            train(session._model)
            assert torch._C._autograd._profiler_enabled()
        assert not torch._C._autograd._profiler_enabled()
        with session.step():
            train(session._model)
            assert not torch._C._autograd._profiler_enabled()
    assert [row["kind"] for row in rows(session, "notices")] == ["capture-stopped"]


def test_the_compiler_looks_at_none_of_our_code() -> None:
    """Between the graphs of a compiled function our mode runs while the compiler watches all frames."""
    from torch._dynamo.convert_frame import input_codes

    def work(x: torch.Tensor) -> torch.Tensor:
        y = x.sin() @ x
        torch._dynamo.graph_break()
        return (y.cos() @ x).sin()

    torch._dynamo.reset()
    compiled = torch.compile(work, backend="eager")
    with audit() as session:
        for _ in range(2):
            compiled(torch.ones(3, 3))
    seen = [str(code().co_filename) for code in input_codes.seen if code() is not None]
    assert any(path == __file__ for path in seen), "the compiler compiled the user's function"
    assert not any("profiler/live" in path for path in seen if path != __file__)
    assert len(rows(session, "computes")) == 4


class Theirs(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("can_take_out", [True, False])
def test_below_a_mode_that_stays_ours_is_taken_out_or_idle(
    can_take_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = Theirs()  # type: ignore[no-untyped-call]
    if not can_take_out:
        monkeypatch.setattr(mode, "_python_dispatch", object())
    with audit(level="survey") as session, session.step():
        theirs.__enter__()  # type: ignore[no-untyped-call]
    left = _get_current_dispatch_mode_stack()
    try:
        assert torch.equal(torch.ones(2) + 1, torch.full((2,), 2.0))
        assert left == ([theirs] if can_take_out else [session._capture.mode, theirs])
        assert session._capture.mode.muted is not can_take_out
    finally:
        theirs.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        if not can_take_out:
            session._capture.mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
    assert _get_current_dispatch_mode_stack() == []
