"""What one accelerator can do: its peaks, its memory, and by which device names it is known."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from shardtoll.analyzers.roofline.quantity import Quantity

PEAK_DTYPES: Final = ("float32", "tf32", "bfloat16", "float16", "float8")
"""What peaks are given for; tf32 is float32 matmuls where torch allows TensorFloat-32."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One kind of accelerator. Peaks are dense, without structured sparsity."""

    name: str
    title: str
    peak_tflops: Mapping[str, Quantity]
    """1e12 floating-point operations a second by dtype (`PEAK_DTYPES`); a dtype it has no units for, or
    whose peak is not known, is missing."""
    memory_bytes: Quantity
    memory_gbps: Quantity
    """GB/s (1e9) of its own memory."""
    reached_matmul_tflops: Quantity | None = None
    """The best that large bfloat16 matmuls were measured to reach; None where nobody published it."""
    device_names: tuple[str, ...] = ()
    """Device names that hold one of these as a word are this accelerator (case does not matter) ..."""
    device_names_not: tuple[str, ...] = ()
    """... unless they hold one of these."""

    def quantities(self) -> Iterator[tuple[str, Quantity]]:
        """Yield every number with its dotted name, as `peak_tflops.bfloat16`."""
        for dtype, number in self.peak_tflops.items():
            yield f"peak_tflops.{dtype}", number
        yield "memory_bytes", self.memory_bytes
        yield "memory_gbps", self.memory_gbps
        if self.reached_matmul_tflops is not None:
            yield "reached_matmul_tflops", self.reached_matmul_tflops

    @property
    def guesses(self) -> tuple[str, ...]:
        """Names of the numbers that are guesses."""
        return tuple(name for name, number in self.quantities() if number.confidence == "GUESS")


def named(text: str, names: Iterable[str], names_not: Iterable[str] = ()) -> bool:
    """Whether the text holds one of the names as a word, and none of the others.

    A word ends where letters and digits end: `H200` is not in `GH200`, `L4` not in `L40S`.
    """
    return any(_holds(text, name) for name in names) and not any(_holds(text, name) for name in names_not)


def _holds(text: str, name: str) -> bool:
    return re.search(rf"(?<![a-z0-9]){re.escape(name)}(?![a-z0-9])", text, re.IGNORECASE) is not None
