"""`shardtoll serve`: the same views in a browser, on runs of any size and on runs still being written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shardtoll.cli.inputs.options import Fabric

if TYPE_CHECKING:
    import socket

    from shardtoll.dashboards.app.source import Source


def command(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="A run folder, a folder of runs, a report.json, or traces (files, a folder, a quoted glob).",
            show_default=False,
        ),
    ],
    port: Annotated[
        int,
        typer.Option("--port", min=0, max=65535, metavar="N", help="Port to listen on; 0 takes a free one."),
    ] = 8050,
    host: Annotated[
        str,
        typer.Option(
            "--host",
            metavar="ADDRESS",
            help="Address to listen on. Any but loopback needs the token in the link that is printed.",
        ),
    ] = "127.0.0.1",
    token: Annotated[
        bool,
        typer.Option(
            "--token", help="Ask for a token on loopback too, for machines that others use as well."
        ),
    ] = False,
    open_browser: Annotated[
        bool, typer.Option("--open", help="Open the page in this machine's browser.")
    ] = False,
    fabric: Fabric = None,
) -> None:
    """Show runs in a browser; steps that a running job adds appear within seconds.

    The address keeps run, view, filters, zoom and the finding picked: a link restores them. Only this
    machine can reach the server, unless --host says otherwise. Ctrl-C ends it.

    \b
    Examples:
      shardtoll serve runs/a
      shardtoll serve runs --port 0
      shardtoll serve runs/a --host 0.0.0.0 --fabric loopback-gloo
      shardtoll serve 'traces/*.json' --token
    """
    from importlib.util import find_spec

    from shardtoll.cli.inputs.serve_source import make_source
    from shardtoll.ledger import UsageError

    if find_spec("dash") is None:
        raise UsageError(
            "shardtoll serve needs Dash, which is not installed", "pip install 'shardtoll[serve]'"
        )
    from shardtoll.dashboards.app.security import is_loopback, new_token
    from shardtoll.dashboards.app.server import listen

    source = make_source(path, fabric)
    left = False
    try:
        listening = listen(host, port)
        with listening:
            _serve(
                source, host, listening, new_token() if token or not is_loopback(host) else None, open_browser
            )
    finally:
        left = source.close()
    if left:
        _leave()


def _leave() -> None:
    """End now. Python's own end would stop the thread of an analysis inside a library, which may abort."""
    import os
    import sys

    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _serve(
    source: Source, host: str, listening: socket.socket, token: str | None, open_browser: bool
) -> None:
    """Serve until Ctrl-C, which is how one ends it and no failure."""
    import contextlib

    from shardtoll.dashboards.app.app import make_app
    from shardtoll.dashboards.app.server import link, own_names, serving

    server = serving(make_app(source, own_names(host, token), token), listening)
    address = link(host, listening, token)
    typer.echo(f"serving {address}  (Ctrl-C ends)")
    if token is not None:
        typer.echo("whoever has this link can see the runs; it changes with every start", err=True)
    if open_browser:
        import webbrowser

        webbrowser.open(address)
    with contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()
    server.server_close()
