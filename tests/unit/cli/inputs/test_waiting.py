"""A command that takes long says on a terminal what it does; a quick one, or a pipe, gets no word."""

from __future__ import annotations

import io
import time

import pytest

from shardtoll.cli.inputs import waiting


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, after_s: float, takes_s: float, term: str = "xterm"
) -> str:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(waiting, "AFTER_S", after_s)
    with waiting.waiting("replaying \x1b[31mthe [b]steps"):
        end_s = time.monotonic() + takes_s
        while time.monotonic() < end_s and "replaying" not in stream.getvalue():
            time.sleep(0.01)
    return stream.getvalue()


def test_long_work_is_named_and_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch):
    text = shown(monkeypatch, Terminal(), 0.0, 30.0)
    assert "the [b]steps" in text
    assert "\x1b[31mthe" not in text
    assert text.rstrip("\n").endswith("\x1b[2K"), "the line is erased"


def test_quick_work_and_a_pipe_get_no_word(monkeypatch: pytest.MonkeyPatch):
    assert shown(monkeypatch, Terminal(), 60.0, 0.0) == ""
    assert shown(monkeypatch, io.StringIO(), 0.0, 0.05) == ""


def test_a_terminal_that_takes_no_line_back_gets_none(monkeypatch: pytest.MonkeyPatch):
    assert shown(monkeypatch, Terminal(), 0.0, 0.5, term="dumb") == ""
