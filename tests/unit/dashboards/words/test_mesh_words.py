"""A mesh in words: a grid of the ranks, or dimensions that share them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardtoll.dashboards.facts.first_screen import first_facts
from shardtoll.dashboards.page.html import tables
from shardtoll.dashboards.words.mesh_words import mesh_words
from tests import sample_reports


@pytest.mark.parametrize(
    ("world", "mesh", "words"),
    [
        (16, {"dp": 4, "pp": 4}, "mesh dp=4 x pp=4"),
        (16, {"dp": 4, "pp": 4, "em": 2}, "mesh dims dp=4, pp=4, em=2 (overlapping)"),
        (16, {"tp": 2}, "mesh dim tp=2"),
        (16, {"tp": 2, "cp": 2}, "mesh dims tp=2, cp=2"),
        (16, {}, None),
    ],
)
def test_only_a_grid_of_the_ranks_is_a_product(world: int, mesh: dict[str, int], words: str | None):
    whole = sample_reports.report()
    report = replace(whole, run=replace(whole.run, world_size=world, mesh=mesh))
    assert mesh_words(report.run) == words
    said = words or "none found"
    assert (said in first_facts.run_line(report)) == bool(words)
    assert said.removeprefix("mesh ") in tables.facts(report)
