"""Layers that differ in numbers only are one place."""

from __future__ import annotations

import pandas as pd

from shardtoll.analyzers.shared.layer_names import pattern


def test_whole_parts_that_are_numbers_become_stars_and_unknown_stays():
    names = pd.Series(
        ["blocks.3.mlp2", None, "blocks.10.mlp2", "h1.2", "2", ""], dtype="string", index=[5, 4, 3, 2, 1, 0]
    )
    found = pattern(names)
    assert found.index.tolist() == names.index.tolist()
    assert found.isna().tolist() == [False, True, False, False, False, False]
    assert found.dropna().tolist() == ["blocks.*.mlp2", "blocks.*.mlp2", "h1.*", "*", ""]


def test_names_none_of_which_is_known():
    assert pattern(pd.Series([None, None], dtype="string")).isna().all()
    assert pattern(pd.Series([], dtype="string")).empty
