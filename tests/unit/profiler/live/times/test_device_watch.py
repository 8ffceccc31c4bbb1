"""Watched steps on a simulated device: their times are the device's, their causes those of surveyed steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.nn.parallel import DistributedDataParallel

from shardtoll.profiler import audit
from shardtoll.profiler.live.capture.keeping import _FLUSH_REGIONS
from shardtoll.profiler.live.session import capturing, kept, machine, session
from shardtoll.profiler.live.session.session import Level
from shardtoll.profiler.live.times import device_waits
from shardtoll.profiler.live.times.device_times import DeviceTimes
from shardtoll.profiler.live.values.fingerprint import Fingerprints
from tests.unit.profiler.live.times.test_device_capture import stalling, without_handles
from tests.unit.profiler.simulated_device import US, Event, SimulatedDevice, Stream

S = 1_000_000_000 * US
"""Far longer than the host takes for anything: what an idle device shows is never taken for a stall."""


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedDevice]:
    device = SimulatedDevice()
    monkeypatch.setattr(session, "device_of", lambda model: torch.device("cuda"))
    monkeypatch.setattr(capturing, "CudaDevice", lambda of: device)
    monkeypatch.setattr(machine, "_device_name", lambda of: "simulated")
    monkeypatch.setattr(Fingerprints, "prepare", lambda self, of: None)
    patch = device_waits.patch_device_waits
    monkeypatch.setattr(
        capturing,
        "patch_device_waits",
        lambda times, is_recording: patch(times, is_recording, event=Event, stream=Stream),
    )
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield device
    dist.destroy_process_group()


def audited(
    device: SimulatedDevice, step: Callable[[], Any], steps: int, level: Level = "schedule"
) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of `steps` steps, during none of which the host waited for the device."""
    with audit(level=level) as open_session:
        for _ in range(steps):
            with open_session.step():
                step()
        assert device.host.blocked == 0
    assert open_session.ledger is not None
    tables = open_session.ledger.tables
    return {name: tables[name].to_pylist() for name in ("steps", "collectives", "counts", "notices")}


def placed(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("op", "message_bytes", "phase", "module", "source", "caused_by_op"))


def test_a_watched_step_says_what_the_surveyed_one_says_that_it_repeats(
    device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    stalling(monkeypatch, device, 30 * S)

    def step() -> None:
        first = dist.all_reduce(torch.ones(4), async_op=True)
        second = dist.all_reduce(torch.ones(8), async_op=True)
        device.compute.work(100 * S)
        first.wait()
        with device.on(Stream(device.host)):
            second.wait()
        device.compute.work(20 * S)

    found = audited(device, step, 4)
    steps = found["steps"]
    assert [row["level"] for row in steps] == ["survey", "watch", "survey", "watch"]
    assert [row["step"] for row in steps] == [0, 1, 2, 3]
    for row in steps:
        assert (row["duration_ns"], row["exposed_comm_ns"]) == (150 * S, 30 * S)
        assert (row["unattributed_ns"], row["compute_ns"], row["idle_ns"]) == (120 * S, 0, 0)
    rows = found["collectives"]
    assert [row["exposed_ns"] for row in rows] == [30 * S, 0] * 4
    assert {(row["start_ns"], row["duration_ns"]) for row in rows} == {(None, None)}
    surveyed, watched = rows[:2], rows[2:4]
    assert [placed(row) for row in watched] == [placed(row) for row in surveyed]
    assert all(row["issued"] == row["recorded"] for row in found["counts"])
    texts = {notice["text"] for notice in found["notices"]}
    assert len(texts) == 1
    assert "known are the step's time and for how long its stream stood still" in texts.pop()
    # Each surveyed step says so, and the first watched one for all.
    assert [notice["step"] for notice in found["notices"]] == [0, 2, 1]


def test_events_of_watched_steps_are_used_again(device: SimulatedDevice) -> None:
    def step() -> None:
        device.compute.work(US)
        dist.all_reduce(torch.ones(4))
        # The device keeps up with the host.
        device.host.now = device.compute.done_at

    # Rows of at most so many steps wait to be made together: each and the gap after it has two events, and
    # two each around the call and the wait.
    audited(device, step, 2 * _FLUSH_REGIONS + 100, "watch")
    assert device.host.made <= (_FLUSH_REGIONS + 2) * 8


def test_watched_steps_that_the_device_has_passed_are_written_together(
    device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[int] = []
    append, append_batches = kept.Kept.append, kept.Kept.append_batches

    def counted(self: kept.Kept, *rows: Any) -> Any:
        steps = sum(each.step is not None for each in rows)
        if steps:
            writes.append(steps)
        return append(self, *rows)

    def batches(self: kept.Kept, rows: Any) -> None:
        writes.append(rows["steps"].num_rows)
        append_batches(self, rows)

    monkeypatch.setattr(kept.Kept, "append_batches", batches)
    monkeypatch.setattr(kept.Kept, "append", counted)

    def step() -> None:
        device.compute.work(US)
        dist.all_reduce(torch.ones(4))
        device.host.now = device.compute.done_at

    audited(device, step, 60, "watch")
    assert sum(writes) == 60
    # The first are written at once, as a job that dies young should leave what it did.
    assert writes[0] == 1
    assert max(writes) > 10
    assert len(writes) < 30


def test_a_watched_step_that_waits_for_its_rows_is_known_to_who_keeps_provisional_ones(
    device: SimulatedDevice,
) -> None:
    with audit(level="watch") as open_session:
        for _ in range(20):
            with open_session.step():
                device.compute.work(US)
                dist.all_reduce(torch.ones(4))
            device.host.now = device.compute.done_at
        watch = open_session._capture._watch
        waiting, making = watch.unwritten()
        assert not making
        assert 0 < len(waiting) < 20
        assert [each.region.step for each in waiting] == list(range(20 - len(waiting), 20))
    assert watch.unwritten() == ([], False)


def test_a_watched_functional_collective_is_waited_for_on_the_compute_stream(
    device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = DeviceTimes.wait_begun

    def late(self: DeviceTimes, stream: Any = None) -> Any:
        found = opened(self, stream)
        device.compute.work(40 * S)
        return found

    monkeypatch.setattr(DeviceTimes, "wait_begun", late)

    def step() -> None:
        result = funcol.all_reduce(torch.ones(4), "sum", dist.group.WORLD)
        result + 1

    found = audited(device, step, 2, "watch")
    assert [row["exposed_ns"] for row in found["collectives"]] == [40 * S] * 2
    assert [(row["duration_ns"], row["level"]) for row in found["steps"]] == [(40 * S, "watch")] * 2


def test_a_watched_collective_in_the_callers_stream_is_exposed_throughout(
    device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = DeviceTimes.wait_begun
    opens: list[object] = []

    def counting(self: DeviceTimes, stream: Any = None) -> Any:
        found = opened(self, stream)
        opens.append(found)
        device.compute.work(S)
        return found

    monkeypatch.setattr(DeviceTimes, "wait_begun", counting)
    works: list[Any] = []

    def step() -> None:
        works.append(dist.all_reduce(torch.ones(4), async_op=True))
        assert opens == []
        dist.all_reduce(torch.ones(8))

    found = audited(device, step, 1, "watch")
    # Around the call, and around the wait that follows it.
    assert len(opens) == 2
    assert [row["exposed_ns"] for row in found["collectives"]] == [0, 2 * S]


@pytest.mark.parametrize("handles", [True, False])
def test_streams_that_wait_for_a_side_streams_watched_collective_are_timed(
    device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch, handles: bool
) -> None:
    """As FSDP2 does it: no Work is waited for on the stream that computes."""
    if not handles:
        without_handles(monkeypatch)
    side = Stream(device.host)

    def step() -> None:
        with device.on(side):
            side.wait_stream(device.compute)
            dist.all_gather([torch.empty(4)], torch.ones(4))
            side.work(90 * S)
            gathered = side.record_event()
        device.compute.work(30 * S)
        device.compute.wait_event(gathered)
        device.compute.work(20 * S)

    found = audited(device, step, 2, "watch")
    assert [row["exposed_ns"] for row in found["collectives"]] == [60 * S] * 2
    assert [row["duration_ns"] for row in found["steps"]] == [110 * S] * 2


def test_what_c_plus_plus_waits_for_in_a_watched_step_is_its_last_bucket(
    device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 256))
    model = DistributedDataParallel(layers, bucket_cap_mb=0.1)
    original = DeviceTimes.drain_begun

    def begun(self: DeviceTimes, owner: Any) -> None:
        original(self, owner)
        device.compute.work(70 * S)

    monkeypatch.setattr(DeviceTimes, "drain_begun", begun)

    def step() -> None:
        dist.all_reduce(torch.ones(4), async_op=True)
        model(torch.ones(2, 256)).sum().backward()

    for _ in range(2):
        step()
    found = audited(device, step, 5)
    assert [row["level"] for row in found["steps"]] == ["survey", "survey", "survey", "watch", "watch"]
    assert {row["exposed_comm_ns"] for row in found["steps"]} == {70 * S}
    for number in range(5):
        rows = [row for row in found["collectives"] if row["step"] == number]
        assert len(rows) > 2
        assert [row["exposed_ns"] for row in rows] == [0] * (len(rows) - 1) + [70 * S]
        assert (rows[-1]["caused_by_op"] or "").startswith("DistributedDataParallel")


def test_a_watched_step_that_raises_takes_no_other_with_it(
    device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    stalling(monkeypatch, device, S)
    with audit(level="watch") as open_session:
        for number in range(3):
            try:
                with open_session.step():
                    device.compute.work(10 * S)
                    dist.all_reduce(torch.ones(4))
                    if number == 1:
                        raise KeyError("missing")
            except KeyError:
                device.compute.work(1000 * S)
    assert open_session.ledger is not None
    steps = open_session.ledger.tables["steps"].to_pylist()
    assert [(row["step"], row["duration_ns"]) for row in steps] == [(0, 11 * S), (2, 11 * S)]


def test_a_wait_by_keyword_is_timed_as_any(device: SimulatedDevice) -> None:
    def step() -> None:
        functional = torch.ops._c10d_functional
        result = functional.all_reduce(torch.ones(4), "sum", "0")
        functional.wait_tensor(tensor=result)

    rows = audited(device, step, 2, "watch")
    assert [notice for notice in rows["notices"] if notice["kind"] == "capture-stopped"] == []
    assert [row["op"] for row in rows["collectives"]] == ["all_reduce"] * 2
