"""Who may ask the server, and what its pages may do: checks before every request, headers after it.

By default the server listens on loopback only. There a page of another site is the danger: it may ask
our address through the reader's browser. So the name that the browser asked for must be ours (DNS rebinding).
A request that another site's page sends is refused. On other addresses everyone in the network may ask, and a
token is needed with every request.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections.abc import Callable, Iterable
from html import escape
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, urlencode

Environ: TypeAlias = dict[str, Any]
Start: TypeAlias = Callable[..., Any]
Wsgi: TypeAlias = Callable[[Environ, Start], Iterable[bytes]]

BODY_MOST: Final = 1_000_000
"""Bytes of a request's body; the page sends choices, of some kB."""
QUERY_MOST: Final = 60_000

_UPDATE: Final = "/_dash-update-component"
_SUITES: Final = "/_dash-component-suites/"
_PATHS: Final = (
    "/",
    "/_dash-layout",
    "/_dash-dependencies",
    "/_favicon.ico",
    "/shardtoll.js",
    "/shardtoll.css",
    "/plotly.js",
)


def new_token() -> str:
    """Return a token nobody can guess: 256 bits."""
    return secrets.token_urlsafe(32)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach that address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def content_policy(script_hashes: Iterable[str]) -> str:
    """Return the policy of the page: our own scripts, Dash's few inline ones by hash, and no other address.

    Plotly writes style elements and makes pictures from blobs. Nothing needs `unsafe-eval`.
    """
    scripts = " ".join(("'self'", *script_hashes))
    return (
        f"default-src 'none'; script-src {scripts}; connect-src 'self'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data: blob:; font-src 'self' data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )


class Guard:
    """A WSGI application around the server's own: refuses what may not be asked, adds the headers."""

    def __init__(self, inner: Wsgi, policy: str, hosts: Iterable[str], token: str | None = None) -> None:
        """Let requests to `hosts` through; if there is a token, only those with `token`.

        Without a token a host must be one of these names; with one, literal addresses are let through too. A
        server on all addresses cannot name them, and no DNS stands between them and a browser.
        """
        self._inner = inner
        self._policy = policy
        self._hosts = {host.lower() for host in hosts}
        self._token = token

    def __call__(self, environ: Environ, start: Start) -> Iterable[bytes]:
        """Answer one request."""
        refused = self._refused(environ)
        if refused is not None:
            return _answer(start, *refused)
        if self._token is not None:
            given = dict(parse_qsl(environ.get("QUERY_STRING", ""))).get("token")
            if given is not None and _same(given, self._token):
                return self._welcome(environ, start)
            if not _same(_cookie(environ, self._cookie_name(environ)), self._token):
                return _answer(
                    start, "403 Forbidden", "Open the link that shardtoll serve printed: it has the token."
                )

        def with_headers(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            names = {name.lower() for name, _ in headers}
            more = self._headers(environ.get("PATH_INFO", "/"))
            return start(status, [*headers, *((k, v) for k, v in more if k.lower() not in names)], *rest)

        return self._inner(environ, with_headers)

    def _headers(self, path: str) -> list[tuple[str, str]]:
        headers = [*_PLAIN, ("Content-Security-Policy", self._policy)]
        # The libraries' own scripts are megabytes that hold nothing of a run; their names change with them.
        return headers if path.startswith(_SUITES) else [*headers, _NO_STORE]

    def _refused(self, environ: Environ) -> tuple[str, str] | None:
        """Return status and reason if the request may not be answered at all."""
        method, path = environ.get("REQUEST_METHOD", ""), environ.get("PATH_INFO", "")
        host = environ.get("HTTP_HOST", "")
        if not self._known(host):
            return (
                "403 Forbidden",
                "This name is not the server's. Open the address that shardtoll serve printed.",
            )
        if method == "POST":
            if path != _UPDATE:
                return "404 Not Found", "There is no such page."
            origin = environ.get("HTTP_ORIGIN")
            # A proxy in front may speak https; equal names identify a page of ours.
            if origin is not None and origin.lower() not in (
                f"http://{host.lower()}",
                f"https://{host.lower()}",
            ):
                return "403 Forbidden", "Another site's page may not ask."
            if environ.get("HTTP_SEC_FETCH_SITE", "same-origin") != "same-origin":
                return "403 Forbidden", "Another site's page may not ask."
            length = environ.get("CONTENT_LENGTH") or ""
            if not length.isdecimal():
                return "411 Length Required", "The request must say how long it is."
            # By its digits first: Python reads no number of thousands of them.
            if len(length.lstrip("0")) > len(str(BODY_MOST)) or int(length) > BODY_MOST:
                return "413 Content Too Large", "The request is too long."
        elif method not in ("GET", "HEAD"):
            return "405 Method Not Allowed", "The server only shows."
        elif path not in _PATHS and not (path.startswith(_SUITES) and "/" in path[len(_SUITES) :]):
            return "404 Not Found", "There is no such page."
        if len(environ.get("QUERY_STRING", "")) > QUERY_MOST:
            return "414 URI Too Long", "The address is too long."
        return None

    def _known(self, host: str) -> bool:
        name = _host_name(host)
        if name in self._hosts:
            return True
        if self._token is None:
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _cookie_name(self, environ: Environ) -> str:
        # Cookies are shared by all ports of a host: two servers must not overwrite each other's.
        return f"shardtoll-{environ.get('SERVER_PORT', '')}"

    def _welcome(self, environ: Environ, start: Start) -> Iterable[bytes]:
        """Keep the token in a cookie and go on to the address without it.

        Not by a redirect: after one from another site's link, browsers hold a strict cookie back.
        """
        rest = [(k, v) for k, v in parse_qsl(environ["QUERY_STRING"], keep_blank_values=True) if k != "token"]
        target = escape("/" + (f"?{urlencode(rest, errors='replace')}" if rest else ""))
        body = (
            f'<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>shardtoll</title>'
            f'<meta http-equiv="refresh" content="0;url={target}"><p><a href="{target}">Go on</a></p></html>'
        )
        cookie = f"{self._cookie_name(environ)}={self._token}; Path=/; HttpOnly; SameSite=Strict"
        return _answer(start, "200 OK", body, kind="text/html", more=[("Set-Cookie", cookie)])


_NO_STORE: Final = ("Cache-Control", "no-store")
_PLAIN: Final = (
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Frame-Options", "DENY"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)


def _answer(
    start: Start, status: str, text: str, kind: str = "text/plain", more: Iterable[tuple[str, str]] = ()
) -> list[bytes]:
    body = text.encode()
    policy = ("Content-Security-Policy", "default-src 'none'; base-uri 'none'; frame-ancestors 'none'")
    size = ("Content-Length", str(len(body)))
    start(status, [("Content-Type", f"{kind}; charset=utf-8"), size, policy, *_PLAIN, _NO_STORE, *more])
    return [body]


def _host_name(host: str) -> str:
    """Return the name in a Host header, without port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _cookie(environ: Environ, name: str) -> str:
    pairs = (part.strip().partition("=") for part in environ.get("HTTP_COOKIE", "").split(";"))
    return next((value for key, _, value in pairs if key == name), "")


def _same(given: str, token: str) -> bool:
    """Compare in a time that does not reveal how much of it was right."""
    return hmac.compare_digest(given.encode("utf-8", "backslashreplace"), token.encode())
