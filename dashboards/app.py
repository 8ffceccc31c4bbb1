"""The server's Dash app behind its guard: `shardtoll serve` gives it reports and a socket.

Nothing is loaded from another address, Dash's tools for developers are off, and no callback is given
to the browser as text, so that the content policy need not allow `unsafe-eval`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import dash
import flask

from shardtoll.dashboards.app_board import Board
from shardtoll.dashboards.app_callbacks import add_callbacks
from shardtoll.dashboards.app_errors import answer_failures
from shardtoll.dashboards.app_layout import layout
from shardtoll.dashboards.app_script import SCRIPT
from shardtoll.dashboards.app_security import BODY_MOST, Guard, content_policy
from shardtoll.dashboards.app_style import APP_STYLE
from shardtoll.dashboards.page_style import STYLE
from shardtoll.dashboards.source import Source

_INDEX = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{%title%}</title>
<link rel="stylesheet" href="/shardtoll.css">
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
        index_string=_INDEX,
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
    answer_failures(server)
    _serve_text(server, "/shardtoll.js", SCRIPT, "text/javascript")
    _serve_text(server, "/shardtoll.css", STYLE + APP_STYLE, "text/css")
    return Guard(server.wsgi_app, content_policy(app.csp_hashes()), hosts, token)


def _serve_text(server: flask.Flask, path: str, text: str, kind: str) -> None:
    def answer() -> Any:
        return flask.Response(text, content_type=f"{kind}; charset=utf-8")

    server.add_url_rule(path, endpoint=path, view_func=answer)
