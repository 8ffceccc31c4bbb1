"""Plain values come back as they were; whatever else a pickle holds is refused and never run."""

from __future__ import annotations

import datetime
import os
import pickle
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtoll.profiler.hang.plain_pickle import load_plain

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 200), 1 << 200) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner, inner, inner),
    max_leaves=20,
)  # fmt: skip


@given(PLAIN, st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_plain_values_come_back(value: Any, protocol: int) -> None:
    assert load_plain(pickle.dumps(value, protocol)) == value


def test_bytes_come_back():
    assert load_plain(pickle.dumps([b"", b"x" * 300], 4)) == [b"", b"x" * 300]


class _Runs:
    def __init__(self, what: Callable[..., Any], *arguments: Any) -> None:
        self.what = what, arguments

    def __reduce__(self) -> Any:
        return self.what


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    "value", [_Runs(os.system, "echo run > ran"), datetime.date(2020, 1, 1), {"a": {1}}, 1j, print, object()]
)
def test_whatever_names_code_is_refused(value: Any, protocol: int, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="plain values"):
        load_plain(pickle.dumps(value, protocol))
    assert list(tmp_path.iterdir()) == []


def test_persistent_ids_and_extensions_are_refused():
    for data in (b"\x80\x02X\x01\x00\x00\x00aQ.", b"\x80\x02\x82\x01.", b"Pabc\n."):
        with pytest.raises(ValueError, match="pickle"):
            load_plain(data)


def test_it_is_bounded_by_operations():
    data = pickle.dumps(list(range(1000)), 2)
    with pytest.raises(ValueError, match="more than 500 operations"):
        load_plain(data, 500)


def test_a_number_too_large_is_refused():
    with pytest.raises(ValueError, match="too large"):
        load_plain(pickle.dumps(1 << 100_000, 2))


def test_damage_is_one_error():
    whole = pickle.dumps({"entries": [{"a": 1, "b": (1, 2.0, "x", None, True)}] * 5}, 2)
    drawn = random.Random(0)
    for _ in range(500):
        data = bytearray(whole)
        for _ in range(drawn.choice((1, 3, 10))):
            data[drawn.randrange(len(data))] = drawn.randrange(256)
        cut = bytes(data[: drawn.randrange(1, len(data) + 1)])
        try:
            load_plain(cut)
        except ValueError:
            continue


def test_a_key_whose_hash_takes_for_ever_is_refused():
    """Tuples of tuples that the memo shares: their hash takes 2 to the power of their depth."""
    made = b"\x80\x02})q\x000"
    for depth in range(60):
        made += b"h" + bytes([depth]) + b"h" + bytes([depth]) + b"\x86q" + bytes([depth + 1]) + b"0"
    with pytest.raises(ValueError, match="neither text nor number"):
        load_plain(made + b"h\x3cK\x01s.")
