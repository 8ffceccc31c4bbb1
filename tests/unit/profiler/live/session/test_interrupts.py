"""Ctrl-C at any line of opening and closing a session: it passes, and nothing is left behind."""

from __future__ import annotations

import sys
from collections.abc import Callable, Set
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch._dynamo  # adds to the warnings filters when it is imported first

from shardtoll.profiler import audit
from shardtoll.profiler.live.session import session as session_file
from tests import leftovers

LIVE = Path(session_file.__file__).parents[1]
FUNCTIONS = {
    "__enter__",
    "__exit__",
    "_install",
    "_patch",
    "_uninstall",
    "around",
    "open_doors",
    "patch_backward",
    "patch_process_group",
    "patch_reducers",
    "install",
    "patch_user_profiler",
    "patched",
    "prepare",
    "quiet_kineto",
    "uninstall",
}
NAMES = ("session", "capturing", "patches", "drains", "entries", "spans", "threads", "training")
FILES = {str(path) for name in NAMES for path in LIVE.rglob(f"{name}.py")}
OF_CHECKS = {"_install_checks", "install", "watch_norms", "watch_inputs", "compiled", "around", "patched"}
NAMES_OF_CHECKS = ("session", "capturing", "checking", "check_hooks", "patches")
FILES_OF_CHECKS = {str(path) for name in NAMES_OF_CHECKS for path in LIVE.rglob(f"{name}.py")}
assert len(FILES) == len(NAMES)
assert len(FILES_OF_CHECKS) == len(NAMES_OF_CHECKS)


def audited() -> None:
    with audit() as session, session.step():
        torch.ones(4, 4) @ torch.ones(4, 4)


def checked(model: torch.nn.Module) -> None:
    with audit(model, checks=("gradients", "replicas", "data")) as session, session.step():
        model(torch.ones(1, 2)).sum().backward()


def interrupted_at(
    line: int,
    work: Callable[[], None] = audited,
    files: Set[str] = FILES,
    functions: Set[str] = FUNCTIONS,
) -> bool:
    """Run a session with an interrupt at the so-maniest line of the functions named; False past the last."""
    passed = 0
    closing: set[FrameType] = set()

    def local(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal passed
        if event != "line":
            return local
        if frame.f_code.co_name == "__exit__" and frame not in closing:
            # The first line of an __exit__ is past any help: Python itself has no guard there.
            closing.add(frame)
            return local
        passed += 1
        if passed == line:
            sys.settrace(None)
            raise KeyboardInterrupt
        return local

    def calls(frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        return local if code.co_filename in files and code.co_name in functions else None

    before = sys.gettrace()
    sys.settrace(calls)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def test_an_interrupt_at_any_line_passes_and_leaves_nothing_behind() -> None:
    audited()
    line = 1
    # A snapshot is most of the time: what a line leaves is compared with what the line before left.
    before = leftovers.take()
    while True:
        going = interrupted_at(line)
        after = leftovers.take()
        assert leftovers.left(before, after) == [], line
        before = after
        if not going:
            break
        line += 1
    # Far more than one: the functions above were found and gone through.
    assert line > 100


def test_an_interrupt_while_checks_are_installed_leaves_no_hook_behind() -> None:
    model = torch.nn.Linear(2, 2)
    checked(model)
    line = 1
    before = leftovers.take()
    while interrupted_at(line, lambda: checked(model), FILES_OF_CHECKS, OF_CHECKS):
        after = leftovers.take()
        assert leftovers.left(before, after) == [], line
        assert not model._forward_pre_hooks, line
        before = after
        line += 1
    assert line > 30
