"""The capture on a device that is simulated: what is patched, what is held back, what rows say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.nn.parallel import DistributedDataParallel

from shardtoll.ledger import Collective, StepRows
from shardtoll.profiler import audit
from shardtoll.profiler.live.capture.mode import SurveyMode
from shardtoll.profiler.live.capture.recorder import Recorder
from shardtoll.profiler.live.cause.groups import Groups
from shardtoll.profiler.live.cause.module_names import Names
from shardtoll.profiler.live.session import capturing, machine, session
from shardtoll.profiler.live.times import device_waits
from shardtoll.profiler.live.times.clock import Clock
from shardtoll.profiler.live.times.device_times import DeviceTimes
from shardtoll.profiler.live.values.fingerprint import Fingerprints
from tests.unit.profiler.simulated_device import US, Event, SimulatedDevice, Stream


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Capture:
    """A recorder on a simulated device, its mode and its patches; the host's clock is the device's."""

    def __init__(self) -> None:
        self.device = SimulatedDevice()
        self.host = self.device.host
        self.failures: list[Exception] = []
        clock = Clock(monotonic_ns=self.host.now_ns, unix_ns=self.host.now_ns)
        self.recorder = Recorder(0, Names(None), Groups(), clock, host_times=False)
        self.times = DeviceTimes(
            self.device, self.host.now_ns, host_blocks=lambda _: False, on_failure=self.failures.append
        )
        self.recorder.time_device(self.times)
        self.rows: list[StepRows] = []

    def __enter__(self) -> Capture:
        self._restore = device_waits.patch_device_waits(self.times, lambda: True, event=Event, stream=Stream)
        self._mode = SurveyMode(self.recorder, self.failures.append)
        self._mode.__enter__()
        self.recorder.begin(0)
        return self

    def __exit__(self, *_: object) -> None:
        self.recorder.end()
        self.rows += self.recorder.finished()
        self._mode.__exit__(None, None, None)
        self._restore()
        self.rows += self.recorder.finished(wait=True)
        assert self.failures == []

    @property
    def collectives(self) -> tuple[Collective, ...]:
        (rows,) = self.rows
        return rows.collectives


def stalling(monkeypatch: pytest.MonkeyPatch, device: SimulatedDevice, ns: int) -> None:
    """Have torch's own wait, below the patch, keep the current stream standing still."""
    original = dist.Work.wait

    def wait(self: Any, *args: Any) -> Any:
        device.current_stream().work(ns)
        return original(self, *args)

    monkeypatch.setattr(dist.Work, "wait", wait)


def test_a_wait_for_a_handle_is_the_collectives_that_gave_it(
    group: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture = Capture()
    stalling(monkeypatch, capture.device, 30 * US)
    with capture:
        first = dist.all_reduce(torch.ones(4), async_op=True)
        second = dist.all_reduce(torch.ones(8), async_op=True)
        capture.device.compute.work(100 * US)
        first.wait()
        with capture.device.on(Stream(capture.host)):
            second.wait()
        capture.device.compute.work(20 * US)
    assert [row.exposed_ns for row in capture.collectives] == [30 * US, 0]
    assert [row.message_bytes for row in capture.collectives] == [16, 32]
    assert {(row.start_ns, row.duration_ns) for row in capture.collectives} == {(None, None)}
    (rows,) = capture.rows
    assert rows.step is not None
    assert (rows.step.duration_ns, rows.step.exposed_comm_ns, rows.step.unattributed_ns) == (
        150 * US,
        30 * US,
        120 * US,
    )
    assert (rows.step.compute_ns, rows.step.idle_ns, rows.step.exposed_copy_ns) == (0, 0, 0)
    (notice,) = rows.notices
    assert notice.kind == "times-unknown"
    assert "known are the step's time and for how long its stream stood still" in notice.text


def test_rows_wait_until_the_device_has_passed_the_step(group: None) -> None:
    capture = Capture()
    with capture:
        capture.device.compute.work(100 * US)
        for number in (1, 2):
            capture.recorder.end()
            assert list(capture.recorder.finished()) == []
            capture.recorder.begin(number)
            capture.device.compute.work(100 * US)
        capture.host.now += 150 * US
        (rows,) = capture.recorder.finished()
        assert rows.step is not None
        assert (rows.step.step, rows.step.duration_ns) == (0, 100 * US)
        assert capture.host.blocked == 0
    assert [rows.step and rows.step.step for rows in capture.rows] == [1, 2]
    assert capture.host.blocked == 2


def test_a_functional_collectives_result_is_waited_for_on_the_compute_stream(
    group: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture = Capture()
    opened = capture.times.wait_begun

    def late() -> Any:
        found = opened()
        capture.device.compute.work(40 * US)
        return found

    monkeypatch.setattr(capture.times, "wait_begun", late)
    with capture:
        result = funcol.all_reduce(torch.ones(4), "sum", dist.group.WORLD)
        torch.ops._c10d_functional.wait_tensor(torch.zeros(1))
        result + 1
    # The first wait is for no collective that is known: its time stays unattributed.
    (row,) = capture.collectives
    assert row.exposed_ns == 40 * US
    (rows,) = capture.rows
    assert rows.step is not None
    assert (rows.step.duration_ns, rows.step.exposed_comm_ns) == (80 * US, 40 * US)


def without_handles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have gathers give back no handle, as torch's with NCCL that run in the caller's stream."""
    original = dist.ProcessGroup.allgather
    monkeypatch.setattr(dist.ProcessGroup, "allgather", lambda *args: original(*args) and None)


@pytest.mark.parametrize("handles", [True, False])
def test_streams_that_wait_for_a_side_streams_collective_are_timed(
    group: None, monkeypatch: pytest.MonkeyPatch, handles: bool
) -> None:
    """As FSDP2 does it: no Work is waited for on the stream that computes."""
    if not handles:
        without_handles(monkeypatch)
    capture = Capture()
    side, copies = Stream(capture.host), Stream(capture.host)
    with capture:
        with capture.device.on(side):
            dist.all_gather([torch.empty(4)], torch.ones(4))
            side.work(90 * US)
            gathered = side.record_event()
        copies.work(500 * US)
        capture.device.compute.work(30 * US)
        capture.device.compute.wait_event(gathered)
        capture.device.compute.work(20 * US)
        # Nothing of this is a collective.
        capture.device.compute.wait_stream(copies)
    (row,) = capture.collectives
    assert row.exposed_ns == 60 * US
    (rows,) = capture.rows
    assert rows.step is not None
    assert (rows.step.duration_ns, rows.step.exposed_comm_ns) == (500 * US, 60 * US)


def test_a_collective_in_the_callers_stream_is_exposed_throughout(
    group: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture = Capture()
    opened = capture.times.wait_begun
    opens: list[object] = []

    def counting() -> Any:
        found = opened()
        opens.append(found)
        return found

    monkeypatch.setattr(capture.times, "wait_begun", counting)
    with capture:
        dist.all_reduce(torch.ones(4), async_op=True)
        assert opens == []
        dist.all_reduce(torch.ones(4))
    # Around the call, and around the wait that follows it.
    assert len(opens) == 2


def test_ddps_waits_in_c_plus_plus_are_between_callbacks(group: None) -> None:
    capture = Capture()
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    drains: list[str] = []

    def begun(owner: Any) -> None:
        drains.append(owner.message.op)
        capture.device.compute.work(70 * US)

    original = capture.times.drain_begun
    capture.times.drain_begun = lambda owner: (original(owner), begun(owner))[0]  # type: ignore[method-assign]
    with capture:
        model(torch.ones(2, 4)).sum().backward()
    assert drains == ["all_reduce"]
    (row,) = capture.collectives
    assert row.exposed_ns == 70 * US
    assert not capture.times.draining


def test_patches_are_taken_back_and_inherited_methods_stay_inherited(group: None) -> None:
    class Inheriting(Event):
        pass

    before = dict(vars(Event)), dict(vars(Stream)), dict(vars(dist.Work)), dict(vars(dist.ProcessGroup))
    restore = device_waits.patch_device_waits(Capture().times, lambda: False, event=Inheriting, stream=Stream)
    assert "wait" in vars(Inheriting)
    restore()
    assert "wait" not in vars(Inheriting)
    after = dict(vars(Event)), dict(vars(Stream)), dict(vars(dist.Work)), dict(vars(dist.ProcessGroup))
    assert after == before


class TestTheDevice:
    """On which device the program computes, told from its model, its mesh, its groups."""

    @pytest.fixture
    def cuda(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)

    @staticmethod
    def backend(monkeypatch: pytest.MonkeyPatch, config: str) -> None:
        monkeypatch.setattr(dist, "is_initialized", lambda: True)
        monkeypatch.setattr(dist, "get_backend_config", lambda: config)

    @pytest.mark.parametrize(
        ("config", "kind", "blocks"),
        [
            # What init_process_group() without a backend makes where there is a GPU.
            ("cpu:gloo,cuda:nccl", "cuda", False),
            ("cuda:nccl", "cuda", False),
            ("nccl", "cuda", False),
            ("cpu:gloo,cuda:gloo", "cpu", True),
            ("cpu:gloo", "cpu", True),
        ],
    )
    def test_of_a_job_without_a_model(
        self, cuda: None, monkeypatch: pytest.MonkeyPatch, config: str, kind: str, blocks: bool
    ) -> None:
        self.backend(monkeypatch, config)
        assert machine.device_of(None).type == kind
        assert machine.host_blocks() is blocks

    def test_nccl_that_was_told_to_block(self, cuda: None, monkeypatch: pytest.MonkeyPatch) -> None:
        self.backend(monkeypatch, "cuda:nccl")
        monkeypatch.setenv("TORCH_NCCL_BLOCKING_WAIT", "0")
        assert not machine.host_blocks()
        monkeypatch.setenv("TORCH_NCCL_BLOCKING_WAIT", "1")
        assert machine.host_blocks()

    def test_of_a_gloo_job_that_uses_cuda(self, cuda: None, monkeypatch: pytest.MonkeyPatch) -> None:
        self.backend(monkeypatch, "cpu:gloo,cuda:gloo")
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        assert machine.device_of(None).type == "cuda"

    def test_of_a_model_on_the_cpu(self, cuda: None, monkeypatch: pytest.MonkeyPatch) -> None:
        self.backend(monkeypatch, "cpu:gloo,cuda:nccl")
        assert machine.device_of(torch.nn.Linear(2, 2)).type == "cpu"
        assert machine.device_of(torch.nn.Linear(2, 2, device="meta")).type == "cuda"

    def test_of_parameters_offloaded_to_the_cpu(self, cuda: None) -> None:
        class OnMesh:
            device_type = "cuda"

        model = torch.nn.Linear(2, 2)
        model.weight.device_mesh = OnMesh()  # type: ignore[assignment]
        assert machine.device_of(model).type == "cuda"

    def test_without_cuda_it_is_the_cpu(self, group: None) -> None:
        assert machine.device_of(None) == torch.device("cpu")
        assert machine.cuda_backend() == "gloo"


class TestASession:
    """A whole session on the simulated device; stalls there are longer than any host time."""

    MS = 1_000 * US

    @pytest.fixture
    def device(self, group: None, monkeypatch: pytest.MonkeyPatch) -> SimulatedDevice:
        device = SimulatedDevice()
        monkeypatch.setattr(session, "device_of", lambda model: torch.device("cuda"))
        monkeypatch.setattr(capturing, "CudaDevice", lambda of: device)
        monkeypatch.setattr(machine, "_device_name", lambda of: "simulated")
        monkeypatch.setattr(Fingerprints, "prepare", lambda self, of: None)
        stalling(monkeypatch, device, 10_000 * self.MS)
        return device

    def step(self, device: SimulatedDevice) -> None:
        device.compute.work(1_000 * self.MS)
        dist.all_reduce(torch.ones(4))

    def test_every_step_gets_its_times_and_no_step_waits(self, device: SimulatedDevice) -> None:
        with audit() as open_session:
            for _ in range(3):
                with open_session.step():
                    self.step(device)
            assert device.host.blocked == 0
        ledger = open_session.ledger
        assert ledger is not None
        steps = ledger.tables["steps"].to_pylist()
        assert [(step["step"], step["duration_ns"], step["exposed_comm_ns"]) for step in steps] == [
            (number, 11_000 * self.MS, 10_000 * self.MS) for number in range(3)
        ]
        rows = ledger.tables["collectives"].to_pylist()
        assert [row["exposed_ns"] for row in rows] == [10_000 * self.MS] * 3
        report = open_session.report()
        assert report is not None
        assert "unmatched-collectives" not in [finding.kind for finding in report.findings]

    def test_a_step_that_raises_takes_no_other_with_it(
        self, device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with audit() as open_session:
            with open_session.step():
                self.step(device)
            monkeypatch.setattr(dist, "barrier", lambda: {}["missing"])
            with pytest.raises(KeyError), open_session.step():
                dist.barrier()
            with open_session.step():
                self.step(device)
        assert open_session.ledger is not None
        steps = open_session.ledger.tables["steps"].to_pylist()
        assert [(step["step"], step["duration_ns"]) for step in steps] == [
            (0, 11_000 * self.MS),
            (2, 11_000 * self.MS),
        ]

    def test_a_device_that_fails_ends_the_capture_and_not_the_training(
        self, device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fails(self: Event) -> None:
            raise RuntimeError("CUDA error: an illegal memory access")

        with audit() as open_session:
            with open_session.step():
                self.step(device)
            device.host.now += 20_000 * self.MS
            with open_session.step():
                self.step(device)
            monkeypatch.setattr(Event, "synchronize", fails)
        assert open_session.ledger is not None
        assert [step["step"] for step in open_session.ledger.tables["steps"].to_pylist()] == [0]
        (notice,) = [
            notice
            for notice in open_session.ledger.tables["notices"].to_pylist()
            if notice["kind"] == "capture-stopped"
        ]
        assert "illegal memory access" in notice["text"]
