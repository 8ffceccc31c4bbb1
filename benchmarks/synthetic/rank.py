"""One made-up rank: a host thread that launches ahead of a device with several streams.

All times are true ns; the file's clock is the writer's business.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from synthetic.nsys import NsysSink
from synthetic.spec import US, Spec, transfer_ns
from synthetic.words import Call, comm_words
from synthetic.write import Sink

COMPUTE_STREAM: Final = 7
COPY_STREAM: Final = 20
COMM_STREAM: Final = 24

COMPUTE, COMM, LOOKALIKE, COPY = range(4)
"""Layers of device work, by what wins an instant."""

LAUNCH_NS: Final = 5 * US
"""From a launch call to the earliest start of what it launched."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A rank's transport of one collective is ready: what the job needs to say when it ends."""

    key: tuple[str, ...]
    ranks: tuple[int, ...]
    start_ns: int
    transfer_ns: int
    call: Call
    step: int


Program = Generator[Arrival, int, None]


@dataclass(slots=True)
class Work:
    """All device work of a rank and what its host was busy with, for the truth."""

    start_ns: array[int] = field(default_factory=lambda: array("q"))
    end_ns: array[int] = field(default_factory=lambda: array("q"))
    layer: array[int] = field(default_factory=lambda: array("q"))
    step: array[int] = field(default_factory=lambda: array("q"))
    key: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """Row -> collective."""
    steps: list[tuple[int, int, int]] = field(default_factory=list)
    """(step, start, end) of the host's steps."""
    pauses: list[tuple[int, int, str]] = field(default_factory=list)
    """(start, end, kind) of data loading and of synchronisations with what followed."""
    recompute_ns: dict[int, int] = field(default_factory=dict)


class Rank:
    """The state of one rank while its program runs."""

    def __init__(self, spec: Spec, rank: int, sink: Sink | NsysSink) -> None:
        self.spec = spec
        self.rank = rank
        self.sink = sink
        self.work = Work()
        self.random = Random(f"{spec.seed} {rank}")
        self.now = spec.epoch_ns + self.random.randrange(1, 20 * US)
        self.thread = sink.pid
        self.step = 0
        self._streams: dict[int, int] = {}
        self._correlation = 100
        self._external = 0
        self._ops: list[int] = []
        self._frames: list[int] = []
        self._seq: dict[str, int] = {}
        self._queued: deque[int] = deque(maxlen=spec.ahead)

    @property
    def drained_ns(self) -> int:
        """When the device has done all that was launched so far."""
        return max([self.now, *self._streams.values()])

    def ready(self, stream: int) -> int:
        """Return when a stream has done all that was launched on it."""
        return self._streams.get(stream, 0)

    @contextmanager
    def op(self, name: str, cat: str = "cpu_op", **args: Any) -> Iterator[int]:
        """Run the body inside a host operator or annotation; its external id is yielded."""
        self._external += 1
        external, start = self._external, self.now
        self._ops.append(external)
        self.now += US
        yield external
        self.now += US
        self._ops.pop()
        fields = {"External id": external, "Record function id": 0, **args, "Ev Idx": external - 1}
        self.sink.host(cat, name, self.thread, start, self.now, fields)

    def annotation(self, name: str, **args: Any) -> Any:
        """Run the body inside a `user_annotation`."""
        return self.op(name, "user_annotation", **args)

    @contextmanager
    def frame(self, name: str, module: bool = False) -> Iterator[None]:
        """Run the body inside a Python frame, which only jobs with stacks write."""
        if not self.spec.stacks:
            yield
            return
        self._external += 1
        number, start = self._external, self.now
        args: dict[str, Any] = {"Python parent id": self._frames[-1] if self._frames else None}
        args |= {"Python id": number} | ({"Python module id": 0} if module else {}) | {"Ev Idx": number}
        self._frames.append(number)
        yield
        self._frames.pop()
        self.sink.host("python_function", name, self.thread, start, self.now, args)

    def pause(self, kind: str, until_ns: int) -> None:
        """Let the host be busy with something that launches nothing; `kind` for the truth."""
        self.work.pauses.append((self.now, max(until_ns, self.now), kind))
        self.now = max(until_ns, self.now)

    def runtime(self, name: str, ns: int, cbid: int) -> int:
        """Make a runtime call and return its correlation."""
        self._correlation += 1
        args: dict[str, Any] = {"External id": self._ops[-1]} if self._ops else {}
        args |= {"cbid": cbid, "correlation": self._correlation}
        start = self.now
        self.now += ns
        self.sink.host("cuda_runtime", name, self.thread, start, self.now, args)
        if name.startswith(("cudaLaunch", "cudaMemcpy")):
            self.sink.arrow("s", self._correlation, self.sink.pid, self.thread, start)
        return self._correlation

    def synchronise(self) -> None:
        """Block the host until the device has done everything."""
        self.runtime("cudaStreamSynchronize", max(self.drained_ns - self.now, 0) + 2 * US, 131)

    def wait(self, stream: int, until_ns: int) -> None:
        """Let a stream wait for an event of another one."""
        self.runtime("cudaStreamWaitEvent", US, 147)
        self._streams[stream] = max(self.ready(stream), until_ns)

    def kernel(self, op: str, name: str, ns: int, layer: int = COMPUTE) -> None:
        """Launch a kernel on the compute stream from an operator."""
        for number in range(self.spec.padding):
            with self.op(("aten::empty", "aten::view", "aten::as_strided")[number % 3]):
                pass
        with self.op(op):
            spread = self.spec.jitter
            jittered = round(ns * self.random.uniform(1 - spread, 1 + spread)) if layer == COMPUTE else ns
            self._launch("kernel", name, jittered, COMPUTE_STREAM, layer, "cudaLaunchKernel", 211)

    def copy(self, size: int, ns: int, stream: int, direction: str = "HtoD (Pinned -> Device)") -> int:
        """Launch a copy and return when it ends."""
        with self.op("aten::copy_"):
            more = {"bytes": size, "memory bandwidth (GB/s)": size / max(ns, 1)}
            name = f"Memcpy {direction}"
            return self._launch("gpu_memcpy", name, ns, stream, COPY, "cudaMemcpyAsync", 41, more)

    def collective(self, call: Call, stream: int = COMM_STREAM) -> Generator[Arrival, int, int]:
        """Launch a collective behind what the compute stream holds now; return when it ends."""
        counter = f"{call.group} p2p" if call.peer is not None else call.group
        seq = self._seq[counter] = self._seq.get(counter, 0) + 1
        key: tuple[str, ...] = (call.group, str(seq))
        ranks = call.ranks
        if call.peer is not None:
            source, target = (self.rank, call.peer) if call.op == "send" else (call.peer, self.rank)
            pair = f"{call.group} {source}>{target}"
            self._seq[pair] = self._seq.get(pair, 0) + 1
            key, ranks = (call.group, f"{source}>{target}", str(self._seq[pair])), (source, target)
        words = comm_words(self.spec, call, self.rank, seq)
        with self.op(words.c10d, **words.c10d_args):
            with self.op("record_param_comms", **words.args):
                with self.annotation(words.annotation, **words.annotation_args):
                    self.wait(stream, self.ready(COMPUTE_STREAM))
                    correlation = self.runtime("cudaLaunchKernelExC", 6 * US, 430)
                external = self._ops[-1]
                start = max(self.now - 6 * US + LAUNCH_NS, self.ready(stream))
                ns = transfer_ns(self.spec, call.op, len(ranks), call.message_bytes)
                end = yield Arrival(key, ranks, start, ns, call, self.step)
                self._streams[stream] = end
                self._record(start, end, COMM, key)
                self.sink.device(
                    "kernel", words.kernel, stream, start, end, correlation, external, words.kernel_args
                )
        return end

    def hand_over(self, call: Call) -> Program:
        """Send or receive through the host: a receiver waits for the data, a sender for its device only."""
        assert call.peer is not None, "a hand-over has two sides"
        source, target = (self.rank, call.peer) if call.op == "send" else (call.peer, self.rank)
        pair = f"{call.group} {source}>{target}"
        self._seq[pair] = self._seq.get(pair, 0) + 1
        with self.op("c10d::send" if call.op == "send" else "c10d::recv_"):
            key = (call.group, f"{source}>{target}", str(self._seq[pair]))
            start = self.drained_ns if call.op == "send" else self.now
            ns = transfer_ns(self.spec, call.op, 2, call.message_bytes)
            end = yield Arrival(key, (source, target), start, ns, call, self.step)
            if call.op == "recv":
                self.now = max(self.now, end)

    def _launch(
        self, cat: str, name: str, ns: int, stream: int, layer: int, call: str, cbid: int, more: Any = None
    ) -> int:
        start = max(self.now + LAUNCH_NS, self.ready(stream))
        queued = self._queued
        blocked = queued[-self.spec.ahead] - self.now if len(queued) >= self.spec.ahead else 0
        correlation = self.runtime(call, max(4 * US, blocked), cbid)
        self._streams[stream] = start + ns
        queued.append(start + ns)
        self._record(start, start + ns, layer)
        external = self._ops[-1] if self._ops else None
        self.sink.device(cat, name, stream, start, start + ns, correlation, external, more or {})
        return start + ns

    def _record(self, start: int, end: int, layer: int, key: tuple[str, ...] | None = None) -> None:
        if key is not None:
            self.work.key[len(self.work.start_ns)] = key
        self.work.start_ns.append(start)
        self.work.end_ns.append(end)
        self.work.layer.append(layer)
        self.work.step.append(self.step)
