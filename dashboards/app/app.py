"""The server's Dash app behind its guard: `shardtoll serve` gives it reports and a socket.

Every view is drawn by the page's own script from the same figure, so there is one drawing of each. Markup,
figures and script are the page's, sent as answers and static files. Dash does what the page cannot: filters,
the list of runs, following a run that grows, and links. A second drawing in Dash's graphs would need its own
hover texts, marks and colours. Each picked finding would also cost a round trip to the server.

Nothing is loaded from another address, and Dash's tools for developers are off. No callback is given to the
browser as text, so the content policy need not allow `unsafe-eval`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import dash
import flask
import plotly
from plotly.offline import get_plotlyjs

from shardtoll.dashboards.app.board import Board
from shardtoll.dashboards.app.callbacks import add_callbacks
from shardtoll.dashboards.app.errors import answer_failures
from shardtoll.dashboards.app.layout import layout
from shardtoll.dashboards.app.security import BODY_MOST, Guard, content_policy
from shardtoll.dashboards.app.source import Source
from shardtoll.dashboards.page.html.frame import DRAWING, STYLE, assets

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
    answer_failures(server)
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
