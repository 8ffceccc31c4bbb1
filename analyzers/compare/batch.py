"""How many samples a step takes, as far as the job's data tells."""

from __future__ import annotations

import re
from typing import Final

import pandas as pd

from shardtoll.analyzers.two_runs.steps import Chosen
from shardtoll.ledger import Report
from shardtoll.ledger.answers.comparison import UNKNOWN_BATCH, Batch
from shardtoll.ledger.records.levels import in_steps
from shardtoll.ledger.tables.tables import to_frame
from shardtoll.ledger.words.human import plural

LOADER: Final = "DataLoader"
_FIRST: Final = re.compile(r"\[(\d+)")


def batch(report: Report, chosen: Chosen) -> Batch:
    """Return the parts of the effective batch in the steps that are compared.

    Rows and micro-batches are those that DataLoaders gave. Else they are the first dimension of the model's
    first tensor argument and its forward passes, if `checks=("data",)` kept them. Without either they are
    unknown: a matrix multiplication has rows, but no samples.

    The number of ranks with data of their own comes from the arguments' fingerprints, else from the loader's
    sampler; else it is unknown.
    """
    given = _given(report, chosen.surveyed or chosen.timed)
    loaded = _loaded(report, tuple(sorted({*chosen.timed, *chosen.surveyed})))
    if loaded.rows is None:
        return given
    return Batch(
        rows=loaded.rows,
        rows_of=loaded.rows_of,
        ranks=given.ranks or loaded.ranks,
        micro_batches=loaded.micro_batches,
        tokens=loaded.tokens,
    )


def _loaded(report: Report, numbers: tuple[int, ...]) -> Batch:
    """Return what DataLoaders gave in the median step: the last one of an epoch may have fewer samples."""
    fetched = to_frame(in_steps(report.tables["stalls"], numbers))
    fetched = fetched[(fetched["kind"] == "data") & (fetched["count"] > 0)]
    if fetched.empty:
        return UNKNOWN_BATCH
    # If there are several loaders, the first one's samples are the step's; those of the others go with them.
    fetched = fetched.dropna(subset=["samples"]).drop_duplicates(["step", "rank"])
    if fetched.empty:
        return UNKNOWN_BATCH
    batches = max(1, round(float(fetched["count"].median())))
    samples, told = float(fetched["samples"].median()), fetched["data_ranks"].dropna()
    return Batch(
        rows=round(samples / batches),
        rows_of=LOADER,
        ranks=int(told.iloc[0]) if told.nunique() == 1 else None,
        micro_batches=batches,
        tokens=_tokens(fetched, batches),
    )


def _tokens(fetched: pd.DataFrame, batches: int) -> int | None:
    """Return the tokens of a micro-batch; None if steps differ, as those of padded texts do."""
    each = (fetched["tokens"] / fetched["count"]).dropna()
    same = len(each) == len(fetched) and each.nunique() == 1 and batches > 0
    return round(float(each.iloc[0])) if same else None


def _given(report: Report, numbers: tuple[int, ...]) -> Batch:
    """Return what the model was given."""
    values = report.values
    inputs = values[(values["kind"] == "input") & values["step"].isin(numbers)]
    # A number has no dimension, so it gives no batch.
    inputs = inputs[[_FIRST.search(str(shape)) is not None for shape in inputs["shape"]]]
    if inputs.empty:
        return UNKNOWN_BATCH
    name = str(inputs["name"].iloc[0])
    mine = inputs[inputs["name"] == name]
    look = mine[(mine["step"] == mine["step"].iloc[0]) & (mine["nth"] == mine["nth"].iloc[0])]
    hashes = look["hash"].dropna()
    return Batch(
        rows=_leading(str(mine["shape"].iloc[0])),
        rows_of=f"model input {name}",
        ranks=int(hashes.nunique()) if len(hashes) == len(look) else None,
        micro_batches=int(mine.groupby(["step", "rank"])["nth"].nunique().max()),
    )


def _leading(shape: str) -> int | None:
    """Return the first dimension of `[64, 32]`."""
    dimension = _FIRST.search(shape)
    # More digits are no size of a tensor: the record may be anything.
    return int(dimension[1]) if dimension and len(dimension[1]) <= 15 else None


def words(batch_parts: Batch, world_size: int) -> str:
    """Return it as `64 (8 rows x 4 ranks x 2 micro-batches)`."""
    whole = batch_parts.effective(world_size)
    if whole is None:
        return "unknown (no DataLoader gave a batch, and no model inputs are on record)"
    own = batch_parts.ranks
    ranks = (
        f"{plural(own, 'rank')} with data of {'their' if own > 1 else 'its'} own"
        if own
        else f"{world_size} ranks"
    )
    passes = f"{batch_parts.micro_batches} micro-batch{'es' if batch_parts.micro_batches != 1 else ''}"
    tokens = batch_parts.effective_tokens(world_size)
    of_tokens = "" if tokens is None else f", {tokens:,} tokens"
    return f"{whole:,} ({batch_parts.rows:,} rows x {ranks} x {passes}{of_tokens})"
