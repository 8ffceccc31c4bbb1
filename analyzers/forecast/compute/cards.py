"""A GPU as the prices see it: peaks, memory bandwidth, and which measured tables stand for it."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Final

from shardtoll.analyzers.forecast.compute.grid import gpus_with
from shardtoll.analyzers.roofline import Gpu, known_gpus, load_gpu
from shardtoll.ledger import UsageError

_REPORTED_GIB_PER_GB: Final = 0.988
"""An H100 sold with 80 GB reports 79.1 GiB, a B200 with 180 GB 178.4, an H200 with 141 GB 139.8: between the
bytes they are sold with and those in powers of two."""
_USUAL_SHARE: Final = 0.8
"""Share of the bfloat16 peak that large matmuls reach on a GPU whose share nobody published."""

_SIBLINGS: Final = {
    "a100-sxm-40gb": "a100-sxm-80gb",
    "a100-pcie-40gb": "a100-sxm-80gb",
    "a100-pcie-80gb": "a100-sxm-80gb",
    "a800-sxm-80gb": "a100-sxm-80gb",
    "a800-pcie-80gb": "a100-sxm-80gb",
    "h800-sxm": "h100-sxm",
    "h20": "h100-sxm",
    "gh200-96gb": "h100-sxm",
    "gh200-144gb": "h200-sxm",
    "h100-pcie": "h100-sxm",
    "h100-nvl": "h100-sxm",
    "h800-pcie": "h100-sxm",
}
"""GPU without a table of its own -> the one of the same chip that has one."""


@dataclass(frozen=True)
class Card:
    """One kind of GPU."""

    name: str
    gpu: Gpu
    memory_gbps: float
    matmul_share: float
    """Share of the bfloat16 peak that large matmuls reach."""

    def peak_tflops(self, dtype: str) -> float:
        """Return the dense peak for a dtype; the next wider dtype's for one that the GPU has no units for."""
        peaks = self.gpu.peak_tflops
        for name in _WIDER[_peak_dtype(dtype)]:
            if name in peaks:
                factor = 2.0 if dtype.startswith("float4") and name == "float8" else 1.0
                return peaks[name].value * factor
        return max(number.value for number in peaks.values())


_WIDER: Final = {
    "float8": ("float8", "bfloat16", "float16"),
    "bfloat16": ("bfloat16", "float16"),
    "float16": ("float16", "bfloat16"),
    "tf32": ("tf32", "float32"),
    "float32": ("float32",),
}


def _peak_dtype(dtype: str) -> str:
    if dtype.startswith(("float8", "float4")):
        return "float8"
    return dtype if dtype in _WIDER else "float32"


def reported_bytes(sold_bytes: float) -> int:
    """Bytes that a driver reports of a GPU sold with `sold_bytes` (1e9 a GB)."""
    return round(sold_bytes / 1e9 * _REPORTED_GIB_PER_GB * 2**30)


def capacity_of(gpu: str) -> int:
    """Bytes that the driver reports of a GPU, or that its file states; UsageError for an unknown one."""
    sold = card_of(gpu).gpu.memory_bytes.value
    return round(sold) if gpu.endswith(".toml") else reported_bytes(sold)


@cache
def card_of(name: str) -> Card:
    """Return the GPU of that name or TOML file; UsageError with names that are alike for an unknown one."""
    file = name.endswith(".toml")
    for gpu in (load_gpu(name),) if file else known_gpus():
        if file or gpu.name == name:
            peaks = gpu.peak_tflops
            peak = peaks.get("bfloat16") or peaks.get("float16") or peaks.get("float32")
            reached = gpu.reached_matmul_tflops
            share = reached.value / peak.value if reached is not None and peak is not None else _USUAL_SHARE
            return Card(name, gpu, gpu.memory_gbps.value, share)
    names = [gpu.name for gpu in known_gpus()]
    alike = difflib.get_close_matches(name, names, 4, 0.4) or ["a100-sxm-80gb", "h100-sxm", "b200-sxm"]
    raise UsageError(f"no GPU named {name!r:.60}", f"name one of gpus.toml, as {', '.join(alike)}")


@lru_cache(maxsize=256)
def sibling_of(name: str, kind: str, dtype: str) -> Card | None:
    """Return the GPU whose table stands for this one: itself, its chip's, else the nearest peak's."""
    tables = gpus_with(kind, dtype)
    if not tables:
        return None
    if name in tables:
        return card_of(name)
    if _SIBLINGS.get(name) in tables:
        return card_of(_SIBLINGS[name])
    peak = card_of(name).peak_tflops(dtype)
    return card_of(min(tables, key=lambda each: abs(card_of(each).peak_tflops(dtype) / peak - 1)))
