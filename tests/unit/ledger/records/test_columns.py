"""Columns laid out by hand against Arrow's own reading of the same values."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtoll.ledger.records.columns import column, int_column, word_column

KINDS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float64(): st.floats(allow_nan=False),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(st.characters(exclude_categories=["Cs"])),
}


@pytest.mark.parametrize("kind", list(KINDS), ids=str)
@given(data=st.data())
def test_a_column_reads_back_as_arrow_would_have_made_it(kind: pa.DataType, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | KINDS[kind], max_size=40))
    made = column(values, kind)
    made.validate(full=True)
    assert made.equals(pa.array(values, type=kind))
    assert made.null_count == values.count(None)


@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=40))
def test_numbers_of_an_array_read_back_with_what_is_unknown(values: list[int | None]) -> None:
    numbers = np.array([0 if value is None else value for value in values], dtype=np.int64)
    made = int_column(numbers, np.array([value is not None for value in values], dtype=np.bool_))
    made.validate(full=True)
    assert made.equals(pa.array(values, type=pa.int64()))
    assert int_column(numbers).equals(pa.array(numbers.tolist(), type=pa.int64()))


@given(st.lists(st.integers(-1, 2), max_size=40))
def test_words_stand_at_their_places_and_none_at_minus_one(places: list[int]) -> None:
    words = ["launch", "", "é"]
    made = word_column(np.array(places, dtype=np.int64), words)
    made.validate(full=True)
    assert made.to_pylist() == [None if place < 0 else words[place] for place in places]


@pytest.mark.parametrize(
    ("value", "kind"), [("x", pa.int64()), (1.5, pa.int64()), (2**63, pa.int64()), (3, pa.string())]
)
def test_a_value_of_another_type_is_refused(value: Any, kind: pa.DataType) -> None:
    with pytest.raises((TypeError, OverflowError)):
        column([value], kind)


def test_a_lone_surrogate_is_written_out() -> None:
    assert column(["a\udc80"], pa.string()).to_pylist() == ["a\\udc80"]


def test_recording_a_step_does_not_import_pandas() -> None:
    """Pandas takes a fifth of a second to import; a training step must not pay for it."""
    program = (
        "import sys, torch\n"
        "from shardtoll.profiler import audit\n"
        "with audit() as session, session.step():\n"
        "    torch.ones(3, 3) @ torch.ones(3, 3)\n"
        "assert 'pandas' not in sys.modules, 'pandas came in'\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
