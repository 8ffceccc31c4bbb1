"""Efficiency from few GPUs to many, the batch kept, with what is lost on the way."""

from __future__ import annotations

from dataclasses import replace

from shardtoll.analyzers.advise.layouts import divisors
from shardtoll.analyzers.advise.search import Search
from shardtoll.ledger import FabricError
from shardtoll.ledger.answers.advice import Candidate, ScalePoint


def scaling(search: Search, best: Candidate) -> tuple[ScalePoint, ...]:
    """The best layout's kind on an eighth to four times the GPUs, other replicas and micro-batches.

    Sizes without links in the fabric are left out, as more nodes if it describes only one.
    """
    points: list[tuple[int, Candidate]] = []
    for factor in (1 / 8, 1 / 4, 1 / 2, 1, 2, 4):
        gpus = round(search.question.gpus * factor)
        candidate = best if factor == 1 else _best_at(search, best, gpus)
        if candidate is not None:
            points.append((gpus, candidate))
    if not points:
        return ()
    # Few GPUs may have to recompute because memory is short: the best point is 100 %, not the first.
    base = max(each.tokens_per_s_gpu.expected for _, each in points)
    # All points train on the same tokens: the least compute of all GPUs is what these need.
    work = min(each.compute_ns * gpus for gpus, each in points)
    price = search.question.price_per_gpu_hour
    return tuple(
        ScalePoint(
            gpus=gpus,
            words=each.words,
            tokens_per_s=each.tokens_per_s_gpu.expected * gpus,
            efficiency=each.tokens_per_s_gpu.expected / base,
            exposed_share=each.exposed_share,
            bubble_share=each.bubble_ns / each.step_ns.expected,
            other_share=each.other_ns / each.step_ns.expected,
            slower_compute_share=(each.compute_ns - work / gpus) / each.step_ns.expected,
            tokens_per_currency=None if price is None else each.tokens_per_s_gpu.expected * 3600 / price,
        )
        for gpus, each in points
    )


def _best_at(search: Search, best: Candidate, gpus: int) -> Candidate | None:
    layout = best.layout
    ranks = layout.tp * layout.pp * layout.cp
    question = search.question
    if gpus < 1 or gpus % ranks or question.sequences % (gpus // ranks):
        return None
    dp = gpus // ranks
    if dp * layout.cp * layout.tp % layout.ep:
        return None
    replica = question.sequences // dp
    layouts = []
    for micro_batch in divisors(replica):
        accumulation = replica // micro_batch
        if micro_batch > 64 or (layout.pp > 1 and accumulation < layout.pp):
            break
        if layout.chunks > 1 and accumulation % layout.pp:
            continue
        layouts.append(
            replace(
                layout,
                dp=dp,
                micro_batch=micro_batch,
                accumulation=accumulation,
                shard_size=_shards(layout.shard_size, dp),
            )
        )
    smaller = Search(replace(question, gpus=gpus), search.network, search.capacity_bytes, search.scale)
    try:
        fitting = smaller.fitting(smaller.run(layouts), 1)
    except FabricError:
        return None
    return fitting[0] if fitting else None


def _shards(size: int | None, dp: int) -> int | None:
    return size if size is not None and size < dp and dp % size == 0 else None
