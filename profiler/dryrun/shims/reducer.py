"""DDP's reducer in Python: the same buckets, reductions and waits, on tensors that hold no numbers.

torch's own reducer takes results from futures, and a process group that moves nothing has none. It also
allocates its buckets past fake tensors. Buckets are assigned by torch's own function, first in reverse order
of the parameters. Once a backward has shown the order of gradients, they are assigned in that order. The real
reducer does that at the next forward, with two broadcasts. Here it happens at the end of that backward, so
that the second step is already one of all others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist


class DryBucket:
    """A communication hook's argument: one bucket of gradients."""

    def __init__(self, index: int, places: Sequence[int], parameters: Sequence[torch.Tensor]) -> None:
        self._index = index
        self.places = list(places)
        self._parameters = [parameters[place] for place in places]
        first = self._parameters[0]
        self.data = torch.empty(
            sum(parameter.numel() for parameter in self._parameters), dtype=first.dtype, device=first.device
        )
        self.last = False
        self.ready: set[int] = set()
        self.work: Any = None
        self.future: Any = None
        self.views = self._views()

    def _views(self) -> list[torch.Tensor]:
        data: Any = self.data
        parts = data.split([parameter.numel() for parameter in self._parameters])
        return [part.view(parameter.shape) for part, parameter in zip(parts, self._parameters, strict=True)]

    def buffer(self) -> torch.Tensor:
        """Return all gradients of the bucket as one flat tensor."""
        return self.data

    def set_buffer(self, buffer: torch.Tensor) -> None:
        """Put another flat tensor in its place."""
        self.data = buffer
        self.views = self._views()

    def gradients(self) -> list[torch.Tensor]:
        """Return the gradients, views of the buffer."""
        return self.views

    def parameters(self) -> list[torch.Tensor]:
        """Return the parameters whose gradients they are."""
        return self._parameters

    def index(self) -> int:
        """Return its place among the buckets, 0 for the one that is reduced first."""
        return self._index

    def is_last(self) -> bool:
        """Whether it is reduced last."""
        return self.last


class DryFuture:
    """Stands for the future of a collective that is done at once."""

    def __init__(self, value: Any) -> None:
        self._value = value
        self._waited: Callable[[], None] | None = None

    def waits_with(self, waited: Callable[[], None]) -> DryFuture:
        """Have `waited` called when somebody waits for it."""
        self._waited = waited
        return self

    def wait(self) -> Any:
        """Return the value."""
        if self._waited is not None:
            waited, self._waited = self._waited, None
            waited()
        return self._value

    def value(self) -> Any:
        """Return the value."""
        return self._value

    def done(self) -> bool:
        """Whether it is done: always."""
        return True

    def then(self, callback: Callable[[Any], Any]) -> DryFuture:
        """Return the future of the callback's result for this one."""
        made = DryFuture(callback(self))
        if self._waited is not None:
            made.waits_with(self._waited)
        return made

    def set_result(self, value: Any) -> None:
        """Set the value."""
        self._value = value


class DryReducer:
    """Stands for torch.distributed.Reducer."""

    def __init__(
        self, params: Sequence[torch.Tensor], bucket_indices: Sequence[Sequence[int]], *rest: Any
    ) -> None:
        # (sizes, group, sparse, cap, find unused, gradient as view, names, first cap, ...)
        self._parameters = list(params)
        self._group = rest[1]
        self._cap_bytes = int(rest[3])
        self._find_unused, self._as_view = bool(rest[4]), bool(rest[5])
        self._first_bytes = int(rest[7]) if len(rest) > 7 and isinstance(rest[7], int) else 1 << 20
        self._hook: tuple[Any, Callable[[Any, Any], Any]] | None = None
        self._expecting = False
        self._rebuilt = False
        self._order: list[int] = []
        self.buckets = self._made(bucket_indices)
        self._size = dist.get_world_size(self._group)
        self._handles = [
            parameter.register_post_accumulate_grad_hook(self._ready_hook(place))  # type: ignore[no-untyped-call]
            for place, parameter in enumerate(self._parameters)
        ]
        self._used = torch.zeros(len(self._parameters), dtype=torch.int32, device=self._parameters[0].device)

    def _made(self, indices: Sequence[Sequence[int]]) -> list[DryBucket]:
        buckets = [DryBucket(number, places, self._parameters) for number, places in enumerate(indices)]
        buckets[-1].last = True
        self._bucket_of = {place: bucket for bucket in buckets for place in bucket.places}
        return buckets

    def _ready_hook(self, place: int) -> Callable[[torch.Tensor], None]:
        def ready(parameter: torch.Tensor) -> None:
            if self._expecting:
                self._ready(place, parameter)

        return ready

    def _ready(self, place: int, parameter: torch.Tensor) -> None:
        if not self._order:
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        self._order.append(place)
        bucket = self._bucket_of[place]
        view = bucket.views[bucket.places.index(place)]
        gradient = parameter.grad
        with torch.no_grad():
            if gradient is not None and gradient.untyped_storage()._cdata != view.untyped_storage()._cdata:
                if self._hook is None:
                    torch.mul(gradient, 1.0 / self._size, out=view)
                else:
                    view.copy_(gradient)
                if self._as_view:
                    parameter.grad = view
            elif self._hook is None:
                view.div_(self._size)
        bucket.ready.add(place)
        if len(bucket.ready) == len(bucket.places):
            self._reduce(bucket)

    def _reduce(self, bucket: DryBucket) -> None:
        if self._hook is None:
            bucket.work = self._all_reduce(bucket.data)
            return
        state, hook = self._hook
        bucket.future = hook(state, bucket)

    def _all_reduce(self, tensor: torch.Tensor) -> Any:
        # As the real reducer, past torch's Python functions: they would be taken for what asked for it.
        options = dist.AllreduceOptions()
        options.asyncOp = True
        return self._group.allreduce([tensor], options)

    def _finish(self) -> None:
        self._expecting = False
        for bucket in self.buckets:
            if bucket.work is None and bucket.future is None:
                # This backward did not reach its parameters: the others wait for it all the same.
                self._reduce(bucket)
        if self._find_unused:
            self._all_reduce(self._used).wait()
        for bucket in self.buckets:
            self._take(bucket)
        if not self._rebuilt and len(set(self._order)) == len(self._parameters):
            self._rebuild()
        self._order = []

    def _take(self, bucket: DryBucket) -> None:
        if bucket.work is not None:
            bucket.work.wait()
        elif bucket.future is not None:
            made = bucket.future.wait()
            made = made[0] if isinstance(made, (list, tuple)) else made
            if isinstance(made, torch.Tensor) and made is not bucket.data:
                with torch.no_grad():
                    bucket.data.copy_(made)
        if not self._as_view:
            with torch.no_grad():
                for parameter, view in zip(bucket.parameters(), bucket.views, strict=True):
                    if parameter.grad is not None:
                        parameter.grad.copy_(view)
        bucket.work = bucket.future = None
        bucket.ready.clear()

    def _rebuild(self) -> None:
        self._rebuilt = True
        order = list(dict.fromkeys(self._order))
        in_order = [self._parameters[place] for place in order]
        limits = [self._first_bytes, self._cap_bytes]
        assign: Any = vars(dist)["_compute_bucket_assignment_by_size"]
        assigned, _ = assign(in_order, limits, [False] * len(order), order)
        old, self.buckets = self.buckets, self._made(assigned)
        if self._as_view:
            for bucket in self.buckets:
                for parameter, view in zip(bucket.parameters(), bucket.views, strict=True):
                    if parameter.grad is not None:
                        parameter.grad = view
        del old

    # -- what DDP calls ------------------------------------------------------------------------------

    def prepare_for_backward(self, _: Any) -> None:
        """Expect a backward whose gradients are to be reduced."""
        self._expecting = True

    def _rebuild_buckets(self) -> bool:
        return False

    def _remove_autograd_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _get_zeros_like_grad_buckets(self) -> list[DryBucket]:
        return self.buckets

    def register(self, state: Any, hook: Callable[[Any, Any], Any]) -> None:
        """Have a communication hook reduce buckets."""
        self._hook = state, hook

    def _install_post_backward_futures(self, futures: Any) -> None:
        def wait() -> None:
            for future in futures:
                future.wait()

        torch.autograd.Variable._execution_engine.queue_callback(wait)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        # The other methods only log, check or serve ranks that join late.
        return _nothing


class DryLogger:
    """Stands for torch.distributed.Logger: logs nothing."""

    def __init__(self, reducer: Any) -> None:
        pass

    def _get_ddp_logging_data(self) -> Any:
        return type("Logged", (), {"strs_map": {}, "ints_map": {}})()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _nothing


def _nothing(*_: Any, **__: Any) -> None:
    pass


def register_hook(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return what registers a communication hook with either reducer."""

    def register(reducer: Any, state: Any, hook: Callable[[Any, Any], Any]) -> Any:
        if isinstance(reducer, DryReducer):
            reducer.register(state, hook)
            return None
        return original(reducer, state, hook)

    return register
