"""The true gradient: one rank, one device, the unsharded module, the global batch's loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from shardtoll.ledger import UsageError
from shardtoll.profiler.live.cause.module_names import clean_name
from shardtoll.profiler.live.gradients.pairs import Pair

_COLLECTIVES = ("c10d", "_c10d_functional", "c10d_functional")


class _NoCollectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Ends a loss that communicates: only rank 0 computes it, and would wait for the others for ever."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            raise UsageError(
                "loss(reference) uses a DTensor",
                "give it the global batch as a plain tensor, gathered before the check",
            )
        if func.namespace in _COLLECTIVES:
            raise UsageError(
                f"loss(reference) communicates ({func})",
                "only rank 0 computes it: gather the global batch before the check, on every rank",
            )
        return func(*args, **(kwargs or {}))


@contextmanager
def _as_trained(reference: nn.Module, pairs: Sequence[Pair], modes: Mapping[str, bool]) -> Iterator[None]:
    """Have the reference train what the model trains, in the same train or eval mode, for the block."""
    modules = [(module, module.training) for module in reference.modules()]
    needed = [(tensor, tensor.requires_grad) for pair in pairs for tensor in pair.references]
    try:
        for name, module in reference.named_modules():
            was_training = modes.get(clean_name(reference, name) if name else "")
            if was_training is not None:
                module.training = was_training
        for pair in pairs:
            for tensor in pair.references:
                tensor.requires_grad_(pair.first.trained)
        yield
    finally:
        for module, training in modules:
            module.training = training
        for tensor, required in needed:
            tensor.requires_grad_(required)


def compute(
    reference: nn.Module,
    pairs: Sequence[Pair],
    modes: Mapping[str, bool],
    loss: Callable[[nn.Module], torch.Tensor],
) -> dict[str, torch.Tensor]:
    """Return the gradient of loss(reference) by name, parameters without one left out.

    The reference's own gradients are gone afterwards. Raises UsageError if the loss is no scalar, does not
    depend on the parameters, communicates or fails. Also if it leaves a gradient that is not finite.
    """
    _forget(pairs)
    try:
        with _as_trained(reference, pairs, modes), torch.enable_grad():
            with _NoCollectives():  # type: ignore[no-untyped-call]
                _checked(loss(reference)).backward()  # type: ignore[no-untyped-call]
        gradients = {pair.name: total for pair in pairs if (total := _total(pair)) is not None}
    except UsageError:
        raise
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        raise UsageError(
            f"loss(reference) failed with {type(error).__name__}: {first}",
            "it must run alone on rank 0, on the device the reference is on",
        ) from error
    finally:
        _forget(pairs)
    for name, gradient in gradients.items():
        values = gradient.coalesce().values() if gradient.is_sparse else gradient
        if not bool(torch.isfinite(values).all()):
            raise UsageError(
                f"loss(reference) gives a gradient that is not finite (parameter {name})",
                "there is nothing to compare with: check the loss, its dtype and the batch",
            )
    return gradients


def _forget(pairs: Sequence[Pair]) -> None:
    for pair in pairs:
        for tensor in pair.references:
            tensor.grad = None


def _total(pair: Pair) -> torch.Tensor | None:
    """Return the gradient: if one tensor of the model is several of the reference, their sum."""
    total: torch.Tensor | None = None
    for tensor in pair.references:
        if tensor.grad is not None:
            total = tensor.grad if total is None else total + tensor.grad
    return total


def _checked(value: object) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise UsageError(
            f"loss(reference) returned {type(value).__name__}, not a tensor",
            "return the loss itself, without .item()",
        )
    if value.numel() != 1:
        raise UsageError(
            f"loss(reference) has shape {tuple(value.shape)}, not a scalar",
            "reduce it as the training step does, with mean() or sum()",
        )
    if not value.requires_grad:
        raise UsageError(
            "loss(reference) does not depend on the reference's parameters",
            "compute it with the module that loss is given",
        )
    return value
