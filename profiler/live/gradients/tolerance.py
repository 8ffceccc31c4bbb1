"""How far two right gradients may lie apart: the tolerance of a dtype, and the noise floor of a model.

Relative tolerance. One rounding to a dtype with spacing eps changes a value by a factor 1 + d, d uniform in
+-eps/2. Its root mean square is eps/sqrt(12). R roundings in series that do not know of each other walk at
random: eps * sqrt(R/12). The tolerance sqrt(eps) is reached at R = 12/eps:

    dtype      eps       sqrt(eps)   roundings in series that stay inside
    float64    2.2e-16   1.5e-8      5e16
    float32    1.2e-7    3.5e-4      1e8
    tf32       9.8e-4    3.1e-2      12 288
    float16    9.8e-4    3.1e-2      12 288
    bfloat16   7.8e-3    8.8e-2      1 536

A gradient passes a few tens of roundings per layer. Cancellation inside its sums multiplies the error by the
ratio of the terms' size to the sum's. The remaining room is for this. Measured: in a transformer of 12 layers
all in bfloat16 the worst parameter is 0.026 off at first, 0.042 after 20 steps. On a log scale, sqrt(eps) is
also the middle between one rounding (eps) and nothing right at all (1). Real mistakes are far outside. A
reduction missing over n ranks is off by (n-1)/n for a mean, and by about sqrt(1 - 1/n) for a sum of unrelated
parts. A doubled one is off by 1. A mistake smaller than the tolerance (one micro-batch of 16 lost, in
bfloat16) is within rounding. Train that check in float32, or give `rtol`.

Reductions. A ring adds n ranks' parts one after the other, n - 1 roundings in series. Early sums are small,
and so are their roundings. Unrelated parts: the k-th sum is sqrt(k) parts. The error relative to the last one
is eps * sqrt(sum k / n / 12) = eps * sqrt(n/24). Parts that point one way: k parts, eps * sqrt(n/36). A tree
does log2(n) roundings. The same holds of micro-batches that are accumulated. In bfloat16 the ring of 64 ranks
adds 1.3e-2 to the 8.8e-2 allowed, that of 1024 unrelated ones 5.1e-2. The derivation ends if a sum is so
large that a part is below half its spacing and is lost. For parts that point one way that is n > 2/eps, 256
in bfloat16. From there on a serial sum stands still (n = 512: 15 % too small). The gradient is wrong and is
reported: reduce in float32, as FSDP2's reduce_dtype does.

Noise floor. Some gradients are zero in exact arithmetic and rounding noise in any other; no relative
tolerance fits them. An example is the bias of an attention's key projection: softmax does not see it. The
noise of a sum is about eps times the size of its terms. The model's other gradients show this size: their
root mean square. A gradient closer to the true one than eps times that, an element, counts as equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import torch
from torch import nn

from shardtoll.ledger import UsageError
from shardtoll.profiler.live.gradients.compare import Overlap

_TF32_EPS: Final = 2.0**-10
_EPS_OF_MATMUL: Final = {"high": _TF32_EPS, "medium": 2.0**-7}
"""Format that torch.set_float32_matmul_precision lets an accelerator round to: TF32, or bfloat16."""


def eps_of(dtypes: Iterable[torch.dtype], device_type: str) -> float:
    """Return the largest spacing of the floating dtypes involved; float32 counts as TF32 if that is on."""
    spacings = [0.0]
    for dtype in dtypes:
        if not dtype.is_floating_point and not dtype.is_complex:
            continue
        spacings.append(float(torch.finfo(dtype).eps))
        if dtype == torch.float32 and device_type == "cuda":
            spacings.append(_EPS_OF_MATMUL.get(torch.get_float32_matmul_precision(), 0.0))
    return max(spacings)


def compute_dtypes(modules: Iterable[nn.Module]) -> set[torch.dtype]:
    """Return the dtypes that wrappers and autocast compute or reduce in, if they can be asked.

    FSDP2's and DDP's mixed precision are read from the modules. An autocast around the forward alone is over
    by now and cannot be seen.
    """
    dtypes: set[torch.dtype] = set()
    for module in modules:
        fsdp_state = getattr(module, "_get_fsdp_state", None)
        state = fsdp_state() if callable(fsdp_state) else None
        for policy in (getattr(state, "_mp_policy", None), getattr(module, "mixed_precision", None)):
            for name in ("param_dtype", "reduce_dtype"):
                dtype = getattr(policy, name, None)
                if isinstance(dtype, torch.dtype):
                    dtypes.add(dtype)
    for device_type in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device_type):
            dtypes.add(torch.get_autocast_dtype(device_type))
    return dtypes


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Limits for one parameter's gradient."""

    relative: float
    """Share of |G|."""
    noise: float
    """Absolute, an element (root mean square)."""

    def limit(self, overlap: Overlap, factor: float = 1.0) -> float:
        """Return the largest |g - factor G| that counts as equal on one rank."""
        return abs(factor) * (
            self.relative * math.sqrt(overlap.true_sq) + self.noise * math.sqrt(overlap.numel)
        )

    def allows(self, overlap: Overlap, factor: float = 1.0) -> bool:
        """Whether g is factor times G; for a factor other than 1 as exact as the sums allow."""
        if not overlap.finite:
            return False
        exact = 0.0 if factor == 1 else 1e-7 * math.sqrt(overlap.own_sq)
        return overlap.apart_from(factor) <= self.limit(overlap, factor) + exact


def tolerance_of(eps: float, rtol: float | None, true_rms: float) -> Tolerance:
    """Return the tolerance for a spacing, or for the user's `rtol`; `true_rms` is over all true gradients."""
    relative = math.sqrt(eps) if rtol is None else rtol
    return Tolerance(relative, min(eps, relative) * true_rms)


def checked_rtol(rtol: float | None) -> float | None:
    """Return a usable relative tolerance or None; UsageError for anything else."""
    if rtol is None:
        return None
    if isinstance(rtol, bool) or not isinstance(rtol, (int, float)) or not 0 <= rtol < math.inf:
        raise UsageError(f"rtol is {rtol!r}", "give a relative error such as 1e-3, or leave it out")
    return float(rtol)
