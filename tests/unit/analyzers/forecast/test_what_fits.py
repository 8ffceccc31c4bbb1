"""Forecast, dry run and advice say the same of one peak on one GPU."""

import pytest

from shardtoll.analyzers.advise.search import Search
from shardtoll.analyzers.forecast.compute.cards import capacity_of
from shardtoll.analyzers.forecast.dry.played_machine import machine_of
from shardtoll.analyzers.forecast.memory.peak import outside_bytes
from shardtoll.analyzers.forecast.plan import FabricNetwork
from shardtoll.analyzers.forecast.rows.parse import read_row
from shardtoll.analyzers.forecast.rows.row_prices import priced_row
from shardtoll.analyzers.roofline import load_fabric
from shardtoll.ledger.answers.advice import Question
from shardtoll.ledger.answers.dry_step import DryMemory
from shardtoll.ledger.answers.forecast import Band
from shardtoll.ledger.answers.plan_memory import fits_in

ROW = {
    "group": "x", "model": "m", "gpu": "h100-sxm", "gpus": "8", "dp": "8", "shard": "FSDP", "tp": "1",
    "pp": "1", "mbs": "1", "ga": "1", "seq": "8192", "gbs": "8", "layers": "32", "hidden": "4096",
    "heads": "32", "kv_heads": "8", "ffn": "14336", "vocab": "128256", "precision": "bf16",
    "framework": "torchtitan",
}  # fmt: skip


def test_a_limit_within_the_band_is_no_answer() -> None:
    assert [fits_in(1, 2, limit) for limit in (0.5, 1, 1.5, 2)] == [False, None, None, True]


@pytest.mark.parametrize(("micro_batch", "fits"), [("1", True), ("2", None), ("4", False)])
def test_forecast_dry_run_and_advice_agree_on_what_fits(micro_batch: str, fits: bool | None) -> None:
    row = {**ROW, "mbs": micro_batch, "gbs": str(8 * int(micro_batch))}
    capacity = machine_of("h100-sxm").memory_bytes
    assert capacity == capacity_of("h100-sxm") > 84e9
    plan = read_row(row).plan
    question = Question(plan.model, 8, "h100-sxm", 8192, int(row["gbs"]), framework="torchtitan")
    candidate = Search(question, FabricNetwork(load_fabric("h100x8-ib400")), capacity).candidate(plan.layout)
    priced = priced_row(1, row)
    assert priced.memory_gib is not None
    outside = outside_bytes(plan)
    low, high = (each * 2**30 + outside for each in (priced.memory_gib.low, priced.memory_gib.high))
    assert high == pytest.approx(candidate.memory_high_bytes)
    dry = DryMemory(0, Band(candidate.memory_bytes, low, high), capacity, {}, (), ())
    assert (priced.fits, candidate.fits, dry.fits) == (fits, fits, fits)
