"""Answers to failed requests: one plain line there, one line on stderr, no traceback.

A request that fails before any of our code runs did not come from the page. It gets 400, or 404 for a script
that does not exist. A failure in our code is our mistake: 500, and stderr says where.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import Any, Final

import flask
from dash.exceptions import DependencyException
from werkzeug.exceptions import HTTPException

from shardtoll.dashboards.words.text import clip
from shardtoll.ledger.records.errors import first_line

_ROOT: Final = Path(__file__).resolve().parents[2]
_OURS: Final = ("analyzers", "cli", "dashboards", "ledger", "profiler")
"""Our folders: a checkout may also hold an environment with everybody else's code."""
_MOST_SAID: Final = 300
"""Characters of a line on stderr: what it says may come from the request."""


def answer_failures(server: flask.Flask) -> None:
    """Let every request to the server that fails be answered in one line."""
    server.register_error_handler(Exception, _answer)


def _answer(error: Exception) -> Any:
    if isinstance(error, HTTPException):
        return _line(error.code or 500, f"{error.name}.")
    if isinstance(error, DependencyException):
        return _line(404, "There is no such file.")
    what = f"{type(error).__name__}: {first_line(error)}"
    place = _place(error)
    if place is None:
        _say(f"a request that cannot be read was refused ({what})")
        return _line(400, "The request cannot be read.")
    _say(f"{flask.request.path} failed in {place}: {what}")
    return _line(500, "The server failed; its terminal says how.")


def _place(error: Exception) -> str | None:
    """Return the last place in our own code that a failure came through; None if it reached none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_relative_to(_ROOT):
            place = path.relative_to(_ROOT)
            if place.parts[0] in _OURS:
                return f"{place}:{frame.lineno}"
    return None


def _line(status: int, text: str) -> flask.Response:
    return flask.Response(f"{text}\n", status, content_type="text/plain; charset=utf-8")


def _say(text: str) -> None:
    sys.stderr.write(f"shardtoll: serve: {clip(text, _MOST_SAID)}\n")
