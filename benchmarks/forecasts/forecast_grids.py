"""Distil measured kernel times into the packaged tables of the forecast, and say how well they interpolate.

    python benchmarks/forecasts/forecast_grids.py FOLDER/forecast \\
        -o analyzers/forecast/data/forecast_compute.json

FOLDER has compute_eff.csv. Held-out figures: each second node of a table predicted from the others, and the
matmuls of another source (Transformer Engine, MooreThreads/SimuMax) from the tables.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

GPUS: Final = {
    "A100-80G SXM": "a100-sxm-80gb",
    "H100-80G SXM": "h100-sxm",
    "H200 SXM": "h200-sxm",
    "B200 SXM": "b200-sxm",
    "B300 SXM": "b300-sxm",
    "GB200": "gb200",
    "GB300": "gb300",
    "L40S": "l40s",
}
DTYPES: Final = {"bfloat16": "bfloat16", "fp8": "float8", "nvfp4": "float4"}
SHARES: Final = {
    "memory": (0.8, "share of memory bandwidth that streaming kernels reach; start value, the fit scales it"),
    "kernel_floor_us": (3.0, "shortest kernel and its gap; smallest rows of compute_eff.csv"),
    "attention_backward": (0.86, "backward over forward share, head 128: median of MooreThreads/SimuMax"),
    "attention_head_64": (
        0.97,
        "head dimension 64 over 128: mpt-125m and 350m beside mpt-760m to 3b, llm-foundry",
    ),
    **{
        f"attention_head_64_hopper_{direction}": (
            share,
            "head dimension 64 over 128 of SDPA, median of five lengths on an H200 "
            "(benchmarks/results/gpu-h200/tables.csv, 2026-11-27)",
        )
        for direction, share in (("forward", 0.7), ("backward", 0.78))
    },
    "attention_flash2_ampere": (1.0, "the tables of these GPUs were measured with FlashAttention-2"),
    "attention_flash2_hopper": (
        0.6,
        "FlashAttention-3 is 1.5 to 2.0 times as fast forward, 1.5 to 1.75 backward (arXiv 2407.08608, H100)",
    ),
    "attention_flash1_ampere": (
        0.55,
        "FlashAttention-2 is 1.7 to 3.0 times as fast as the first, 1.3 to 2.5 as Triton's "
        "(arXiv 2307.08691, A100)",
    ),
    "attention_flash1_hopper": (0.33, "of Ampere, times that of FlashAttention-2 on Hopper"),
    "attention_head_192": (0.9, "head dimension 192 over 128: median of MooreThreads/SimuMax"),
    **{
        f"memory_{name}": (
            share,
            "median rate of the two largest sizes, forward, over 4,800 GB/s of an H200 "
            "(benchmarks/results/gpu-h200/tables.csv, 2026-11-27); other GPUs, types and backward "
            "are taken to be like it",
        )
        for name, share in (("gelu", 0.546), ("layer_norm", 0.327), ("softmax", 0.513))
    },
    "grouped": (0.6, "weight of separate matmuls in a grouped one: median of MooreThreads/SimuMax"),
}


def main() -> None:
    """Write the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    with (arguments.folder / "compute_eff.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    tables: dict[str, Any] = {
        "matmul": _matmuls(rows),
        "attention": _attention(rows),
        "shares": {name: {"value": value, "source": why} for name, (value, why) in SHARES.items()},
    }
    arguments.output.write_text(json.dumps(tables, separators=(",", ":")) + "\n", encoding="utf-8")
    print(f"wrote {arguments.output}, {arguments.output.stat().st_size:,} bytes")


def _matmuls(rows: list[dict[str, str]]) -> dict[str, Any]:
    tables: dict[str, Any] = defaultdict(dict)
    wide: dict[str, dict[tuple[int, int, int], float]] = {}
    for source_gpu, gpu in GPUS.items():
        for name, dtype in DTYPES.items():
            chosen = [
                row
                for row in rows
                if row["gpu"] == source_gpu and row["dtype"] == name and row["kind"] == "gemm" and _grid(row)
            ]
            if not chosen:
                continue
            axes = [sorted({int(row[axis]) for row in chosen}) for axis in "mnk"]
            times = {_place(row): float(row["latency_us"]) for row in chosen}
            shares = {_place(row): float(row["eff"]) for row in chosen}
            source = chosen[0]["source"]
            if dtype == "bfloat16":
                wide[gpu] = times
            elif gpu in wide:
                own_us = _own_us(wide[gpu])
                cast_us = _cast_us(times, own_us)
                for place, time in times.items():
                    least = own_us + max(0.0, wide[gpu][place] - own_us) / _FASTER[dtype]
                    without = max(time - cast_us[place[0] * place[2]], min(least, time))
                    shares[place] *= time / without
                source += f"; without casting the input: {min(cast_us.values()):.1f} us for a small one, "
                source += f"{1e6 * max(cast_us.values()) / max(cast_us):.2f} ps an element for the largest"
            values = [max(1, round(1e4 * shares[m, n, k])) for m in axes[0] for n in axes[1] for k in axes[2]]
            tables[gpu][dtype] = _table(axes, values, source)
    return dict(tables)


_FASTER: Final = {"float8": 2.0, "float4": 4.0}
"""What narrow products gain over bfloat16 at most, but for what each takes by itself: the ratio of peaks."""


def _place(row: dict[str, str]) -> tuple[int, int, int]:
    return int(row["m"]), int(row["n"]), int(row["k"])


def _at_no_column_us(times: dict[tuple[int, int, int], float]) -> dict[tuple[int, int], float]:
    """Return what remains of the times at no column, by rows and depth: from 512 and 1,024 columns."""
    return {(m, k): 2 * times[m, 512, k] - times[m, 1024, k] for m, n, k in times if n == 512}


def _own_us(wide: dict[tuple[int, int, int], float]) -> float:
    """Return what a product takes however small it is: 2 to 3 us, in each type."""
    return statistics.median(_at_no_column_us(wide).values())


def _cast_us(times: dict[tuple[int, int, int], float], own_us: float) -> dict[int, float]:
    """Return what casting the left input took within the measured times, by the input's elements.

    A product's time goes with its columns, the cast's does not: it is what remains at no column, less what a
    product takes by itself. No line through all sizes fits: an input that the cache holds takes a third
    of the time an element (L40S). More elements never take less.
    """
    by_elements: dict[int, list[float]] = defaultdict(list)
    for (rows, depth), time in _at_no_column_us(times).items():
        by_elements[rows * depth].append(time - own_us)
    cast_us, most = {}, 0.0
    for elements in sorted(by_elements):
        most = cast_us[elements] = max(most, statistics.median(by_elements[elements]))
    return cast_us


def _attention(rows: list[dict[str, str]]) -> dict[str, Any]:
    tables: dict[str, Any] = {}
    for source_gpu, gpu in GPUS.items():
        # One key-value head: other rows hold the writes of a key-value cache, which training has not.
        chosen = [
            row
            for row in rows
            if row["gpu"] == source_gpu and row["kind"] == "attention_fwd_causal" and row["kv_heads"] == "1"
        ]
        by_place = defaultdict(list)
        for row in chosen:
            by_place[int(row["b"]) * int(row["heads"]), int(row["seq"])].append(math.log(float(row["eff"])))
        axes = [sorted({place[axis] for place in by_place}) for axis in (0, 1)]
        values = [round(1e4 * _mean(by_place, tiles, seq)) for tiles in axes[0] for seq in axes[1]]
        tables[gpu] = {"bfloat16": _table(axes, values, chosen[0]["source"])}
    return tables


def _mean(by_place: dict[tuple[int, int], list[float]], tiles: int, seq: int) -> float:
    """Return the geometric mean of the shares measured there, or at the next smaller place that was
    measured."""
    while (tiles, seq) not in by_place:
        tiles, seq = (tiles // 2, seq) if tiles > 4 else (tiles, seq // 2)
    return math.exp(statistics.fmean(by_place[tiles, seq]))


def _grid(row: dict[str, str]) -> bool:
    return row["source"].startswith("PyPI aiconfigurator")


def _table(axes: list[list[int]], values: list[int], source: str) -> dict[str, Any]:
    return {"axes": axes, "share_e4": values, "source": source}


if __name__ == "__main__":
    main()
