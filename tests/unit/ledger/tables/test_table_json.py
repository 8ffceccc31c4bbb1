"""Tables as JSON text: the same as the json module makes of their rows."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from shardtoll.ledger.tables import table_json
from shardtoll.ledger.tables.table_json import rows_json


def expected(table):
    return json.dumps(table.to_pylist(), separators=(",", ":"))


@pytest.fixture
def table():
    return pa.table(
        {
            "whole": [0, -(2**63), 2**63 - 1, None],
            "real": [0.1, None, 1e22, -1.5e-7],
            "flag": [True, None, False, True],
            'te"xt': ['a"b\\', "ä\n\u2028\x00", None, "</script>"],
            "none": pa.nulls(4, pa.string()),
        }
    )


@pytest.mark.parametrize("rows", [1, 3, 4, 100])
def test_rows_read_as_the_json_module_writes_them(table, rows, monkeypatch):
    monkeypatch.setattr(table_json, "ROWS", rows)
    empty = table.slice(0, 0)
    text = "".join(rows_json(pa.concat_tables([empty, table, empty, table.slice(1, 2)])))
    assert text == expected(pa.concat_tables([table, table.slice(1, 2)]))


def test_no_rows(table):
    assert "".join(rows_json(table.slice(0, 0))) == "[]"
    assert "".join(rows_json(table.schema.empty_table())) == "[]"


def test_the_text_comes_in_pieces(table, monkeypatch):
    monkeypatch.setattr(table_json, "ROWS", 2)
    assert len(list(rows_json(table))) == 4
