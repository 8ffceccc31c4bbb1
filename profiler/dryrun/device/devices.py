"""The program's GPU: fake tensors on the CPU that say they are on `cuda`.

Tensors of the host stay real, so that a data loader's numbers are numbers. A tensor becomes fake when it goes
to a device, when it is made there, or when it becomes a parameter. A model may be built on the host, and 8
billion numbers of it would not fit there. (Fake tensors on `cuda` itself abort the process in autograd if
torch was built without CUDA.)
"""

from __future__ import annotations

import contextlib
import functools
import math
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
import torch.utils._device as default_device
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from shardtoll.profiler.dryrun.device import known
from shardtoll.profiler.dryrun.device.values import Values

_GPU: Final = "cuda"
_CPU: Final = torch.device("cpu")
_META: Final = torch.device("meta")
_RANGE_BITS: Final = 40
"""Each storage has 1 TiB of addresses: more than any GPU has memory."""
_FIRST_RANGE: Final = 1 << (48 - _RANGE_BITS)
"""Addresses from 2^48 on: those of the host's memory lie below."""
FAKE: Final = torch._C._TorchDispatchModeKey.FAKE
"""Key under which torch keeps the active fake mode; that of a dry run hardly ever is, its tensors carry
it."""


def is_gpu(device: object) -> bool:
    """Whether a device argument means a GPU: `cuda`, `cuda:1`, a torch.device, or a number."""
    if isinstance(device, torch.device):
        return device.type == _GPU
    if isinstance(device, str):
        return device.partition(":")[0] == _GPU
    return isinstance(device, int) and not isinstance(device, bool)


class Tensors:
    """Makes fake tensors and knows which of them are on the host."""

    def __init__(self, local_rank: int) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.gpu = torch.device(_GPU, local_rank)
        self.host: dict[int, Any] = {}
        """Address of the storage of a fake tensor of the host -> a weak reference to it."""
        self.in_function = 0
        """How many functions of torch's run that the program called: inside them a tensor is on the CPU."""
        self.in_operator = 0
        """The same of operators."""
        self.making = False
        """Whether this mode itself makes tensors: not one of torch's that only asks for shapes."""
        self.copied: Callable[[torch.Tensor, bool], None] | None = None
        """Called with a tensor that has been copied to the device (True) or to the host (False)."""
        self.left_device: Callable[[torch.Tensor], None] | None = None
        """Called with a tensor that turns out to be on the host."""
        self._ties: dict[int, tuple[Any, Any]] = {}
        self._ranges: dict[int, tuple[Any, int]] = {}
        """Address of the storage of a fake tensor -> a weak reference, and where its addresses begin."""
        self._next_range = _FIRST_RANGE

    @contextlib.contextmanager
    def make(self) -> Iterator[None]:
        """Make tensors of the device inside."""
        before, self.making = self.making, True
        try:
            with self.mode:
                yield
        finally:
            self.making = before

    def is_host(self, tensor: Any) -> bool:
        """Whether the tensor is on the host: a real one, or a fake one made there."""
        if isinstance(tensor, FakeTensor):
            return bool(self.host) and _key(tensor) in self.host
        local = getattr(tensor, "_local_tensor", None)
        if local is not None:
            return self.is_host(local)
        return type(tensor) in (torch.Tensor, torch.nn.Parameter)

    def device_of(self, tensor: Any, real: torch.device) -> torch.device:
        """Return the device that the program is to see."""
        if self.in_function or self.in_operator or torch._C._get_dispatch_mode(FAKE) is not None:
            return real
        if real.type != "cpu" or self.is_host(tensor):
            return real
        return self.gpu

    def note_host(self, tensor: torch.Tensor) -> None:
        """Note that a fake tensor is on the host."""
        self.host[_key(tensor)] = weakref.ref(tensor.untyped_storage(), self._host_died(_key(tensor)))
        if self.left_device is not None:
            self.left_device(tensor)

    def _host_died(self, key: int) -> Callable[[Any], None]:
        def died(ref: Any) -> None:
            if self.host.get(key) is ref:
                del self.host[key]

        return died

    def address(self, func: Any, tensor: torch.Tensor) -> int:
        """Return an address that only views of the same storage share; programs tie parameters by it.

        torch's object of a storage without numbers is smaller than the numbers would be. Its own address plus
        an offset could therefore be another's. Each storage gets a range of its own instead.
        """
        local = getattr(tensor, "_local_tensor", tensor)
        if not isinstance(local, FakeTensor):
            return int(func(tensor))
        storage = local.untyped_storage()
        if not storage.nbytes():
            return 0
        key = _key(local)
        entry = self._ranges.get(key)
        if entry is None:
            entry = weakref.ref(storage, self._range_died(key)), self._next_range << _RANGE_BITS
            self._ranges[key] = entry
            self._next_range += 1
        return entry[1] + int(local.storage_offset()) * local.element_size()

    def _range_died(self, key: int) -> Callable[[Any], None]:
        def died(ref: Any) -> None:
            if (entry := self._ranges.get(key)) is not None and entry[0] is ref:
                del self._ranges[key]

        return died

    def on_gpu(self, tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return a copy of a tensor of the host on the device."""
        if isinstance(tensor, FakeTensor):
            made = tensor.to(dtype, copy=True) if dtype is not None else tensor.clone()
            self._forget(made)
        else:
            with self.make():
                made = torch.empty_strided(
                    tensor.shape, _dense(tensor), dtype=dtype or tensor.dtype, requires_grad=False
                )
            if tensor.numel() <= known.MOST and not tensor.requires_grad:
                known.note(made, tensor.detach().clone().to(made.dtype))
        if self.copied is not None:
            self.copied(made, True)
        return made

    def on_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of a tensor of the device on the host."""
        made = tensor.clone()
        self.note_host(made)
        if self.copied is not None:
            self.copied(made, False)
        return made

    def parameter(self, parameter: torch.nn.Parameter) -> torch.nn.Parameter:
        """Return a fake parameter for a real one, the same one for the same; it is on the host."""
        known_one = self._ties.get(id(parameter))
        if known_one is not None:
            return known_one[1]  # type: ignore[no-any-return]
        with self.make():
            data = torch.empty_strided(parameter.shape, parameter.stride(), dtype=parameter.dtype)
        self.note_host(data)
        made = torch.nn.Parameter(data, requires_grad=parameter.requires_grad)
        made.__dict__.update(parameter.__dict__)
        self._ties[id(parameter)] = parameter, made
        return made

    def _forget(self, tensor: torch.Tensor) -> None:
        self.host.pop(_key(tensor), None)

    def close(self) -> None:
        """Hold no tensor any longer."""
        self._ties.clear()
        self._ranges.clear()
        self.host.clear()


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _dense(tensor: torch.Tensor) -> tuple[int, ...]:
    return tensor.stride() if tensor.is_contiguous() else torch.empty(tensor.shape, device="meta").stride()


def _set_data(func: Any, tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Give a tensor other data; a real one that gets fake data becomes a fake one, the same object."""
    if isinstance(value, FakeTensor) and type(tensor) in (torch.Tensor, torch.nn.Parameter):
        # Torch keeps weak references to tensors whose numbers are known, too.
        known.note(value, None)
        made = value.detach()
        if weakref.getweakrefs(made):
            # The fake mode keeps a weak reference to the first of a kind that it makes, and none to copies of
            # it. A tensor with such a reference cannot be exchanged.
            made = value.detach()
        if isinstance(tensor, torch.nn.Parameter):
            made = torch.nn.Parameter(made, tensor.requires_grad)
        torch.utils.swap_tensors(tensor, made)  # type: ignore[no-untyped-call]
        return
    func(tensor, value)


def asked_by_torch(func: Any, tensor: Any) -> torch.device:
    """Answer torch's own code in C++, which asks several times for each operator."""
    if type(tensor) is not FakeTensor:
        return func(tensor)  # type: ignore[no-any-return]
    return _META if tensor.fake_mode.in_kernel_invocation else tensor.fake_device


_getters: Final = {
    "device": torch.Tensor.device.__get__,
    "is_cuda": torch.Tensor.is_cuda.__get__,  # type: ignore[attr-defined]
    "is_cpu": torch.Tensor.is_cpu.__get__,  # type: ignore[attr-defined]
}
"""A new object at each look: they are compared by equality."""


_MOST_REAL: Final = 1 << 24
"""Elements of a tensor of the host that holds numbers; larger ones are weights, not data."""
_SIZED: Final = (
    torch.empty,
    torch.zeros,
    torch.ones,
    torch.rand,
    torch.randn,
    torch.full,
    torch.empty_strided,
)


def _elements(args: Any, kwargs: dict[str, Any]) -> int:
    """Return how many elements a function is asked to make, whose size comes first."""
    size = args[0] if args else kwargs.get("size", ())
    sizes = size if isinstance(size, (tuple, list)) else [arg for arg in args if isinstance(arg, int)]
    return math.prod(int(each) for each in sizes)


class DeviceMode(TorchFunctionMode):
    """Answers for devices: runs the program's GPU work on the CPU."""

    def __init__(self, tensors: Tensors, values: Values) -> None:
        super().__init__()
        self.tensors = tensors
        self.values = values
        self._constructors = _device_constructors()
        self._special: Mapping[Any, Callable[..., Any]] = {
            torch.ops.prim.device.default: asked_by_torch,
            _getters["device"]: self._device,
            _getters["is_cuda"]: lambda _, tensor: self._on_gpu(tensor),
            _getters["is_cpu"]: lambda _, tensor: not self._on_gpu(tensor),
            torch.Tensor.data.__set__: _set_data,  # type: ignore[attr-defined]
            torch.Tensor.to: self._to,
            torch.Tensor.cuda: lambda _, tensor, *__, **___: self._move(tensor, True, None),
            torch.Tensor.cpu: lambda _, tensor, *__, **___: self._move(tensor, False, None),
            torch.Tensor.pin_memory: lambda _, tensor, *__, **___: tensor,
            torch.Tensor.is_pinned: lambda _, tensor, *__, **___: self.tensors.is_host(tensor),
            torch.Tensor.get_device: lambda _, tensor: self.tensors.gpu.index if self._on_gpu(tensor) else -1,
            torch.Tensor.data_ptr: self.tensors.address,
            torch.Tensor.type: self._type,
            torch.nn.functional.scaled_dot_product_attention: self._attention,
            **self.values.handlers(self.tensors.is_host),
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the function on the CPU; its device arguments are rewritten."""
        self.tensors.in_function += 1
        try:
            return self._run(func, args, kwargs)
        finally:
            self.tensors.in_function -= 1

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        special = self._special.get(func)
        if special is not None:
            return special(func, *args, **(kwargs or {}))
        kwargs = dict(kwargs) if kwargs else {}
        device = kwargs.get("device")
        if device is None and func in self._constructors:
            device = default_device.CURRENT_DEVICE
        if device is not None and is_gpu(device):
            return self._made_on_gpu(func, args, kwargs)
        if func in _SIZED and device is None and _elements(args, kwargs) > _MOST_REAL:
            return self._made_large(func, args, kwargs)
        if any(type(arg) is torch.device and arg.type == _GPU for arg in args):
            args = tuple(_CPU if type(arg) is torch.device and arg.type == _GPU else arg for arg in args)
        return func(*args, **kwargs)

    def _made_on_gpu(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        kwargs["device"] = _CPU
        kwargs.pop("pin_memory", None)
        if kwargs.get("generator") is not None:
            kwargs["generator"] = None
        if func in (torch.tensor, torch.as_tensor, torch.asarray):
            source = args[0] if args else kwargs.get("data")
            if isinstance(source, FakeTensor):
                return self._move(source, True, kwargs.get("dtype"))
        if torch._C._get_dispatch_mode(FAKE) is not None:
            # Somebody asks for the shape of a result.
            return func(*args, **kwargs)
        with self.tensors.make():
            return func(*args, **kwargs)

    def _made_large(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Make a tensor on the host that is too large to be real."""
        dtype = kwargs.get("dtype") or torch.get_default_dtype()
        if not dtype.is_floating_point or kwargs.get("out") is not None:
            return func(*args, **kwargs)
        kwargs.pop("pin_memory", None)
        kwargs.pop("generator", None)
        with self.tensors.make():
            made = func(*args, **kwargs)
        self.tensors.note_host(made)
        return made

    def _on_gpu(self, tensor: torch.Tensor) -> bool:
        return not tensor.is_meta and not self.tensors.is_host(tensor)

    def _device(self, func: Any, tensor: torch.Tensor) -> torch.device:
        real: torch.device = func(tensor)
        return self.tensors.gpu if real.type == "cpu" and not self.tensors.is_host(tensor) else real

    def _move(self, tensor: torch.Tensor, to_gpu: bool, dtype: torch.dtype | None, copy: bool = False) -> Any:
        local = getattr(tensor, "_local_tensor", None)
        if local is None and not tensor.is_meta and to_gpu != self._on_gpu(tensor):
            if to_gpu:
                return self.tensors.on_gpu(tensor, dtype)
            source, tensor = tensor, self.tensors.on_host(tensor)
            self.values.carry(source, tensor)
            copy = False
        if dtype is not None and (dtype != tensor.dtype or copy):
            return torch.Tensor.to(tensor, dtype, copy=copy)
        return tensor.clone() if copy else tensor

    def _to(self, func: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Run Tensor.to in any of its three forms: of a device, of a dtype, of another tensor."""
        device, dtype = kwargs.get("device"), kwargs.get("dtype")
        copy = bool(kwargs.get("copy", False))
        other = kwargs.get("other")
        for arg in args:
            if isinstance(arg, torch.dtype):
                dtype = arg
            elif isinstance(arg, torch.Tensor):
                other = arg
            elif isinstance(arg, (torch.device, str)) or (isinstance(arg, int) and not isinstance(arg, bool)):
                device = arg
        if other is not None:
            dtype = other.dtype
            device = self.tensors.gpu if self._on_gpu(other) else "meta" if other.is_meta else "cpu"
        if device is None:
            return func(tensor, *args, **kwargs)
        if torch.device(device).type == "meta" if not isinstance(device, int) else False:
            return func(tensor, *args, **kwargs)
        if tensor.is_meta:
            with self.tensors.make():
                return func(tensor, "cpu", dtype=dtype or tensor.dtype)
        return self._move(tensor, is_gpu(device), dtype, copy)

    def _type(self, func: Any, tensor: torch.Tensor, kind: Any = None, *args: Any, **kwargs: Any) -> Any:
        if kind is None:
            name: str = func(tensor)
            return name.replace("torch.", "torch.cuda.", 1) if self._on_gpu(tensor) else name
        if isinstance(kind, str) and ".cuda." in kind:
            kind = kind.replace(".cuda.", ".")
        return func(tensor, kind, *args, **kwargs)

    def around_engine(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return the start of autograd's engine, with this mode active in what hooks of the program run.

        The functions that start it are functions of torch's, so the mode is off inside them.
        """

        @functools.wraps(run)
        def run_backward(*args: Any, **kwargs: Any) -> Any:
            depth = self.tensors.in_function
            if not depth:
                return run(*args, **kwargs)
            self.tensors.in_function = 0
            try:
                with self:
                    return run(*args, **kwargs)
            finally:
                self.tensors.in_function = depth

        return run_backward

    def _attention(
        self,
        func: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        """Take the fused kernel that a GPU takes: the CPU would make the whole matrix of scores."""
        if self.tensors.is_host(query) or query.dim() != 4:
            return func(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        aten: Any = torch.ops.aten
        if attn_mask is None:
            made = aten._scaled_dot_product_flash_attention(
                query, key, value, dropout_p, is_causal, False, scale=scale
            )
            return made[0]
        if enable_gqa and key.shape[1] != query.shape[1]:
            times = query.shape[1] // key.shape[1]
            key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
        bias = None
        if attn_mask is not None:
            if attn_mask.dtype == torch.bool:
                attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype)
            bias = attn_mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
        grads = query.requires_grad or key.requires_grad or value.requires_grad
        made = aten._scaled_dot_product_efficient_attention(
            query, key, value, bias, grads, dropout_p, is_causal, scale=scale
        )
        return made[0]
