"""Constants keyed by NCCL's version: what a version lacks, and what it chooses against the times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardtoll.analyzers.roofline import (
    Placement,
    collective_cost,
    load_fabric,
    one_node,
    parse_fabric,
    to_toml,
)
from shardtoll.analyzers.roofline.machines.hardware import fabric_of_hardware
from shardtoll.analyzers.roofline.model.library import changes_since, parse_version
from shardtoll.analyzers.roofline.model.model import Model

H100 = load_fabric("h100x8-ib400")


def used(version: str | None, op: str, at: Placement) -> set[str]:
    model = Model(replace(H100, library_version=version), op, at)
    return {candidate.algorithm for candidate in model.candidates}


@pytest.mark.parametrize(
    ("text", "version"),
    [("2.21.5+cuda12.4", (2, 21, 5)), ("2.29.2", (2, 29, 2)), ("2.18", (2, 18)), ("", None), (None, None)],
)
def test_a_version_is_read(text: str | None, version: tuple[int, ...] | None):
    assert parse_version(text) == version


def test_versions_lack_what_came_later():
    assert "nvls" in used(None, "all_reduce", one_node(8))
    assert "nvls" in used("2.17.1", "all_reduce", one_node(8))
    assert "nvls" not in used("2.16.5", "all_reduce", one_node(8))
    assert "nvlstree" not in used("2.17.1", "all_reduce", Placement(16, 2, 8))
    assert "nvlstree" in used("2.18.1", "all_reduce", Placement(16, 2, 8))
    assert "pat" not in used("2.22.3", "all_gather", Placement(8, 8, 1))
    assert "pat" in used("2.23.4", "all_gather", Placement(8, 8, 1))


def test_todays_version_and_an_unknown_one_are_the_same():
    for op in ("all_reduce", "all_gather", "all_to_all"):
        for at in (one_node(8), Placement(64, 8, 8)):
            now = collective_cost(replace(H100, library_version="2.29.2"), op, 1 << 24, at)
            assert now == collective_cost(H100, op, 1 << 24, at)
    assert changes_since("nccl", None) == ()
    assert changes_since("rccl", (1, 0)) == ()


def test_a_version_that_underrates_a_hop_takes_that_algorithm_too_early_and_its_time():
    at, sizes = Placement(64, 8, 8), np.geomspace(1 << 16, 1 << 26, 400)
    old, now = (Model(replace(H100, library_version=text), "all_reduce", at) for text in ("2.23.4", None))
    then, today = old.choose(sizes), now.choose(sizes)
    assert (then.best_ns == today.time_ns).all(), "the times of algorithms are not the version's"
    assert (then.time_ns >= today.time_ns).all()
    slower = then.time_ns > today.time_ns
    assert {then.candidates[each].algorithm for each in then.index[slower]} == {"nvlstree"}
    size = int(sizes[slower][0])
    cost = collective_cost(replace(H100, library_version="2.23.4"), "all_reduce", size, at)
    assert cost is not None
    assert cost.floor_ns < cost.time_ns


def test_a_version_that_overrates_a_hop_takes_that_algorithm_later():
    at, sizes = Placement(64, 8, 8), np.geomspace(1 << 16, 1 << 34, 400)
    without = ("nvlstree", "tree Simple")
    taken = []
    for text in ("2.21.5", "2.22.3"):
        model = Model(replace(load_fabric("aws-p4de"), library_version=text), "all_reduce", at)
        names = [f"{each.algorithm} {each.protocol}" for each in model.candidates]
        choice = model.choose(sizes)
        taken.append(
            {int(size) for size, each in zip(sizes, choice.index, strict=True) if names[each] in without}
        )
    assert taken[0] < taken[1]


def test_the_version_is_kept_in_a_file_and_read_in_words_of_hardware():
    fabric = replace(H100, library_version="2.21.5")
    assert parse_fabric(to_toml(fabric), "x.toml").library_version == "2.21.5"
    told, _ = fabric_of_hardware("8x H100 SXM, NDR400, NCCL 2.18.3", 2, 16)
    assert told.library_version == "2.18.3"
    assert fabric_of_hardware("8x H100 SXM, NDR400", 2, 16)[0].library_version is None
