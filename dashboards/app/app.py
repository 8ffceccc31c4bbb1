"""The server's Dash app behind its guard: `shardtoll serve` gives it reports and a socket.

Every view is drawn by the page's own script from the same figure, so there is one drawing of each. Markup,
figures and script are the page's, sent as answers and static files. Dash does what the page cannot: filters,
the list of runs, following a run that grows, and links. A second drawing in Dash's graphs would need its own
hover texts, marks and colours. Each picked finding would also cost a round trip to the server.

Nothing is loaded from another address, and Dash's tools for developers are off. No callback is given to the
browser as text, so the content policy need not allow `unsafe-eval`.

Answers to failed requests: one plain line there, one line on stderr, no traceback.

A request that fails before any of our code runs did not come from the page. It gets 400, or 404 for a script
that does not exist. A failure in our code is our mistake: 500, and stderr says where.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import dash
import flask
import plotly
from dash.exceptions import DependencyException
from plotly.offline import get_plotlyjs
from werkzeug.exceptions import HTTPException

from shardtoll.dashboards.app.board import Board
from shardtoll.dashboards.app.callbacks import add_callbacks
from shardtoll.dashboards.app.layout import layout
from shardtoll.dashboards.app.security import BODY_MOST, Guard, content_policy
from shardtoll.dashboards.app.source import Source
from shardtoll.dashboards.page.html.frame import DRAWING, STYLE, assets
from shardtoll.dashboards.words.text import clip
from shardtoll.ledger.records.errors import first_line

_INDEX = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{%title%}</title>
<link rel="stylesheet" href="/shardtoll.css">
<script id="plotly" src="/plotly.js?v=PLOTLY" async></script>
{%css%}
</head>
<body>
<noscript><p>The server's page needs JavaScript. The tables of the page that
shardtoll report PATH -o page.html writes do not.</p></noscript>
{%app_entry%}
<footer>{%config%}{%scripts%}{%renderer%}<script src="/shardtoll.js"></script></footer>
</body>
</html>
"""

_ROOT: Final = Path(__file__).resolve().parents[2]

_OURS: Final = ("analyzers", "cli", "dashboards", "ledger", "profiler")
"""Our folders: a checkout may also hold an environment with everybody else's code."""

_MOST_SAID: Final = 300
"""Characters of a line on stderr: what it says may come from the request."""


def make_app(source: Source, hosts: Iterable[str], token: str | None = None) -> Guard:
    """Return the WSGI application that shows the source's runs to requests for `hosts`."""
    server: Any = flask.Flask(__name__, static_folder=None)
    # Read in whole before Dash sees it.
    server.config["MAX_CONTENT_LENGTH"] = BODY_MOST
    app = dash.Dash(
        __name__,
        server=server,
        title="shardtoll",
        update_title="",
        index_string=_INDEX.replace("PLOTLY", plotly.__version__),
        serve_locally=True,
        include_assets_files=False,
        assets_folder="no-assets",
        use_pages=False,
        compress=False,
        enable_mcp=False,
        add_log_handler=False,
        suppress_callback_exceptions=False,
    )
    app.layout = layout()
    add_callbacks(app, Board(source))
    _answer_failures(server)
    ours = "shardtoll.dashboards.app"
    script = assets(*DRAWING) + assets("serve.js", package=ours)
    _serve_text(server, "/shardtoll.js", script, "text/javascript")
    _serve_text(server, "/shardtoll.css", assets(*STYLE) + assets("serve.css", package=ours), "text/css")
    # Some MB that hold nothing of a run, under an address that changes with them: browsers may keep them.
    _serve_text(
        server, "/plotly.js", get_plotlyjs(), "text/javascript", {"Cache-Control": "max-age=31536000"}
    )
    return Guard(server.wsgi_app, content_policy(app.csp_hashes()), hosts, token)


def _serve_text(
    server: flask.Flask, path: str, text: str, kind: str, headers: Mapping[str, str] | None = None
) -> None:
    body = text.encode()

    def answer() -> Any:
        return flask.Response(body, content_type=f"{kind}; charset=utf-8", headers=headers)

    server.add_url_rule(path, endpoint=path, view_func=answer)


def _answer_failures(server: flask.Flask) -> None:
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
