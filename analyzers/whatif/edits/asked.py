"""Changes asked for in addition to the fixes of findings: another network, device, rank, dtype or bucket."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from shardtoll.analyzers.context.context import Context, make_context
from shardtoll.analyzers.findings.origins.like_with_like import alike_ranks
from shardtoll.analyzers.forecast.compute.cards import card_of, card_of_run
from shardtoll.analyzers.forecast.plan.other_gpu import compute_factors
from shardtoll.analyzers.replay.events.event_graph import Kind
from shardtoll.analyzers.roofline import load_fabric
from shardtoll.analyzers.whatif.edits.buckets import buckets_of
from shardtoll.analyzers.whatif.edits.draft import Draft
from shardtoll.analyzers.whatif.edits.edit import Edit
from shardtoll.analyzers.whatif.edits.latency_share import latency_share
from shardtoll.analyzers.whatif.edits.more_micro_batches import more_micro_batches
from shardtoll.analyzers.whatif.edits.removal import removal
from shardtoll.analyzers.whatif.edits.taken_out import BATCHES, COPIES, RECOMPUTE, taken_out
from shardtoll.ledger import UsageError

Floats = npt.NDArray[np.float64]

WIDTHS: Final = {
    **dict.fromkeys(("float64", "int64"), 8.0),
    **dict.fromkeys(("float32", "int32"), 4.0),
    **dict.fromkeys(("bfloat16", "float16"), 2.0),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "int8", "uint8"), 1.0),
}
SHORT: Final = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp8": "float8_e4m3fn"}


@dataclass(frozen=True, slots=True)
class Asked:
    """Changes that `whatif` was asked for; None for the others."""

    without: tuple[str, ...] = ()
    """`OP@LINE`: collectives of an operation asked for at a line; either part alone will do."""
    fabric: str | None = None
    network: float | None = None
    """Times the bandwidth."""
    gpu: float | str | None = None
    """Times the speed of the compute, or another GPU by its name or TOML file."""
    ranks: tuple[int, ...] = ()
    """Ranks that become as fast as their peers' median."""
    micro_batches: int | None = None
    dtype: str | None = None
    """The dtype of all messages that are wider."""
    bucket_bytes: int | None = None
    batch_ready: bool = False
    async_copies: bool = False
    no_recompute: bool = False


def asked_edits(context: Context, asked: Asked) -> list[Edit]:
    """Return the edits, in a fixed order. Raises UsageError for what the record cannot answer."""
    made = [_without(context, words) for words in asked.without]
    made += [_rank(context, rank) for rank in asked.ranks]
    if asked.fabric is not None:
        made.append(_fabric(context, asked.fabric))
    if asked.network is not None:
        made.append(_network(context, asked.network))
    if asked.gpu is not None:
        made.append(_other_gpu(context, asked.gpu) if isinstance(asked.gpu, str) else _gpu(asked.gpu))
    if asked.dtype is not None:
        made.append(_dtype(context, asked.dtype))
    if asked.bucket_bytes is not None:
        made.append(buckets_of(context, asked.bucket_bytes, latency_share(context)))
    if asked.micro_batches is not None:
        made.append(more_micro_batches(context, asked.micro_batches))
    for wanted, gone in (
        (asked.batch_ready, BATCHES),
        (asked.async_copies, COPIES),
        (asked.no_recompute, RECOMPUTE),
    ):
        if wanted:
            made.append(taken_out(context, gone))
    return made


def _without(context: Context, words: str) -> Edit:
    op, _, line = words.partition("@")
    frame = context.collectives
    chosen = np.ones(len(frame), dtype=np.bool_)
    if op:
        names = frame["op"].fillna("") + " " + frame["caused_by_op"].fillna("")
        chosen &= names.str.contains(re.escape(op)).to_numpy(dtype=bool)
    if line:
        places = (
            frame["source"].fillna("")
            + " "
            + frame["module"].fillna("")
            + " "
            + frame["parameter"].fillna("")
        )
        # Line 1 is not line 17.
        ends = r"(?!\d)" if line[-1].isdigit() else ""
        chosen &= places.str.contains(re.escape(line) + ends).to_numpy(dtype=bool)
    if not chosen.any() or not words.strip("@"):
        there = ", ".join(sorted(frame["op"].dropna().unique())[:6])
        raise UsageError(f"--without {words}: no collective is that", f"the run has {there}")
    rows = frame.index.to_numpy(dtype=np.int64)[chosen]
    return removal(context, rows, f"without {words}")


def _rank(context: Context, rank: int) -> Edit:
    peers = alike_ranks(context).peers
    if not peers.get(rank):
        raise UsageError(
            f"--rank {rank}=median: no other seen rank does the same work", "name a rank that has peers"
        )
    return Edit(
        f"rank {rank} as fast as its peers",
        lambda draft, _: draft.ranks_as((rank,), peers),
        as_recorded=True,
    )


def _scaled_bytes(context: Context, draft: Draft, factor: Floats, end: float) -> None:
    """Let collectives take as long as with so many times their bytes, by index in their frame.

    The ends of the band: twice the modelled share of latency stays, or no latency at all.
    """
    nodes = np.flatnonzero(draft.recorded.of_kinds((Kind.COLLECTIVE,)) & (draft.recorded.row >= 0))
    rows = draft.recorded.row[nodes]
    share = latency_share(context)[rows]
    share = share if end == 0 else np.minimum(1.0, 2 * share) if end < 0 else np.zeros(len(share))
    draft.duration[nodes] *= share + (1 - share) * factor[rows]


def _network(context: Context, times: float) -> Edit:
    factor = np.full(len(context.collectives), 1 / times)
    return Edit(
        f"a network with {times:g} times the bandwidth",
        lambda draft, end: _scaled_bytes(context, draft, factor, end),
        banded=True,
    )


def _gpu(times: float) -> Edit:
    def apply(draft: Draft, end: float) -> None:
        # Work that memory or the host bounds does not become faster: at the low end a half of it.
        gain = times if end >= 0 else 1 / (0.5 + 0.5 / times)
        draft.duration[draft.recorded.of_kinds((Kind.COMPUTE, Kind.OPTIMIZER))] /= gain

    return Edit(f"compute {times:g} times as fast", apply, banded=True)


def _other_gpu(context: Context, words: str) -> Edit:
    try:
        after = card_of(words)
    except UsageError as error:
        hint = f"{error.hint}, or a factor as x2"
        raise UsageError(f"--gpu: {error.message}", hint) from error
    before = card_of_run(context.ledger.run)
    if before is None:
        device = context.ledger.run.device or "an unknown device"
        raise UsageError(
            f"the run was on {device}: its compute says nothing of {after.name}",
            "give how many times as fast the compute is, as --gpu x2",
        )
    least, expected, most = compute_factors(before, after)

    def apply(draft: Draft, end: float) -> None:
        # The low end of the saving is the high end of the time.
        longer = most if end < 0 else least if end > 0 else expected
        draft.duration[draft.recorded.of_kinds((Kind.COMPUTE, Kind.OPTIMIZER))] *= longer

    return Edit(f"on {after.name}", apply, banded=True)


def _fabric(context: Context, name: str) -> Edit:
    other = make_context(context.ledger, load_fabric(name)).collectives
    mine = context.collectives
    columns = ("expected_ns", "band_low_ns", "band_high_ns")
    new = [other[column].to_numpy(dtype=np.float64, na_value=np.nan) for column in columns]
    old = mine["expected_ns"].to_numpy(dtype=np.float64, na_value=np.nan)
    if not (np.isfinite(new[0]) & np.isfinite(old)).any():
        raise UsageError(
            f"--fabric {name}: no collective of the run has a price on both fabrics",
            "name another fabric; `shardtoll fabrics` lists them",
        )

    def apply(draft: Draft, end: float) -> None:
        nodes = np.flatnonzero(draft.recorded.row >= 0)
        nodes = nodes[draft.recorded.of_kinds((Kind.COLLECTIVE,))[nodes]]
        rows = draft.recorded.row[nodes]
        # The low end of the saving is the high end of the price.
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = new[0 if end == 0 else 2 if end < 0 else 1][rows] / old[rows]
        draft.duration[nodes] *= np.where(np.isfinite(ratio), ratio, 1.0)

    return Edit(f"on fabric {name}", apply, banded=True)


def _dtype(context: Context, name: str) -> Edit:
    name = SHORT.get(name, name)
    if name not in WIDTHS:
        raise UsageError(f"--dtype {name} is no type of messages", f"give one of {', '.join(SHORT)}")
    was = context.collectives["dtype"].map(WIDTHS).to_numpy(dtype=np.float64, na_value=np.nan)
    with np.errstate(invalid="ignore"):
        factor = np.where(was > WIDTHS[name], WIDTHS[name] / was, 1.0)
    return Edit(
        f"messages in {name}",
        lambda draft, end: _scaled_bytes(context, draft, factor, end),
        banded=True,
    )
