"""The whole: ranking, the report it fills, clean programs, and what importing it pulls in."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtoll.analyzers import run
from shardtoll.ledger import KINDS, Finding, Group, Report, analyze
from shardtoll.ledger.records.finding import ranked
from shardtoll.ledger.tables.tables import SCHEMAS, to_records
from tests.unit.analyzers.fabrics import MEASURED, MEASURED_GLOO
from tests.unit.analyzers.ledgers import MS, collective, compute, ledger, on_ranks, run_of, step

AVOIDABLE = {
    "implicit-redistribute",
    "redundant-collective",
    "latency-bound",
    "below-roofline",
    "duplicated-compute",
}


def finding(title, *, severity="warning", toll=None):
    return Finding(
        kind="straggler",
        severity=severity,
        title=title,
        toll_ns=toll,
        floor_ns=None,
        saving_ns=None,
        bytes=None,
        count=1,
        ranks=(),
    )


def test_errors_then_warnings_then_infos_each_by_toll_and_unknown_tolls_in_the_order_they_came():
    given_order = [
        finding("unknown b"),
        finding("cheap", toll=1),
        finding("dear info", toll=9, severity="info"),
        finding("unknown a", severity="info"),
        finding("error", severity="error"),
        finding("cheap twin", toll=1),
        finding("dear error", severity="error", toll=3),
        finding("nothing", toll=0),
    ]
    assert [found.title for found in ranked(given_order)] == [
        "dear error",
        "error",
        "cheap",
        "cheap twin",
        "nothing",
        "unknown b",
        "dear info",
        "unknown a",
    ]


def test_findings_made_while_the_job_ran_join_the_ranking():
    wrong = replace(finding("wrong", severity="error"), kind="wrong-gradient")
    rows = on_ranks((0, 1), implicit=True, caused_by_op="aten.mm.default")
    report = run(ledger(rows, findings=[wrong]))
    assert [found.kind for found in report.findings] == ["wrong-gradient", "implicit-redistribute"]


def test_the_report_is_filled_and_survives_json():
    report = run(ledger(on_ranks((0, 1)), computes=[compute()]), MEASURED)
    assert report.fabric.provenance == "measured on this machine"
    assert {name: table.schema for name, table in report.tables.items()} == SCHEMAS
    row = to_records("collectives", report.tables["collectives"])[0]
    assert None not in (row.wait_ns, row.transfer_ns, row.busbw_gbps, row.floor_ns)
    assert Report.from_json(report.to_json()).findings == report.findings


def test_the_ledger_finds_the_analyses_by_name():
    book = ledger(on_ranks((0, 1)))
    assert analyze(book).findings == run(book).findings


def test_an_empty_ledger_is_no_crash():
    report = run(ledger(steps=[]))
    assert [found.kind for found in report.findings] == ["incomplete-input"]


def test_the_ledger_is_not_changed():
    book = ledger(on_ranks((0, 1)))
    before = book.tables["collectives"]
    run(book)
    assert book.tables["collectives"].equals(before)


def block(phase, at, ranks=(0, 1), **change):
    """A collective with a matmul after it, as blocks of a model make them."""
    rows = [
        collective(
            **(
                {"rank": r, "seq": at, "phase": phase, "issue_ns": at * MS, "start_ns": at * MS,
                 "duration_ns": MS // 2, "exposed_ns": MS // 2, "group_size": len(ranks),
                 "input_hash": 1000 * r + at}
                | change
            )
        )
        for r in ranks
    ]  # fmt: skip
    work = [
        compute(
            rank=r, index=at, phase=phase, start_ns=at * MS + MS // 2, input_hash=77 * r + at, output_hash=r
        )
        for r in ranks
    ]
    return rows, work


def program(blocks):
    rows = [row for collectives, _ in blocks for row in collectives]
    work = [row for _, computes in blocks for row in computes]
    return rows, work


def ddp():
    """Twelve buckets reduced during backward."""
    return program([block("backward", at, message_bytes=1 << 16, caused_by_op="DDP") for at in range(12)])


def fsdp():
    """Each of ten blocks gathered in forward and again in backward, then its gradient scattered."""
    gather = {"op": "all_gather", "caused_by_op": "FSDP.unshard", "message_bytes": 1 << 14}
    scatter = {"op": "reduce_scatter", "caused_by_op": "FSDP.post_backward", "message_bytes": 1 << 14}
    blocks = []
    for at in range(10):
        blocks.append(block("forward", at, **gather, module=f"b{at}"))
    for at in range(10):
        # The bytes gathered in backward are those of forward.
        again, work = block("backward", 10 + 2 * at, **gather, module=f"b{9 - at}")
        again = [replace(row, input_hash=1000 * row.rank + 9 - at) for row in again]
        blocks += [(again, work), block("backward", 11 + 2 * at, **scatter, module=f"b{9 - at}")]
    return program(blocks)


def tensor_parallel():
    """Two all_reduces a block of activations, forward and backward, eight blocks."""
    return program(
        [
            block("forward" if at < 16 else "backward", at, message_bytes=1 << 13, mesh_dim="tp")
            for at in range(32)
        ]
    )


def two_dimensional():
    """FSDP over dp and tensor parallelism over tp, whose sub-groups share their names."""
    groups = tuple(
        Group(name, ranks, name)
        for name, ranks in (("tp", (0, 1)), ("tp", (2, 3)), ("dp", (0, 2)), ("dp", (1, 3)))
    )
    blocks = []
    for at in range(24):
        dim = ("tp", "dp")[at % 2]
        for group in groups:
            if group.name == dim:
                rows, work = block(
                    "forward",
                    at,
                    group.ranks,
                    group=dim,
                    mesh_dim=dim,
                    op=("all_reduce", "all_gather")[at % 2],
                )
                blocks.append((rows, work))
    rows, work = program(blocks)
    return rows, work, groups


@pytest.mark.parametrize("make", [ddp, fsdp, tensor_parallel])
@pytest.mark.parametrize("fabric", [None, MEASURED_GLOO], ids=["shipped", "measured"])
def test_clean_programs_have_no_avoidable_communication(make, fabric):
    rows, work = make()
    report = run(ledger(rows, computes=work), fabric)
    assert {found.kind for found in report.findings} & AVOIDABLE == set()
    assert all(found.severity == "info" for found in report.findings)


def test_a_clean_two_dimensional_program_stays_clean():
    rows, work, groups = two_dimensional()
    report = run(ledger(rows, computes=work, groups=groups, run=run_of(4, mesh={"dp": 2, "tp": 2})))
    assert {found.kind for found in report.findings} <= {"exposed-communication"}
    assert report.collectives["wait_ns"].notna().all()


maybe_ns = st.none() | st.integers(0, 10 * MS)
collectives = st.builds(
    collective,
    step=st.sampled_from([None, 0, 1]),
    rank=st.integers(0, 2),
    group=st.sampled_from(["pg", "tp", "ghost"]),
    group_size=st.sampled_from([2, 3]),
    seq=st.none() | st.integers(0, 3),
    op=st.sampled_from(["all_reduce", "all_gather", "all_to_all", "send", "barrier", "allreduce_mystery"]),
    dtype=st.sampled_from([None, "float32"]),
    message_bytes=st.none() | st.integers(0, 1 << 22),
    wire_bytes=st.none() | st.integers(0, 1 << 22),
    issue_ns=maybe_ns,
    start_ns=maybe_ns,
    duration_ns=maybe_ns,
    exposed_ns=maybe_ns,
    phase=st.sampled_from(["forward", "backward", "optimizer"]),
    implicit=st.sampled_from([None, True, False]),
    root=st.none() | st.integers(0, 2),
    input_hash=st.none() | st.integers(0, 1),
    module=st.sampled_from([None, "", "m"]),
    mesh_dim=st.sampled_from([None, "tp"]),
)
computes = st.builds(
    compute,
    step=st.sampled_from([None, 0, 1]),
    rank=st.integers(0, 2),
    duration_ns=maybe_ns,
    flops=st.integers(0, 10),
    input_hash=st.none() | st.integers(0, 1),
    output_hash=st.none() | st.integers(0, 1),
    replicated_over=st.sampled_from([None, "tp", "unknown_dim"]),
    constant=st.booleans(),
)


@settings(deadline=None, max_examples=30)
@given(st.lists(collectives, max_size=25), st.lists(computes, max_size=8))
def test_whatever_is_unknown_nothing_is_invented(rows, work):
    groups = (Group("pg", (0, 1, 2)), Group("tp", (0, 1), "tp"))
    steps = [step(number, rank) for number in (0, 1) for rank in range(3)]
    book = ledger(rows, computes=work, groups=groups, run=run_of(3), steps=steps)
    report = run(book)
    again = run(book)
    assert report.findings == again.findings
    for found in report.findings:
        assert found.kind in KINDS
        assert found.saving_ns is None or 0 <= found.saving_ns <= found.toll_ns
        assert found.saving_ns is None or found.remedy.counterfactual
        assert found.remedy is None or found.remedy.text
        assert "nan" not in found.title.lower().split()
    for row in to_records("collectives", report.tables["collectives"]):
        if row.wait_ns is not None:
            assert row.wait_ns + row.transfer_ns == row.duration_ns
    exposed = [f.toll_ns for f in report.findings if f.kind == "exposed-communication"]
    assert sum(exposed) <= sum(row.exposed_ns or 0 for row in rows) + len(exposed)


def test_importing_the_analyzers_needs_neither_torch_nor_plotly():
    code = (
        "import sys, shardtoll.analyzers; "
        "assert not {'torch', 'plotly', 'rich', 'typer', 'hta'} & set(sys.modules), sorted(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
