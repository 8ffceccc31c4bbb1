"""How a dry run ends early, on purpose or not."""

from __future__ import annotations

import os
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final

from shardtoll.profiler.live.cause.frames import Stack

_LONGEST: Final = 300
_OURS: Final = str(Path(__file__).resolve().parents[2])
_STDLIB: Final = str(Path(os.__file__).parent)


class Enough(BaseException):
    """All steps asked for were recorded; no `except Exception` of the program's stops it."""


class Endless(BaseException):
    """The program seems to wait for a number that nobody has; no `except Exception` of its own stops it."""

    def __init__(self, what: str, line: str | None, answers: int, *, calls: bool = False) -> None:
        """`answers` without a step; with `calls`, as many calls of modules that had answers after them."""
        where = line or "the program"
        often = f"in {answers:,} forwards" if calls else f"{answers:,} times"
        self.message = f"{where}: {what} was answered {often} without an optimizer step"
        self.advice = (
            "if the loop waits for a value, give another --item; if it is bounded, run fewer iterations"
        )
        super().__init__(self.message)


def user_line(frame: FrameType | None) -> str | None:
    """Return the innermost line of the user's own code, as `train.py:12 (main)`; None without one."""
    return Stack().user_line(frame) if frame is not None else None


def line_of(trace: TracebackType | None, script: Path) -> str:
    """Return the innermost line of the user's own code that an exception passed, as `train.py:12`."""
    innermost = None
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if name == str(script) or not (name.startswith((_OURS, "<", _STDLIB)) or "site-packages" in name):
            innermost = f"{Path(name).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return innermost or script.name


def one_line(error: BaseException) -> str:
    """Return what an exception says, in one line."""
    text = " ".join(str(error).split())[:_LONGEST]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
