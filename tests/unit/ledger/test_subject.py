"""Which records a finding speaks of."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from shardtoll.ledger import Finding, Where
from shardtoll.ledger.finding import KINDS
from shardtoll.ledger.subject import OF_COMPUTES, OF_TIME, speaks_of, subject

ROWS = pd.DataFrame(
    [
        (0, "all_reduce", "aten.mm.default", "layers.0.mlp", "train.py:3 (step)", "tp", None),
        (1, "all_reduce", "aten.mm.default", "layers.1.mlp", "train.py:3 (step)", "tp", None),
        (0, "all_gather", None, "layers.10.mlp.up", "train.py:9 (step)", "dp", "w"),
        (1, "all_gather", None, None, None, "dp", None),
    ],
    columns=["rank", "op", "caused_by_op", "module", "source", "group", "parameter"],
)


def finding(ranks: tuple[int, ...] = (0, 1), **where: str) -> Finding:
    return Finding("redundant-collective", "warning", "x", 1, None, None, None, 1, ranks, Where(**where))


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ({}, []),
        ({"op": "all_gather"}, [2, 3]),
        ({"op": "aten.mm.default"}, [0, 1]),
        ({"group": "tp", "op": "all_reduce"}, [0, 1]),
        ({"module": "layers.0.mlp"}, [0]),
        ({"module": "layers.*.mlp"}, [0, 1]),
        ({"module": "layers.*.mlp.*"}, [2]),
        ({"module": "layers.*"}, []),
        ({"parameter": "w"}, [2]),
        ({"source": "train.py:3 (step)", "group": "dp"}, []),
        # No such column in this frame: nothing is known against it.
        ({"mesh_dim": "tp", "op": "all_reduce"}, [0, 1]),
    ],
)
def test_the_rows_that_fit_every_part(where: dict[str, str], rows: list[int]):
    assert list(ROWS.index[subject(finding(**where), ROWS)]) == rows


def test_only_its_ranks():
    assert list(ROWS.index[subject(finding((1,), op="all_reduce"), ROWS)]) == [1]


def test_of_an_empty_frame_nothing():
    assert subject(finding(op="all_reduce"), ROWS[:0]).empty


def test_a_name_is_no_pattern():
    odd = ROWS.assign(module="layers(0)+")
    assert list(odd.index[subject(finding(module="layers(0)+"), odd)]) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("kind", "table"),
    [
        ("redundant-collective", "collectives"),
        ("wrong-gradient", "collectives"),
        ("duplicated-compute", "computes"),
        ("straggler", "computes"),
        ("data-stall", None),
        ("pipeline-imbalance", None),
    ],
)
def test_what_stands_at_its_place_in_the_other_table_is_not_meant(kind: str, table: str | None):
    one = replace(finding(module="layers.0.mlp"), kind=kind)
    assert [name for name in ("collectives", "computes") if subject(one, ROWS, name).any()] == (
        [table] if table else []
    )


def test_kinds_with_a_rule_of_their_own_are_in_the_closed_list():
    assert {*OF_COMPUTES, *OF_TIME} < set(KINDS)
    assert {speaks_of(kind) for kind in KINDS} == {"collectives", "computes", None}
