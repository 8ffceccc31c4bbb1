"""The names of mesh dimensions, whole and flattened."""

from __future__ import annotations

import pytest

from shardtoll.ledger.records.mesh_names import NAMES, is_of, parts_of, plain_name


def test_no_name_is_of_two_kinds() -> None:
    names = [name for several in NAMES.values() for name in several]
    assert len(names) == len(set(names))
    assert [plain_name(name) for name in names] == names


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("dp", ["data"]),
        ("mesh_TP", ["tensor"]),
        ("pipeline_parallel", ["stages"]),
        ("dp_cp", ["data", "context"]),
        ("dp_shard_cp", ["data", "data", "context"]),
        ("dp_replicate", ["data"]),
        ("dp_rows", []),
        ("_", []),
        ("", []),
        (None, []),
    ],
)
def test_parts_of_a_name(name: str | None, kinds: list[str]) -> None:
    assert list(parts_of(name).values()) == kinds


def test_a_dimension_is_of_a_kind_if_all_of_it_is() -> None:
    assert is_of("dp_shard", "data")
    assert not is_of("dp_cp", "data")
    assert not is_of("rows", "data")
