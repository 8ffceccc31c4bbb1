"""Checkpoint intervals against brute force, goodput against a simulation, a batch that is kept or not."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtoll.analyzers.advise.batches import batch_advice
from shardtoll.analyzers.advise.failures import RESTART_S, failure_advice
from shardtoll.analyzers.shared.checkpoint_interval import LLAMA3, best_interval_s, goodput


@given(st.floats(1, 600), st.floats(0.5, 500))
def test_no_other_interval_is_clearly_better(blocked_s: float, mean_hours: float) -> None:
    mean_s = 3600 * mean_hours
    if blocked_s > mean_s / 4:
        return
    best = goodput(best_interval_s(blocked_s, mean_s), blocked_s, 0, mean_s)
    tried = [goodput(blocked_s * 1.2**power, blocked_s, 0, mean_s) for power in range(1, 80)]
    assert best >= max(tried) - 0.005


def test_goodput_is_what_a_simulated_job_keeps() -> None:
    interval, blocked, recovery, mean = 1000.0, 50.0, 200.0, 5000.0
    draw = random.Random(0)
    clock = done = 0.0
    next_failure = draw.expovariate(1 / mean)
    while done < 4e6:
        if next_failure > clock + interval + blocked:
            clock += interval + blocked
            done += interval
            continue
        clock = next_failure
        while True:  # failures during recovery start it again
            next_failure = clock + draw.expovariate(1 / mean)
            if next_failure > clock + recovery:
                clock += recovery
                break
            clock = next_failure
    assert goodput(interval, blocked, recovery, mean) == pytest.approx(done / clock, rel=0.03)


def test_published_rate_bytes_and_limits() -> None:
    advice = failure_advice(gpus=16384, parameters=405_000_000_000)
    assert advice.failures_per_day == pytest.approx(419 / 54)
    assert advice.checkpoint_bytes == 12 * 405_000_000_000
    assert advice.source == LLAMA3.source
    assert advice.goodput == max(value for _, value in advice.at_intervals)
    asynchronous = failure_advice(gpus=16384, parameters=405_000_000_000, asynchronous=True)
    assert asynchronous.goodput > advice.goodput
    assert failure_advice(gpus=8, parameters=10, failures_per_day=2.0).source == "given"
    assert best_interval_s(0, 100) == 0
    assert best_interval_s(500, 100) == 100


def test_a_kept_batch_changes_no_learning_rate() -> None:
    assert batch_advice(64, 1024).learning_rate_factor is None
    changed = batch_advice(64, 1024, before=16)
    assert changed.learning_rate_factor == (math.sqrt(4), 4)
    assert not changed.kept


def test_a_failure_costs_restart_load_and_half_an_interval() -> None:
    # 8 GPUs write 1 GB/s: 12 GB take 12 s to write and to load; one node fails rarely.
    advice = failure_advice(gpus=8, parameters=1_000_000_000)
    assert (advice.blocked_s, advice.load_s, advice.recovery_s) == (12, 12, RESTART_S + 12)
    assert advice.lost_s == advice.interval_s / 2
    assert not advice.measured
    # A measured stall of unknown bytes says nothing about the load: 64 nodes are assumed to load 64 GB/s.
    measured = failure_advice(gpus=512, parameters=64_000_000_000, blocked_s=3.0)
    assert measured.load_s == 12
    assert measured.write_gbps is None
    assert measured.measured
    stated = failure_advice(gpus=8, parameters=1_000_000_000, recovery_s=90.0)
    assert (stated.recovery_s, stated.load_s) == (90, None)
    assert stated.goodput > advice.goodput


def test_an_asynchronous_save_blocks_less_and_is_written_before_the_next() -> None:
    # 12 TB at 1 GB/s take 12,000 s; the copy takes 75 s on each of 8 GPUs.
    advice = failure_advice(gpus=8, parameters=10**12, failures_per_day=24.0)
    assert advice.asynchronous.blocked_s == 75
    assert best_interval_s(75, 3600) < advice.asynchronous.interval_s == 12000
    small = failure_advice(gpus=8, parameters=10**9, failures_per_day=24.0)
    assert small.asynchronous.interval_s == best_interval_s(small.asynchronous.blocked_s, 3600)
    assert small.asynchronous.goodput > small.goodput
