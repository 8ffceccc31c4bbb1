"""Every analysis in turn: a ledger becomes a report."""

from __future__ import annotations

from collections.abc import Collection, Sequence
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
from shardtoll.analyzers.findings.replicas.replica_remedies import wrapped
from shardtoll.analyzers.findings.stages.pipeline_bubble import pipelines
from shardtoll.analyzers.findings.stragglers.step_waits import step_waits
from shardtoll.analyzers.findings.trust.overlaps import overlaps
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
from shardtoll.analyzers.shared.effort import with_effort
from shardtoll.analyzers.whatif.foresee import foreseen
from shardtoll.analyzers.whatif.saved_twice import saved_twice
from shardtoll.analyzers.whatif.savings import with_savings
from shardtoll.analyzers.whatif.small_warnings import as_infos
from shardtoll.ledger import FabricInfo, Finding, Ledger, Notice, Report, ranked
from shardtoll.ledger.records.remedy_key import with_keys
from shardtoll.ledger.report.report import ANALYZE
from shardtoll.ledger.tables.tables import to_table


class Analysis(NamedTuple):
    """One analysis by name; its module is imported when it runs."""

    module: str
    """Below `shardtoll.analyzers.findings`; its function is `find(context) -> list[Finding]`."""
    kind: str
    """The one kind of finding that it makes."""
    needs: str | None = None
    """The table without whose rows it finds nothing, and need not be imported."""

    def find(self, context: Context) -> list[Finding]:
        """Return what the analysis finds."""
        if self.needs is not None and not context.ledger.tables[self.needs].num_rows:
            return []
        findings: list[Finding] = import_module(f"shardtoll.analyzers.findings.{self.module}").find(context)
        assert all(finding.kind == self.kind for finding in findings), f"{self.module} makes another kind"
        return findings


ANALYSES: Final = (
    Analysis("replicas.gradients", "wrong-gradient", "values"),
    Analysis("replicas.doubled_reductions", "wrong-gradient"),
    Analysis("replicas.grad_norm", "wrong-gradient", "values"),
    Analysis("replicas.drift", "replica-drift", "values"),
    Analysis("replicas.buffer_drift", "replica-drift", "values"),
    Analysis("unsynced.unsynced_parameter", "unsynced-parameter", "parameters"),
    Analysis("values.non_finite", "non-finite"),
    Analysis("values.identical_shards", "identical-shards", "values"),
    Analysis("duplicates.duplicated_data", "duplicated-data", "values"),
    Analysis("needless.implicit_redistribute", "implicit-redistribute"),
    Analysis("needless.redundant_collective", "redundant-collective"),
    Analysis("needless.partly_used", "redundant-collective"),
    Analysis("needless.inverse_pairs", "redundant-collective"),
    Analysis("needless.equal_inputs", "redundant-collective"),
    Analysis("needless.reduced_before_ddp", "redundant-collective"),
    Analysis("needless.gathered_again", "redundant-collective"),
    Analysis("needless.gathered_logits", "gathered-logits"),
    Analysis("needless.sync_every_microbatch", "sync-every-microbatch"),
    Analysis("needless.latency_bound", "latency-bound"),
    Analysis("habits.needless_barrier", "needless-barrier"),
    Analysis("habits.constant_buffers", "constant-buffers"),
    Analysis("habits.unused_search", "unused-parameter-search"),
    Analysis("habits.missing_zero_grad", "missing-zero-grad"),
    Analysis("habits.expert_imbalance", "expert-imbalance"),
    Analysis("slow.cross_node_traffic", "cross-node-traffic"),
    Analysis("needless.wide_dtype", "wide-dtype"),
    Analysis("exposed.exposed_communication", "exposed-communication"),
    Analysis("slow.below_roofline", "below-roofline"),
    Analysis("stragglers.straggler", "straggler"),
    Analysis("exposed.serialized_collectives", "serialized-collectives"),
    Analysis("duplicates.duplicated_compute", "duplicated-compute"),
    Analysis("stalls.recompute", "recompute"),
    Analysis("stalls.data_stall", "data-stall"),
    Analysis("stalls.host_sync", "host-sync"),
    Analysis("stalls.launch_bound", "launch-bound", "stalls"),
    Analysis("stalls.transfer_stall", "transfer-stall"),
    Analysis("stalls.checkpoint_stall", "checkpoint-stall", "stalls"),
    Analysis("stages.pipeline_bubble", "pipeline-bubble"),
    Analysis("stages.pipeline_imbalance", "pipeline-imbalance"),
    Analysis("trust.unmatched_collectives", "unmatched-collectives"),
    Analysis("trust.unattributed_time", "unattributed-time"),
    Analysis("trust.incomplete_input", "incomplete-input"),
    Analysis("trust.clock_skew", "clock-skew"),
)
"""Every analysis, one file each; nothing registers itself. Findings of equal rank keep this order."""

FILLED: Final = (
    *("wait_ns", "transfer_ns", "busbw_gbps", "floor_ns", "expected_ns", "light_ns"),
    *("band_low_ns", "band_high_ns", "group_id", "match_id", "late_rank", "late_ns", "waited_ns"),
)
"""Columns of the collectives' table that are known only after matching the ranks."""


def context_of(ledger: Ledger, fabric: Fabric | None = None) -> Context:
    """Return what every analysis is given; `fabric` as `run` has it."""
    ledger = replace(ledger, run=with_device(ledger.run))
    if fabric is None:
        fabric = choose_fabric(ledger.run)
    elif fabric.intra is None:
        fabric = with_links(fabric, choose_fabric(ledger.run))
    if fabric.library == "nccl" and fabric.library_version is None:
        fabric = replace(fabric, library_version=ledger.run.nccl_version)
    return make_context(ledger, fabric)


def findings_of(context: Context, kinds: Collection[str] | None = None) -> tuple[Finding, ...]:
    """Return what the analyses find and what was found while the job ran, `ranked`.

    `kinds`: only analyses that make findings of these run.
    """
    made = [
        finding
        for analysis in ANALYSES
        if kinds is None or analysis.kind in kinds
        for finding in analysis.find(context)
    ]
    earlier = context.ledger.findings
    billed = wrapped(context, [*earlier, *without_repeated(earlier, one_line_each(context, made))])
    return ranked(with_keys(with_effort(billed)))


def collectives_of(context: Context) -> pa.Table:
    """Return the ledger's collectives with the columns that are known only after matching the ranks."""
    return filled(
        context.ledger.tables["collectives"],
        context.collectives[list(FILLED)].assign(match_id=match_ids(context)),
    )


def steps_of(context: Context) -> pa.Table:
    """Return the ledger's steps with the parts of watched ones, without what they waited."""
    return filled(context.ledger.tables["steps"], context.step_rows[list(DIVIDED)])


@ANALYZE.entry
def run(ledger: Ledger, fabric: Fabric | None = None) -> Report:
    """Match the ranks, run every analysis and return the report, its findings `ranked`.

    `fabric` None chooses one by the run's device and backend, whose links serve a fabric without any too.
    Findings made while the job ran, as those of the gradient check, are ranked with the others.
    """
    context = context_of(ledger, fabric)
    ledger, fabric = context.ledger, context.fabric
    findings = as_infos(context, with_savings(context, findings_of(context)))
    path, twice = foreseen(context, findings), overlaps(context, findings)
    unbilled = unbilled_time(context, findings)
    return Report(
        run=ledger.run,
        fabric=FabricInfo(name=fabric.name, provenance=provenance_of(context)),
        groups=(*ledger.groups, *context.matches.undescribed),
        tables={
            **ledger.tables,
            "collectives": collectives_of(context),
            "steps": filled(steps_of(context), step_waits(context)),
            "notices": _noticed(ledger.tables["notices"], crowded_notice(context)),
        },
        findings=findings,
        headline=sentence.sentence(context, findings, unbilled),
        roofline=step_roofline(context),
        pipelines=pipelines(context),
        unbilled=unbilled,
        traffic=op_traffic(context),
        sound_checks=sound_checks(context, findings),
        foreseen=path,
        overlaps=(*twice, *saved_twice(context, findings, path, twice)),
    )


def provenance_of(context: Context) -> str:
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
