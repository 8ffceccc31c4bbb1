"""Step time and peak memory of decoders from 125 M to 8 B parameters: what a dry run is held against.

Each model trains as it is, with its blocks recomputed, and if small enough compiled. `models.csv` has one
row per case: sizes, median step time, tokens per second, model TFLOP/s, peak bytes that tensors held
(`allocated`) and that the allocator took (`reserved`).
A case that does not fit is a row too: `status` says so.
"""

from __future__ import annotations

import csv
import gc
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

import torch

from gpu.decoder import SIZES, TINY, Decoder, Size, batch, trainer
from gpu.place import Place, part
from gpu.sheet import Sheet

LIMIT_S: Final = 85.0
"""Cases that would begin later are left out; one may still run as long again as a part has left."""
_SAID_MOST: Final = 200
BYTES_PER_PARAMETER: Final = 8
"""Of bf16 parameters, gradients and AdamW's two moments."""
WARM_STEPS: Final = 2
STEPS: Final = 5
COMPILED: Final = ("125M", "350M")
"""Compiling a large model takes longer than there is time for."""

_cuda: Any = torch.cuda


@dataclass(frozen=True, slots=True)
class Row:
    """One case; times and bytes are None where it did not run."""

    model: str
    variant: str
    layers: int
    width: int
    heads: int
    vocabulary: int
    positions: int
    batch: int
    parameters: int
    dtype: str
    status: str
    step_s: float | None = None
    tokens_per_s: float | None = None
    tflops: float | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None


def cases(place: Place) -> Iterator[tuple[str, Size, str]]:
    """Yield (name, size, variant), the plain ones of all sizes first."""
    sizes = {"tiny": TINY} if place.rehearses else SIZES
    for variant in ("plain", "recompute", "compile"):
        for name, size in sizes.items():
            if variant != "compile" or place.rehearses or name in COMPILED:
                yield name, size, variant


def _ran(place: Place, name: str, size: Size, variant: str) -> Row:
    about = (name, variant, *_shape(size), size.parameters, str(place.dtype).removeprefix("torch."))
    torch.manual_seed(0)
    if not place.rehearses:
        # A workspace that lies in a segment of the case before would keep it for this one.
        torch._C._cuda_clearCublasWorkspaces()
        _cuda.empty_cache()
        _cuda.reset_peak_memory_stats()
    try:
        model: Any = Decoder.on(place.device, place.dtype, size, recompute=variant == "recompute")
        if variant == "compile":
            # In rehearsal without code generation, for which a machine may lack a compiler.
            model = torch.compile(model, backend="aot_eager" if place.rehearses else "inductor")
        step = trainer(model, batch(size, place.device))
        for _ in range(WARM_STEPS):
            step()
        step_s = statistics.median(place.block_s(step, 1) for _ in range(STEPS))
    except torch.OutOfMemoryError:
        return Row(*about, status="out of memory")
    except RuntimeError as error:
        # As a compiler that is not there.
        return Row(*about, status=" ".join(f"{type(error).__name__}: {error}".split())[:_SAID_MOST])
    tokens = size.batch * size.positions / step_s
    memory = (None, None) if place.rehearses else (_cuda.max_memory_allocated(), _cuda.max_memory_reserved())
    return Row(*about, "ran", step_s, tokens, tokens * size.flops_per_token / 1e12, *memory)


def _fitting() -> int:
    """Return how many of the sizes the card's memory holds, with a fifth beside them for what is computed."""
    most = int(_cuda.get_device_properties(0).total_memory)
    return sum(1.2 * BYTES_PER_PARAMETER * size.parameters <= most for size in SIZES.values())


def _shape(size: Size) -> tuple[int, int, int, int, int, int]:
    return size.layers, size.width, size.heads, size.vocabulary, size.positions, size.batch


def measure(sheet: Sheet, place: Place, out: Path) -> None:
    """Run the cases until the limit."""
    deadline = time.monotonic() + LIMIT_S
    rows: list[Row] = []
    late: list[str] = []
    with (out / "models.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)])
        writer.writeheader()
        for name, size, variant in cases(place):
            if time.monotonic() > deadline:
                late.append(f"{name} {variant}")
                continue
            row = _ran(place, name, size, variant)
            gc.collect()
            rows.append(row)
            writer.writerow(asdict(row))
            file.flush()
            sheet.figure(f"{name} {variant}", asdict(row))
            print(f"{name:5} {variant:10} {row.status} {row.step_s}")
    if late:
        sheet.note(f"left out, as {LIMIT_S:g} s were over: {', '.join(late)}")
    wanted = 1 if place.rehearses else _fitting()
    sheet.check(
        f"{wanted} models, as many as this card holds, have run",
        len({row.model for row in rows if row.status == "ran"}),
        wanted,
        ok=len({row.model for row in rows if row.status == "ran"}) >= wanted,
    )


if __name__ == "__main__":
    part("models", measure, __doc__ or "")
