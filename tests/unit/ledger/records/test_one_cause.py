"""Findings of one cause: why one rank is late, by what another finding says of it alone."""

from __future__ import annotations

from dataclasses import replace

from shardtoll.ledger import Finding, Where
from shardtoll.ledger.records.one_cause import of_one_parameter, of_own_reason, own_reason

READS = Finding("host-sync", "warning", "t", 5_000_000, None, None, None, 1, (3,), Where())
LATE = replace(READS, kind="straggler", toll_ns=9_000_000)


def test_what_a_late_rank_alone_does_says_why_it_is_late_wherever_it_stands():
    assert own_reason([READS, LATE], 3) == 0
    assert own_reason([LATE, READS], 3) == 1
    assert own_reason([READS, LATE], 2) is None
    assert own_reason([replace(READS, ranks=(2, 3)), LATE], 3) is None
    assert of_own_reason([LATE, READS]) == (1, 0)


def test_a_reason_costs_most_of_the_waiting_where_that_is_known():
    assert own_reason([replace(READS, toll_ns=4_000_000), LATE], 3) is None
    assert own_reason([replace(READS, toll_ns=4_000_000), replace(LATE, toll_ns=None)], 3) == 0
    assert own_reason([replace(READS, toll_ns=None), LATE], 3) is None
    assert of_own_reason([READS, replace(LATE, toll_ns=None)]) is None


def error(kind: str, *names: str) -> Finding:
    places = names if len(names) > 1 else ()
    return Finding(
        kind, "error", "t", None, None, None, None, 1, (0,), Where(parameter=names[0]), parameters=places
    )


def test_an_error_is_a_consequence_if_all_its_parameters_are_among_those_of_its_cause():
    unsynced, drift = error("unsynced-parameter", "a.w"), error("replica-drift", "a.w")
    assert of_one_parameter([unsynced, error("wrong-gradient", "a.w"), drift]) == {1: 0, 2: 0}
    assert of_one_parameter([unsynced, error("replica-drift", "a.w", "b.w", "c.w")]) == {}
    several = error("unsynced-parameter", "a.w", "b.w")
    assert of_one_parameter([several, error("wrong-gradient", "b.w")]) == {1: 0}
    assert of_one_parameter([drift, unsynced]) == {}


def test_equal_shards_and_gradients_that_add_up_cause_neither_wrong_gradients_nor_drift():
    assert of_one_parameter([error("identical-shards", "a.w"), error("wrong-gradient", "a.w")]) == {}
    assert of_one_parameter([error("missing-zero-grad", "a.w"), error("replica-drift", "a.w")]) == {}
