from __future__ import annotations

import dataclasses
import math

import pandas as pd
import pyarrow as pa
import pytest

from shardtoll.ledger.tables.tables import (
    RECORDS,
    SCHEMAS,
    check,
    completed,
    to_batch,
    to_frame,
    to_records,
    to_table,
)

ABOVE_FLOAT = 2**53 + 1
"""The first whole number a float64 cannot hold."""


def test_every_field_of_a_record_is_a_column_and_only_optional_ones_take_null():
    for table, record in RECORDS.items():
        assert SCHEMAS[table].names == [field.name for field in dataclasses.fields(record)]
    steps, collectives = SCHEMAS["steps"], SCHEMAS["collectives"]
    filled = {"exposed_wait_ns", "exposed_move_ns", "waited_for_ns", "compute_beyond_ns"}
    filled |= {"asleep_ns", "slowed_compute_ns", "slowed_idle_ns", "parts_error_ns", "serves", "requests"}
    filled |= {"exposed_unsplit_ns"}
    assert {column.name for column in steps if column.nullable} == filled, (
        "what not every system or run tells"
    )
    assert collectives.field("step").nullable
    assert collectives.field("message_bytes").type == pa.int64()
    assert collectives.field("busbw_gbps").type == pa.float64()
    assert collectives.field("implicit").type == pa.bool_()
    assert not collectives.field("op").nullable


def test_records_come_back_equal(make):
    records = [make.collective(), make.collective(step=None, seq=None, implicit=None, source=None)]
    assert to_records("collectives", to_table("collectives", records)) == records


def test_whole_numbers_above_float_precision_survive_to_frame(make):
    table = to_table(
        "collectives",
        [
            make.collective(start_ns=ABOVE_FLOAT, message_bytes=None),
            make.collective(start_ns=None, message_bytes=ABOVE_FLOAT, input_hash=-(2**63)),
        ],
    )
    frame = to_frame(table)
    assert frame["start_ns"].dtype == pd.Int64Dtype()
    assert frame["start_ns"][0] == ABOVE_FLOAT
    assert frame["start_ns"][1] is pd.NA
    assert frame["message_bytes"][0] is pd.NA
    assert frame["message_bytes"][1] == ABOVE_FLOAT
    assert frame["input_hash"][1] == -(2**63)


def test_unknown_is_na_in_every_type_of_column(make):
    frame = to_frame(to_table("collectives", [make.collective(implicit=None, busbw_gbps=None, source=None)]))
    for column in ("implicit", "busbw_gbps", "source"):
        assert frame[column][0] is pd.NA, column
    assert frame["implicit"].dtype == pd.BooleanDtype()
    assert frame["busbw_gbps"].dtype == pd.Float64Dtype()


def test_an_empty_table_has_the_same_columns_and_types(make):
    empty = to_frame(SCHEMAS["collectives"].empty_table())
    full = to_frame(to_table("collectives", [make.collective()]))
    assert list(empty.dtypes) == list(full.dtypes)
    assert to_batch("collectives", []).num_rows == 0


def test_a_missing_value_that_must_be_known_is_refused(make):
    step = make.step()
    object.__setattr__(step, "rank", None)
    with pytest.raises(ValueError, match=r"steps\.rank is missing in 1 rows"):
        to_batch("steps", [step])


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_rate_that_is_no_number_is_refused(make, value):
    table = to_table("collectives", [make.collective(), make.collective(busbw_gbps=1.5)])
    check("collectives", table)
    index = table.schema.get_field_index("busbw_gbps")
    spoiled = table.set_column(index, table.schema.field(index), pa.array([None, value], pa.float64()))
    with pytest.raises(ValueError, match=r"collectives\.busbw_gbps holds NaN or infinity"):
        check("collectives", spoiled)


def test_another_schema_is_refused(make):
    with pytest.raises(ValueError, match="table steps does not have the ledger's schema"):
        check("steps", to_table("collectives", [make.collective()]))


def test_steps_of_an_earlier_version_are_completed_as_surveyed_ones(make):
    old = to_table("steps", [make.step()]).drop_columns(["level"])
    new = completed("steps", old)
    check("steps", new)
    assert new.column("level").to_pylist() == ["survey"]


def test_columns_of_text_are_the_rows_own_whatever_was_written_before(make):
    batches = [
        [make.collective(module=name) for name in names] for names in ("ab", "ab", "ba", "abc", "", "ab")
    ]
    for rows in batches:
        read = to_batch("collectives", rows).column("module").to_pylist()
        assert read == [row.module for row in rows]


def test_equal_words_of_a_frame_are_one_object(make):
    # A run of two million collectives repeats some hundred words.
    words = to_frame(to_table("collectives", [make.collective(module="blocks.3") for _ in range(3)]))[
        "module"
    ]
    assert words.dtype == "string"
    assert list(words) == ["blocks.3"] * 3
    assert len({id(word) for word in words}) == 1


def test_unknown_words_of_a_frame_stay_unknown(make):
    parts = [to_table("collectives", [make.collective(module=name)]) for name in ("a", None, "b", "a")]
    words = to_frame(pa.concat_tables(parts))["module"]
    assert words.isna().tolist() == [False, True, False, False]
    assert words.dropna().tolist() == ["a", "b", "a"]
