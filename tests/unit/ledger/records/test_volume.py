"""Message and wire bytes against closed forms and against the traffic of a simulated ring."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtoll.ledger.records.volume import OPS, busbw_factor, wire_bytes

ROOTED = ("broadcast", "reduce", "gather", "scatter")
sizes = st.integers(min_value=0, max_value=2**50)
groups = st.integers(min_value=1, max_value=16384)


@pytest.mark.parametrize(
    ("op", "root", "other"),
    [
        ("all_reduce", 1800, 1800),
        ("all_gather", 900, 900),
        ("reduce_scatter", 900, 900),
        ("all_to_all", 900, 900),
        ("broadcast", 1200, 1200),
        ("reduce", 0, 1200),
        ("gather", 0, 300),
        ("scatter", 900, 0),
        ("send", 1200, 1200),
        ("recv", 0, 0),
        ("barrier", 0, 0),
    ],
)
def test_closed_forms_on_four_ranks(op, root, other):
    assert wire_bytes(op, 1200, 4, is_root=True) == root
    assert wire_bytes(op, 1200, 4, is_root=False) == other


@pytest.mark.parametrize(
    ("op", "factor"),
    [
        ("all_reduce", Fraction(14, 8)),
        ("all_gather", Fraction(7, 8)),
        ("reduce_scatter", Fraction(7, 8)),
        ("all_to_all", Fraction(7, 8)),
        ("gather", Fraction(7, 8)),
        ("scatter", Fraction(7, 8)),
        ("broadcast", Fraction(1)),
        ("reduce", Fraction(1)),
        ("send", Fraction(1)),
        ("recv", Fraction(1)),
    ],
)
def test_busbw_factors_of_nccl_tests_on_eight_ranks(op, factor):
    assert busbw_factor(op, 8) == float(factor)


@pytest.mark.parametrize("op", OPS)
def test_a_rank_alone_sends_nothing(op):
    assert wire_bytes(op, 4096, 1) == 0
    assert wire_bytes(op, 4096, 1, is_root=True) == 0


@pytest.mark.parametrize("op", [op for op in OPS if op != "barrier"])
def test_unknown_size_gives_unknown_bytes(op):
    assert wire_bytes(op, None, 4) is None


def test_unknown_op_and_impossible_group_are_unknown_not_zero():
    assert wire_bytes("mystery_exchange", 4096, 4) is None
    assert wire_bytes("all_reduce", 4096, 0) is None
    assert busbw_factor("mystery_exchange", 4) is None
    assert busbw_factor("all_reduce", 0) is None
    assert busbw_factor("barrier", 4) is None


@settings(deadline=None)
@given(size=sizes, n=groups)
def test_an_all_reduce_sends_what_its_two_halves_send(size, n):
    """Ring all-reduce is a reduce_scatter, then an all_gather; rounding up once can save one byte."""
    halves = (wire_bytes("reduce_scatter", size, n) or 0) + (wire_bytes("all_gather", size, n) or 0)
    whole = wire_bytes("all_reduce", size, n)
    assert whole is not None
    assert halves - 1 <= whole <= halves


@settings(deadline=None)
@given(op=st.sampled_from([op for op in OPS if op != "barrier"]), size=sizes, n=groups)
def test_wire_bytes_are_the_exact_ratio_rounded_up(op, size, n):
    """For the ops whose busbw factor is also what a rank sends, wire = ceil(factor x message)."""
    sent = wire_bytes(op, size, n, is_root=op == "scatter")
    assert sent is not None
    ratio = {"all_reduce": Fraction(2 * (n - 1), n), "gather": Fraction(1, n), "recv": Fraction(0)}.get(
        op, Fraction(1) if op in ("broadcast", "reduce", "send") else Fraction(n - 1, n)
    )
    exact = ratio * size if n > 1 else Fraction(0)
    assert 0 <= sent - exact < 1


@settings(deadline=None)
@given(part=st.integers(min_value=0, max_value=2**30), n=st.integers(min_value=2, max_value=64))
def test_bytes_of_all_ranks_sum_to_what_must_cross_the_wire(part, n):
    """With a message of n equal parts: what each receiver still lacks, each part sent once per receiver."""
    size = part * n

    def total(op: str) -> int:
        sent = [wire_bytes(op, size, n, is_root=rank == 0) for rank in range(n)]
        assert None not in sent
        return sum(value or 0 for value in sent)

    assert total("all_gather") == n * (n - 1) * part
    assert total("reduce_scatter") == n * (n - 1) * part
    assert total("all_reduce") == 2 * n * (n - 1) * part
    assert total("all_to_all") == n * (n - 1) * part
    assert total("gather") == total("scatter") == (n - 1) * part
    assert total("reduce") == (n - 1) * size


@pytest.mark.parametrize("n", [2, 3, 4, 7])
def test_ring_all_reduce_against_a_simulated_ring(n):
    """Send chunks round a ring as the algorithm does and count each rank's bytes."""
    chunk_bytes = 10
    sent = [0] * n
    sums = [[1 << (8 * rank) for _ in range(n)] for rank in range(n)]
    for turn in range(2 * (n - 1)):
        arriving = []
        for rank in range(n):
            chunk = (rank - turn) % n if turn < n - 1 else (rank + 1 - (turn - (n - 1))) % n
            arriving.append(((rank + 1) % n, chunk, sums[rank][chunk]))
            sent[rank] += chunk_bytes
        for rank, chunk, value in arriving:
            sums[rank][chunk] = sums[rank][chunk] + value if turn < n - 1 else value
    assert all(value == sum(1 << (8 * rank) for rank in range(n)) for row in sums for value in row)
    assert sent == [wire_bytes("all_reduce", chunk_bytes * n, n)] * n


@settings(deadline=None)
@given(op=st.sampled_from(OPS), size=sizes, n=groups)
def test_more_bytes_never_send_fewer(op, size, n):
    here, more = wire_bytes(op, size, n), wire_bytes(op, size + 1, n)
    assert here is not None
    assert more is not None
    assert more >= here


@pytest.mark.parametrize("op", ROOTED)
def test_is_root_changes_only_rooted_ops(op):
    flat = [other for other in OPS if other not in ROOTED]
    assert all(wire_bytes(o, 999, 4, is_root=True) == wire_bytes(o, 999, 4) for o in flat)
    differs = wire_bytes(op, 999, 4, is_root=True) != wire_bytes(op, 999, 4)
    assert differs == (op != "broadcast")
