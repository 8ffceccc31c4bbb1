"""Every analysis in turn: a ledger becomes a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Final, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from shardtoll.analyzers.bounds.step_roofline import step_roofline
from shardtoll.analyzers.context.context import Context, make_context
from shardtoll.analyzers.context.crowded import crowded_notice
from shardtoll.analyzers.context.divided import COLUMNS as DIVIDED
from shardtoll.analyzers.context.refuted import note
from shardtoll.analyzers.findings.needless.one_line import one_line_each
from shardtoll.analyzers.findings.replicas.overruled import without_repeated
from shardtoll.analyzers.findings.replicas.remedies import wrapped
from shardtoll.analyzers.findings.stages.pipeline_bubble import pipelines
from shardtoll.analyzers.findings.stragglers.step_waits import step_waits
from shardtoll.analyzers.findings.trust.unbilled_time import unbilled_time
from shardtoll.analyzers.headline import sentence
from shardtoll.analyzers.headline.op_traffic import op_traffic
from shardtoll.analyzers.headline.sound_checks import sound_checks
from shardtoll.analyzers.roofline import (
    Fabric,
    choose_fabric,
    hosts_note,
    other_device_note,
    sizes_note,
    with_device,
    with_links,
)
from shardtoll.ledger import FabricInfo, Finding, Ledger, Notice, Report, ranked
from shardtoll.ledger.report.report import ANALYZE
from shardtoll.ledger.tables.tables import to_table


class Analysis(NamedTuple):
    """One analysis by name; its module is imported when it runs."""

    module: str
    """Below `shardtoll.analyzers.findings`; its function is `find(context) -> list[Finding]`."""
    needs: str | None = None
    """The table without whose rows it finds nothing, and need not be imported."""

    def find(self, context: Context) -> list[Finding]:
        """Return what the analysis finds."""
        if self.needs is not None and not context.ledger.tables[self.needs].num_rows:
            return []
        findings: list[Finding] = import_module(f"shardtoll.analyzers.findings.{self.module}").find(context)
        return findings


ANALYSES: Final = (
    Analysis("replicas.gradients", "values"),
    Analysis("replicas.doubled_reductions"),
    Analysis("replicas.grad_norm", "values"),
    Analysis("replicas.drift", "values"),
    Analysis("replicas.buffer_drift", "values"),
    Analysis("replicas.unsynced_parameter", "parameters"),
    Analysis("values.non_finite"),
    Analysis("values.identical_shards", "values"),
    Analysis("duplicates.duplicated_data", "values"),
    Analysis("needless.implicit_redistribute"),
    Analysis("needless.redundant_collective"),
    Analysis("needless.partly_used"),
    Analysis("needless.inverse_pairs"),
    Analysis("needless.equal_inputs"),
    Analysis("needless.reduced_before_ddp"),
    Analysis("needless.gathered_again"),
    Analysis("needless.gathered_logits"),
    Analysis("needless.sync_every_microbatch"),
    Analysis("needless.latency_bound"),
    Analysis("habits.needless_barrier"),
    Analysis("habits.constant_buffers"),
    Analysis("habits.unused_search"),
    Analysis("habits.missing_zero_grad"),
    Analysis("habits.expert_imbalance"),
    Analysis("slow.cross_node_traffic"),
    Analysis("needless.wide_dtype"),
    Analysis("waiting.exposed_communication"),
    Analysis("slow.below_roofline"),
    Analysis("stragglers.straggler"),
    Analysis("waiting.serialized_collectives"),
    Analysis("duplicates.duplicated_compute"),
    Analysis("stalls.recompute"),
    Analysis("stalls.data_stall"),
    Analysis("stalls.host_sync"),
    Analysis("stalls.transfer_stall"),
    Analysis("stages.pipeline_bubble"),
    Analysis("stages.pipeline_imbalance"),
    Analysis("trust.unmatched_collectives"),
    Analysis("trust.unattributed_time"),
    Analysis("trust.incomplete_input"),
    Analysis("trust.clock_skew"),
)
"""Every analysis, one file each; nothing registers itself. Findings of equal rank keep this order."""

FILLED: Final = (
    *("wait_ns", "transfer_ns", "busbw_gbps", "floor_ns", "expected_ns", "light_ns"),
    *("band_low_ns", "band_high_ns", "group_id", "match_id", "late_rank", "late_ns", "waited_ns"),
)
"""Columns of the collectives' table that are known only after matching the ranks."""


@ANALYZE.entry
def run(ledger: Ledger, fabric: Fabric | None = None) -> Report:
    """Match the ranks, run every analysis and return the report, its findings `ranked`.

    `fabric` None chooses one by the run's device and backend, whose links serve a fabric without any too.
    Findings made while the job ran, as those of the gradient check, are ranked with the others.
    """
    ledger = replace(ledger, run=with_device(ledger.run))
    if fabric is None:
        fabric = choose_fabric(ledger.run)
    elif fabric.intra is None:
        fabric = with_links(fabric, choose_fabric(ledger.run))
    if fabric.library == "nccl" and fabric.library_version is None:
        fabric = replace(fabric, library_version=ledger.run.nccl_version)
    context = make_context(ledger, fabric)
    findings_of_all = one_line_each(
        context, [each for analysis in ANALYSES for each in analysis.find(context)]
    )
    findings = ranked(
        wrapped(context, [*ledger.findings, *without_repeated(ledger.findings, findings_of_all)])
    )
    return Report(
        run=ledger.run,
        fabric=FabricInfo(name=fabric.name, provenance=_provenance(context)),
        groups=(*ledger.groups, *context.matches.undescribed),
        tables={
            **ledger.tables,
            "collectives": filled(
                ledger.tables["collectives"],
                context.collectives[list(FILLED)].assign(match_id=match_ids(context)),
            ),
            "steps": filled(
                filled(ledger.tables["steps"], context.step_rows[list(DIVIDED)]), step_waits(context)
            ),
            "notices": _noticed(ledger.tables["notices"], crowded_notice(context)),
        },
        findings=findings,
        headline=sentence.sentence(context, findings),
        roofline=step_roofline(context),
        pipelines=pipelines(context),
        unbilled=unbilled_time(context, findings),
        traffic=op_traffic(context),
        sound_checks=sound_checks(context, findings),
    )


def _provenance(context: Context) -> str:
    """Return where the fabric's numbers come from, and what this job makes of them."""
    notes = (
        other_device_note(context.ledger.run, context.fabric),
        sizes_note(context.fabric, context.collectives["group_size"].unique().tolist()),
        hosts_note(context.ledger.run, context.fabric),
        note(context.refuted),
    )
    return "; ".join([context.fabric.provenance, *(text for text in notes if text)])


def filled(table: pa.Table, columns: pd.DataFrame) -> pa.Table:
    """Return the table with the columns of the frame in place of its own."""
    for name in columns:
        index = table.schema.get_field_index(name)
        field = table.schema.field(index)
        table = table.set_column(index, field, pa.array(columns[name], type=field.type, from_pandas=True))
    return table


def _noticed(table: pa.Table, notices: Sequence[Notice]) -> pa.Table:
    """Return the notices with those more that it does not have yet."""
    kinds = set(table.column("kind").to_pylist())
    more = [notice for notice in notices if notice.kind not in kinds]
    return pa.concat_tables([table, to_table("notices", more)]) if more else table


def match_ids(context: Context) -> pd.Series[int]:
    """Return the matches' numbers as the report has them: they count by first appearance."""
    codes, _ = pd.factorize(context.collectives["match_id"])
    numbers: pd.Series[int] = pd.Series(pd.arrays.IntegerArray(codes.astype(np.int64), codes < 0))
    return numbers
