"""Analyses: the ledger in, findings out. Pure: nothing is printed, drawn, written or fetched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pyarrow as pa

from shardtoll.analyzers import (
    below_roofline,
    buffer_drift,
    clock_skew,
    cross_node_traffic,
    data_stall,
    doubled_reductions,
    duplicated_compute,
    duplicated_data,
    equal_inputs,
    exposed_communication,
    grad_norm,
    headline,
    host_sync,
    implicit_redistribute,
    incomplete_input,
    inverse_pairs,
    latency_bound,
    partly_used,
    pipeline_bubble,
    pipeline_imbalance,
    recompute,
    redundant_collective,
    replica_drift,
    replica_gradients,
    serialized_collectives,
    straggler,
    sync_every_microbatch,
    transfer_stall,
    unattributed_time,
    unmatched_collectives,
    unsynced_parameter,
    wide_dtype,
)
from shardtoll.analyzers.context import Context, make_context
from shardtoll.analyzers.overruled import without_repeated
from shardtoll.analyzers.ranking import ranked
from shardtoll.analyzers.refuted import note
from shardtoll.analyzers.remedy_wrapped import wrapped
from shardtoll.analyzers.roofline import Fabric, choose_fabric, hosts_note, other_device_note, with_links
from shardtoll.analyzers.step_roofline import step_roofline
from shardtoll.ledger import FabricInfo, Finding, Ledger, Report

__all__ = ["ANALYSES", "Context", "run"]

ANALYSES: Final[tuple[Callable[[Context], list[Finding]], ...]] = (
    replica_gradients.find,
    doubled_reductions.find,
    grad_norm.find,
    replica_drift.find,
    buffer_drift.find,
    unsynced_parameter.find,
    duplicated_data.find,
    implicit_redistribute.find,
    redundant_collective.find,
    partly_used.find,
    inverse_pairs.find,
    equal_inputs.find,
    sync_every_microbatch.find,
    latency_bound.find,
    cross_node_traffic.find,
    wide_dtype.find,
    exposed_communication.find,
    below_roofline.find,
    straggler.find,
    serialized_collectives.find,
    duplicated_compute.find,
    recompute.find,
    data_stall.find,
    host_sync.find,
    transfer_stall.find,
    pipeline_bubble.find,
    pipeline_imbalance.find,
    unmatched_collectives.find,
    unattributed_time.find,
    incomplete_input.find,
    clock_skew.find,
)
"""Every analysis, one file each; nothing registers itself."""

FILLED: Final = (
    *("wait_ns", "transfer_ns", "busbw_gbps", "floor_ns", "light_ns"),
    *("band_low_ns", "band_high_ns"),
)
"""Columns of the collectives' table that are known only after matching the ranks."""


def run(ledger: Ledger, fabric: Fabric | None = None) -> Report:
    """Match the ranks, run every analysis and return the report, dearest finding first.

    `fabric` None chooses one by the run's device and backend, whose links serve a fabric without any too.
    Findings made while the job ran, as those of the gradient check, are ranked with the others.
    """
    if fabric is None:
        fabric = choose_fabric(ledger.run)
    elif fabric.intra is None:
        fabric = with_links(fabric, choose_fabric(ledger.run))
    if fabric.library == "nccl" and fabric.library_version is None:
        fabric = replace(fabric, library_version=ledger.run.nccl_version)
    context = make_context(ledger, fabric)
    found = [each for find in ANALYSES for each in find(context)]
    findings = ranked(wrapped(context, [*ledger.findings, *without_repeated(ledger.findings, found)]))
    return Report(
        run=ledger.run,
        fabric=FabricInfo(name=fabric.name, provenance=_provenance(context)),
        groups=ledger.groups,
        tables={**ledger.tables, "collectives": _filled(ledger, context)},
        findings=findings,
        headline=headline.sentence(context, findings),
        roofline=step_roofline(context),
    )


def _provenance(context: Context) -> str:
    """Return where the fabric's numbers come from, and what this job makes of them."""
    notes = (
        other_device_note(context.ledger.run, context.fabric),
        hosts_note(context.ledger.run, context.fabric),
        note(context.refuted),
    )
    return "; ".join([context.fabric.provenance, *(text for text in notes if text)])


def _filled(ledger: Ledger, context: Context) -> pa.Table:
    table = ledger.tables["collectives"]
    for name in FILLED:
        at = table.schema.get_field_index(name)
        field = table.schema.field(at)
        values = pa.array(context.collectives[name], type=field.type, from_pandas=True)
        table = table.set_column(at, field, values)
    return table
