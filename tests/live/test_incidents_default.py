"""Incidents at the default level, where most steps are only watched: each is found as in surveys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shardtoll.cli.incidents import scoreboard
from shardtoll.cli.incidents.demo_incidents import verdict_of
from shardtoll.cli.incidents.verdict import by_time
from shardtoll.cli.jobs.forked import Forked
from shardtoll.ledger import read_run
from shardtoll.ledger.records.levels import surveyed_steps, watched_steps
from shardtoll.samples.incidents import CLEAN, NAMES
from tests.live.default_level import AS_THEY_ARE

pytestmark = [pytest.mark.live, pytest.mark.timeout(280)]

TRIES = 3
"""For what is told by times: another program on this machine may take them."""


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forked]:
    with Forked(tmp_path_factory.mktemp("server") / "ranks.log") as server:
        yield server


@pytest.mark.parametrize("name", [*NAMES, *CLEAN])
def test_an_incident_is_found_at_the_default_level_and_its_twin_is_silent(
    name: str, forked: Forked, tmp_path: Path
) -> None:
    for number in range(TRIES):
        folder = tmp_path / str(number)
        verdict = verdict_of(name, forked, folder, train=("tests.live.default_level", "train"))
        if verdict.good or not by_time(verdict):
            break
    assert verdict.good, scoreboard.problems(verdict)
    steps = read_run(folder / name / "bad").tables["steps"]
    assert surveyed_steps(steps)
    if name not in AS_THEY_ARE:
        assert len(watched_steps(steps)) > len(surveyed_steps(steps))
