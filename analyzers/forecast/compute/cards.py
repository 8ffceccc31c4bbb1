"""A GPU as the prices see it: peaks, memory bandwidth, and which measured tables stand for it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Final

from shardtoll.analyzers.forecast.compute.grid import gpus_with
from shardtoll.analyzers.roofline import Gpu, gpu_of_run, gpu_to_toml, known_gpus, load_gpu
from shardtoll.ledger import Run

_REPORTED_GIB_PER_GB: Final = 0.988
"""Reported memory lies between the bytes that a GPU is sold with and those in powers of two. An H100 sold
with 80 GB reports 79.1 GiB, a B200 with 180 GB 178.4, an H200 with 141 GB 139.8."""
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

    key: str
    """Key by which it is found: its name, its TOML file, or the text of one."""
    gpu: Gpu
    memory_gbps: float
    matmul_share: float
    """Share of the bfloat16 peak that large matmuls reach."""
    shipped: bool
    """Whether it is one of `gpus.toml`."""

    @property
    def name(self) -> str:
        """Return what it is called: by its key in `gpus.toml`, or by its own file."""
        return self.gpu.name

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
    card = card_of(gpu)
    sold = card.gpu.memory_bytes.value
    return reported_bytes(sold) if card.shipped else round(sold)


@cache
def card_of(key: str) -> Card:
    """Return the GPU of a key: its name, its TOML file, or the text of one.

    Raises UsageError with similar names for an unknown name, FabricError for a file that describes none.
    """
    gpu = load_gpu(key)
    peaks = gpu.peak_tflops
    peak = peaks.get("bfloat16") or peaks.get("float16") or peaks.get("float32")
    reached = gpu.reached_matmul_tflops
    share = reached.value / peak.value if reached is not None and peak is not None else _USUAL_SHARE
    return Card(key, gpu, gpu.memory_gbps.value, share, gpu in known_gpus())


def card_of_gpu(gpu: Gpu) -> Card:
    """Return the GPU that a fabric names, shipped or described in the fabric's own file."""
    return card_of(gpu.name if gpu in known_gpus() else gpu_to_toml(gpu))


def card_of_run(run: Run) -> Card | None:
    """Return the GPU that a run was on, or that a dry run was made for; None if its record tells none."""
    if run.gpu_toml is not None:
        return card_of(run.gpu_toml)
    # A dry run of an older version may name a GPU of a file. The shipped one of such a device stands for it.
    if run.gpu is not None and any(gpu.name == run.gpu for gpu in known_gpus()):
        return card_of(run.gpu)
    gpu = gpu_of_run(run)
    return None if gpu is None else card_of(gpu.name)


@lru_cache(maxsize=256)
def sibling_of(key: str, kind: str, dtype: str) -> Card | None:
    """Return the GPU whose table stands for this one: itself, its chip's, else the nearest peak's."""
    tables = gpus_with(kind, dtype)
    if not tables:
        return None
    if key in tables:
        return card_of(key)
    if _SIBLINGS.get(key) in tables:
        return card_of(_SIBLINGS[key])
    peak = card_of(key).peak_tflops(dtype)
    return card_of(min(tables, key=lambda each: abs(card_of(each).peak_tflops(dtype) / peak - 1)))
