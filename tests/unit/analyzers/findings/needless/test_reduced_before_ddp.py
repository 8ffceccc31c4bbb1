"""The program's own reductions before DDP's: proven by buckets that are equal on all ranks already."""

from __future__ import annotations

import pytest

from shardtoll.ledger.records import ddp_causes
from tests.unit.analyzers.ledgers import MS, collective, ledger, run_of, step
from tests.unit.analyzers.of_kinds import running

STEPS = 3
KIB = 1 << 10
OWN = {
    "message_bytes": 4 * KIB,
    "input_hash": (1, 2),
    "source": "t.py:3 (hook)",
    "reduce_op": "SUM",
    "parameter": "w",
}
BUCKET = {
    "message_bytes": 4 * KIB,
    "input_hash": 7,
    "caused_by_op": ddp_causes.REDUCER,
    "source": "t.py:9 (f)",
}


def found(*calls, steps=STEPS, ranks=2):
    rows = []
    for number in range(steps):
        for place, call in enumerate(calls):
            for rank in range(ranks):
                own = {key: value[rank] if isinstance(value, tuple) else value for key, value in call.items()}
                at_ns = (2 + 10 * place) * MS
                given = {"step": number, "rank": rank, "seq": number * len(calls) + place + 1}
                given["group_size"] = ranks
                rows.append(collective(**(given | {"issue_ns": at_ns, "start_ns": at_ns} | own)))
    timed = [step(number, rank) for number in range(steps) for rank in range(ranks)]
    findings = running("redundant-collective")(ledger(rows, steps=timed, run=run_of(ranks))).findings
    return [finding for finding in findings if "DDP reduces again" in finding.title]


def test_a_hook_reduces_what_ddp_reduces_again():
    (finding,) = found(OWN, BUCKET)
    assert (finding.kind, finding.severity) == ("redundant-collective", "warning")
    assert finding.where.source == "t.py:3 (hook)"
    assert (finding.bytes, finding.toll_ns, finding.saving_ns) == (4 * KIB, 2 * MS, 2 * MS)
    assert finding.remedy.code.startswith("handle.remove()")
    assert "2 times smaller" in finding.remedy.text


@pytest.mark.parametrize("sent", [(1, 2, 3, 4), (1, 1, 1, 2)])
def test_more_than_two_ranks(sent):
    (finding,) = found(OWN | {"input_hash": sent}, BUCKET, ranks=4)
    assert "4 times smaller" in finding.remedy.text


def test_a_mean_changes_no_scale():
    (finding,) = found(OWN | {"reduce_op": "AVG"}, BUCKET)
    assert "smaller" not in finding.remedy.text


@pytest.mark.parametrize(
    "calls",
    [
        (OWN, BUCKET | {"input_hash": (7, 8)}),
        (OWN, BUCKET | {"input_hash": None}),
        (OWN, BUCKET, BUCKET | {"input_hash": (7, 8)}),
        (OWN | {"input_hash": 1}, BUCKET),
        (OWN | {"message_bytes": 2 * KIB}, BUCKET),
        (BUCKET, OWN),
        (OWN | {"phase": "forward"}, BUCKET),
        (OWN | {"parameter": None}, BUCKET),
        (OWN | {"op": "all_gather"}, BUCKET),
        (OWN | {"caused_by_op": "FSDP.post_backward"}, BUCKET),
        (BUCKET,),
    ],
    ids=[
        "ranks have other gradients",
        "unknown",
        "one bucket differs",
        "equal before the first one too: equal data",
        "less than the gradients",
        "after DDP",
        "activations",
        "gradients of activations, as of a model cut by hand",
        "a gather",
        "another wrapper's",
        "DDP alone",
    ],
)
def test_silent(calls):
    assert found(*calls) == []


def test_one_step_proves_little():
    assert found(OWN, BUCKET, steps=1) == []
