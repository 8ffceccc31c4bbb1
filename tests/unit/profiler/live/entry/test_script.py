"""Running a script under an audit in this process: steps, hooks that go away, and what a user is told."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import optimizer as optimizers

from shardtoll.ledger import UsageError
from shardtoll.profiler.live.entry.script import OpenRanges, ScriptOptions, run_script
from shardtoll.profiler.live.session.session import Session

SCRIPT = """
import sys
import torch
from torch import nn

model = nn.Linear(4, 4)
first, second = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
for _ in range(3):
    model(torch.ones(2, 4)).sum().backward()
    first.step()
    second.step()
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def steps_of(script: Path, options: ScriptOptions) -> int | None:
    """Return how many steps the report has, None where none was shown; nothing may be left behind."""
    told: list[Session] = []
    # torch puts its hooks around an optimizer's step when the first of its class is made.
    torch.optim.SGD([torch.zeros(1)])
    before = (nn.Module.__call__, dist.init_process_group, dist.destroy_process_group, torch.optim.SGD.step)
    try:
        run_script(script, ["--lr", "3"], options, told.append)
    finally:
        after = (
            nn.Module.__call__,
            dist.init_process_group,
            dist.destroy_process_group,
            torch.optim.SGD.step,
        )
        assert all(now is then for now, then in zip(after, before, strict=True))
        assert not optimizers._global_optimizer_pre_hooks
        assert not optimizers._global_optimizer_post_hooks
    assert sys.argv == [str(script), "--lr", "3"]
    if not told:
        return None
    ledger = told[0].ledger
    assert ledger is not None
    return ledger.tables["steps"].num_rows


def test_of_several_optimizers_the_first_ends_the_step(script: Path):
    assert steps_of(script, ScriptOptions()) == 3


def test_steps_are_those_of_the_scripts_own_thread(script: Path):
    """Another thread leaves a range of the profiler, and has an optimizer of its own."""
    script.write_text(
        SCRIPT.replace(
            "    first.step()\n",
            """
    def other():
        with torch.profiler.record_function("other"):
            third = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
            third.step()

    def run(*_):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    run()
    hook = first.register_step_post_hook(run)
    first.step()
    hook.remove()
""",
        ).replace("import sys\n", "import sys\nimport threading\n")
    )
    assert steps_of(script, ScriptOptions()) == 3


def test_the_audit_ends_after_so_many_steps_and_the_script_does_not(script: Path):
    script.write_text(f"{SCRIPT}\nsys.modules['ended_at'] = 'the end'\n")
    try:
        assert steps_of(script, ScriptOptions(steps=2)) == 2
        assert sys.modules["ended_at"] == "the end"
    finally:
        sys.modules.pop("ended_at", None)


def test_a_step_can_end_on_a_function_that_returns(script: Path):
    # Each of the two optimizers is one now.
    assert steps_of(script, ScriptOptions(step_on="torch.optim:SGD.step")) == 6


@pytest.mark.parametrize("step_on", [None, "torch.optim:SGD.step"])
def test_a_step_does_not_end_inside_a_range_that_it_began(
    script: Path, step_on: str | None, monkeypatch: pytest.MonkeyPatch
):
    """torch's profiler, stopped and started in there, corrupts memory."""
    inside = 'with torch.profiler.record_function("mine"):\n        first.step()\n'
    script.write_text(SCRIPT.replace("first.step()\n", inside).replace("    second.step()\n", ""))
    open_ranges = OpenRanges()
    ended: list[bool] = []
    enter, leave = torch.profiler.record_function.__enter__, torch.profiler.record_function.__exit__

    def entering(span: torch.profiler.record_function) -> torch.profiler.record_function:
        open_ranges.entered()
        return enter(span)

    def leaving(span: torch.profiler.record_function, *args: Any) -> None:
        leave(span, *args)
        open_ranges.left()

    monkeypatch.setattr(torch.profiler.record_function, "__enter__", entering)
    monkeypatch.setattr(torch.profiler.record_function, "__exit__", leaving)
    end = Session.end_step

    def ending(session: Session, **kwargs: Any) -> None:
        ended.append(open_ranges.any_open)
        end(session, **kwargs)

    monkeypatch.setattr(Session, "end_step", ending)
    assert steps_of(script, ScriptOptions(step_on=step_on)) == 3
    assert ended == [False] * len(ended)
    assert len(ended) >= 3


def test_ranges_count_from_the_mark():
    ranges = OpenRanges()
    ranges.entered()
    ranges.mark()
    assert not ranges.any_open
    ranges.entered()
    assert ranges.any_open
    ranges.left()
    ranges.left()
    assert not ranges.any_open
    # The range around the mark has ended: one begun now was begun since.
    ranges.entered()
    assert ranges.any_open


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nowhere:step", r"--step-on nowhere:step cannot be found \(No module named 'nowhere'\)"),
        ("torch.optim:SGD.leap", r"--step-on torch.optim:SGD.leap cannot be found \(.*leap.*\)"),
        ("torch.optim", "--step-on torch.optim names no function"),
        ("torch:__version__", "--step-on torch:__version__ names no function"),
        ("__main__:step", "--step-on __main__:step names no function"),
    ],
)
def test_a_function_that_is_not_there_is_told_before_the_script_runs(script: Path, name: str, text: str):
    with pytest.raises(UsageError, match=f"^{text}: name an importable function as --step-on module:"):
        steps_of(script, ScriptOptions(step_on=name))


def test_a_script_without_steps_is_told_what_to_do(script: Path):
    script.write_text("")
    with pytest.raises(UsageError, match=r"^no training step was seen in .*train\.py: a step ends when a "):
        steps_of(script, ScriptOptions())


def test_exit_codes_pass_through(script: Path):
    script.write_text(f"{SCRIPT}\nsys.exit(7)\n")
    with pytest.raises(SystemExit) as left:
        steps_of(script, ScriptOptions())
    assert left.value.code == 7
