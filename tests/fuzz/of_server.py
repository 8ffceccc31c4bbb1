"""Requests to the dashboard: forged callbacks, addresses and bodies. 400 is an answer, 500 is none."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import random
from pathlib import Path
from typing import Any

from shardtoll.dashboards.app.source import RunEntry, Snapshot
from shardtoll.ledger.records.errors import UsageError
from tests.fuzz.mutate import TEXTS, deep, hostile, of_bytes, of_tree
from tests.fuzz.seams import Attack

_UPDATE = "/_dash-update-component"
_PATHS = (
    "/",
    "/_dash-layout",
    "/_dash-dependencies",
    "/shardtoll.js",
    "/_dash-component-suites/dash/x.js",
    "/%00",
)


class _Source:
    """Two runs that stand still."""

    single = False

    def __init__(self) -> None:
        from tests import sample_reports
        from tests.fuzz.of_reports import pipelined

        self._reports = {"a": sample_reports.report(), "b": pipelined()}

    def runs(self) -> list[RunEntry]:
        """Return both."""
        return [RunEntry(name, name, "run") for name in self._reports]

    def report(self, name: str, wait_s: float = 0.0) -> Snapshot:
        """Return a run's report, or that there is none."""
        report = self._reports.get(name)
        return Snapshot(report, "1", error=None if report is not None else "no such run")

    def close(self) -> bool:
        """Nothing is open."""
        return False


def server() -> Attack:
    """Forged callbacks mostly; also addresses and bodies of any kind."""
    from werkzeug.test import Client

    from shardtoll.dashboards.app.app import make_app

    client = Client(make_app(_Source(), {"localhost"}))
    hosts = {"HTTP_HOST": "localhost"}
    known = json.loads(client.get("/_dash-dependencies", environ_overrides=hosts).text)
    callbacks = [_valid(each) for each in known if not each.get("clientside_function")]

    def attack(chance: random.Random, folder: Path) -> None:
        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            way = chance.random()
            if way < 0.08:
                text = chance.choice(TEXTS).encode("utf-8", "replace")
                path = chance.choice(_PATHS) + "?" + text.decode("latin-1").replace("\0", "%00")[:5_000]
                answer = client.get(path, environ_overrides=hosts)
            else:
                answer = client.post(
                    _UPDATE,
                    data=_body(callbacks, chance),
                    content_type="application/json",
                    environ_overrides=hosts,
                )
        assert answer.status_code < 500, f"{answer.status_code}: {said.getvalue()[:500]}"
        assert "Traceback" not in said.getvalue(), said.getvalue()[:2_000]
        if answer.status_code >= 400:
            raise UsageError("refused", f"status {answer.status_code}")

    return attack


def _body(callbacks: list[dict[str, Any]], chance: random.Random) -> bytes:
    body = copy.deepcopy(chance.choice(callbacks))
    for part in ("inputs", "state"):
        for each in body[part]:
            each["value"] = _sent(each["id"], chance)
    way = chance.random()
    if way < 0.45:
        places = [each for part in ("inputs", "state") for each in body[part]]
        for each in chance.sample(places, min(len(places), chance.randint(1, 3))):
            kept = isinstance(each["value"], (dict, list)) and chance.random() < 0.7
            each["value"] = of_tree(each["value"], chance) if kept else hostile(chance)
    elif way < 0.85:
        body = of_tree(body, chance)
    made = json.dumps(body).encode("utf-8", "surrogatepass")
    if way > 0.97:
        return deep(chance).encode()
    return of_bytes(made, chance) if way > 0.92 else made


def _sent(name: Any, chance: random.Random) -> Any:
    """Return what a page may send of this component."""
    run = chance.choice(("a", "b", "c", None))
    about = {"run": run, "version": "1", "only": "", "view": "timeline"}
    queries = (f"?run={run}", "?run=b&view=pipeline", "?run=a&view=timeline&zoom=x:1:2&ranks=0-1", "", None)
    return {
        "address": chance.choice(queries),
        "clock": 3,
        "seen": {**about, "state": [False, False, None]},
        "subject": about,
        "looked": about,
        "drawn": [run, "1"],
        "heard": {"query": "", "clear": 0, "fields": {"ranks": "0"}, "of": [run, "1", ""], "offered": []},
        "clear": 1,
        "filter-ranks": "0-1",
    }.get(name if isinstance(name, str) else "", chance.choice((None, [], ["tp"], "0")))


def _valid(callback: dict[str, Any]) -> dict[str, Any]:
    names = callback["output"].strip(".").split("...")
    outputs = [dict(zip(("id", "property"), name.rsplit(".", 1), strict=True)) for name in names]
    return {
        "output": callback["output"],
        "outputs": outputs if callback["output"].startswith("..") else outputs[0],
        "changedPropIds": [f"{each['id']}.{each['property']}" for each in callback["inputs"]][:1],
        "inputs": [dict(each) for each in callback["inputs"]],
        "state": [dict(each) for each in callback["state"]],
    }
