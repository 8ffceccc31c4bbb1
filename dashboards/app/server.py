"""Serves a WSGI application on this machine, a thread a request, quietly.

Werkzeug's own server is enough: a handful of readers, the reports made elsewhere and kept. It is
not meant to face the internet; behind a proxy that is, the token still holds.
"""

from __future__ import annotations

import socket
from typing import Final

from werkzeug.serving import BaseWSGIServer

from shardtoll.dashboards.app.connections import Handler, Server
from shardtoll.dashboards.app.security import Wsgi
from shardtoll.ledger import UsageError

_ANY: Final = ("0.0.0.0", "::", "")
"""Hosts that stand for every address of the machine."""


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 takes a free one. UsageError if that fails."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(
            f"cannot listen on {host} port {port} ({why})",
            "name another with --port, or --port 0 for a free one",
        ) from error


def serving(application: Wsgi, listening: socket.socket) -> BaseWSGIServer:
    """Return a server on the socket; `serve_forever` blocks, `shutdown` from another thread ends it."""
    host, port = listening.getsockname()[:2]
    return Server(host, port, application, Handler, fd=listening.fileno())


def link(host: str, listening: socket.socket, token: str | None) -> str:
    """Return the address to open; of a server on all addresses, one by which others reach this machine."""
    name = socket.gethostname() if host in _ANY else host
    name = f"[{name}]" if ":" in name else name
    return f"http://{name}:{listening.getsockname()[1]}/{f'?token={token}' if token else ''}"


def own_names(host: str, token: str | None) -> set[str]:
    """Return the names by which a browser may ask: the one given, and this machine's own."""
    names = {host, "127.0.0.1", "localhost", "::1"}
    if token is not None:
        # Without a token the machine's name must not do: who can reach it by that name is not known.
        names |= {socket.gethostname(), socket.getfqdn()}
    return names
