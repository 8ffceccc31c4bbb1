"""When the training thread waits for collectives, and for which: results, Works, futures, and C++ itself.

DDP's reducer waits for its buckets in C++, at the end of backward. Nothing shows that wait, so callbacks of
ours are queued around it. The time between them is a drain, blocked only while a collective is in flight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from shardtoll.profiler.live.cause.module_names import address_of
from shardtoll.profiler.live.cause.pending import PendingCollective, Region, UnseenAfter, Wait
from shardtoll.profiler.live.times.device_times import DeviceTimes


class Waits:
    """Notes the waits of the region that runs. Its methods are called on the training thread only."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self.device: DeviceTimes | None = None
        self.cpp_since_ns = 0
        """When C++ last issued a collective outside backward, until the next operator; else 0."""
        self._region: Region | None = None
        self._results: dict[int, int] = {}
        """Address of a functional collective's result -> the collective's index."""
        self._works: dict[int, int] = {}
        """id of a Work -> the index of the collective that it stands for."""
        self._drained_task = -1

    def begin(self, region: Region) -> None:
        """Begin a region: earlier results are no more waited for."""
        self._results.clear()
        self._works.clear()
        self._region = region

    def end(self) -> None:
        """End the region: waits from now on are in none."""
        self._region = None

    # -- which collective a wait is for --------------------------------------------------------------

    def hands(self, result: Any, index: int) -> None:
        """Note that the call of the one collective at `index` returned this: a Work, or its results."""
        self._works[id(result)] = index
        if type(result) is torch.Tensor and result.layout is torch.strided:
            self._results[result.data_ptr()] = index
        else:
            self.hands_result(result, index)

    def hands_result(self, result: Any, index: int) -> None:
        """Note that a collective's operator returned this: its results, or what else stands for it."""
        if isinstance(result, torch.Tensor):
            self._results[address_of(result)] = index
        elif isinstance(result, (list, tuple)):
            addresses = [address_of(tensor) for tensor in result if isinstance(tensor, torch.Tensor)]
            self._results.update(dict.fromkeys(addresses, index))

    def hands_work(self, work: Any, index: int) -> None:
        """Note that a collective's call returned this Work."""
        self._works[id(work)] = index

    def issued_as(self, tensor: Any) -> PendingCollective | None:
        """Return the functional collective whose result this is; None if unknown."""
        index = self._results.get(address_of(tensor)) if isinstance(tensor, torch.Tensor) else None
        return None if index is None or self._region is None else self._region.collectives[index]

    def for_result(self, tensor: Any, start_ns: int, end_ns: int) -> None:
        """Note that the thread waited for a functional collective's result."""
        if type(tensor) is torch.Tensor and tensor.layout is torch.strided:
            owner = self._results.get(tensor.data_ptr())
        else:
            owner = self._results.get(address_of(tensor)) if isinstance(tensor, torch.Tensor) else None
        if self._region is not None:
            self._region.waits.append(Wait(start_ns, end_ns, owner))

    def for_work(self, work: Any, start_ns: int, end_ns: int) -> None:
        """Note that the thread waited for a collective handed to it as a Work."""
        self.note(self._works.pop(id(work), None), start_ns, end_ns)

    def note(self, owner: int | None, start_ns: int, end_ns: int) -> None:
        """Note that the thread was blocked; `owner` indexes the collective, None if unknown."""
        if self._region is not None:
            self._region.waits.append(Wait(start_ns, end_ns, owner))

    def for_future(self, _future: Any, start_ns: int, end_ns: int) -> None:
        """Note that the thread was blocked on a future: on a collective, while one was in flight."""
        if self._region is not None:
            self._region.drains.append((start_ns, end_ns))

    # -- waits in C++ --------------------------------------------------------------------------------

    def cpp_issued(self, last: PendingCollective) -> None:
        """Note that C++ has issued a collective outside backward: it may wait until the next operator."""
        self.cpp_since_ns = self._now_ns()
        if self.device is not None:
            self.device.drain_begun(last)

    def cpp_returned(self, now_ns: int) -> None:
        """Note the next operator after C++ issued a collective: up to here C++ may have waited for it."""
        if self._region is not None:
            self._region.drains.append((self.cpp_since_ns, now_ns))
        self.cpp_since_ns = 0
        if self.device is not None:
            self.device.drain_ended()

    def end_of_backward(self, pending: PendingCollective | None = None, *, at_root: bool = False) -> None:
        """Have the time noted in which the end-of-backward callbacks of this backward run.

        DDP's reducer waits for its buckets in such a callback, in C++. Our first callback is queued now,
        before its own. The second is queued when the first runs, after its own: they enclose it. `pending` is
        the issued collective, None if C++ issued it. `at_root`: the backward is only beginning.
        """
        region = self._region
        assert region is not None
        if not at_root and torch._C._current_autograd_node() is None:
            # Such a callback runs already, as in DDP's first step with a static graph, which issues and waits
            # in one. Callbacks queued now run when that returns.
            self._drain_until_callback(region, pending)
            return
        task = torch._C._current_graph_task_id()
        if task == self._drained_task:
            return
        self._drained_task = task
        engine = torch.autograd.Variable._execution_engine
        engine.queue_callback(lambda: self._drain_until_callback(region, pending))

    def _drain_until_callback(self, region: Region, pending: PendingCollective | None) -> None:
        """Have a drain noted from now to when the callbacks queued so far have run."""
        # On the device only if C++ waits there: other waits are seen.
        device = self.device if pending is None or pending.place.waits_in_cpp else None
        begun_ns = self._now_ns()
        if device is not None and region is self._region:
            last = region.collectives[-1] if region.collectives else pending
            owner = UnseenAfter(last) if region.watched else last
            device.guarded(lambda: device.drain_begun(owner), None)

        def end() -> None:
            region.drains.append((begun_ns, self._now_ns()))
            if device is not None and region is self._region:
                device.guarded(device.drain_ended, None)

        torch.autograd.Variable._execution_engine.queue_callback(end)
