"""Collectives that have one fault, and the findings of one kind on them."""

from __future__ import annotations

from shardtoll.analyzers.roofline import Placement
from tests.unit.analyzers.fabrics import ROUND, predicted_ns
from tests.unit.analyzers.ledgers import MS, US, collective, ledger, on_ranks
from tests.unit.analyzers.of_kinds import running


def found(kind, rows, fabric=None, **given):
    return [f for f in running(kind)(ledger(rows, **given), fabric).findings if f.kind == kind]


def evidence(finding):
    return {item.label: item.value for item in finding.evidence}


PAIR = Placement(2, 1, 2)


IMPLICIT = {
    "implicit": True,
    "op": "all_gather",
    "phase": "forward",
    "module": "blocks.0.scale",
    "caused_by_op": "aten.mm.default",
    "placements_from": "(Shard(dim=0),)",
    "placements_to": "(Replicate(),)",
    "mesh_dim": "dp",
    "source": "train.py:12 (forward)",
    "message_bytes": 4096,
}


def twice(**change):
    """The same untouched memory reduced twice on both ranks, each rank with its own fingerprint."""
    return [
        collective(rank=rank, seq=seq, input_hash=100 + rank, input_content=9, issue_ns=seq * MS, **change)
        for rank in (0, 1)
        for seq in (1, 2)
    ]


def small(count, *, ranks=(0, 1), apart_ns=MS, **change):
    """`count` all_reduces of 256 bytes one after another on each rank."""
    return [
        collective(
            **{
                "rank": rank,
                "seq": seq,
                "message_bytes": 256,
                "phase": "optimizer",
                "issue_ns": seq * apart_ns,
                "start_ns": seq * apart_ns,
                "duration_ns": 500 * US,
                "exposed_ns": 500 * US,
                "group_size": len(ranks),
            }
            | change
        )
        for rank in ranks
        for seq in range(count)
    ]


def slow(count, factor, message_bytes=1 << 24, **change):
    """`count` all_reduces of 2 ranks that take `factor` times what ROUND predicts."""
    span = int(factor * predicted_ns(ROUND, "all_reduce", message_bytes, PAIR))
    return [
        row
        for seq in range(count)
        for row in on_ranks(
            (0, 1), seq=seq, message_bytes=message_bytes, duration_ns=span, exposed_ns=span, **change
        )
    ]
