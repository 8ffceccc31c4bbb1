"""The accelerators that are known, from `fabrics/gpus.toml`."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Final

from shardtoll.analyzers.roofline.gpu import PEAK_DTYPES, Gpu, named
from shardtoll.analyzers.roofline.table import Table, read_toml

DATA: Final = "shardtoll.analyzers.roofline.fabrics"
GPUS_FILE: Final = "gpus.toml"


@cache
def known_gpus() -> tuple[Gpu, ...]:
    """Return the accelerators that are shipped, by name."""
    text = resources.files(DATA).joinpath(GPUS_FILE).read_text(encoding="utf-8")
    root = read_toml(text, GPUS_FILE)
    gpus = [read_gpu(root.table(name), name) for name in root.data]
    return tuple(sorted(gpus, key=lambda gpu: gpu.name))


def find_gpu(device_name: str | None) -> Gpu | None:
    """Return the accelerator of this device name, as `NVIDIA H100 80GB HBM3`; None where none or two fit."""
    if device_name is None:
        return None
    fitting = [gpu for gpu in known_gpus() if named(device_name, gpu.device_names, gpu.device_names_not)]
    return fitting[0] if len(fitting) == 1 else None


def shipped_gpu(name: str, table: Table) -> Gpu:
    """Return the accelerator that a table names; FabricError with the known ones for another."""
    for gpu in known_gpus():
        if gpu.name == name:
            return gpu
    names = ", ".join(gpu.name for gpu in known_gpus())
    raise table.fail(f"no `gpu` {name!r:.60}", f"write one of {names}, or a table [gpu] of its own")


def read_gpu(table: Table, name: str | None = None) -> Gpu:
    """Return the accelerator that a table describes; `name` where the table's own key is it."""
    own = () if name is not None else ("name",)
    numbers = ("memory_bytes", "memory_gbps")
    lists = ("device_names", "device_names_not")
    table.only(*own, "title", "peak_tflops", *numbers, "reached_matmul_tflops", *lists)
    for key in (*own, "title", "peak_tflops", *numbers):
        if key not in table:
            raise table.fail(
                f"`{key}` is missing", "a [gpu] has name, title, peak_tflops, memory_bytes, memory_gbps"
            )
    peaks = table.table("peak_tflops")
    peaks.only(*PEAK_DTYPES)
    reached = table.quantity("reached_matmul_tflops") if "reached_matmul_tflops" in table else None
    names, names_not = (table.texts(key) if key in table else () for key in lists)
    return Gpu(
        name=table.text("name") if name is None else name,
        title=table.text("title"),
        peak_tflops={dtype: peaks.quantity(dtype, most=1e9) for dtype in PEAK_DTYPES if dtype in peaks},
        memory_bytes=table.quantity("memory_bytes"),
        memory_gbps=table.quantity("memory_gbps"),
        reached_matmul_tflops=reached,
        device_names=names,
        device_names_not=names_not,
    )
