"""Who the server answers: the host asked for, the token, the size and origin of what is sent."""

from __future__ import annotations

import re
from http.cookies import SimpleCookie

import pytest
from werkzeug.test import Client

from shardtoll.dashboards.app.security import BODY_MOST, Guard, content_policy, is_loopback, new_token

TOKEN = "sesame-0123456789"
UPDATE = "/_dash-update-component"


def inner(environ, start):
    start("200 OK", [("Content-Type", "text/plain")])
    return [b"inside"]


def asked(path="/", token=None, method="GET", host="127.0.0.1:8050", cookie=None, body=b"{}", **headers):
    guard = Guard(inner, content_policy(["'sha256-x'"]), {"127.0.0.1", "localhost", "::1"}, token)
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    if cookie is not None:
        given["Cookie"] = cookie
    # Not base_url: werkzeug would take the host from it.
    overrides = {"HTTP_HOST": host, "SERVER_PORT": "8050"}
    return Client(guard, use_cookies=False).open(
        path, method=method, headers=given, environ_overrides=overrides, data=body
    )


@pytest.mark.parametrize("host", ["127.0.0.1:8050", "localhost:8050", "LOCALHOST", "[::1]:8050"])
def test_own_names_are_answered(host: str):
    assert asked(host=host).text == "inside"


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:8050", "10.0.0.7:8050", "", "[::2]"]
)
def test_other_names_are_refused_where_no_token_guards(host: str):
    """DNS rebinding: another site's name that resolves to loopback."""
    answer = asked(host=host)
    assert (answer.status_code, "inside" in answer.text) == (403, False)


def test_a_token_is_needed_with_every_request():
    assert asked(token=TOKEN).status_code == 403
    assert asked("/_dash-layout", token=TOKEN, cookie="shardtoll-8050=wrong").status_code == 403
    assert asked("/?token=wrong", token=TOKEN).status_code == 403
    assert asked("/?token=" + "%F0%9F", token=TOKEN).status_code == 403
    assert asked("/", token=TOKEN, cookie=f"other=1; shardtoll-8050={TOKEN}").text == "inside"
    # A cookie of a server on another port is not ours.
    assert asked("/", token=TOKEN, cookie=f"shardtoll-8051={TOKEN}").status_code == 403


def test_with_a_token_literal_addresses_are_names_too():
    assert asked(token=TOKEN, host="10.0.0.7:8050", cookie=f"shardtoll-8050={TOKEN}").text == "inside"
    assert asked(token=TOKEN, host="evil.example", cookie=f"shardtoll-8050={TOKEN}").status_code == 403


def test_the_link_leaves_a_strict_cookie_and_goes_on_without_the_token():
    answer = asked(f"/?run=a%22%3E&token={TOKEN}&view=timeline", token=TOKEN)
    assert answer.status_code == 200
    (kept,) = SimpleCookie(answer.headers["Set-Cookie"]).values()
    assert (kept.key, kept.value) == ("shardtoll-8050", TOKEN)
    assert (kept["httponly"], kept["samesite"], kept["path"]) == (True, "Strict", "/")
    target = re.search(r'content="0;url=([^"]*)"', answer.text)
    assert target is not None
    assert target.group(1) == "/?run=a%22%3E&amp;view=timeline"
    assert TOKEN not in answer.text


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("PUT", "/", 405),
        ("DELETE", UPDATE, 405),
        ("POST", "/", 404),
        ("GET", "/etc/passwd", 404),
        ("GET", "/assets/x", 404),
        ("GET", "/_reload-hash", 404),
        ("GET", "/_dash-component-suites/x", 404),
        ("GET", "/_dash-component-suites/dash/x.js", 200),
        ("GET", "/shardtoll.css", 200),
        ("GET", "/?" + "x" * 70_000, 414),
    ],
)
def test_only_what_the_page_needs_is_answered(method: str, path: str, status: int):
    assert asked(path, method=method).status_code == status


def test_requests_of_other_sites_pages_are_refused():
    assert asked(UPDATE, method="POST", Origin="http://127.0.0.1:8050").status_code == 200
    # A proxy that speaks https passes the name on that was asked for.
    proxied = {"method": "POST", "token": TOKEN, "cookie": f"shardtoll-8050={TOKEN}", "host": "localhost"}
    assert asked(UPDATE, **proxied, Origin="https://localhost").status_code == 200
    assert asked(UPDATE, **proxied, Origin="https://evil.example").status_code == 403
    assert asked(UPDATE, **proxied, Origin="https://localhost.evil.example").status_code == 403
    assert asked(UPDATE, **proxied, Origin="ftp://localhost").status_code == 403
    assert asked(UPDATE, method="POST").status_code == 200
    assert asked(UPDATE, method="POST", Origin="http://evil.example").status_code == 403
    assert asked(UPDATE, method="POST", Origin="null").status_code == 403
    assert asked(UPDATE, method="POST", Sec_Fetch_Site="cross-site").status_code == 403


def test_bodies_are_bounded():
    assert asked(UPDATE, method="POST", body=b"x" * (BODY_MOST + 1)).status_code == 413
    guard = Guard(inner, "", {"localhost"})
    told = []
    environ = {"REQUEST_METHOD": "POST", "PATH_INFO": UPDATE, "HTTP_HOST": "localhost"}
    guard(environ, lambda status, headers: told.append(status))
    # More digits than Python reads as a number: an exception here would answer without our headers.
    guard({**environ, "CONTENT_LENGTH": "9" * 5_000}, lambda status, headers: told.append(status))
    assert told == ["411 Length Required", "413 Content Too Large"]


def test_headers_of_every_answer():
    for answer in (asked(), asked("/nothing"), asked(host="evil.example"), asked(token=TOKEN)):
        headers = answer.headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["Cache-Control"] == "no-store"
        assert headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    policy = asked().headers["Content-Security-Policy"]
    assert "script-src 'self' 'sha256-x';" in policy
    assert "unsafe-eval" not in policy
    assert "unsafe-inline" not in policy.split("style-src")[0]


def test_tokens_differ_and_are_long():
    made = {new_token() for _ in range(100)}
    assert len(made) == 100
    assert min(map(len, made)) >= 43


@pytest.mark.parametrize(
    ("host", "is_it"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("0.0.0.0", False),
     ("::", False), ("10.0.0.1", False), ("localhost.evil.example", False), ("", False)],
)  # fmt: skip
def test_loopback(host: str, is_it: bool):
    assert is_loopback(host) is is_it
