"""The card's own tables: matrix products, attention, memory bandwidth, launches, in the forecast's columns.

A row is one operator at one shape: the median of several blocks of calls, from device events. Rates are
nominal FLOPs over time, attention's causal half counted once. Inputs are random, as zeros run faster.
`tables.csv` has the columns of published compute tables, so that a forecast reads both alike.
"""

from __future__ import annotations

import csv
import gc
import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import torch
from torch.nn import functional

from gpu.place import Place, part
from gpu.sheet import Sheet

LIMIT_S: Final = 70.0
"""Shapes that would begin later are left out, the notes say how many."""
BLOCKS: Final = 5
BLOCK_S: Final = 0.004
"""A block is as many calls as take this long, so that its beginning does not count."""

_SEED: Final = 5
_cuda: Any = torch.cuda


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement; sizes that an operator lacks are None. `moved_gbps` is bytes read and written."""

    gpu: str
    kind: str
    dtype: str
    b: int | None = None
    m: int | None = None
    n: int | None = None
    k: int | None = None
    seq: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    layout: str | None = None
    latency_us: float | None = None
    tflops: float | None = None
    peak_tflops: float | None = None
    eff: float | None = None
    source: str = "make gpu"
    note: str = ""
    moved_gbps: float | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """An operator to be measured: its row without times, its FLOPs and bytes, and what makes its call."""

    row: dict[str, Any]
    flops: float
    moved_bytes: float
    make: Callable[[], Callable[[], Any]]


def _product(dtype: torch.dtype, m: int, n: int, k: int, device: str) -> Callable[[], Any]:
    left = torch.randn(m, k, device=device).to(dtype)
    # Row-major times column-major, as a Linear layer multiplies.
    right = torch.randn(n, k, device=device).to(dtype).t()
    if dtype.itemsize > 1:
        return lambda: left @ right
    one = torch.ones((), device=device)
    scaled: Any = torch._scaled_mm
    return lambda: scaled(left, right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def _attention(shape: tuple[int, int, int, int], device: str, backward: bool) -> Callable[[], Any]:
    dtype = torch.bfloat16
    q, k, v = (torch.randn(shape, device=device, dtype=dtype, requires_grad=backward) for _ in range(3))
    attend: Any = functional.scaled_dot_product_attention
    if not backward:
        return lambda: attend(q, k, v, is_causal=True)
    out = attend(q, k, v, is_causal=True)
    grad = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)


def _streamed(kind: str, elements: int, device: str) -> Callable[[], Any]:
    x = torch.randn(elements // 1_024, 1_024, device=device, dtype=torch.bfloat16)
    y, weight = torch.randn_like(x), torch.ones(1_024, device=device, dtype=torch.bfloat16)
    calls: dict[str, Callable[[], Any]] = {
        "copy": lambda: y.copy_(x),
        "add": lambda: torch.add(x, y),
        "gelu": lambda: functional.gelu(x),
        "layer_norm": lambda: functional.layer_norm(x, (1_024,), weight, weight),
        "softmax": lambda: torch.softmax(x, -1),
    }
    return calls[kind]


def products(place: Place) -> Iterator[Case]:
    """Yield matrix products, in bf16, and in fp8 if the card has it; in any order, but always in the same."""
    sizes = (16, 32) if place.rehearses else (8_192, 4_096, 16_384, 1_024, 256)
    dtypes = {"bfloat16": torch.bfloat16}
    if not place.rehearses and _cuda.get_device_capability() >= (8, 9):
        dtypes["fp8"] = torch.float8_e4m3fn
    shapes = list(itertools.product(sizes, sizes, sizes))
    # In an order of sizes, what a card at its power limit loses would look like a matter of the size.
    random.Random(_SEED).shuffle(shapes)
    for m, n, k in shapes:
        for name, dtype in dtypes.items():
            row = {"kind": "gemm", "dtype": name, "b": 1, "m": m, "n": n, "k": k}
            size = dtype.itemsize
            moved = float((m * k + n * k) * size + m * n * 2)
            make = _bound(_product, dtype, m, n, k, place.device)
            yield Case(row, 2.0 * m * n * k, moved, make)


def attentions(place: Place) -> Iterator[Case]:
    """Yield causal attention, forward and backward, over lengths of sequence and widths of heads."""
    seqs, head_dims = ((16,), (8,)) if place.rehearses else ((2_048, 8_192, 1_024, 4_096, 16_384), (128, 64))
    for head_dim, seq in itertools.product(head_dims, seqs):
        heads, rows = (2, 1) if place.rehearses else (32, max(1, 16_384 // seq))
        forward = 2.0 * rows * heads * seq * seq * head_dim
        tensor = float(rows * heads * seq * head_dim * 2)
        for backward in (False, True):
            kind = "attention_bwd_causal" if backward else "attention_fwd_causal"
            row = {"kind": kind, "dtype": "bfloat16", "b": rows, "seq": seq, "heads": heads}
            row |= {"kv_heads": heads, "head_dim": head_dim}
            shape = (rows, heads, seq, head_dim)
            # Backward: five products where forward has two.
            flops, moved = (2.5 * forward, 8 * tensor) if backward else (forward, 4 * tensor)
            yield Case(row, flops, moved, _bound(_attention, shape, place.device, backward))


def streams(place: Place) -> Iterator[Case]:
    """Yield operators that are bound by memory, from what fits into a cache to what does not."""
    powers = (12,) if place.rehearses else (29, 26, 23, 20, 16)
    passes = {"copy": 2, "add": 3, "gelu": 2, "layer_norm": 2, "softmax": 2}
    for power, (kind, count) in itertools.product(powers, passes.items()):
        elements = 1 << power
        row = {"kind": f"memory {kind}", "dtype": "bfloat16", "m": elements // 1_024, "n": 1_024}
        yield Case(row, 0.0, float(count * elements * 2), _bound(_streamed, kind, elements, place.device))


def launches(place: Place) -> Iterator[Case]:
    """Yield a kernel that has nothing to do: what one launch takes when nothing is waited for."""
    one = torch.zeros(1, device=place.device)
    yield Case({"kind": "launch", "dtype": "float32", "m": 1}, 0.0, 8.0, lambda: lambda: one.add_(1))


def _bound(make: Callable[..., Callable[[], Any]], *values: Any) -> Callable[[], Callable[[], Any]]:
    return lambda: make(*values)


def _latency_s(place: Place, call: Callable[[], Any]) -> float:
    for _ in range(2):
        call()
    first = place.block_s(call, 3)
    times = max(1, min(200, math.ceil(BLOCK_S / max(first, 1e-7)))) if not place.rehearses else 2
    return statistics.median(_timed_s(place, call, times) for _ in range(BLOCKS))


def _timed_s(place: Place, call: Callable[[], Any], times: int) -> float:
    if place.rehearses:
        return place.block_s(call, times)
    begun, ended = (_cuda.Event(enable_timing=True) for _ in range(2))
    begun.record()
    for _ in range(times):
        call()
    ended.record()
    _cuda.synchronize()
    return float(begun.elapsed_time(ended)) / 1e3 / times


def measured(place: Place, gpu: str, case: Case) -> Row:
    """Return the row of one case with its time and rates."""
    call = case.make()
    latency_s = _latency_s(place, call)
    rate = case.flops / latency_s / 1e12 if case.flops else None
    return Row(
        gpu,
        **case.row,
        latency_us=latency_s * 1e6,
        tflops=rate,
        moved_gbps=case.moved_bytes / latency_s / 1e9,
    )


def measure(sheet: Sheet, place: Place, out: Path) -> None:
    """Measure the cases of all kinds in turn, so that a limit leaves some of each."""
    gpu = "cpu" if place.rehearses else str(_cuda.get_device_name())
    deadline = time.monotonic() + LIMIT_S
    kinds = [launches(place), streams(place), attentions(place), products(place)]
    late = 0
    with (out / "tables.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)])
        writer.writeheader()
        count = 0
        for case in _in_turn(kinds):
            if time.monotonic() > deadline:
                late += 1
                continue
            try:
                row = measured(place, gpu, case)
            except torch.OutOfMemoryError:
                gc.collect()
                _cuda.empty_cache()
                sheet.note(f"out of memory: {case.row}")
                continue
            writer.writerow({field.name: getattr(row, field.name) for field in fields(Row)})
            file.flush()
            count += 1
            _best(sheet, row)
    sheet.figure("rows", count)
    if late:
        sheet.note(f"{late} shapes are left out: {LIMIT_S:g} s were over")
    sheet.check("a positive time in each row", count > 0, True)


def _best(sheet: Sheet, row: Row) -> None:
    """Keep the best rate of each kind, and the launch's time, as figures."""
    if row.kind == "launch":
        sheet.figure("launch_us", row.latency_us)
        return
    name, value = (
        (f"{row.kind} {row.dtype} tflops", row.tflops) if row.tflops else (f"{row.kind} gbps", row.moved_gbps)
    )
    if value is not None and value > sheet.figures.get(name, 0.0):
        sheet.figure(name, value)


def _in_turn(kinds: list[Iterator[Case]]) -> Iterator[Case]:
    while kinds:
        for kind in list(kinds):
            case = next(kind, None)
            if case is None:
                kinds.remove(kind)
            else:
                yield case


if __name__ == "__main__":
    part("tables", measure, __doc__ or "")
