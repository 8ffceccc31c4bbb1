"""Times of a step and its waits on a device, against a simulated one whose times are known by hand."""

from __future__ import annotations

from typing import Any

import pytest

from shardtoll.profiler.live.times.device_times import DeviceReading, DeviceTimes
from tests.unit.profiler.simulated_device import US, SimulatedDevice, Stream


class Handle:
    """What a collective comes back with."""


class Bench:
    """A device, its times, and collectives that run on a stream of the transport's own."""

    def __init__(self, *, host_blocks: bool = False) -> None:
        self.device = SimulatedDevice()
        self.host = self.device.host
        self.compute = self.device.compute
        self.network = Stream(self.host)
        self.failures: list[Exception] = []
        self.times = DeviceTimes(
            self.device, self.host.now_ns, host_blocks=lambda _: host_blocks, on_failure=self.failures.append
        )

    def issue(self, owner: str, ns: int, handle: Any = None) -> None:
        """A collective of `ns`, once the compute stream is there, on the transport's stream."""
        self.network.wait_stream(self.device.current_stream())
        self.network.work(ns)
        self.times.issued(owner)
        self.times.handed_over(handle)

    def wait(self, owner: Any, host_ns: int = 0) -> None:
        opened = self.times.wait_begun()
        self.host.now += host_ns
        self.device.current_stream().wait_stream(self.network)
        self.times.wait_ended(opened, owner)

    def end(self) -> DeviceReading | None:
        events = self.times.end()
        assert events is not None
        while not events.ready():
            self.host.now += 10 * US
        return events.read()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_only_what_compute_does_not_hide_is_exposed(bench: Bench) -> None:
    bench.times.begin()
    bench.issue("a", 100 * US)
    bench.compute.work(70 * US)
    bench.wait("a")
    bench.compute.work(50 * US)
    assert bench.end() == DeviceReading(150 * US, (("a", 30 * US),))
    assert bench.host.blocked == 0


def test_a_hidden_collective_stalls_nothing(bench: Bench) -> None:
    bench.times.begin()
    bench.issue("a", 100 * US)
    bench.compute.work(170 * US)
    bench.wait("a")
    assert bench.end() == DeviceReading(170 * US, ())


def test_the_hosts_own_time_on_an_idle_device_is_no_stall(bench: Bench) -> None:
    bench.times.begin()
    bench.issue("a", 3 * US)
    bench.host.now += 20 * US
    bench.wait("a", host_ns=8 * US)
    reading = bench.end()
    assert reading == DeviceReading(28 * US, ())


def test_where_the_host_is_blocked_its_time_is_the_stall() -> None:
    bench = Bench(host_blocks=True)
    bench.times.begin()
    bench.issue("a", 0)
    bench.compute.work(5 * US)
    bench.wait("a", host_ns=40 * US)
    assert bench.end() == DeviceReading(40 * US, (("a", 35 * US),))


def test_an_earlier_steps_backlog_is_not_in_the_step(bench: Bench) -> None:
    bench.compute.work(500 * US)
    bench.times.begin()
    bench.compute.work(100 * US)
    assert bench.end() == DeviceReading(100 * US, ())


def test_nothing_is_read_before_the_device_has_passed_it(bench: Bench) -> None:
    bench.times.begin()
    bench.compute.work(100 * US)
    events = bench.times.end()
    assert events is not None
    assert not events.ready()
    bench.host.now += 100 * US
    assert events.ready()
    events.wait()
    assert events.read() == DeviceReading(100 * US, ())


def test_events_are_used_again_after_they_were_read(bench: Bench) -> None:
    for _ in range(3):
        bench.times.begin()
        bench.issue("a", 100 * US)
        bench.wait("a")
        bench.end()
    assert bench.host.made == 4


def test_a_wait_within_a_wait_counts_once(bench: Bench) -> None:
    bench.times.begin()
    bench.issue("a", 100 * US)
    outer = bench.times.wait_begun()
    bench.wait("inner")
    bench.times.wait_ended(outer, "a")
    assert bench.end() == DeviceReading(100 * US, (("a", 100 * US),))


def test_a_wait_of_another_stream_is_no_stall(bench: Bench) -> None:
    side = Stream(bench.host)
    bench.times.begin()
    with bench.device.on(side):
        bench.issue("a", 100 * US)
        bench.wait("a")
    bench.compute.work(10 * US)
    assert bench.end() == DeviceReading(10 * US, ())


def test_an_event_of_a_side_stream_stands_for_the_collective_waited_for_there(bench: Bench) -> None:
    """FSDP2: the all-gather runs and is waited for on a side stream, compute waits for that one's event."""
    side, further = Stream(bench.host), Stream(bench.host)
    bench.times.begin()
    with bench.device.on(side):
        bench.issue("gather", 100 * US)
        bench.wait("gather")
    done = side.record_event()
    bench.times.event_recorded(done, side)
    assert bench.times.stream_waits(done, bench.compute) == "gather"
    # Through a third stream, as HSDP's all-reduce stream waits for the reduce-scatter's.
    assert bench.times.stream_waits(done, further) is None
    later = further.record_event()
    bench.times.event_recorded(later, further)
    assert bench.times.stream_waits(later, None) == "gather"


def test_an_event_of_a_stream_without_collectives_stands_for_none(bench: Bench) -> None:
    copies = Stream(bench.host)
    bench.times.begin()
    bench.issue("a", 100 * US)
    bench.wait("a")
    for stream in (copies, bench.compute):
        event = stream.record_event()
        bench.times.event_recorded(event, stream)
        assert bench.times.stream_waits(event, bench.compute) is None


def test_an_event_recorded_again_stands_for_what_its_new_stream_carries(bench: Bench) -> None:
    side = Stream(bench.host)
    bench.times.begin()
    with bench.device.on(side):
        bench.issue("a", 100 * US)
        bench.wait("a")
    event = side.record_event()
    bench.times.event_recorded(event, side)
    bench.times.event_recorded(event, bench.compute)
    assert bench.times.stream_waits(event, bench.compute) is None


def test_a_handle_tells_whom_a_wait_is_for(bench: Bench) -> None:
    first, second = Handle(), Handle()
    bench.times.begin()
    bench.issue("a", 1, first)
    bench.issue("b", 1, second)
    assert bench.times.owner_of(first) == "a"
    assert bench.times.owner_of(second) == "b"
    assert bench.times.owner_of(Handle()) == "b"
    bench.end()
    bench.times.begin()
    assert bench.times.owner_of(Handle()) is None
    assert bench.times.owner_of(first) == "a"


def test_operators_between_two_callbacks_of_backward_are_no_wait(bench: Bench) -> None:
    """DDP waits for a bucket and copies it, one after the other, in C++."""
    bench.times.begin()
    bench.issue("bucket", 100 * US)
    bench.compute.work(40 * US)
    bench.times.drain_begun("bucket")
    assert bench.times.draining
    bench.compute.wait_stream(bench.network)
    bench.times.operator_begun()
    bench.compute.work(25 * US)
    bench.times.operator_ended()
    bench.times.drain_ended()
    assert not bench.times.draining
    assert bench.end() == DeviceReading(125 * US, (("bucket", 60 * US),))


def test_a_wait_within_a_drain_is_its_own(bench: Bench) -> None:
    bench.times.begin()
    bench.issue("a", 100 * US)
    bench.times.drain_begun("bucket")
    bench.wait("a")
    bench.issue("bucket", 30 * US)
    bench.compute.wait_stream(bench.network)
    bench.times.drain_ended()
    assert bench.end() == DeviceReading(130 * US, (("a", 100 * US), ("bucket", 30 * US)))


def test_what_is_excluded_is_no_part_of_the_step(bench: Bench) -> None:
    bench.times.begin()
    bench.compute.work(10 * US)
    bench.times.excluded_begun()
    bench.issue("theirs", 100 * US)
    bench.wait("theirs")
    bench.times.excluded_ended()
    bench.compute.work(5 * US)
    assert bench.end() == DeviceReading(15 * US, ())


def test_no_event_becomes_part_of_a_graph(bench: Bench) -> None:
    bench.times.begin()
    made = bench.host.made
    bench.host.graph = True
    bench.issue("a", 100 * US)
    bench.wait("a")
    bench.times.drain_begun("a")
    bench.times.drain_ended()
    bench.times.excluded_begun()
    bench.times.excluded_ended()
    assert bench.host.made == made
    bench.host.graph = False
    assert bench.end() == DeviceReading(100 * US, ())


def test_a_region_that_begins_or_ends_in_a_graph_is_not_timed(bench: Bench) -> None:
    for at_begin, at_end in ((True, False), (False, True)):
        bench.host.graph = at_begin
        bench.times.begin()
        bench.wait("a")
        bench.host.graph = at_end
        events = bench.times.end()
        assert events is not None
        assert events.ready()
        assert events.read() is None


def test_a_dropped_region_leaves_nothing(bench: Bench) -> None:
    bench.times.begin()
    opened = bench.times.wait_begun()
    bench.times.drop()
    bench.times.wait_ended(opened, "a")
    assert bench.times.end() is None
    bench.times.begin()
    bench.times.wait_ended(opened, "a")
    bench.compute.work(US)
    assert bench.end() == DeviceReading(US, ())


def test_a_failure_goes_to_the_session_and_not_into_the_program(bench: Bench) -> None:
    def fails() -> int:
        raise RuntimeError("CUDA error")

    bench.times.begin()
    assert bench.times.guarded(fails, 7) == 7
    assert [str(error) for error in bench.failures] == ["CUDA error"]
    assert bench.times.end() is None


def test_a_stall_for_no_known_collective_stays_unattributed(bench: Bench) -> None:
    bench.times.begin()
    bench.network.work(50 * US)
    bench.wait(None)
    assert bench.end() == DeviceReading(50 * US, ())
