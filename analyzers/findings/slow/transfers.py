"""Transfers against what the fabric allows: one row a collective, with what tells why one is slow."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from shardtoll.analyzers.context.active import Intervals, mean_active
from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.context.peers import PEER_OPS
from shardtoll.analyzers.roofline import Cost, Placement, measured_ranks, ranks_per_host
from shardtoll.analyzers.roofline.model.band import UNKNOWN_WIDTH
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.tally import codes, keep, numbered, with_columns

Floats = npt.NDArray[np.float64]

MARGIN: Final = {"measured": 1.25, "transferred": 1.4, "model": 1.5}
"""By the basis of a prediction: how far above the band of sound runs a transfer has to lie. A step is not a
benchmark: compute during a collective alone slows it by a fifth."""

LEAST_FACTOR: Final = {"measured": 1.5, "transferred": 1.75, "model": 2.0}
"""How many times the predicted time a transfer has to take at least."""

ALONE: Final = 0.1
"""A transfer has the links for itself if compute hides less of it, and fewer others run at the same time."""

LARGE_BYTES: Final = 1 << 24
"""Messages from which published sweeps repeat within a few percent."""

ALONE_MARGIN: Final = 1.1
ALONE_FACTOR: Final = 1.2
"""As `MARGIN` and `LEAST_FACTOR`, for large messages that have the links for themselves, if the very same was
measured. Such a time has to come again."""

GUESSED: Final = 1.5
"""Factor on both if a rate of the prediction, or a share of it, is a guess."""

SHARED_CORES_FACTOR: Final = 10.0
"""The same on CPUs, where ranks share cores with each other and with the transport. A rank that is not
scheduled delays a transfer by whole time slices, which says nothing of the fabric."""

COLUMNS: Final = (
    *("step", "rank", "op", "group", "group_id", "mesh_dim", "net", "match_id", "message_bytes", "dtype"),
    *("exposed_ns", "transfer_ns", "duration_ns", "arrival_ns", "busbw_gbps"),
    *("floor_ns", "expected_ns", "expected_latency_ns", "light_ns", "cost_id", "kernel"),
)
"""Columns of a collective that are read."""


def limit(cost: Cost, *, on_cpu: bool) -> float:
    """Return how many times its predicted time a transfer of this cost takes before it is slow."""
    return _limit(cost.basis, cost.high_ns / max(1, cost.time_ns), guessed=cost.guessed_rate, on_cpu=on_cpu)


def doubtful_limit(context: Context, cost: Cost, placement: Placement) -> float:
    """Return how many times its predicted time a transfer takes before it is slow, or may be.

    Less than `limit` if the band of sound runs was widened, as nobody measured groups of this size over links
    whose constants are guesses. From there on a link is judged that nobody has measured at all.
    """
    whole = limit(cost, on_cpu=context.on_cpu)
    if cost.basis != "transferred" or not cost.guessed_rate or of_its_size(context, cost, placement):
        return whole
    return min(whole, _limit("model", math.exp(UNKNOWN_WIDTH), guessed=True, on_cpu=context.on_cpu))


def of_its_size(context: Context, cost: Cost, placement: Placement) -> bool:
    """Whether the price rests on times of groups of this size: those of fewer or more ranks say less."""
    return cost.basis == "measured" or (
        cost.basis == "transferred" and placement.ranks in measured_ranks(context.fabric, placement)
    )


def _limit(basis: str, band: float, *, guessed: bool, on_cpu: bool) -> float:
    """Return the limit; `band`: how many times the predicted time sound runs take at most."""
    doubt = GUESSED if guessed else 1.0
    least = SHARED_CORES_FACTOR if on_cpu else doubt * LEAST_FACTOR[basis]
    return max(least, doubt * MARGIN[basis] * band)


@once
def rows(context: Context) -> pd.DataFrame:
    """Return the collectives that can be judged, one row a rank. moving_ns is exposed time less waiting,
    over_ns its part above the expected time.

    Messages that latency dominates are judged only on accelerators whose rates were measured. If ranks send
    different amounts, the bytes that each receives are not on record, and nothing is judged.
    """
    frame = context.in_alike[list(COLUMNS)]
    judgeable = frame["transfer_ns"].notna() & (frame["expected_ns"] > 0) & frame["match_id"].notna()
    frame = keep(frame, judgeable & frame["cost_id"].notna())
    measured = np.array([cost.basis != "model" for cost in context.costs] or [False])
    if context.on_cpu:
        measured[:] = False
    bulky = (2 * frame["expected_latency_ns"] < frame["expected_ns"]).to_numpy(dtype=bool, na_value=False)
    frame = keep(frame, measured[frame["cost_id"].to_numpy(dtype=np.int64)] | bulky)
    sizes = frame.groupby("match_id")["message_bytes"]
    frame = keep(frame, ~(sizes.transform("min") != sizes.transform("max")).fillna(False).astype(bool))
    over = (frame["transfer_ns"] - frame["expected_ns"]).clip(lower=0)
    moving = frame["transfer_ns"].where(frame["transfer_ns"] < frame["exposed_ns"], frame["exposed_ns"])
    judged: pd.DataFrame = with_columns(frame, moving_ns=moving, over_ns=over.where(over < moving, moving))
    return judged


@once
def judged(context: Context) -> pd.DataFrame:
    """Return one row a collective, on float columns: times of the transfer, predictions and ratios.

    `factor`: transfer over predicted_ns. `ratio`: factor over the factor from which a transfer is slow, or
    may be (`doubtful_limit`). `hidden`: share that compute hid, NaN if unknown. `others`: transfers of other
    dimensions or ops on the same cards or ranks for each of its own.

    The fastest transfer of a collective's ranks counts: the fabric did that much. A message is two rows, of
    its send and of its receive.
    """
    frame = rows(context)
    if frame.empty:
        return frame
    code, first = codes(frame, ("match_id", "op"))
    each = with_columns(frame, code=code)
    transfer = each["transfer_ns"].to_numpy(dtype=np.float64)
    exposed = each["exposed_ns"].to_numpy(dtype=np.float64, na_value=np.nan)
    end = each["arrival_ns"].to_numpy(dtype=np.float64, na_value=np.nan) + each["duration_ns"].to_numpy(
        dtype=np.float64, na_value=np.nan
    )
    hidden = 1 - np.divide(exposed, transfer, out=np.ones(len(each)), where=transfer > 0).clip(0, 1)
    of = pd.DataFrame(
        {"code": code, "transfer": transfer, "end": end, "hidden": hidden, "row": np.arange(len(each))}
    ).groupby("code")
    # A transfer of no time by the clock took less than the clock resolves: its rate is not infinite.
    fastest = of["transfer"].min().clip(lower=1).to_numpy(dtype=np.float64)
    ends = of["end"].max().to_numpy(dtype=np.float64)
    cost_id = first["cost_id"].to_numpy(dtype=np.int64)
    costs = context.costs
    predicted = np.array([max(1, cost.time_ns) for cost in costs], dtype=np.float64)[cost_id]
    transfers: pd.DataFrame = pd.DataFrame(
        {
            **{
                name: first[name].to_numpy()
                for name in ("op", "net", "dtype", "match_id", "group_id", "message_bytes", "kernel")
            },
            "cost_id": cost_id,
            "transfer_ns": fastest,
            "end_ns": ends,
            "predicted_ns": predicted,
            "factor": fastest / predicted,
            "hidden": of["hidden"].mean().to_numpy(dtype=np.float64),
        }
    )
    transfers["others"] = _others(context, frame, code, transfers)
    transfers["ratio"] = transfers["factor"] / _limits(context, transfers)
    return transfers


def _limits(context: Context, each: pd.DataFrame) -> Floats:
    """Return from which factor on each collective is slow, or may be."""
    costs, cost_id = context.costs, each["cost_id"].to_numpy(dtype=np.int64)
    limits: Floats = np.array(
        [doubtful_limit(context, *priced) for priced in zip(costs, context.places, strict=True)]
    )[cost_id]
    if context.on_cpu:
        return limits
    measured = np.array([cost.basis == "measured" for cost in costs])[cost_id]
    band = np.array([cost.high_ns / max(1, cost.time_ns) for cost in costs])[cost_id]
    alone = (each["hidden"] < ALONE) & (each["others"] < ALONE) & (each["message_bytes"] >= LARGE_BYTES)
    again = measured & alone.to_numpy(dtype=bool, na_value=False)
    return np.where(again, np.maximum(ALONE_FACTOR, ALONE_MARGIN * band), limits)


def _others(context: Context, frame: pd.DataFrame, code: npt.NDArray[np.int64], each: pd.DataFrame) -> Floats:
    """Return how many transfers of other dimensions or ops ran during each of its own, as a mean.

    On the cards of its nodes if it crosses nodes, else on its own ranks; of several the busiest counts.
    Groups of its own dimension that share the cards for the same op are in the prediction already (see
    `sharing.at_once`). Sent and received bytes go in opposite directions, and are one op.
    """
    per_host = ranks_per_host(context.ledger.run, context.fabric) or context.ledger.run.world_size
    crosses = np.array([cost.net_bytes > 0 for cost in context.costs])[
        frame["cost_id"].to_numpy(dtype=np.int64)
    ]
    rank = frame["rank"].to_numpy(dtype=np.int64)
    end = each["end_ns"].to_numpy(dtype=np.float64)[code]
    on = pd.DataFrame(
        {
            "code": code,
            "lane": np.where(crosses, rank // per_host, context.ledger.run.world_size + rank),
            "net": frame["net"].to_numpy(),
            "op": frame["op"].mask(frame["op"].isin(PEER_OPS), "message").to_numpy(),
            "begin": end - each["transfer_ns"].to_numpy(dtype=np.float64)[code],
            "end": end,
        }
    )
    on = on[on["end"].notna()].drop_duplicates(["code", "lane"])
    most_besides = np.zeros(len(each))
    if on.empty:
        return most_besides
    begin, ends = on["begin"].to_numpy(dtype=np.int64), on["end"].to_numpy(dtype=np.int64)
    lane = numbered(on, ("lane",))
    kind = numbered(on, ("lane", "net", "op"))
    whole, alike = (Intervals(number, begin, ends) for number in (lane, kind))
    sharing = mean_active(alike, alike)
    besides = np.divide(mean_active(whole, whole), sharing, out=np.ones(len(on)), where=sharing > 0) - 1
    np.maximum.at(most_besides, on["code"].to_numpy(dtype=np.int64), besides)
    return most_besides
