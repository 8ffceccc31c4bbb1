"""Requests that fail: one plain line with the page's headers, one line on stderr, never a traceback."""

from __future__ import annotations

import json

import pytest
from werkzeug.test import Client

from shardtoll.dashboards.app.app import make_app
from shardtoll.dashboards.app.source import RunEntry, Snapshot
from tests import sample_reports

UPDATE = "/_dash-update-component"
SUITES = "/_dash-component-suites"


class Source:
    """One report, or one that fails as only a mistake of ours does."""

    single = True

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure

    def runs(self) -> list[RunEntry]:
        if self.failure is not None:
            raise self.failure
        return [RunEntry("a", "a", "run", None, 4, 2, None, None)]

    def report(self, name: str, wait_s: float = 0.0) -> Snapshot:
        if self.failure is not None:
            raise self.failure
        return Snapshot(sample_reports.report(), "1")

    def close(self) -> None:
        pass


def ask(source: Source, path: str, body: bytes | None = None, kind: str = "application/json"):
    client = Client(make_app(source, {"localhost"}))
    method = "GET" if body is None else "POST"
    given = {"HTTP_HOST": "localhost"}
    return client.open(path, method=method, data=body, content_type=kind, environ_overrides=given)


def asks_for_views() -> bytes:
    """What the page sends for its list of views."""
    known = ask(Source(), "/_dash-dependencies").json
    (views,) = (one for one in known if one["output"] == "views.children")
    inputs = [{**one, "value": None} for one in views["inputs"]]
    changed = [f"{one['id']}.{one['property']}" for one in inputs]
    output = {"id": "views", "property": "children"}
    sent = {"output": "views.children", "outputs": output, "inputs": inputs, "changedPropIds": changed}
    return json.dumps(sent).encode()


def check_plain(answer) -> None:
    assert answer.mimetype == "text/plain"
    assert (answer.text.count("\n"), len(answer.text) < 80) == (1, True)
    assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "body",
    [b"{}", b"[" * 900_000, b"null", b"[]", b"1", b'{"output":"x","inputs":[]}'],
    ids=["empty", "deep", "null", "list", "number", "unknown"],
)
def test_what_the_page_never_sends_is_a_bad_request(capfd: pytest.CaptureFixture[str], body: bytes):
    answer = ask(Source(), UPDATE, body)
    assert answer.status_code == 400
    check_plain(answer)
    told = capfd.readouterr().err
    assert told.startswith("shardtoll: serve: a request that cannot be read was refused (")
    assert (told.count("\n"), "Traceback" in told) == (1, False)


FORGED = [3, {}, [1], True, {"a": [None]}, [[]], "x"]


@pytest.mark.parametrize("value", FORGED, ids=repr)
def test_values_that_no_page_sends_are_refused_and_not_logged(
    capfd: pytest.CaptureFixture[str], value: object
):
    source = Source()
    known = ask(source, "/_dash-dependencies").json
    client = Client(make_app(source, {"localhost"}))
    statuses = set()
    for callback in known:
        if callback.get("clientside_function"):
            continue
        for forged in ("inputs", "state"):
            for place in range(len(callback[forged])):
                sent = {
                    part: [
                        {**one, "value": value if (part, at) == (forged, place) else None}
                        for at, one in enumerate(callback[part])
                    ]
                    for part in ("inputs", "state")
                }
                changed = [f"{one['id']}.{one['property']}" for one in callback["inputs"]]
                names = callback["output"].strip(".").split("...")
                ids = [dict(zip(("id", "property"), name.rsplit(".", 1), strict=True)) for name in names]
                outputs = ids if callback["output"].startswith("..") else ids[0]
                body = {"output": callback["output"], "outputs": outputs, "changedPropIds": changed, **sent}
                answer = client.open(
                    UPDATE, method="POST", json=body, environ_overrides={"HTTP_HOST": "localhost"}
                )
                statuses.add(answer.status_code)
                assert answer.status_code in (200, 204, 400), (sent, answer.text)
    if value != "x":
        assert 400 in statuses
    assert capfd.readouterr().err == ""


def test_what_flask_refuses_is_one_plain_line_too(capfd: pytest.CaptureFixture[str]):
    for status, answer in (
        (400, ask(Source(), UPDATE, b"{")),
        (415, ask(Source(), UPDATE, b"{}", "text/plain")),
        (404, ask(Source(), f"{SUITES}/dash/no-such.js")),
        (404, ask(Source(), f"{SUITES}/dash/../../x")),
        (404, ask(Source(), f"{SUITES}/no-such-library/x.js")),
    ):
        assert answer.status_code == status
        check_plain(answer)
    assert capfd.readouterr().err == ""


def test_a_mistake_of_ours_is_told_on_stderr_in_one_line_with_its_place(
    capfd: pytest.CaptureFixture[str],
):
    asks = asks_for_views()
    assert ask(Source(), UPDATE, asks).status_code == 200
    assert capfd.readouterr().err == ""
    answer = ask(Source(ZeroDivisionError("by\x1b[31m zero\nand more")), UPDATE, asks)
    assert answer.status_code == 500
    check_plain(answer)
    assert "ZeroDivisionError" not in answer.text
    told = capfd.readouterr().err
    assert told.startswith(f"shardtoll: serve: {UPDATE} failed in ")
    assert told.endswith("ZeroDivisionError: by\\x1b[31m zero\n")
    assert (told.count("\n"), "Traceback" in told) == (1, False)
