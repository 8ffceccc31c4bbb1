"""Sweeps made for tests, with times by a formula; none is copied from a measurement."""

from __future__ import annotations

from collections.abc import Callable, Iterable

HEADER = "source,hardware,nodes,gpus,collective,bytes,time_us,algbw_GBps,busbw_GBps,time_us_inplace,settings"
H100 = "8xH100 SXM HGX, 8x CX-7 IB NDR400"


def straight(latency_us: float, gbps: float) -> Callable[[int], float]:
    """Return size -> latency + size / rate in µs; bytes over 1e3 GB/s are µs."""
    return lambda size: latency_us + size / (1e3 * gbps)


def sweep_text(
    time_us: Callable[[int], float],
    *,
    sizes: Iterable[int] = tuple(1 << power for power in range(10, 31)),
    hardware: str = H100,
    nodes: int = 2,
    gpus: int = 16,
    collective: str = "all_reduce",
    inplace: float | None = 1.01,
) -> str:
    """Return a sweep as CSV; in-place times are `inplace` times the others, or missing."""
    lines = [HEADER]
    for size in sizes:
        time = time_us(size)
        again = "" if inplace is None else f"{time * inplace:.4f}"
        lines.append(f'test,"{hardware}",{nodes},{gpus},{collective},{size},{time:.4f},0,0,{again},')
    return "\n".join(lines) + "\n"
