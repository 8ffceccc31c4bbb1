"""Published rows as plans, their scores, and calibration by a measured row."""

from __future__ import annotations

import csv

import pytest

from shardtoll.analyzers.forecast.rows.calibrate import anchors_of
from shardtoll.analyzers.forecast.rows.models import model_of
from shardtoll.analyzers.forecast.rows.parse import Abstain, read_row
from shardtoll.analyzers.forecast.rows.row_prices import priced_row
from shardtoll.analyzers.forecast.rows.row_scores import scores_of, weak_scaling
from tests.shared_inputs import shared

ROW = {
    "model": "Llama3.1-8B", "gpus": "8", "gpu": "H100-80G SXM", "framework": "torchtitan", "seq": "8192",
    "config": "FSDP8 lbs2 SAC bf16", "metric": "tps_per_gpu", "group": "ours",
}  # fmt: skip


def test_what_a_row_lacks_comes_from_its_config_and_its_models_name():
    read = read_row(ROW)
    plan, layout = read.plan, read.plan.layout
    assert (plan.model.layers, plan.model.kv_heads, plan.model.vocab) == (32, 8, 128256)
    assert (layout.dp, layout.sharding, layout.micro_batch, layout.checkpointing) == (
        8,
        "fsdp",
        2,
        "selective",
    )
    assert (plan.gpu, plan.precision, plan.compiled) == ("h100-sxm", "bf16", False)
    tp = read_row({**ROW, "gpus": "64", "config": "FSDP8 TP8 asyncTP compile fp8 lbs2"}).plan
    assert (tp.layout.dp, tp.layout.tp, tp.layout.async_tp, tp.compiled, tp.precision) == (
        8,
        8,
        True,
        True,
        "fp8",
    )


@pytest.mark.parametrize(("ep", "used"), [("8", 8), ("64", 32), ("24", 8), ("", 1)])
def test_experts_stand_on_as_many_ranks_of_a_stage_as_can_share_them(ep: str, used: int):
    row = {**ROW, "gpus": "64", "pp": "2", "ep": ep, "ga": "8", "mbs": "1"}
    read = read_row(row)
    assert (read.plan.layout.ep, "ep" in read.assumed) == (used, ep in ("64", "24"))


def test_a_degree_that_cannot_be_is_said_with_the_one_that_is_priced():
    row = {**ROW, "gpus": "64", "pp": "2", "ep": "24", "ga": "8", "mbs": "1"}
    assert read_row(row).replaced == ("ep 24 does not divide the 32 ranks of a stage: ep 8 is priced",)
    assert priced_row(1, row).replaced == read_row(row).replaced
    assert read_row({**row, "ep": "8"}).replaced == ()
    stages = read_row({**row, "ep": "", "pp": "3"})
    assert (stages.plan.layout.pp, stages.replaced) == (
        1,
        ("pp 3 cannot be with 64 GPUs and 32 blocks: pp 1 is priced",),
    )


def test_torchtitan_compiles_what_it_does_not_run_without_the_compiler():
    def compiled(**change: str) -> bool:
        return read_row({**ROW, **change}).plan.compiled

    assert compiled(config="FSDP8 fp8 lbs2")
    assert compiled(gpus="64", config="FSDP8 TP8 asyncTP lbs2")
    assert not compiled(config="FSDP8 fp8 lbs2", compile="0")
    assert not compiled(config="FSDP8 lbs2")
    assert not compiled(config="FSDP8 fp8 lbs2", framework="composer FSDP1", source="llm-foundry")


def test_torchtitan_cuts_a_local_batch_into_as_many_micro_batches_as_stages():
    def cut(config: str) -> tuple[int, int]:
        layout = read_row({**ROW, "gpus": "512", "config": config}).plan.layout
        return layout.micro_batch, layout.accumulation

    assert cut("FSDP16 TP8 PP4 1F1B lbs32") == (8, 4)
    assert cut("FSDP16 TP8 PP4 Interleaved 1F1B lbs32") == (4, 8)
    assert cut("FSDP16 TP8 PP4 1F1B lbs6") == (6, 1)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": "secret-9b"}, "model 'secret-9b' has no stated shape and no published one"),
        ({"gpus": ""}, "the number of GPUs is unknown"),
        ({"gpu": "abacus"}, "unknown GPU 'abacus'"),
        ({"gpu": "", "hardware": ""}, "the row names no GPU"),
        ({"model": " "}, "the row names no model, and no shape"),
        ({"gpus": "12", "tp": "8"}, "12 GPUs are not divisible by tp 8 x pp 1 x cp 1"),
        ({"metric": "iter_s", "config": "FSDP8"}, "the batch is unknown: neither mbs, ga nor gbs is stated"),
    ],
)
def test_a_row_that_states_too_little_has_a_reason(change, reason):
    with pytest.raises(Abstain) as told:
        read_row({**ROW, **change})
    assert str(told.value) == reason
    assert priced_row(1, {**ROW, **change}).reason == reason


def test_models_are_known_by_their_names():
    for name, layers in (("llama3-70b", 80), ("Llama 3.1-405B", 126), ("mixtral-8x7b", 32), ("gpt3-5b", 24)):
        model = model_of(name)
        assert model is not None, name
        assert model.layers == layers
    assert model_of("llama3-80b") is None


def test_a_measured_row_corrects_its_like():
    first = priced_row(1, ROW)
    assert first.step_s is not None
    slow = {**ROW, "tok_s_gpu": str(2 * 8192 / first.step_s.expected / 1.2)}
    anchors = anchors_of([slow])
    same = priced_row(1, ROW, anchors)
    assert same.step_s is not None
    assert same.step_s.expected == pytest.approx(1.2 * first.step_s.expected)
    assert same.calibrated_on == 1
    assert same.step_s.high / same.step_s.low < first.step_s.high / first.step_s.low
    other = priced_row(1, {**ROW, "framework": "composer FSDP1"}, anchors)
    assert other.calibrated_on is None


def test_scores_stand_beside_the_baseline():
    rows = [
        {**ROW, "gpus": str(gpus), "step_s": str(step)} for gpus, step in ((8, 2.0), (16, 2.1), (64, 2.2))
    ]
    (scores,) = scores_of([priced_row(place, row) for place, row in enumerate(rows, start=1)])
    assert (scores.rows, scores.priced, scores.measured) == (3, 3, 3)
    assert scores.mean is not None
    assert scores.constant_rate == pytest.approx(0.0317, abs=0.003)
    weak = weak_scaling(rows)
    assert weak.series == 1
    assert weak.no_change_median == pytest.approx(
        2.0 / 2.2 - 1, abs=1e-9
    ) or weak.no_change_median == pytest.approx(1 - 2.0 / 2.2)


def test_published_rows_stay_as_near_as_they_are():
    with shared("forecast", "e2e_train.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["group"] == "llm-foundry"][::9]
    priced = [priced_row(place, row) for place, row in enumerate(rows, start=1)]
    errors = sorted(abs(row.error) for row in priced if row.error is not None)
    assert len(errors) == len(rows)
    assert errors[len(errors) // 2] < 0.04


SIZED = {
    "model": "GPT-x", "gpus": "8", "gpu": "H100-80G SXM", "framework": "megatron", "seq": "2048",
    "layers": "32", "hidden": "4096", "heads": "32", "ffn": "16384", "vocab": "50000", "tp": "8", "mbs": "1",
    "ga": "8", "metric": "tok_s_gpu", "config": "",
}  # fmt: skip


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({}, None),
        ({"layers": "10000"}, "layers is 10,000: no training has more than 1,000"),
        ({"layers": "1e300"}, "layers is 1e+300: no training has more than 1,000"),
        ({"layers": "1000", "pp": "500", "gpus": "4000"}, "pp is 500: no training has more than 256"),
        (
            {"layers": "1000", "pp": "250", "gpus": "2000", "ga": "90000"},
            "micro-batches x stages is 22,500,000",
        ),
        ({"gpus": "8000000"}, "GPUs is 8,000,000: no training has more than 1,000,000"),
        ({"gpus": "1e30"}, "GPUs is 1e+30: no training has more than 1,000,000"),
        ({"gpus": "-8"}, "the number of GPUs is unknown"),
        ({"seq": "1e9"}, "sequence is 1,000,000,000: no training has more than 100,000,000"),
        ({"seq": "", "config": "seq" + "9" * 5000}, "seq has 5000 digits"),
        ({"hidden": "1e200"}, "hidden is 1e+200: no training has more than 1,000,000"),
        ({"gbs": "1e300"}, "accumulation is 1e+300: no training has more than 100,000"),
    ],
)
def test_sizes_that_no_training_has_are_a_reason(sizes: dict[str, str], reason: str | None):
    priced = priced_row(1, {**SIZED, **sizes})
    assert (priced.step_s is None) == (reason is not None)
    assert (priced.reason or "").startswith(reason or "")
