"""Traces found elsewhere: what their index says is right, where no other test holds a report to it."""

from __future__ import annotations

from functools import cache

import pytest

from shardtoll.analyzers import run
from shardtoll.ledger import Finding, Report
from shardtoll.profiler.traces import read_traces
from tests.shared_inputs import shared

TRAINING = (
    "prof.step()",
    "train_step",
    "loss",
    "gradient",
    "DistributedDataParallel",
    "no_sync",
    "optimizer",
)
"""What only a training loop can do anything about."""


@cache
def _report(path: str) -> Report:
    (job,) = read_traces([path], jobs=1, cache=False)
    return run(job.ledger)


def report_of(*parts: str) -> Report:
    return _report(str(shared("traces", "outside", *parts)))


def advice(found: Finding) -> str:
    return "" if found.remedy is None else f"{found.remedy.text}\n{found.remedy.code or ''}"


def headline(report: Report) -> str:
    assert report.headline is not None
    return report.headline


@pytest.mark.parametrize(
    ("name", "steps", "first"),
    [
        ("sglang_Qwen3-8B_decode", [("decode", 32)], "Inference (1 decode step of 32 requests): "),
        ("graph_execution", [("mixed", 46)], "Inference (1 mixed step of 46 requests): "),
    ],
)
def test_inference_has_its_steps_its_words_and_its_own_advice(
    name: str, steps: list[tuple[str, int]], first: str
) -> None:
    report = report_of("single", f"{name}.json.gz")
    assert report.run.workload == "inference"
    assert list(report.steps[["serves", "requests"]].itertuples(index=False, name=None)) == steps
    assert headline(report).startswith(first)
    assert "train" not in headline(report)
    for found in report.findings:
        assert not [word for word in TRAINING if word in advice(found)]
    # 206 GB and compute capability 9.4, also where the driver gave no name.
    assert report.run.device == "AMD Instinct MI300X"
    assert report.fabric.name == "mi300x8"
    assert "its one rank uses no links" in report.fabric.provenance


def test_a_predictor_on_mtia_is_inference_without_marked_steps() -> None:
    report = report_of("single", "mtia_inference_rank_0.json.gz")
    assert (report.run.workload, report.run.device) == ("inference", "MTIA ARTEMIS")
    assert report.collectives.empty, "waiting for an event is no barrier"
    assert headline(report).startswith("Inference: no communication is on record; compute takes")
    assert "gloo" not in report.fabric.name
    for found in report.findings:
        assert not [word for word in TRAINING if word in advice(found)]


def test_counting_tokens_for_a_dispatch_is_no_communication() -> None:
    report = report_of("single", "deepseek_train_h800.json.gz")
    assert (report.run.device, report.run.workload) == ("NVIDIA H800", "training")
    assert len(report.collectives) == 32
    assert not report.collectives["kernel"].str.contains("layout").any()


def test_a_broadcasts_root_waits_for_nobody_and_no_floor_is_refuted() -> None:
    report = report_of("amd_mi300x_ddp_4ranks")
    rows = report.collectives
    sent = rows[rows["op"] == "broadcast"]
    root = sent[sent["rank"] == sent["root"]]
    assert set(root["wait_ns"]) == {0}
    large = root.loc[root["message_bytes"].idxmax()]
    assert round(large["transfer_ns"] / 1e3, 1) == 15.3
    # The rate is that of the whole, on all ranks alike.
    assert (sent.groupby("match_id")["busbw_gbps"].nunique() == 1).all()
    assert "REFUTED" not in report.fabric.provenance
    for _, of_size in rows[rows["op"] == "all_reduce"].groupby("message_bytes"):
        assert (of_size["floor_ns"] <= of_size.groupby("match_id")["transfer_ns"].max().median()).all()


def test_what_ddp_sends_for_itself_gets_the_remedies_of_live_capture() -> None:
    report = report_of("amd_mi300x_ddp_4ranks")
    exposed = {f.where.op: advice(f) for f in report.findings if f.kind == "exposed-communication"}
    assert "broadcast_buffers=False" in exposed["broadcast"]
    assert "bucket_cap_mb" in exposed["all_reduce"]
    assert not any("agrees on its buckets" in text or "async_op" in text for text in exposed.values())


def test_waiting_for_data_is_found_in_steps_that_old_torch_marked_as_operators() -> None:
    report = report_of("single", "tb_resnet50_workers0_steps_as_operators.json.gz")
    (stall,) = (f for f in report.findings if f.kind == "data-stall")
    assert stall.toll_ns is not None
    assert round(stall.toll_ns / 1e6) == 59
    assert headline(report).startswith("Data loading costs most")
    assert "no links" in report.fabric.provenance, "one card has no network to speak of"


@pytest.mark.parametrize("name", ["distributed_info_not_found", "rank_not_found"])
def test_without_a_device_timeline_the_headline_says_that_nothing_is_known(name: str) -> None:
    report = report_of("single", f"{name}.json.gz")
    assert headline(report) == (
        "There is no device timeline, so compute, exposed communication and idle time are unknown; 6 "
        "collectives were issued; record the device's activities too."
    )
    assert all(f.kind == "incomplete-input" for f in report.findings)
    assert not any("audit(" in advice(f) for f in report.findings)


def test_one_gpu_alone_has_no_line_about_ranks() -> None:
    for name in ("profile_bs_512.json", "copies_76_percent.json.gz"):
        report = report_of("single", name)
        assert (report.run.ranks_seen, report.run.world_size) == ((0,), 1)
        assert "incomplete-input" not in {f.kind for f in report.findings}
