"""The storages of the device while a program runs dry: when each is born and freed, and its purpose."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from shardtoll.profiler.dryrun.device.timeline import Timeline
from shardtoll.profiler.live.cause.pending import Place

_BACKWARD = ("backward", "recompute")


@dataclass(slots=True)
class Held:
    """One storage."""

    bytes: int
    step: int | None
    born: int
    stream: str
    op: str | None
    place: Place | None
    category: str | None = None
    parameter: str | None = None
    """The parameter that it holds, or the gradient or state of; of several, the first and their number."""
    module: str | None = None
    """The module of that parameter; else `place` says it."""
    freed: int | None = None
    freed_step: int | None = None
    freed_phase: str | None = None
    used_on: set[str] | None = None


class Storages:
    """Follows every storage of fake tensors on the device."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._live: dict[int, tuple[Any, Held]] = {}
        """Address of a storage -> a weak reference to it, and its record."""
        self.done: list[Held] = []
        """Those that were freed in a recorded step."""
        self.step: int | None = None
        self.phase = "other"
        """Phase of the operator that ran last."""
        self.limit_bytes: int | None = None
        """Memory of the device while the program builds its model; None afterwards."""
        self.live_bytes = 0
        self.peak_bytes = 0

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's storage is one of the device that lives."""
        return tensor.untyped_storage()._cdata in self._live

    def born(self, tensor: torch.Tensor, op: str | None, place: Place | None, order: int) -> bool:
        """Note the tensor's storage; whether it is a new one."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._live:
            return False
        nbytes = int(storage.nbytes())
        held = Held(nbytes, self.step, order, self._timeline.current.name, op, place)
        self._live[key] = weakref.ref(storage, lambda _: self._died(key)), held
        self._grow(nbytes)
        return True

    def discard(self, tensor: torch.Tensor) -> None:
        """Forget the tensor's storage: it is on the host."""
        held = self._live.pop(tensor.untyped_storage()._cdata, None)
        if held is not None:
            self.live_bytes -= held[1].bytes

    def _grow(self, nbytes: int) -> None:
        self.live_bytes += nbytes
        if self.limit_bytes is not None and self.live_bytes > self.limit_bytes:
            needed, has = (f"{size / 1e9:,.1f} GB" for size in (self.live_bytes, self.limit_bytes))
            raise torch.OutOfMemoryError(f"the model alone takes {needed} so far, and the GPU has {has}")
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def _died(self, key: int) -> None:
        entry = self._live.pop(key, None)
        if entry is not None:
            self._freed(entry[1])

    def _freed(self, held: Held) -> None:
        self.live_bytes -= held.bytes
        if self.step is None:
            return
        held.freed, held.freed_step, held.freed_phase = self._timeline.order, self.step, self.phase
        self.done.append(held)

    def resized(self, storage: Any, nbytes: int) -> None:
        """Note that a storage gets another size: it is freed, and born anew if it is not empty."""
        key = storage._cdata
        entry = self._live.get(key)
        if entry is None or entry[1].bytes == nbytes:
            return
        ref, held = entry
        if held.bytes:
            self._freed(held)
        made = Held(
            nbytes,
            self.step,
            self._timeline.order,
            self._timeline.current.name,
            held.op,
            held.place,
            held.category,
            held.parameter,
            held.module,
        )
        self._live[key] = ref, made
        self._grow(nbytes)

    def begin_anew(self) -> None:
        """Forget the steps so far: what lives was there before the next one begins."""
        self.done.clear()
        for held in self.alive():
            held.step, held.born = None, 0
            if held.category is None or held.category == "communication":
                # Its new purpose shows later; the line that made it stays.
                held.category = None
                held.place = held.place and Place("other", held.place.module, source=held.place.source)

    def mark(self, tensors: Iterable[Any], category: str, names: Sequence[str] = ()) -> None:
        """Say what storages are for, and of which parameters.

        The first purpose stays, unless it only was that a collective sends or fills them.
        """
        for tensor in tensors:
            entry = self._live.get(_local(tensor).untyped_storage()._cdata)
            if entry is not None:
                if entry[1].category in (None, "communication"):
                    entry[1].category = category
                if names and entry[1].parameter is None:
                    entry[1].parameter, entry[1].module = _listed(names), _module_of(names)

    def mark_communication(self, tensor: torch.Tensor) -> None:
        """Say that a collective sends or fills the tensor's storage."""
        entry = self._live.get(tensor.untyped_storage()._cdata)
        if entry is not None and entry[1].step is not None:
            entry[1].category = entry[1].category or "communication"

    def used_on(self, tensor: torch.Tensor, stream: str) -> None:
        """Note that another stream than its own uses the tensor."""
        entry = self._live.get(_local(tensor).untyped_storage()._cdata)
        if entry is not None and entry[1].stream != stream:
            entry[1].used_on = (entry[1].used_on or set()) | {stream}

    def alive(self) -> Iterator[Held]:
        """Yield those that live."""
        for _, held in self._live.values():
            yield held

    def close(self) -> None:
        """Follow none any longer."""
        self._live.clear()


def category_of(held: Held) -> str:
    """Return a storage's purpose: as somebody said, else by when it lived."""
    if held.category is not None:
        return held.category
    phase = "other" if held.place is None else held.place.phase
    if phase == "forward" and (held.freed_phase in _BACKWARD or held.freed is None):
        return "activation"
    if phase == "recompute" and held.freed_phase == "backward":
        return "activation"
    return "temporary"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]}, ... ({len(names)} parameters)"


def _module_of(names: Sequence[str]) -> str:
    """Return the innermost module that has all of these parameters."""
    shared: list[str] = []
    for parts in zip(*(name.split(".")[:-1] for name in names), strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return ".".join(shared)


def _local(tensor: Any) -> torch.Tensor:
    local: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return local
