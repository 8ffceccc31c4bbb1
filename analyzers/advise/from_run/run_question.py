"""The question that a run asks: its model, batch and layout, as the values of a plan file."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from shardtoll.analyzers.advise.from_run.step_layout import checkpointing_of, degrees_of, sharding_of
from shardtoll.analyzers.advise.from_run.step_ops import attention_modules, precision_of, step_ops
from shardtoll.analyzers.advise.from_run.step_shape import shape_of, vocab_of
from shardtoll.analyzers.forecast.compute.cards import card_of_run
from shardtoll.ledger import Report, UsageError
from shardtoll.ledger.answers.training_plan import Layout


@dataclass(frozen=True, slots=True)
class Derived:
    """A run's values for a question, and how they were found."""

    values: dict[str, Any]
    """Keys of a plan file: model, current, sequence, gpu, precision, gpus_per_node."""
    notes: tuple[str, ...]
    step_ns: float | None
    """Time of the run's step on its slowest rank, the median over steps; None of a run without steps."""
    lost_ns: float = 0.0
    """The part of it that no layout changes: what `lost_ns` finds."""


def derive(report: Report, name: str) -> Derived:
    """Return what a run says of itself. Raises UsageError if it does not show a transformer's shape."""
    run = report.run
    degrees = degrees_of(report)
    ops = step_ops(report)
    step = shape_of(ops, degrees.tp, degrees.pp, degrees.cp, name)
    sharding, sequence_parallel = sharding_of(report, degrees)
    layout = Layout(
        dp=degrees.dp,
        sharding=sharding,
        shard_size=degrees.shard_size,
        tp=degrees.tp,
        sequence_parallel=sequence_parallel,
        pp=degrees.pp,
        cp=degrees.cp,
        ep=degrees.ep,
        micro_batch=step.micro_batch,
        accumulation=step.passes,
        checkpointing=checkpointing_of(ops),
    )
    model, has_head = step.model, step.has_head
    if not has_head:
        classes = _classes(report, model.hidden, degrees.tp)
        model, has_head = replace(model, vocab=classes or model.vocab), classes is not None
    layers = _all_layers(report, degrees.pp, model.layers)
    if layers is not None:
        model = replace(model, layers=layers)
    values: dict[str, Any] = {
        "model": {key: value for key, value in asdict(model).items() if value is not None},
        "current": {key: value for key, value in asdict(layout).items() if value is not None},
        "sequence": step.sequence,
        "precision": precision_of(report, ops),
    }
    card = card_of_run(run)
    if card is not None:
        values["gpu"] = card.key
    if run.ranks_per_host and run.gpu:
        values["gpus_per_node"] = run.ranks_per_host
    if run.fabric:
        values["fabric"] = run.fabric_toml or run.fabric
    notes = (
        f"The run has {model.layers} blocks of width {model.hidden:,}, {model.heads} heads "
        f"({model.kv_heads} of keys), {model.ffn:,} columns and {model.vocab:,} classes; "
        f"{step.micro_batch} x {step.sequence:,} tokens per micro-batch, {step.passes} per step.",
        f"Its layout comes from {degrees.source}.",
        *(() if has_head else (f"No rank shows its classes: {model.vocab:,} are assumed.",)),
    )
    step_ns = _step_ns(report)
    return Derived(values, notes, step_ns, 0.0 if step_ns is None else min(step_ns, lost_ns(report)))


def layout_of_values(values: dict[str, Any]) -> Layout:
    """Return the layout among a run's values."""
    return Layout(**values["current"])


def _classes(report: Report, hidden: int, tp: int) -> int | None:
    """Classes of the model by the ranks of other stages, the last one first; None if none has the head."""
    for rank in reversed(report.run.ranks_seen):
        with suppress(UsageError):
            classes = vocab_of(step_ops(report, rank), hidden, tp)
            if classes is not None:
                return classes
    return None


def _all_layers(report: Report, pp: int, least: int) -> int | None:
    """Blocks that all ranks' attentions are in; None if modules are unknown, or say no more than one rank.

    Stages whose blocks have other names each are counted together, as they need not hold equally many. If a
    stage numbers its own from 0, or no rank of some stage is seen, only a sum above `least` is used.
    """
    stages = attention_modules(report)
    together = frozenset().union(*stages)
    whole = len(stages) == pp > 1 and len(together) == sum(map(len, stages))
    return len(together) if whole or len(together) > least else None


def _step_ns(report: Report) -> float | None:
    steps = report.steps
    if steps.empty or steps["duration_ns"].isna().all():
        return None
    return float(steps.groupby("step")["duration_ns"].max().median())


def lost_ns(report: Report) -> float:
    """Return how much shorter the median step would be without them, at least.

    A rank that fetches or saves makes the others wait, so what it loses is the whole step's. It may be the
    late rank too, so the larger of both counts, and never their sum.
    """
    if report.run.source == "dry":
        return 0.0
    stalled: defaultdict[tuple[int, int], int] = defaultdict(int)
    for row in report.tables["stalls"].to_pylist():
        if row["kind"] == "data":
            stalled[row["step"], row["rank"]] += row["lost_ns"]
        elif row["kind"] == "checkpoint":
            stalled[row["step"], row["rank"]] += row["total_ns"] - (row["before_ns"] or 0)
    stragglers = [each for each in report.findings if each.kind == "straggler"]
    tolls = [each.toll_ns if each.saving_ns is None else each.saving_ns for each in stragglers]
    late_ns = max((toll for toll in tolls if toll is not None), default=0)
    by_step: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for row in report.tables["steps"].to_pylist():
        times = (row["duration_ns"], stalled[row["step"], row["rank"]], row["capture_ns"])
        by_step[row["step"]].append(times)
    whole, rest = [], []
    for rows in by_step.values():
        took_ns, stalls, captures = (list(column) for column in zip(*rows, strict=True))
        whole.append(max(took_ns))
        rest.append(max(0, max(took_ns) - min(captures) - max(*stalls, late_ns)))
    return float(median(whole) - median(rest)) if whole else 0.0
