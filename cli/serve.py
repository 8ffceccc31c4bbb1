"""`shardtoll serve`: the same views in a browser, on runs of any size and on runs still being written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shardtoll.cli.inputs.options import Fabric

if TYPE_CHECKING:
    import socket

    from shardtoll.cli.inputs.serve_source import Served
    from shardtoll.dashboards.app.source import Source

_FIRST_LOOK_S = 2.0
"""How long the start waits for the first report, so that a file that cannot be read ends it."""


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
      shardtoll serve 'traces/*.json.gz' --token
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
        _first_look(source, path)
        listening = listen(host, port)
        with listening:
            _serve(
                source, host, listening, new_token() if token or not is_loopback(host) else None, open_browser
            )
    finally:
        left = source.close()
    if left:
        _leave()


def _first_look(source: Served, path: str) -> None:
    """Raise UsageError if a saved report or traces cannot be read, as far as that is known within moments.

    For a folder of runs it says which JSON files are left out. Later errors stand on the page.
    """
    from shardtoll.cli.inputs.serve_list import left_out
    from shardtoll.dashboards.words.text import clean
    from shardtoll.ledger import UsageError
    from shardtoll.ledger.words.human import plural

    if not source.single:
        if names := left_out(path):
            files = f"{clean(names[0])} is" if len(names) == 1 else f"{plural(len(names), 'JSON file')} are"
            there = plural(len(source.runs()), "run and report", "runs and reports")
            typer.echo(f"{clean(path)}: {there}; {files} left out, as no saved report", err=True)
        return
    why = source.unreadable(_FIRST_LOOK_S)
    if why is not None:
        wrong, _, hint = why.rpartition(": ")
        raise UsageError(wrong or hint, hint if wrong else "name a run folder, a report.json or traces")


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
